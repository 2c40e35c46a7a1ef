//! Every operation, and that both protocols see the same locks.

use serde_json::{Value, json};

use super::test_server::TestServer;

#[test]
fn a_session_is_opened_kept_alive_and_closed() {
    let server = TestServer::new();
    let client = server.client();
    let opened = client.post("/v1/sessions", &json!({ "ttl_ms": 600_000, "label": "a \u{1b}[31mred\nlabel" }));
    assert_eq!((opened.status, &opened.json()["ttl_ms"]), (201, &json!(600_000)));
    let session = opened.json()["session"].as_u64().expect("a session");
    let kept = client.post_nothing(&format!("/v1/sessions/{session}/keepalive"));
    assert_eq!(kept.good(), json!({ "session": session, "ttl_ms": 600_000 }));
    let kept = client.post("/v1/sessions/keepalive", &json!({ "sessions": [session, 777] })).good();
    assert_eq!(
        kept["sessions"],
        json!([{ "session": session, "ttl_ms": 600_000 }, { "session": 777, "ttl_ms": null }])
    );
    let token = client.hold("a", session);
    assert_eq!(client.delete(&format!("/v1/sessions/{session}")).status, 204);
    assert_eq!(client.show("a")["holders"], json!([]));
    assert_eq!(client.delete(&format!("/v1/sessions/{session}")).code(), "NOSESSION");
    assert_eq!(client.post_nothing(&format!("/v1/sessions/{session}/keepalive")).code(), "NOSESSION");
    assert_eq!(client.post("/v1/locks/release", &json!({ "lock": "a", "token": token })).code(), "NOTHELD");
}

#[test]
fn a_session_that_is_not_kept_alive_ends_and_frees_its_lock() {
    let server = TestServer::new();
    let client = server.client();
    let granted = client.post("/v1/locks/acquire", &json!({ "locks": ["a"], "ttl_ms": 150 })).good();
    // The wait ends with the expiry, not with its timeout.
    let next =
        client.post("/v1/locks/acquire", &json!({ "locks": ["a"], "ttl_ms": 600_000, "wait_ms": 600_000 })).good();
    assert!(next["token"].as_u64() > granted["token"].as_u64());
}

#[test]
fn a_lock_is_acquired_shown_listed_and_released() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(600_000);
    let ask = json!({ "locks": ["orders/42", "orders/43"], "session": session, "mode": "exclusive", "delay_ms": 100, "request": 1 });
    let granted = client.post("/v1/locks/acquire", &ask).good();
    let token = granted["token"].as_u64().expect("a token");
    assert_eq!(granted["locks"], json!(["orders/42", "orders/43"]));
    assert_eq!((&granted["session"], &granted["ttl_ms"]), (&json!(session), &json!(600_000)));
    assert_eq!(client.post("/v1/locks/acquire", &ask).good(), granted, "a repeat gets the first answer");

    let shown = client.show("orders%2F42");
    let holder = &shown["holders"][0];
    assert_eq!(
        (&holder["token"], &holder["label"], &holder["mode"]),
        (&json!(token), &json!("tester"), &json!("exclusive"))
    );
    assert!(holder["time_left_ms"].as_u64() <= Some(600_000));
    let listed = client.get("/v1/locks?prefix=orders/&count=1").good();
    assert_eq!(listed["locks"].as_array().map(Vec::len), Some(1));
    let rest = client.get(&format!("/v1/locks?prefix=orders/&cursor={}", listed["cursor"])).good();
    assert_eq!((rest["locks"].as_array().map(Vec::len), &rest["cursor"]), (Some(1), &json!(0)));

    let release = json!({ "lock": "orders/43", "token": token, "session": session });
    assert_eq!(client.post("/v1/locks/release", &release).status, 204);
    assert_eq!(client.post("/v1/locks/release", &release).code(), "NOTHELD");
    let unused = json!({
        "name": "orders/42", "limit": null, "holder_count": 0, "waiter_count": 0, "holders": [], "waiters": [],
        "cursor": 0, "value": null, "history": []
    });
    assert_eq!(client.show("orders/42"), unused);
}

