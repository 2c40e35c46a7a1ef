//! Every command on locks in a real Redis.

use rustix::process::Signal;
use serde_json::Value;

use crate::common::bounded::Bounded;
use crate::common::process::Process;
use crate::sandbox::Sandbox;
use crate::servers::{Server, try_redis};

const SECRET: &str = "xyzzy";

/// A Redis for one test, which requires a password.
struct Redis {
    server: Server,
    sandbox: Sandbox,
}

impl Redis {
    fn start() -> Redis {
        let server = Server::redis(&[]);
        try_redis(server.port, &["CONFIG", "SET", "requirepass", SECRET]).expect("it wants a password from now on");
        Redis { server, sandbox: Sandbox::new() }
    }

    fn url(&self) -> String {
        format!("redis://:{SECRET}@127.0.0.1:{}", self.server.port)
    }

    /// Runs a command. Returns its exit code, stdout and stderr, and checks that stderr does not show the password.
    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.sandbox.output(&self.sandbox.command(args).env("PALISADE_URL", self.url()).finish());
        assert!(!output.err.contains(SECRET), "{args:?}: {}", output.err);
        (output.code, output.out, output.err)
    }

    fn stdout(&self, args: &[&str]) -> String {
        let (code, out, err) = self.run(args);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}");
        out
    }
}

#[test]
fn a_lock_needs_efficiency_or_accept_failover() {
    let redis = Redis::start();
    let show = ["--", "sh", "-c", "echo token=$PALISADE_TOKEN; env | grep -c xyzzy"];
    for words in [&["run", "nightly"][..], &["elect", "nightly"], &["run", "--shared", "nightly"]] {
        let (code, out, err) = redis.run(&[words, &show].concat());
        assert_eq!((code, out.as_str()), (Some(64), ""), "{words:?}: {err}");
        // There is no election for efficiency only, and no such option.
        assert_eq!(err.contains("--efficiency"), words[0] == "run", "{err}");
        for word in ["healthy-only", "--dangerous-accept-failover"] {
            assert!(err.contains(word), "{err}");
        }
    }
    assert!(redis.run(&[&["run", "--efficiency", "nightly"], &show[..]].concat()).1.starts_with("token=\n"));
    let accepted = "--dangerous-accept-failover";
    for words in [
        &["run", accepted, "nightly"][..],
        &["run", accepted, "--permits", "1/2", "gpu"],
        &["run", accepted, "a", "b"],
        &["run", accepted, "--every", "1h", "hourly"],
        &["elect", accepted, "boss"],
    ] {
        let (_, out, err) = redis.run(&[words, &show].concat());
        let token = out.lines().next().and_then(|line| line.strip_prefix("token=")).unwrap_or_default();
        assert!(token.parse::<u64>().is_ok_and(|token| token > 0), "{words:?}: {out} {err}");
    }
    // It has run in this hour.
    assert_eq!(redis.stdout(&["run", accepted, "--every", "1h", "hourly", "--", "echo", "again"]), "");
}

