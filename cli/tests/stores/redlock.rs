//! Commands on `redlock:`, as a shell sees them, on five real servers. Redlock has no tokens.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::servers::Server;

/// Five Redis servers.
struct FiveServers([Server; 5]);

impl FiveServers {
    fn start() -> FiveServers {
        FiveServers([(); 5].map(|()| Server::redis(&[])))
    }

    fn url(&self, options: &str) -> String {
        let nodes = self.0.each_ref().map(|server| format!("127.0.0.1:{}", server.port));
        format!("redlock://{}?{options}", nodes.join(","))
    }
}

/// URL options: servers that have just started count, and slow ones do not time out.
const FRESH: &str = "dangerous_count_restarted=yes&timeout=20s";

#[test]
fn a_command_runs_under_a_lock_that_has_no_token() {
    let sandbox = Sandbox::new();
    let servers = FiveServers::start();
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
    let servers = FiveServers::start();
    let output = sandbox.stderr(64, &["--url", &servers.url(FRESH), "run", "job", "--", "true"]);
    assert!(output.contains("no token can exist"), "{output}");
}

#[test]
fn doctor_reports_redlock_hazards() {
    let sandbox = Sandbox::new();
    let mut servers = FiveServers::start();
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
    servers.0[..2].iter_mut().for_each(Server::kill);
    assert_eq!(status(&report(&servers, 0), "node").as_deref(), Some("\"warning\""));
    servers.0[2].kill();
    let down = report(&servers, 69);
    assert_eq!(status(&down, "answers").as_deref(), Some("\"failure\""), "{down:#}");
    assert!(down.to_string().contains("2 of 5 nodes count, and 3 are needed"), "{down:#}");
}
