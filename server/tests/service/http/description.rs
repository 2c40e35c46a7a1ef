//! The OpenAPI description is true: it has exactly the served paths, and real answers have the documented shapes.

use palisade_server::access::{Rule, Secret, User, Users, Verb};
use serde_json::{Value, json};

use super::client::{Answer, Client, events};
use super::test_server::TestServer;

/// All paths. A new path must be added here and to `docs/http.md`.
const PATHS: &[(&str, &str)] = &[
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/readyz"),
    ("GET", "/v1/keys"),
    ("GET", "/v1/elections/leader"),
    ("GET", "/v1/locks"),
    ("GET", "/v1/locks/show"),
    ("GET", "/v1/locks/watch"),
    ("POST", "/v1/elections/campaign"),
    ("POST", "/v1/elections/publish"),
    ("POST", "/v1/locks/acquire"),
    ("POST", "/v1/locks/break"),
    ("POST", "/v1/locks/cancel"),
    ("POST", "/v1/locks/release"),
    ("POST", "/v1/locks/resize"),
    ("POST", "/v1/locks/sign"),
    ("POST", "/v1/sessions"),
    ("POST", "/v1/sessions/keepalive"),
    ("POST", "/v1/sessions/{id}/keepalive"),
    ("POST", "/v1/tokens/raise"),
    ("DELETE", "/v1/sessions/{id}"),
];

fn description(client: &Client) -> Value {
    client.get("/openapi.json").good()
}

/// Follows a reference.
fn resolved<'a>(all: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => all.pointer(path.trim_start_matches('#')).unwrap_or_else(|| panic!("{path} is not there")),
        None => schema,
    }
}

/// Finds wrong types, missing and unknown fields of a value.
fn faults(all: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let schema = resolved(all, schema);
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = choices.iter().any(|choice| faults(all, choice, value, at).is_empty());
        return if fits { Vec::new() } else { vec![format!("{at}: {value} is none of {choices:?}")] };
    }
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = match &schema["type"] {
        Value::Array(types) => types.iter().any(|one| one == is),
        one => one == is,
    };
    if !fits {
        return vec![format!("{at}: {value} is not of type {}", schema["type"])];
    }
    match value {
        Value::Array(items) => items.iter().flat_map(|item| faults(all, &schema["items"], item, at)).collect(),
        Value::Object(fields) => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let missing = required.iter().filter_map(Value::as_str).filter(|name| !fields.contains_key(*name));
            let missing = missing.map(|name| format!("{at}: {name} is missing"));
            let wrong = fields.iter().flat_map(|(name, field)| match schema["properties"].get(name) {
                Some(schema) => faults(all, schema, field, &format!("{at}.{name}")),
                None => vec![format!("{at}.{name} is not documented")],
            });
            missing.chain(wrong).collect()
        }
        _ => Vec::new(),
    }
}

#[track_caller]
fn conforms(all: &Value, method: &str, path: &str, answer: &Answer) {
    let responses = &all["paths"][path][method.to_lowercase()]["responses"];
    let documented = responses.get(answer.status.to_string()).unwrap_or(&responses["default"]);
    assert!(!documented.is_null(), "{method} {path} is not documented to answer {}", answer.status);
    let Some(content) = documented["content"].as_object() else {
        assert_eq!(answer.body, "", "{method} {path}");
        return;
    };
    let schema = &content[answer.content_type.as_str()]["schema"];
    let faults = faults(all, schema, &answer.json(), "body");
    assert!(faults.is_empty(), "{method} {path}: {faults:?} in {}", answer.body);
}

#[test]
fn every_path_is_described_and_every_described_path_is_served() {
    let server = TestServer::new();
    let client = server.client();
    let all = description(&client);
    let mut described = Vec::new();
    for (path, item) in all["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys() {
            described.push((method.to_uppercase(), path.clone()));
        }
    }
    described.sort();
    let mut known: Vec<_> = PATHS.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    known.sort();
    assert_eq!(described, known);
    for (method, path) in PATHS {
        let path = path.replace("{id}", "999");
        let answer = match *method {
            "GET" if path == "/v1/locks/watch" => client.get("/v1/locks/watch?unknown=1"),
            "GET" => client.get(&path),
            "POST" => client.post(&path, &json!({})),
            _ => client.delete(&path),
        };
        let is_missing = answer.status >= 400 && ["NOTFOUND", "METHOD"].contains(&answer.code().as_str());
        assert!(!is_missing, "{method} {path}: {answer:?}");
    }
}

