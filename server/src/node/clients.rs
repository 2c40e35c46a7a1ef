//! The connected clients.

use std::collections::HashMap;

use palisade_core::Label;
use smallvec::SmallVec;

use super::principal::{Principal, Protocol, RequestContext};
use super::waits::{PendingId, Undelivered};

/// Identifies a connection. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// All connected clients, and disconnected ones with unanswered commands.
#[derive(Debug, Default)]
pub(super) struct Clients(HashMap<ConnectionId, Client>);

#[derive(Debug)]
struct Client {
    context: RequestContext,
    is_connected: bool,
    /// The number of unanswered commands. The audit log may need the client's context for them.
    unanswered: usize,
    pending: SmallVec<[PendingId; 1]>,
    /// A grant whose reply may not have reached the client.
    undelivered: Option<Undelivered>,
}

impl Clients {
    pub(super) fn connected(&mut self, connection: ConnectionId, context: RequestContext) {
        let client =
            Client { context, is_connected: true, unanswered: 0, pending: SmallVec::new(), undelivered: None };
        self.0.insert(connection, client);
    }

    pub(super) fn authenticated(&mut self, connection: ConnectionId, principal: Principal) {
        if let Some(client) = self.0.get_mut(&connection) {
            client.context.principal = principal;
        }
    }

    /// Forgets the client, once its commands are answered. Returns its pending acquires, and the grant whose reply may
    /// not have reached it.
    pub(super) fn disconnected(
        &mut self,
        connection: ConnectionId,
    ) -> (SmallVec<[PendingId; 1]>, Option<Undelivered>) {
        let Some(client) = self.0.get_mut(&connection) else { return Default::default() };
        client.is_connected = false;
        let left = (client.pending.clone(), client.undelivered.take());
        self.forget_idle(connection);
        left
    }

    pub(super) fn is_connected(&self, connection: ConnectionId) -> bool {
        self.0.get(&connection).is_some_and(|client| client.is_connected)
    }

    pub(super) fn context(&self, connection: ConnectionId) -> Option<&RequestContext> {
        self.0.get(&connection).map(|client| &client.context)
    }

    pub(super) fn label(&self, connection: ConnectionId, own: Option<&Label>) -> Label {
        match self.context(connection) {
            Some(context) => context.label(own),
            None => own.cloned().unwrap_or_else(|| Label::new("")),
        }
    }

    pub(super) fn sees(&self, connection: ConnectionId, lock: &str) -> bool {
        self.0.get(&connection).is_some_and(|client| client.is_connected && client.context.principal.sees(lock))
    }

    /// Counts a command as unanswered until [`end_request`](Clients::end_request).
    pub(super) fn begin_request(&mut self, connection: ConnectionId) -> Option<Protocol> {
        let client = self.0.get_mut(&connection)?;
        client.unanswered += 1;
        Some(client.context.protocol)
    }

    pub(super) fn end_request(&mut self, connection: ConnectionId) {
        if let Some(client) = self.0.get_mut(&connection) {
            client.unanswered = client.unanswered.saturating_sub(1);
            self.forget_idle(connection);
        }
    }

    pub(super) fn add_pending(&mut self, connection: ConnectionId, pending: PendingId) {
        if let Some(client) = self.0.get_mut(&connection) {
            client.pending.push(pending);
        }
    }

    pub(super) fn remove_pending(&mut self, connection: ConnectionId, pending: PendingId) {
        if let Some(client) = self.0.get_mut(&connection) {
            client.pending.retain(|other| *other != pending);
            self.forget_idle(connection);
        }
    }

    pub(super) fn pending(&self, connection: ConnectionId) -> SmallVec<[PendingId; 1]> {
        self.0.get(&connection).map(|client| client.pending.clone()).unwrap_or_default()
    }

    pub(super) fn set_undelivered(&mut self, connection: ConnectionId, undelivered: Undelivered) {
        if let Some(client) = self.0.get_mut(&connection) {
            client.undelivered = Some(undelivered);
        }
    }

    fn forget_idle(&mut self, connection: ConnectionId) {
        if self
            .0
            .get(&connection)
            .is_some_and(|client| !client.is_connected && client.unanswered == 0 && client.pending.is_empty())
        {
            self.0.remove(&connection);
        }
    }
}
