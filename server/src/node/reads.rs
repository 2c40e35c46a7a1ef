//! Reads that may be answered now. The connections take turns, so that one with many large reads does not hold up the others.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use super::clients::ConnectionId;
use super::queries::PendingRead;

/// The reads of each connection, in the order of its requests.
#[derive(Default)]
pub(super) struct Reads {
    queues: BTreeMap<ConnectionId, VecDeque<PendingRead>>,
    /// The connection whose read was taken last.
    last: Option<ConnectionId>,
}

impl Reads {
    pub(super) fn extend(&mut self, reads: impl IntoIterator<Item = PendingRead>) {
        for read in reads {
            self.queues.entry(read.id().connection).or_default().push_back(read);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Takes the first read of the next connection.
    pub(super) fn pop(&mut self) -> Option<PendingRead> {
        let after = self.last.map_or(Unbounded, Excluded);
        let next = self.queues.range((after, Unbounded)).next().or_else(|| self.queues.first_key_value());
        let connection = next.map(|(connection, _)| *connection)?;
        self.last = Some(connection);
        let queue = self.queues.get_mut(&connection)?;
        let read = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&connection);
        }
        read
    }
}
