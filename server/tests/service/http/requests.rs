//! Valid requests, and changes to them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

/// A request in its parts.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: String,
    path: String,
    head: Vec<String>,
    body: Option<String>,
}

impl Request {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n", self.method, self.path);
        self.head.iter().for_each(|line| head += &format!("{line}\r\n"));
        let length = self.body.as_ref().map(|body| format!("content-length: {}\r\n", body.len()));
        format!("{head}{}\r\n{}", length.unwrap_or_default(), self.body.as_deref().unwrap_or_default()).into_bytes()
    }
}

/// A method, a path and a body.
pub(crate) type ValidRequest = (&'static str, String, Option<Value>);

/// Returns valid requests. The session exists, and holds a lock that no request names, so that nothing waits.
pub(crate) fn valid_requests(session: u64) -> Vec<ValidRequest> {
    let hour = 3_600_000;
    let permits = json!({ "permits": { "count": 1, "of": 3 } });
    let requests = [
        ("POST", "/v1/sessions", Some(json!({ "ttl_ms": hour, "label": "x" }))),
        ("POST", &format!("/v1/sessions/{session}/keepalive"), None),
        ("POST", "/v1/sessions/keepalive", Some(json!({ "sessions": [session, 2] }))),
        ("DELETE", "/v1/sessions/2", None),
        ("POST", "/v1/locks/acquire", Some(json!({ "locks": ["a", "b"], "ttl_ms": hour, "wait_ms": 1 }))),
        (
            "POST",
            "/v1/locks/acquire",
            Some(json!({ "locks": ["c"], "session": session, "delay_ms": 5, "request": 7 })),
        ),
        ("POST", "/v1/locks/acquire", Some(json!({ "locks": ["d"], "ttl_ms": hour, "mode": "shared" }))),
        ("POST", "/v1/locks/acquire", Some(json!({ "locks": ["e"], "ttl_ms": hour, "mode": permits }))),
        ("POST", "/v1/locks/release", Some(json!({ "lock": "a", "token": 1, "session": session, "request": 8 }))),
        ("POST", "/v1/locks/cancel", Some(json!({ "session": session, "request": 9 }))),
        ("GET", "/v1/locks?prefix=a&cursor=0&count=5", None),
        ("GET", "/v1/locks/show?name=a%2Fb", None),
        ("GET", "/v1/locks/watch?prefix=a", None),
        ("POST", "/v1/locks/break", Some(json!({ "lock": "a", "token": 1, "reason": "r", "by": "b" }))),
        ("POST", "/v1/locks/resize", Some(json!({ "lock": "e", "permits": 4 }))),
        ("POST", "/v1/tokens/raise", Some(json!({ "above": 4 }))),
        ("POST", "/v1/elections/campaign", Some(json!({ "name": "f", "ttl_ms": hour, "value": "v", "wait_ms": 1 }))),
        ("POST", "/v1/elections/publish", Some(json!({ "name": "f", "session": session, "token": 1, "value": "v" }))),
        ("GET", "/v1/elections/leader?name=f", None),
        ("GET", "/healthz", None),
        ("GET", "/metrics", None),
        ("GET", "/openapi.json", None),
    ];
    requests.map(|(method, path, body)| (method, path.to_owned(), body)).into()
}

/// Returns JSON values for a body, mostly invalid ones.
pub(crate) fn anything() -> impl Strategy<Value = Value> {
    let odd = [
        "null",
        "true",
        "0",
        "1",
        "-1",
        "1.5",
        "1e300",
        "9007199254740992",
        "18446744073709551615",
        "3888000001",
        "\"\"",
        "\"1\"",
        "\"a\\u0000b\"",
        "\"$mine\"",
        "\"\\u202e\"",
        "[]",
        "{}",
        "[[[[1]]]]",
        "[1,1]",
        "[\"a\",\"a\"]",
        "{\"permits\":{\"count\":4,\"of\":3}}",
        "\"shared\"",
    ];
    prop_oneof![
        6 => select(odd.to_vec()).prop_map(|text| serde_json::from_str(text).expect("JSON")),
        1 => any::<String>().prop_map(Value::from),
        1 => (0usize..5000).prop_map(|length| "x".repeat(length).into()),
        1 => any::<i64>().prop_map(Value::from),
    ]
}

/// A change to the parts of a request.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Put(Index, Value),
    Drop(Index),
    Twice(Index),
    Add(String, Value),
    Method(&'static str),
    Path(&'static str),
    Query(&'static str),
    Head(String),
    Kind(&'static str),
    Nest(u16),
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let heads = [
        "content-length: 5",
        "content-length: -1",
        "transfer-encoding: chunked",
        "transfer-encoding: x",
        "expect: 100-continue",
        "upgrade: h2c",
        "authorization: Basic YTpi",
        "authorization:",
        "host: y",
        "accept: text/html",
        "x:",
        "range: bytes=0-1",
        "if-none-match: *",
        "content-encoding: gzip",
        "connection: upgrade",
    ];
    let kinds = [
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "text/plain",
        "",
        "application/jsonx",
    ];
    prop_oneof![
        6 => (any::<Index>(), anything()).prop_map(|(at, value)| Change::Put(at, value)),
        1 => any::<Index>().prop_map(Change::Drop),
        1 => any::<Index>().prop_map(Change::Twice),
        1 => ("[a-z_]{1,8}", anything()).prop_map(|(name, value)| Change::Add(name, value)),
        1 => select(&["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "X"][..])
            .prop_map(Change::Method),
        3 => select(&["/", "//", "/v1/locks/", "/v1/sessions/0", "/v1/sessions/%ff", "*", "/v1/sessions/-1/keepalive",
            "/v1/sessions/99/keepalive", "/v1/sessions/18446744073709551616/keepalive", "/v1/sessions/%ff/keepalive",
            "/v1/sessions//keepalive", "/v1/../metrics", "http://x/v1/locks", "/v1/locks/show/a"][..])
            .prop_map(Change::Path),
        1 => select(&["?", "?name=", "?name=%00", "?name=%ff", "?name=a&name=b", "?count=99999999999", "?prefix=%E2%80%AE",
            "?cursor=-1", "?x=1", "?&&&", "?name=a+b", "#name=a"][..])
            .prop_map(Change::Query),
        1 => select(heads.to_vec()).prop_map(|line| Change::Head(line.to_owned())),
        1 => select(kinds.to_vec()).prop_map(Change::Kind),
        1 => (1u16..300).prop_map(Change::Nest),
    ]
}

/// Applies changes to a request.
pub(crate) fn changed((method, path, body): &ValidRequest, changes: &[Change]) -> Request {
    let mut fields: Vec<(String, Value)> =
        body.as_ref().and_then(Value::as_object).map_or_else(Vec::new, |map: &Map<String, Value>| {
            map.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
        });
    let mut request = Request { method: (*method).to_owned(), path: path.clone(), head: Vec::new(), body: None };
    let (mut kind, mut nested) = ("application/json", 0);
    for change in changes {
        match change {
            Change::Put(at, value) if !fields.is_empty() => at.get_mut(&mut fields[..]).1 = value.clone(),
            Change::Drop(at) if !fields.is_empty() => drop(fields.remove(at.index(fields.len()))),
            Change::Twice(at) if !fields.is_empty() => fields.push(at.get(&fields).clone()),
            Change::Put(..) | Change::Drop(_) | Change::Twice(_) => {}
            Change::Add(name, value) => fields.push((name.clone(), value.clone())),
            Change::Method(other) => request.method = (*other).to_owned(),
            Change::Path(other) => request.path = (*other).to_owned(),
            Change::Query(query) => {
                request.path = request.path.split('?').next().unwrap_or_default().to_owned() + query;
            }
            Change::Head(line) => request.head.push(line.clone()),
            Change::Kind(other) => kind = other,
            Change::Nest(depth) => nested = usize::from(*depth),
        }
    }
    if body.is_some() || !fields.is_empty() {
        let text: Vec<_> = fields.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
        let text = format!("{{{}}}", text.join(","));
        request.body = Some(format!("{}{text}{}", "[".repeat(nested), "]".repeat(nested)));
        request.head.push(format!("content-type: {kind}"));
    }
    request
}

/// A change to bytes.
#[derive(Debug, Clone)]
pub(crate) enum Damage {
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Cut(Index, u8),
    Repeat(Index, u8),
    End(Index),
}

pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let bytes = prop_oneof![
        vec(any::<u8>(), 1..6),
        select(vec!["\r\n", "\n", "\0", "\r\n\r\n", " ", ":", "{", "\"", "\u{ff}", "HTTP/1.1"])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop_oneof![
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (any::<Index>(), bytes).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Damage::Cut(at, length)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, length)| Damage::Repeat(at, length)),
        any::<Index>().prop_map(Damage::End),
    ]
}

pub(crate) fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        if bytes.is_empty() {
            break;
        }
        let whole = bytes.len();
        let span = |at: &Index, length: u8| at.index(whole)..(at.index(whole) + usize::from(length)).min(whole);
        match damage {
            Damage::Flip(at, bit) => *at.get_mut(&mut bytes[..]) ^= 1 << bit,
            Damage::Insert(at, more) => drop(bytes.splice(at.index(whole)..at.index(whole), more.iter().copied())),
            Damage::Cut(at, length) => drop(bytes.drain(span(at, *length))),
            Damage::Repeat(at, length) => {
                let again = bytes[span(at, *length)].to_vec();
                drop(bytes.splice(at.index(whole)..at.index(whole), again));
            }
            Damage::End(at) => bytes.truncate(at.index(whole)),
        }
    }
    bytes
}
