//! The blocking API needs no runtime.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use palisade::{Loss, Options, blocking};
use palisade_testbench::bounded::block_until;

use super::fixture::{BOUND, Fixture};

/// Checks a promise on another thread, which has no runtime.
fn check(promise: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel::<()>();
    let checking = thread::spawn(move || {
        promise();
        drop(done);
    });
    let waited = is_done.recv_timeout(BOUND);
    assert_ne!(waited, Err(RecvTimeoutError::Timeout), "it takes too long: something that should happen does not");
    checking.join().expect("it holds");
}

#[test]
fn threads_take_turns_without_any_runtime() {
    check(|| {
        let fixture = Fixture::new();
        let alice = blocking::connect(&fixture.url()).expect("a client");
        let bob = blocking::connect_with(Options::new().label("bob"), &fixture.url()).expect("a client");
        let held = alice.lock("lock").acquire().expect("it is free");
        assert!(bob.lock("lock").try_acquire().expect("an answer").is_none());
        assert!(bob.lock("lock").acquire_within(Duration::from_millis(10)).expect("an answer").is_none());
        let waiting = thread::spawn(move || {
            let next = bob.lock("lock").acquire().expect("its turn comes");
            let token = next.token().expect("it is held");
            next.release().expect("it is released");
            next.release().expect("again is no error");
            token
        });
        let is_queued = || !alice.inspect("lock").expect("an answer").expect("it is held").waiters.is_empty();
        block_until("the other thread is in the queue", is_queued);
        let token = held.token().expect("it is held");
        drop(held);
        assert!(waiting.join().expect("no panic") > token);
    });
}

#[test]
fn threads_that_share_a_client_are_all_answered() {
    check(|| {
        let palisade = blocking::connect(&Fixture::new().url()).expect("a client");
        let cycles = |thread: usize| {
            let palisade = palisade.clone();
            move || {
                for _ in 0..200 {
                    let held = palisade.lock(format!("lock/{thread}")).acquire().expect("it is free");
                    held.release().expect("it is released");
                }
            }
        };
        let threads: Vec<_> = (0..8).map(|thread| thread::spawn(cycles(thread))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("all were answered"));
    });
}

#[test]
fn every_kind_of_lock_can_be_acquired() {
    check(|| {
        let palisade = blocking::connect(&Fixture::new().url()).expect("a client");
        let one = palisade.read_lock("table").acquire().expect("it is free");
        let two = palisade.read_lock("table").try_acquire().expect("an answer").expect("readers share");
        assert!(palisade.write_lock("table").try_acquire().expect("an answer").is_none());
        drop((one, two));
        let permits = palisade.permits("gpu", 2, 3).acquire().expect("they are free");
        assert!(palisade.permits("gpu", 2, 3).try_acquire().expect("an answer").is_none());
        let both = palisade.lock_all(["a", "b"]).delay(Duration::from_secs(1)).acquire().expect("they are free");
        let names: Vec<_> = palisade.list("").expect("an answer").iter().map(|lock| lock.name.to_string()).collect();
        assert_eq!(names, ["a", "b", "gpu"]);
        palisade.force_release("gpu", "a test").expect("it is held");
        assert!(matches!(permits.wait_until_lost(), Loss::ForcedBy { .. }));
        palisade.close().expect("it is closed");
        assert_eq!(both.wait_until_lost(), Loss::SessionClosed);
    });
}

#[test]
fn the_session_is_closed_when_the_drop_of_the_last_handle_returns() {
    check(|| {
        let fixture = Fixture::new();
        let observer = blocking::connect(&fixture.url()).expect("a client");
        for _ in 0..20 {
            let client = blocking::connect(&fixture.url()).expect("a client");
            let held = client.lock("lock").acquire().expect("it is free");
            drop(client);
            assert!(observer.inspect("lock").expect("an answer").is_some());
            drop(held);
            assert_eq!(observer.inspect("lock").expect("an answer"), None);
        }
    });
}
