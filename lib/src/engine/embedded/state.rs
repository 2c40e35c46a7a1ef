//! The state of one process: its replica, its leases and its subscriptions.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use palisade_core::{
    Acquire, Answer, Command, Departure, Ending, Event, Force, Label, LockNames, LockView, Machine, Refusal,
    SessionEnd, SessionId, Ticket, Token,
};

use super::error::StoreError;
use super::lease::{LeaseState, Leases};
use super::log::Log;
use super::replica::Replica;
use crate::engine::LockInfo;
use crate::engine::host::Subscriptions;

/// The state of one process.
pub(super) struct State {
    pub(super) log: Rc<Log>,
    pub(super) replica: Replica,
    pub(super) leases: Leases,
    pub(super) subscriptions: Subscriptions,
    /// The request of each wait of this process.
    pub(super) waits: HashMap<Ticket, Acquire>,
    /// Events that were read and not yet sent to subscribers.
    unsent: Vec<ReadEvent>,
    /// The replica may differ from the file, and must be loaded before it is used.
    pub(super) needs_reload: bool,
}

/// An event of another process.
enum ReadEvent {
    Applied(Event),
    /// Events are missing, because another process has compacted the log.
    Gap,
    /// An event that was inferred from the state after a gap. Only its owner receives it.
    Inferred(Event),
}

impl State {
    pub(super) fn new(log: Log, replica: Replica, leases: Leases) -> State {
        State {
            log: Rc::new(log),
            replica,
            leases,
            subscriptions: Subscriptions::default(),
            waits: HashMap::new(),
            unsent: Vec::new(),
            needs_reload: false,
        }
    }

    /// Applies the commits of other processes and sends their events. Takes no lock.
    pub(super) fn catch_up(&mut self) -> Result<(), StoreError> {
        let log = self.log.clone();
        let applied = log.read().and_then(|_transaction| self.apply_new_rows(&log));
        self.send_unsent();
        if let Err(error) = &applied {
            self.handle_error(error);
        }
        applied
    }

    /// Ends all sessions and waits of this process if the file was replaced.
    pub(super) fn handle_error(&mut self, error: &StoreError) {
        if error.is_data_loss() {
            self.leases.forget_all();
            self.waits.clear();
            self.subscriptions.data_lost(&error.to_string(), || error.failure(true));
        }
    }

    /// Applies the commits of other processes. Must run within one transaction. The caller sends the events.
    pub(super) fn apply_new_rows(&mut self, log: &Log) -> Result<(), StoreError> {
        if self.needs_reload {
            return self.reload(log);
        }
        let mut rows = log.rows_from(self.replica.applied)?.into_iter().peekable();
        match rows.next_if(|row| row.seq == self.replica.applied) {
            Some(row) if self.replica.last_sum.is_none_or(|sum| sum == row.sum) => {}
            // The last applied batch is always in the log: compaction keeps it and all later ones.
            Some(_) => return Err(StoreError::Replaced(log.file().to_owned())),
            None if rows.peek().is_none() && self.replica.applied > 0 => {
                return Err(StoreError::Replaced(log.file().to_owned()));
            }
            None => {}
        }
        // Another process has compacted the next rows away.
        if rows.peek().is_some_and(|row| row.seq > self.replica.applied + 1) {
            return self.reload(log);
        }
        for row in rows {
            self.replica.apply_row(row, log, |event| self.unsent.push(ReadEvent::Applied(event)))?;
        }
        Ok(())
    }

    fn reload(&mut self, log: &Log) -> Result<(), StoreError> {
        let fresh = Replica::load(log, self.replica.settings)?;
        if fresh.applied < self.replica.applied {
            return Err(StoreError::Replaced(log.file().to_owned()));
        }
        let before = std::mem::replace(&mut self.replica, fresh);
        self.needs_reload = false;
        self.unsent.push(ReadEvent::Gap);
        for event in self.ended_waits().into_iter().chain(self.losses_since(&before.machine)) {
            self.unsent.push(ReadEvent::Inferred(event));
        }
        Ok(())
    }

