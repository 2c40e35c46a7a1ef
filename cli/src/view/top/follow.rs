//! Lists the locks after every event, and once a second for the times.

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

/// Lists the locks of the wanted prefix until the receiver is dropped.
pub(super) async fn follow(palisade: &Palisade, mut wanted: watch::Receiver<String>, finder: mpsc::Sender<Listing>) {
    loop {
        let prefix = wanted.borrow_and_update().clone();
        // An engine that cannot be watched is polled once a second.
        let mut watch = palisade.watch(&prefix).await.ok();
        loop {
            if finder.send(palisade.list(&prefix).await).await.is_err() {
                return;
            }
            tokio::select! {
                still = wanted.changed() => match still {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = next_event(&mut watch) => drop(timeout(BATCH_WINDOW, drain_events(&mut watch)).await),
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }
}

/// Waits until something happens.
async fn next_event(watch: &mut Option<Watch>) {
    let next = match watch {
        Some(watch) => watch.next().await,
        None => None,
    };
    if next.is_none() {
        future::pending().await
    }
}

/// Takes whatever else happens.
async fn drain_events(watch: &mut Option<Watch>) {
    loop {
        next_event(watch).await;
    }
}
