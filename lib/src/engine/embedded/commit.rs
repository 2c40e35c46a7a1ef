//! Group commit: everything that is asked for at one moment becomes one row, and one write to the disk.

use std::cell::RefCell;

use tokio::sync::{Notify, oneshot};

use super::answer::Answered;
use super::bell::Bells;
use super::draft::{Draft, Drafted, What};
use super::engine::Shared;
use super::error::Trouble;
use super::log::{Appended, Batch, Lasting, Log, Sizes, Transaction};
use super::replica::Replica;
use super::state::State;
use crate::engine::{Failure, Unavailable};

/// What is asked for and not yet done.
#[derive(Default)]
pub(super) struct Queue {
    works: RefCell<Vec<Work>>,
    filled: Notify,
}

pub(super) struct Work {
    pub(super) what: What,
    pub(super) reply: oneshot::Sender<Result<Answered, Failure>>,
}

/// A batch that was not committed, as far as is known.
pub(super) struct NotCommitted {
    pub(super) trouble: Trouble,
    may_have_taken_effect: bool,
}

impl From<Trouble> for NotCommitted {
    fn from(trouble: Trouble) -> NotCommitted {
        NotCommitted { trouble, may_have_taken_effect: false }
    }
}

impl Queue {
    /// What is asked for by somebody who still waits for the answer.
    fn take(&self) -> Vec<Work> {
        let mut works = std::mem::take(&mut *self.works.borrow_mut());
        works.retain(|work| !work.reply.is_closed());
        works
    }
}

impl Shared {
    /// Asks the log, and waits for the answer.
    pub(super) async fn submit(&self, what: What) -> Result<Answered, Failure> {
        let (reply, answer) = oneshot::channel();
        self.queue.works.borrow_mut().push(Work { what, reply });
        self.queue.filled.notify_one();
        answer.await.unwrap_or_else(|_| Err(Unavailable::new("the engine was closed meanwhile").into()))
    }

    /// Commits what is asked for, for ever.
    pub(super) async fn commit_forever(&self) {
        loop {
            self.queue.filled.notified().await;
            // Whoever is ready to ask joins.
            tokio::task::yield_now().await;
            if self.queue.works.borrow().is_empty() {
                continue;
            }
            match self.log_lock.take().await {
                Ok(held) => {
                    let works = self.queue.take();
                    let mut state = self.state.borrow_mut();
                    let written = state.write(&self.bells, works.iter().map(|work| &work.what));
                    drop(held);
                    state.answer(&self.bells, works, written);
                }
                Err(trouble) => fail(self.queue.take(), &trouble.into()),
            }
            self.changed.notify_one();
        }
    }
}

/// Tells all who asked that it was in vain.
pub(super) fn fail(works: Vec<Work>, why: &NotCommitted) {
    for work in works {
        drop(work.reply.send(Err(why.trouble.failure(why.may_have_taken_effect))));
    }
}

impl State {
    /// Does what is asked for and makes it durable. The caller has the log's lock.
    pub(super) fn write<'w>(
        &mut self,
        bells: &Bells,
        mut asked: impl Iterator<Item = &'w What> + Clone,
    ) -> Result<Drafted, NotCommitted> {
        let log = self.log.clone();
        log.check()?;
        // Nobody else writes meanwhile, so that all of it is seen as of one moment.
        self.follow(&log)?;
        let given = self.replica.machine.last_token();
        let drafted = Draft::new(&mut self.replica, &mut self.alive, bells).carry_out(asked.clone());
        if drafted.batch.commands.is_empty() {
            return Ok(drafted);
        }
        // A release that lets somebody in gives a token.
        let is_light = asked.all(|what| what.is_light(&self.alive)) && self.replica.machine.last_token() == given;
        let lasting = if is_light { Lasting::Later } else { Lasting::AtOnce };
        let reserved = log.reserve(self.replica.machine.last_token());
        let begun = reserved.and_then(|()| log.begin(lasting));
        match begun.and_then(|writing| put(&log, &self.replica, &drafted.batch, writing)) {
            Ok((appended, sizes)) => self.has_written(appended, sizes),
            Err(trouble) => self.find_out(&log, trouble, &drafted)?,
        }
        for (session, ttl) in &drafted.opened {
            self.alive.begin(*session, *ttl);
        }
        Ok(drafted)
    }

    pub(super) fn has_written(&mut self, appended: Appended, sizes: Option<Sizes>) {
        self.replica.advance(appended);
        self.replica.sizes = sizes.unwrap_or(self.replica.sizes);
        self.log.note_given(self.replica.machine.last_token());
    }

    /// A commit failed: finds out whether it is in the log all the same. If not, the replica is ahead of the file.
    pub(super) fn find_out(&mut self, log: &Log, trouble: Trouble, drafted: &Drafted) -> Result<(), NotCommitted> {
        let is_there = log.find(self.replica.applied + 1, &drafted.batch);
        if let Ok(Some(appended)) = is_there {
            self.has_written(appended, None);
            return Ok(());
        }
        let reloaded = log.read().and_then(|_reading| Replica::load(log, self.replica.settings));
        match (reloaded, &is_there) {
            (Ok(replica), Ok(_)) => self.replica = replica,
            _ => self.is_doubtful = true,
        }
        for (session, _) in &drafted.opened {
            self.alive.remove(*session);
        }
        let may_have_taken_effect = is_there.is_err() || !trouble.is_certain();
        Err(NotCommitted { trouble, may_have_taken_effect })
    }
}

/// Writes a batch, durably. Returns what became of it, and the log's size where it was looked at.
pub(super) fn put(
    log: &Log,
    replica: &Replica,
    batch: &Batch,
    writing: Transaction<'_>,
) -> Result<(Appended, Option<Sizes>), Trouble> {
    let appended = log.append(replica.applied + 1, batch)?;
    let sizes = replica.compact(log, appended)?;
    log.commit(writing)?;
    Ok((appended, sizes))
}
