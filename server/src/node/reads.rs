//! Reads that may be answered now. The connections take turns, so that one with many large reads does not hold up the others.

use std::collections::{BTreeMap, VecDeque};

use super::clients::ConnectionId;
use super::queries::PendingRead;

/// The reads of each connection, in the order of its requests.
#[derive(Default)]
pub(super) struct Reads {
    queues: BTreeMap<ConnectionId, VecDeque<PendingRead>>,
    /// The connections that have reads. One that comes later has its turn later: over HTTP each request is a connection, and new ones
    /// must not overtake the others.
    turns: VecDeque<ConnectionId>,
}

impl Reads {
    pub(super) fn extend(&mut self, reads: impl IntoIterator<Item = PendingRead>) {
        for read in reads {
            let connection = read.id().connection;
            let queue = self.queues.entry(connection).or_default();
            if queue.is_empty() {
                self.turns.push_back(connection);
            }
            queue.push_back(read);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Takes the first read of the next connection.
    pub(super) fn pop(&mut self) -> Option<PendingRead> {
        let connection = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&connection)?;
        let read = queue.pop_front();
        match queue.is_empty() {
            true => drop(self.queues.remove(&connection)),
            false => self.turns.push_back(connection),
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{RequestId, Response};

    /// Over HTTP each request is a connection with a higher number than those before it.
    #[test]
    fn new_connections_do_not_overtake_older_ones() {
        let mut reads = Reads::default();
        let read = |connection, number| {
            let id = RequestId { connection: ConnectionId(connection), number };
            PendingRead::Reply(id, Response::NotGranted)
        };
        reads.extend([read(100, 1), read(100, 2), read(5, 1), read(101, 1)]);
        let mut order = Vec::new();
        for newer in 102..106 {
            order.extend(reads.pop().map(|read| (read.id().connection.0, read.id().number)));
            reads.extend([read(newer, 1)]);
        }
        order.extend(std::iter::from_fn(|| reads.pop()).map(|read| (read.id().connection.0, read.id().number)));
        assert_eq!(order, [(100, 1), (5, 1), (101, 1), (100, 2), (102, 1), (103, 1), (104, 1), (105, 1)]);
        assert!(reads.is_empty());
    }
}
