//! Taking back what was asked for: everywhere, and where a node does not answer, until its key is over by itself.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Pipeline, pipe};
use tokio::sync::mpsc;

use super::node::Node;
use crate::BootInstant;

/// Between two attempts at a node that does not answer.
const PAUSE: Duration = Duration::from_millis(200);

/// A key to be taken away, if it is still ours.
pub(super) struct Undo {
    pub(super) nodes: Vec<Rc<Node>>,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) ttl: Duration,
}

/// The question that takes a key away, if it is still ours. The answer is 1 if it was.
pub(super) fn release(key: &str, value: &str) -> Pipeline {
    let mut question = pipe();
    question.cmd("EVAL").arg(include_str!("release.lua")).arg(1).arg(key).arg(value);
    question
}

impl Undo {
    /// Asks every node once; returns what is left to be done.
    pub(super) async fn once(self, patience: Duration) -> Option<Undo> {
        let question = release(&self.key, &self.value);
        let asked = join_all(self.nodes.iter().map(|node| node.ask::<(i64,)>(&question, patience))).await;
        let left: Vec<_> = self.nodes.into_iter().zip(asked).filter(|(_, answer)| answer.is_err()).collect();
        let nodes: Vec<_> = left.into_iter().map(|(node, _)| node).collect();
        (!nodes.is_empty()).then_some(Undo { nodes, ..self })
    }

    async fn until_done(self, patience: Duration) {
        let over_at = BootInstant::now() + self.ttl;
        let mut left = Some(self);
        while let Some(undo) = left.take().filter(|_| !over_at.has_passed()) {
            left = undo.once(patience).await;
            if left.is_some() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Does in the background what is sent to it, for as long as there is a sender.
pub(super) async fn undo_all(mut undos: mpsc::UnboundedReceiver<Undo>, patience: Duration) {
    while let Some(undo) = undos.recv().await {
        // Each ends by itself, or with the keeper.
        drop(tokio::task::spawn_local(undo.until_done(patience)));
    }
}

/// Keys that were asked for, and are taken back unless they are kept, whatever becomes of who asked.
pub(super) struct Pledge {
    undo: Option<Undo>,
    undos: mpsc::UnboundedSender<Undo>,
}

impl Pledge {
    pub(super) fn new(undo: Undo, undos: mpsc::UnboundedSender<Undo>) -> Pledge {
        Pledge { undo: Some(undo), undos }
    }

    /// It was granted.
    pub(super) fn keep(mut self) {
        self.undo = None;
    }

    /// Takes it back, and waits until the nodes that answer have done so.
    pub(super) async fn undo(mut self, patience: Duration) {
        if let Some(undo) = &self.undo {
            // Whoever is dropped meanwhile leaves it to the background.
            let again = Undo { nodes: undo.nodes.clone(), key: undo.key.clone(), value: undo.value.clone(), ..*undo };
            self.undo = again.once(patience).await;
        }
    }
}

impl Drop for Pledge {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            // Without a receiver the client is gone, and the keys end by themselves.
            drop(self.undos.send(undo));
        }
    }
}
