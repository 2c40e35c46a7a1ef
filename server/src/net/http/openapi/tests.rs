//! Compares the description with the code: the operations, and the schemas of requests and responses.

use std::collections::{BTreeMap, BTreeSet};

use axum::routing::MethodFilter;
use palisade_core::{LockName, Mode, SessionId, Token, Ttl};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::super::problem::Problem;
use super::super::routes::operations;
use super::super::shapes::{
    Acquire, Break, Broken, Campaign, Cancel, Cancelled, Election, Event, Granted, Health, KeepAlive, Kept,
    KeptAlive, Leader, Locks, Named, OpenSession, Page, Prefix, Publish, RaiseTokens, Release, Resize, Session,
    Shown, Sign, Signed, TokensRaised,
};
use super::*;
use crate::page::lock::{Ended, Holder, Lock, Waiter};
use crate::sign::{PublicKey, PublicKeys};

/// Returns the schema of a type, as its refusals of wrong values show it.
fn accepted(refusal: &dyn Fn(Value) -> String) -> Value {
    let wrong = refusal(json!(false));
    let schema = match wrong.split_once("expected ").map_or("", |(_, expected)| expected) {
        "u32" => json!({ "type": "integer", "format": "int32", "minimum": 0 }),
        "u64" => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
        "a string" | "a lock's name" => json!({ "type": "string" }),
        "a sequence" => json!({ "type": "array", "items": accepted(&|item| refusal(json!([item]))) }),
        "string or map" => {
            let variants = known_names(&refusal(json!("?"))).into_iter().map(|name| {
                if refusal(json!(name)).ends_with("expected newtype variant") {
                    let properties = json!({ &name: accepted(&|value| refusal(json!({ &name: value }))) });
                    json!({ "type": "object", "required": [name], "properties": properties })
                } else {
                    json!({ "type": "string", "enum": [name] })
                }
            });
            json!({ "oneOf": variants.collect::<Vec<_>>() })
        }
        name if name.starts_with("struct ") => {
            let names = known_names(&refusal(json!({ "?": 0 })));
            let field = |name: &String| (name.clone(), accepted(&|value| refusal(json!({ name: value }))));
            let properties: Map<_, _> = names.iter().map(field).collect();
            let is_required = |name: &&String| {
                let others = properties.iter().filter(|(other, _)| other != name);
                let others: Map<_, _> = others.map(|(other, schema)| (other.clone(), sample(schema))).collect();
                refusal(others.into()) == format!("missing field `{name}`")
            };
            let required: Vec<_> = names.iter().filter(is_required).collect();
            json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
        }
        other => panic!("{wrong}: a request has {other:?}, which this test does not know"),
    };
    if refusal(Value::Null).starts_with("invalid type: null") { schema } else { nullable(schema) }
}

