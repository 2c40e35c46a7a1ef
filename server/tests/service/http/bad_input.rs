//! Invalid requests are refused with a problem that names the reason, and change nothing.

use std::fmt::Write;

use palisade_server::{Config, HttpBounds, Limits};
use serde_json::{Value, json};

use super::client::{Answer, Client, Raw, events};
use super::test_server::TestServer;

/// Appends a request and its answer.
fn note(page: &mut String, what: &str, answer: &Answer) {
    let Value::Object(problem) = answer.json() else { panic!("{answer:?}") };
    answer.code();
    let _ =
        writeln!(page, "{what}\n  {} {}: {}", answer.status, problem["code"], without_columns(&problem["detail"]));
}

/// Removes the numbers of columns, which depend on the length of a session's id.
fn without_columns(detail: &Value) -> String {
    let detail = detail.to_string();
    let mut parts = detail.split(" at line 1 column ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn unchanged(client: &Client, session: u64, token: u64) {
    let shown = client.show("held");
    assert_eq!((&shown["holders"][0]["token"], &shown["waiters"]), (&json!(token), &json!([])));
    let listed = client.get("/v1/locks").good();
    assert_eq!(listed["locks"].as_array().map(Vec::len), Some(1), "{listed}");
    client.post_nothing(&format!("/v1/sessions/{session}/keepalive")).good();
}

/// Posts bodies one after the other, and returns a page of the answers.
fn page(path: &str, bodies: impl Fn(u64, u64) -> Vec<String>) -> String {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(3_600_000);
    let token = client.hold("held", session);
    let mut page = String::new();
    for body in bodies(session, token) {
        // The page does not depend on the random id.
        let shown: String = body.replace(&session.to_string(), "1").chars().take(110).collect();
        note(&mut page, &shown, &client.post_text(path, &body));
    }
    unchanged(&client, session, token);
    page
}

#[test]
fn invalid_names_are_refused() {
    let long = "x".repeat(1025);
    let over_limit = "x".repeat(513);
    let many: Vec<String> = (0..65).map(|number| format!("n{number}")).collect();
    let asks = vec![
        json!({ "locks": [""], "ttl_ms": 1000 }),
        json!({ "locks": ["ok", "a\u{0}b"], "ttl_ms": 1000 }),
        json!({ "locks": ["a\nb"], "ttl_ms": 1000 }),
        json!({ "locks": ["a\u{202e}b"], "ttl_ms": 1000 }),
        json!({ "locks": ["$mine"], "ttl_ms": 1000 }),
        json!({ "locks": [long], "ttl_ms": 1000 }),
        json!({ "locks": [over_limit], "ttl_ms": 1000 }),
        json!({ "locks": [], "ttl_ms": 1000 }),
        json!({ "locks": ["a", "a"], "ttl_ms": 1000 }),
        json!({ "locks": many, "ttl_ms": 1000 }),
        json!({ "locks": "a", "ttl_ms": 1000 }),
        json!({ "locks": [7], "ttl_ms": 1000 }),
        json!({ "ttl_ms": 1000 }),
    ];
    let page = page("/v1/locks/acquire", |_, _| asks.iter().map(Value::to_string).collect());
    insta::assert_snapshot!(page);
}

#[test]
fn invalid_times_are_refused() {
    let with = |field: &str, value: &str| format!(r#"{{"locks":["a"],"session":SESSION,"{field}":{value}}}"#);
    let alone = |value: &str| format!(r#"{{"locks":["a"],"ttl_ms":{value}}}"#);
    let mut asks: Vec<_> =
        ["0", "-5", "99", "3888000001", "4294967295", "4294967296", "18446744073709551616", "1.5", "\"10s\"", "null"]
            .map(alone)
            .into();
    asks.extend(["-1", "18446744073709551616", "\"1\""].map(|value| with("wait_ms", value)));
    asks.extend(["0", "-1", "3600001", "99999999999"].map(|value| with("delay_ms", value)));
    asks.extend(["0", "-1", "\"x\""].map(|value| with("request", value)));
    let page = page("/v1/locks/acquire", |session, _| {
        asks.iter().map(|ask| ask.replace("SESSION", &session.to_string())).collect()
    });
    insta::assert_snapshot!(page);
}

#[test]
fn invalid_holders_and_modes_are_refused() {
    let asks = [
        json!({ "locks": ["a"] }),
        json!({ "locks": ["a"], "session": 1, "ttl_ms": 1000 }),
        json!({ "locks": ["a"], "ttl_ms": 1000, "request": 1 }),
        json!({ "locks": ["a"], "session": 0 }),
        json!({ "locks": ["a"], "session": 999 }),
        json!({ "locks": ["a"], "session": "1" }),
        json!({ "locks": ["a"], "session": 1, "mode": "tight" }),
        json!({ "locks": ["a"], "session": 1, "mode": { "permits": { "count": 1 } } }),
        json!({ "locks": ["a"], "session": 1, "mode": { "permits": { "count": 0, "of": 3 } } }),
        json!({ "locks": ["a"], "session": 1, "mode": { "permits": { "count": 4, "of": 3 } } }),
        json!({ "locks": ["a"], "session": 1, "mode": { "permits": { "count": 1, "of": 3, "for": "me" } } }),
        json!({ "locks": ["held"], "session": 1, "mode": { "permits": { "count": 1, "of": 3 } } }),
        json!({ "locks": ["a"], "session": 1, "waitms": 5 }),
    ];
    // 1 stands for the session.
    let of_session = |ask: &Value, session: u64| {
        let mut ask = ask.clone();
        if ask["session"] == 1 {
            ask["session"] = json!(session);
        }
        ask.to_string()
    };
    let page = page("/v1/locks/acquire", |session, _| asks.iter().map(|ask| of_session(ask, session)).collect());
    insta::assert_snapshot!(page);
}

#[test]
fn invalid_tokens_are_refused() {
    let token = |value: &str| format!(r#"{{"lock":"held","token":{value}}}"#);
    let mut asks: Vec<_> =
        ["0", "-1", "9007199254740992", "18446744073709551616", "1.0", "\"1\"", "9007199254740991", "2"]
            .map(token)
            .into();
    asks.extend([
        r#"{"lock":"other","token":TOKEN}"#.to_owned(),
        r#"{"lock":"held","token":TOKEN,"session":999}"#.to_owned(),
        r#"{"lock":"held","token":TOKEN,"request":1}"#.to_owned(),
        r#"{"lock":"held"}"#.to_owned(),
    ]);
    let page = page("/v1/locks/release", |_, token| {
        asks.iter().map(|ask| ask.replace("TOKEN", &token.to_string())).collect()
    });
    insta::assert_snapshot!(page);
}

#[test]
fn wrong_types_are_refused() {
    let asks = [
        "",
        "{",
        "[]",
        "null",
        "7",
        "{\"ttl_ms\":1000} x",
        "{\"ttl_ms\":1000,\"ttl_ms\":1000}",
        "\u{feff}{}",
        "[1000,\"x\"]",
        "{\"ttl_ms\":1000,\"x\":1}",
    ];
    let mut asks: Vec<_> = asks.map(str::to_owned).into();
    asks.push(format!(r#"{{"ttl_ms":1000,"label":"{}"}}"#, "x".repeat(257)));
    asks.push("[".repeat(50_000));
    let page = page("/v1/sessions", |_, _| asks.clone());
    insta::assert_snapshot!(page);
}

#[test]
fn other_invalid_posts_are_refused() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(3_600_000);
    let token = client.hold("held", session);
    let mut page = String::new();
    let asks = [
        ("/v1/locks/break", json!({ "lock": "held" })),
        ("/v1/locks/break", json!({ "lock": "held", "reason": "" })),
        ("/v1/locks/break", json!({ "lock": "held", "reason": "x".repeat(257) })),
        ("/v1/locks/break", json!({ "lock": "held", "reason": "x", "token": token + 1 })),
        ("/v1/locks/break", json!({ "lock": "held", "reason": "x", "force": true })),
        ("/v1/locks/resize", json!({ "lock": "held", "permits": 3 })),
        ("/v1/locks/resize", json!({ "lock": "unused", "permits": 3 })),
        ("/v1/locks/resize", json!({ "lock": "held", "permits": -3 })),
        ("/v1/tokens/raise", json!({ "above": 0 })),
        ("/v1/tokens/raise", json!({ "above": 4_503_599_627_370_497_u64 })),
        ("/v1/tokens/raise", json!({ "above": 5, "below": 7 })),
        ("/v1/locks/cancel", json!({ "session": session })),
        ("/v1/locks/cancel", json!({ "session": 999, "request": 1 })),
        ("/v1/sessions/keepalive", json!({ "sessions": [0] })),
        ("/v1/sessions/keepalive", json!({ "sessions": 1 })),
        ("/v1/elections/campaign", json!({ "name": "boss", "session": session })),
        ("/v1/elections/campaign", json!({ "name": "boss", "session": session, "value": "x".repeat(4097) })),
        ("/v1/elections/publish", json!({ "name": "held", "session": session, "token": token + 1, "value": "x" })),
    ];
    for (path, body) in asks {
        let shown: String = body.to_string().replace(&session.to_string(), "1").chars().take(90).collect();
        note(&mut page, &format!("{path} {shown}"), &client.post(path, &body));
    }
    unchanged(&client, session, token);
    insta::assert_snapshot!(page);
}

#[test]
fn invalid_paths_queries_and_methods_are_refused() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(3_600_000);
    let token = client.hold("held", session);
    let mut page = String::new();
    let paths = [
        "/nothing",
        "/v1",
        "/v1/locks/",
        "/v2/locks",
        "/v1/locks/acquire",
        "/v1/sessions/1",
        "/v1/locks/show",
        "/v1/locks/show?name=",
        "/v1/locks/show?name=%ff",
        "/v1/locks/show?name=a%00b",
        "/v1/locks/show?name=a&name=b",
        "/v1/locks/show?nam=a",
        "/v1/locks?count=-1",
        "/v1/locks?cursor=x",
        "/v1/locks?count=4294967296",
        "/v1/locks/watch?prefix=a&since=3",
        "/v1/elections/leader?name=$x",
    ];
    for path in paths {
        note(&mut page, &format!("GET {path}"), &client.get(path));
    }
    for path in [
        "/v1/sessions/0",
        "/v1/sessions/x",
        "/v1/sessions/-1",
        "/v1/sessions/18446744073709551616",
        "/v1/sessions/999",
        "/v1/locks",
    ] {
        note(&mut page, &format!("DELETE {path}"), &client.delete(path));
    }
    note(&mut page, "POST /v1/sessions/999/keepalive", &client.post_nothing("/v1/sessions/999/keepalive"));
    unchanged(&client, session, token);
    insta::assert_snapshot!(page);
}

#[test]
fn a_problem_has_all_fields() {
    let server = TestServer::new();
    let answer = server.client().post("/v1/locks/acquire", &json!({ "locks": ["a"], "session": 999 }));
    assert_eq!((answer.status, answer.content_type.as_str()), (404, "application/problem+json"));
    insta::assert_snapshot!(serde_json::to_string_pretty(&answer.json()).expect("JSON"));
}

#[test]
fn large_bodies_and_bodies_that_are_not_json_are_refused() {
    let server = TestServer::new();
    let mut page = String::new();
    let large = format!(r#"{{"ttl_ms":1000,"label":"{}"}}"#, "x".repeat(64 << 10));
    note(&mut page, "65 KiB", &server.client().post_text("/v1/sessions", &large));
    let head = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let json = "content-type: application/json\r\n";
    let oddities = [
        ("text", format!("{head}content-type: text/plain\r\ncontent-length: 15\r\n\r\n{{\"ttl_ms\":1000}}")),
        ("no type", format!("{head}content-length: 15\r\n\r\n{{\"ttl_ms\":1000}}")),
        ("a length of 10 GB", format!("{head}{json}content-length: 10000000000\r\n\r\n{{}}")),
        ("chunks", format!("{head}{json}transfer-encoding: chunked\r\n\r\n11000\r\n{}", "x".repeat(0x11000))),
        ("not UTF-8", format!("{head}{json}content-length: 28\r\n\r\n{{\"ttl_ms\":1000,\"label\":\"??\"}}")),
    ];
    for (what, request) in oddities {
        let bytes: Vec<u8> = request.bytes().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
        note(&mut page, what, &Raw::send(server.address(), &bytes).answer());
    }
    insta::assert_snapshot!(page);
    assert_eq!(Raw::send(server.address(), b"\x16\x03\x01 hello\r\n\r\n").answer().status, 400);
    let many = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(100 << 10));
    assert_eq!(Raw::send(server.address(), many.as_bytes()).answer().status, 431);
}

#[test]
fn used_tokens_and_numbers_are_refused() {
    let server = TestServer::new();
    let client = server.client();
    let (one, two) = (client.open(3_600_000), client.open(3_600_000));
    let numbered = json!({ "locks": ["a"], "session": one, "request": 1 });
    let older = client.post("/v1/locks/acquire", &numbered).good()["token"].clone();
    let release = json!({ "lock": "a", "token": older });
    client.post("/v1/locks/release", &release).good();
    let token = client.hold("a", two);
    let mut page = String::new();
    for (what, path, body) in [
        ("an older token", "/v1/locks/break", json!({ "lock": "a", "token": older, "reason": "x" })),
        ("released twice", "/v1/locks/release", release),
        ("never held", "/v1/locks/release", json!({ "lock": "b", "token": token })),
        ("another's", "/v1/locks/release", json!({ "lock": "a", "token": token, "session": one })),
        ("another body", "/v1/locks/acquire", json!({ "locks": ["b"], "session": one, "request": 1 })),
        ("held already", "/v1/locks/acquire", json!({ "locks": ["a"], "session": two })),
        ("waiting for oneself", "/v1/locks/acquire", json!({ "locks": ["a"], "session": two, "wait_ms": 20 })),
    ] {
        note(&mut page, what, &client.post(path, &body));
    }
    insta::assert_snapshot!(page);
    let shown = client.show("a");
    assert_eq!((&shown["holders"][0]["token"], &shown["waiters"]), (&json!(token), &json!([])));
}

#[test]
fn requests_over_the_limits_are_refused() {
    let limits = Limits { sessions: 3, waiters_per_lock: 1, locks_per_session: 1, ..Limits::default() };
    let server = TestServer::configured(Config { limits: Some(limits), ..Config::default() }, HttpBounds::default());
    let client = server.client();
    let mut events = events(server.address(), "");
    let [one, two, three] = [client.open(3_600_000), client.open(3_600_000), client.open(3_600_000)];
    client.hold("a", one);
    let wait = |session| json!({ "locks": ["a"], "session": session, "wait_ms": 60_000 });
    let waiter = Raw::post(server.address(), "/v1/locks/acquire", &wait(two));
    events.find(|event| event["event"] == "queued").expect("it waits");
    let mut page = String::new();
    note(&mut page, "one waiter too many", &client.post("/v1/locks/acquire", &wait(three)));
    note(&mut page, "one session too many", &client.post("/v1/sessions", &json!({ "ttl_ms": 1000 })));
    let more = json!({ "locks": ["b"], "session": one });
    note(&mut page, "one lock too many", &client.post("/v1/locks/acquire", &more));
    insta::assert_snapshot!(page);
    waiter.abandon();
}

#[test]
fn wrong_lengths_and_unsupported_versions_are_refused() {
    let server = TestServer::new();
    let head =
        "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let body = "{\"ttl_ms\":1000}";
    let short = Raw::send(server.address(), format!("{head}content-length: 9\r\n\r\n{body}").as_bytes()).answer();
    assert_eq!((short.status, short.code().as_str()), (400, "BADARG"));
    // hyper refuses these without a problem: they look like smuggled requests, or are not HTTP/1.
    for (what, request) in [
        ("two lengths", format!("{head}content-length: 15\r\ncontent-length: 16\r\n\r\n{body}")),
        ("no number", format!("{head}content-length: 1x\r\n\r\n{body}")),
        ("two lines in one", format!("{head}x\r\n y: 1\r\n\r\n{body}")),
        ("version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        ("version 3", "GET /healthz HTTP/3.0\r\n\r\n".to_owned()),
    ] {
        let answer = Raw::send(server.address(), request.as_bytes()).answer();
        assert!([0, 400].contains(&answer.status), "{what}: {answer:?}");
    }
    let metrics = server.client().get("/metrics").body;
    assert!(metrics.contains("\npalisade_sessions 0\n"), "it has opened a session: {metrics}");
}
