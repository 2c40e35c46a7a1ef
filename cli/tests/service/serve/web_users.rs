//! Users over HTTP: the same rights as over RESP.

use serde_json::{Value, json};

use super::client::Client;
use super::service::Service;
use super::users::TestUsers;
use super::web::{Answer, Web};
use crate::common::bounded::until_some;
use crate::sandbox::Sandbox;

impl TestUsers {
    pub(crate) fn web(&self, service: &Service, name: &str) -> Web {
        service.web().as_user(name, self.secret(name))
    }
}

/// Returns every request that needs a login.
fn requests_that_need_a_login() -> Vec<(&'static str, &'static str, Option<Value>)> {
    vec![
        ("POST", "/v1/sessions", Some(json!({ "ttl_ms": 60_000 }))),
        ("POST", "/v1/sessions/1/keepalive", None),
        ("POST", "/v1/sessions/keepalive", Some(json!({ "sessions": [1] }))),
        ("DELETE", "/v1/sessions/1", None),
        ("POST", "/v1/locks/acquire", Some(json!({ "locks": ["a"], "ttl_ms": 60_000 }))),
        ("POST", "/v1/locks/release", Some(json!({ "lock": "a", "token": 1 }))),
        ("POST", "/v1/locks/cancel", Some(json!({ "session": 1, "request": 1 }))),
        ("GET", "/v1/locks", None),
        ("GET", "/v1/locks/show?name=a", None),
        ("GET", "/v1/locks/watch", None),
        ("POST", "/v1/locks/break", Some(json!({ "lock": "a", "reason": "r" }))),
        ("POST", "/v1/locks/resize", Some(json!({ "lock": "a", "permits": 3 }))),
        ("POST", "/v1/tokens/raise", Some(json!({ "above": 3 }))),
        ("POST", "/v1/elections/campaign", Some(json!({ "name": "a", "ttl_ms": 60_000, "value": "v" }))),
        ("POST", "/v1/elections/publish", Some(json!({ "name": "a", "session": 1, "token": 1, "value": "v" }))),
        ("GET", "/v1/elections/leader?name=a", None),
        ("GET", "/metrics", None),
        // A client without a login does not learn what is wrong with its request.
        ("POST", "/v1/sessions", Some(json!({ "nonsense": 1 }))),
        ("GET", "/v1/locks/show?nonsense=1", None),
    ]
}

#[test]
fn no_request_is_answered_without_a_login() {
    let users = TestUsers::new(&[("ci", "{ verbs = ['admin'], prefix = '' }")]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&users.config());
    let web = service.web();
    let strangers = [
        web.clone(),
        web.with_header("authorization: Bearer aaaa"),
        web.with_header("authorization: Basic !"),
        web.with_header("authorization: Basic Y2k="),
        web.with_header("authorization:"),
    ];
    for (method, path, body) in requests_that_need_a_login() {
        for stranger in &strangers {
            let answer = stranger.call(method, path, body.as_ref());
            assert!(answer.problem().starts_with("NOAUTH "), "{method} {path}: {answer:?}");
            assert_eq!(answer.status, 401, "{method} {path}");
            let basic = "Basic realm=\"palisade\", charset=\"UTF-8\"";
            assert_eq!(answer.header("www-authenticate"), Some(basic), "{method} {path}");
        }
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(web.get(path).status, 200, "{path}");
    }
    let wrong = web.as_user("ci", "wrong").get("/v1/locks");
    insta::assert_snapshot!("web-wrong-secret", serde_json::to_string_pretty(&wrong.json()).unwrap());
    assert_eq!((wrong.status, wrong.header("www-authenticate").is_some()), (401, true));
    assert!(service.line_with("login failed").contains("name=\"ci\""));
    assert_eq!(
        web.as_user("nobody", "\u{1b}[2J").get("/v1/locks").json(),
        wrong.json(),
        "the reply does not say whether the user exists"
    );
    let twice = users.web(&service, "ci").as_user("ci", "wrong").get("/v1/locks");
    assert!(twice.problem().starts_with("BADARG "), "{twice:?}");
    let ci = users.web(&service, "ci");
    assert_eq!(ci.get("/v1/locks").good(), json!({ "cursor": 0, "locks": [] }));
    let metrics = ci.get("/metrics").body;
    assert!(metrics.contains("palisade_sessions 0\n") && metrics.contains("palisade_last_token 0\n"), "{metrics}");
}

#[test]
fn without_users_a_login_is_refused() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web("");
    let answer = service.web().as_user("ci", "x").get("/v1/locks");
    assert_eq!(answer.problem(), "BADARG authorization: no users are configured here; leave it out");
    service.web().get("/v1/locks").good();
}

