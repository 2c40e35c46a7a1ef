//! The rights of users.

use std::time::{Duration, Instant};

use palisade_server::access::Secret;

use super::client::{Client, Value};
use super::service::Service;
use crate::common::bounded::Bounded;
use crate::sandbox::Sandbox;

/// The users of a test, and their secrets.
pub(crate) struct TestUsers {
    users: Vec<(&'static str, Secret, String)>,
}

impl TestUsers {
    /// Makes users from names and rules, as in a configuration file.
    pub(crate) fn new(users: &[(&'static str, &str)]) -> TestUsers {
        let user = |(name, rules): &(&'static str, &str)| (*name, Secret::random().unwrap(), (*rules).to_owned());
        TestUsers { users: users.iter().map(user).collect() }
    }

    /// Makes one user for each verb, one without any, and one with two.
    pub(crate) fn of_every_verb() -> TestUsers {
        TestUsers::new(&[
            ("nobody", ""),
            ("observe", "{ verbs = ['observe'], prefix = 'a/' }"),
            ("shared", "{ verbs = ['acquire-shared'], prefix = 'a/' }"),
            ("acquire", "{ verbs = ['acquire'], prefix = 'a/' }"),
            ("break", "{ verbs = ['break'], prefix = 'a/' }"),
            ("admin", "{ verbs = ['admin'], prefix = 'a/' }"),
            ("two", "{ verbs = ['observe'], prefix = 'a/' }, { verbs = ['acquire'], prefix = 'b/' }"),
        ])
    }

    pub(crate) fn config(&self) -> String {
        let table = |(name, secret, rules): &(&str, Secret, String)| {
            format!("[[serve.users]]\nname = '{name}'\nsecret_hash = '{}'\nrules = [{rules}]\n", secret.hash())
        };
        self.users.iter().map(table).collect()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.users.iter().map(|(name, ..)| *name)
    }

    pub(crate) fn secret(&self, name: &str) -> &str {
        self.users.iter().find(|(user, ..)| *user == name).expect("a user").1.reveal()
    }

    pub(crate) fn client(&self, service: &Service, name: &str) -> Client {
        let mut client = service.client();
        client.call_ok(&format!("HELLO 3 AUTH {name} {}", self.secret(name)));
        client
    }
}

#[test]
fn no_command_is_answered_without_a_login() {
    let users = TestUsers::new(&[("ci", "{ verbs = ['admin'], prefix = '' }")]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let mut client = service.client();
    assert_eq!(client.call("PING"), Value::Simple("PONG".to_owned()));
    for command in [
        "SESSION OPEN 1000",
        "SESSION CLOSE 1",
        "SESSION KEEPALIVE 1",
        "LOCK LIST a",
        "LOCK SHOW a",
        "LOCK ACQUIRE a TTL 1000",
        "INFO",
        "COMMAND",
        "CLIENT DETAIL ON",
        "HELLO 3",
        "NONSENSE",
        "LOCK",
    ] {
        assert!(client.refusal(command).starts_with("NOAUTH "), "{command}");
    }
    let mut message = vec![client.refusal("INFO")];
    let began = Instant::now();
    message.push(client.refusal("AUTH ci wrong"));
    assert!(began.elapsed().as_millis() >= 400, "a wrong secret is answered late");
    message.push(client.refusal("HELLO 3 AUTH nobody \u{1b}[2J"));
    insta::assert_snapshot!("not-let-in", message.join("\n"));
    assert!(service.line_with("login failed").contains("name=\"ci\""));
    assert_eq!(client.call(&format!("AUTH ci {}", users.secret("ci"))), Value::Simple("OK".to_owned()));
    client.hello().session();
}

#[test]
fn failed_logins_do_not_delay_other_users_and_are_limited() {
    let users = TestUsers::new(&[("ci", "{ verbs = ['admin'], prefix = '' }")]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let time_of_another_user = || {
        let mut guessing = service.client();
        for _ in 0..20 {
            guessing.send_command(&[b"AUTH", b"ci", b"wrong"]);
        }
        let mut client = users.client(&service, "ci");
        let began = Instant::now();
        for _ in 0..20 {
            client.call_ok("PING");
        }
        let time = began.elapsed();
        assert_eq!(guessing.until_closed().matches("-WRONGPASS").count(), 8);
        time
    };
    // A failed login takes longer than this. A busy machine may delay anything, but not each time.
    let most = Duration::from_millis(400);
    assert!((0..10).any(|_| time_of_another_user() < most), "other users were delayed");
}

#[test]
fn every_verb_allows_exactly_its_commands() {
    let users = TestUsers::of_every_verb();
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let commands = [
        "SESSION OPEN 1000",
        "LOCK ACQUIRE a/x TTL 60000",
        "LOCK ACQUIRE a/s TTL 60000 SHARED",
        "LOCK ACQUIRE a/p TTL 60000 PERMITS 1 OF 2",
        "CAMPAIGN a/e TTL 60000 VALUE v",
        "LOCK ACQUIRE b/x TTL 60000",
        "LOCK ACQUIRE a/x b/x TTL 60000",
        "LOCK SHOW a/x",
        "LOCK SHOW b/x",
        "LOCK LIST a/",
        "LOCK WATCH a/",
        "OBSERVE a/x",
        "LOCK BREAK a/none REASON r",
        "LOCK BREAK b/none REASON r",
        "LOCK RESIZE a/none 3",
        "LOCK RESIZE b/none 3",
        "LOCK RELEASE a/none 1",
        "LOCK RELEASE b/none 1",
    ];
    let mut table = String::new();
    for (name, ..) in &users.users {
        let mut client = users.client(&service, name);
        for command in commands {
            let message = match client.call(command) {
                Value::Error(text) if text.starts_with("DENIED ") => text,
                Value::Error(text) => format!("allowed ({})", text.split(' ').next().unwrap_or_default()),
                other => {
                    if let Value::Map(fields) = &other
                        && fields.iter().any(|(name, _)| name.text() == "token")
                    {
                        client.call_ok(&format!("SESSION CLOSE {}", other.number("session")));
                    }
                    "allowed".to_owned()
                }
            };
            while matches!(client_push(&mut client), Some(Value::Push(_))) {}
            table += &format!("{name:<8} {command:<42} {message}\n");
        }
    }
    insta::assert_snapshot!("verbs", table);
}

/// Returns the first push that arrived before the reply to a PING.
fn client_push(client: &mut Client) -> Option<Value> {
    client.send_command(&[b"PING"]);
    let mut first = None;
    loop {
        match client.answer() {
            Value::Simple(_) => return first,
            push => first = first.or(Some(push)),
        }
    }
}

#[test]
fn a_session_belongs_to_its_user_also_after_a_restart() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['observe', 'acquire'], prefix = '' }"),
        ("bob", "{ verbs = ['observe', 'acquire', 'admin'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let mut alice = users.client(&service, "alice");
    let session = alice.call_ok("SESSION OPEN 60000 LABEL bob:\u{a0}x").number("session");
    let token = alice.call_ok(&format!("LOCK ACQUIRE a SESSION {session}")).number("token");
    let commands = [
        format!("SESSION KEEPALIVE {session}"),
        format!("SESSION ATTACH {session}"),
        format!("SESSION CLOSE {session}"),
        format!("LOCK ACQUIRE b SESSION {session}"),
        format!("LOCK RELEASE a {token} SESSION {session}"),
        format!("LOCK RELEASE a {token}"),
        format!("LOCK CANCEL SESSION {session} REQ 1"),
        format!("LOCK PUBLISH a {token} SESSION {session} VALUE v"),
    ];
    let denied = |bob: &mut Client| {
        commands.iter().map(|command| format!("{command} => {}\n", bob.refusal(command))).collect::<String>()
    };
    let before = denied(&mut users.client(&service, "bob"));
    insta::assert_snapshot!("not-yours", before.replace(&session.to_string(), "SESSION"));
    service.stop();
    let service = sandbox.serve_with(&users.config());
    assert_eq!(denied(&mut users.client(&service, "bob")), before);
    let mut alice = users.client(&service, "alice");
    assert_eq!(alice.call_ok("LOCK SHOW a").get("holders").items()[0].get("label").text(), "alice: bob:\u{a0}x");
    alice.call_ok(&format!("SESSION KEEPALIVE {session}"));
    assert_eq!(alice.call(&format!("LOCK RELEASE a {token}")), Value::Number(1));
    alice.call_ok(&format!("SESSION CLOSE {session}"));
}

#[test]
fn a_user_cannot_impersonate_another() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['observe', 'acquire', 'break'], prefix = '' }"),
        ("bob", "{ verbs = ['observe', 'acquire'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let mut alice = users.client(&service, "alice");
    let label = b"bob: \x1b[31mtwo\nlines";
    let session = alice.send_command(&[b"SESSION", b"OPEN", b"60000", b"LABEL", label]).answer().number("session");
    let mut bob = users.client(&service, "bob");
    let denied = bob.refusal(&format!("SESSION CLOSE {session}"));
    assert!(denied.starts_with("DENIED "), "the label begins with the user that opened it");
    let other = users.secret("bob").to_owned();
    assert!(alice.refusal(&format!("AUTH bob {other}")).starts_with("DENIED "), "a connection keeps its user");
    alice.call_ok(&format!("LOCK ACQUIRE a SESSION {session}"));
    assert_eq!(
        bob.call_ok("LOCK SHOW a").get("holders").items()[0].get("label").text(),
        "alice: bob: \u{1b}[31mtwo\nlines"
    );
    let Value::Map(_) =
        alice.send_command(&[b"LOCK", b"BREAK", b"a", b"REASON", b"x\ny\x1b[2J", b"BY", b"bob"]).answer()
    else {
        panic!("alice may")
    };
    let line = service.line_with("a lock was taken away");
    assert!(line.contains("by=\"alice: bob\""), "{line}");
    assert!(line.contains(r#"reason="x\\ny\\u{1b}[2J""#), "{line}");
}

#[test]
fn only_an_admin_of_all_locks_raises_tokens() {
    let users = TestUsers::new(&[
        ("all", "{ verbs = ['admin'], prefix = '' }"),
        ("some", "{ verbs = ['admin'], prefix = 'a/' }"),
        ("breaker", "{ verbs = ['observe', 'acquire', 'break'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    for name in ["some", "breaker"] {
        let message = users.client(&service, name).refusal("TOKENS RAISE 1000");
        assert!(
            message.starts_with(&format!("DENIED user '{name}' has no right to 'admin' for all locks")),
            "{message}"
        );
    }
    let mut admin = users.client(&service, "all");
    let session = admin.session();
    assert_eq!(admin.call_ok(&format!("LOCK ACQUIRE a SESSION {session}")).number("token"), 1);
    assert_eq!(admin.call("TOKENS RAISE 1000"), Value::Number(1));
    let line = service.line_with("tokens were raised");
    assert!(line.contains("user=\"all\"") && line.contains("above=1000") && line.contains("last=1"), "{line}");
    assert_eq!(admin.call_ok(&format!("LOCK ACQUIRE b SESSION {session}")).number("token"), 1001);
    assert_eq!(admin.call("LOCK RELEASE a 1"), Value::Number(1), "a held lock keeps its token");
}

#[test]
fn locks_outside_a_users_prefixes_are_hidden() {
    let users = TestUsers::new(&[
        ("all", "{ verbs = ['admin'], prefix = '' }"),
        ("some", "{ verbs = ['observe'], prefix = 'a/' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let (mut all, mut some) = (users.client(&service, "all"), users.client(&service, "some"));
    some.call_ok("LOCK WATCH ");
    some.call_ok("CLIENT DETAIL ON");
    let session = all.session();
    all.call_ok(&format!("LOCK ACQUIRE secret/1 SESSION {session}"));
    all.call_ok(&format!("LOCK ACQUIRE a/2 secret/2 SESSION {session}"));
    let token = all.call_ok(&format!("LOCK ACQUIRE a/3 SESSION {session}")).number("token");
    all.call_ok(&format!("LOCK RELEASE a/3 {token}"));
    let events: Vec<_> = (0..3).map(|_| some.answer().to_string()).collect();
    insta::assert_snapshot!("watched-in-part", events.join("\n").replace(&session.to_string(), "SESSION"));
    let listed = some.call_ok("LOCK LIST ");
    let names: Vec<_> = listed.get("locks").items().iter().map(|lock| lock.get("name").text()).collect();
    assert_eq!(names, ["a/2"]);
    assert!(!listed.to_string().contains("secret"));
}

#[test]
fn sessions_per_user_are_limited() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['acquire'], prefix = '' }"),
        ("bob", "{ verbs = ['acquire'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let config = format!("[serve.bounds]\nsessions_per_user = 2\n{}", users.config());
    let service = sandbox.serve_with(&config);
    let mut alice = users.client(&service, "alice");
    // All requests are sent before any session is open.
    for _ in 0..4 {
        alice.send_command(&[b"SESSION", b"OPEN", b"60000"]);
    }
    let answers: Vec<_> = (0..4).map(|_| alice.answer()).collect();
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Value::Map(_))).count(), 2);
    insta::assert_snapshot!("too-many-sessions", answers[3]);
    assert!(alice.refusal("LOCK ACQUIRE a TTL 1000").starts_with("LIMIT "));
    users.client(&service, "bob").session();
    service.stop();
    let service = sandbox.serve_with(&config);
    let mut alice = users.client(&service, "alice");
    assert!(alice.refusal("SESSION OPEN 1000").starts_with("LIMIT "), "those before the restart count");
    alice.call_ok(&format!("SESSION CLOSE {}", answers[0].number("session")));
    alice.session();
}

#[test]
fn a_session_that_does_not_exist_yet_cannot_be_used() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['acquire'], prefix = '' }"),
        ("mallory", "{ verbs = ['acquire'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let mut mallory = users.client(&service, "mallory");
    assert!(mallory.refusal("SESSION CLOSE 1").starts_with("NOSESSION "));
    assert!(mallory.refusal("LOCK RELEASE a 1").starts_with("NOTHELD token 1 was never given"));
    // While sessions are being opened, guess their ids: no guess ever closes one.
    let mut alice = users.client(&service, "alice");
    let mut last = 0;
    for number in 1..200 {
        alice.send_command(&[b"SESSION", b"OPEN", b"60000"]);
        for guess in [number, last + 1] {
            let message = mallory.refusal(&format!("SESSION CLOSE {guess}"));
            assert!(message.starts_with("NOSESSION ") || message.starts_with("DENIED "), "{message}");
        }
        last = alice.answer().number("session");
        assert_eq!(alice.call_ok(&format!("SESSION KEEPALIVE {last}")).to_string(), "[60000]");
    }
}

#[test]
fn a_session_from_before_there_were_users_belongs_to_no_user() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut anyone = service.resp3_client();
    let words: [&[u8]; 5] = [b"SESSION", b"OPEN", b"3600000", b"LABEL", b"alice: x"];
    let session = anyone.send_command(&words).answer().number("session");
    anyone.call_ok(&format!("LOCK ACQUIRE a SESSION {session}"));
    assert_eq!(anyone.call_ok("LOCK SHOW a").get("holders").items()[0].get("label").text(), "alice : x");
    service.stop();
    let users = TestUsers::new(&[("alice", "{ verbs = ['admin'], prefix = '' }")]);
    let service = sandbox.serve_with(&users.config());
    let mut alice = users.client(&service, "alice");
    for command in ["SESSION CLOSE", "SESSION KEEPALIVE", "SESSION ATTACH"] {
        assert!(alice.refusal(&format!("{command} {session}")).starts_with("DENIED "), "{command}");
    }
}

#[test]
fn totals_are_shown_only_to_users_that_may_observe_all_locks() {
    let users = TestUsers::of_every_verb();
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    for name in users.names() {
        let info = users.client(&service, name).call_ok("INFO");
        let may = ["observe", "admin", "two"].contains(&name);
        assert_eq!(info.text().contains("\r\nlast_token:"), may, "{name}: {info}");
        assert!(info.text().contains("\r\nversion:"), "{name}: {info}");
    }
}

#[test]
fn refused_releases_are_logged_with_user_and_peer_at_a_limited_rate() {
    let users = TestUsers::new(&[
        ("alice", "{ verbs = ['acquire'], prefix = '' }"),
        ("mallory", "{ verbs = ['acquire', 'break'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&users.config());
    let token = users.client(&service, "alice").call_ok("LOCK ACQUIRE a TTL 3600000").number("token");
    let began = Instant::now();
    const MANY: usize = 2_000;
    for _ in 0..4 {
        let mut mallory = users.client(&service, "mallory");
        let session = mallory.session().to_string();
        let token = token.to_string();
        for _ in 0..MANY / 4 {
            mallory.send_command(&[b"LOCK", b"RELEASE", b"a", token.as_bytes(), b"SESSION", session.as_bytes()]);
            mallory.send_command(&[b"LOCK", b"BREAK", b"b", b"REASON", b"x"]);
        }
        for _ in 0..MANY / 4 {
            assert!(mallory.answer().text().starts_with("NOTHELD "));
            assert!(mallory.answer().text().starts_with("NOTHELD "));
        }
    }
    let most = 12 * (usize::try_from(began.elapsed().as_secs()).unwrap() + 2);
    service.signal(rustix::process::Signal::TERM);
    let (_, message) = service.end();
    let warnings: Vec<_> = message.iter().filter(|line| line.contains("WARN") && line.contains("audit")).collect();
    assert!(!warnings.is_empty() && warnings.len() <= most, "{} lines: {warnings:#?}", warnings.len());
    for line in warnings {
        assert!(line.contains("user=\"mallory\"") && line.contains("peer=\"127.0.0.1:"), "{line}");
        assert!(line.contains("over=\"resp\""), "{line}");
    }
}

/// User `ci` has the rules that `serve --new-user ci` suggests: only names that begin with `ci/`.
#[test]
fn doctor_uses_a_test_lock_that_the_user_may_acquire() {
    let sandbox = Sandbox::new();
    let users = TestUsers::new(&[
        ("ci", "{ verbs = ['observe', 'acquire'], prefix = 'ci/' }"),
        ("other", "{ verbs = ['observe', 'acquire'], prefix = 'jobs/' }"),
    ]);
    let service = sandbox.serve_with(&users.config());
    let doctor = |user: &str, more: &[&str]| {
        let url = format!("palisade://{user}@{}", service.address);
        let mut command = sandbox.command(&[&["doctor", &url], more].concat());
        sandbox.output(&command.env("PALISADE_SECRET", users.secret(user)).finish())
    };
    let message = doctor("ci", &[]);
    assert_eq!(message.code, Some(0), "{}{}", message.out, message.err);
    assert!(message.out.contains("; not signed tokens"), "it does not sign: {}", message.out);
    let denied = doctor("other", &[]);
    assert_eq!(denied.code, Some(69), "{}", denied.out);
    assert!(denied.out.contains("palisade doctor --lock NAME"), "{}", denied.out);
    assert_eq!(doctor("other", &["--lock", "jobs/doctor"]).code, Some(0));
}
