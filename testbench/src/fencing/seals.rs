//! Sealing, and the refusals that follow from it.

use palisade_fence::{ErrorKind, Sealed, Token};

use super::bench::{Bench, Subject, ok, refused, stale, superseded, token_of};
use super::wire::Act;

/// One holder after another, without faults.
pub async fn what_is_sealed_can_be_read_and_written<S: Subject>(bench: &Bench<S>) {
    let resource = bench.open("r").await;
    let mut handle = ok(Sealed::seal(resource, token_of(33)).await);
    assert_eq!(ok(bench.get(&handle).await), 0, "it is new");
    for number in 1..=3 {
        ok(bench.set(&mut handle, number).await);
        assert_eq!(ok(bench.get(&handle).await), number);
    }
    assert_eq!(bench.look("r", 34).await, 3);
}

/// Tokens only go up.
pub async fn an_older_seal_is_refused<S: Subject>(bench: &Bench<S>) {
    let resource = bench.open("r").await;
    let mut newer = ok(Sealed::seal(resource.clone(), token_of(34)).await);
    ok(bench.set(&mut newer, 1).await);
    refused(Sealed::seal(resource, token_of(33)).await, superseded(34));
    assert_eq!(ok(bench.get(&newer).await), 1);
}

/// A seal alone is enough.
pub async fn an_older_seal_is_refused_though_the_newer_one_wrote_nothing<S: Subject>(bench: &Bench<S>) {
    let resource = bench.open("r").await;
    let _newer = ok(Sealed::seal(resource.clone(), token_of(34)).await);
    refused(Sealed::seal(resource, token_of(33)).await, superseded(34));
}

/// The paused holder writes after its successor has sealed, before and after the successor has written.
pub async fn a_stale_write_is_refused_after_a_seal<S: Subject>(bench: &Bench<S>) {
    let resource = bench.open("r").await;
    let mut paused = ok(Sealed::seal(resource.clone(), token_of(33)).await);
    ok(bench.set(&mut paused, 1).await);
    let mut newer = ok(Sealed::seal(resource, token_of(34)).await);
    refused(bench.set(&mut paused, 100).await, stale(34));
    assert_eq!(ok(bench.get(&newer).await), 1);
    ok(bench.set(&mut newer, 2).await);
    refused(bench.set(&mut paused, 100).await, stale(34));
    assert_eq!(ok(bench.get(&newer).await), 2);
}

/// An overtaken holder might act on what it reads, so it may not read either.
pub async fn a_stale_read_is_refused_after_a_seal<S: Subject>(bench: &Bench<S>) {
    let resource = bench.open("r").await;
    let paused = ok(Sealed::seal(resource.clone(), token_of(33)).await);
    let _newer = ok(Sealed::seal(resource, token_of(34)).await);
    refused(bench.get(&paused).await, stale(34));
}

/// A seal that never arrived.
pub async fn what_was_never_sealed_is_neither_read_nor_written<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    wire.next(Act::Pretend);
    let mut handle = bench.sealed(&wire, 33).await;
    refused(bench.get(&handle).await, |kind| matches!(kind, ErrorKind::NotSealed));
    refused(bench.set(&mut handle, 1).await, |kind| matches!(kind, ErrorKind::NotSealed));
    assert_eq!(bench.look("r", 34).await, 0);
}

/// A token that is newer than the mark has not sealed yet: it must be refused.
pub async fn a_token_that_has_not_sealed_is_refused<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut sealed = bench.sealed(&wire, 33).await;
    wire.next(Act::Pretend);
    let mut newer = bench.sealed(&wire, 34).await;
    refused(bench.get(&newer).await, |kind| matches!(kind, ErrorKind::NotSealed));
    refused(bench.set(&mut newer, 100).await, |kind| matches!(kind, ErrorKind::NotSealed));
    ok(bench.set(&mut sealed, 1).await);
    assert_eq!(bench.look("r", 35).await, 1);
}

/// What was acknowledged is there when the resource is opened again.
pub async fn marks_and_data_survive_a_reopening<S: Subject>(bench: &Bench<S>) {
    let mut handle = ok(Sealed::seal(bench.open("r").await, token_of(34)).await);
    ok(bench.set(&mut handle, 7).await);
    let again = bench.open("r").await;
    refused(Sealed::seal(again.clone(), token_of(33)).await, superseded(34));
    let mut handle = ok(Sealed::seal(again, token_of(34)).await);
    assert_eq!(ok(bench.get(&handle).await), 7);
    ok(bench.set(&mut handle, 8).await);
    assert_eq!(bench.look("r", 35).await, 8);
}