#[test]
fn failed_logins_are_limited_and_do_not_delay_other_users() {
    let users = TestUsers::new(&[("ci", "{ verbs = ['admin'], prefix = '' }")]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&users.config());
    let guess = service.web().as_user("ci", "wrong");
    let mut guessing = guess.connect();
    for _ in 0..9 {
        guessing.send(guess.request("GET", "/v1/locks", None).as_bytes()).expect("it can be sent");
    }
    users.web(&service, "ci").get("/v1/locks").good();
    let output = guessing.until_closed();
    assert_eq!(output.matches("WRONGPASS").count(), 8, "{output}");
}

/// Returns the same requests for both protocols.
fn pairs() -> Vec<(&'static str, &'static str, &'static str, Option<Value>)> {
    let acquire = |body: Value| ("POST", "/v1/locks/acquire", Some(body));
    let permits = json!({ "permits": { "count": 1, "of": 2 } });
    let mut all = vec![
        ("SESSION OPEN 60000", ("POST", "/v1/sessions", Some(json!({ "ttl_ms": 60_000 })))),
        ("LOCK ACQUIRE a/x TTL 60000", acquire(json!({ "locks": ["a/x"], "ttl_ms": 60_000 }))),
        (
            "LOCK ACQUIRE a/s TTL 60000 SHARED",
            acquire(json!({ "locks": ["a/s"], "ttl_ms": 60_000, "mode": "shared" })),
        ),
        (
            "LOCK ACQUIRE a/p TTL 60000 PERMITS 1 OF 2",
            acquire(json!({ "locks": ["a/p"], "ttl_ms": 60_000, "mode": permits })),
        ),
        ("LOCK ACQUIRE b/x TTL 60000", acquire(json!({ "locks": ["b/x"], "ttl_ms": 60_000 }))),
        ("LOCK ACQUIRE a/x b/x TTL 60000", acquire(json!({ "locks": ["a/x", "b/x"], "ttl_ms": 60_000 }))),
    ];
    let campaign = json!({ "name": "a/e", "ttl_ms": 60_000, "value": "v" });
    all.push(("CAMPAIGN a/e TTL 60000 VALUE v", ("POST", "/v1/elections/campaign", Some(campaign))));
    all.extend([
        ("LOCK SHOW a/x", ("GET", "/v1/locks/show?name=a/x", None)),
        ("LOCK SHOW b/x", ("GET", "/v1/locks/show?name=b/x", None)),
        ("LOCK LIST a/", ("GET", "/v1/locks?prefix=a/", None)),
        ("LOCK WATCH a/", ("GET", "/v1/locks/watch?prefix=a/", None)),
        ("OBSERVE a/x", ("GET", "/v1/elections/leader?name=a/x", None)),
        ("TOKENS RAISE 3", ("POST", "/v1/tokens/raise", Some(json!({ "above": 3 })))),
    ]);
    for (command, path, lock, field, value) in [
        ("LOCK BREAK a/none REASON r", "/v1/locks/break", "a/none", "reason", json!("r")),
        ("LOCK BREAK b/none REASON r", "/v1/locks/break", "b/none", "reason", json!("r")),
        ("LOCK RESIZE a/none 3", "/v1/locks/resize", "a/none", "permits", json!(3)),
        ("LOCK RESIZE b/none 3", "/v1/locks/resize", "b/none", "permits", json!(3)),
        ("LOCK RELEASE a/none 1", "/v1/locks/release", "a/none", "token", json!(1)),
        ("LOCK RELEASE b/none 1", "/v1/locks/release", "b/none", "token", json!(1)),
    ] {
        all.push((command, ("POST", path, Some(json!({ "lock": lock, field: value })))));
    }
    all.into_iter().map(|(command, (method, path, body))| (command, method, path, body)).collect()
}

/// Sends a RESP command. Returns the reason if it was denied, and closes a session that it opened.
fn denied_over_resp(client: &mut Client, command: &str) -> Option<String> {
    use super::client::Value::{Error, Map, Text};
    match client.call(command) {
        Error(text) => text.strip_prefix("DENIED ").map(str::to_owned),
        granted @ Map(_) => {
            if let Map(fields) = &granted
                && fields.iter().any(|(name, _)| *name == Text("session".to_owned()))
            {
                client.call_ok(&format!("SESSION CLOSE {}", granted.number("session")));
            }
            None
        }
        _ => None,
    }
}

