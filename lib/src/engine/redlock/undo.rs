//! Undoing an acquire: removes its key on every node. Retries nodes that do not answer until the key expires.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Pipeline, pipe};
use tokio::sync::mpsc;

use super::node::Node;
use crate::BootInstant;

/// The pause between two attempts at a node that does not answer.
const PAUSE: Duration = Duration::from_millis(200);

/// A key to remove, if it still has this value.
pub(super) struct Undo {
    pub(super) nodes: Vec<Rc<Node>>,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) ttl: Duration,
}

/// Returns the command that removes a key if it has this value. The reply is 1 if it had.
pub(super) fn release(key: &str, value: &str) -> Pipeline {
    let mut commands = pipe();
    commands.cmd("EVAL").arg(include_str!("release.lua")).arg(1).arg(key).arg(value);
    commands
}

impl Undo {
    /// Calls every node once. Returns an undo for those that did not answer.
    pub(super) async fn once(self, call_timeout: Duration) -> Option<Undo> {
        let commands = release(&self.key, &self.value);
        let answers = join_all(self.nodes.iter().map(|node| node.call::<(i64,)>(&commands, call_timeout))).await;
        let left: Vec<_> = self.nodes.into_iter().zip(answers).filter(|(_, answer)| answer.is_err()).collect();
        let nodes: Vec<_> = left.into_iter().map(|(node, _)| node).collect();
        (!nodes.is_empty()).then_some(Undo { nodes, ..self })
    }

    async fn until_done(self, call_timeout: Duration) {
        let expires_at = BootInstant::now() + self.ttl;
        let mut left = Some(self);
        while let Some(undo) = left.take().filter(|_| !expires_at.has_passed()) {
            left = undo.once(call_timeout).await;
            if left.is_some() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Performs undos in the background until the last sender is dropped.
pub(super) async fn undo_all(mut undos: mpsc::UnboundedReceiver<Undo>, call_timeout: Duration) {
    while let Some(undo) = undos.recv().await {
        // Each ends with its TTL, or with the keeper.
        drop(tokio::task::spawn_local(undo.until_done(call_timeout)));
    }
}

/// Undoes an acquire when it is dropped, unless `keep` was called.
pub(super) struct UndoGuard {
    undo: Option<Undo>,
    undos: mpsc::UnboundedSender<Undo>,
}

impl UndoGuard {
    pub(super) fn new(undo: Undo, undos: mpsc::UnboundedSender<Undo>) -> UndoGuard {
        UndoGuard { undo: Some(undo), undos }
    }

    /// Keeps the keys: the lock was granted.
    pub(super) fn keep(mut self) {
        self.undo = None;
    }

    /// Undoes the keys, and waits for the nodes that answer.
    pub(super) async fn undo(mut self, call_timeout: Duration) {
        if let Some(undo) = &self.undo {
            // If this call is dropped meanwhile, the background task continues.
            let again = Undo { nodes: undo.nodes.clone(), key: undo.key.clone(), value: undo.value.clone(), ..*undo };
            self.undo = again.once(call_timeout).await;
        }
    }
}

impl Drop for UndoGuard {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            // Without a receiver the client is gone, and the keys expire.
            drop(self.undos.send(undo));
        }
    }
}
