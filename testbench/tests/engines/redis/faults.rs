//! Holders, waiters and connections that fail.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::poll_fn;
use palisade::engine::redis::{Config, Redis};
use palisade::engine::{Acquired, Engine, Failure};
use palisade::{BootInstant, Loss, Standing};
use palisade_cli::harness::wall_clock::WallClock;
use palisade_core::{Acquire, Caller, Label, LockName, Patience, RequestNo, SessionId, Token, Ttl};
use palisade_testbench::conformance::stalls::{short_ttls, unless_lost, until_queued_or_ended};
use palisade_testbench::fenced_file::{Access, FencedFile};
use palisade_testbench::order::assert_order_over_a_cut;
use palisade_testbench::proxy::Towards;
use tokio::task::LocalSet;

use super::fixture::{
    Fixture, LONG_TTL, check, give_back, inspect, start_worker, take, take_unless_lost, taken, taking, token,
    try_take, until, until_idle, until_queued, until_some,
};

const BOTH_WAYS: [Towards; 2] = [Towards::Server, Towards::Client];
const SHORT_TTL: Duration = Duration::from_secs(2);
/// The TTL of a session that is renewed during its test, and survives a machine that stands still for ten seconds.
const RENEWED_TTL: Duration = Duration::from_secs(18);

/// Fault 1: a write of a stopped holder is refused when it wakes, and no update is lost.
#[test]
fn a_holder_that_is_stopped_for_longer_than_its_session_lives_loses_no_update() {
    const TIMES: usize = 12;
    let fixture = Fixture::new();
    let file = fixture.folder.path().join("number");
    drop(FencedFile::open(&file).expect("a file"));
    let [mut one, mut two] = [(); 2].map(|()| start_worker(&fixture.redis.url(), Duration::from_secs(1)));
    let mut last = 0;
    for worker in [&mut one, &mut two] {
        worker.send(&format!("count {} orders {TIMES}", file.display()));
    }
    let mut acknowledged = [0; 2];
    for round in 0..4 {
        let said = one.reply();
        acknowledged[0] += usize::from(said.starts_with("ack"));
        one.stop();
        // If the first one was stopped while it held the lock, only the end of its session lets the second one in.
        for _ in 0..2 {
            let said = two.reply();
            acknowledged[1] += usize::from(said.starts_with("ack"));
            let token: u64 = said.split(' ').nth(1).and_then(|token| token.parse().ok()).unwrap_or(last);
            assert!(token >= last, "tokens went back in round {round}");
            last = token;
        }
        one.go_on();
    }
    for (worker, count) in [&mut one, &mut two].into_iter().zip(&mut acknowledged) {
        while worker.reply() != "counted" {
            *count += 1;
        }
    }
    assert_eq!(acknowledged, [TIMES; 2]);
    let mut number = FencedFile::open(&file).expect("a file");
    let beyond = Token::MAX;
    assert_eq!(number.seal(beyond).expect("it is sealed"), Access::Done((TIMES * 2) as u64), "updates were lost");
}

/// Fault 4: a grant whose reply comes too late is not handed out.
#[test]
fn an_answer_that_is_held_up_for_longer_than_the_session_lives_grants_nothing() {
    check(async {
        for ttl in short_ttls(SHORT_TTL) {
            let fixture = Fixture::new();
            let (alice, bob) = (fixture.through_proxy(ttl).await, fixture.client(LONG_TTL).await);
            fixture.proxy.hold(Towards::Client);
            let acquiring = taking(&alice, "lock");
            // The lock is granted, and the reply is held back.
            let is_granted = async || acquiring.is_finished() || inspect(&bob, "lock").await.is_some();
            until("the lock is granted", is_granted).await;
            fixture.proxy.black_hole();
            let error = acquiring.await.expect("it does not panic").expect_err("its session is over");
            let guard = take(&bob, "lock").await;
            fixture.proxy.pass();
            let again = taking(&alice, "lock");
            until_queued_or_ended(&bob, "lock", 1, &again).await;
            let before = token(&guard);
            guard.release().await.expect("it is held");
            let Some(again) = unless_lost(again.await.expect("it does not panic")) else { continue };
            let Ok(after) = again.token() else { continue };
            assert!(after > before);
            if matches!(error.loss(), Some(Loss::Unreachable { .. })) {
                return;
            }
            assert!(error.loss().is_some(), "{error}");
        }
    });
}

