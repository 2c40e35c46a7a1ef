//! Locks in PostgreSQL, as a shell sees them: the real binary, and a real PostgreSQL.

use std::fs;

use serde_json::Value;

use crate::common::bounded::{Bounded, until};
use crate::sandbox::Sandbox;
use crate::servers::Server;

#[test]
fn help_has_examples() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("engine-help", sandbox.stdout(&["engine", "--help"]));
    insta::assert_snapshot!(
        "engine-postgres-schema-help",
        sandbox.stdout(&["engine", "postgres", "schema", "--help"])
    );
}

#[test]
fn the_schema_is_printed_and_psql_installs_it_twice() {
    let (sandbox, postgres) = (Sandbox::new(), Server::postgres(&[]));
    let printed = sandbox.stdout(&["engine", "postgres", "schema"]);
    fs::write(sandbox.path().join("schema.sql"), printed).expect("it is ours");
    for _ in 0..2 {
        let mut psql = sandbox.program("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "schema.sql"]).arg(&postgres.url);
        let output = psql.finish();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(postgres.psql("SELECT version FROM palisade.version"), "2");
}

/// psql, and so every other language, uses the same locks as `palisade`.
#[test]
fn commands_and_psql_share_the_same_locks() {
    let (sandbox, postgres) = (Sandbox::new(), Server::postgres(&[]));
    let url = postgres.url.as_str();
    let output = sandbox.stdout(&["--url", url, "run", "orders/42", "--", "printenv", "PALISADE_TOKEN"]);
    let first: u64 = output.trim().parse().expect("a token");
    let token: u64 =
        postgres.psql("SELECT token FROM palisade.acquire('orders/42', ttl => '1h')").parse().expect("a token");
    assert!(token > first);
    assert_eq!(postgres.psql("SELECT token FROM palisade.acquire('orders/42')"), "");
    let list = sandbox.stdout(&["--url", url, "ls"]);
    assert!(list.contains("orders/42") && list.contains("psql"), "{list}");
    assert_eq!(sandbox.run(&["--url", url, "run", "orders/42", "--no-wait", "--", "true"]).code, Some(75));
    assert_eq!(postgres.psql(&format!("SELECT palisade.renew('orders/42', {token})")), "t");
    assert_eq!(postgres.psql(&format!("SELECT palisade.release('orders/42', {token})")), "t");
    assert_eq!(postgres.psql(&format!("SELECT palisade.release('orders/42', {token})")), "f");
    let waited = postgres.psql("CALL palisade.acquire_within('orders/42', '60s', ttl => '1h')");
    let waited: u64 = waited.split('|').next().and_then(|token| token.parse().ok()).expect("a token");
    assert!(waited > token);
    let broken = sandbox.run(&["--url", url, "break", "orders/42", "--reason", "a test", "--yes"]);
    assert_eq!(broken.code, Some(0), "{}", broken.err);
    assert_eq!(postgres.psql(&format!("SELECT palisade.renew('orders/42', {waited})")), "f");
}

/// The server of this test runs with fsync off.
#[test]
fn doctor_reports_risky_postgres_settings() {
    let (sandbox, postgres) = (Sandbox::new(), Server::postgres(&[]));
    let output = sandbox.run(&["doctor", "--json", &postgres.url]);
    assert_eq!(output.code, Some(69), "{}", output.err);
    let report: Value = serde_json::from_str(&output.out).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let status = |check: &str| {
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("{check} was not looked at"))["status"].as_str().expect("a word").to_owned()
    };
    assert_eq!(status("fsync"), "failure");
    for check in ["answers", "version", "primary", "pages", "commit", "pooler", "schema"] {
        assert_eq!(status(check), "ok", "{check}");
    }
    postgres.psql("ALTER SYSTEM SET synchronous_commit = off");
    postgres.psql("SELECT pg_reload_conf()");
    until("the setting is read", || postgres.psql("SHOW synchronous_commit") == "off");
    let output = sandbox.run(&["doctor", &postgres.url]);
    assert!(output.out.contains("synchronous_commit is off"), "{}", output.out);
    assert!(!output.out.contains("contradict"), "{}", output.out);
    postgres.psql("INSERT INTO palisade.lock (name, token, waiting) VALUES ('damaged', 1, 7)");
    let output = sandbox.run(&["doctor", &postgres.url]);
    assert_eq!(output.code, Some(69), "{}", output.err);
    assert!(output.out.contains("contradict") && output.out.contains("'damaged'"), "{}", output.out);
}

/// The password is in the URL, and nowhere else.
#[test]
fn no_command_shows_the_password() {
    let sandbox = Sandbox::new();
    for url in [
        "postgres://me:xyzzy@127.0.0.1:1/db",
        "postgres://me@127.0.0.1:1/db?password=xyzzy",
        "postgres://me:xyzzy@host?sslmode=prefer",
    ] {
        for command in [&["doctor", url][..], &["--url", url, "ls"], &["--url", url, "run", "lock", "--", "true"]] {
            let output = sandbox.run(command);
            assert_ne!(output.code, Some(0));
            assert!(!output.out.contains("xyzzy") && !output.err.contains("xyzzy"), "{}{}", output.out, output.err);
        }
    }
}
