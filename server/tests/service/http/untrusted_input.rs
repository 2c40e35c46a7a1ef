//! Untrusted input over HTTP: valid requests with random changes in their parts or bytes. None of them makes the service
//! panic or answer 500. A refusal is a complete problem, and the request has changed nothing. `PROPTEST_CASES=100000` tries
//! more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use palisade_server::access::{Rule, Secret, User, Users, Verb};
use palisade_server::{Config, HttpBounds, Limits};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::client::{Client, RespConnection, TIMEOUT};
use super::requests::{change, changed, damage, damaged, valid_requests};
use super::test_server::TestServer;

/// How long a request may take that is not complete. Most tests send many of those.
const SOON: Duration = Duration::from_millis(200);

/// Returns a configuration that cuts off slow requests, and in which no session expires during a test.
fn config(soon: Duration) -> (Config, HttpBounds) {
    let limits = Limits { ttl_min_ms: 3_600_000, ..Limits::default() };
    let bounds = HttpBounds { head: soon, body: soon, ..HttpBounds::default() };
    (Config { limits: Some(limits), ..Config::default() }, bounds)
}

/// The first answer: the status, the type of the body, and the body.
struct RawAnswer {
    status: u16,
    kind: String,
    body: Vec<u8>,
    /// Whether more answers follow it, to other requests in those bytes.
    has_more: bool,
}

/// Sends bytes and reads the answer until the server closes, or the answer is a stream. `None` without an answer.
fn exchange(address: SocketAddr, bytes: &[u8]) -> Option<RawAnswer> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    // The server may have answered and closed before all was sent.
    let _ = stream.write_all(bytes);
    let mut read = Vec::new();
    while find(&read, b"text/event-stream").is_none_or(|at| find(&read[at..], END).is_none()) {
        let mut more = [0; 4096];
        match stream.read(&mut more) {
            Ok(0) => break,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            count => read.extend_from_slice(&more[..count.expect("an answer, or the end, in time")]),
        }
    }
    if read.starts_with(b"HTTP/1.1 100 ") {
        read.drain(..find(&read, END).expect("a whole head") + END.len());
    }
    let mut body = read.split_off(find(&read, END)? + END.len());
    let head = String::from_utf8(read).expect("a head is text");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let length: usize = field("content-length: ").map_or(0, |length| length.parse().expect("a length"));
    let length = if bytes.starts_with(b"HEAD ") { 0 } else { length };
    assert!(body.len() >= length, "half a body: {head}");
    let has_more = find(&body[length..], b"HTTP/1.1 ").is_some();
    body.truncate(length);
    Some(RawAnswer { status, kind: field("content-type: ").unwrap_or_default(), body, has_more })
}

const END: &[u8] = b"\r\n\r\n";

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A lock that is always held, and that no request names.
const FIRST: &str = "held by the first";

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// The service under test, and its state before each request.
struct Target {
    server: TestServer,
    client: Client,
    resp: RespConnection,
    session: u64,
    before: Vec<String>,
    good: usize,
    refused: usize,
}

