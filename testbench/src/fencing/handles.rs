//! Several handles at once.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_fence::{ErrorKind, Sealed};

use super::bench::{Bench, Subject, ok, refused, token_of};
use super::wire::Act;

/// A repeated seal, whether by the same handle's message or by a later step of the same work, resets nothing.
pub async fn sealing_again_goes_on_with_the_numbers<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    wire.next(Act::Repeat);
    let mut first = bench.sealed(&wire, 33).await;
    ok(bench.set(&mut first, 1).await);
    ok(bench.set(&mut first, 2).await);
    let mut second = bench.sealed(&wire, 33).await;
    refused(wire.deliver_again(0).await, |kind| matches!(kind, ErrorKind::Gap { .. }));
    assert_eq!(ok(bench.get(&second).await), 2);
    ok(bench.set(&mut second, 3).await);
    assert_eq!(bench.look("r", 34).await, 3);
}

/// The second write under one number is refused.
pub async fn two_handles_under_one_token_never_take_each_others_writes<S: Subject>(bench: &Bench<S>) {
    let wire = bench.wire("r").await;
    let mut one = bench.sealed(&wire, 33).await;
    let mut two = bench.sealed(&wire, 33).await;
    let (seen_by_one, seen_by_two) = (ok(bench.get(&one).await), ok(bench.get(&two).await));
    ok(bench.set(&mut one, seen_by_one + 1).await);
    refused(bench.set(&mut two, seen_by_two + 1).await, |kind| matches!(kind, ErrorKind::Gap { .. }));
    let mut two = bench.sealed(&wire, 33).await;
    let seen = ok(bench.get(&two).await);
    ok(bench.set(&mut two, seen + 1).await);
    assert_eq!(bench.look("r", 34).await, 2);
}

/// Many tasks read and write one number, each with another token, while others overtake them. What was acknowledged is
/// there; what may have taken effect, because its holder was overtaken before it could find out, may be.
pub async fn increments_under_rising_tokens_are_never_lost<S: Subject>(bench: &Bench<S>) {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 6;
    let (tokens, done, maybe) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let resource = bench.open("r").await;
        let (bench, tokens, done, maybe) = (bench.clone(), tokens.clone(), done.clone(), maybe.clone());
        tasks.push(async move {
            for _ in 0..ROUNDS {
                let token = token_of(tokens.fetch_add(1, Ordering::Relaxed) + 1);
                let counted = increments(&bench, &resource, token).await;
                done.fetch_add(counted.done, Ordering::Relaxed);
                maybe.fetch_add(counted.maybe, Ordering::Relaxed);
            }
        });
    }
    all(tasks).await;
    let (done, maybe) = (done.load(Ordering::Relaxed), maybe.load(Ordering::Relaxed));
    assert!(done > 0, "no task got anything done");
    let found = bench.look("r", tokens.load(Ordering::Relaxed) + 1).await;
    assert!((done..=done + maybe).contains(&found), "{found}, of {done} and perhaps {maybe} more");
}

/// Counts of increments.
struct Counted {
    done: u64,
    maybe: u64,
}

/// Up to three increments under one token, until it is overtaken.
async fn increments<S: Subject>(bench: &Bench<S>, resource: &S::Resource, token: palisade_fence::Token) -> Counted {
    let is_overtaken = |error: palisade_fence::Error| {
        assert!(error.overtaken_by().is_some(), "refused for another reason: {error}");
    };
    let mut counted = Counted { done: 0, maybe: 0 };
    let mut handle = match Sealed::seal(resource.clone(), token).await {
        Ok(handle) => handle,
        Err(error) => {
            is_overtaken(error);
            return counted;
        }
    };
    for _ in 0..3 {
        let number = match bench.get(&handle).await {
            Ok(number) => number,
            Err(error) => {
                is_overtaken(error);
                return counted;
            }
        };
        // Lets other tasks run.
        tokio::task::yield_now().await;
        match bench.set(&mut handle, number + 1).await {
            Ok(_) => counted.done += 1,
            Err(error) if error.may_have_taken_effect() => {
                is_overtaken(handle.settle().await.expect_err("it was overtaken"));
                counted.maybe += 1;
                return counted;
            }
            Err(error) => {
                is_overtaken(error);
                return counted;
            }
        }
    }
    counted
}

/// Runs all of them at once.
async fn all(tasks: Vec<impl Future<Output = ()>>) {
    let mut tasks: Vec<_> = tasks.into_iter().map(|task| Some(Box::pin(task))).collect();
    std::future::poll_fn(|context| {
        for task in &mut tasks {
            if task.as_mut().is_some_and(|running| running.as_mut().poll(context).is_ready()) {
                *task = None;
            }
        }
        match tasks.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}
