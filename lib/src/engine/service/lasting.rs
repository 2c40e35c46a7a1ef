//! What outlives a line to the service.

use palisade_core::RequestNo;

use super::command::Command;
use super::push::Push;
use crate::engine::lasting::{self, Keeps};

pub(super) use crate::engine::lasting::WaitKey;

pub(super) type Lasting = lasting::Lasting<AtService>;

pub(super) struct AtService;

impl Keeps for AtService {
    type Ask = Command;
    type Held = ();
    type OfSession = ();
    type OfAll = ();
    const TAKEN_UNSEEN: &'static str = "unknown, as the line to the service was broken at that time";

    fn held(_: &Command, _: RequestNo, (): &()) {}
}

impl Lasting {
    /// What is watched, and by somebody.
    pub(super) fn watched(&self) -> Vec<String> {
        let mut watchers = self.watchers.borrow_mut();
        drop(watchers.forget_closed());
        watchers.prefixes()
    }

    /// It may not be watched any more.
    pub(super) fn end_watch(&self, prefix: &str) {
        self.watchers.borrow_mut().end_watch(prefix);
    }

    /// Takes in what the service says unasked; returns what need not be watched any more.
    pub(super) fn heed(&self, push: Push) -> Vec<String> {
        match push {
            Push::Waited { session, number, outcome } => self.settle((session, number), outcome),
            Push::Lost { session, token, how } => self.grant_ended(session, token, how),
            Push::SessionEnded { session, how } => self.session_ended(session, how),
            Push::Event(event) => {
                let mut watchers = self.watchers.borrow_mut();
                let unwatched = watchers.forget_closed();
                watchers.tell(std::slice::from_ref(&event));
                return unwatched;
            }
            Push::Unknown => {}
        }
        Vec::new()
    }
}
