//! Every command on stores that other programs run for coordination: the real binary, and real servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::bounded::Bounded;
use crate::sandbox::{CommandOutput, Sandbox};
use crate::servers::Server;

/// Whether sessions outlive their client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leases {
    Offered,
    Refused,
}

/// A shell whose locks are on a server.
struct Shell {
    sandbox: Sandbox,
    server: Server,
}

impl Shell {
    fn run(&self, args: &[&str]) -> CommandOutput {
        self.sandbox.run(&[&["--url", &self.server.url], args].concat())
    }

    /// Returns stdout of a command that succeeds.
    fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.code, Some(0), "{args:?}: {}{}", output.out, output.err);
        output.out
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(args)).expect("JSON")
    }

    fn start(&self, args: &[&str]) -> crate::sandbox::Running {
        self.sandbox.start(&[&["--url", &self.server.url], args].concat())
    }

    /// Runs a command under the lock and returns its token.
    fn token(&self, lock: &str) -> u64 {
        let output = self.stdout(&["run", lock, "--", "printenv", "PALISADE_TOKEN"]);
        output.trim().parse().expect("a token")
    }
}

fn check_every_command(server: Server, leases: Leases) {
    let shell = Shell { sandbox: Sandbox::new(), server };
    let first = shell.token("orders/42");
    assert!(shell.token("orders/42") > first);

    // run, ls, show, watch, break
    let mut watch = shell.start(&["watch", "orders/", "--json"]);
    let is_watching = AtomicBool::new(false);
    thread::scope(|scope| {
        // A watch does not show when it begins, but it shows one of many grants.
        scope.spawn(|| {
            while !is_watching.load(Ordering::Relaxed) {
                shell.token("orders/7");
            }
        });
        assert!(watch.line().contains("orders/7"));
        is_watching.store(true, Ordering::Relaxed);
    });
    watch.signal(Signal::INT);
    watch.end();
    let mut holder = shell.start(&["run", "orders/42", "--", "sh", "-c", "echo held; sleep 1000"]);
    assert_eq!(holder.line(), "held");
    assert_eq!(shell.run(&["run", "orders/42", "--no-wait", "--", "true"]).code, Some(75));
    assert!(shell.stdout(&["ls"]).contains("orders/42"));
    assert_eq!(shell.json(&["show", "orders/42", "--json"])["holders"].as_array().map(Vec::len), Some(1));
    shell.stdout(&["break", "orders/42", "--reason", "a test", "--yes"]);
    assert_eq!(holder.end().code(), Some(76), "the command ends with its lock");

    // A command cannot release the lock that it runs under.
    let refused = shell.run(&["run", "orders/42", "--", env!("CARGO_BIN_EXE_palisade"), "release"]);
    assert_eq!(refused.code, Some(64), "{}", refused.err);
    assert!(refused.err.contains("palisade run"), "{}", refused.err);

    // several locks, shared locks, semaphores
    shell.stdout(&["run", "a", "b", "--", "true"]);
    shell.stdout(&["run", "--shared", "a", "--", "true"]);
    shell.stdout(&["run", "--permits", "1/2", "pool", "--", "true"]);

    // elect, leader
    let mut leader =
        shell.start(&["elect", "boss", "--value", "10.0.0.7", "--", "sh", "-c", "echo leads; sleep 1000"]);
    assert_eq!(leader.line(), "leads");
    assert!(shell.stdout(&["leader", "boss"]).contains("10.0.0.7"));
    leader.signal(Signal::TERM);
    leader.end();

    // acquire, renew, release, run --every
    // ZooKeeper refuses long sessions for another reason.
    let long = if leases == Leases::Offered { "1h" } else { "30s" };
    let acquired = shell.run(&["acquire", "deploy", "--ttl", long, "--json"]);
    let every = ["run", "--every", long, "report", "--", "echo", "ran"];
    if leases == Leases::Offered {
        let lease: Value = serde_json::from_str(&acquired.out).unwrap_or_else(|_| panic!("{}", acquired.err));
        let token = lease["token"].to_string();
        let renewed = shell.run(&["-v", "renew", "deploy", "--token", &token]);
        assert!(renewed.code == Some(0) && renewed.err.contains("renewed 'deploy'"), "{}", renewed.err);
        shell.stdout(&["release", "deploy", "--token", &token]);
        assert_eq!(shell.run(&["release", "deploy", "--token", &token]).code, Some(76));
        assert_eq!([shell.stdout(&every), shell.stdout(&every)], ["ran\n", ""]);
    } else {
        for refused in [acquired, shell.run(&every)] {
            assert_eq!(refused.code, Some(64), "{}{}", refused.out, refused.err);
            assert!(refused.err.contains("outlive"), "{}", refused.err);
        }
    }

    // tokens raise
    let above = shell.token("orders/42") + 1_000_000;
    if leases == Leases::Offered {
        shell.stdout(&["break", "report.every", "--reason", "a test", "--yes"]);
    }
    shell.stdout(&["tokens", "raise", "--above", &above.to_string()]);
    assert!(shell.token("orders/42") > above);

    // doctor
    let report = shell.json(&["doctor", "--json"]);
    assert_eq!((&report["usable"], &report["guarantees"]["level"]), (&true.into(), &"fenced".into()), "{report:#}");

    // prove
    let url = ["--url", shell.server.url.as_str()];
    let pauses = ["prove", "pauses", "--ttl", "2s", "--overtaken", "1", "--json"];
    let pauses = shell.sandbox.run_long(&[&url[..], &pauses].concat());
    assert_eq!(pauses.code, Some(0), "{}{}", pauses.out, pauses.err);
    let pauses: Value = serde_json::from_str(&pauses.out).expect("JSON");
    let schemes = pauses["schemes"].as_array().expect("a list");
    let strict = schemes.iter().find(|scheme| scheme["scheme"] == "strict").expect("the fence");
    assert_eq!((&pauses["shown"], &strict["lost"]), (&true.into(), &0.into()), "{pauses:#}");
    assert!(shell.json(&["ls", "--json"])["locks"].as_array().is_some_and(Vec::is_empty), "a lock is left");
}

