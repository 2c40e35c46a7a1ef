//! Code that the engines share which run the state machine in this process: subscriptions to events, and the conversion of
//! answers.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use palisade_core::{Answer, Departure, Ending, Event, Machine, Refusal, SessionEnd, SessionId, Ticket, Token};
use tokio::sync::{mpsc, oneshot};

use super::{Acquired, Cancelled, Failure, Forced, Notice, Raised, Released, Unavailable, Watched};

/// How many events a watcher may be behind. Further events are dropped, and it is told so.
const WATCH_BUFFER: usize = 1024;

/// Returns a random id for a new session. It is not random for secrecy: a store that has lost its data must not give a new
/// session the id of a session that another process still keeps alive.
pub(super) fn random_session() -> SessionId {
    SessionId::from_random(RandomState::new().hash_one(0))
}

/// The outcome of a wait.
pub(super) type Waited = Result<Token, Failure>;

/// The waits, sessions and watches of this process, with the channels of their events.
#[derive(Default)]
pub(super) struct Subscriptions {
    waits: HashMap<Ticket, oneshot::Sender<Waited>>,
    sessions: HashMap<SessionId, mpsc::UnboundedSender<Notice>>,
    watchers: Vec<Watcher>,
}

struct Watcher {
    prefix: String,
    sink: mpsc::Sender<Watched>,
    /// Whether the last message was [`Watched::Missed`].
    missed: bool,
}