/// Sends a request with a valid body or query.
fn ask(client: &Client, method: &str, path: &str, session: u64) -> Answer {
    let body = match path {
        "/v1/sessions" => json!({ "ttl_ms": 1000 }),
        "/v1/sessions/keepalive" => json!({ "sessions": [session] }),
        "/v1/locks/acquire" => json!({ "locks": ["a"], "ttl_ms": 1000 }),
        "/v1/locks/release" => json!({ "lock": "a", "token": 1 }),
        "/v1/locks/cancel" => json!({ "session": session, "request": 1 }),
        "/v1/locks/break" => json!({ "lock": "a", "reason": "r" }),
        "/v1/locks/sign" => json!({ "lock": "a", "token": 1 }),
        "/v1/locks/resize" => json!({ "lock": "a", "permits": 3 }),
        "/v1/tokens/raise" => json!({ "above": 3 }),
        "/v1/elections/campaign" => json!({ "name": "a", "ttl_ms": 1000, "value": "v" }),
        "/v1/elections/publish" => json!({ "name": "a", "session": session, "token": 1, "value": "v" }),
        _ => json!({}),
    };
    let path = path.replace("{id}", &session.to_string());
    match method {
        "GET" if ["/v1/locks/show", "/v1/elections/leader"].contains(&path.as_str()) => {
            client.get(&format!("{path}?name=a"))
        }
        "GET" => client.get(&path),
        "POST" => client.post(&path, &body),
        _ => client.delete(&path),
    }
}

#[test]
fn the_described_authentication_is_the_real_one() {
    let (secret, none) = (Secret::random().expect("randomness"), Secret::random().expect("randomness"));
    let all = Rule { verbs: vec![Verb::Admin], prefix: String::new() };
    let admin = User::new("admin", Some(secret.hash()), vec![all]).expect("a user");
    let powerless = User::new("none", Some(none.hash()), Vec::new()).expect("a user");
    let server = TestServer::of(Users::new(vec![admin, powerless]).expect("users"));
    let anonymous = server.client();
    let (admin, powerless) = (anonymous.as_user("admin", secret.reveal()), anonymous.as_user("none", none.reveal()));
    let all = &description(&anonymous);
    assert_eq!(all["security"], json!([{ "secret": [] }, { "certificate": [] }, {}]));
    let schemes = &all["components"]["securitySchemes"];
    assert_eq!((&schemes["secret"]["type"], &schemes["secret"]["scheme"]), (&json!("http"), &json!("basic")));
    assert_eq!(schemes["certificate"]["type"], "mutualTLS");
    let session = admin.open(3_600_000);
    for (method, path) in PATHS {
        let operation = &all["paths"][path][method.to_lowercase()];
        let answer = ask(&anonymous, method, path, session);
        if operation["security"] == json!([]) {
            assert_eq!(answer.status, 200, "{method} {path} needs no authentication");
            continue;
        }
        conforms(all, method, path, &answer);
        assert_eq!((answer.status, answer.code().as_str()), (401, "NOAUTH"), "{method} {path}");
        let answer = ask(&powerless, method, path, session);
        conforms(all, method, path, &answer);
        assert_eq!((answer.status, answer.code().as_str()), (403, "DENIED"), "{method} {path}");
        for status in ["401", "403"] {
            assert!(operation["responses"][status].is_object(), "{method} {path} says nothing about {status}");
        }
    }
    // None of these requests has had any effect.
    assert_eq!(admin.get("/v1/locks").good()["locks"], json!([]));
    admin.post_nothing(&format!("/v1/sessions/{session}/keepalive")).good();
    let metrics = admin.get("/metrics").body;
    assert!(metrics.contains("\npalisade_sessions 1\n"), "{metrics}");
}

