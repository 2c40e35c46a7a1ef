//! Looking at the locks again: when something happened, and once a second for the times.

use std::future;
use std::time::Duration;

use palisade::engine::LockInfo;
use palisade::{Error, Palisade, Watch};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// What a look has brought.
pub(super) type Found = Result<Vec<LockInfo>, Error>;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What happens within so long is one change: a busy place is not looked at all the time.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Looks at the locks of the wanted prefix until nobody wants to know.
pub(super) async fn follow(palisade: &Palisade, mut wanted: watch::Receiver<String>, finder: mpsc::Sender<Found>) {
    loop {
        let prefix = wanted.borrow_and_update().clone();
        // An engine that cannot be watched is looked at once a second.
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
                () = something(&mut watch) => drop(timeout(AT_ONCE, everything(&mut watch)).await),
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// Waits until something happens.
async fn something(watch: &mut Option<Watch>) {
    let next = match watch {
        Some(watch) => watch.next().await,
        None => None,
    };
    if next.is_none() {
        future::pending().await
    }
}

/// Takes whatever else happens.
async fn everything(watch: &mut Option<Watch>) {
    loop {
        something(watch).await;
    }
}
