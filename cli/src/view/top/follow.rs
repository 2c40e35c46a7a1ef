//! Lists the locks after every event, and once a second to update the times.

use std::future;
use std::time::Duration;

use palisade::engine::LockInfo;
use palisade::{Error, Palisade, Watch};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// The result of listing the locks.
pub(super) type Listing = Result<Vec<LockInfo>, Error>;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Events within this time cause one listing, so that a busy engine is not listed without pause.
const BATCH_WINDOW: Duration = Duration::from_millis(50);

/// Lists the locks of the current prefix until the receiver of the listings is dropped.
pub(super) async fn follow(
    palisade: &Palisade,
    mut prefixes: watch::Receiver<String>,
    listings: mpsc::Sender<Listing>,
) {
    loop {
        let prefix = prefixes.borrow_and_update().clone();
        // An engine that cannot be watched is polled once a second.
        let mut watch = palisade.watch(&prefix).await.ok();
        loop {
            if listings.send(palisade.list(&prefix).await).await.is_err() {
                return;
            }
            tokio::select! {
                changed = prefixes.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = next_event(&mut watch) => drop(timeout(BATCH_WINDOW, drain_events(&mut watch)).await),
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }
}

/// Waits for the next event. Never returns without a watch.
async fn next_event(watch: &mut Option<Watch>) {
    let next = match watch {
        Some(watch) => watch.next().await,
        None => None,
    };
    if next.is_none() {
        future::pending().await
    }
}

/// Takes all further events. Never returns.
async fn drain_events(watch: &mut Option<Watch>) {
    loop {
        next_event(watch).await;
    }
}
