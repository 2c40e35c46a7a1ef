//! What the engines that host the rules have in common: who is to be told when something happens.

use std::collections::HashMap;

use palisade_core::{Answer, Departure, Ending, Event, Machine, Refusal, SessionEnd, SessionId, Ticket, Token};
use tokio::sync::{mpsc, oneshot};

use super::{Acquired, Cancelled, Failure, Forced, Notice, Raised, Released, Unavailable, Watched};

/// How many events a watcher may be behind.
const WATCH_BUFFER: usize = 1024;

/// How a wait ends.
pub(super) type Waited = Result<Token, Failure>;

/// Those who are to be told.
#[derive(Default)]
pub(super) struct Listeners {
    waits: HashMap<Ticket, oneshot::Sender<Waited>>,
    sessions: HashMap<SessionId, mpsc::UnboundedSender<Notice>>,
    watchers: Vec<Watcher>,
}

struct Watcher {
    prefix: String,
    sink: mpsc::Sender<Watched>,
    missed: bool,
}

impl Listeners {
    /// Whether anybody here would want to know of changes that others make.
    #[cfg(feature = "embedded")]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waits.is_empty()
    }

    #[cfg(any(feature = "embedded", feature = "redis"))]
    pub(super) fn is_watching(&self) -> bool {
        self.watchers.iter().any(|watcher| !watcher.sink.is_closed())
    }

    pub(super) fn wait(&mut self, ticket: Ticket) -> oneshot::Receiver<Waited> {
        let (sender, receiver) = oneshot::channel();
        self.waits.insert(ticket, sender);
        receiver
    }

    pub(super) fn listen(&mut self, session: SessionId) -> mpsc::UnboundedReceiver<Notice> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.sessions.insert(session, sender);
        receiver
    }

    pub(super) fn watch(&mut self, prefix: String) -> mpsc::Receiver<Watched> {
        let (sink, receiver) = mpsc::channel(WATCH_BUFFER);
        self.watchers.push(Watcher { prefix, sink, missed: false });
        receiver
    }

    /// The sessions that somebody here listens for.
    #[cfg(feature = "embedded")]
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// Tells every session that the store has lost its data, and ends every wait so.
    #[cfg(feature = "embedded")]
    pub(super) fn data_lost(&mut self, what: &str, failure: impl Fn() -> Failure) {
        for (_, sink) in self.sessions.drain() {
            drop(sink.send(Notice::DataLost { what: what.to_owned() }));
        }
        for (_, wait) in self.waits.drain() {
            drop(wait.send(Err(failure())));
        }
        self.tell_missed();
    }

    /// Tells everybody whom it concerns.
    pub(super) fn tell(&mut self, events: &[Event]) {
        for event in events {
            self.tell_owners(event);
            self.watchers.retain_mut(|watcher| watcher.tell(event));
        }
    }

    /// Tells those who wait and those who have a session, but nobody who only watches.
    pub(super) fn tell_owners(&mut self, event: &Event) {
        self.tell_waiter(event);
        self.tell_session(event);
    }

    /// Forgets watches that nobody looks at any more; returns those of their prefixes that nobody else watches.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "service"))]
    pub(super) fn forget_closed(&mut self) -> Vec<String> {
        let gone: Vec<_> = self.watchers.extract_if(.., |watcher| watcher.sink.is_closed()).collect();
        let is_watched = |prefix: &String| self.watchers.iter().any(|watcher| watcher.prefix == *prefix);
        gone.into_iter().map(|watcher| watcher.prefix).filter(|prefix| !is_watched(prefix)).collect()
    }

    /// What is watched.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "service"))]
    pub(super) fn prefixes(&self) -> Vec<String> {
        let mut prefixes: Vec<_> = self.watchers.iter().map(|watcher| watcher.prefix.clone()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }

    /// Ends the watches of a prefix.
    #[cfg(feature = "service")]
    pub(super) fn end_watch(&mut self, prefix: &str) {
        self.watchers.retain(|watcher| watcher.prefix != prefix);
    }

    /// Tells those who watch that something was skipped.
    #[cfg(any(
        feature = "embedded",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "service"
    ))]
    pub(super) fn tell_missed(&mut self) {
        for watcher in &mut self.watchers {
            watcher.missed = watcher.sink.try_send(Watched::Missed).is_err();
        }
    }

    fn tell_waiter(&mut self, event: &Event) {
        let (ticket, outcome) = match event {
            Event::Granted { ticket: Some(ticket), token, .. } => (ticket, Ok(*token)),
            Event::LeftQueue { ticket, why, .. } => (ticket, Err(left(why))),
            _ => return,
        };
        if let Some(wait) = self.waits.remove(ticket) {
            // Nobody listens to a wait that was given up; the keeper cancels it, and learns of the grant then.
            drop(wait.send(outcome));
        }
    }

    fn tell_session(&mut self, event: &Event) {
        match event {
            Event::GrantEnded { session, token, how, .. } if *how != Ending::Released => {
                if let Some(sink) = self.sessions.get(session) {
                    drop(sink.send(Notice::GrantEnded { token: *token, how: how.clone() }));
                }
            }
            Event::SessionEnded { session, how } => {
                if let Some(sink) = self.sessions.remove(session) {
                    drop(sink.send(Notice::SessionEnded(*how)));
                }
            }
            _ => {}
        }
    }
}

