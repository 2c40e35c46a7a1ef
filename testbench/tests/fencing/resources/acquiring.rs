//! Acquiring a lock that seals resources.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use insta::assert_snapshot;
use palisade::{ErrorKind, Palisade, blocking, connect};
use palisade_fence::file::FencedFile;
use palisade_fence::memory::Memory;
use palisade_fence::{Seal, Token};
use palisade_testbench::bounded::{self, BOUND, until};
use palisade_testbench::fencing::{Act, Wire};
use palisade_testbench::fixture::unused_name;

/// Checks a promise with two clients of one engine, and a resource over a wire.
fn check(promise: impl AsyncFnOnce(Palisade, Palisade, Wire<Memory>)) {
    let url = unused_name("memory:sealing-");
    bounded::check(BOUND, async {
        let (one, other) = (connect(&url).await.expect("a client"), connect(&url).await.expect("a client"));
        let wire = Wire::to(Memory::new("orders"));
        promise(one, other, wire).await;
    });
}

#[test]
fn the_resources_are_sealed_with_the_guards_token() {
    check(async |palisade, _, orders| {
        let (stock, log) = (Memory::new("stock"), vec![Memory::new("log/1"), Memory::new("log/2")]);
        let sealing = palisade.lock("orders/42").seal((&orders, &stock, &log));
        let (guard, (mut orders, mut stock, mut log)) = sealing.acquire().await.expect("all are there");
        let token = guard.token().expect("it is held");
        assert_eq!((orders.token(), stock.token(), log[1].token()), (token, token, token));
        orders.write(b"one".to_vec()).await.expect("it is sealed");
        stock.write(b"two".to_vec()).await.expect("it is sealed");
        log[1].write(b"three".to_vec()).await.expect("it is sealed");
    });
}

#[test]
fn an_older_holder_is_refused_before_there_is_a_newer_guard() {
    check(async |one, other, orders| {
        let (_lost, mut old) = one.lock("orders/42").seal(&orders).acquire().await.expect("it is free");
        other.force_release("orders/42", "it hangs").await.expect("it is held");
        let (_guard, new) = other.lock("orders/42").seal(&orders).acquire().await.expect("it is free");
        let error = old.write(b"late".to_vec()).await.expect_err("it was overtaken");
        assert_eq!(error.overtaken_by(), Some(new.token()));
        assert_eq!(new.read(()).await.expect("it is the newest"), b"");
    });
}

#[test]
fn the_error_names_an_unreachable_resource_and_the_lock_is_released() {
    check(async |one, other, orders| {
        orders.next(Act::LoseAnswer);
        let stock = Memory::new("stock");
        let error = one.lock("orders/42").seal((&stock, &orders)).acquire().await.expect_err("it is unreachable");
        let ErrorKind::NotSealed { error: sealing, is_released } = error.kind() else { panic!("{error:?}") };
        assert_eq!((sealing.resource.as_str(), *is_released), ("memory orders", true));
        assert!(error.is_retryable() && !error.may_have_taken_effect());
        assert_snapshot!(error, @"cannot acquire 'orders/42' on memory: cannot seal 'memory orders' with token 1: the connection broke (it may have taken effect); the lock was released");
        let free = other.lock("orders/42").try_acquire().await.expect("an answer");
        assert!(free.is_some(), "it is free at once");
    });
}

#[test]
fn the_error_names_a_resource_with_a_higher_token_and_the_lock_is_released() {
    check(async |one, other, orders| {
        let _elsewhere = orders.seal(Token::new(99).expect("a token")).await.expect("it is new");
        let error = one.lock("orders/42").seal(&orders).acquire().await.expect_err("it is superseded");
        assert_snapshot!(error, @"cannot acquire 'orders/42' on memory: cannot seal 'memory orders' with token 1: token 99 has sealed it before. Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave this token counts lower than the one that gave token 99 (a new file, another engine): run `palisade tokens raise --above 99` on it, or use one lock for it; the lock was released");
        assert!(other.lock("orders/42").try_acquire().await.expect("an answer").is_some(), "it is free at once");
    });
}

#[test]
fn a_lock_that_is_lost_while_sealing_is_not_handed_out() {
    check(async |one, other, orders| {
        orders.next(Act::Hang);
        let sealing = one.lock("orders/42").seal(&orders).acquire();
        let taking = async {
            let is_held = async || other.inspect("orders/42").await.expect("an answer").is_some();
            until("the lock is held", is_held).await;
            other.force_release("orders/42", "it hangs").await.expect("it is held")
        };
        let (sealed, _) = tokio::join!(sealing, taking);
        let error = sealed.expect_err("it was lost");
        assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error:?}");
    });
}