/// Returns the names that a message offers instead of an unknown one.
fn known_names(refusal: &str) -> Vec<String> {
    refusal.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

/// Returns a value that a schema of [`accepted`] allows.
fn sample(schema: &Value) -> Value {
    match (&schema["items"], &schema["oneOf"], schema["type"].to_string()) {
        (_, Value::Array(variants), _) => variants[0]["enum"][0].clone(),
        (Value::Object(_), ..) => json!([sample(&schema["items"])]),
        (.., kind) if kind.contains("integer") => json!(1),
        _ => json!("a"),
    }
}

fn nullable(mut schema: Value) -> Value {
    if schema["type"] == "object" {
        return json!({ "oneOf": [schema, { "type": "null" }] });
    }
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

/// Returns the schema that these values have in common. A field is optional that one of them lacks.
fn inferred(values: &[&Value]) -> Value {
    let present: Vec<&Value> = values.iter().copied().filter(|value| !value.is_null()).collect();
    let schema = match present[0] {
        Value::Bool(_) => json!({ "type": "boolean" }),
        Value::String(_) => json!({ "type": "string" }),
        Value::Number(number) => {
            let is_small = number.as_u64() <= Some(i32::MAX as u64);
            json!({ "type": "integer", "format": if is_small { "int32" } else { "int64" }, "minimum": 0 })
        }
        Value::Array(_) => {
            let items: Vec<_> = present.iter().filter_map(|value| value.as_array()).flatten().collect();
            json!({ "type": "array", "items": inferred(&items) })
        }
        Value::Object(_) => {
            let names: BTreeSet<_> =
                present.iter().filter_map(|value| value.as_object()).flat_map(Map::keys).collect();
            let of = |name: &str| -> Vec<_> { present.iter().map(|value| &value[name]).collect() };
            let required: Vec<_> = names.iter().filter(|name| !of(name).contains(&&Value::Null)).collect();
            let properties: Map<_, _> = names.iter().map(|name| ((*name).clone(), inferred(&of(name)))).collect();
            json!({ "type": "object", "required": required, "properties": properties })
        }
        Value::Null => unreachable!("the values are present"),
    };
    if present.len() == values.len() { schema } else { nullable(schema) }
}

/// Returns the schema of a body.
fn body<T: DeserializeOwned>() -> Value {
    accepted(&|value| serde_json::from_value::<T>(value).err().map(|error| error.to_string()).unwrap_or_default())
}

/// Returns the schema of the parameters in a query, in which nothing is null.
fn query<T: DeserializeOwned>() -> Value {
    let mut schema = body::<T>();
    for (_, field) in schema["properties"].as_object_mut().into_iter().flatten() {
        if let Some(kind) = field["type"].get(0).cloned() {
            field["type"] = kind;
        }
    }
    schema
}

/// Returns the schema of a response. One value has all fields, and one only those that are always there.
fn response<T: Serialize>(values: &[T]) -> Value {
    let values: Vec<_> = values.iter().map(|value| serde_json::to_value(value).expect("JSON")).collect();
    inferred(&values.iter().collect::<Vec<_>>())
}

/// Every operation, with the schemas of its request and of its response. A 64-bit number is above 2^31 here, a smaller
/// one is not.
fn schemas() -> Vec<(&'static str, Value, Value)> {
    const BIG: u64 = 3 << 30;
    let text = || "text".to_owned();
    let (token, session) = (Token::new(BIG).expect("a token"), SessionId::new(BIG).expect("a session"));
    let ttl_ms = Ttl::from_ms(BIG).expect("a TTL");
    let holder = Holder {
        permits: Some(1),
        session: Some(BIG),
        label: Some(text()),
        held_for_ms: Some(BIG),
        time_left_ms: Some(BIG),
        ttl_ms: Some(BIG),
        ..Holder::new(BIG, Mode::Shared)
    };
    let waiter = Waiter {
        permits: Some(1),
        waits_for_ms: Some(BIG),
        time_left_ms: Some(BIG),
        ttl_ms: Some(BIG),
        ..Waiter::new(BIG, text(), Mode::Shared)
    };
    let lock = Lock {
        name: text(),
        limit: Some(1),
        holder_count: 1,
        waiter_count: 1,
        holders: vec![holder, Holder::new(BIG, Mode::Shared)],
        waiters: vec![waiter, Waiter::new(BIG, text(), Mode::Shared)],
        cursor: 1,
        value: Some(text()),
        history: vec![Ended { token: BIG, session: BIG, label: text(), how: text() }],
    };
    let locks = vec![lock, Lock::default()];
    let event = Event {
        event: text(),
        locks: vec![text()],
        session: Some(BIG),
        token: Some(BIG),
        why: Some(text()),
        how: Some(text()),
        delay_ms: Some(BIG),
        value: Some(text()),
        limit: Some(1),
        count: Some(BIG),
    };
    let leader = Leader { value: text(), token: BIG, session: BIG, label: text() };
    let key = PublicKey { kty: "", crv: "", alg: "", used_for: "", kid: text(), x: text() };
    let keys = PublicKeys { issuer: text(), keys: vec![key] };
    let kept = vec![Kept { session, ttl_ms: Some(ttl_ms) }, Kept { session, ttl_ms: None }];
    let open = response(&[Session { session, ttl_ms }]);
    let lock_names = vec![LockName::new("a").expect("a name")];
    let granted = response(&[Granted { token, session, ttl_ms: BIG, locks: lock_names }]);
    let health = response(&[Health { ok: true }]);
    vec![
        ("post /v1/sessions", body::<OpenSession>(), open.clone()),
        ("post /v1/sessions/keepalive", body::<KeepAlive>(), response(&[KeptAlive { sessions: kept }])),
        ("post /v1/sessions/{id}/keepalive", Value::Null, open),
        ("delete /v1/sessions/{id}", Value::Null, Value::Null),
        ("post /v1/locks/acquire", body::<Acquire>(), granted.clone()),
        ("post /v1/locks/release", body::<Release>(), Value::Null),
        (
            "post /v1/locks/cancel",
            body::<Cancel>(),
            response(&[Cancelled { granted: Some(token) }, Cancelled { granted: None }]),
        ),
        ("get /v1/locks/show", query::<Shown>(), response(&locks)),
        ("get /v1/locks", query::<Page>(), response(&[Locks { cursor: 1, locks }])),
        ("get /v1/locks/watch", query::<Prefix>(), response(&[event, Event::default()])),
        ("post /v1/locks/break", body::<Break>(), response(&[Broken { grants: 1, moved_to: token }])),
        ("post /v1/locks/resize", body::<Resize>(), Value::Null),
        ("post /v1/locks/sign", body::<Sign>(), response(&[Signed { signed_token: text() }])),
        ("post /v1/tokens/raise", body::<RaiseTokens>(), response(&[TokensRaised { raised: true }])),
        ("post /v1/elections/campaign", body::<Campaign>(), granted),
        ("post /v1/elections/publish", body::<Publish>(), Value::Null),
        (
            "get /v1/elections/leader",
            query::<Named>(),
            response(&[Election { leader: Some(leader) }, Election { leader: None }]),
        ),
        ("get /metrics", Value::Null, response(&[text()])),
        ("get /healthz", Value::Null, health.clone()),
        ("get /readyz", Value::Null, health),
        ("get /openapi.json", Value::Null, response(&[json!({})])),
        ("get /v1/keys", Value::Null, response(&[keys])),
    ]
}

/// Returns a schema with the references replaced, and without texts, empty parts and order.
fn plain(description: &Value, schema: &Value) -> Value {
    let reference = schema.get("$ref").and_then(Value::as_str);
    match reference.and_then(|path| description.pointer(path.trim_start_matches('#'))).unwrap_or(schema) {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| !["description", "example"].contains(&name.as_str()));
            let fields = fields.map(|(name, value)| (name.clone(), plain(description, value)));
            fields.filter(|(_, value)| *value != json!([]) && *value != json!({})).collect()
        }
        Value::Array(values) => {
            let mut values: Vec<_> = values.iter().map(|value| plain(description, value)).collect();
            values.sort_by_key(Value::to_string);
            values.into()
        }
        other => other.clone(),
    }
}

