//! `palisade fence`: servers accept what it prints.

use crate::common::bounded::until;
use crate::common::process::Process;
use crate::sandbox::Sandbox;

/// Starts a Redis that listens at `redis.sock`.
fn start_redis(sandbox: &Sandbox, options: &[&str]) -> Process {
    let mut command = sandbox.program("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket", "redis.sock"]).args(options);
    let redis = Process::start(&mut command);
    until("Redis listens", || sandbox.path().join("redis.sock").exists());
    redis
}

#[test]
fn help_shows_how_it_is_installed() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("fence-help", sandbox.stdout(&["fence", "--help"]));
    insta::assert_snapshot!("fence-redis-help", sandbox.stdout(&["fence", "redis", "--help"]));
    insta::assert_snapshot!("fence-mysql-help", sandbox.stdout(&["fence", "mysql", "--help"]));
}

#[test]
fn the_printed_fence_can_be_installed() {
    let sandbox = Sandbox::new();
    assert!(sandbox.stdout(&["fence", "redis"]).starts_with("#!lua name=palisade\n"));
    let plain = sandbox.stdout(&["fence", "mysql"]);
    assert!(plain.contains("CREATE TABLE IF NOT EXISTS palisade_fence_marks") && !plain.contains("TRIGGER"));
    let upgrade = sandbox.stdout(&["fence", "mysql", "--upgrade"]);
    assert_eq!(upgrade.strip_suffix(&plain).map(|drops| drops.matches("DROP PROCEDURE").count()), Some(7));
    let triggers = |args: &[&str]| {
        let printed = sandbox.stdout(&[&["fence", "mysql", "--table", "orders"], args].concat());
        // The number in the triggers' names is random.
        let (_, number) = printed.split_once("CREATE TRIGGER palisade_fence_insert_").expect("a trigger");
        let number = number.split_once('\n').expect("a line").0;
        printed.strip_prefix(&plain).expect("it begins with the same").replace(number, "NUMBER")
    };
    insta::assert_snapshot!("fence-mysql-table", triggers(&[]));
    insta::assert_snapshot!("fence-mysql-rows", triggers(&["--name", "it's", "--row", "id"]));
}

#[test]
fn functions_are_installed_only_where_marks_are_not_evicted() {
    let sandbox = Sandbox::new();
    let server = format!("redis+unix://{}/redis.sock", sandbox.path().display());
    let redis = start_redis(&sandbox, &[]);
    assert_eq!(sandbox.stdout(&["fence", "redis", "--install", &server]), "the functions are installed\n");
    assert_eq!(sandbox.stdout(&["fence", "redis", "--install", &server]), "the functions are installed\n");
    drop(redis);
    std::fs::remove_file(sandbox.path().join("redis.sock")).expect("it has ended");
    let _redis = start_redis(&sandbox, &["--maxmemory-policy", "allkeys-random"]);
    let output = sandbox.run(&["fence", "redis", "--install", &server]);
    assert_eq!(output.code, Some(64), "{}", output.err);
    assert!(output.err.contains("noeviction"), "{}", output.err);
}

#[test]
fn unreachable_servers_and_bad_urls_have_different_exit_codes() {
    let sandbox = Sandbox::new();
    for (args, code) in [
        (vec!["fence"], 64),
        (vec!["fence", "file-system"], 64),
        (vec!["fence", "redis", "--install", "http://secret"], 64),
        (vec!["fence", "redis", "--install", "redis://:secret@127.0.0.1:1"], 69),
        (vec!["fence", "mysql", "--install", "mysql://root:secret@127.0.0.1"], 64),
        (vec!["fence", "mysql", "--install", "mysql://root:secret@127.0.0.1:1/shop"], 69),
        (vec!["fence", "mysql", "--install", "mysql://root:secret@127.0.0.1:1/shop?ssl-mode=DISABLED"], 69),
        (vec!["fence", "mysql", "--row", "id"], 64),
    ] {
        let output = sandbox.run(&args);
        assert_eq!(output.code, Some(code), "{args:?}: {}", output.err);
        assert!(!output.err.contains("secret"), "{args:?}: {}", output.err);
        assert!(!output.err.is_empty(), "{args:?}");
    }
}