#[test]
fn dropping_the_future_leaves_nothing_held() {
    check(async |one, other, orders| {
        for polls in 0..10 {
            drop_after(polls, &orders, one.lock("orders/42").seal(&orders).acquire()).await;
            let free = other.lock("orders/42").acquire().await.expect("earlier holders end");
            free.release().await.expect("it is held");
        }
    });
}

/// Polls a future that never ends: a few times, or until it has reached the resource; and drops it.
async fn drop_after<F: Future>(polls: usize, wire: &Wire<Memory>, future: F) {
    wire.next(Act::Hang);
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 || wire.is_done() {
            return Poll::Ready(());
        }
        left -= usize::from(polls < 5);
        assert!(future.as_mut().poll(context).is_pending(), "the resource never answers");
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    while !wire.is_done() {
        // The future was dropped before it reached the wire: use up the fault, so that the next round begins without one.
        drop(wire.seal(Token::new(1).expect("a token")).now_or_never());
    }
}

#[test]
fn a_lock_that_is_not_available_seals_nothing() {
    check(async |one, other, orders| {
        let held = one.lock("orders/42").acquire().await.expect("it is free");
        let request = other.lock("orders/42");
        assert!(request.clone().seal(&orders).try_acquire().await.expect("an answer").is_none());
        let wait = Duration::from_millis(1);
        assert!(request.clone().seal(&orders).acquire_within(wait).await.expect("an answer").is_none());
        let mut sealed = orders.seal(held.token().expect("it is held")).await.expect("it is not sealed");
        sealed.write(b"mine".to_vec()).await.expect("it is sealed");
        held.release().await.expect("it is held");
        assert!(request.clone().seal(&orders).try_acquire().await.expect("an answer").is_some());
    });
}

#[test]
fn work_gets_the_sealed_resources() {
    check(async |one, other, orders| {
        let work = async |_: &palisade::LockGuard, mut orders: palisade_fence::Sealed<Wire<Memory>>| {
            orders.write(b"done".to_vec()).await.expect("it is sealed")
        };
        let before = one.lock("orders/42").seal(&orders).run(work).await.expect("it is free");
        assert_eq!(before, b"");
        assert!(other.lock("orders/42").try_acquire().await.expect("an answer").is_some(), "it was released");
    });
}

#[test]
fn the_future_can_be_spawned() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    check(async |one, _, orders| {
        let sealing = is_send(one.rw_lock("orders").write().seal((&orders, vec![&orders])).acquire());
        let (_guard, (_one, several)) = sealing.await.expect("it is free");
        assert_eq!(several.len(), 1);
    });
}

#[test]
fn a_leader_seals_what_it_alone_may_change() {
    check(async |one, other, plan| {
        let candidacy = one.election("scheduler").candidacy("one").seal(&plan);
        let (_lost, mut old) = candidacy.acquire().await.expect("there is no leader");
        other.force_release("scheduler", "it hangs").await.expect("it is held");
        let candidacy = other.election("scheduler").candidacy("other").seal(&plan);
        let (leadership, new) = candidacy.acquire().await.expect("there is no leader");
        assert_eq!(leadership.token().expect("it leads"), new.token());
        let error = old.write(b"late".to_vec()).await.expect_err("it was overtaken");
        assert_eq!(error.overtaken_by(), Some(new.token()));
    });
}

#[test]
fn without_async_the_resources_are_sealed_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let orders = FencedFile::open(folder.path().join("orders")).expect("a path");
    let url = format!("memory:sealing-blocking-{}", std::process::id());
    let (one, other) = (blocking::connect(&url).expect("a client"), blocking::connect(&url).expect("a client"));
    let (_lost, mut old) = one.lock("orders").seal(&orders).acquire().expect("it is free");
    assert!(other.lock("orders").seal(&orders).try_acquire().expect("an answer").is_none());
    assert!(other.lock("orders").seal(&orders).acquire_within(Duration::ZERO).expect("an answer").is_none());
    other.force_release("orders", "it hangs").expect("it is held");
    // Files need no runtime, but are sealed within one, too.
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let within = runtime.enter();
    let (guard, mut new) = other.lock("orders").seal(&orders).acquire().expect("it is free");
    drop(within);
    runtime.block_on(async {
        let error = old.replace("late").await.expect_err("it was overtaken");
        assert_eq!(error.overtaken_by(), Some(new.token()));
        new.replace("newer").await.expect("it is sealed");
    });
    guard.release().expect("it is held");
}