/// Fault 5.
#[test]
fn a_waiter_whose_session_dies_in_the_queue_is_told_and_never_granted() {
    check(async {
        for ttl in short_ttls(SHORT_TTL) {
            let fixture = Fixture::new();
            let (alice, bob) = (fixture.through_proxy(ttl).await, fixture.client(LONG_TTL).await);
            let held = take(&bob, "lock").await;
            let waiting = taking(&alice, "lock");
            until_queued_or_ended(&bob, "lock", 1, &waiting).await;
            let next = taking(&bob, "lock");
            until_queued_or_ended(&bob, "lock", 2, &waiting).await;
            fixture.proxy.black_hole();
            let told = waiting.await.expect("it does not panic").expect_err("its session is over");
            held.release().await.expect("it is held");
            let next = taken(next).await;
            fixture.proxy.pass();
            assert!(try_take(&alice, "lock").await.is_none());
            assert!(next.token().is_ok());
            if matches!(told.loss(), Some(Loss::Unreachable { .. })) {
                return;
            }
            assert!(told.loss().is_some(), "{told}");
        }
    });
}

/// Fault 5, in the very step that grants: no earlier call has noticed the expiry.
#[test]
fn an_expired_waiter_is_skipped_when_the_lock_is_freed() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        let late = taking(&alice, "lock");
        until_queued(&bob, "lock", 1).await;
        let next = taking(&bob, "lock");
        until_queued(&bob, "lock", 2).await;
        let lock = inspect(&bob, "lock").await.expect("it is held");
        // As if alice's session had expired: its record says so, and the index of deadlines does not.
        let end = "local p = redis.call('HGET', KEYS[1], ARGV[1]) local s = cmsgpack.unpack(p:sub(46)) s[2] = 0 \
             redis.call('HSET', KEYS[1], ARGV[1], p:sub(1, 45) .. cmsgpack.pack(s))";
        let session = format!("s{}", lock.waiters[0].session);
        fixture.redis.cli(&["EVAL", end, "1", "palisade:{palisade}:locks", &session]);
        let before = token(&held).get();
        held.release().await.expect("it is held");
        assert_eq!(token(&taken(next).await).get(), before + 1, "another client was granted it in between");
        let told = late.await.expect("it does not panic").expect_err("its session is over");
        assert!(told.loss().is_some(), "{told}");
    });
}

/// Faults 8 and 9: the first release is lost, and repeated behind a newer grant of the same client.
#[test]
fn a_repeated_release_does_not_free_a_newer_grant() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        for round in 0..20 {
            let name = format!("lock/{round}");
            let old = take(&alice, &name).await;
            fixture.proxy.cut_after(Towards::Client, round % 3);
            // Its outcome is unknown; the release is retried in the background.
            drop(old.release().await);
            let new = take(&alice, &name).await;
            drop(old.release().await);
            fixture.proxy.pass();
            assert!(try_take(&bob, &name).await.is_none(), "a late release has freed a newer grant");
            assert!(new.token().is_ok());
            new.release().await.expect("it is held");
            until_idle(&bob, &name).await;
        }
    });
}

/// Fault 10: the reply is lost and the grant is made. The client must undo it.
#[test]
#[ignore = "long: cut and slow connections"]
fn an_attempt_whose_connection_is_cut_anywhere_leaves_nothing() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let attempt = async |name: String| {
            let lock = alice.lock(&name).dangerous_accept_failover();
            let answer = match lock.try_acquire().await {
                Ok(Some(guard)) => Some(token(&guard)),
                Ok(None) => panic!("no other client is there"),
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    None
                }
            };
            // Bob gets it, though alice's session lives for an hour.
            let guard = take(&bob, &name).await;
            assert!(answer.is_none_or(|answer| token(&guard) > answer));
            drop(guard);
            until_idle(&bob, &name).await;
        };
        let before = BOTH_WAYS.map(|towards| fixture.proxy.passed(towards));
        attempt("measured".to_owned()).await;
        let lengths = [0, 1].map(|way| fixture.proxy.passed(BOTH_WAYS[way]) - before[way]);
        for (towards, length) in BOTH_WAYS.into_iter().zip(lengths) {
            for at in (0..=length).step_by(23) {
                fixture.proxy.cut_after(towards, at);
                attempt(format!("{towards:?}/{at}")).await;
                fixture.proxy.pass();
            }
        }
    });
}

