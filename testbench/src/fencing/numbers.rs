//! Numbered writes: delivered twice, late, or not at all, they are applied once or never.

use std::future::Future;

use palisade_fence::{ErrorKind, Settled};

use super::bench::{Bench, Subject, ok, refused, stale};
use super::wire::Act;
use crate::bounded::until;

/// The last write, delivered twice.
pub async fn a_repeated_write_is_applied_once_and_has_the_same_outcome<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut handle = bench.sealed(&wire, 33).await;
    ok(bench.set(&mut handle, 1).await);
    let outcome = ok(bench.set(&mut handle, 2).await);
    let again = wire.deliver_again(1).await;
    assert_eq!(ok(again), Some(outcome), "a repeat has the outcome of the first");
    wire.next(Act::Repeat);
    ok(bench.set(&mut handle, 3).await);
    assert_eq!(ok(bench.get(&handle).await), 3);
    ok(bench.set(&mut handle, 4).await);
    assert_eq!(ok(bench.get(&handle).await), 4);
}

/// A write that is delivered again after the next one.
pub async fn a_write_that_comes_again_later_is_not_applied<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut handle = bench.sealed(&wire, 33).await;
    ok(bench.set(&mut handle, 1).await);
    ok(bench.set(&mut handle, 2).await);
    refused(wire.deliver_again(0).await, |kind| matches!(kind, ErrorKind::Gap { expected } if expected.get() == 3));
    assert_eq!(ok(bench.get(&handle).await), 2);
}

/// A number that is not the next one.
pub async fn a_gap_is_refused<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    wire.next(Act::Skip);
    let mut handle = bench.sealed(&wire, 33).await;
    let gap = bench.set(&mut handle, 100).await;
    refused(gap, |kind| matches!(kind, ErrorKind::Gap { expected } if expected.get() == 1));
    assert_eq!(bench.look("r", 34).await, 0);
}

/// The answer was lost, the write was not.
pub async fn a_write_whose_answer_was_lost_is_settled_as_applied<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut handle = bench.sealed(&wire, 33).await;
    wire.next(Act::LoseAnswer);
    let error = bench.set(&mut handle, 1).await.expect_err("its answer is lost");
    assert!(error.may_have_taken_effect(), "{error}");
    let stored = ok(wire.deliver_again(0).await).expect("it was applied");
    assert_eq!(ok(handle.settle().await), Settled::Applied(stored));
    assert_eq!(ok(bench.get(&handle).await), 1);
    ok(bench.set(&mut handle, 2).await);
    assert_eq!(ok(bench.get(&handle).await), 2);
}

/// The write was held up. Whatever arrives later, it is not applied, and not mistaken for another.
pub async fn a_write_that_was_lost_is_settled_as_never_applied_and_stays_so<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut handle = bench.sealed(&wire, 33).await;
    ok(bench.set(&mut handle, 1).await);
    wire.next(Act::HoldUp);
    bench.set(&mut handle, 100).await.expect_err("it is held up");
    assert_eq!(ok(handle.settle().await), Settled::NeverApplied);
    assert_eq!(ok(wire.deliver().await), None, "it finds its number used up, for nothing");
    assert_eq!(ok(bench.get(&handle).await), 1);
    wire.next(Act::HoldUp);
    bench.set(&mut handle, 100).await.expect_err("it is held up");
    assert_eq!(ok(handle.settle().await), Settled::NeverApplied);
    ok(bench.set(&mut handle, 2).await);
    refused(wire.deliver().await, |kind| matches!(kind, ErrorKind::Gap { .. }));
    assert_eq!(ok(bench.get(&handle).await), 2);
}

/// The answer to settling can be lost too.
pub async fn settling_can_be_repeated<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut handle = bench.sealed(&wire, 33).await;
    assert_eq!(ok(handle.settle().await), Settled::Nothing);
    wire.next(Act::HoldUp);
    bench.set(&mut handle, 100).await.expect_err("it is held up");
    wire.next(Act::LoseAnswer);
    handle.settle().await.expect_err("its answer is lost");
    assert!(!handle.is_settled());
    assert_eq!(ok(handle.settle().await), Settled::NeverApplied);

    wire.next(Act::LoseAnswer);
    bench.set(&mut handle, 1).await.expect_err("its answer is lost");
    wire.next(Act::LoseAnswer);
    handle.settle().await.expect_err("its answer is lost");
    assert!(matches!(ok(handle.settle().await), Settled::Applied(_)));
    assert_eq!(ok(handle.settle().await), Settled::Nothing);
    assert_eq!(ok(bench.get(&handle).await), 1);
}

/// Another write under the same number could be taken for the first one's repeat.
pub async fn what_is_not_settled_is_neither_read_nor_written<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut handle = bench.sealed(&wire, 33).await;
    wire.next(Act::HoldUp);
    bench.set(&mut handle, 100).await.expect_err("it is held up");
    refused(bench.get(&handle).await, |kind| matches!(kind, ErrorKind::Unsettled));
    refused(bench.set(&mut handle, 2).await, |kind| matches!(kind, ErrorKind::Unsettled));
    ok(wire.deliver().await).expect("it is applied now");
    assert!(matches!(ok(handle.settle().await), Settled::Applied(_)));
    assert_eq!(ok(bench.get(&handle).await), 100);
}

/// Dropping the future of a write leaves its outcome open, not lost.
pub async fn a_write_that_was_dropped_midway_is_settled<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut handle = bench.sealed(&wire, 33).await;
    wire.next(Act::Hang);
    {
        let mut write = std::pin::pin!(bench.set(&mut handle, 1));
        let mut applied = std::pin::pin!(until("the write is applied", async || bench.look("r", 33).await == 1));
        // Poll both: the read may have to wait for a write that is half done.
        std::future::poll_fn(|context| {
            assert!(write.as_mut().poll(context).is_pending(), "its answer never comes");
            applied.as_mut().poll(context)
        })
        .await;
    }
    assert!(!handle.is_settled());
    assert!(matches!(ok(handle.settle().await), Settled::Applied(_)));
    ok(bench.set(&mut handle, 2).await);
    assert_eq!(bench.look("r", 34).await, 2);
}

/// Two holders are overtaken one after the other, and the older one's write arrives first: what a ratchet gets wrong.
pub async fn a_late_write_of_an_overtaken_holder_changes_nothing<S: Subject>(bench: &Bench<S>) {
    let (one, two) = (bench.wire("r").await, bench.wire("r").await);
    let mut first = bench.sealed(&one, 33).await;
    one.next(Act::HoldUp);
    bench.set(&mut first, 100).await.expect_err("it is held up");
    let mut second = bench.sealed(&two, 34).await;
    let seen = ok(bench.get(&second).await);
    refused(one.deliver().await, stale(34));
    ok(bench.set(&mut second, seen + 1).await);
    assert_eq!(bench.look("r", 35).await, 1);
}

/// An overtaken writer learns it from settling too; its write is never applied.
pub async fn settling_after_a_takeover_is_refused<S: Subject>(bench: &Bench<S>) {
    let (one, two) = (bench.wire("r").await, bench.wire("r").await);
    let mut first = bench.sealed(&one, 33).await;
    one.next(Act::HoldUp);
    bench.set(&mut first, 100).await.expect_err("it is held up");
    let second = bench.sealed(&two, 34).await;
    refused(first.settle().await, stale(34));
    refused(one.deliver().await, stale(34));
    assert_eq!(ok(bench.get(&second).await), 0);
}