/// Returns the reason if an HTTP request was denied, and closes a session that it opened.
fn denied_over_http(web: &Web, answer: &Answer) -> Option<String> {
    if answer.status == 403 {
        return answer.problem().strip_prefix("DENIED ").map(str::to_owned);
    }
    if let Ok(body) = serde_json::from_str::<Value>(&answer.body)
        && let Some(session) = body["session"].as_u64()
    {
        web.call("DELETE", &format!("/v1/sessions/{session}"), None).good();
    }
    None
}

#[test]
fn denied_metrics_are_in_the_audit_log() {
    let users = TestUsers::of_every_verb();
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&users.config());
    assert_eq!(users.web(&service, "nobody").get("/metrics").status, 403);
    let line = service.line_with("denied");
    assert!(line.contains("user=\"nobody\"") && line.contains("'observe'"), "{line}");
}

#[test]
fn every_verb_allows_and_denies_the_same_over_both_protocols() {
    let users = TestUsers::of_every_verb();
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&users.config());
    let mut denials = 0;
    for name in users.names() {
        let web = users.web(&service, name);
        for (command, method, path, body) in pairs() {
            // A new connection each time, since one that watches would receive events in between.
            let over_resp = denied_over_resp(&mut users.client(&service, name), command);
            let over_http = denied_over_http(&web, &web.call(method, path, body.as_ref()));
            assert_eq!(over_http, over_resp, "{name}: {command}");
            denials += usize::from(over_http.is_some());
        }
        let may_observe = ["observe", "admin", "two"].contains(&name);
        assert_eq!(web.get("/metrics").status, if may_observe { 200 } else { 403 }, "{name}");
    }
    assert!(denials > 50, "{denials}");
    let line = service.line_with("denied");
    assert!(line.contains("user=\"nobody\"") && line.contains("peer=\"127.0.0.1:"), "{line}");
}

#[test]
fn a_session_belongs_to_its_user_over_both_protocols() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['observe', 'acquire'], prefix = '' }"),
        ("bob", "{ verbs = ['observe', 'acquire', 'admin'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&users.config());
    let (alice, bob) = (users.web(&service, "alice"), users.web(&service, "bob"));
    let opened = alice.post("/v1/sessions", &json!({ "ttl_ms": 60_000, "label": "bob: x" })).good();
    let session = &opened["session"];
    let token =
        alice.post("/v1/locks/acquire", &json!({ "locks": ["a"], "session": session })).good()["token"].clone();
    let holder = &bob.get("/v1/locks/show?name=a").good()["holders"][0]["label"];
    assert_eq!(holder, "alice: bob: x", "a user cannot impersonate another");
    let why = format!("DENIED session {session} does not belong to user 'bob'");
    for (method, path, body) in [
        ("POST", format!("/v1/sessions/{session}/keepalive"), None),
        ("POST", "/v1/sessions/keepalive".to_owned(), Some(json!({ "sessions": [session] }))),
        ("DELETE", format!("/v1/sessions/{session}"), None),
        ("POST", "/v1/locks/acquire".to_owned(), Some(json!({ "locks": ["b"], "session": session }))),
        ("POST", "/v1/locks/release".to_owned(), Some(json!({ "lock": "a", "token": token, "session": session }))),
        ("POST", "/v1/locks/release".to_owned(), Some(json!({ "lock": "a", "token": token }))),
        ("POST", "/v1/locks/cancel".to_owned(), Some(json!({ "session": session, "request": 1 }))),
        (
            "POST",
            "/v1/elections/publish".to_owned(),
            Some(json!({ "name": "a", "session": session, "token": token, "value": "v" })),
        ),
    ] {
        assert_eq!(bob.call(method, &path, body.as_ref()).problem(), why, "{method} {path}");
    }
    let mut resp = users.client(&service, "bob");
    assert_eq!(resp.refusal(&format!("SESSION CLOSE {session}")), why);
    // A session that does not exist yet is refused: another user may be about to open it.
    assert!(bob.call("DELETE", "/v1/sessions/99", None).problem().starts_with("NOSESSION "));
    // The owner can use the session over RESP too, and a session opened over RESP can be used over HTTP.
    let mut own = users.client(&service, "alice");
    own.call_ok(&format!("LOCK RELEASE a {token}"));
    let other = own.session();
    alice.post("/v1/locks/acquire", &json!({ "locks": ["a"], "session": other })).good();
    let shown = alice.get("/v1/locks/show?name=a").good();
    let label = shown["holders"][0]["label"].as_str().unwrap();
    assert!(label.starts_with("alice: 127.0.0.1:"), "{label}");
    assert!(bob.call("DELETE", &format!("/v1/sessions/{other}"), None).problem().starts_with("DENIED "));
    // A force-release is recorded under the user's name.
    bob.post("/v1/locks/break", &json!({ "lock": "a", "reason": "x\ny\u{1b}[2J", "by": "alice" })).good();
    let record = service.line_with("a lock was taken away");
    assert!(record.contains("by=\"bob: alice\"") && record.contains("user=\"bob\" peer=\"127.0.0.1:"), "{record}");
}

