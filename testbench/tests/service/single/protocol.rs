//! The parts of the protocol that the engine relies on, as raw commands and replies.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use palisade_testbench::bounded::BOUND;

use super::fixture::Fixture;

thread_local! {
    /// The random id of the test's only session, for which the test writes 1.
    static SESSION: Cell<u64> = const { Cell::new(0) };
}

/// A RESP connection whose commands the test writes.
struct RespConnection {
    stream: TcpStream,
    heard: BufReader<TcpStream>,
}

impl RespConnection {
    fn new(fixture: &Fixture) -> RespConnection {
        let stream = TcpStream::connect(fixture.service.address).expect("it listens");
        stream.set_read_timeout(Some(BOUND)).expect("a bound");
        let heard = BufReader::new(stream.try_clone().expect("two ends"));
        let mut connection = RespConnection { stream, heard };
        assert!(connection.ask("HELLO 3", 19).starts_with("%9 server palisade version"));
        connection
    }

    fn send(&mut self, command: &str) {
        self.send_all([command]);
    }

    /// Sends several commands in one write.
    fn send_all<'a>(&mut self, commands: impl IntoIterator<Item = &'a str>) {
        let mut bytes = String::new();
        for command in commands {
            let mut before = "";
            let mut words = Vec::new();
            for word in command.split(' ') {
                let is_session = word == "1" && ["SESSION", "ATTACH", "KEEPALIVE"].contains(&before);
                let sent = if is_session { SESSION.get().to_string() } else { word.to_owned() };
                words.push(format!("${}\r\n{sent}\r\n", sent.len()));
                before = word;
            }
            bytes += &format!("*{}\r\n{}", words.len(), words.concat());
        }
        self.stream.write_all(bytes.as_bytes()).expect("it listens");
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.heard.read_line(&mut line).expect("it answers");
        line.trim_end().to_owned()
    }

    /// Reads this number of words, without the lengths of texts. A random id, which has 16 digits, becomes 1.
    fn read_words(&mut self, count: usize) -> String {
        let mut words = Vec::new();
        while words.len() < count {
            let word = self.read_line();
            match word.strip_prefix(':').filter(|number| number.len() == 16).map(str::parse) {
                Some(Ok(id)) => {
                    SESSION.set(id);
                    words.push(":1".to_owned());
                }
                _ if word.starts_with('$') => {}
                _ => words.push(word),
            }
        }
        words.join(" ")
    }

    fn ask(&mut self, command: &str, words: usize) -> String {
        self.send(command);
        self.read_words(words)
    }
}

#[test]
fn attaching_returns_the_grants_of_the_session() {
    let fixture = Fixture::new();
    let (mut one, mut two) = (RespConnection::new(&fixture), RespConnection::new(&fixture));
    assert_eq!(one.ask("SESSION OPEN 60000", 5), "%2 session :1 ttl_ms :60000");
    assert_eq!(one.ask("LOCK ACQUIRE a SESSION 1", 7), "%3 token :1 session :1 ttl_ms :60000");
    assert_eq!(one.ask("LOCK ACQUIRE b SESSION 1", 7), "%3 token :2 session :1 ttl_ms :60000");
    assert_eq!(two.ask("SESSION ATTACH 1", 9), "%3 session :1 ttl_ms :60000 held *2 :1 :2");
    assert_eq!(two.ask("LOCK BREAK a REASON because BY me", 5), "%2 grants :1 moved_to :3");
    // Both connections get the push: the new one, and the old one while it exists.
    for line in [&mut one, &mut two] {
        assert_eq!(line.read_words(8), ">7 lost :1 :1 forced me because :3");
    }
    assert_eq!(two.ask("SESSION ATTACH 1", 8), "%3 session :1 ttl_ms :60000 held *1 :2");
}

#[test]
fn a_repeated_request_whose_grant_has_ended_gets_the_grant_and_its_end() {
    let fixture = Fixture::new();
    let (mut one, mut two) = (RespConnection::new(&fixture), RespConnection::new(&fixture));
    one.ask("SESSION OPEN 60000", 5);
    one.ask("LOCK ACQUIRE a SESSION 1 REQ 1 ASYNC", 7);
    assert_eq!(two.ask("LOCK ACQUIRE a SESSION 1 REQ 1 ASYNC", 7), "%3 token :1 session :1 ttl_ms :60000");
    one.ask("LOCK BREAK a REASON because BY me", 5);
    assert_eq!(two.ask("LOCK ACQUIRE a SESSION 1 REQ 1 ASYNC", 7), "%3 token :1 session :1 ttl_ms :60000");
    assert_eq!(two.read_words(8), ">7 lost :1 :1 ended _ _ _");
}

#[test]
fn a_grant_is_pushed_to_every_connection_that_requested_it() {
    let fixture = Fixture::new();
    let (mut one, mut two) = (RespConnection::new(&fixture), RespConnection::new(&fixture));
    one.ask("SESSION OPEN 60000", 5);
    one.ask("LOCK ACQUIRE a SESSION 1 REQ 1", 7);
    for line in [&mut one, &mut two] {
        assert_eq!(line.ask("LOCK ACQUIRE a SESSION 1 REQ 2 ASYNC", 1), "+QUEUED");
    }
    assert_eq!(two.ask("LOCK RELEASE a 1", 1), ":1");
    for line in [&mut one, &mut two] {
        assert_eq!(line.read_words(5), ">4 granted :1 :2 :2");
    }
}