    /// Returns the ends of those waits of this process that are over. Repeats each request, since a repeated request gets its
    /// first answer; on a copy of the machine, since a repeat may change it.
    fn ended_waits(&self) -> Vec<Event> {
        let mut copy = self.replica.machine.clone();
        let mut ended = Vec::new();
        for (ticket, acquire) in &self.waits {
            let (ticket, session) = (*ticket, acquire.caller.session);
            let locks: LockNames = acquire.wants.iter().map(|want| want.lock.clone()).collect();
            let is_waiting = locks.iter().filter_map(|lock| copy.lock(lock)).any(|lock| waits_at(lock, ticket));
            if is_waiting {
                continue;
            }
            let why = match acquire.caller.number.map(|_| copy.apply(Command::Acquire(acquire.clone())).answer) {
                Some(Ok(Answer::Granted { token })) => {
                    let number = acquire.caller.number;
                    ended.push(Event::Granted { locks, session, token, ticket: Some(ticket), number });
                    continue;
                }
                Some(Err(Refusal::NoSuchSession { .. })) => Departure::SessionEnded(SessionEnd::Expired),
                Some(Err(refusal)) => Departure::Refused(refusal),
                Some(Ok(_)) | None => Departure::Refused(Refusal::NotWaiting),
            };
            ended.push(Event::LeftQueue { ticket, session, locks, why });
        }
        ended
    }

    /// Returns the grants and sessions of this process that ended since this state of the machine.
    fn losses_since(&self, before: &Machine) -> Vec<Event> {
        let mut losses = Vec::new();
        for session in self.subscriptions.sessions() {
            let Some(now) = self.replica.machine.session(session) else {
                losses.push(Event::SessionEnded { session, how: SessionEnd::Expired });
                continue;
            };
            let kept: Vec<Token> = now.grants().map(|(_, token)| token).collect();
            let had = before.session(session).into_iter().flat_map(|view| view.grants());
            for (locks, token) in had.filter(|(_, token)| !kept.contains(token)) {
                let how = self.ending_of(&locks, token);
                losses.push(Event::GrantEnded { locks, session, token, how });
            }
        }
        losses
    }

    /// Returns how a grant ended. If there is no record, it was forced, since its session lives and did not release
    /// it.
    fn ending_of(&self, locks: &LockNames, token: Token) -> Ending {
        let machine = &self.replica.machine;
        let in_use = locks.iter().filter_map(|lock| machine.lock(lock)).flat_map(|lock| lock.history());
        let forced_before = locks.iter().flat_map(|lock| machine.forced(lock));
        let recorded = in_use.chain(forced_before).find(|ended| ended.token == token);
        recorded.map(|ended| ended.how.clone()).unwrap_or_else(|| {
            let moved_to = self.replica.machine.last_token().unwrap_or(token);
            let reason = Label::new("the record is gone");
            Ending::Forced(Arc::new(Force { by: Label::new("unknown"), reason, moved_to }))
        })
    }

    /// Sends the events of other processes to their subscribers.
    pub(super) fn send_unsent(&mut self) {
        for event in std::mem::take(&mut self.unsent) {
            match event {
                ReadEvent::Applied(event) => self.send(&[event]),
                ReadEvent::Gap => self.subscriptions.tell_missed(),
                ReadEvent::Inferred(event) => {
                    self.record(&event);
                    self.subscriptions.notify_owners(&event);
                }
            }
        }
    }

    pub(super) fn send(&mut self, events: &[Event]) {
        events.iter().for_each(|event| self.record(event));
        self.subscriptions.tell(events);
    }

    fn record(&mut self, event: &Event) {
        match event {
            Event::Granted { ticket: Some(ticket), .. } | Event::LeftQueue { ticket, .. } => {
                self.waits.remove(ticket);
            }
            Event::SessionEnded { session, .. } => self.leases.forget(*session),
            _ => {}
        }
    }

    pub(super) fn info(&self, lock: LockView<'_>) -> LockInfo {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        LockInfo::of(lock, |session, token| {
            let granted = self.replica.notes.granted.get(&token);
            let held_for = granted.map(|granted| (now.as_millis() as u64).saturating_sub(granted.at_unix_ms));
            (held_for, session.and_then(|session| self.time_left_ms(session)))
        })
    }

    fn time_left_ms(&self, session: SessionId) -> Option<u64> {
        match self.leases.state(session) {
            LeaseState::Live { deadline, .. } => Some(deadline.left().as_millis() as u64),
            LeaseState::Expired => Some(0),
            LeaseState::Missing | LeaseState::Unreadable => None,
        }
    }
}

fn waits_at(lock: LockView<'_>, ticket: Ticket) -> bool {
    lock.waiters().any(|waiter| waiter.ticket == ticket)
}