impl Target {
    fn new(soon: Duration) -> Target {
        // A panic in a task only closes its connection, so a hook makes it visible.
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() == Some("palisade-http") {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            usual(panic);
        }));
        let (config, bounds) = config(soon);
        let server = TestServer::configured(config, bounds);
        let (client, resp) = (server.client(), server.connect_resp());
        let opened = client.post_again("/v1/sessions", &json!({ "ttl_ms": 3_600_000 })).good();
        let session = opened["session"].as_u64().expect("a session");
        client.post_again("/v1/locks/acquire", &json!({ "locks": [FIRST], "session": session, "request": 1 })).good();
        let mut target = Target { server, client, resp, session, before: Vec::new(), good: 0, refused: 0 };
        target.before = target.observe();
        target
    }

    /// Returns all sessions, tokens and locks, without the fields that change with time.
    fn observe(&mut self) -> Vec<String> {
        let info = self.resp.send("INFO").concat();
        let is_kept = |line: &&str| ["sessions:", "locks:", "last_token:"].iter().any(|name| line.starts_with(name));
        let mut seen: Vec<_> = info.lines().filter(is_kept).map(str::to_owned).collect();
        assert_eq!(seen.len(), 3, "{info}");
        let mut list = self.client.get_again("/v1/locks?count=1000").good();
        for lock in list["locks"].as_array_mut().expect("locks") {
            for holder in lock["holders"].as_array_mut().expect("holders") {
                holder["held_for_ms"] = Value::Null;
                holder["time_left_ms"] = Value::Null;
            }
        }
        seen.push(list.to_string());
        seen
    }

    fn send(&mut self, bytes: &[u8]) {
        let shown = String::from_utf8_lossy(bytes).into_owned();
        let answer = exchange(self.server.address(), bytes);
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a panic: {shown}");
        match answer {
            Some(RawAnswer { status, has_more, .. }) if status < 400 || has_more => {
                self.good += 1;
                self.release_all();
                self.before = self.observe();
                return;
            }
            Some(answer) => self.check_refusal(&answer, bytes),
            None => {}
        }
        self.refused += 1;
        let after = self.observe();
        // A failing case is shrunk, and each try is judged separately.
        let before = std::mem::replace(&mut self.before, after);
        assert_eq!(self.before, before, "it was refused, and changed something: {shown}");
    }

    /// Releases what was granted, so that no request ever waits.
    fn release_all(&self) {
        let list = self.client.get_again("/v1/locks?count=1000").good();
        for lock in list["locks"].as_array().expect("locks").iter().filter(|lock| lock["name"] != FIRST) {
            for holder in lock["holders"].as_array().expect("holders") {
                let release = json!({ "lock": lock["name"], "token": holder["token"] });
                // One token may hold several locks, and frees them all.
                let _ = self.client.post_again("/v1/locks/release", &release);
            }
        }
    }

    fn check_refusal(&self, RawAnswer { status, kind, body, .. }: &RawAnswer, bytes: &[u8]) {
        let shown = String::from_utf8_lossy(bytes);
        // hyper answers invalid HTTP with a bare status.
        if kind.is_empty() && body.is_empty() {
            assert!([400, 414, 431].contains(status), "{status}: {shown}");
            return;
        }
        assert!((400..500).contains(status), "{status}: {shown}");
        assert_eq!(kind, "application/problem+json", "{shown}");
        if !bytes.starts_with(b"HEAD ") {
            let problem: Value = serde_json::from_slice(body).unwrap_or_else(|why| panic!("{why}: {shown}"));
            assert_eq!(problem["status"], *status, "{shown}");
            for field in ["type", "title", "code", "detail", "what_to_do"] {
                assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {shown}");
            }
        }
    }
}

static TARGET: LazyLock<Mutex<Target>> = LazyLock::new(|| Mutex::new(Target::new(SOON)));

/// Sends bytes that are made for the target's session.
fn send(bytes: impl FnOnce(u64) -> Vec<u8>) {
    let mut target = TARGET.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = bytes(target.session);
    target.send(&bytes);
}

proptest! {
    #[test]
    fn any_parts_are_answered_well_and_change_nothing_when_refused(
        which in any::<Index>(),
        changes in vec(change(), 0..4),
    ) {
        send(|session| changed(which.get(&valid_requests(session)), &changes).bytes());
    }

    #[test]
    fn any_bytes_are_answered_well_and_change_nothing_when_refused(
        which in any::<Index>(),
        damages in vec(damage(), 1..4),
    ) {
        send(|session| damaged(changed(which.get(&valid_requests(session)), &[]).bytes(), &damages));
    }

    #[test]
    fn noise_is_no_request(bytes in vec(any::<u8>(), 0..200)) {
        send(|_| [&bytes[..], b"\r\n\r\n"].concat());
    }
}

#[test]
fn the_unchanged_requests_are_valid() {
    // All of them are complete, and none is cut off because the machine is busy.
    let mut target = Target::new(TIMEOUT);
    for request in valid_requests(target.session) {
        target.send(&changed(&request, &[]).bytes());
    }
    // Only requests with a token that is not held, a semaphore that is not in use, or a session that does not exist are refused.
    assert_eq!((target.good, target.refused), (17, 5));
}

#[test]
fn any_authorization_is_refused_or_right() {
    let secret = Secret::random().expect("randomness");
    let rule = Rule { verbs: vec![Verb::Admin], prefix: String::new() };
    let user = User::new("ci", Some(secret.hash()), vec![rule]).expect("a user");
    let server = TestServer::of(Users::new(vec![user]).expect("users"));
    let right = server.client().as_user("ci", secret.reveal());
    let header = right.authorization().expect("it has one").to_owned();
    let ask = |header: &[u8]| {
        let request = [
            b"GET /v1/locks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: ",
            header,
            b"\r\n\r\n",
        ]
        .concat();
        exchange(server.address(), &request).expect("an answer").status
    };
    assert_eq!(ask(header.as_bytes()), 200);
    assert_eq!(ask(header.replace("Basic", "bASIC").as_bytes()), 200);
    // Neither a truncated secret nor one with a changed byte is accepted.
    for cut in [0, 3, 6, 7, 20, header.len() - 1] {
        assert_eq!(ask(&header.as_bytes()[..cut]), 401, "{cut}");
    }
    for odd in [&b"\xff\xfe"[..], b"Basic \x80", b"Basic ====", b"Basic Og==", b"Digest x", b"Basic Y2k6 Y2k6"] {
        assert_eq!(ask(odd), 401, "{odd:?}");
    }
}
