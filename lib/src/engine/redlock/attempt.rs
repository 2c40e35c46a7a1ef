//! One try at a lock: asked of all nodes at once, granted by a majority in time, or undone everywhere.

use std::rc::Rc;
use std::time::Duration;

use palisade_core::{LockName, RequestNo, SessionId, Token};
use redis::{Pipeline, Value, pipe};

use super::engine::Shared;
use super::error::{Absence, too_slow};
use super::owner::{self, Owner};
use super::quorum::{self, Verdict, Vote, validity, verdict};
use super::session::Held;
use super::undo::{Pledge, Undo};
use crate::BootInstant;
use crate::engine::Failure;

/// The question that takes a key if nobody has it.
fn take(key: &str, value: &str, ttl: Duration) -> Pipeline {
    let mut question = pipe();
    question.cmd("SET").arg(key).arg(value).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
    question
}

/// Adds the question that gives a key another TTL, if it is ours. The answer is 1 if it was.
pub(super) fn extend(question: &mut Pipeline, key: &str, value: &str, ttl: Duration) {
    let script = include_str!("extend.lua");
    question.cmd("EVAL").arg(script).arg(1).arg(key).arg(value).arg(ttl.as_millis() as u64);
}

impl Shared {
    /// `None`: somebody else has it, or some others have split the nodes among them.
    pub(super) async fn try_once(
        self: &Rc<Self>,
        session: SessionId,
        lock: &LockName,
        number: Option<RequestNo>,
    ) -> Result<Option<Token>, Failure> {
        let (ttl, grant) = (self.sessions.borrow_mut().living(session)?.ttl, owner::grant_name());
        let value = Owner::value(session, grant, &self.sessions.borrow_mut().living(session)?.label);
        let (key, patience) = (owner::key(lock), self.patience(ttl));
        let undo = Undo { nodes: self.nodes.clone(), key: key.clone(), value: value.clone(), ttl };
        let pledge = Pledge::new(undo, self.undos.clone());

        let asked_at = BootInstant::now();
        let answers = self.ask_all::<(Value,)>(&take(&key, &value, ttl), patience).await;
        // Only when the last answer is here, and on a clock that does not stop while this process does.
        let elapsed = BootInstant::now().since(asked_at);
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
            Verdict::Yes => self.overtake_renewal(session, &key, &value, asked_at).await.map(|()| true),
            Verdict::No => Ok(false),
            Verdict::Unknown => Err(self.no_majority(answers).failure(false)),
        };
        if !matches!(outcome, Ok(true)) {
            pledge.undo(patience).await;
            return outcome.map(|_| None);
        }
        let held = Held { lock: lock.clone(), value, number, is_leaving: false };
        self.sessions.borrow_mut().living(session)?.grants.insert(grant, held);
        pledge.keep();
        Ok(Some(grant))
    }

    /// A renewal that was begun after the lock was asked for makes the session live longer than the lock: then the lock
    /// is extended too, before anybody has it.
    async fn overtake_renewal(
        &self,
        session: SessionId,
        key: &str,
        value: &str,
        mut asked_at: BootInstant,
    ) -> Result<(), Failure> {
        loop {
            let (ttl, begun_at) = {
                let mut sessions = self.sessions.borrow_mut();
                let session = sessions.living(session)?;
                (session.ttl, session.renewal_begun_at)
            };
            if begun_at <= asked_at {
                return Ok(());
            }
            asked_at = BootInstant::now();
            let mut question = pipe();
            extend(&mut question, key, value, ttl);
            let answers = self.ask_all::<(i64,)>(&question, self.patience(ttl)).await;
            let answers: Vec<_> = answers.into_iter().map(|answer| Ok(answer?.0 == 1)).collect();
            let elapsed = BootInstant::now().since(asked_at);
            match quorum::standing(answers.iter().map(vote)) {
                Verdict::Yes if validity(ttl, elapsed).is_none() => return Err(too_slow(ttl, elapsed)),
                Verdict::Yes => {}
                Verdict::No | Verdict::Unknown => return Err(self.no_majority(answers).failure(false)),
            }
        }
    }
}

/// What an answer is worth.
pub(super) fn vote(answer: &Result<bool, Absence>) -> Vote {
    match answer {
        Ok(true) => Vote::Yes,
        Ok(false) => Vote::No,
        Err(_) => Vote::Absent,
    }
}
