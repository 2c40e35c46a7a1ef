//! Bad input gets a typed error, changes nothing, and does not affect other clients.

use super::client::Value;
use crate::sandbox::Sandbox;

#[test]
fn every_bad_argument_is_refused_with_its_code_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let session = client.session();
    let before = state(&mut client);
    let long = "x".repeat(513);
    let longer = "x".repeat(1025);
    let mut output = String::new();
    for command in [
        "LOCK ACQUIRE  SESSION 1",
        &format!("LOCK ACQUIRE {long} SESSION 1"),
        &format!("LOCK ACQUIRE {longer} SESSION 1"),
        "LOCK ACQUIRE a\0b SESSION 1",
        "LOCK ACQUIRE a\x1b[2J SESSION 1",
        "LOCK ACQUIRE a\r\n+OK SESSION 1",
        "LOCK ACQUIRE $mine SESSION 1",
        "LOCK ACQUIRE a SESSION 99",
        "LOCK ACQUIRE a SESSION 0",
        "LOCK ACQUIRE a SESSION x",
        "LOCK ACQUIRE a a SESSION 1",
        "LOCK ACQUIRE a SESSION 1 PERMITS 3 OF 2",
        "LOCK ACQUIRE a SESSION 1 PERMITS 0 OF 2",
        "LOCK ACQUIRE a SESSION 1 DELAY 99999999999",
        "LOCK ACQUIRE a SESSION 1 REQ 0",
        "LOCK ACQUIRE a SESSION 1 SIDEWAYS",
        "LOCK ACQUIRE a",
        "SESSION OPEN 0",
        "SESSION OPEN -5",
        "SESSION OPEN 99",
        "SESSION OPEN 3888000001",
        "SESSION OPEN soon",
        "SESSION OPEN 99999999999999999999999",
        "SESSION OPEN 1e3",
        "SESSION OPEN",
        "SESSION OPEN 1000 LABEL",
        "SESSION OPEN 1000 LABEL a b",
        "SESSION CLOSE 99",
        "SESSION NAP 1",
        "LOCK RELEASE a 0",
        "LOCK RELEASE a 9007199254740993",
        "LOCK RELEASE a 5",
        "LOCK PUBLISH a 1 SESSION 1 VALUE x",
        "LOCK BREAK a REASON x",
        "LOCK BREAK a",
        "LOCK BREAK a REASON ",
        "LOCK RESIZE a 5",
        "TOKENS RAISE",
        "TOKENS RAISE x",
        "TOKENS RAISE 4503599627370497",
        "LOCK LIST",
        "HELLO 4",
        "HELLO x",
        "AUTH user secret",
        "AUTH",
        "HGET key field",
        "lock",
        "\x1b[31m",
        "",
    ] {
        // `SESSION 1` stands for the session that is open.
        let sent = command.replace(" SESSION 1", &format!(" SESSION {session}"));
        output += &format!("{} => {}\n", shortened(command).escape_debug(), client.refusal(&sent).escape_debug());
    }
    let id = session.to_string();
    for words in [
        &[&b"LOCK"[..], b"ACQUIRE", b"\xff\xfe", b"SESSION", id.as_bytes()][..],
        &[b"SESSION", b"OPEN", b"1000", b"LABEL", b"\xff"],
        &[b"SESSION", b"OPEN", b"1000", b"LABEL", &[b'x'; 257]],
        &[b"CAMPAIGN", b"a", b"SESSION", id.as_bytes(), b"VALUE", &[b'x'; 4097]],
    ] {
        let Value::Error(text) = client.send_command(words).answer() else { panic!("{words:?} was accepted") };
        let shown = String::from_utf8_lossy(&words.join(&b' ')).replace(&id, "1");
        output += &format!("{} => {text}\n", shortened(&shown));
    }
    insta::assert_snapshot!("bad-words", output);
    assert_eq!(state(&mut client), before);
    assert_eq!(client.call_ok(&format!("SESSION KEEPALIVE {session}")).to_string(), "[3600000]");
}

