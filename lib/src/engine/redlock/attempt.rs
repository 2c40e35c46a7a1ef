//! One attempt to acquire a lock: sent to all nodes at once, then granted by a majority in time, or undone everywhere.

use std::rc::Rc;
use std::time::Duration;

use palisade_core::{LockName, RequestNo, SessionId, Token};
use redis::{Pipeline, Value, pipe};

use super::engine::Shared;
use super::error::{Absence, too_slow};
use super::owner::{self, Owner};
use super::quorum::{self, Verdict, Vote, validity, verdict};
use super::session::Grant;
use super::undo::{Undo, UndoGuard};
use crate::BootInstant;
use crate::engine::Failure;

/// Returns the command that sets a key unless it exists.
fn set_if_absent(key: &str, value: &str, ttl: Duration) -> Pipeline {
    let mut commands = pipe();
    commands.cmd("SET").arg(key).arg(value).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
    commands
}

/// Adds the command that extends a key if it has this value. The reply is 1 if it had.
pub(super) fn extend(commands: &mut Pipeline, key: &str, value: &str, ttl: Duration) {
    let script = include_str!("extend.lua");
    commands.cmd("EVAL").arg(script).arg(1).arg(key).arg(value).arg(ttl.as_millis() as u64);
}

impl Shared {
    /// Makes one attempt. Returns `None` if another client has the lock, or if several clients have split the nodes among them.
    pub(super) async fn try_once(
        self: &Rc<Self>,
        session: SessionId,
        lock: &LockName,
        number: Option<RequestNo>,
    ) -> Result<Option<Token>, Failure> {
        let (ttl, grant) = (self.sessions.borrow_mut().live(session)?.ttl, owner::random_token());
        let value = Owner::value(session, grant, &self.sessions.borrow_mut().live(session)?.label);
        let (key, call_timeout) = (owner::key(lock), self.call_timeout(ttl));
        let undo = Undo { nodes: self.nodes.clone(), key: key.clone(), value: value.clone(), ttl };
        let undo_guard = UndoGuard::new(undo, self.undos.clone());

        let requested_at = BootInstant::now();
        let answers = self.call_all::<(Value,)>(&set_if_absent(&key, &value, ttl), call_timeout).await;
        // Read after the last reply, on a clock that also counts while this process is paused.
        let elapsed = BootInstant::now().since(requested_at);
        let answers: Vec<Result<bool, Absence>> = answers
            .into_iter()
            .zip(&self.nodes)
            .map(|(answer, node)| {
                let (answer,) = answer?;
                node.counts()?;
                Ok(answer != Value::Nil)
            })
            .collect();
        let outcome = match verdict(answers.iter().map(vote)) {
            Verdict::Yes if validity(ttl, elapsed).is_none() => Err(too_slow(ttl, elapsed)),
            Verdict::Yes => self.catch_up_with_renewal(session, &key, &value, requested_at).await.map(|()| true),
            Verdict::No => Ok(false),
            Verdict::Unknown => Err(self.no_majority(answers).failure(false)),
        };
        if !matches!(outcome, Ok(true)) {
            undo_guard.undo(call_timeout).await;
            return outcome.map(|_| None);
        }
        let held = Grant { lock: lock.clone(), value, number, is_releasing: false };
        self.sessions.borrow_mut().live(session)?.grants.insert(grant, held);
        undo_guard.keep();
        Ok(Some(grant))
    }

    /// Extends the lock if a renewal of the session began after the lock was requested: the renewal did not extend this lock, so
    /// the session would outlive it.
    async fn catch_up_with_renewal(
        &self,
        session: SessionId,
        key: &str,
        value: &str,
        mut requested_at: BootInstant,
    ) -> Result<(), Failure> {
        loop {
            let (ttl, renewal_began_at) = {
                let mut sessions = self.sessions.borrow_mut();
                let session = sessions.live(session)?;
                (session.ttl, session.renewal_began_at)
            };
            if renewal_began_at <= requested_at {
                return Ok(());
            }
            requested_at = BootInstant::now();
            let mut commands = pipe();
            extend(&mut commands, key, value, ttl);
            let answers = self.call_all::<(i64,)>(&commands, self.call_timeout(ttl)).await;
            let answers: Vec<_> = answers.into_iter().map(|answer| Ok(answer?.0 == 1)).collect();
            let elapsed = BootInstant::now().since(requested_at);
            match quorum::verdict_on_grant(answers.iter().map(vote)) {
                Verdict::Yes if validity(ttl, elapsed).is_none() => return Err(too_slow(ttl, elapsed)),
                Verdict::Yes => {}
                Verdict::No | Verdict::Unknown => return Err(self.no_majority(answers).failure(false)),
            }
        }
    }
}

/// Converts a reply to a vote.
pub(super) fn vote(answer: &Result<bool, Absence>) -> Vote {
    match answer {
        Ok(true) => Vote::Yes,
        Ok(false) => Vote::No,
        Err(_) => Vote::Absent,
    }
}
