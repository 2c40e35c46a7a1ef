//! Health, and the metrics after a known history.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use super::client::{Raw, events};
use super::test_server::TestServer;

fn numbers(text: &str) -> BTreeMap<&str, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            (name, value.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn a_service_that_runs_is_healthy_and_ready() {
    let server = TestServer::new();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.client().get(path).good(), json!({ "ok": true }));
    }
}

#[test]
fn the_metrics_count_every_operation() {
    let server = TestServer::new();
    let (client, mut resp) = (server.client(), server.connect_resp());
    let mut events = events(server.address(), "");
    let (session, other) = (client.open(3_600_000), client.open(3_600_000));
    // A grant after a wait, one given up, one taken away, one that expires.
    let token = client.hold("a", session);
    let ask = json!({ "locks": ["a", "b"], "session": other, "wait_ms": 60_000 });
    let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
    events.find(|event| event["event"] == "queued").expect("it waits");
    let waiting = client.get("/metrics").body;
    assert_eq!(numbers(&waiting)["palisade_waiting"], 2.0, "one place in each queue");
    client.release("a", token);
    waiter.answer().good();
    let ask = json!({ "locks": ["a"], "ttl_ms": 1000, "wait_ms": 1 });
    assert_eq!(client.post("/v1/locks/acquire", &ask).code(), "BUSY");
    client.post("/v1/locks/break", &json!({ "lock": "a", "reason": "test" })).good();
    assert_eq!(resp.send("LOCK ACQUIRE c TTL 100").len(), 6);
    let expired = |event: &serde_json::Value| event["how"] == "expired";
    events.find(expired).expect("it expires");
    resp.send("LOCK RELEASE c 999");
    resp.send("NONSENSE");
    client.get("/v1/made/up");
    client.get("/v1/locks/show?name=z").good();

    let answer = client.get("/metrics");
    assert_eq!(answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
    let numbers = numbers(&answer.body);
    let expected = [
        ("palisade_sessions", 2.0),
        ("palisade_locks", 0.0),
        ("palisade_waiting", 0.0),
        ("palisade_grants_total", 3.0),
        ("palisade_grants_ended_total{how=\"released\"}", 1.0),
        ("palisade_grants_ended_total{how=\"forced\"}", 1.0),
        ("palisade_grants_ended_total{how=\"session_expired\"}", 1.0),
        ("palisade_force_releases_total", 1.0),
        ("palisade_sessions_expired_total", 1.0),
        ("palisade_wait_seconds_count{outcome=\"granted\"}", 1.0),
        ("palisade_wait_seconds_count{outcome=\"left\"}", 1.0),
        ("palisade_connections{protocol=\"resp\"}", 1.0),
        ("palisade_watchers", 1.0),
        ("palisade_leads", 1.0),
        ("palisade_commands_total{protocol=\"http\",command=\"acquire\"}", 3.0),
        ("palisade_commands_total{protocol=\"http\",command=\"break\"}", 1.0),
        ("palisade_commands_total{protocol=\"http\",command=\"show\"}", 1.0),
        ("palisade_commands_total{protocol=\"resp\",command=\"acquire\"}", 1.0),
        ("palisade_commands_total{protocol=\"resp\",command=\"release\"}", 1.0),
        ("palisade_refusals_total{protocol=\"http\",code=\"BUSY\"}", 1.0),
        ("palisade_refusals_total{protocol=\"http\",code=\"NOTFOUND\"}", 1.0),
        ("palisade_refusals_total{protocol=\"resp\",code=\"BADARG\"}", 1.0),
        ("palisade_refusals_total{protocol=\"resp\",code=\"NOTHELD\"}", 1.0),
        ("palisade_http_requests_total{method=\"POST\",path=\"/v1/locks/break\",status=\"200\"}", 1.0),
        ("palisade_http_requests_total{method=\"other\",path=\"other\",status=\"404\"}", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(numbers.get(name), Some(&value), "{name} in\n{}", answer.body);
    }
    assert!(numbers["palisade_commit_seconds_count"] >= 8.0);
    assert!(numbers["palisade_batch_commands_sum"] >= 8.0);
    assert_eq!(numbers["palisade_batch_commands_bucket{le=\"+Inf\"}"], numbers["palisade_batch_commands_count"]);
    assert!(!answer.body.contains("made/up"), "a client's words are no label");
}

#[test]
fn waiters_are_still_counted_after_a_restart() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "a");
    client.hold("a", client.open(3_600_000));
    let session = client.open(3_600_000);
    let ask = json!({ "locks": ["a"], "session": session, "wait_ms": 60_000 });
    let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
    events.find(|event| event["event"] == "queued").expect("it waits");
    let server = TestServer::on(server.close(), palisade_server::HttpBounds::default());
    drop(waiter);
    let answer = server.client().get("/metrics");
    let numbers = numbers(&answer.body);
    assert_eq!((numbers["palisade_waiting"], numbers["palisade_grants_total"]), (1.0, 0.0), "{}", answer.body);
}

/// The log lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[test]
fn force_releases_and_denied_calls_are_in_the_audit_log() {
    let log = Log::default();
    let filter = Targets::new().with_target("palisade::audit", Level::INFO);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(log.clone());
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // The subscriber is global, because the service runs on another thread. Other tests of this process may add lines.
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
    let server = TestServer::new();
    let (client, mut resp) = (server.client(), server.connect_resp());
    let (session, other) = (client.open(3_600_000), client.open(3_600_000));
    let token = client.hold("audit/1", session);
    let steal = json!({ "lock": "audit/1", "token": token, "session": other });
    assert_eq!(client.post("/v1/locks/release", &steal).code(), "NOTHELD");
    let forged = json!({ "lock": "audit/1", "reason": "x\nWARN forged \u{1b}[2J", "by": "eve\r\n" });
    client.post("/v1/locks/break", &forged).good();
    assert_eq!(client.post("/v1/locks/break", &forged).code(), "NOTHELD");
    client.hold("audit/2", session);
    resp.send("LOCK BREAK audit/2 REASON because BY ops");

    let text = String::from_utf8(log.0.lock().expect("not poisoned").clone()).expect("UTF-8");
    let lines: Vec<_> = text.lines().filter(|line| line.contains("audit/")).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].contains("what=\"use\" outcome=\"NOTHELD\" peer=\"127.0.0.1:"), "{text}");
    assert!(lines[1].contains("what=\"break\" outcome=\"done\"") && lines[1].contains("over=\"http\""), "{text}");
    assert!(lines[1].contains("forged") && lines[1].contains("moved_to="), "{text}");
    assert!(lines[2].contains("outcome=\"NOTHELD\""), "{text}");
    assert!(lines[3].contains("over=\"resp\"") && lines[3].contains("by=\"ops\" reason=\"because\""), "{text}");
    // Escaped before it reaches a log that would not.
    assert!(lines[1].contains(r#"by="eve\\r\\n""#), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains("\nWARN"), "{text}");
}
