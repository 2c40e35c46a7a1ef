//! A live feed of what happens to locks.

use tokio::sync::{mpsc, watch};

use crate::engine::Watched;

/// A live feed of what happens to locks.
pub struct Watch {
    events: mpsc::Receiver<Watched>,
    /// Says nothing, and is closed with the client.
    life: watch::Receiver<()>,
}

impl Watch {
    pub(crate) fn new(events: mpsc::Receiver<Watched>, life: watch::Receiver<()>) -> Watch {
        Watch { events, life }
    }

    /// The next thing that happens; `None` when the client was closed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut watch = palisade.watch("").await?;
    /// palisade.close().await?;
    /// assert!(watch.next().await.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Nothing is missed; call it again.
    pub async fn next(&mut self) -> Option<Watched> {
        tokio::select! {
            biased;
            _ = self.life.changed() => None,
            watched = self.events.recv() => watched,
        }
    }
}