#[test]
#[ignore = "long: Consul counts in tens of seconds"]
fn every_command_works_on_consul() {
    check_every_command(Server::consul(), Leases::Offered);
}

/// Each refusal has the times as users write them, and names the option that was given.
#[test]
fn a_time_that_consul_refuses_is_written_as_users_write_it() {
    let shell = Shell { sandbox: Sandbox::new(), server: Server::consul() };
    for (args, expected) in [
        (&["run", "--every", "3d", "report", "--", "true"][..], "use a period of at most 24h (--every)"),
        (&["run", "--every", "500ms", "report", "--", "true"], "use a period of at least 1s (--every)"),
        (&["run", "--ttl", "3d", "report", "--", "true"], "use a TTL of at most 24h (--ttl,"),
        (&["acquire", "--ttl", "500ms", "report"], "use a TTL of at least 1s (--ttl,"),
    ] {
        let refused = shell.run(args);
        assert!(refused.code == Some(64) && refused.err.contains(expected), "{args:?}: {}", refused.err);
        assert!(!refused.err.contains("ttl_ms"), "{args:?}: {}", refused.err);
    }
}

#[cfg(feature = "etcd")]
#[test]
fn every_command_works_on_etcd() {
    check_every_command(Server::etcd(), Leases::Offered);
}

#[test]
fn every_command_works_on_zookeeper() {
    check_every_command(Server::zookeeper(Duration::from_secs(60)), Leases::Refused);
}

/// The default TTL is longer than the server allows: the doctor reports it, and checks everything else.
#[test]
fn doctor_reports_a_limit_of_zookeeper_below_the_ttl() {
    let shell = Shell { sandbox: Sandbox::new(), server: Server::zookeeper(Duration::from_secs(12)) };
    let report = shell.run(&["doctor", "--json"]);
    assert_eq!(report.code, Some(69), "{}{}", report.out, report.err);
    let report: Value = serde_json::from_str(&report.out).expect("JSON");
    let status = |check: &str| {
        let findings = report["findings"].as_array().expect("a list");
        findings.iter().find(|finding| finding["check"] == check).map(|finding| finding["status"].clone())
    };
    assert_eq!((status("ttl"), status("answers")), (Some("failure".into()), Some("ok".into())), "{report:#}");
    assert!(status("servers").is_some() && status("version").is_some(), "{report:#}");
    assert!(report.to_string().contains("at most 9s"), "{report:#}");
}

/// A claim that cannot be read is missing from the list, which says so.
fn check_that_ls_reports(shell: &Shell, key: &str) {
    let listed = shell.run(&["ls", "--json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.err);
    assert!(listed.err.contains(key) && listed.err.contains("cannot be read"), "{}", listed.err);
    let report: Value = serde_json::from_str(&listed.out).expect("JSON");
    assert_eq!(report["locks"].as_array().map(Vec::len), Some(1), "{report:#}");
    assert_eq!(report["locks"][0]["name"], "good", "{report:#}");
}

#[test]
fn ls_reports_unreadable_claims_in_consul() {
    let shell = Shell { sandbox: Sandbox::new(), server: Server::consul() };
    shell.stdout(&["acquire", "good", "--ttl", "1h"]);
    for key in ["palisade/lock/bad/ffff-1", "palisade/lock/bad/0000000000001f-1"] {
        let url = format!("http://127.0.0.1:{}/v1/kv/{key}", shell.server.port);
        let curl = |arguments: &[&str]| shell.sandbox.program("curl").arg("-sf").args(arguments).arg(&url).finish();
        assert!(curl(&["-X", "PUT", "-d", "{{{"]).status.success());
        check_that_ls_reports(&shell, key);
        assert!(curl(&["-X", "DELETE"]).status.success());
    }
}

#[cfg(feature = "etcd")]
#[test]
fn ls_reports_unreadable_claims_in_etcd() {
    let shell = Shell { sandbox: Sandbox::new(), server: Server::etcd() };
    shell.stdout(&["acquire", "good", "--ttl", "1h"]);
    for claim in ["ffff-1", "0000000000001f-1"] {
        let endpoint = format!("--endpoints=127.0.0.1:{}", shell.server.port);
        let key = format!("palisade/lock/bad\t{claim}");
        let ctl = |arguments: &[&str]| shell.sandbox.program("etcdctl").arg(&endpoint).args(arguments).finish();
        assert!(ctl(&["put", &key, "{{{"]).status.success());
        check_that_ls_reports(&shell, &format!("palisade/lock/bad\\t{claim}"));
        assert!(ctl(&["del", &key]).status.success());
    }
}
