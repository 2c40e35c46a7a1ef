//! A service whose wall clock jumps (fault 17).

use std::time::Duration;

use futures_util::FutureExt;
use palisade_cli::harness::wall_clock::WallClock;

use super::fixture::{Fixture, LONG_TTL, check, take, token};

#[test]
fn a_wall_clock_that_jumps_an_hour_either_way_ends_no_session_and_takes_no_token_back() {
    check(async {
        const TTL: Duration = Duration::from_secs(30);
        let folder = tempfile::tempdir().expect("a folder");
        let clock = WallClock::new(&folder.path().join("time")).expect("faketime is installed: scripts/setup");
        let fixture = Fixture::with_variables(folder, &clock.variables());
        let (alice, bob) = (fixture.client(TTL).await, fixture.client(LONG_TTL).await);
        let kept = take(&alice, "kept").await;
        let mut last = token(&kept);
        // A keep-alive is due only every ten seconds, so the test waits for one after a jump in each direction.
        for (offset, awaits_renewal) in [("+1h", true), ("-1h", false), ("+0", false), ("+1h", false), ("-1h", true)]
        {
            let confirmed = kept.safe_until();
            clock.jump(offset).expect("the time can be set");
            for client in [&alice, &bob] {
                let guard = take(client, "lock").await;
                assert!(token(&guard) > last);
                last = token(&guard);
                guard.release().await.expect("it is held");
            }
            assert!(bob.lock("kept").try_acquire().await.expect("an answer").is_none());
            // The keep-alives that were sent after the jump are confirmed too.
            if awaits_renewal {
                kept.renewed(confirmed).await;
            }
        }
        assert_eq!(kept.lost().now_or_never(), None);
        kept.release().await.expect("it is held");
    });
}
