//! Watches: connections that get the events of locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_core::{Event, LockName};
use smallvec::SmallVec;

use super::clients::ConnectionId;
use super::response::{Push, Refused, Response};
use super::{Node, Recipients, RequestId};

/// The watched prefixes of each connection.
#[derive(Debug, Default)]
pub(super) struct Watches(BTreeMap<ConnectionId, Vec<String>>);

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) {
        self.0.remove(&connection);
    }
}

impl Node {
    /// Begins a watch. A connection gets an event once, however many of its prefixes match.
    pub(super) fn watch(&mut self, id: RequestId, prefix: String) {
        let most = self.config.watches;
        let prefixes = self.watches.0.entry(id.connection).or_default();
        if !prefixes.contains(&prefix) {
            if prefixes.len() >= most {
                let why = format!("one connection watches at most {most} prefixes");
                return self.refuse(id, Refused::OverBound(why));
            }
            prefixes.push(prefix);
        }
        self.reply(id, Response::Done);
    }

    pub(super) fn unwatch(&mut self, id: RequestId, prefix: &str) {
        if let Some(prefixes) = self.watches.0.get_mut(&id.connection) {
            prefixes.retain(|watched| watched != prefix);
            if prefixes.is_empty() {
                self.watches.remove(id.connection);
            }
        }
        self.reply(id, Response::Done);
    }

    pub(super) fn notify_watchers(&mut self, event: &Event) {
        if self.watches.0.is_empty() {
            return;
        }
        let Some(locks) = event.locks() else { return };
        let (mut whole, mut narrowed) = (Recipients::new(), Vec::new());
        for (connection, prefixes) in &self.watches.0 {
            let is_watched = |lock: &LockName| prefixes.iter().any(|prefix| lock.as_str().starts_with(prefix));
            let sees = |lock: &LockName| self.clients.sees(*connection, lock.as_str());
            if !locks.iter().any(|lock| is_watched(lock) && sees(lock)) {
                continue;
            }
            if locks.iter().all(sees) {
                whole.push(*connection);
            } else {
                narrowed.push((*connection, narrow(event, sees)));
            }
        }
        if !whole.is_empty() {
            self.push(whole, Push::Event(Arc::new(event.clone())));
        }
        for (connection, event) in narrowed {
            self.push(SmallVec::from([connection]), Push::Event(Arc::new(event)));
        }
    }
}

/// Returns the event without the locks that the watcher may not see.
fn narrow(event: &Event, sees: impl Fn(&LockName) -> bool) -> Event {
    let mut event = event.clone();
    match &mut event {
        Event::Queued { locks, .. }
        | Event::LeftQueue { locks, .. }
        | Event::Granted { locks, .. }
        | Event::GrantEnded { locks, .. }
        | Event::Withheld { locks, .. }
        | Event::DelayEnded { locks, .. } => locks.retain(|lock| sees(lock)),
        _ => {}
    }
    event
}
