//! An invalid URL exits with 64 in every command that takes one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::sandbox::Sandbox;

#[test]
fn an_invalid_url_is_misuse_for_every_engine() {
    let sandbox = Sandbox::new();
    for url in [
        "",
        "nonsense",
        "nothing://host",
        "mariadb://host/db",
        "/tmp/locks.db",
        "palisade:",
        "palisade://",
        "palisade://host",
        "palisade://host:port",
        "palisade://host:99999",
        "palisades://host:7420?colour=red",
        "postgres://host:port/db",
        "postgres://host/db?sslmode=perhaps",
        "mysql://",
        "mysql://host",
        "mysql://host:port/db",
        "redis://",
        "redis://host:port",
        "redis://host/notanumber",
        "redlock://",
        "redlock://a",
        "redlock://a,a,a",
    ] {
        for args in [&["ls"][..], &["run", "x", "--", "true"], &["doctor"], &["show", "x"]] {
            let output = sandbox.run(&[&["--url", url], args].concat());
            assert_eq!(output.code, Some(64), "{url} {args:?}: {}", output.err);
        }
    }
}

#[test]
fn a_refusal_says_what_to_change() {
    let sandbox = Sandbox::new();
    let refusals: [(&[&str], &str); 4] = [
        (&["ls", "--url", "palisades://host:7420?colour=red"], "the option 'colour' is unknown"),
        (&["ls", "--url", "/tmp/locks.db"], "write embedded:///tmp/locks.db"),
        (&["doctor", "--url", "memory:", "memory:"], "two URLs"),
        (&["acquire", "x", "--url", "memory:"], "its sessions do not outlive their process"),
    ];
    for (args, what) in refusals {
        let output = sandbox.run(args);
        assert!(output.code == Some(64) && output.err.contains(what), "{args:?}: {}", output.err);
    }
}

#[test]
fn an_invalid_url_is_misuse_for_every_fence() {
    let sandbox = Sandbox::new();
    for url in [
        "nothing://host",
        "postgres://host:port/db",
        "mysql://host:port/db",
        "redis://host:port",
        "http://",
        "http://host:port",
        "s3://",
        "sqlite:no-such-file.db",
    ] {
        let output = sandbox.run(&["fence", "check", url, "orders"]);
        assert_eq!(output.code, Some(64), "{url}: {}", output.err);
    }
    let install: [&[&str]; 6] = [
        &["fence", "redis", "--install", "redis://127.0.0.1:1?ca=x"],
        &["fence", "mysql", "--install", "mysql://me@127.0.0.1:1/db?ssl-mode=preferred"],
        &["fence", "mysql", "--install", "mysql://me@127.0.0.1:1/db?ssl-mode=disabled&ssl-ca=x"],
        &["fence", "postgres", "--install", "postgres://host:port/db"],
        &["fence", "mysql", "--install", "mysql://host:port/db"],
        &["fence", "redis", "--install", "redis://host:port"],
    ];
    for args in install {
        let output = sandbox.run(args);
        assert_eq!(output.code, Some(64), "{args:?}: {}", output.err);
    }
}
