//! Attacks by clients of both protocols: dead clients that wait, slow bodies, silent connections, long queues, removed
//! users. Each leaves the other clients unharmed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use palisade_server::access::{Rule, Secret, User, Users, Verb};
use palisade_server::{Bounds, Config, HttpBounds};
use serde_json::{Value, json};

use super::client::{Client, Raw, RespConnection, TIMEOUT, events, soon};
use super::test_server::TestServer;

/// The users of a test, who share one secret.
struct TestUsers {
    secret: Secret,
    users: Users,
}

impl TestUsers {
    fn new(users: &[(&str, &[Verb])]) -> TestUsers {
        let secret = Secret::random().expect("randomness");
        let user = |(name, verbs): &(&str, &[Verb])| {
            let rule = Rule { verbs: verbs.to_vec(), prefix: String::new() };
            User::new(name, Some(secret.hash()), vec![rule]).expect("a user")
        };
        let users = Users::new(users.iter().map(user).collect()).expect("users");
        TestUsers { secret, users }
    }

    fn config(&self, bounds: Bounds) -> Config {
        Config { users: Some(self.users.clone()), bounds, ..Config::default() }
    }

    fn client(&self, server: &TestServer, name: &str) -> Client {
        server.client().as_user(name, self.secret.reveal())
    }

    fn connect_resp(&self, server: &TestServer, name: &str) -> RespConnection {
        let mut resp = server.connect_resp();
        assert_eq!(resp.send(&self.login(name)), ["OK"]);
        resp
    }

    fn login(&self, name: &str) -> String {
        format!("AUTH {name} {}", self.secret.reveal())
    }

    /// Removes this user.
    fn remove(&self, others: &[(&str, &[Verb])]) {
        let user = |(name, verbs): &(&str, &[Verb])| {
            let rule = Rule { verbs: verbs.to_vec(), prefix: String::new() };
            User::new(name, Some(self.secret.hash()), vec![rule]).expect("a user")
        };
        self.users.replace(&Users::new(others.iter().map(user).collect()).expect("users"));
    }

    /// Returns the header that authenticates a request.
    fn authorization(&self, server: &TestServer, name: &str) -> String {
        let client = self.client(server, name);
        format!("authorization: {}\r\n", client.authorization().expect("it has one"))
    }
}

/// How a client goes away.
#[derive(Debug, Clone, Copy)]
enum Hangup {
    /// Its process has ended, and the system closes its connections.
    Closed,
    /// Its host resets the connection.
    Reset,
}

impl Hangup {
    const ALL: [Hangup; 2] = [Hangup::Closed, Hangup::Reset];

    fn apply(self, stream: TcpStream) {
        if let Hangup::Reset = self {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("it can be set");
        }
        drop(stream);
    }
}

fn command(words: &str) -> Vec<u8> {
    let words: Vec<_> = words.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}

fn until(events: &mut impl Iterator<Item = Value>, what: &str) -> Value {
    events.find(|event| event["event"] == what).expect("it happens")
}

#[test]
fn a_client_that_dies_while_it_waits_leaves_the_queue_however_much_it_has_sent() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "x");
    let token = client.hold("x", client.open(3_600_000));
    for end in Hangup::ALL {
        for pings in [0, 100, 40_000, 400_000] {
            let mut stream = TcpStream::connect(server.resp_address()).expect("a connection");
            stream.set_write_timeout(Some(TIMEOUT)).expect("a time-out");
            stream.write_all(&command("LOCK ACQUIRE x TTL 3600000 WAIT 3600000")).expect("sent");
            until(&mut events, "queued");
            // The service may have cut it off before all was sent.
            let _ = stream.write_all(&command("PING").repeat(pings));
            end.apply(stream);
            until(&mut events, "left-queue");
        }
    }
    assert_eq!(client.show("x")["waiters"], json!([]));
    client.release("x", token);
    assert_eq!(client.show("x")["holders"], json!([]), "no dead client was granted it");
    server.await_no_resp_connections();
}

#[test]
fn an_http_client_that_dies_while_it_waits_leaves_the_queue_however_much_it_has_sent() {
    let server = TestServer::new();
    let client = server.client();
    let mut events = events(server.address(), "x");
    let token = client.hold("x", client.open(3_600_000));
    let ask = json!({ "locks": ["x"], "ttl_ms": 3_600_000, "wait_ms": 3_600_000 }).to_string();
    let acquire = format!(
        "POST /v1/locks/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ask}",
        ask.len()
    );
    for end in Hangup::ALL {
        for more in [0, 3, 400, 40_000] {
            let pipelined = "GET /v1/locks HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(more);
            let mut raw = Raw::send(server.address(), acquire.as_bytes());
            until(&mut events, "queued");
            let _ = raw.stream.write_all(pipelined.as_bytes());
            end.apply(raw.stream);
            until(&mut events, "left-queue");
        }
    }
    assert_eq!(client.show("x")["waiters"], json!([]));
    client.release("x", token);
    assert_eq!(client.show("x")["holders"], json!([]), "no dead client was granted it");
}

