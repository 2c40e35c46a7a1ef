//! A URL that makes no sense is misuse, wherever it is given: the exit code is 64, and nothing is tried.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod sandbox;

use crate::sandbox::Sandbox;

#[test]
fn a_url_that_makes_no_sense_is_misuse_for_every_engine() {
    let sandbox = Sandbox::new();
    for url in [
        "",
        "nonsense",
        "nothing://host",
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
            let said = sandbox.run(&[&["--url", url], args].concat());
            assert_eq!(said.code, Some(64), "{url} {args:?}: {}", said.err);
        }
    }
}

#[test]
fn a_url_that_makes_no_sense_is_misuse_for_every_fence() {
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
        let said = sandbox.run(&["fence", "check", url, "orders"]);
        assert_eq!(said.code, Some(64), "{url}: {}", said.err);
    }
    let install: [&[&str]; 3] = [
        &["fence", "postgres", "--install", "--database", "postgres://host:port/db"],
        &["fence", "mysql", "--install", "mysql://host:port/db"],
        &["fence", "redis", "--install", "redis://host:port"],
    ];
    for args in install {
        let said = sandbox.run(args);
        assert_eq!(said.code, Some(64), "{args:?}: {}", said.err);
    }
}
