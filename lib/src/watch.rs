//! The events of locks as they happen.

use tokio::sync::{mpsc, watch};

use crate::engine::Watched;

/// A stream of the events of all locks below a prefix. See [`Palisade::watch`](crate::Palisade::watch).
pub struct Watch {
    events: mpsc::Receiver<Watched>,
    /// Receives nothing. Its sender is dropped when the client is closed.
    open_client: watch::Receiver<()>,
}

impl Watch {
    pub(crate) fn new(events: mpsc::Receiver<Watched>, open_client: watch::Receiver<()>) -> Watch {
        Watch { events, open_client }
    }

    /// Waits for the next event; `None` once the client is closed.
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
    /// No event is lost; call it again.
    pub async fn next(&mut self) -> Option<Watched> {
        tokio::select! {
            biased;
            _ = self.open_client.changed() => None,
            watched = self.events.recv() => watched,
        }
    }
}
