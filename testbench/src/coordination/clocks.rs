//! Wall clocks that jump (fault 17).

use std::time::Duration;

use super::Store;
use super::bench::{Fixture, Stores, try_take};
use crate::bounded::within;
use crate::fixture::{LONG_TTL, take, token};
use palisade_cli::harness::wall_clock::WallClock;

/// Does nothing if the clock of the program cannot be set.
pub async fn a_server_whose_wall_clock_jumps_ends_no_session<S: Store>(_: &Stores<S>) {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = WallClock::new(&folder.path().join("time")).expect("faketime is installed: scripts/setup");
    let Some(store) = S::start_with_clock(folder.path(), &clock) else { return };
    let fixture = Fixture::<S>::start(|_| store);
    // Shorter than the jumps; each time a third of it passes until the next keep-alive.
    let (alice, bob) = (fixture.client(Duration::from_secs(20)).await, fixture.client(LONG_TTL).await);
    let kept = take(&alice, "kept").await;
    let mut last = token(&kept);
    for offset in ["+1h", "-1h"] {
        let confirmed = kept.safe_until();
        clock.jump(offset).expect("the time can be set");
        for client in [&alice, &bob] {
            let guard = take(client, "lock").await;
            assert!(token(&guard) > last);
            last = token(&guard);
            guard.release().await.expect("it is held");
        }
        assert!(try_take(&bob, "kept").await.is_none());
        // A keep-alive that was sent after the jump is confirmed too.
        within("the session is renewed", kept.renewed(confirmed)).await;
    }
    kept.release().await.expect("it is held");
}

/// The client's clock, in a process whose TTL is shorter than the jumps.
pub async fn a_client_whose_wall_clock_jumps_keeps_its_lock<S: Store>(stores: &Stores<S>) {
    let (fixture, folder) = (stores.shared(), tempfile::tempdir().expect("a folder"));
    let clock = WallClock::new(&folder.path().join("time")).expect("faketime is installed: scripts/setup");
    let mut holder = stores.worker(&fixture.url(), Duration::from_secs(60), &clock.variables());
    let bob = fixture.client(LONG_TTL).await;
    for offset in ["+1h", "-1h", "+0", "+1h"] {
        let granted = holder.ask("acquire orders");
        let held = granted.strip_prefix("granted ").unwrap_or_else(|| panic!("{granted}")).to_owned();
        clock.jump(offset).expect("the time can be set");
        assert!(try_take(&bob, "orders").await.is_none());
        assert_eq!(holder.ask("token"), format!("token {held}"));
        assert_eq!(holder.ask("release"), "released");
        let next = take(&bob, "orders").await;
        assert!(token(&next).get() > held.parse().expect("a number"));
        next.release().await.expect("it is held");
    }
}