#[test]
fn every_path_is_in_the_manual() {
    let manual = include_str!("../../../../docs/http.md");
    for (method, path) in PATHS {
        let row = format!("`{method} {path}");
        assert!(manual.contains(&row), "docs/http.md does not say {row}");
    }
}

#[test]
fn real_answers_have_the_documented_shapes() {
    let server = TestServer::signing();
    let client = server.client();
    let all = &description(&client);
    let mut watch = events(server.address(), "");
    let post = |path: &str, body: Value| {
        let answer = client.post(path, &body);
        conforms(all, "POST", path, &answer);
        answer
    };
    let get = |path: &str, query: &str| conforms(all, "GET", path, &client.get(&format!("{path}{query}")));
    let session = post("/v1/sessions", json!({ "ttl_ms": 3_600_000 })).good()["session"].clone();
    post("/v1/sessions", json!({}));
    post("/v1/sessions/keepalive", json!({ "sessions": [session, 99] }));
    let kept = client.post_nothing(&format!("/v1/sessions/{session}/keepalive"));
    conforms(all, "POST", "/v1/sessions/{id}/keepalive", &kept);
    let token =
        post("/v1/locks/acquire", json!({ "locks": ["a"], "session": session, "delay_ms": 50 })).good()["token"]
            .clone();
    post("/v1/locks/acquire", json!({ "locks": ["a"], "ttl_ms": 3_600_000, "wait_ms": 20 }));
    post("/v1/locks/sign", json!({ "lock": "a", "token": token }));
    post("/v1/locks/sign", json!({ "lock": "b", "token": token }));
    get("/v1/keys", "");
    get("/v1/locks/show", "?name=a");
    get("/v1/locks/show", "?name=unused");
    post("/v1/locks/break", json!({ "lock": "a", "token": token, "reason": "x" }));
    let permits = json!({ "permits": { "count": 1, "of": 2 } });
    post("/v1/locks/acquire", json!({ "locks": ["p"], "session": session, "mode": permits }));
    post("/v1/locks/resize", json!({ "lock": "p", "permits": 3 }));
    post("/v1/tokens/raise", json!({ "above": 100 }));
    post("/v1/tokens/raise", json!({ "above": 4_503_599_627_370_497_u64 }));
    let office = json!({ "name": "boss", "session": session, "value": "x" });
    let token = post("/v1/elections/campaign", office).good()["token"].clone();
    post("/v1/elections/publish", json!({ "name": "boss", "session": session, "token": token, "value": "y" }));
    get("/v1/elections/leader", "?name=boss");
    get("/v1/elections/leader", "?name=none");
    get("/v1/locks", "?prefix=");
    post("/v1/locks/release", json!({ "lock": "boss", "token": token }));
    post("/v1/locks/cancel", json!({ "session": session, "request": 1 }));
    conforms(all, "DELETE", "/v1/sessions/{id}", &client.delete(&format!("/v1/sessions/{session}")));
    conforms(all, "DELETE", "/v1/sessions/{id}", &client.delete(&format!("/v1/sessions/{session}")));
    get("/healthz", "");
    get("/readyz", "");

    // A grant whose session expires shows the last kinds of events.
    post("/v1/locks/acquire", json!({ "locks": ["late"], "ttl_ms": 100, "delay_ms": 50 }));
    let mut seen = Vec::new();
    while seen.last() != Some(&json!("delay-ended")) {
        let event = watch.next().expect("the watch goes on");
        let faults = faults(all, &json!({ "$ref": "#/components/schemas/Event" }), &event, "event");
        assert!(faults.is_empty(), "{faults:?} in {event}");
        seen.push(event["event"].clone());
    }
    seen.sort_by_key(Value::to_string);
    seen.dedup();
    let kinds = ["delay-ended", "ended", "granted", "left-queue", "published", "queued", "resized", "withheld"];
    assert_eq!(seen, kinds);
}
