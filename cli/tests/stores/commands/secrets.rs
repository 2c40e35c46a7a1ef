//! `palisade fence` and `palisade prove` never print the password of a store.

use std::fs;

use super::run;
use crate::sandbox::Sandbox;
use crate::servers::{Server, try_mariadb, try_psql, try_redis};

const SECRET: &str = "xyzzy-plugh";

/// Returns all commands that take a URL of this scheme.
fn commands(scheme: &str) -> Vec<Vec<&str>> {
    let upstream = ["--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--lock", "a"];
    let mut all = vec![
        vec!["fence", "check", "URL", "orders"],
        vec!["fence", "check", "URL", "orders", "--json"],
        vec!["fence", "check", "URL", "orders", "more"],
        vec!["fence", scheme, "URL"],
        vec!["prove", "order", "--resource", "URL"],
        vec!["prove", "pauses", "--resource", "URL", "--json"],
        vec!["prove", "URL"],
        [&["fence", "http", "--store", "URL"], &upstream[..]].concat(),
        [&["fence", "http", "--store", "memory:", "--keys", "URL"], &upstream[..]].concat(),
    ];
    all.push(vec!["fence", scheme, "--install", "URL"]);
    all
}

fn assert_secret_hidden(sandbox: &Sandbox, scheme: &str, url: &str) {
    for command in commands(scheme) {
        let args: Vec<&str> = command.iter().map(|word| if *word == "URL" { url } else { word }).collect();
        let output = sandbox.run(&args);
        assert!(matches!(output.code, Some(64 | 69)), "{args:?}: {output:?}");
        assert!(!output.err.is_empty(), "{args:?}: {output:?}");
        for part in [SECRET, "plugh"] {
            assert!(!output.err.contains(part) && !output.out.contains(part), "{args:?}: {output:?}");
        }
    }
}

#[test]
fn errors_of_bad_urls_and_absent_hosts_show_no_password() {
    let sandbox = Sandbox::new();
    for scheme in ["postgres", "mysql", "redis"] {
        for rest in [
            format!("user:{SECRET}@127.0.0.1:1/0"),
            format!("user:{SECRET}@127.0.0.1:99999/0"),
            format!("user:{SECRET}@127.0.0.1:{SECRET}/0"),
            format!("user:{SECRET}@[127.0.0.1/0"),
            format!("127.0.0.1:1/0?password={SECRET}"),
            format!("user:{SECRET}@127.0.0.1:1/0?port={SECRET}&{SECRET}=1"),
        ] {
            assert_secret_hidden(&sandbox, scheme, &format!("{scheme}://{rest}"));
        }
        assert_secret_hidden(&sandbox, scheme, &format!("{scheme}x://user:{SECRET}@127.0.0.1:1/0"));
    }
    let output = sandbox.run(&["fence", "check", &format!("http://user:{SECRET}@127.0.0.1:1")]);
    assert!(output.code == Some(69) && !output.err.contains(SECRET), "{output:?}");
}

#[test]
fn errors_of_a_wrong_password_do_not_show_it() {
    let sandbox = Sandbox::new();
    let postgres = Server::postgres_with(&[], |data| {
        let rules = "host all locked 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
    });
    try_psql(&postgres.url, "CREATE ROLE locked LOGIN PASSWORD 'right'").unwrap();
    assert_secret_hidden(
        &sandbox,
        "postgres",
        &format!("postgres://locked:{SECRET}@127.0.0.1:{}/postgres", postgres.port),
    );
    let mariadb = Server::mariadb(&[]);
    try_mariadb(mariadb.port, "CREATE USER locked@'%' IDENTIFIED BY 'right'; GRANT ALL ON shop.* TO locked@'%'")
        .unwrap();
    assert_secret_hidden(&sandbox, "mysql", &format!("mysql://locked:{SECRET}@127.0.0.1:{}/shop", mariadb.port));
    let redis = Server::redis(&[]);
    try_redis(redis.port, &["ACL", "SETUSER", "locked", "on", ">right", "~*", "+@all"]).unwrap();
    assert_secret_hidden(&sandbox, "redis", &format!("redis://locked:{SECRET}@127.0.0.1:{}", redis.port));
}

#[test]
fn errors_of_a_wrong_s3_key_do_not_show_it() {
    let (sandbox, mut server) = (Sandbox::new(), Server::s3());
    server.variables.retain(|(name, _)| *name != "AWS_SECRET_ACCESS_KEY");
    server.variables.push(("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()));
    for args in [&["fence", "check", "s3://fenced/orders"][..], &["prove", "order", "--resource", "s3://fenced"]] {
        let output = run(&sandbox, &server, args);
        assert!(output.code == Some(69) && !output.err.contains(SECRET), "{output:?}");
    }
}
