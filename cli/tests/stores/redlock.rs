//! Commands on `redlock:`, as a shell sees them, on five real servers. Redlock has no tokens.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::sandbox::Sandbox;

/// Five Redis servers. Dropping this ends them.
struct FiveServers(Vec<(Child, SocketAddr)>);

impl FiveServers {
    fn start(sandbox: &Sandbox) -> FiveServers {
        let start = |_| {
            let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--save", "", "--port", &address.port().to_string()]);
            command.arg("--dir").arg(sandbox.path()).stdout(Stdio::null());
            let child = command.spawn().expect("redis-server is not installed: run scripts/setup");
            while TcpStream::connect(address).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
            (child, address)
        };
        FiveServers((0..5).map(start).collect())
    }

    fn url(&self, options: &str) -> String {
        let nodes: Vec<_> = self.0.iter().map(|(_, address)| address.to_string()).collect();
        format!("redlock://{}?{options}", nodes.join(","))
    }
}

impl Drop for FiveServers {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// URL options: servers that have just started count, and slow ones do not time out.
const FRESH: &str = "dangerous_count_restarted=yes&timeout=5s";

#[test]
fn a_command_runs_under_a_lock_that_has_no_token() {
    let sandbox = Sandbox::new();
    let servers = FiveServers::start(&sandbox);
    let url = servers.url(FRESH);
    let program = env!("CARGO_BIN_EXE_palisade");
    let inner = format!(
        "echo \"token: ${{PALISADE_TOKEN-none}}\"; '{program}' ls; '{program}' show job --json; \
         '{program}' run --efficiency --no-wait job -- true; echo \"inner: $?\""
    );
    let output = sandbox.run(&["--url", &url, "run", "--efficiency", "job", "--", "sh", "-c", &inner]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.out.starts_with("token: none\n") && output.out.ends_with("inner: 75\n"), "{}", output.out);
    assert!(output.err.contains("'job' is held by sh on ") && !output.err.contains("token"), "{}", output.err);
    let row: Vec<_> = output.out.lines().find(|line| line.starts_with("job ")).unwrap().split("  ").collect();
    assert!(row.iter().any(|cell| cell.trim() == "-"), "{row:?}");
    let json = &output.out[output.out.find('{').unwrap()..=output.out.rfind('}').unwrap()];
    let lock: Value = serde_json::from_str(json).unwrap();
    assert_eq!(lock["holders"][0]["token"], Value::Null, "{lock:#}");
    assert_eq!(lock["holders"][0]["mode"], "exclusive", "{lock:#}");
}

#[test]
fn commands_that_need_a_token_are_refused() {
    let sandbox = Sandbox::new();
    let servers = FiveServers::start(&sandbox);
    let output = sandbox.stderr(64, &["--url", &servers.url(FRESH), "run", "job", "--", "true"]);
    assert!(output.contains("no token can exist"), "{output}");
}

#[test]
fn doctor_reports_redlock_hazards() {
    let sandbox = Sandbox::new();
    let mut servers = FiveServers::start(&sandbox);
    let report = |servers: &FiveServers, code| {
        let output = sandbox.run(&["doctor", "--json", &servers.url(FRESH)]);
        assert_eq!(output.code, Some(code), "{}", output.err);
        serde_json::from_str::<Value>(&output.out).unwrap()
    };
    let status = |report: &Value, check: &str| {
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == check).map(|finding| finding["status"].to_string())
    };
    let healthy = report(&servers, 0);
    for (check, expected) in [
        ("answers", Some("\"ok\"")),
        ("tokens", Some("\"warning\"")),
        ("nodes", Some("\"ok\"")),
        ("hosts", Some("\"warning\"")),
        ("persistence", Some("\"warning\"")),
        ("eviction", Some("\"ok\"")),
        ("node", None),
    ] {
        assert_eq!(status(&healthy, check).as_deref(), expected, "{check}: {healthy:#}");
    }
    assert_eq!(healthy["guarantees"]["level"], "advisory");
    for (child, _) in &mut servers.0[..2] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(status(&report(&servers, 0), "node").as_deref(), Some("\"warning\""));
    servers.0[2].0.kill().unwrap();
    servers.0[2].0.wait().unwrap();
    let down = report(&servers, 69);
    assert_eq!(status(&down, "answers").as_deref(), Some("\"failure\""), "{down:#}");
    assert!(down.to_string().contains("2 of 5 nodes count, and 3 are needed"), "{down:#}");
}
