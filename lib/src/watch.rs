//! A live feed of what happens to locks.

use tokio::sync::mpsc;

use crate::engine::Watched;

/// A live feed of what happens to locks.
pub struct Watch {
    events: mpsc::Receiver<Watched>,
}

impl Watch {
    pub(crate) fn new(events: mpsc::Receiver<Watched>) -> Watch {
        Watch { events }
    }

    /// The next thing that happens; `None` when the client was closed.
    ///
    /// # Cancellation
    ///
    /// Nothing is missed; call it again.
    pub async fn next(&mut self) -> Option<Watched> {
        self.events.recv().await
    }
}
