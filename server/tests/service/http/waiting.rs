//! Waiting for a lock: granted, timed out, abandoned, cancelled, repeated.

use serde_json::{Value, json};

use super::client::{Client, Raw, events};
use super::test_server::TestServer;

/// Reads events until one of this kind.
fn until(events: &mut impl Iterator<Item = Value>, what: &str) -> Value {
    events.find(|event| event["event"] == what).expect("it happens")
}

fn waiter(server: &TestServer, lock: &str, ttl_ms: u64, wait_ms: u64) -> Raw {
    let ask = json!({ "locks": [lock], "ttl_ms": ttl_ms, "wait_ms": wait_ms });
    Raw::post(server.address(), "/v1/locks/acquire", &ask)
}

fn is_unused(client: &Client, lock: &str) -> bool {
    let shown = client.show(lock);
    shown["holders"] == json!([]) && shown["waiters"] == json!([])
}

#[test]
fn a_waiter_is_granted_when_the_holder_releases() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "a");
    let token = client.hold("a", client.open(3_600_000));
    let waiter = waiter(&server, "a", 3_600_000, 3_600_000);
    until(&mut events, "queued");
    client.release("a", token);
    let granted = waiter.answer().good();
    assert!(granted["token"].as_u64() > Some(token));
    assert_eq!(client.show("a")["holders"][0]["token"], granted["token"]);
}

#[test]
fn a_session_that_is_made_for_a_wait_outlives_its_ttl_while_it_waits() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(3_600_000);
    let token = client.hold("a", session);
    let mut events = events(server.address(), "a");
    let patient = waiter(&server, "a", 500, 3_600_000);
    until(&mut events, "queued");
    // Two waits of longer than the first one's TTL, one after the other.
    for _ in 0..2 {
        assert_eq!(waiter(&server, "a", 500, 400).answer().code(), "BUSY");
    }
    client.release("a", token);
    patient.answer().good();
}

#[test]
fn a_wait_that_is_over_leaves_nothing_behind() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(3_600_000);
    let token = client.hold("a", session);
    let other = client.open(3_600_000);
    let ask = json!({ "locks": ["a"], "session": other, "wait_ms": 50 });
    for ask in [ask, json!({ "locks": ["a"], "ttl_ms": 3_600_000, "wait_ms": 50 })] {
        assert_eq!(client.post("/v1/locks/acquire", &ask).code(), "BUSY");
        assert_eq!(client.show("a")["waiters"], json!([]));
    }
    client.release("a", token);
    assert!(is_unused(&client, "a"));
}

#[test]
fn a_client_that_goes_away_leaves_the_queue() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "a");
    let token = client.hold("a", client.open(3_600_000));
    let other = client.open(3_600_000);
    let asks = [
        json!({ "locks": ["a"], "session": other, "wait_ms": 3_600_000 }),
        json!({ "locks": ["a"], "ttl_ms": 3_600_000, "wait_ms": 3_600_000 }),
        json!({ "locks": ["a"], "session": other, "wait_ms": 3_600_000, "request": 1 }),
    ];
    for ask in asks {
        let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
        until(&mut events, "queued");
        waiter.abandon();
        until(&mut events, "left-queue");
        assert_eq!(client.show("a")["waiters"], json!([]), "{ask}");
    }
    client.release("a", token);
    assert!(is_unused(&client, "a"));
}

#[test]
fn a_client_that_goes_away_at_any_moment_has_its_answer_or_holds_nothing() {
    let server = TestServer::new();
    let client = server.client();
    let (session, other) = (client.open(3_600_000), client.open(3_600_000));
    let mut events = events(server.address(), "a");
    for round in 0..60 {
        let token = client.hold("a", session);
        let ask = json!({ "locks": ["a"], "session": other, "wait_ms": 3_600_000 });
        let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
        until(&mut events, "queued");
        // Both at once: either may come first.
        let release = json!({ "lock": "a", "token": token });
        let releasing = Raw::post(server.address(), "/v1/locks/release", &release);
        let answer = waiter.hang_up();
        assert_eq!(releasing.answer().status, 204);
        match answer {
            Some(granted) => client.release("a", granted.good()["token"].as_u64().expect("a token")),
            // Without an answer it has left the queue, or its grant was released.
            None => {
                let over = |event: &Value| {
                    event["event"] == "left-queue" || (event["event"] == "ended" && event["token"] != json!(token))
                };
                events.find(over).expect("it is over");
            }
        }
        assert!(is_unused(&client, "a"), "round {round}: {}", client.show("a"));
    }
}

#[test]
fn a_numbered_wait_is_cancelled_by_its_number() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "a");
    let token = client.hold("a", client.open(3_600_000));
    let session = client.open(3_600_000);
    let ask = json!({ "locks": ["a"], "session": session, "wait_ms": 3_600_000, "request": 7 });
    let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
    until(&mut events, "queued");
    let cancel = json!({ "session": session, "request": 7 });
    assert_eq!(client.post("/v1/locks/cancel", &cancel).good(), json!({ "granted": null }));
    assert_eq!(waiter.answer().code(), "BUSY");
    assert_eq!(client.post("/v1/locks/acquire", &ask).code(), "CANCELLED");
    client.release("a", token);
    let ask = json!({ "locks": ["a"], "session": session, "request": 8 });
    let granted = client.post("/v1/locks/acquire", &ask).good();
    let cancel = json!({ "session": session, "request": 8 });
    assert_eq!(client.post("/v1/locks/cancel", &cancel).good(), json!({ "granted": granted["token"] }));
}

#[test]
fn a_repeat_takes_over_the_wait_of_the_first() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "a");
    let token = client.hold("a", client.open(3_600_000));
    let ask = json!({ "locks": ["a"], "session": client.open(3_600_000), "wait_ms": 3_600_000, "request": 1 });
    let first = Raw::post(server.address(), "/v1/locks/acquire", &ask);
    until(&mut events, "queued");
    let repeat = Raw::post(server.address(), "/v1/locks/acquire", &ask);
    assert_eq!(first.answer().code(), "BUSY", "the repeat waits in its stead");
    client.release("a", token);
    let granted = repeat.answer().good();
    assert_eq!(client.show("a")["holders"][0]["token"], granted["token"]);
}

#[test]
fn a_waiter_whose_session_ends_is_answered_at_once() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "a");
    client.hold("a", client.open(3_600_000));
    let session = client.open(3_600_000);
    let ask = json!({ "locks": ["a"], "session": session, "wait_ms": 3_600_000 });
    let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
    until(&mut events, "queued");
    client.delete(&format!("/v1/sessions/{session}")).good();
    assert_eq!(waiter.answer().code(), "NOSESSION");
}

#[test]
fn waiters_are_granted_in_order() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "a");
    let mut token = client.hold("a", client.open(3_600_000));
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let ask = json!({ "locks": ["a"], "ttl_ms": 3_600_000, "wait_ms": 3_600_000 });
            let waiter = Raw::post(server.address(), "/v1/locks/acquire", &ask);
            until(&mut events, "queued");
            waiter
        })
        .collect();
    for waiter in waiters {
        client.release("a", token);
        token = waiter.answer().good()["token"].as_u64().expect("a token");
    }
}

#[test]
fn a_session_does_not_wait_for_itself() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(3_600_000);
    let token = client.hold("a", session);
    let ask = json!({ "locks": ["a"], "session": session, "wait_ms": 3_600_000 });
    assert_eq!(client.post("/v1/locks/acquire", &ask).code(), "HELD");
    let shown = client.show("a");
    assert_eq!((&shown["holders"][0]["token"], &shown["waiters"]), (&json!(token), &json!([])));
}