#[test]
fn a_connection_gets_an_event_once() {
    let fixture = Fixture::new();
    let (mut one, mut two) = (RespConnection::new(&fixture), RespConnection::new(&fixture));
    for prefix in ["a", "a/b", "a", "c"] {
        assert_eq!(one.ask(&format!("LOCK WATCH {prefix}"), 1), "+OK");
    }
    two.ask("SESSION OPEN 60000", 5);
    let granted = |token, name| format!(">2 event %4 event granted locks *1 {name} session :1 token :{token}");
    two.ask("LOCK ACQUIRE a/b SESSION 1", 7);
    two.ask("LOCK ACQUIRE c SESSION 1", 7);
    assert_eq!(one.read_words(12), granted(1, "a/b"));
    assert_eq!(one.read_words(12), granted(2, "c"));
    assert_eq!(one.ask("LOCK UNWATCH a/b", 1), "+OK");
    two.ask("LOCK ACQUIRE a/b/d SESSION 1", 7);
    assert_eq!(one.read_words(12), granted(3, "a/b/d"));
    assert_eq!(one.ask("LOCK UNWATCH a", 1), "+OK");
    two.ask("LOCK ACQUIRE a/e SESSION 1", 7);
    two.ask("LOCK ACQUIRE c/e SESSION 1", 7);
    assert_eq!(one.read_words(12), granted(5, "c/e"));
}

#[test]
fn time_while_the_service_was_paused_does_not_count() {
    let fixture = Fixture::new();
    let (mut lives, mut other) = (RespConnection::new(&fixture), RespConnection::new(&fixture));
    // Long enough that the session lives until the service is stopped.
    assert_eq!(lives.ask("SESSION OPEN 15000", 5), "%2 session :1 ttl_ms :15000");
    assert_eq!(lives.ask("LOCK ACQUIRE a SESSION 1", 7), "%3 token :1 session :1 ttl_ms :15000");
    fixture.service.stop();
    // The standstill is the fault: longer than the session lives.
    std::thread::sleep(Duration::from_secs(20));
    fixture.service.go_on();
    // Whichever request comes first after that, no other client gets the lock before the holder can send a keep-alive.
    assert_eq!(other.ask("LOCK ACQUIRE a TTL 60000", 1), "_");
    assert_eq!(lives.ask("SESSION KEEPALIVE 1", 2), "*1 :15000");
}

#[test]
fn a_blocking_connection_never_waits_for_itself() {
    let fixture = Fixture::new();
    let mut connection = RespConnection::new(&fixture);
    assert_eq!(connection.ask("SESSION OPEN 60000", 5), "%2 session :1 ttl_ms :60000");
    assert_eq!(connection.ask("LOCK ACQUIRE a SESSION 1", 7), "%3 token :1 session :1 ttl_ms :60000");
    assert!(connection.ask("LOCK ACQUIRE a SESSION 1 WAIT 60000", 1).starts_with("-HELD "));
    // A try, and a wait on a connection with other requests, may belong to another task.
    assert_eq!(connection.ask("LOCK ACQUIRE a SESSION 1", 1), "_");
    assert_eq!(connection.ask("LOCK ACQUIRE a SESSION 1 WAIT 60000 REQ 7 ASYNC", 1), "+QUEUED");
}

/// After a restart all sessions have the same deadline. Each write ends 256 of them. On a busy machine this process may not run
/// while they end, so there are several attempts; a service that answered nothing meanwhile would pass none of them.
#[test]
fn clients_are_served_while_many_sessions_expire() {
    assert!(
        (0..5).any(|_| is_served_while_many_sessions_expire()),
        "all sessions ended before any request was answered"
    );
}

/// Returns whether an answer came after the end of some of many sessions, and before the end of the others.
fn is_served_while_many_sessions_expire() -> bool {
    const LOCKS: usize = 20_000;
    const PROBES: usize = 16;
    let mut fixture = Fixture::new();
    let mut holder = RespConnection::new(&fixture);
    for first in (0..LOCKS).step_by(500) {
        let commands: Vec<_> = (first..first + 500).map(|lock| format!("LOCK ACQUIRE a/{lock} TTL 10000")).collect();
        holder.send_all(commands.iter().map(String::as_str));
        holder.read_words(7 * 500);
    }
    fixture.service.kill();
    fixture.service.restart().expect("it starts again");
    let mut other = RespConnection::new(&fixture);
    let mut left: Vec<_> = (0..LOCKS).step_by(LOCKS / PROBES).collect();
    let mut were_all_held = false;
    loop {
        // They share a write, so either all of them come before the end of a session, or none.
        let commands: Vec<_> = left.iter().map(|lock| format!("LOCK ACQUIRE a/{lock} TTL 60000")).collect();
        other.send_all(commands.iter().map(String::as_str));
        left.retain(|_| {
            let is_held = other.read_words(1) == "_";
            if !is_held {
                other.read_words(6);
            }
            is_held
        });
        match left.len() {
            0 => return false,
            PROBES => were_all_held = true,
            // Otherwise some have ended while the others were opened.
            _ if were_all_held => return true,
            _ => {}
        }
    }
}
