//! Writers that continue through every outage of their resource.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use palisade_fence::{Error, Sealed, Settled, Token};

use super::bench::{Subject, ok, token_of};
use crate::bounded::{BOUND, block_until, bound_for, check};

/// Between two attempts while the resource is down.
const PAUSE: Duration = Duration::from_millis(5);
/// How many writes are made under one token.
const WRITES: u64 = 20;

/// Counts upwards in a separate resource until `stop` is set, with a new token every few writes. Every read must return
/// what the writer has counted: no acknowledged write is lost, none is applied twice, and a write whose reply was lost is
/// settled. Returns the last number. `progress` always has the number so far.
async fn count_through_outages<S: Subject>(subject: &S, name: &str, stop: &AtomicBool, progress: &AtomicU64) -> u64 {
    let mut counted = 0;
    let mut token = 0;
    while !stop.load(Ordering::Relaxed) {
        token += 1;
        let sealed = retry(async || Sealed::seal(subject.open(name).await?, token_of(token)).await);
        let mut handle = sealed.await;
        for _ in 0..WRITES {
            let answer = retry(async || handle.read(subject.get()).await).await;
            assert_eq!(subject.number(answer), counted, "{name} under token {token}");
            counted += u64::from(write(subject, &mut handle, counted + 1).await);
            progress.store(counted, Ordering::Relaxed);
        }
    }
    counted
}

/// Writes once, and returns whether the write was applied.
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

/// Retries until the resource is up.
async fn retry<T>(attempt: impl AsyncFn() -> Result<T, Error>) -> T {
    loop {
        match attempt().await {
            Err(error) if error.is_retryable() => tokio::time::sleep(PAUSE).await,
            other => return ok(other),
        }
    }
}

/// Runs writers, each on a separate resource, through this number of outages. `outage` begins and ends one. The first one may come
/// before anything is written, and each other one after more writes.
pub fn survive<S: Subject>(subject: &S, outages: u32, mut outage: impl FnMut()) {
    const WRITERS: usize = 3;
    let stop = &AtomicBool::new(false);
    let progress = &[const { AtomicU64::new(0) }; WRITERS];
    let bound = bound_for(outages, Duration::from_secs(10));
    let name = |writer: usize| format!("writer-{writer}");
    let counted = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let counting =
                    move || check(bound, count_through_outages(subject, &name(writer), stop, &progress[writer]));
                scope.spawn(counting)
            })
            .collect();
        let counts = || progress.each_ref().map(|count| count.load(Ordering::Relaxed));
        // A writer that has failed says why when it is joined.
        let has_failed = || writers.iter().any(|writer| writer.is_finished());
        for number in 0..outages {
            let before = counts();
            block_until("the writers get on", || number == 0 || has_failed() || counts() != before);
            outage();
        }
        block_until("each writer has written", || has_failed() || !counts().contains(&0));
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