/// Returns the described schema of a request: of its body, or of the parameters in its query.
fn described_request(operation: &Value) -> Value {
    if let Some(body) = operation.get("requestBody") {
        assert_eq!(body["required"], true);
        return body["content"]["application/json"]["schema"].clone();
    }
    let parameters = operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "query");
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for parameter in parameters {
        properties.insert(parameter["name"].as_str().expect("a name").to_owned(), parameter["schema"].clone());
        required.extend((parameter["required"] == true).then(|| parameter["name"].clone()));
    }
    if properties.is_empty() {
        return Value::Null;
    }
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
}

/// Returns where a description differs from the code.
fn differences(description: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, described: &Value, real: &Value| {
        let (described, real) = (plain(description, described), plain(description, real));
        if described != real {
            found.push(format!("{what}: {described} is described, but {real} is real"));
        }
    };
    compare("version", &description["info"]["version"], &json!(env!("CARGO_PKG_VERSION")));
    let methods = [("get", MethodFilter::GET), ("post", MethodFilter::POST), ("delete", MethodFilter::DELETE)];
    let routed = operations().into_iter().map(|(_, method, path, _)| {
        let (name, _) = methods.into_iter().find(|(_, filter)| *filter == method).expect("a method of this list");
        format!("{name} {path}")
    });
    let routed: BTreeSet<String> = routed.collect();
    let mut described = BTreeMap::new();
    for (path, item) in description["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            described.insert(format!("{method} {path}"), operation);
        }
    }
    compare("operations", &described.keys().cloned().collect(), &routed.iter().cloned().collect());
    let schemas = schemas();
    assert_eq!(schemas.iter().map(|(name, ..)| (*name).to_owned()).collect::<BTreeSet<_>>(), routed);
    let problem = response(&[Problem::bad("text")]);
    for (name, request, answer) in schemas {
        let operation = described.get(name).copied().unwrap_or(&Value::Null);
        compare(name, &described_request(operation), &request);
        let in_path = operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "path");
        let placeholders = name.split(['{', '}']).skip(1).step_by(2);
        compare(name, &in_path.map(|one| one["name"].clone()).collect(), &placeholders.collect());
        for (status, response) in operation["responses"].as_object().into_iter().flatten() {
            let contents = response["content"].as_object();
            let schema = contents.and_then(|contents| contents.values().next()).map(|content| &content["schema"]);
            let real = if status.starts_with('2') { &answer } else { &problem };
            compare(&format!("{name}: {status}"), schema.unwrap_or(&Value::Null), real);
        }
    }
    let text = description.to_string();
    let names = description["components"]["schemas"].as_object().expect("schemas").keys();
    let unused = names.filter(|name| !text.contains(&format!("\"#/components/schemas/{name}\"")));
    found.extend(unused.map(|name| format!("{name} is described, but not used")));
    found
}