#[test]
fn a_lease_is_acquired_renewed_shown_and_released() {
    let redis = Redis::start();
    let lease = redis.stdout(&["acquire", "--dangerous-accept-failover", "--json", "deploy"]);
    assert!(!lease.contains(SECRET), "{lease}");
    let lease: Value = serde_json::from_str(&lease).unwrap();
    let (token, session) = (lease["token"].to_string(), lease["session"].to_string());
    assert!(redis.stdout(&["ls"]).contains(&token));
    assert!(redis.stdout(&["show", "deploy"]).contains("palisade acquire"));
    assert_eq!(redis.run(&["run", "--efficiency", "--no-wait", "deploy", "--", "true"]).0, Some(75));
    let named = |command| {
        let mut command = redis.sandbox.command(&[command]);
        let variables = [("PALISADE_LOCK", "deploy"), ("PALISADE_TOKEN", &token), ("PALISADE_SESSION", &session)];
        redis.sandbox.output(&command.env("PALISADE_URL", redis.url()).envs(variables).finish())
    };
    assert_eq!(named("renew").code, Some(0));
    assert_eq!(named("release").code, Some(0));
    assert_ne!(named("release").code, Some(0));
    assert!(!redis.stdout(&["ls"]).contains(&token));
    let again = redis.stdout(&["acquire", "--dangerous-accept-failover", "--json", "deploy"]);
    let again: Value = serde_json::from_str(&again).unwrap();
    assert!(again["token"].as_u64() > lease["token"].as_u64());
    let token = again["token"].to_string();
    let (code, _, err) = redis.run(&["break", "deploy", "--token", &token, "--reason", "a test", "--yes"]);
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn doctor_reports_volatile_redis_settings() {
    let redis = Redis::start();
    let report: Value = serde_json::from_str(&redis.stdout(&["doctor", "--json"])).unwrap();
    assert!(!report.to_string().contains(SECRET), "{report}");
    assert_eq!((&report["usable"], &report["guarantees"]["level"]), (&true.into(), &"healthy-only".into()));
    let status = |check: &str| {
        let findings = report["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["check"] == check);
        finding.unwrap_or_else(|| panic!("{check} was not looked at"))["status"].clone()
    };
    assert_eq!((status("version"), status("eviction"), status("replicas")), ("ok".into(), "ok".into(), "ok".into()));
    assert_eq!((status("persistence"), status("stored locks")), ("warning".into(), "ok".into()));
}

#[test]
fn the_functions_are_printed_without_a_server() {
    let library = Sandbox::new().stdout(&["engine", "redis", "functions"]);
    assert!(library.starts_with("#!lua name=palisade_locks\n") && library.contains("palisade_acquire"));
}

#[test]
#[ignore = "long: waits for replicas"]
fn a_lock_that_waits_for_missing_replicas_says_so() {
    let redis = Redis::start();
    let url = format!("{}?replicas=1&replica_timeout=50", redis.url());
    let args = ["--url", &url, "run", "--efficiency", "nightly", "--", "true"];
    let mut waiting = Process::start(&mut redis.sandbox.command(&args));
    let expected = "palisade: waiting for replicas of Redis: 0 connected, and the URL asks for 1: no lock is granted until they \
                    are connected; `palisade doctor` says more";
    assert_eq!(waiting.next_line().as_deref(), Some(expected));
    waiting.signal(Signal::TERM);
    let (code, lines) = waiting.end();
    assert!(code != Some(0) && !lines.join("\n").contains(SECRET), "{code:?} {lines:#?}");
    let doctor = redis.sandbox.run(&["doctor", &url]);
    assert!(doctor.out.contains("0 connected, and the URL asks for 1: no lock is granted"), "{}", doctor.out);
}

#[test]
fn a_server_that_is_no_cluster_is_refused_as_one() {
    let redis = Redis::start();
    let output = redis.sandbox.run(&["--url", &format!("{}?cluster", redis.url()), "ls"]);
    assert_eq!(output.code, Some(69), "{output:?}");
    assert!(output.err.contains("is not a node of a cluster; remove ?cluster from the URL"), "{}", output.err);
}

#[test]
fn a_user_without_the_right_to_read_the_version_gets_a_message() {
    let redis = Redis::start();
    let acl = ["-a", SECRET, "ACL", "SETUSER", "app", "on", ">hidden", "~*", "&*", "+@all", "-info"];
    try_redis(redis.server.port, &acl).expect("a user");
    let output = redis.sandbox.run(&["doctor", &format!("redis://app:hidden@127.0.0.1:{}", redis.server.port)]);
    for part in [
        "this user may not run INFO, which shows the version",
        "this user may not run INFO, which shows the replicas",
    ] {
        assert!(output.out.contains(part), "{output:?}");
    }
    assert!(!output.out.contains("is older"), "{}", output.out);
}

#[test]
fn tokens_are_raised_and_never_lowered() {
    let redis = Redis::start();
    let take = || -> u64 {
        let args = ["run", "--dangerous-accept-failover", "deploy", "--", "sh", "-c", "echo $PALISADE_TOKEN"];
        redis.stdout(&args).trim().parse().expect("a token")
    };
    // In an unused Redis, the first token is derived from the clock.
    let raised = redis.stdout(&["tokens", "raise", "--above", "38"]);
    assert_eq!(raised, "The tokens of redis are already above 38. Nothing has changed.\n");
    let above = take() + 1_000_000_000;
    let raised = redis.stdout(&["tokens", "raise", "--above", &above.to_string()]);
    assert_eq!(raised, format!("Raised: every token that redis gives from now on is above {above}.\n"));
    assert!(take() > above);
}
