//! Clients that cannot keep their session alive. Their connection is cut, and the engine really ends the session, by its
//! own clock.

use std::time::Duration;

use palisade::engine::Order;
use palisade::{BootInstant, Ending, Event, Loss, SessionEnd, Standing};

use super::bench::{
    Bench, Held, Wait, ask, close, is_fenced, is_lost, is_unsupported, join, next_event, ok, short_ttls, take,
    take_closed, take_unless_lost, taking, try_take,
};
use super::stalls::{unless_lost, until_queued_or_ended};
use crate::faulty_engine::{Cut, EngineFaults};

/// A client learns of its loss before another client has the lock.
pub async fn a_client_that_is_cut_off_knows_before_another_is_granted(bench: &Bench) {
    for cut in [Cut::Failing, Cut::Silent] {
        for ttl in short_ttls() {
            let (faults, bob, name) = (EngineFaults::default(), bench.client().await, bench.name("lock"));
            let alice = bench.faulty_client(&faults, ttl).await;
            let Some(held) = take_unless_lost(&alice, &name).await else { continue };
            faults.cut(cut);
            let taken = take(&bob, &name).await;
            let taken_at = BootInstant::now();
            if let Held::Fenced(guard) = &held {
                assert!(guard.safe_until() <= taken_at);
                is_lost(guard.token());
                assert!(matches!(guard.standing(), Standing::Lost(_)));
            }
            let loss = held.lost().await;
            // The lost grant stays lost, and its late release frees no newer one.
            faults.mend();
            for _ in 0..2 {
                assert_eq!(is_lost(held.release().await), loss);
                assert_eq!(held.lost().await, loss);
            }
            drop(held);
            ok(alice.inspect(&name).await);
            assert!(try_take(&bench.client().await, &name).await.is_none());
            ok(taken.release().await);
            if let Loss::Unreachable { safe_until } = loss {
                assert!(safe_until <= taken_at);
                break;
            }
        }
    }
}

/// The same handle works again once the engine can be reached.
pub async fn a_client_that_comes_back_has_a_new_session(bench: &Bench) {
    let name = bench.name("lock");
    for ttl in short_ttls() {
        let faults = EngineFaults::default();
        let alice = bench.faulty_client(&faults, ttl).await;
        let Some(held) = take_unless_lost(&alice, &name).await else { continue };
        let Some(before) = ok(alice.inspect(&name).await) else { continue };
        faults.cut(Cut::Failing);
        if held.is_lost() || !matches!(held.lost().await, Loss::Unreachable { .. }) {
            continue;
        }
        faults.mend();
        let Some(again) = take_unless_lost(&alice, &name).await else { continue };
        let Some(after) = ok(alice.inspect(&name).await) else { continue };
        drop(held);
        let tried = ask(&alice, &name, Wait::Not).await;
        if again.is_lost() {
            continue;
        }
        assert!(ok(tried).is_none(), "the late release of the old grant has freed the newer one");
        assert_ne!(after.holders[0].session, before.holders[0].session);
        return;
    }
}

/// A waiter whose session is over gets an error, never a grant.
pub async fn a_waiter_that_is_cut_off_is_told_and_leaves_the_queue(bench: &Bench) {
    let (bob, name) = (bench.client().await, bench.name("lock"));
    for ttl in short_ttls() {
        let faults = EngineFaults::default();
        let alice = bench.faulty_client(&faults, ttl).await;
        let held = take(&bob, &name).await;
        let waiter = taking(&alice, &name);
        if bob.guarantees().order == Order::Fair {
            until_queued_or_ended(&bob, &name, 1, &waiter).await;
        }
        faults.cut(Cut::Silent);
        let loss = is_lost(join(waiter).await);
        bench.until_queued(&bob, &name, 0).await;
        ok(held.release().await);
        bench.until_idle(&bob, &name).await;
        faults.mend();
        if matches!(loss, Loss::Unreachable { .. }) {
            return;
        }
    }
}

/// With a lock-delay, a lock whose holder vanished is granted only after that time.
pub async fn a_delay_withholds_the_lock_after_an_expiry(bench: &Bench) {
    const DELAY: Duration = Duration::from_millis(100);
    let (bob, name) = (bench.client().await, bench.name("lock"));
    let offers = bob.guarantees().offers;
    if !offers.delay {
        is_unsupported(bob.lock(&name).delay(DELAY).efficiency().acquire().await);
        return is_unsupported(bob.lock(&name).delay(DELAY).acquire().await);
    }
    if !is_fenced(bob.guarantees()) {
        return;
    }
    // A watch on Consul merges what happens between two answers, and must see that the lock is withheld.
    let delay = if bob.guarantees().engine == "consul" { 50 * DELAY } else { DELAY };
    for ttl in short_ttls() {
        let faults = EngineFaults::default();
        let alice = bench.faulty_client(&faults, ttl).await;
        let Some(held) = unless_lost(alice.lock(&name).delay(delay).acquire().await) else { continue };
        let Ok(token) = held.token() else { continue };
        let waiter = taking(&bob, &name);
        if bob.guarantees().order == Order::Fair {
            until_queued_or_ended(&bob, &name, 1, &waiter).await;
        }
        let watch = if offers.watch { Some(ok(bob.watch(&name).await)) } else { None };
        faults.cut(Cut::Failing);
        let was_held = !matches!(held.standing(), Standing::Lost(_));
        let granted = ok(join(waiter).await).expect("it is bob's turn in the end");
        let granted_at = BootInstant::now();
        // A client that notices its loss late closes its session, and a close does not withhold.
        if !was_held || !matches!(held.lost().await, Loss::Unreachable { .. }) {
            ok(granted.release().await);
            continue;
        }
        assert!(granted_at >= held.safe_until() + delay, "it was granted before the delay was over");
        if let Some(mut watch) = watch {
            let expired = Ending::SessionEnded(SessionEnd::Expired);
            let event = next_event(&mut watch).await;
            assert!(matches!(&event, Event::GrantEnded { how, .. } if *how == expired), "{event:?}");
            let event = next_event(&mut watch).await;
            assert!(matches!(&event, Event::Withheld { token: its, .. } if *its == token), "{event:?}");
            let event = next_event(&mut watch).await;
            assert!(matches!(&event, Event::DelayEnded { token: its, .. } if *its == token), "{event:?}");
            let event = next_event(&mut watch).await;
            assert!(matches!(&event, Event::Granted { token, .. } if *token == granted.token()), "{event:?}");
        }
        faults.mend();
        return;
    }
}

/// A release or a close frees the lock at once, whatever lock-delay the holder asked for.
pub async fn a_delay_does_not_hold_up_a_release(bench: &Bench) {
    // No engine has a lower limit.
    const DELAY: Duration = Duration::from_secs(60);
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    if !alice.guarantees().offers.delay {
        return is_unsupported(alice.lock(&name).delay(DELAY).efficiency().acquire().await);
    }
    let held = ok(alice.lock(&name).delay(DELAY).efficiency().acquire().await);
    ok(held.release().await);
    let held = try_take(&bob, &name).await.expect("it was released");
    ok(held.release().await);
    let held = ok(alice.lock(&name).delay(DELAY).efficiency().acquire().await);
    let is_closed = close(alice).await;
    assert_eq!(held.lost().await, Loss::SessionClosed);
    take_closed(&bob, &name, is_closed).await;
}
