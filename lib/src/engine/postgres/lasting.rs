//! What outlives a line to PostgreSQL, and what is made of what PostgreSQL says unasked.

use std::collections::BTreeMap;

use palisade_core::{Acquire, LockName, RequestNo, SessionId};
use tokio::sync::Notify;

use super::push::{self, Push};
use crate::engine::lasting::{self, Keeps};

pub(super) use crate::engine::lasting::Stray;

pub(super) type Lasting = lasting::Lasting<AtPostgres>;

pub(super) struct AtPostgres;

impl Keeps for AtPostgres {
    type Ask = Acquire;
    type Held = LockName;
    type OfSession = ();
    /// Somebody should look what became of waits, now.
    type OfAll = Notify;
    const TAKEN_UNSEEN: &'static str = "unknown, as the line to PostgreSQL was broken at that time";

    fn held(ask: &Acquire, _: RequestNo, (): &()) -> LockName {
        ask.wants[0].lock.clone()
    }
}

impl Lasting {
    /// Somebody should look what became of waits, now.
    pub(super) fn look(&self) -> &Notify {
        &self.of_all
    }

    /// The numbers that wait, by session.
    pub(super) fn waiting(&self) -> BTreeMap<SessionId, Vec<RequestNo>> {
        let mut waiting: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((session, number), ()) in self.waits(|_| ()) {
            waiting.entry(session).or_default().push(number);
        }
        waiting
    }

    /// Takes in what was said.
    pub(super) fn heed(&self, text: &str) {
        match push::read(text) {
            Some(Push::Granted { session, number, token }) => self.settle((session, number), Ok(token)),
            Some(Push::Refused { session, number, refusal }) => self.settle((session, number), Err(refusal.into())),
            Some(Push::Turn) => self.look().notify_one(),
            Some(Push::Lost { session, token, how }) => self.grant_ended(session, token, how),
            Some(Push::SessionEnded { session, how }) => self.session_ended(session, how),
            Some(Push::Event(event)) => self.watchers.borrow_mut().tell(std::slice::from_ref(&event)),
            Some(Push::Missed) => self.note_missed(),
            None => tracing::debug!(text, "PostgreSQL said something that this build does not understand"),
        }
    }
}
