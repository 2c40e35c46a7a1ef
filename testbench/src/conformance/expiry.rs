//! Clients that cannot keep their session alive. Their connection is cut, and the engine really ends the session, by its
//! own clock.

use std::time::Duration;

use palisade::{BootInstant, Ending, Event, Loss, SessionEnd, Standing};

use super::bench::{Bench, Held, is_fenced, is_lost, is_unsupported, join, next_event, ok, take, taking, try_take};
use crate::faulty_engine::{Cut, EngineFaults};

/// A client learns of its loss before another client has the lock.
pub async fn a_client_that_is_cut_off_knows_before_another_is_granted(bench: &Bench) {
    for cut in [Cut::Failing, Cut::Silent] {
        let (faults, bob, name) = (EngineFaults::default(), bench.client().await, bench.name("lock"));
        let alice = bench.faulty_client(&faults).await;
        let held = take(&alice, &name).await;
        faults.cut(cut);
        let taken = take(&bob, &name).await;
        let taken_at = BootInstant::now();
        if let Held::Fenced(guard) = &held {
            assert!(guard.safe_until() <= taken_at);
            is_lost(guard.token());
            assert!(matches!(guard.standing(), Standing::Lost(_)));
        }
        let Loss::Unreachable { safe_until } = held.lost().await else { panic!("the line is cut") };
        assert!(safe_until <= taken_at);
        // The lost grant stays lost, and its late release frees no newer one.
        faults.mend();
        for _ in 0..2 {
            assert_eq!(is_lost(held.release().await), Loss::Unreachable { safe_until });
            assert_eq!(held.lost().await, Loss::Unreachable { safe_until });
        }
        drop(held);
        ok(alice.inspect(&name).await);
        assert!(try_take(&bench.client().await, &name).await.is_none());
        ok(taken.release().await);
    }
}

/// The same handle works again once the engine can be reached.
pub async fn a_client_that_comes_back_has_a_new_session(bench: &Bench) {
    let (faults, name) = (EngineFaults::default(), bench.name("lock"));
    let alice = bench.faulty_client(&faults).await;
    let held = take(&alice, &name).await;
    let session = ok(alice.inspect(&name).await).expect("alice holds it").holders[0].session;
    faults.cut(Cut::Failing);
    assert!(matches!(held.lost().await, Loss::Unreachable { .. }));
    faults.mend();
    let again = take(&alice, &name).await;
    let lock = ok(alice.inspect(&name).await).expect("alice holds it");
    assert_ne!(lock.holders[0].session, session);
    drop(held);
    assert!(try_take(&alice, &name).await.is_none());
    drop(again);
}

/// A waiter whose session is over gets an error, never a grant.
pub async fn a_waiter_that_is_cut_off_is_told_and_leaves_the_queue(bench: &Bench) {
    let (faults, bob, name) = (EngineFaults::default(), bench.client().await, bench.name("lock"));
    let alice = bench.faulty_client(&faults).await;
    let held = take(&bob, &name).await;
    let waiter = taking(&alice, &name);
    bench.until_queued(&bob, &name, 1).await;
    faults.cut(Cut::Silent);
    assert!(matches!(is_lost(join(waiter).await), Loss::Unreachable { .. }));
    bench.until_queued(&bob, &name, 0).await;
    ok(held.release().await);
    bench.until_idle(&bob, &name).await;
    faults.mend();
}

/// With a lock-delay, a lock whose holder vanished is granted only after that time.
pub async fn a_delay_withholds_the_lock_after_an_expiry(bench: &Bench) {
    const DELAY: Duration = Duration::from_millis(100);
    let (faults, bob, name) = (EngineFaults::default(), bench.client().await, bench.name("lock"));
    let alice = bench.faulty_client(&faults).await;
    let offers = bob.guarantees().offers;
    if !offers.delay {
        is_unsupported(bob.lock(&name).delay(DELAY).efficiency().acquire().await);
        return is_unsupported(bob.lock(&name).delay(DELAY).acquire().await);
    }
    if !is_fenced(bob.guarantees()) {
        return;
    }
    let held = ok(alice.lock(&name).delay(DELAY).acquire().await);
    let token = ok(held.token());
    let waiter = taking(&bob, &name);
    bench.until_queued(&bob, &name, 1).await;
    let watch = if offers.watch { Some(ok(bob.watch(&name).await)) } else { None };
    faults.cut(Cut::Failing);
    let granted = ok(join(waiter).await).expect("it is bob's turn in the end");
    assert!(BootInstant::now() >= held.safe_until() + DELAY, "it was granted before the delay was over");
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
    ok(alice.close().await);
    assert_eq!(held.lost().await, Loss::SessionClosed);
    assert!(try_take(&bob, &name).await.is_some());
}