#[test]
fn a_wait_has_an_upper_bound() {
    let server = TestServer::new();
    let mut resp = server.connect_resp();
    for wait in ["18446744073709551615", "3600001"] {
        let reply = resp.send(&format!("LOCK ACQUIRE x TTL 60000 WAIT {wait}"));
        assert_eq!(reply, [format!("LIMIT wait_ms is {wait}, and at most 3600000; nothing is held or queued")]);
    }
    let session = resp.send("SESSION OPEN 60000")[1].clone();
    let reply = resp.send(&format!("CAMPAIGN x SESSION {session} VALUE v WAIT 3600001"));
    assert!(reply[0].starts_with("LIMIT wait_ms"), "{reply:?}");
    let client = server.client();
    for ask in [
        ("/v1/locks/acquire", json!({ "locks": ["x"], "ttl_ms": 60_000, "wait_ms": u64::MAX })),
        ("/v1/elections/campaign", json!({ "name": "x", "ttl_ms": 60_000, "wait_ms": 3_600_001, "value": "v" })),
    ] {
        let answer = client.post(ask.0, &ask.1);
        assert_eq!((answer.status, answer.code().as_str()), (422, "LIMIT"));
    }
    assert_eq!(client.show("x")["holders"], json!([]));
    client.post("/v1/locks/acquire", &json!({ "locks": ["x"], "ttl_ms": 1000, "wait_ms": 3_600_000 })).good();
}

/// Returns a request whose body never arrives completely.
fn half(path: &str, head: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-type: application/json\r\ncontent-length: 90\r\n\r\n{{"
    )
}

#[test]
fn slow_bodies_keep_no_release_out() {
    let users = TestUsers::new(&[("alice", &[Verb::Admin]), ("none", &[])]);
    let bounds = HttpBounds { at_once: 4, ..HttpBounds::default() };
    let server = TestServer::configured(users.config(Bounds::default()), bounds);
    let alice = users.client(&server, "alice");
    let session = alice.open(3_600_000);
    let token = alice.hold("x", session);
    let half = |name: &str| half("/v1/locks/release", &users.authorization(&server, name));
    let slow = |name: &str| (0..20).map(|_| Raw::send(server.address(), half(name).as_bytes())).collect::<Vec<_>>();
    let slow = [slow("none"), slow("alice")];
    // They have been read when requests that came after them are answered.
    for _ in 0..20 {
        alice.post_nothing(&format!("/v1/sessions/{session}/keepalive")).good();
    }
    alice.release("x", token);
    drop(slow);
}

#[test]
fn watches_keep_no_acquire_out() {
    let server = TestServer::with(HttpBounds { waiting: 2, ..HttpBounds::default() });
    let watches: Vec<_> = (0..4).map(|_| events(server.address(), "")).collect();
    let client = server.client();
    client.post("/v1/locks/acquire", &json!({ "locks": ["x"], "ttl_ms": 60_000 })).good();
    drop(watches);
}

#[test]
fn one_user_takes_only_its_share_of_the_requests() {
    let users = TestUsers::new(&[("alice", &[Verb::Admin]), ("bob", &[Verb::Admin])]);
    let bounds = HttpBounds { waiting: 8, ..HttpBounds::default() };
    let server = TestServer::configured(users.config(Bounds::default()), bounds);
    let (alice, bob) = (users.client(&server, "alice"), users.client(&server, "bob"));
    let token = alice.hold("x", alice.open(3_600_000));
    let ask = json!({ "locks": ["x"], "ttl_ms": 60_000, "wait_ms": 3_600_000 });
    let head = users.authorization(&server, "bob");
    let waiting: Vec<_> =
        (0..2).map(|_| Raw::post_with(server.address(), "/v1/locks/acquire", &head, &ask)).collect();
    let waiting_at_x = || alice.show("x")["waiters"].as_array().expect("waiters").len();
    soon("both wait", || (waiting_at_x() == 2).then_some(()));
    assert_eq!(bob.post("/v1/locks/acquire", &json!({ "locks": ["y"], "ttl_ms": 1000 })).code(), "OVERLOADED");
    alice.post("/v1/locks/acquire", &json!({ "locks": ["z"], "ttl_ms": 1000 })).good();
    alice.release("x", token);
    drop(waiting);
}

fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).expect("a connection")).collect()
}