#[test]
fn readers_share_a_lock_and_permits_are_counted() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(600_000);
    let acquire = |body: Value| client.post("/v1/locks/acquire", &body);
    for _ in 0..2 {
        acquire(json!({ "locks": ["book"], "session": session, "mode": "shared" })).good();
    }
    assert_eq!(acquire(json!({ "locks": ["book"], "session": session })).code(), "BUSY");
    let two = json!({ "locks": ["pool"], "session": session, "mode": { "permits": { "count": 2, "of": 3 } } });
    acquire(two.clone()).good();
    assert_eq!(acquire(two.clone()).code(), "BUSY");
    assert_eq!(client.post("/v1/locks/resize", &json!({ "lock": "pool", "permits": 4 })).status, 204);
    let of_four = json!({ "locks": ["pool"], "session": session, "mode": { "permits": { "count": 2, "of": 4 } } });
    acquire(of_four).good();
    assert_eq!(acquire(two).code(), "KIND");
    assert_eq!(client.show("pool")["limit"], 4);
}

#[test]
fn a_force_release_ends_the_grant_and_uses_up_a_token() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(600_000);
    let token = client.hold("stuck", session);
    let wrong = json!({ "lock": "stuck", "token": token - 1, "reason": "x" });
    assert!(client.post("/v1/locks/break", &wrong).status >= 400);
    let broken = client
        .post("/v1/locks/break", &json!({ "lock": "stuck", "token": token, "reason": "hangs", "by": "ops" }))
        .good();
    assert_eq!(broken["grants"], 1);
    assert!(broken["moved_to"].as_u64() > Some(token));
    let again = client.hold("stuck", session);
    assert!(Some(again) > broken["moved_to"].as_u64());
    assert_eq!(client.post("/v1/locks/break", &json!({ "lock": "free", "reason": "x" })).code(), "NOTHELD");
}

#[test]
fn tokens_are_raised_and_never_lowered() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(600_000);
    let first = client.hold("a", session);
    let raise = |above: u64| client.post("/v1/tokens/raise", &json!({ "above": above })).good()["raised"].clone();
    assert_eq!(raise(70_000), true);
    assert_eq!(raise(first), false);
    assert_eq!(client.hold("b", session), 70_001);
    assert_eq!(client.show("a")["holders"][0]["token"], first, "a held lock keeps its token");
}

#[test]
fn a_leader_is_elected_publishes_and_resigns() {
    let server = TestServer::new();
    let client = server.client();
    assert_eq!(client.get("/v1/elections/leader?name=boss").good(), json!({ "leader": null }));
    let session = client.open(600_000);
    let stand = json!({ "name": "boss", "session": session, "value": "10.0.0.1" });
    let token = client.post("/v1/elections/campaign", &stand).good()["token"].as_u64().expect("a token");
    let leader = json!({ "leader": { "value": "10.0.0.1", "token": token, "session": session, "label": "tester" } });
    assert_eq!(client.get("/v1/elections/leader?name=boss").good(), leader);
    let other = json!({ "name": "boss", "ttl_ms": 600_000, "value": "10.0.0.2" });
    assert_eq!(client.post("/v1/elections/campaign", &other).code(), "BUSY");
    let publish = json!({ "name": "boss", "session": session, "token": token, "value": "10.0.0.9" });
    assert_eq!(client.post("/v1/elections/publish", &publish).status, 204);
    assert_eq!(client.get("/v1/elections/leader?name=boss").good()["leader"]["value"], "10.0.0.9");
    client.release("boss", token);
    client.post("/v1/elections/campaign", &other).good();
    assert_eq!(client.get("/v1/elections/leader?name=boss").good()["leader"]["value"], "10.0.0.2");
}

#[test]
fn both_protocols_see_the_same_locks() {
    let server = TestServer::new();
    let (client, mut resp) = (server.client(), server.connect_resp());
    let session = client.open(600_000);
    let token = client.hold("shared/one", session);
    assert_eq!(resp.send("LOCK ACQUIRE shared/one TTL 600000"), ["nil"]);
    assert!(resp.send("LOCK SHOW shared/one").contains(&token.to_string()));
    assert_eq!(resp.send(&format!("LOCK RELEASE shared/one {token}")), ["1"]);
    let granted = resp.send("LOCK ACQUIRE shared/one TTL 600000");
    let busy = client.post("/v1/locks/acquire", &json!({ "locks": ["shared/one"], "session": session }));
    assert_eq!(busy.code(), "BUSY");
    assert_eq!(client.show("shared/one")["holders"][0]["token"].to_string(), granted[1]);
    assert!(granted[1].parse::<u64>().expect("a token") > token);
}

#[test]
fn a_grant_survives_a_restart() {
    let server = TestServer::new();
    let session = server.client().open(3_600_000);
    let token = server.client().hold("a", session);
    let server = TestServer::on(server.close(), palisade_server::HttpBounds::default());
    let client = server.client();
    assert_eq!(client.show("a")["holders"][0]["token"], token);
    client.release("a", token);
    assert!(client.hold("a", session) > token);
}
