//! The rights of users.

use std::time::Instant;

use palisade_server::access::Secret;

use crate::client::{Client, Value};
use crate::sandbox::Sandbox;
use crate::service::Service;

/// Some users, and their secrets.
pub(crate) struct People {
    users: Vec<(&'static str, Secret, String)>,
}

impl People {
    /// Each with a name and its rules, as in a configuration file.
    pub(crate) fn new(users: &[(&'static str, &str)]) -> People {
        let user = |(name, rules): &(&'static str, &str)| (*name, Secret::random().unwrap(), (*rules).to_owned());
        People { users: users.iter().map(user).collect() }
    }

    /// One for each verb, one without any, and one with two.
    pub(crate) fn of_every_verb() -> People {
        People::new(&[
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
        client.done(&format!("HELLO 3 AUTH {name} {}", self.secret(name)));
        client
    }
}

#[test]
fn no_command_is_answered_without_a_login() {
    let people = People::new(&[("ci", "{ verbs = ['admin'], prefix = '' }")]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let mut client = service.client();
    assert_eq!(client.ask("PING"), Value::Simple("PONG".to_owned()));
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
    let mut said = vec![client.refusal("INFO")];
    let began = Instant::now();
    said.push(client.refusal("AUTH ci wrong"));
    assert!(began.elapsed().as_millis() >= 400, "a guess takes its time");
    said.push(client.refusal("HELLO 3 AUTH nobody \u{1b}[2J"));
    insta::assert_snapshot!("not-let-in", said.join("\n"));
    assert!(service.line_with("login failed").contains("name=\"ci\""));
    assert_eq!(client.ask(&format!("AUTH ci {}", people.secret("ci"))), Value::Simple("OK".to_owned()));
    client.hello().session();
}

#[test]
fn failed_logins_do_not_delay_other_users_and_are_limited() {
    let people = People::new(&[("ci", "{ verbs = ['admin'], prefix = '' }")]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let mut guessing = service.client();
    for _ in 0..20 {
        guessing.say(&[b"AUTH", b"ci", b"wrong"]);
    }
    let mut client = people.client(&service, "ci");
    let began = Instant::now();
    for _ in 0..20 {
        client.done("PING");
    }
    assert!(began.elapsed().as_millis() < 400, "others were held up");
    assert_eq!(guessing.until_closed().matches("-WRONGPASS").count(), 8);
}

#[test]
fn every_verb_allows_exactly_its_commands() {
    let people = People::of_every_verb();
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let commands = [
        "SESSION OPEN 1000",
        "LOCK ACQUIRE a/x TTL 1000",
        "LOCK ACQUIRE a/s TTL 1000 SHARED",
        "LOCK ACQUIRE a/p TTL 1000 PERMITS 1 OF 2",
        "CAMPAIGN a/e TTL 1000 VALUE v",
        "LOCK ACQUIRE b/x TTL 1000",
        "LOCK ACQUIRE a/x b/x TTL 1000",
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
    for (name, ..) in &people.users {
        let mut client = people.client(&service, name);
        for command in commands {
            let said = match client.ask(command) {
                Value::Error(text) if text.starts_with("DENIED ") => text,
                Value::Error(text) => format!("allowed ({})", text.split(' ').next().unwrap_or_default()),
                other => {
                    if let Value::Map(fields) = &other
                        && fields.iter().any(|(name, _)| name.text() == "token")
                    {
                        client.done(&format!("SESSION CLOSE {}", other.number("session")));
                    }
                    "allowed".to_owned()
                }
            };
            while matches!(client_push(&mut client), Some(Value::Push(_))) {}
            table += &format!("{name:<8} {command:<42} {said}\n");
        }
    }
    insta::assert_snapshot!("verbs", table);
}

/// What a watcher was told meanwhile; the answer to a question tells when that is all.
fn client_push(client: &mut Client) -> Option<Value> {
    client.say(&[b"PING"]);
    let mut first = None;
    loop {
        match client.answer() {
            Value::Simple(_) => return first,
            push => first = first.or(Some(push)),
        }
    }
}

#[test]
fn a_session_is_its_users_own_also_after_a_restart() {
    let people = People::new(&[
        ("alice", "{ verbs = ['observe', 'acquire'], prefix = '' }"),
        ("bob", "{ verbs = ['observe', 'acquire', 'admin'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let mut alice = people.client(&service, "alice");
    let session = alice.done("SESSION OPEN 60000 LABEL bob:\u{a0}x").number("session");
    let token = alice.done(&format!("LOCK ACQUIRE a SESSION {session}")).number("token");
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
    let before = denied(&mut people.client(&service, "bob"));
    insta::assert_snapshot!("not-yours", before);
    service.stop();
    let service = sandbox.serve_with(&people.config());
    assert_eq!(denied(&mut people.client(&service, "bob")), before);
    let mut alice = people.client(&service, "alice");
    assert_eq!(alice.done("LOCK SHOW a").get("holders").items()[0].get("label").text(), "alice: bob:\u{a0}x");
    alice.done(&format!("SESSION KEEPALIVE {session}"));
    assert_eq!(alice.ask(&format!("LOCK RELEASE a {token}")), Value::Number(1));
    alice.done(&format!("SESSION CLOSE {session}"));
}

#[test]
fn a_user_cannot_impersonate_another() {
    let people = People::new(&[
        ("alice", "{ verbs = ['observe', 'acquire', 'break'], prefix = '' }"),
        ("bob", "{ verbs = ['observe', 'acquire'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let mut alice = people.client(&service, "alice");
    let label = b"bob: \x1b[31mtwo\nlines";
    let Value::Map(_) = alice.say(&[b"SESSION", b"OPEN", b"60000", b"LABEL", label]).answer() else {
        panic!("it is a label")
    };
    let mut bob = people.client(&service, "bob");
    assert!(bob.refusal("SESSION CLOSE 1").starts_with("DENIED "), "the label begins with the user that opened it");
    let other = people.secret("bob").to_owned();
    assert!(alice.refusal(&format!("AUTH bob {other}")).starts_with("DENIED "), "a connection keeps its user");
    alice.done("LOCK ACQUIRE a SESSION 1");
    assert_eq!(
        bob.done("LOCK SHOW a").get("holders").items()[0].get("label").text(),
        "alice: bob: \u{1b}[31mtwo\nlines"
    );
    let Value::Map(_) = alice.say(&[b"LOCK", b"BREAK", b"a", b"REASON", b"x\ny\x1b[2J", b"BY", b"bob"]).answer()
    else {
        panic!("alice may")
    };
    let line = service.line_with("a lock was taken away");
    assert!(line.contains("by=\"alice: bob\""), "{line}");
    assert!(line.contains(r#"reason="x\\ny\\u{1b}[2J""#), "{line}");
}

#[test]
fn only_an_admin_of_all_locks_raises_tokens() {
    let people = People::new(&[
        ("all", "{ verbs = ['admin'], prefix = '' }"),
        ("some", "{ verbs = ['admin'], prefix = 'a/' }"),
        ("breaker", "{ verbs = ['observe', 'acquire', 'break'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    for name in ["some", "breaker"] {
        let said = people.client(&service, name).refusal("TOKENS RAISE 1000");
        assert!(said.starts_with(&format!("DENIED user '{name}' has no right to 'admin' for all locks")), "{said}");
    }
    let mut admin = people.client(&service, "all");
    let session = admin.session();
    assert_eq!(admin.done(&format!("LOCK ACQUIRE a SESSION {session}")).number("token"), 1);
    assert_eq!(admin.ask("TOKENS RAISE 1000"), Value::Number(1));
    let line = service.line_with("tokens were raised");
    assert!(line.contains("user=\"all\"") && line.contains("above=1000") && line.contains("last=1"), "{line}");
    assert_eq!(admin.done(&format!("LOCK ACQUIRE b SESSION {session}")).number("token"), 1001);
    assert_eq!(admin.ask("LOCK RELEASE a 1"), Value::Number(1), "a held lock keeps its token");
}

#[test]
fn locks_outside_a_users_prefixes_are_hidden() {
    let people = People::new(&[
        ("all", "{ verbs = ['admin'], prefix = '' }"),
        ("some", "{ verbs = ['observe'], prefix = 'a/' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let (mut all, mut some) = (people.client(&service, "all"), people.client(&service, "some"));
    some.done("LOCK WATCH ");
    some.done("CLIENT DETAIL ON");
    let session = all.session();
    all.done(&format!("LOCK ACQUIRE secret/1 SESSION {session}"));
    all.done(&format!("LOCK ACQUIRE a/2 secret/2 SESSION {session}"));
    let token = all.done(&format!("LOCK ACQUIRE a/3 SESSION {session}")).number("token");
    all.done(&format!("LOCK RELEASE a/3 {token}"));
    let told: Vec<_> = (0..3).map(|_| some.answer().to_string()).collect();
    insta::assert_snapshot!("watched-in-part", told.join("\n"));
    let listed = some.done("LOCK LIST ");
    let names: Vec<_> = listed.get("locks").items().iter().map(|lock| lock.get("name").text()).collect();
    assert_eq!(names, ["a/2"]);
    assert!(!listed.to_string().contains("secret"));
}

#[test]
fn sessions_per_user_are_limited() {
    let people = People::new(&[
        ("alice", "{ verbs = ['acquire'], prefix = '' }"),
        ("bob", "{ verbs = ['acquire'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let config = format!("[serve.bounds]\nsessions_per_user = 2\n{}", people.config());
    let service = sandbox.serve_with(&config);
    let mut alice = people.client(&service, "alice");
    // Asked for at once, before any is open.
    for _ in 0..4 {
        alice.say(&[b"SESSION", b"OPEN", b"60000"]);
    }
    let answers: Vec<_> = (0..4).map(|_| alice.answer()).collect();
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Value::Map(_))).count(), 2);
    insta::assert_snapshot!("too-many-sessions", answers[3]);
    assert!(alice.refusal("LOCK ACQUIRE a TTL 1000").starts_with("LIMIT "));
    people.client(&service, "bob").session();
    service.stop();
    let service = sandbox.serve_with(&config);
    let mut alice = people.client(&service, "alice");
    assert!(alice.refusal("SESSION OPEN 1000").starts_with("LIMIT "), "those before the restart count");
    alice.done("SESSION CLOSE 1");
    alice.session();
}

#[test]
fn a_session_that_does_not_exist_yet_cannot_be_used() {
    let people = People::new(&[
        ("alice", "{ verbs = ['acquire'], prefix = '' }"),
        ("mallory", "{ verbs = ['acquire'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let mut mallory = people.client(&service, "mallory");
    assert!(mallory.refusal("SESSION CLOSE 1").starts_with("NOSESSION "));
    assert!(mallory.refusal("LOCK RELEASE a 1").starts_with("NOTHELD token 1 was never given"));
    // While sessions are being opened, guess their numbers: no guess ever closes one.
    let mut alice = people.client(&service, "alice");
    for guess in 1..200 {
        alice.say(&[b"SESSION", b"OPEN", b"60000"]);
        let said = mallory.refusal(&format!("SESSION CLOSE {guess}"));
        assert!(said.starts_with("NOSESSION ") || said.starts_with("DENIED "), "{said}");
        assert_eq!(alice.answer().number("session"), guess);
        assert_eq!(alice.done(&format!("SESSION KEEPALIVE {guess}")).to_string(), "[60000]");
    }
}

#[test]
fn a_session_from_before_there_were_users_belongs_to_no_user() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut anyone = service.modern();
    let words: [&[u8]; 5] = [b"SESSION", b"OPEN", b"3600000", b"LABEL", b"alice: x"];
    let session = anyone.say(&words).answer().number("session");
    anyone.done(&format!("LOCK ACQUIRE a SESSION {session}"));
    assert_eq!(anyone.done("LOCK SHOW a").get("holders").items()[0].get("label").text(), "alice : x");
    service.stop();
    let people = People::new(&[("alice", "{ verbs = ['admin'], prefix = '' }")]);
    let service = sandbox.serve_with(&people.config());
    let mut alice = people.client(&service, "alice");
    for command in ["SESSION CLOSE", "SESSION KEEPALIVE", "SESSION ATTACH"] {
        assert!(alice.refusal(&format!("{command} {session}")).starts_with("DENIED "), "{command}");
    }
}

#[test]
fn totals_are_shown_only_to_users_that_may_observe_all_locks() {
    let people = People::of_every_verb();
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    for name in people.names() {
        let info = people.client(&service, name).done("INFO");
        let may = ["observe", "admin", "two"].contains(&name);
        assert_eq!(info.text().contains("\r\nlast_token:"), may, "{name}: {info}");
        assert!(info.text().contains("\r\nversion:"), "{name}: {info}");
    }
}

#[test]
fn refused_releases_are_logged_with_user_and_peer_at_a_limited_rate() {
    let people = People::new(&[
        ("alice", "{ verbs = ['acquire'], prefix = '' }"),
        ("mallory", "{ verbs = ['acquire', 'break'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&people.config());
    let token = people.client(&service, "alice").done("LOCK ACQUIRE a TTL 3600000").number("token");
    let began = Instant::now();
    const MANY: usize = 2_000;
    for _ in 0..4 {
        let mut mallory = people.client(&service, "mallory");
        let session = mallory.session().to_string();
        let token = token.to_string();
        for _ in 0..MANY / 4 {
            mallory.say(&[b"LOCK", b"RELEASE", b"a", token.as_bytes(), b"SESSION", session.as_bytes()]);
            mallory.say(&[b"LOCK", b"BREAK", b"b", b"REASON", b"x"]);
        }
        for _ in 0..MANY / 4 {
            assert!(mallory.answer().text().starts_with("NOTHELD "));
            assert!(mallory.answer().text().starts_with("NOTHELD "));
        }
    }
    let most = 12 * (usize::try_from(began.elapsed().as_secs()).unwrap() + 2);
    service.signal(rustix::process::Signal::TERM);
    let (_, said) = service.end();
    let told: Vec<_> = said.iter().filter(|line| line.contains("WARN") && line.contains("audit")).collect();
    assert!(!told.is_empty() && told.len() <= most, "{} lines: {told:#?}", told.len());
    for line in told {
        assert!(line.contains("user=\"mallory\"") && line.contains("peer=\"127.0.0.1:"), "{line}");
        assert!(line.contains("over=\"resp\""), "{line}");
    }
}

/// As `serve --new-user ci` suggests: it may use what begins with its own name, and nothing else.
#[test]
fn the_doctor_tests_under_a_name_that_the_user_may_use() {
    let sandbox = Sandbox::new();
    let people = People::new(&[
        ("ci", "{ verbs = ['observe', 'acquire'], prefix = 'ci/' }"),
        ("other", "{ verbs = ['observe', 'acquire'], prefix = 'jobs/' }"),
    ]);
    let service = sandbox.serve_with(&people.config());
    let doctor = |user: &str, more: &[&str]| {
        let url = format!("palisade://{user}@{}", service.at);
        let mut command = sandbox.command(&[&["doctor", &url], more].concat());
        sandbox.output(&command.env("PALISADE_SECRET", people.secret(user)).output().unwrap())
    };
    let said = doctor("ci", &[]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains("; not signed tokens"), "it does not sign: {}", said.out);
    let denied = doctor("other", &[]);
    assert_eq!(denied.code, Some(69), "{}", denied.out);
    assert!(denied.out.contains("palisade doctor --lock NAME"), "{}", denied.out);
    assert_eq!(doctor("other", &["--lock", "jobs/doctor"]).code, Some(0));
}