/// Sends a command on a new connection, and returns the answer if the connection is accepted.
fn send_on_new_connection(address: SocketAddr, words: &str) -> Option<(TcpStream, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    stream.write_all(&command(words)).ok()?;
    let mut bytes = [0; 200];
    let count = stream.read(&mut bytes).ok()?;
    let answer = String::from_utf8_lossy(&bytes[..count]).into_owned();
    (answer.starts_with('+')).then_some((stream, answer))
}

/// Sends a request on a new connection, and returns the status if the connection is accepted.
fn status(address: SocketAddr, path: &str, head: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{head}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.split(' ').nth(1)?.parse().ok().filter(|status| *status == 200)
}

#[test]
fn silent_connections_keep_no_login_out() {
    let users = TestUsers::new(&[("alice", &[Verb::Admin])]);
    let bounds = Bounds { strangers: 20, greeting: Duration::from_secs(3600), ..Bounds::default() };
    let server = TestServer::configured(users.config(bounds), HttpBounds::default());
    let mut first = users.connect_resp(&server, "alice");
    let (resp, http) = (silent(server.resp_address(), 60), silent(server.address(), 60));
    let (_second, _) = soon("a login", || send_on_new_connection(server.resp_address(), &users.login("alice")));
    soon("a request", || status(server.address(), "/v1/locks", &users.authorization(&server, "alice")));
    assert_eq!(first.send("PING"), ["PONG"], "a client that has logged in stays");
    drop((resp, http));
}

#[test]
fn silent_connections_keep_no_client_out_where_there_are_no_users() {
    let bounds = Bounds { connections: 20, ..Bounds::default() };
    let server = TestServer::configured(Config { bounds, ..Config::default() }, HttpBounds::default());
    let mut first = server.connect_resp();
    assert_eq!(first.send("PING"), ["PONG"]);
    let silent = silent(server.resp_address(), 60);
    soon("a command", || send_on_new_connection(server.resp_address(), "PING"));
    assert_eq!(first.send("PING"), ["PONG"], "a client that has reply something stays");
    drop(silent);
}

#[test]
fn half_requests_do_not_silence_the_health_check() {
    let server = TestServer::with(HttpBounds { connections: 20, ..HttpBounds::default() });
    let served = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for beginning in [&b""[..], b"GET /hea", served, half("/v1/sessions", "").as_bytes()] {
        let mut attack = silent(server.address(), 60);
        // Some of them are not accepted.
        attack.iter_mut().for_each(|stream| drop(stream.write_all(beginning)));
        for path in ["/healthz", "/v1/locks"] {
            soon(&String::from_utf8_lossy(beginning), || status(server.address(), path, ""));
        }
        drop(attack);
    }
}

/// Reads this many answers, and counts those with a prefix.
fn count(stream: &mut TcpStream, answers: usize, prefix: &str) -> usize {
    let mut text = String::new();
    let mut bytes = vec![0; 64 << 10];
    while text.matches("\r\n").count() < answers {
        let length = stream.read(&mut bytes).expect("answers in time");
        assert!(length > 0, "the connection was closed");
        text.push_str(std::str::from_utf8(&bytes[..length]).expect("text"));
    }
    text.lines().filter(|line| line.starts_with(prefix)).count()
}

/// Opens a connection with version 3 of the protocol.
fn connect_resp3(server: &TestServer, login: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.resp_address()).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    stream.write_all(&command(&format!("HELLO 3{login}"))).expect("sent");
    let mut bytes = [0; 4096];
    assert!(stream.read(&mut bytes).expect("an answer") > 0);
    assert_eq!(bytes[0], b'%');
    stream
}