/// Fault 11: keep-alives run while locks are acquired and released.
#[test]
#[ignore = "long: several seconds"]
fn a_release_that_races_a_keep_alive_leaves_nothing_held() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(RENEWED_TTL).await, fixture.client(LONG_TTL).await);
        let kept = take(&alice, "kept").await;
        for round in 0..2 {
            let confirmed = kept.safe_until();
            // Acquires and releases in the last second before the next keep-alive, until the session is renewed.
            tokio::time::sleep(RENEWED_TTL / 3 - Duration::from_secs(1)).await;
            let renewed = kept.renewed(confirmed);
            let mut renewed = pin!(renewed);
            while renewed.as_mut().now_or_never().is_none() {
                let guard = take(&alice, "lock").await;
                guard.release().await.expect("it is held");
            }
            assert!(try_take(&bob, "lock").await.is_some(), "round {round}: it is still held");
            assert_eq!(kept.standing(), Standing::Held);
        }
        until_idle(&bob, "lock").await;
    });
}

/// Fault 12.
#[test]
#[ignore = "long: cut and slow connections"]
fn a_connection_that_is_cut_again_and_again_loses_nothing() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(RENEWED_TTL).await, fixture.client(LONG_TTL).await);
        let guard = take(&alice, "lock").await;
        let before = token(&guard);
        let waiting = taking(&bob, "lock");
        until_queued(&bob, "lock", 1).await;
        for cuts in 1..=8 {
            let confirmed = guard.safe_until();
            let accepted = fixture.proxy.accepted();
            fixture.proxy.cut();
            fixture.proxy.until_accepted(accepted + 1).await;
            inspect(&alice, "lock").await.expect("it is held");
            // A keep-alive is due only every six seconds.
            if cuts % 4 == 0 {
                guard.renewed(confirmed).await;
            }
            assert_eq!(token(&guard), before);
        }
        assert_eq!(guard.lost().now_or_never(), None);
        guard.release().await.expect("it is held");
        assert!(token(&taken(waiting).await) > before);
    });
}

/// A waiter's connection is cut: the grant that came meanwhile is found on the next connection.
#[test]
fn a_waiter_whose_connection_is_cut_is_granted_all_the_same() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        for round in 0..10 {
            let name = format!("lock/{round}");
            let held = take(&bob, &name).await;
            let waiting = taking(&alice, &name);
            until_queued(&bob, &name, 1).await;
            fixture.proxy.shut();
            held.release().await.expect("it is held");
            fixture.proxy.pass();
            give_back(&taken(waiting).await).await;
            until_idle(&bob, &name).await;
        }
    });
}

/// Fault 13 and promise 5, on a real connection.
#[test]
#[ignore = "long: cut and slow connections"]
fn a_client_that_is_cut_off_is_in_jeopardy_and_then_lost_before_another_is_granted() {
    check(async {
        let fixture = Fixture::new();
        let bob = fixture.client(LONG_TTL).await;
        for round in 0..2 {
            for (attempt, ttl) in short_ttls(SHORT_TTL).enumerate() {
                let name = format!("lock/{round}/{attempt}");
                let alice = fixture.through_proxy(ttl).await;
                let Some(guard) = take_unless_lost(&alice, &name).await else { continue };
                let waiting = taking(&bob, &name);
                until_queued_or_ended(&bob, &name, 1, &waiting).await;
                match round {
                    0 => fixture.proxy.black_hole(),
                    _ => fixture.proxy.shut(),
                }
                let standing = guard.jeopardy().await;
                let loss = guard.lost().await;
                drop(taken(waiting).await);
                let granted_at = BootInstant::now();
                assert!(guard.token().is_err());
                fixture.proxy.pass();
                if let (Standing::Jeopardy { safe_until }, Loss::Unreachable { .. }) = (standing, &loss) {
                    assert_eq!(loss, Loss::Unreachable { safe_until });
                    assert!(granted_at >= safe_until);
                    break;
                }
            }
        }
    });
}

