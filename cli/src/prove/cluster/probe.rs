//! A client that takes a free lock again and again. It shows whether locks can be had while the holders of other locks are paused.

use std::time::Duration;

use palisade::Palisade;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::prove;

/// The time between a release and the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// The client. It ends with this value.
pub(super) struct Probe {
    task: JoinHandle<()>,
    grants: UnboundedReceiver<()>,
}

impl Probe {
    pub(super) fn start(engine: String, ttl: Duration) -> Probe {
        let (sender, grants) = unbounded_channel();
        let task = tokio::spawn(async move {
            for number in 0_u64.. {
                // A lock of an earlier session may still be held.
                let lock = prove::lock_name(&format!("probe/{number}"));
                if let Ok(client) = prove::connect(&engine, ttl).await {
                    take_while_possible(&client, &lock, &sender).await;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Probe { task, grants }
    }

    /// Waits for the next grant.
    pub(super) async fn granted(&mut self) {
        // The task ends only with this value.
        if self.grants.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Takes and releases a lock until the session is lost, or a release fails.
async fn take_while_possible(client: &Palisade, lock: &str, grants: &UnboundedSender<()>) {
    loop {
        match client.lock(lock).acquire().await {
            Ok(guard) => {
                if grants.send(()).is_err() || guard.release().await.is_err() {
                    return;
                }
            }
            Err(error) if error.loss().is_some() => return,
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}