#[test]
fn the_waiters_of_one_user_are_limited() {
    let users = TestUsers::new(&[("alice", &[Verb::Admin]), ("bob", &[Verb::Admin])]);
    let server = TestServer::configured(users.config(Bounds::default()), HttpBounds::default());
    let (alice, bob) = (users.client(&server, "alice"), users.client(&server, "bob"));
    let token = alice.hold("x", alice.open(3_600_000));
    let session = bob.open(3_600_000);
    let mut stream = connect_resp3(&server, &format!(" AUTH bob {}", users.secret.reveal()));
    let (mut queued, mut refused) = (1, 0);
    let numbered = command(&format!("LOCK ACQUIRE x SESSION {session} REQ 1 ASYNC"));
    stream.write_all(&numbered).expect("sent");
    assert_eq!(count(&mut stream, 1, "+QUEUED"), 1);
    for _ in 0..22 {
        let many = command(&format!("LOCK ACQUIRE x SESSION {session} ASYNC")).repeat(500);
        stream.write_all(&many).expect("sent");
        let limits = count(&mut stream, 500, "-LIMIT user 'bob'");
        (queued, refused) = (queued + 500 - limits, refused + limits);
    }
    assert_eq!((queued, refused), (10_000, 1_001));
    stream.write_all(&numbered).expect("sent");
    assert_eq!(count(&mut stream, 1, "+QUEUED"), 1, "a repeat takes no further place");
    let other = alice.open(3_600_000);
    let ask = json!({ "locks": ["x"], "session": other, "wait_ms": 10 });
    assert_eq!(alice.post("/v1/locks/acquire", &ask).code(), "BUSY", "others may wait");
    bob.delete(&format!("/v1/sessions/{session}")).good();
    let session = bob.open(3_600_000);
    let ask = json!({ "locks": ["x"], "session": session, "wait_ms": 10 });
    assert_eq!(bob.post("/v1/locks/acquire", &ask).code(), "BUSY", "those that left count no longer");
    alice.release("x", token);
}

#[test]
fn a_long_queue_is_shown_in_pages() {
    const WAITERS: usize = 5_000;
    let server = TestServer::new();
    let client = server.client();
    let label = "l".repeat(250);
    let opened = client.post("/v1/sessions", &json!({ "ttl_ms": 3_600_000, "label": label })).good();
    let session = opened["session"].as_u64().expect("a session");
    client.hold("x", client.open(3_600_000));
    let mut stream = connect_resp3(&server, "");
    for _ in 0..WAITERS / 500 {
        stream.write_all(&command(&format!("LOCK ACQUIRE x SESSION {session} ASYNC")).repeat(500)).expect("sent");
        assert_eq!(count(&mut stream, 500, "+QUEUED"), 500);
    }
    let small = |answer: &super::client::Answer| assert!(answer.body.len() < 1 << 20, "{}", answer.body.len());
    let (mut waiters, mut holders, mut cursor) = (0, 0, 0);
    loop {
        let answer = client.get(&format!("/v1/locks/show?name=x&cursor={cursor}"));
        small(&answer);
        let shown = answer.good();
        assert_eq!((&shown["holder_count"], &shown["waiter_count"]), (&json!(1), &json!(WAITERS)));
        waiters += shown["waiters"].as_array().expect("waiters").len();
        holders += shown["holders"].as_array().expect("holders").len();
        cursor = shown["cursor"].as_u64().expect("a cursor");
        if cursor == 0 {
            break;
        }
    }
    assert_eq!((holders, waiters), (1, WAITERS));
    let list = client.get("/v1/locks");
    small(&list);
    assert_eq!(list.good()["locks"][0]["waiter_count"], WAITERS);
    let shown = server.connect_resp().send("LOCK SHOW x");
    assert!(shown.concat().len() < 1 << 20, "{}", shown.concat().len());
}

#[test]
fn a_user_that_is_removed_while_it_waits_is_granted_nothing() {
    let users: &[(&str, &[Verb])] = &[("alice", &[Verb::Admin]), ("bob", &[Verb::Admin]), ("carol", &[Verb::Admin])];
    let users = TestUsers::new(users);
    let server = TestServer::configured(users.config(Bounds::default()), HttpBounds::default());
    let (alice, bob) = (users.client(&server, "alice"), users.client(&server, "bob"));
    let token = alice.hold("x", alice.open(3_600_000));
    let session = bob.open(3_600_000);
    let login = format!(" AUTH bob {}", users.secret.reveal());
    let mut blocked = connect_resp3(&server, &login);
    blocked.write_all(&command("LOCK ACQUIRE x TTL 3600000 WAIT 3600000")).expect("sent");
    let mut pushed = connect_resp3(&server, &login);
    pushed.write_all(&command(&format!("LOCK ACQUIRE x SESSION {session} REQ 1 ASYNC"))).expect("sent");
    let head = users.authorization(&server, "bob");
    let ask = json!({ "locks": ["x"], "ttl_ms": 3_600_000, "wait_ms": 3_600_000 });
    let over_http = Raw::post_with(server.address(), "/v1/locks/acquire", &head, &ask);
    // A user whose rules have changed keeps the waits that it may still have.
    let carols = users.client(&server, "carol").open(3_600_000);
    let mut stays = connect_resp3(&server, &format!(" AUTH carol {}", users.secret.reveal()));
    stays.write_all(&command(&format!("LOCK ACQUIRE x SESSION {carols} REQ 1 ASYNC"))).expect("sent");
    let waiting = || alice.show("x")["waiters"].as_array().expect("waiters").len();
    soon("all wait", || (waiting() == 4).then_some(()));
    users.remove(&[("alice", &[Verb::Admin]), ("carol", &[Verb::Acquire])]);
    soon("the waits end", || (waiting() == 1).then_some(()));
    alice.release("x", token);
    assert_eq!(alice.show("x")["holders"][0]["session"], carols);
    drop((blocked, pushed, over_http, stays));
}

