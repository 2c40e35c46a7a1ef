//! A writer that goes on through every outage of what it writes to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade_fence::{Error, Sealed, Settled, Token};

use super::bench::{Subject, ok, token_of};
use crate::bounded::{BOUND, bound_for, check};

/// Between two attempts while the resource is away.
const PAUSE: Duration = Duration::from_millis(5);
/// How many writes are made under one token.
const WRITES: u64 = 20;

/// Counts upwards in a resource of its own until it is told to stop, under a new token every few writes. Whatever the
/// outages, what it reads is what it has counted: nothing acknowledged is lost, nothing applied twice, and a write whose
/// answer was lost is found out about. Says how far it came.
async fn count_through_outages<S: Subject>(subject: &S, name: &str, stop: &AtomicBool) -> u64 {
    let mut counted = 0;
    let mut token = 0;
    while !stop.load(Ordering::Relaxed) {
        token += 1;
        let sealed = in_the_end(async || Sealed::seal(subject.open(name).await?, token_of(token)).await);
        let mut handle = sealed.await;
        for _ in 0..WRITES {
            let answer = in_the_end(async || handle.read(subject.get()).await).await;
            assert_eq!(subject.number(answer), counted, "{name} under token {token}");
            counted += u64::from(write(subject, &mut handle, counted + 1).await);
        }
    }
    counted
}

/// Writes once, and finds out whether it was applied.
async fn write<S: Subject>(subject: &S, handle: &mut Sealed<S::Resource>, number: u64) -> bool {
    match handle.write(subject.set(number)).await {
        Ok(_) => return true,
        Err(error) if !error.may_have_taken_effect() => {
            assert!(error.is_retryable(), "{error}");
            tokio::time::sleep(PAUSE).await;
        }
        Err(_) => {}
    }
    loop {
        match handle.settle().await {
            Ok(Settled::Applied(_)) => return true,
            Ok(Settled::NeverApplied | Settled::Nothing) => return false,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tries until the resource is there.
async fn in_the_end<T>(attempt: impl AsyncFn() -> Result<T, Error>) -> T {
    loop {
        match attempt().await {
            Err(error) if error.is_retryable() => tokio::time::sleep(PAUSE).await,
            other => return ok(other),
        }
    }
}

/// Runs writers, each on a resource of its own, through so many outages. An outage begins at any moment and has ended
/// when the function returns.
pub fn survive<S: Subject>(subject: &S, outages: u32, mut outage: impl FnMut()) {
    const WRITERS: usize = 3;
    let stop = &AtomicBool::new(false);
    let bound = bound_for(outages, Duration::from_secs(10));
    let name = |writer: usize| format!("writer-{writer}");
    let counted = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || check(bound, count_through_outages(subject, &name(writer), stop))))
            .collect();
        (0..outages).for_each(|_| outage());
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join()).collect::<Vec<_>>()
    });
    for (writer, counted) in counted.into_iter().enumerate() {
        let counted = counted.expect("it has found no contradiction");
        assert!(counted > 0, "writer {writer} got nothing done");
        let read = check(BOUND, async {
            let resource = ok(subject.open(&name(writer)).await);
            let handle = ok(Sealed::seal(resource, Token::MAX).await);
            ok(handle.read(subject.get()).await)
        });
        assert_eq!(subject.number(read), counted, "writer {writer}");
    }
}
