//! The replies to commands of Redis, in the form that clients of Redis expect.

use palisade_core::Secret;

use super::Reply;
use super::channels::Announcement;
use crate::node::{HeldReport, Response};

/// How the node's response to a command of Redis is rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// By the outcome of a command that takes, extends or releases locks. The announcement is made when it is done.
    Outcome(Outcomes, Option<Announcement>),
    /// By how locks are held.
    Held {
        /// The secret with which the client must hold them; `None` if it need not hold them.
        secret: Option<Secret>,
        /// The part of such a lock's report that the reply shows.
        shown: Shown,
        /// The reply for a lock that is free, and for one that is held otherwise.
        missing: Missing,
    },
}

/// The reply for each outcome of a command on locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcomes {
    /// All locks were granted, extended or released.
    pub done: Word,
    /// A lock is held by another client, and nothing else is the reason.
    pub refused: Word,
    /// A lock is free that should have been held.
    pub free: Word,
    /// How many locks the command has.
    pub locks: u32,
}

/// The replies for a lock that the client does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The lock is held by another client.
    pub refused: Word,
    /// The lock is free.
    pub free: Word,
}

/// The part of a report about held locks that a reply shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shown {
    /// The secret; an empty text if the client may not see it, or the holder took the lock without one.
    Secret,
    /// How many locks are held.
    Count,
    /// The shortest time that is left, in units of this many milliseconds; -1 if it does not end.
    TimeLeft(u64),
    Token,
    Word(Word),
}

/// A short reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Word {
    Ok,
    Number(i64),
    Nil,
    Failed,
    /// How many locks were matched.
    Count,
}

impl Word {
    fn reply(self, count: u32) -> Reply {
        match self {
            Word::Ok => Reply::Simple("OK"),
            Word::Number(number) => number.into(),
            Word::Nil => Reply::Nil,
            Word::Failed => Reply::Error("ERR", "the lock is not held with this value".to_owned()),
            Word::Count => Reply::Number(count.into()),
        }
    }
}

impl Form {
    /// Returns the form of a command on so many locks that is either done or not.
    pub(super) fn done_or(done: Word, not: Word, locks: usize) -> Form {
        let locks = u32::try_from(locks).unwrap_or(u32::MAX);
        Form::Outcome(Outcomes { done, refused: not, free: not, locks }, None)
    }

    /// Returns what is announced after this response.
    pub(in crate::net) fn announcement(&self, response: &Response) -> Option<&Announcement> {
        match (self, response) {
            (Form::Outcome(outcomes, announcement), Response::Matched { locks, .. }) if *locks >= outcomes.locks => {
                announcement.as_ref()
            }
            _ => None,
        }
    }

    /// Renders a response. Refusals and unexpected responses are returned.
    pub(in crate::net) fn render(&self, response: Response) -> Result<Reply, Response> {
        match (self, response) {
            (Form::Outcome(outcomes, _), Response::Granted(_)) => Ok(outcomes.done.reply(outcomes.locks)),
            (Form::Outcome(outcomes, _), Response::NotGranted) => Ok(outcomes.refused.reply(0)),
            (Form::Outcome(outcomes, _), Response::Matched { locks, others }) => Ok(match others {
                _ if locks >= outcomes.locks => outcomes.done.reply(locks),
                0 => outcomes.free.reply(locks),
                _ => outcomes.refused.reply(locks),
            }),
            (Form::Held { secret, shown, missing }, Response::Held(held)) => {
                Ok(render_held(secret.as_ref(), *shown, *missing, &held))
            }
            (_, other) => Err(other),
        }
    }
}

fn render_held(secret: Option<&Secret>, shown: Shown, missing: Missing, held: &[Option<HeldReport>]) -> Reply {
    if shown == Shown::Count {
        return Reply::Number(held.iter().flatten().count() as u64);
    }
    let mut time_left: Option<u64> = None;
    for lock in held {
        let Some(lock) = lock else { return missing.free.reply(0) };
        let is_held = secret.is_none_or(|secret| lock.own.as_ref().is_some_and(|(_, own)| own == secret));
        if !is_held {
            return missing.refused.reply(0);
        }
        time_left = [time_left, lock.time_left_ms].into_iter().flatten().min();
    }
    let own = held.iter().flatten().find_map(|lock| lock.own.as_ref());
    match shown {
        Shown::Secret => Reply::Bytes(own.map_or_else(Vec::new, |(_, secret)| secret.as_bytes().to_vec())),
        Shown::Token => own.map_or(Reply::Nil, |(token, _)| Reply::Number(token.get())),
        Shown::TimeLeft(unit) => time_left.map_or((-1).into(), |left| Reply::Number((left + unit / 2) / unit)),
        Shown::Word(word) => word.reply(held.len() as u32),
        Shown::Count => unreachable!("counted above"),
    }
}
