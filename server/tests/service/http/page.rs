//! The live page below its scripts: its stream, its logins, and requests of other sites.

use std::net::SocketAddr;

use palisade_server::access::{Rule, Secret, User, Users, Verb};
use serde_json::{Value, json};

use super::client::Raw;
use super::test_server::TestServer;

/// Reads the stream of a page: the name and the content of each message.
fn stream(address: SocketAddr, cookie: &str) -> impl Iterator<Item = (String, Value)> + use<> {
    let request =
        format!("GET /page/stream HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: {cookie}\r\n\r\n");
    let mut lines = Raw::send(address, request.as_bytes()).lines();
    std::iter::from_fn(move || {
        let name = lines.find_map(|line| Some(line.strip_prefix("event: ")?.to_owned()))?;
        let data = lines.find_map(|line| Some(line.strip_prefix("data: ")?.to_owned()))?;
        Some((name, serde_json::from_str(&data).expect("a message is JSON")))
    })
}

/// Waits for a row of this lock.
fn row(messages: &mut impl Iterator<Item = (String, Value)>, lock: &str) -> Value {
    let rows = messages
        .by_ref()
        .filter(|(name, _)| name == "rows")
        .flat_map(|(_, message)| message["rows"].as_array().cloned().unwrap_or_default());
    rows.into_iter().find(|row| row["name"] == lock).expect("the stream goes on")
}

/// Sends what the page's scripts send, with more headers. Returns the status and the cookie.
fn post(address: SocketAddr, path: &str, more: &str, body: &Value) -> (u16, Option<String>) {
    let mut raw = Raw::post_with(address, path, more, body);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut raw.stream, &mut text).expect("an answer in time");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let cookie = text.lines().find_map(|line| line.strip_prefix("set-cookie: "));
    (status, cookie.and_then(|cookie| Some(cookie.split_once(';')?.0.to_owned())))
}

const MARK: &str = "x-palisade-page: 1\r\n";

/// Users that may observe one prefix each, one that may nothing, and one that may everything; with their secrets.
fn users() -> (Users, [(&'static str, String); 3]) {
    let made = [("a", Some(("a/", Verb::Observe))), ("powerless", None), ("admin", Some(("", Verb::Admin)))].map(
        |(name, rule)| {
            let secret = Secret::random().expect("random bytes");
            let rules = rule.map(|(prefix, verb)| Rule { verbs: vec![verb], prefix: prefix.to_owned() });
            let user = User::new(name, Some(secret.hash()), rules.into_iter().collect()).expect("a user");
            (user, (name, secret.reveal().to_owned()))
        },
    );
    let secrets = made.each_ref().map(|(_, secret)| secret.clone());
    (Users::new(made.map(|(user, _)| user).into()).expect("different names"), secrets)
}

fn log_in(server: &TestServer, (user, secret): &(&str, String)) -> String {
    let (status, cookie) = post(server.address(), "/page/login", MARK, &json!({ "user": user, "secret": secret }));
    assert_eq!(status, 204);
    cookie.expect("a cookie")
}

#[test]
fn a_page_gets_all_locks_and_then_their_changes() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(60_000);
    let first = client.hold("orders/1", session);
    let mut page = stream(server.address(), "");
    assert_eq!(page.next().map(|(name, _)| name), Some("start".to_owned()));
    let shown = row(&mut page, "orders/1");
    assert_eq!((&shown["holders"][0]["token"], &shown["holders"][0]["ttl"]), (&json!(first), &json!(60_000)));
    let second = client.hold("orders/2", session);
    assert_eq!(row(&mut page, "orders/2")["holders"][0]["token"], second);
    client.release("orders/1", first);
    let gone = page.find(|(name, message)| name == "rows" && message["gone"] == json!(["orders/1"]));
    assert!(gone.is_some(), "the stream goes on");
}

#[test]
fn other_sites_change_nothing() {
    let server = TestServer::new();
    let client = server.client();
    let token = client.hold("orders/1", client.open(60_000));
    let body = json!({ "lock": "orders/1", "reason": "a test" });
    let foreign = format!("{MARK}origin: https://evil.example\r\n");
    for more in ["", foreign.as_str(), "origin: http://localhost\r\n"] {
        assert_eq!(post(server.address(), "/page/break", more, &body).0, 403, "{more}");
    }
    assert_eq!(client.show("orders/1")["holders"][0]["token"], token);
    assert_eq!(post(server.address(), "/page/break", MARK, &body).0, 200);
    assert_eq!(client.show("orders/1")["holders"], json!([]));
}

#[test]
fn a_reader_sees_what_its_user_may_observe() {
    let (users, [a, powerless, admin]) = users();
    let server = TestServer::of(users);
    let client = server.client().as_user(admin.0, &admin.1);
    let session = client.open(60_000);
    let mut page = stream(server.address(), &log_in(&server, &a));
    client.hold("b/1", session);
    client.hold("a/1", session);
    client.hold("b/2", session);
    client.hold("a/2", session);
    // Both may come in one message.
    let mut expected = vec!["a/1", "a/2"];
    while !expected.is_empty() {
        let (_, message) = page.next().expect("the stream goes on");
        expected.retain(|name| !message.to_string().contains(name));
    }
    for (_, message) in stream(server.address(), &log_in(&server, &a)) {
        assert!(!message.to_string().contains("\"b/"), "{message}");
        if message["complete"] == true {
            break;
        }
    }
    // The numbers are those of all locks: a user without any right gets none.
    let request = format!(
        "GET /page/stream HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: {}\r\n\r\n",
        log_in(&server, &powerless)
    );
    assert_eq!(Raw::send(server.address(), request.as_bytes()).answer().code(), "DENIED");
    let request = "GET /page/stream HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(Raw::send(server.address(), request.as_bytes()).answer().code(), "NOAUTH");
}

#[test]
fn a_logout_ends_the_streams_of_its_login() {
    let (users, [_, _, admin]) = users();
    let server = TestServer::of(users);
    let cookie = log_in(&server, &admin);
    let page = stream(server.address(), &cookie);
    let more = format!("{MARK}cookie: {cookie}\r\n");
    assert_eq!(post(server.address(), "/page/logout", &more, &json!({})).0, 204);
    // It ends: otherwise the numbers of each second would go on.
    page.for_each(drop);
    let me = format!("GET /page/me HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: {cookie}\r\n\r\n");
    assert_eq!(Raw::send(server.address(), me.as_bytes()).answer().json()["login"], true);
}