impl Subscriptions {
    #[cfg(feature = "embedded")]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waits.is_empty()
    }

    #[cfg(any(feature = "_remote", feature = "embedded"))]
    pub(super) fn is_watching(&self) -> bool {
        self.watchers.iter().any(|watcher| !watcher.sink.is_closed())
    }

    pub(super) fn wait(&mut self, ticket: Ticket) -> oneshot::Receiver<Waited> {
        let (sender, receiver) = oneshot::channel();
        self.waits.insert(ticket, sender);
        receiver
    }

    pub(super) fn subscribe(&mut self, session: SessionId) -> mpsc::UnboundedReceiver<Notice> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.sessions.insert(session, sender);
        receiver
    }

    pub(super) fn watch(&mut self, prefix: String) -> mpsc::Receiver<Watched> {
        let (sink, receiver) = mpsc::channel(WATCH_BUFFER);
        self.watchers.push(Watcher { prefix, sink, missed: false });
        receiver
    }

    /// Returns the sessions that have subscribed.
    #[cfg(feature = "embedded")]
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// Notifies every session that the store has lost its data, and fails every wait.
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

    /// Sends events to the waits, sessions and watches that they concern.
    pub(super) fn tell(&mut self, events: &[Event]) {
        for event in events {
            self.notify_owners(event);
            self.watchers.retain_mut(|watcher| watcher.send(event));
        }
    }

    /// Sends an event to its wait and its session, but to no watch.
    pub(super) fn notify_owners(&mut self, event: &Event) {
        self.notify_wait(event);
        self.notify_session(event);
    }

    /// Removes watches whose receiver was dropped. Returns those of their prefixes that no other watch has.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "service"))]
    pub(super) fn forget_closed(&mut self) -> Vec<String> {
        let gone: Vec<_> = self.watchers.extract_if(.., |watcher| watcher.sink.is_closed()).collect();
        let is_watched = |prefix: &String| self.watchers.iter().any(|watcher| watcher.prefix == *prefix);
        gone.into_iter().map(|watcher| watcher.prefix).filter(|prefix| !is_watched(prefix)).collect()
    }

    /// Returns the prefixes that are watched, without duplicates.
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

    /// Notifies all watches that events are missing.
    #[cfg(any(feature = "_remote", feature = "embedded"))]
    pub(super) fn tell_missed(&mut self) {
        for watcher in &mut self.watchers {
            watcher.tell_missed();
        }
    }

    fn notify_wait(&mut self, event: &Event) {
        let (ticket, outcome) = match event {
            Event::Granted { ticket: Some(ticket), token, .. } => (ticket, Ok(*token)),
            Event::LeftQueue { ticket, why, .. } => (ticket, Err(departure(why))),
            _ => return,
        };
        if let Some(wait) = self.waits.remove(ticket) {
            // If the caller is gone, the keeper cancels the acquire, and learns of the grant from the reply.
            drop(wait.send(outcome));
        }
    }

    fn notify_session(&mut self, event: &Event) {
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

fn departure(why: &Departure) -> Failure {
    match why {
        Departure::SessionEnded(SessionEnd::Closed | SessionEnd::Expired) => Failure::SessionEnded,
        Departure::Refused(refusal) => Failure::Refused(refusal.clone()),
        Departure::Cancelled => Failure::Refused(Refusal::NotWaiting),
    }
}

impl Watcher {
    /// Sends an event. Returns whether the receiver still exists.
    fn send(&mut self, event: &Event) -> bool {
        let Some(locks) = event.locks() else { return !self.sink.is_closed() };
        if !locks.iter().any(|lock| lock.as_str().starts_with(&self.prefix)) {
            return !self.sink.is_closed();
        }
        // The last place is for the notice that events are missing: no other event may follow that would bring it.
        if self.sink.capacity() > 1 {
            self.missed = self.sink.try_send(Watched::Event(event.clone())).is_err();
        } else {
            self.tell_missed();
        }
        !self.sink.is_closed()
    }

    fn tell_missed(&mut self) {
        let is_unread = self.missed && self.sink.capacity() < self.sink.max_capacity();
        self.missed = is_unread || self.sink.try_send(Watched::Missed).is_ok();
    }
}

/// Converts the machine's answer to a release.
pub(super) fn released(answer: Result<Answer, Refusal>) -> Result<Released, Failure> {
    match answer {
        Ok(_) => Ok(Released::Now),
        Err(Refusal::NotHeld { .. } | Refusal::NoSuchSession { .. }) => Ok(Released::Before),
        Err(refusal) => Err(refusal.into()),
    }
}

/// Returns the failure of an engine that has no signing keys.
pub(super) fn not_signing() -> Failure {
    Unavailable::new("this engine signs no tokens").without_effect().permanent().into()
}

/// Converts the machine's answer to a force-release.
pub(super) fn forced(answer: Result<Answer, Refusal>) -> Result<Forced, Failure> {
    match answer? {
        Answer::Forced { grants, moved_to } => Ok(Forced { grants, moved_to }),
        other => unreachable!("a force-release is not answered with {other:?}"),
    }
}

/// Converts the machine's answer to raising tokens.
pub(super) fn raised(above: Token, answer: Result<Answer, Refusal>) -> Result<Raised, Failure> {
    match answer? {
        Answer::Raised { last } if last < above.get() => Ok(Raised::Now),
        Answer::Raised { .. } => Ok(Raised::Before),
        other => unreachable!("raising tokens is not answered with {other:?}"),
    }
}

/// Converts the machine's answer to a cancel.
pub(super) fn cancelled(answer: Result<Answer, Refusal>) -> Result<Cancelled, Failure> {
    match answer {
        Ok(_) | Err(Refusal::NotWaiting | Refusal::NoSuchSession { .. }) => Ok(Cancelled::Gone),
        Err(Refusal::AlreadyGranted { token }) => Ok(Cancelled::WasGranted { token }),
        Err(refusal) => Err(refusal.into()),
    }
}

/// The machine's answer to an acquire: a result, or the ticket of a wait.
pub(super) enum Begun {
    Done(Acquired),
    Waits(Ticket),
}

/// Converts the machine's answer to an acquire.
pub(super) fn begun(answer: Result<Answer, Refusal>) -> Result<Begun, Failure> {
    match answer {
        Ok(Answer::Granted { token }) => Ok(Begun::Done(Acquired::Granted { token })),
        Ok(Answer::Queued { ticket }) => Ok(Begun::Waits(ticket)),
        Ok(_) => Ok(Begun::Done(Acquired::Busy)),
        Err(refusal) => Err(refusal.into()),
    }
}

/// Returns the locks whose names have this prefix, sorted by name.
pub(super) fn matching<'a>(machine: &'a Machine, prefix: &str) -> Vec<palisade_core::LockView<'a>> {
    let all = machine.locks(palisade_core::Cursor::default()).map(|(_, lock)| lock);
    let mut locks: Vec<_> = all.filter(|lock| lock.name().as_str().starts_with(prefix)).collect();
    locks.sort_by(|a, b| a.name().cmp(b.name()));
    locks
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::LockName;

    fn event() -> Event {
        Event::Resized { lock: LockName::new("a").expect("a name"), limit: 3 }
    }

    #[cfg(any(feature = "_remote", feature = "embedded"))]
    #[test]
    fn a_watcher_is_told_each_time_that_it_may_have_missed_events() {
        let mut subscriptions = Subscriptions::default();
        let mut watch = subscriptions.watch(String::new());
        for _ in 0..2 {
            subscriptions.tell_missed();
            assert_eq!(watch.try_recv(), Ok(Watched::Missed));
        }
    }

    #[test]
    fn a_slow_watcher_learns_that_it_missed_events_even_if_none_follow() {
        let mut subscriptions = Subscriptions::default();
        let mut watch = subscriptions.watch(String::new());
        // Twice: a watcher that has caught up gets events again, and may fall behind again.
        for _ in 0..2 {
            let events = vec![event(); WATCH_BUFFER + 1];
            subscriptions.tell(&events);
            for _ in 1..WATCH_BUFFER {
                assert_eq!(watch.try_recv(), Ok(Watched::Event(event())));
            }
            assert_eq!(watch.try_recv(), Ok(Watched::Missed));
            assert_eq!(watch.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        }
    }

    #[test]
    fn a_watcher_that_was_told_of_missed_events_gets_the_events_that_follow() {
        let mut subscriptions = Subscriptions::default();
        let mut watch = subscriptions.watch(String::new());
        let events = vec![event(); WATCH_BUFFER + 1];
        subscriptions.tell(&events);
        for _ in 0..2 {
            watch.try_recv().expect("a free place for an event, and one for the next notice");
        }
        subscriptions.tell(&[event()]);
        let mut last = [None, None];
        while let Ok(watched) = watch.try_recv() {
            last = [last[1].take(), Some(watched)];
        }
        assert_eq!(last, [Some(Watched::Missed), Some(Watched::Event(event()))]);
    }
}