/// Fault 15.
#[test]
fn an_acquire_that_is_dropped_at_any_point_leaves_nothing() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        for held in [false, true] {
            for polls in 0..12 {
                let name = format!("lock/{held}/{polls}");
                let blocking = if held { Some(take(&bob, &name).await) } else { None };
                {
                    let mut acquiring = pin!(alice.lock(&name).dangerous_accept_failover().acquire());
                    for _ in 0..polls {
                        let once = poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context).is_ready()));
                        if once.await {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                }
                drop(blocking);
                until_idle(&bob, &name).await;
            }
        }
    });
}

/// Starts a server whose clock can be set. Its usual allocator reads the time before `faketime` is loaded, so it uses another.
fn with_clock() -> (WallClock, Fixture) {
    let folder = tempfile::tempdir().expect("a folder");
    let clock =
        WallClock::new(&folder.path().join("time")).expect("faketime is installed: scripts/setup").with_libc();
    let fixture = Fixture::inside(folder, &[], &clock.variables());
    (clock, fixture)
}

/// Fault 17: the server's wall clock ends sessions. A jump ends them early, or late within a bound; there are never two holders.
#[test]
fn a_clock_that_jumps_ends_sessions_early_or_late_and_harms_neither_grants_nor_tokens() {
    check(async {
        let (clock, fixture) = with_clock();
        let bob = fixture.client(LONG_TTL).await;
        let mut last = None;
        for offset in ["+2h", "-2h", "+0", "+2h", "+0"] {
            // Shorter than the jumps.
            let alice = fixture.client(Duration::from_secs(60)).await;
            let held = take(&alice, "lock").await;
            assert!(last < Some(token(&held)));
            last = Some(token(&held));
            let waiting = taking(&bob, "lock");
            until_queued(&bob, "lock", 1).await;
            clock.jump(offset).expect("the time can be set");
            // Either alice's session has ended and she gets an error, or she holds the lock and releases it.
            if held.release().await.is_err() {
                assert_eq!(held.lost().await, Loss::Expired);
            }
            let next = match waiting.await.expect("it does not panic") {
                Ok(next) => next,
                Err(error) => {
                    assert_eq!(error.loss(), Some(&Loss::Expired), "{error}");
                    take(&bob, "lock").await
                }
            };
            assert!(last < Some(token(&next)));
            last = Some(token(&next));
            next.release().await.expect("it is held");
        }
    });
}

/// The same with a holder that is dead: a clock that was set back does not make its lock last for longer than its TTL.
#[test]
fn a_dead_holder_is_replaced_though_the_clock_was_set_back() {
    check(async {
        let (clock, fixture) = with_clock();
        let bob = fixture.client(LONG_TTL).await;
        let alice = fixture.through_proxy(SHORT_TTL).await;
        let _held = until_some("a lock", async || take_unless_lost(&alice, "lock").await).await;
        fixture.proxy.shut();
        clock.jump("-2h").expect("the time can be set");
        drop(take(&bob, "lock").await);
    });
}

/// Closes a session on a connection that may break.
async fn close(engine: &Redis, session: SessionId) {
    until("the session is closed", async || match engine.close_session(session).await {
        Err(Failure::Unavailable(why)) => {
            assert!(why.is_retryable, "{why}");
            false
        }
        _ => true,
    })
    .await;
}

