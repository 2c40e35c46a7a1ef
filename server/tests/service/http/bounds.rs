//! Slow clients, and many clients, do not harm other clients.

use std::io::Read;
use std::time::{Duration, Instant};

use palisade_server::HttpBounds;
use serde_json::json;

use super::client::{Raw, TIMEOUT, events};
use super::test_server::TestServer;

const SOON: Duration = Duration::from_millis(100);

#[test]
fn an_incomplete_head_is_cut_off() {
    let server = TestServer::with(HttpBounds { head: SOON, ..HttpBounds::default() });
    for beginning in ["", "GET /hea", "GET /healthz HTTP/1.1\r\nhost: localhost\r\n"] {
        let mut raw = Raw::send(server.address(), beginning.as_bytes());
        let mut rest = Vec::new();
        raw.stream.read_to_end(&mut rest).expect("it is cut off");
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{beginning}");
    }
}

#[test]
fn an_incomplete_body_is_refused() {
    let server = TestServer::with(HttpBounds { body: SOON, ..HttpBounds::default() });
    let half = b"POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 90\r\nconnection: close\r\n\r\n{";
    assert_eq!(Raw::send(server.address(), half).answer().code(), "TIMEOUT");
}

#[test]
fn waiters_and_watchers_do_not_block_a_release() {
    let server = TestServer::with(HttpBounds { waiting: 1, watching: 1, at_once: 1, ..HttpBounds::default() });
    let client = server.client();
    let mut events = events(server.address(), "a");
    let token = client.hold("a", client.open(3_600_000));
    let ask = json!({ "locks": ["a"], "ttl_ms": 60_000, "wait_ms": 60_000 });
    let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
    events.find(|event| event["event"] == "queued").expect("it waits");
    // The watch and the waiter use up the limits of their kinds.
    assert_eq!(client.post("/v1/locks/acquire", &ask).code(), "OVERLOADED");
    assert_eq!(client.get("/v1/locks/watch").code(), "OVERLOADED");
    client.release("a", token);
    waiter.answer().good();
    // The waiter's place is free again.
    assert_eq!(client.post("/v1/locks/acquire", &json!({ "locks": ["a"], "ttl_ms": 9000 })).code(), "BUSY");
    drop(events);
}

#[test]
fn a_connection_beyond_the_limit_displaces_an_idle_one() {
    let server = TestServer::with(HttpBounds { connections: 1, ..HttpBounds::default() });
    let began = Instant::now();
    // The connection by which the server was found to be ready may still be there.
    let mut first = loop {
        let mut raw = Raw::send(server.address(), b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut answer = [0; 4096];
        let count = raw.stream.read(&mut answer).unwrap_or(0);
        if answer[..count].starts_with(b"HTTP/1.1 200") {
            break raw;
        }
        assert!(began.elapsed() < TIMEOUT, "it is not let in");
    };
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    // The first one has a little time to say something more.
    let began = Instant::now();
    while Raw::send(server.address(), request).answer().status != 200 {
        assert!(began.elapsed() < TIMEOUT, "it is not let in");
    }
    assert_eq!(first.stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
}