#[test]
fn locks_outside_a_users_prefixes_are_hidden() {
    let users = TestUsers::new(&[
        ("all", "{ verbs = ['admin'], prefix = '' }"),
        ("some", "{ verbs = ['observe'], prefix = 'a/' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&users.config());
    let (all, some) = (users.web(&service, "all"), users.web(&service, "some"));
    let mut watch = some.connect();
    watch.send(some.request("GET", "/v1/locks/watch", None).as_bytes()).unwrap();
    assert_eq!(watch.answer().unwrap().status, 200);
    let session = all.post("/v1/sessions", &json!({ "ttl_ms": 60_000 })).good()["session"].clone();
    let hold = |locks: Value| all.post("/v1/locks/acquire", &json!({ "locks": locks, "session": session })).good();
    hold(json!(["secret/1"]));
    hold(json!(["a/2", "secret/2"]));
    hold(json!(["a/3"]));
    let granted =
        |lock: &str, token: u32| json!({ "event": "granted", "locks": [lock], "session": session, "token": token });
    assert_eq!(watch.event(), granted("a/2", 2));
    assert_eq!(watch.event(), granted("a/3", 3));
    let listed = some.get("/v1/locks").good();
    let names: Vec<_> = listed["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
    assert_eq!(names, ["a/2", "a/3"]);
    assert!(!listed.to_string().contains("secret"));
}

#[test]
fn the_session_limit_of_a_user_covers_both_protocols() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['acquire'], prefix = '' }"),
        ("bob", "{ verbs = ['acquire'], prefix = '' }"),
    ]);
    let config = format!("[serve.bounds]\nsessions_per_user = 2\n{}", users.config());
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&config);
    let alice = users.web(&service, "alice");
    users.client(&service, "alice").session();
    // A granted and a refused acquire both free their slot.
    let acquire = json!({ "locks": ["a"], "ttl_ms": 60_000 });
    let granted = alice.post("/v1/locks/acquire", &acquire).good();
    assert!(alice.post("/v1/locks/acquire", &acquire).problem().starts_with("LIMIT "));
    let open = json!({ "ttl_ms": 60_000 });
    assert!(alice.post("/v1/sessions", &open).problem().starts_with("LIMIT "));
    users.web(&service, "bob").post("/v1/sessions", &open).good();
    assert!(users.web(&service, "bob").post("/v1/locks/acquire", &acquire).problem().starts_with("BUSY "));
    alice.call("DELETE", &format!("/v1/sessions/{}", granted["session"]), None).good();
    for _ in 0..3 {
        let session = alice.post("/v1/sessions", &open).good()["session"].clone();
        alice.call("DELETE", &format!("/v1/sessions/{session}"), None).good();
    }
    users.web(&service, "bob").post("/v1/locks/acquire", &acquire).good();
}

#[test]
fn clients_without_a_login_do_not_keep_users_out() {
    let users = TestUsers::new(&[("ci", "{ verbs = ['admin'], prefix = '' }")]);
    let config = format!("[serve.bounds]\nstrangers = 2\ngreeting = '5s'\n{}", users.config());
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&config);
    let ci = users.web(&service, "ci");
    let mut logged_in = ci.connect();
    let mut ask = || {
        logged_in.send(ci.request("GET", "/v1/locks", None).as_bytes()).unwrap();
        logged_in.answer().unwrap().good()
    };
    ask();
    // One client sends nothing, one half a request: together they use up the limit of 2. Two seconds after they have connected, they make
    // room for others: a busy machine may need several attempts.
    let rejected = until_some("a third client is rejected, and the two are disconnected", || {
        let (mut silent, mut slow) = (service.web().connect(), service.web().connect());
        slow.send(b"GET /v1/locks HTTP/1.1\r\nhost").unwrap();
        let answer = service.web().get("/healthz");
        ask();
        (answer.status != 200 && silent.until_closed().is_empty() && slow.until_closed().is_empty()).then_some(answer)
    });
    assert_eq!((rejected.status, rejected.header("connection")), (503, Some("close")));
    assert!(rejected.problem().starts_with("OVERLOADED "), "{rejected:?}");
    // Both slots are free again, and the user's connection still works.
    service.web().get("/healthz").good();
    ask();
}