/// An engine behind the proxy whose session holds a lock.
async fn engine_with_lock(fixture: &Fixture) -> (Redis, SessionId, LockName, Token) {
    let config = Config::parse(&format!("//{}", fixture.proxy.address)).expect("a place");
    let engine = Redis::connect(config).await.expect("it is there");
    let opened = engine.open_session(Ttl::from_ms(3_600_000).expect("a TTL"), Label::new("alice")).await;
    let session = opened.expect("a session").session;
    let caller = Caller { session, number: RequestNo::new(1).ok() };
    let lock = LockName::new("lock").expect("a name");
    match engine.acquire(Acquire::exclusive(caller, lock.clone())).await {
        Ok(Acquired::Granted { token }) => (engine, session, lock, token),
        other => panic!("a free lock was not granted: {other:?}"),
    }
}

/// Only the client knows the name of a lock whose release never arrived.
#[test]
fn a_close_frees_the_lock_of_a_release_that_was_lost() {
    async fn lose_a_release(fixture: Fixture) {
        let (engine, session, lock, token) = engine_with_lock(&fixture).await;
        fixture.proxy.hold(Towards::Server);
        let release = async { engine.release(session, lock, token).await };
        let cut = async {
            tokio::task::yield_now().await;
            fixture.proxy.cut();
        };
        let (released, ()) = futures_util::future::join(release, cut).await;
        let Err(Failure::Unavailable(why)) = released else { panic!("{released:?}") };
        assert!(why.may_have_taken_effect, "{why}");
        fixture.proxy.pass();
        close(&engine, session).await;
        let field = fixture.redis.cli(&["HGET", "palisade:{palisade}:locks", "llock"]);
        assert_eq!(field.trim(), "", "a record is left that no session owns");
    }
    check(async { LocalSet::new().run_until(lose_a_release(Fixture::new())).await });
}

/// Redis may refuse a release while it loads its data, and answer a close that was sent right after it.
#[test]
fn a_close_frees_the_lock_of_a_release_without_a_reply_so_far() {
    async fn close_during_a_release(fixture: Fixture) {
        let (engine, session, lock, token) = engine_with_lock(&fixture).await;
        fixture.proxy.hold(Towards::Server);
        let mut release = pin!(engine.release(session, lock, token));
        assert!(release.as_mut().now_or_never().is_none(), "nothing answers it");
        // The release is lost on this connection; the close arrives on the next one before the client notices.
        fixture.proxy.cut();
        fixture.proxy.pass();
        while let Err(Failure::Unavailable(why)) = engine.close_session(session).await {
            assert!(why.is_retryable, "{why}");
        }
        let field = fixture.redis.cli(&["HGET", "palisade:{palisade}:locks", "llock"]);
        assert_eq!(field.trim(), "", "a line is left that no session owns");
    }
    check(async { LocalSet::new().run_until(close_during_a_release(Fixture::new())).await });
}

/// Only the client knows the name of a lock whose reply on the fast path was lost.
#[test]
fn a_close_frees_the_lock_of_an_acquire_whose_reply_was_lost() {
    async fn lose_a_reply(fixture: Fixture) {
        let config = Config::parse(&format!("//{}", fixture.proxy.address)).expect("a place");
        let engine = Redis::connect(config).await.expect("it is there");
        let opened = engine.open_session(Ttl::from_ms(3_600_000).expect("a TTL"), Label::new("alice")).await;
        let session = opened.expect("a session").session;
        let caller = Caller { session, number: RequestNo::new(1).ok() };
        let acquire =
            Acquire { patience: Patience::Try, ..Acquire::exclusive(caller, LockName::new("lock").expect("a name")) };
        fixture.proxy.hold(Towards::Client);
        let field = || fixture.redis.cli(&["HGET", "palisade:{palisade}:locks", "llock"]);
        tokio::select! {
            reply = engine.acquire(acquire) => panic!("it was answered: {reply:?}"),
            () = until("the lock is granted", async || !field().trim().is_empty()) => {}
        }
        fixture.proxy.cut();
        fixture.proxy.pass();
        // The first call may still go to the connection that was cut.
        close(&engine, session).await;
        assert_eq!(field().trim(), "", "a record is left that no session owns");
    }
    check(async { LocalSet::new().run_until(lose_a_reply(Fixture::new())).await });
}

#[test]
fn acquires_of_one_client_are_granted_in_their_order_over_a_cut() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        assert_order_over_a_cut(&alice, &bob, &fixture.proxy).await;
    });
}
