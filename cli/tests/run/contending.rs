//! Many processes, one lock.

use std::fs;

use crate::fixture::{Fixture, Running};

/// Reads a number, and writes the next one: two at once lose one.
const INCREMENT: &str = "n=$(cat number); echo $PALISADE_TOKEN >> tokens; echo $((n + 1)) > number";

/// Starts all processes at once, and checks the final number and the tokens.
fn increment(fixture: &Fixture, processes: usize, script: &str, expected: usize) {
    fs::write(fixture.file("number"), "0\n").unwrap();
    let all: Vec<Running> = (0..processes).map(|_| fixture.start(&["number"], script)).collect();
    for one in all {
        one.end().expect(0, &[]);
    }
    assert_eq!(fixture.read("number").trim(), expected.to_string());
    let tokens: Vec<u64> = fixture.read("tokens").lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), expected);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn twenty_concurrent_increments_make_twenty() {
    increment(&Fixture::new(), 20, INCREMENT, 20);
}

#[test]
fn two_loops_of_increments_lose_nothing() {
    let fixture = Fixture::new();
    fs::write(fixture.file("number"), "0\n").unwrap();
    let rounds = format!("for round in 1 2 3 4 5 6 7 8; do palisade run number -- sh -c '{INCREMENT}' || exit; done");
    // Each loop runs under a separate lock, only because the fixture starts nothing without one.
    let loops = ["one", "two"].map(|name| fixture.start(&[name], &rounds));
    for one in loops {
        one.end().expect(0, &[]);
    }
    assert_eq!(fixture.read("number"), "16\n");
    let tokens: Vec<u64> = fixture.read("tokens").lines().map(|token| token.parse().unwrap()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn shared_holders_overlap_and_a_writer_is_alone() {
    let fixture = Fixture::new();
    let mut readers = [(); 2].map(|()| fixture.start(&["--shared", "table"], "echo in; read go"));
    readers.iter_mut().for_each(|reader| reader.expect("in"));
    let writer = fixture.queue(&["table"], "echo wrote");
    for mut reader in readers {
        reader.send_line("go");
        reader.end().expect(0, &[]);
    }
    writer.end().expect(0, &["wrote"]);
}

#[test]
fn a_semaphore_never_grants_more_than_its_limit() {
    let fixture = Fixture::new();
    let mut two = [(); 2].map(|()| fixture.start(&["--permits", "1/2", "gpu"], "echo in; read go"));
    two.iter_mut().for_each(|one| one.expect("in"));
    fixture.run(&["--permits", "1/2", "--no-wait", "gpu"], "echo in").expect_failure(75, "'gpu' was not acquired");
    two[0].send_line("go");
    fixture.run(&["--permits", "1/2", "gpu"], "echo in").expect(0, &["in"]);
}

#[test]
fn several_locks_are_taken_all_at_once() {
    let fixture = Fixture::new();
    let script = r#"printf '%s\n' "$PALISADE_LOCK"; read go"#;
    let mut both = fixture.start(&["accounts/2", "accounts/1"], script);
    assert_eq!([both.line(), both.line()], ["accounts/2", "accounts/1"]);
    for one in ["accounts/1", "accounts/2"] {
        fixture.run(&["--no-wait", one], "echo in").expect_failure(75, "held by");
    }
    both.send_line("go");
    both.end().expect(0, &[]);
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let fixture = Fixture::new();
    let mut first = fixture.start(&["orders"], "echo in; read go; echo 1 >> order");
    first.expect("in");
    let others = ["2", "3", "4"].map(|number| fixture.queue(&["orders"], &format!("echo {number} >> order")));
    first.send_line("go");
    for one in others {
        one.end().expect(0, &[]);
    }
    assert_eq!(fixture.read("order"), "1\n2\n3\n4\n");
}
