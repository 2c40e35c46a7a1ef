//! Untrusted input over RESP: any bytes, and commands of any words. `PROPTEST_CASES=1000000` tries more.

use palisade_server::resp::Command;
use palisade_server::resp::frame::{Bounds, words};
use proptest::collection::vec;
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds { words: 8, bytes: 256 };

fn encoded(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Bytes that look like a command, as often as not.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"-1".to_vec()),
        (0u64..40).prop_map(|number| number.to_string().into_bytes()),
        Just(u64::MAX.to_string().into_bytes()),
        vec(any::<u8>(), 0..12),
    ];
    vec(part, 0..24).prop_map(|parts| parts.concat())
}

/// Words of all commands, and some others.
const WORDS: &[&str] = &[
    "SESSION",
    "OPEN",
    "KEEPALIVE",
    "CLOSE",
    "ATTACH",
    "LOCK",
    "ACQUIRE",
    "ALL",
    "RELEASE",
    "CANCEL",
    "PUBLISH",
    "SHOW",
    "LIST",
    "WATCH",
    "UNWATCH",
    "BREAK",
    "RESIZE",
    "TOKENS",
    "RAISE",
    "CAMPAIGN",
    "OBSERVE",
    "HELLO",
    "AUTH",
    "CLIENT",
    "DETAIL",
    "ON",
    "TTL",
    "SHARED",
    "EXCLUSIVE",
    "PERMITS",
    "OF",
    "WAIT",
    "DELAY",
    "REQ",
    "ASYNC",
    "VALUE",
    "REASON",
    "TOKEN",
    "BY",
    "CURSOR",
    "COUNT",
    "LABEL",
    "0",
    "1",
    "2",
    "3",
    "30000",
    "18446744073709551615",
    "9007199254740992",
    "-1",
    "1/2",
    "orders/42",
    "$mine",
    "",
];

/// Returns a word of a command, or any other.
fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => proptest::sample::select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_a_command_or_none(bytes in prop_oneof![vec(any::<u8>(), 0..300), nearly()]) {
        if let Ok(Some(found)) = words(&bytes, BOUNDS) {
            prop_assert!(found.end <= bytes.len() && found.end <= BOUNDS.bytes && found.at.len() <= BOUNDS.words);
            prop_assert!(found.at.iter().all(|word| word.end <= found.end));
            let command: Vec<Vec<u8>> = found.at.iter().map(|word| bytes[word.clone()].to_vec()).collect();
            let again = encoded(&command);
            let found = words(&again, Bounds::default()).expect("it is a command").expect("it is whole");
            prop_assert_eq!(found.end, again.len());
        }
    }

    #[test]
    fn a_command_is_read_as_it_was_written_however_it_arrives(
        command in vec(vec(any::<u8>(), 0..20), 1..8),
        rest in vec(any::<u8>(), 0..20),
    ) {
        let whole = encoded(&command);
        for cut in 0..whole.len() {
            prop_assert_eq!(words(&whole[..cut], BOUNDS), Ok(None));
        }
        let bytes = [whole.clone(), rest].concat();
        let found = words(&bytes, BOUNDS).expect("it is a command").expect("it is whole");
        prop_assert_eq!(found.end, whole.len());
        let read: Vec<&[u8]> = found.at.iter().map(|word| &bytes[word.clone()]).collect();
        prop_assert_eq!(read, command.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }

    #[test]
    fn any_words_are_parsed_or_refused_in_one_line(command in vec(word(), 0..14)) {
        let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        if let Err(bad) = Command::parse(&command) {
            prop_assert!(!bad.to_string().contains(['\r', '\n', '\u{1b}']), "{bad}");
        }
    }
}