/// Returns the numbers of sessions, locks and tokens.
fn state(client: &mut super::client::Client) -> Vec<String> {
    let info = client.call_ok("INFO");
    let is_state = |line: &&str| ["sessions:", "locks:", "last_token:"].iter().any(|name| line.starts_with(name));
    let state: Vec<_> = info.text().lines().filter(is_state).map(str::to_owned).collect();
    assert_eq!(state.len(), 3, "{info}");
    state
}

fn shortened(text: &str) -> String {
    if text.len() > 80 { format!("{}… ({} bytes)", &text[..40], text.len()) } else { text.to_owned() }
}

#[test]
fn foreign_tokens_and_repeated_requests_are_distinguished() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let (one, two) = (client.session(), client.session());
    let a = client.call_ok(&format!("LOCK ACQUIRE a SESSION {one} REQ 1")).number("token");
    let b = client.call_ok(&format!("LOCK ACQUIRE b SESSION {two}")).number("token");
    let mut output = String::new();
    for command in [
        format!("LOCK RELEASE a {b}"),
        format!("LOCK RELEASE a {}", b + 1),
        format!("LOCK RELEASE a {a} SESSION {two}"),
        format!("LOCK RELEASE never {a}"),
        format!("LOCK ACQUIRE c SESSION {one} REQ 1"),
        format!("LOCK ACQUIRE a SESSION {one} WAIT 20"),
    ] {
        let shown = format!("{command} => {}\n", client.refusal(&command));
        output += &shown.replace(&one.to_string(), "ONE").replace(&two.to_string(), "TWO");
    }
    assert_eq!(client.call_ok("LOCK SHOW a").get("waiters").items(), []);
    let again = client.call_ok(&format!("LOCK ACQUIRE a SESSION {one} REQ 1"));
    assert_eq!(again.number("token"), a, "a repeat gets the first answer");
    assert_eq!(client.call(&format!("LOCK RELEASE a {a}")), Value::Number(1));
    let newer = client.call_ok(&format!("LOCK ACQUIRE a SESSION {two}")).number("token");
    output += &format!("released twice => {}\n", client.refusal(&format!("LOCK RELEASE a {a}")));
    let holders = client.call_ok("LOCK SHOW a").get("holders").clone();
    assert_eq!(holders.items()[0].number("token"), newer, "the newer grant is not affected");
    insta::assert_snapshot!("bad-tokens", output);
}

#[test]
fn malformed_frames_close_only_their_own_connection() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut other = service.resp3_client();
    let mut output = String::new();
    let huge = [b"*2\r\n$4\r\nPING\r\n$300000\r\n".as_slice(), &[b'x'; 300_000], b"\r\n"].concat();
    for (what, bytes) in [
        ("an oversized command", huge.as_slice()),
        ("a length that is too large", b"*1\r\n$999999999\r\nPING\r\n"),
        ("a length that is too small", b"*1\r\n$2\r\nPING\r\n"),
        ("a negative length", b"*1\r\n$-1\r\n"),
        ("too many words", b"*1000000\r\n"),
        ("a count that overflows", b"*99999999999999999999999999\r\n"),
        ("nested arrays", b"*1\r\n*1\r\n*1\r\n"),
        ("not the protocol", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("the beginning of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01"),
    ] {
        let mut client = service.client();
        output += &format!("{what} => {}", client.send(bytes).until_closed());
        assert_eq!(other.call("PING"), Value::Simple("PONG".to_owned()), "after {what}");
    }
    insta::assert_snapshot!("bad-frames", output.replace('\r', ""));
}

#[test]
fn requests_sent_before_a_half_close_are_answered() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.client();
    client.send_command(&[b"SESSION", b"OPEN", b"30000"]).send_command(&[b"PING"]).close_write();
    let replies = client.until_closed();
    assert!(replies.starts_with("*4\r\n$7\r\nsession\r\n:"), "{replies}");
    assert!(replies.ends_with("\r\n$6\r\nttl_ms\r\n:30000\r\n+PONG\r\n"), "{replies}");
}