#[test]
fn unread_pushes_are_bounded_for_a_user_and_in_total() {
    let users = TestUsers::new(&[("alice", &[Verb::Admin]), ("mallory", &[Verb::Observe])]);
    // One connection alone could have sixteen MiB.
    let bounds = Bounds { unread_total: 1 << 20, stall: Duration::from_secs(3600), ..Bounds::default() };
    let server = TestServer::configured(users.config(bounds), HttpBounds::default());
    let alice = users.client(&server, "alice");
    let watch = |name: &str| {
        let mut stream = connect_resp3(&server, &format!(" AUTH {name} {}", users.secret.reveal()));
        stream.write_all(&command("LOCK WATCH x")).expect("sent");
        assert_eq!(count(&mut stream, 1, "+OK"), 1);
        stream
    };
    let silent: Vec<_> = (0..4).map(|_| watch("mallory")).collect();
    let mut publisher = watch("alice");
    let session = alice.open(3_600_000);
    let ask = json!({ "name": "x", "session": session, "value": "v" });
    let token = alice.post("/v1/elections/campaign", &ask).good()["token"].clone();
    let value = "v".repeat(4000);
    let many = command(&format!("LOCK PUBLISH x {token} SESSION {session} VALUE {value}")).repeat(50);
    let lines = || {
        let metrics = alice.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("palisade_connections{protocol=\"resp\"} "));
        line.expect("a number").parse::<u32>().expect("a number")
    };
    // Fourteen MB for each: less than one alone could have, more than the systems on both sides keep.
    for _ in 0..70 {
        publisher.write_all(&many).expect("sent");
        // Its own pushes are among the answers; it reads them all, and stays.
        let (mut read, mut bytes) = (0, vec![0; 256 << 10]);
        while read < 50 * (4000 + 5) {
            read += publisher.read(&mut bytes).expect("answers in time");
        }
        if lines() == 1 {
            break;
        }
    }
    soon("all that do not read are cut off", || (lines() == 1).then_some(()));
    drop(silent);
}

#[test]
fn the_connections_of_one_user_are_limited() {
    let users = TestUsers::new(&[("alice", &[Verb::Admin]), ("bob", &[Verb::Admin])]);
    let bounds = Bounds { connections_per_user: 3, ..Bounds::default() };
    let server = TestServer::configured(users.config(bounds), HttpBounds::default());
    let open: Vec<_> = (0..3).map(|_| users.connect_resp(&server, "alice")).collect();
    let refused = server.connect_resp().send(&users.login("alice"));
    assert_eq!(refused, ["LIMIT user 'alice' has 3 connections, and may have no more; close one of them"]);
    users.connect_resp(&server, "bob");
    drop(open);
    soon("room again", || send_on_new_connection(server.resp_address(), &users.login("alice")));
}

#[test]
fn a_request_that_names_another_host_is_refused() {
    let server = TestServer::new();
    let ask = |host: &str, body: &str| {
        let request = format!(
            "POST /v1/sessions HTTP/1.1\r\n{host}connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Raw::send(server.address(), request.as_bytes()).answer()
    };
    let open = "{\"ttl_ms\":1000}";
    for host in ["evil.example", "evil.example:7421", "localhost.evil.example", "x"] {
        let answer = ask(&format!("host: {host}\r\n"), open);
        assert_eq!((answer.status, answer.code().as_str()), (421, "MISDIRECTED"), "{host}");
    }
    assert_eq!(ask("host: localhost\r\nhost: evil.example\r\n", open).status, 421);
    for host in ["host: localhost\r\n", "host: 127.0.0.1:7421\r\n", "host: [::1]\r\n"] {
        ask(host, open).good();
    }
    // Where there are users, the page does not know a secret.
    let users = TestUsers::new(&[("alice", &[Verb::Admin])]);
    let server = TestServer::configured(users.config(Bounds::default()), HttpBounds::default());
    let head = users.authorization(&server, "alice");
    let request = format!("GET /v1/locks HTTP/1.1\r\nhost: locks.example\r\n{head}connection: close\r\n\r\n");
    assert_eq!(Raw::send(server.address(), request.as_bytes()).answer().status, 200);
}