#[test]
fn the_description_has_exactly_the_operations_and_fields_of_the_code() {
    let description = serde_json::from_str(DESCRIPTION).expect("JSON");
    assert_eq!(differences(&description), [] as [String; 0]);
}

#[test]
fn a_description_that_differs_from_the_code_is_found() {
    let missing = Value::Null;
    for (at, value) in [
        ("/info/version", json!("0.0.9")),
        ("/paths/~1v1~1keys", missing.clone()),
        ("/paths/~1v1~1keys/get", missing.clone()),
        ("/paths/~1v1~1keys/post", json!({})),
        ("/paths/~1v1~1locks~1show/get/parameters", json!([])),
        ("/paths/~1v1~1locks/get/parameters/0/required", json!(true)),
        ("/paths/~1v1~1sessions~1{id}/delete/parameters/0/name", json!("session")),
        ("/components/schemas/Acquire/properties/session", missing.clone()),
        ("/components/schemas/Acquire/properties/sessions", json!({ "type": "string" })),
        ("/components/schemas/Acquire/properties/wait_ms/type", json!("integer")),
        ("/components/schemas/Acquire/additionalProperties", missing.clone()),
        ("/components/schemas/Release/required", json!(["lock"])),
        ("/components/schemas/Resize/properties/permits/format", json!("int64")),
        ("/components/schemas/HowHeld/oneOf/1/enum", json!(["common"])),
        ("/components/schemas/Permits/properties/of", missing.clone()),
        ("/components/schemas/Waiter/properties/label", missing.clone()),
        ("/components/schemas/Waiter/properties/user", json!({ "type": "string" })),
        ("/components/schemas/Kept/required", json!(["session", "ttl_ms"])),
        ("/components/schemas/Granted/properties/locks/items/type", json!("integer")),
        ("/components/schemas/Problem/properties/detail", missing.clone()),
        ("/components/schemas/Unused", json!({ "type": "string" })),
    ] {
        let mut description: Value = serde_json::from_str(DESCRIPTION).expect("JSON");
        let (parent, key) = at.rsplit_once('/').expect("a path");
        let parent = description.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
        let key = key.replace("~1", "/");
        let before = if value.is_null() { parent.remove(&key) } else { parent.insert(key, value.clone()) };
        assert_ne!(before, Some(value), "{at} is changed");
        assert!(!differences(&description).is_empty(), "{at}");
    }
}
