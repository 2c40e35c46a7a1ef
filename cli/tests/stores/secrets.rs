//! Nothing that `palisade fence` and `palisade prove` say has a password of a store in it.

use std::fs;

use crate::run;
use crate::sandbox::Sandbox;
use crate::servers::{Server, try_mariadb, try_psql, try_redis};

const SECRET: &str = "xyzzy-plugh";

/// All that can be tried with a URL of this scheme.
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
    match scheme {
        "postgres" => all.push(vec!["fence", "postgres", "--install", "--database", "URL"]),
        other => all.push(vec!["fence", other, "--install", "URL"]),
    }
    all
}

fn is_discreet(sandbox: &Sandbox, scheme: &str, url: &str) {
    for command in commands(scheme) {
        let args: Vec<&str> = command.iter().map(|word| if *word == "URL" { url } else { word }).collect();
        let said = sandbox.run(&args);
        assert!(matches!(said.code, Some(64 | 69)), "{args:?}: {said:?}");
        assert!(!said.err.is_empty(), "{args:?}: {said:?}");
        for part in [SECRET, "plugh"] {
            assert!(!said.err.contains(part) && !said.out.contains(part), "{args:?}: {said:?}");
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
            is_discreet(&sandbox, scheme, &format!("{scheme}://{rest}"));
        }
        is_discreet(&sandbox, scheme, &format!("{scheme}x://user:{SECRET}@127.0.0.1:1/0"));
    }
    let said = sandbox.run(&["fence", "check", &format!("http://user:{SECRET}@127.0.0.1:1")]);
    assert!(said.code == Some(69) && !said.err.contains(SECRET), "{said:?}");
}

#[test]
fn errors_of_a_wrong_password_do_not_show_it() {
    let sandbox = Sandbox::new();
    let postgres = Server::postgres_with(&[], |data| {
        let rules = "host all locked 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
    });
    try_psql(&postgres.url, "CREATE ROLE locked LOGIN PASSWORD 'right'").unwrap();
    is_discreet(&sandbox, "postgres", &format!("postgres://locked:{SECRET}@127.0.0.1:{}/postgres", postgres.port));
    let mariadb = Server::mariadb(&[]);
    try_mariadb(mariadb.port, "CREATE USER locked@'%' IDENTIFIED BY 'right'; GRANT ALL ON shop.* TO locked@'%'")
        .unwrap();
    is_discreet(&sandbox, "mysql", &format!("mysql://locked:{SECRET}@127.0.0.1:{}/shop", mariadb.port));
    let redis = Server::redis(&[]);
    try_redis(redis.port, &["ACL", "SETUSER", "locked", "on", ">right", "~*", "+@all"]).unwrap();
    is_discreet(&sandbox, "redis", &format!("redis://locked:{SECRET}@127.0.0.1:{}", redis.port));
}

#[test]
fn nor_of_a_key_of_s3() {
    let (sandbox, mut server) = (Sandbox::new(), Server::s3());
    server.variables.retain(|(name, _)| *name != "AWS_SECRET_ACCESS_KEY");
    server.variables.push(("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()));
    for args in [&["fence", "check", "s3://fenced/orders"][..], &["prove", "order", "--resource", "s3://fenced"]] {
        let said = run(&sandbox, &server, args);
        assert!(said.code == Some(69) && !said.err.contains(SECRET), "{said:?}");
    }
}
