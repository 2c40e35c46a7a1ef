//! `palisade fence postgres` and `palisade fence check`, as a shell sees it: the real binary, and a real PostgreSQL.

mod sandbox;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::sandbox::Sandbox;

/// A PostgreSQL that ends with this value. It refuses to run as root, so it has another user then.
struct Postgres {
    child: Child,
    url: String,
    _directory: tempfile::TempDir,
}

impl Postgres {
    fn start() -> Postgres {
        let directory = tempfile::tempdir().expect("a directory");
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            let handed = Command::new("chown").arg("postgres").arg(directory.path()).status().expect("chown");
            assert!(handed.success(), "there is no user postgres: scripts/setup");
        }
        let tool = |name: &str| {
            let program = programs().join(name);
            let mut command = Command::new(if is_root { "setpriv".into() } else { program.clone() });
            if is_root {
                command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]).arg(program);
            }
            command.current_dir(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let made =
            tool("initdb").args(["-U", "postgres", "-A", "trust", "-N", "-D", "data"]).status().expect("initdb");
        assert!(made.success(), "initdb fails");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let mut command = tool("postgres");
        command.args(["-D", "data", "-p", &port.to_string(), "-h", "127.0.0.1", "-k", "", "-F"]);
        let postgres = Postgres {
            child: command.spawn().expect("postgres"),
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            _directory: directory,
        };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() || postgres.try_psql("SELECT 1").is_none() {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        postgres
    }

    fn try_psql(&self, sql: &str) -> Option<String> {
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", sql]).arg(&self.url);
        let output = command.output().expect("psql");
        output.status.success().then(|| String::from_utf8(output.stdout).expect("text").trim().to_owned())
    }

    fn psql(&self, sql: &str) -> String {
        self.try_psql(sql).unwrap_or_else(|| panic!("it fails: {sql}"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the package keeps them: the newest version.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is not installed: scripts/setup");
    let newest = versions.map(|entry| entry.expect("it can be read").path()).max();
    newest.expect("PostgreSQL is not installed: scripts/setup").join("bin")
}

#[test]
fn help_has_examples() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("fence-postgres-help", sandbox.stdout(&["fence", "postgres", "--help"]));
    insta::assert_snapshot!("fence-check-help", sandbox.stdout(&["fence", "check", "--help"]));
}

#[test]
fn what_cannot_be_done_is_said() {
    let sandbox = Sandbox::new();
    let misuse = |args: &[&str]| sandbox.stderr(64, args);
    assert!(misuse(&["fence", "postgres", "--protect", "orders"]).contains("it looks like orders=orders"));
    assert!(misuse(&["fence", "postgres", "--install"]).contains("--database"));
    assert!(misuse(&["fence", "check", "ftp://x", "orders"]).contains("no store that is known"));
    assert!(misuse(&["fence", "check", "postgres://x/y", ""]).contains("must not be empty"));
    assert!(misuse(&["fence", "check", "postgres://x/y", &"x".repeat(513)]).contains("at most 512 bytes"));
    assert!(misuse(&["fence", "check", "postgres://x/y?sslmode=require", "orders"]).contains("no TLS"));
    assert!(misuse(&["fence", "check", "postgres://x/y", "orders", "--token", "0"]).contains("token"));
    let away = sandbox.stderr(69, &["fence", "check", "postgres://me@127.0.0.1:1/y", "orders"]);
    assert!(away.contains("refused"), "{away}");
}

#[test]
fn it_is_printed_installed_and_explained() {
    let (sandbox, postgres) = (Sandbox::new(), Postgres::start());
    let url = postgres.url.as_str();
    let check = |args: &[&str]| sandbox.run(&[&["fence", "check", url, "orders"], args].concat());
    let not_there = sandbox.stderr(64, &["fence", "check", url, "orders"]);
    assert!(not_there.contains("palisade fence postgres --install"), "{not_there}");

    postgres.psql("CREATE TABLE orders (id int PRIMARY KEY, total int); CREATE ROLE app");
    let install =
        ["fence", "postgres", "--database", url, "--install", "--protect", "orders=orders", "--grant", "app"];
    for _ in 0..2 {
        insta::assert_snapshot!("installed", sandbox.stdout(&install));
    }
    let printed = sandbox.stdout(&["fence", "postgres", "--protect", "orders=orders", "--grant", "app"]);
    postgres.psql(&printed);
    insta::assert_snapshot!("printed-last", printed.split("COMMIT;\n").last().expect("it has an end"));

    insta::assert_snapshot!("never-sealed", check(&["--token", "33"]).out);
    postgres.psql("SET ROLE app; SELECT palisade_fence.seal('orders', 34)");
    insta::assert_snapshot!("sealed", check(&[]).out);
    assert_eq!(check(&["--token", "34"]).code, Some(0));
    let stale = check(&["--token", "33"]);
    assert_eq!(stale.code, Some(76));
    insta::assert_snapshot!("stale", stale.out);
    insta::assert_snapshot!("stale-json", check(&["--token", "33", "--json"]).out);
    insta::assert_snapshot!("gap", check(&["--token", "34", "--seq", "7"]).out);
    assert!(postgres.try_psql("INSERT INTO orders VALUES (1, 1)").is_none(), "it is protected");
}