fn left(why: &Departure) -> Failure {
    match why {
        Departure::SessionEnded(SessionEnd::Closed | SessionEnd::Expired) => Failure::SessionEnded,
        Departure::Refused(refusal) => Failure::Refused(refusal.clone()),
        Departure::Cancelled => Failure::Refused(Refusal::NotWaiting),
    }
}

impl Watcher {
    /// Whether anybody still watches.
    fn tell(&mut self, event: &Event) -> bool {
        let Some(locks) = event.locks() else { return !self.sink.is_closed() };
        if !locks.iter().any(|lock| lock.as_str().starts_with(&self.prefix)) {
            return !self.sink.is_closed();
        }
        if self.missed && self.sink.try_send(Watched::Missed).is_ok() {
            self.missed = false;
        }
        let told = !self.missed && self.sink.try_send(Watched::Event(event.clone())).is_ok();
        self.missed = !told;
        !self.sink.is_closed()
    }
}

/// What the rules' answer to a release means to the keeper.
pub(super) fn released(answer: Result<Answer, Refusal>) -> Result<Released, Failure> {
    match answer {
        Ok(_) => Ok(Released::Now),
        Err(Refusal::NotHeld { .. } | Refusal::NoSuchSession { .. }) => Ok(Released::Before),
        Err(refusal) => Err(refusal.into()),
    }
}

/// What an engine says that has no keys of its own.
pub(super) fn not_signing() -> Failure {
    Unavailable::new("this engine signs no tokens").without_effect().permanent().into()
}

/// What the rules' answer to a force-release means to the keeper.
pub(super) fn forced(answer: Result<Answer, Refusal>) -> Result<Forced, Failure> {
    match answer? {
        Answer::Forced { grants, moved_to } => Ok(Forced { grants, moved_to }),
        other => unreachable!("a force-release is not answered with {other:?}"),
    }
}

/// Reads the rules' answer to raising tokens.
pub(super) fn raised(above: Token, answer: Result<Answer, Refusal>) -> Result<Raised, Failure> {
    match answer? {
        Answer::Raised { last } if last < above.get() => Ok(Raised::Now),
        Answer::Raised { .. } => Ok(Raised::Before),
        other => unreachable!("raising tokens is not answered with {other:?}"),
    }
}

/// What the rules' answer to a cancel means to the keeper.
pub(super) fn cancelled(answer: Result<Answer, Refusal>) -> Result<Cancelled, Failure> {
    match answer {
        Ok(_) | Err(Refusal::NotWaiting | Refusal::NoSuchSession { .. }) => Ok(Cancelled::Gone),
        Err(Refusal::AlreadyGranted { token }) => Ok(Cancelled::WasGranted { token }),
        Err(refusal) => Err(refusal.into()),
    }
}

/// What the rules' answer to an acquire means: a grant, or none; or a wait that has begun.
pub(super) enum Begun {
    Done(Acquired),
    Waits(Ticket),
}

pub(super) fn begun(answer: Result<Answer, Refusal>) -> Result<Begun, Failure> {
    match answer {
        Ok(Answer::Granted { token }) => Ok(Begun::Done(Acquired::Granted { token })),
        Ok(Answer::Queued { ticket }) => Ok(Begun::Waits(ticket)),
        Ok(_) => Ok(Begun::Done(Acquired::Busy)),
        Err(refusal) => Err(refusal.into()),
    }
}

/// All locks whose names begin so, sorted by name.
pub(super) fn matching<'a>(machine: &'a Machine, prefix: &str) -> Vec<palisade_core::LockView<'a>> {
    let all = machine.locks(palisade_core::Cursor::default()).map(|(_, lock)| lock);
    let mut locks: Vec<_> = all.filter(|lock| lock.name().as_str().starts_with(prefix)).collect();
    locks.sort_by(|a, b| a.name().cmp(b.name()));
    locks
}