/// Sealing one resource affects no other.
pub async fn resources_have_marks_of_their_own<S: Subject>(bench: &Bench<S>) {
    let mut one = ok(Sealed::seal(bench.open("one").await, token_of(33)).await);
    let mut other = ok(Sealed::seal(bench.open("other").await, token_of(34)).await);
    ok(bench.set(&mut one, 1).await);
    ok(bench.set(&mut other, 2).await);
    assert_eq!((ok(bench.get(&one).await), ok(bench.get(&other).await)), (1, 2));
}

/// Names that begin alike, that differ in case only, or that contain words which an adapter uses for files and triggers.
const ALIKE: [&str; 12] = [
    "z",
    "Z",
    "z-1",
    "z.palisade",
    "z.palisade-1",
    "z.palisade-lock",
    "z-1-1-0",
    "z_insert",
    "z.z",
    "present",
    "seal",
    "mark",
];

/// Each of them has a mark and a number that sealing and writing the others leaves alone.
pub async fn names_that_are_alike_have_marks_of_their_own<S: Subject>(bench: &Bench<S>) {
    for (number, name) in (1..).zip(ALIKE) {
        let mut handle = ok(Sealed::seal(bench.open(name).await, token_of(100 + number)).await);
        ok(bench.set(&mut handle, number).await);
    }
    for (number, name) in (1..).zip(ALIKE) {
        refused(Sealed::seal(bench.open(name).await, token_of(99 + number)).await, superseded(100 + number));
        let mut handle = ok(Sealed::seal(bench.open(name).await, token_of(200 + number)).await);
        assert_eq!(ok(bench.get(&handle).await), number, "{name}");
        ok(bench.set(&mut handle, 50 + number).await);
    }
    for (number, name) in (1..).zip(ALIKE) {
        refused(Sealed::seal(bench.open(name).await, token_of(199 + number)).await, superseded(200 + number));
        assert_eq!(bench.look(name, 300).await, 50 + number, "{name}");
    }
}

/// A change that the resource cannot make is refused, leaves everything as it was, and neither its holder
/// nor the next one is refused afterwards.
pub async fn an_impossible_change_changes_nothing<S: Subject>(bench: &Bench<S>) {
    let resource = bench.open("r").await;
    let mut handle = ok(Sealed::seal(resource.clone(), token_of(33)).await);
    ok(bench.set(&mut handle, 1).await);
    for (at, change) in (0..).zip(bench.subject.impossible()) {
        let rejected = |kind: &ErrorKind| matches!(kind, ErrorKind::Rejected { .. } | ErrorKind::Misuse { .. });
        refused(handle.write(change).await, rejected);
        assert_eq!(ok(bench.get(&handle).await), 1 + at, "nothing has changed");
        ok(bench.set(&mut handle, 2 + at).await);
        let mut next = ok(Sealed::seal(resource.clone(), token_of(34 + at)).await);
        assert_eq!(ok(bench.get(&next).await), 2 + at);
        ok(bench.set(&mut next, 2 + at).await);
        handle = next;
    }
}

/// Up to 2^53 - 1, without rounding. (0 and what is above are no [`Token`]s.)
pub async fn the_last_token_is_a_token<S: Subject>(bench: &Bench<S>) {
    let resource = bench.open("r").await;
    let last = Token::MAX.get();
    let mut before = ok(Sealed::seal(resource.clone(), token_of(last - 1)).await);
    ok(bench.set(&mut before, 1).await);
    let mut handle = ok(Sealed::seal(resource.clone(), Token::MAX).await);
    refused(bench.set(&mut before, 100).await, stale(last));
    ok(bench.set(&mut handle, 2).await);
    refused(Sealed::seal(resource, token_of(last - 1)).await, superseded(last));
}

/// A typed error, and nothing changed.
pub async fn a_bad_name_is_refused<S: Subject>(bench: &Bench<S>) {
    for name in bench.subject.bad_names() {
        let Err(error) = bench.subject.open(&name).await else { panic!("{name:?} must be refused") };
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{name:?}: {error} ({:?})", error.kind());
        assert!(!error.to_string().contains(char::is_control), "{name:?} is escaped: {error}");
    }
}
