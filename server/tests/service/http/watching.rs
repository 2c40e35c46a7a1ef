//! Server-sent events.

use std::time::Duration;

use palisade_server::HttpBounds;
use serde_json::json;

use super::client::{Raw, events, soon};
use super::test_server::TestServer;

#[test]
fn a_watcher_sees_what_happens_to_its_locks_and_nothing_else() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "mine/");
    let session = client.open(600_000);
    client.hold("yours/1", session);
    let token = client.hold("mine/1", session);
    client.release("mine/1", token);
    let stand = json!({ "name": "mine/boss", "session": session, "value": "two\nlines" });
    let office = client.post("/v1/elections/campaign", &stand).good()["token"].clone();
    let publish = json!({ "name": "mine/boss", "session": session, "token": office, "value": "x" });
    client.post("/v1/elections/publish", &publish).good();
    let granted = json!({ "event": "granted", "locks": ["mine/1"], "session": session, "token": token });
    assert_eq!(events.next(), Some(granted));
    let ended =
        json!({ "event": "ended", "locks": ["mine/1"], "session": session, "token": token, "how": "released" });
    assert_eq!(events.next(), Some(ended));
    let seen: Vec<_> = events.by_ref().take(2).map(|event| event["event"].clone()).collect();
    assert_eq!(seen, ["granted", "published"]);
}

#[test]
fn a_silent_watch_is_kept_alive_by_comments() {
    let server = TestServer::with(HttpBounds { silence: Duration::from_millis(20), ..HttpBounds::default() });
    let watch = b"GET /v1/locks/watch HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let comments = Raw::send(server.address(), watch).lines().filter(|line| line.starts_with(':'));
    assert_eq!(comments.take(3).count(), 3);
}

#[test]
fn a_watcher_that_does_not_read_gets_the_number_of_missed_events_and_blocks_no_client() {
    let server = TestServer::with(HttpBounds { backlog: 16, ..HttpBounds::default() });
    let client = server.client();
    let mut slow = events(server.address(), "noise/");
    let session = client.open(3_600_000);
    // Long names fill the buffers of the sockets sooner.
    let locks: Vec<_> = (0..60).map(|number| format!("noise/{number}/{}", "x".repeat(480))).collect();
    let mut rounds = 0u64;
    let mut token = 0;
    for _ in 0..250 {
        let granted = client.post("/v1/locks/acquire", &json!({ "locks": locks, "session": session })).good();
        token = granted["token"].as_u64().expect("a token");
        client.release(&locks[0], token);
        rounds += 1;
    }
    let (mut seen, mut missed) = (0, 0);
    while seen + missed < rounds * 2 {
        let event = slow.next().expect("the watch goes on");
        match event["count"].as_u64() {
            Some(count) => missed += count,
            None => seen += 1,
        }
    }
    assert!(missed > 0, "the buffers took all {seen} events: make more noise");
    assert_eq!(seen + missed, rounds * 2);
    client.hold("noise/last", session);
    let last = slow.next().expect("the watch goes on");
    assert!(last["token"].as_u64() > Some(token));
}

#[test]
fn an_abandoned_watch_is_removed() {
    let server = TestServer::new();
    let client = server.client();
    let is_none = || client.get("/metrics").body.lines().any(|line| line == "palisade_watchers 0");
    let watch = Raw::send(server.address(), b"GET /v1/locks/watch HTTP/1.1\r\nhost: localhost\r\n\r\n");
    soon("it is counted", || (!is_none()).then_some(()));
    watch.abandon();
    soon("it is forgotten", || is_none().then_some(()));
}
