//! Runs the commands of `docs/fencing` on real stores.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use palisade_fence::object_store::Bucket;
use palisade_fence::{Sealed, Token, mysql, redis};
use palisade_testbench::servers::{MariaDb, Redis, S3};

use super::check;

/// A shell with scripts in place of some programs.
struct Shell<'a> {
    bin: &'a Path,
}

impl Shell<'_> {
    fn give(&self, program: &str, script: &str) {
        let path = self.bin.join(program);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    /// Runs a command line, and returns its output, errors included.
    fn run(&self, line: &str) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("exec 2>&1; {line}")]).env("PATH", format!("{}:{path}", self.bin.display()));
        let output = palisade_testbench::bounded::output(&mut shell).expect("there is a shell");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs every command line of a page, and compares the output.
    fn check(&self, page: &str) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fencing");
        let text = fs::read_to_string(root.join(page)).expect("the page is there");
        let blocks: Vec<&str> =
            text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        let lines: Vec<&str> = blocks.iter().flat_map(|block| block.lines()).collect();
        assert!(!lines.is_empty(), "{page} shows something");
        let mut at = 0;
        while let Some(command) = lines.get(at).map(|line| line.strip_prefix("$ ").expect("a command line")) {
            let expected: Vec<&str> =
                lines[at + 1..].iter().take_while(|line| !line.starts_with("$ ")).copied().collect();
            let printed = self.run(command);
            // The client of MariaDB prints a failed statement between two rules.
            let reply: Vec<&str> = printed.split("--------------\n").step_by(2).flat_map(str::lines).collect();
            let reply: Vec<&str> = reply.into_iter().filter(|line| !line.is_empty()).collect();
            assert_eq!(reply, expected, "{page}: {command}");
            at += 1 + expected.len();
        }
    }
}

#[test]
fn the_page_about_redis_is_true() {
    let place = tempfile::tempdir().expect("a directory");
    let server = Redis::start(place.path(), "no").expect("a Redis");
    let bin = tempfile::tempdir().expect("a directory");
    let shell = Shell { bin: bin.path() };
    fs::write(place.path().join("printed"), redis::LIBRARY).expect("it is ours");
    shell.give("palisade", &format!("cat {}/printed", place.path().display()));
    shell.give("redis-cli", &format!("exec /usr/bin/redis-cli --no-raw -p {} \"$@\"", server.address.port()));
    shell.check("redis.md");
}

#[test]
#[ignore = "long: several seconds"]
fn the_page_about_mysql_is_true() {
    let place = tempfile::tempdir().expect("a directory");
    let server = MariaDb::start(place.path()).expect("a MariaDB");
    server.run("CREATE DATABASE shop").expect("a database");
    let bin = tempfile::tempdir().expect("a directory");
    let shell = Shell { bin: bin.path() };
    let printed = mysql::INSTALL.to_owned() + &mysql::protection("orders", &mysql::Scope::Table("orders".to_owned()));
    fs::write(place.path().join("printed"), printed).expect("it is ours");
    shell.give("palisade", &format!("cat {}/printed", place.path().display()));
    let client = format!("--no-defaults --skip-column-names -h127.0.0.1 -P{} -uroot", server.address.port());
    shell.give("mariadb", &format!("exec /usr/bin/mariadb {client} \"$@\""));
    shell.check("mysql.md");
}

#[test]
fn the_page_about_objects_is_true() {
    check(async {
        let store = super::objects::in_s3().0;
        let orders = Bucket::open(store).await.expect("a store").object("page/orders.json").expect("a path");
        let mut orders = Sealed::seal(orders, Token::new(34).expect("a token")).await.expect("it is new");
        orders.put("[1]").await.expect("it is sealed");
        orders.put("[1, 2]\n").await.expect("it is sealed");
        let bin = tempfile::tempdir().expect("a directory");
        let shell = Shell { bin: bin.path() };
        // `aws s3 cp s3://BUCKET/OBJECT -`, as far as it is needed. The writer's name differs each time.
        let place =
            "http://ADDRESS/fenced/page/${3#s3://bucket/}".replace("ADDRESS", &super::objects::address().to_string());
        let user = format!("{}:{}", S3::KEY, S3::SECRET);
        let curl = format!("curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user {user} \"{place}\"");
        shell.give("aws", &format!("{curl} | sed 's/\"author\":[0-9]*/\"author\":71/'"));
        shell.check("object-store.md");
    });
}
