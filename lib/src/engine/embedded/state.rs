//! What one process knows, and whom it tells.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use palisade_core::{
    Acquire, Answer, Command, Departure, Ending, Event, Force, Label, LockNames, LockView, Machine, Refusal,
    SessionEnd, SessionId, Ticket, Token,
};

use super::alive::{Alive, Sign};
use super::error::Trouble;
use super::log::Log;
use super::replica::Replica;
use crate::engine::LockInfo;
use crate::engine::host::Listeners;

pub(super) struct State {
    pub(super) log: Rc<Log>,
    pub(super) replica: Replica,
    pub(super) alive: Alive,
    pub(super) listeners: Listeners,
    /// What each wait of this process asked for.
    pub(super) waits: HashMap<Ticket, Acquire>,
    /// What was read and has not been told yet.
    heard: Vec<Heard>,
    /// The replica may not be what the file says: it is read anew before it is used.
    pub(super) is_doubtful: bool,
}

enum Heard {
    Happened(Event),
    /// Something was skipped.
    Skipped,
    /// What must have happened meanwhile, for those whom it concerns.
    Concluded(Event),
}

impl State {
    pub(super) fn new(log: Log, replica: Replica, alive: Alive) -> State {
        State {
            log: Rc::new(log),
            replica,
            alive,
            listeners: Listeners::default(),
            waits: HashMap::new(),
            heard: Vec::new(),
            is_doubtful: false,
        }
    }

    /// Reads what others have committed, and tells whom it concerns. Waits for nobody.
    pub(super) fn catch_up(&mut self) -> Result<(), Trouble> {
        let log = self.log.clone();
        let followed = log.read().and_then(|_reading| self.follow(&log));
        self.tell_heard();
        if let Err(trouble) = &followed {
            self.heed(trouble);
        }
        followed
    }

    /// If the file is not the one any more that this process has read: its sessions are lost, and nothing is waited for.
    pub(super) fn heed(&mut self, trouble: &Trouble) {
        if trouble.is_data_loss() {
            self.alive.forget_all();
            self.waits.clear();
            self.listeners.data_lost(&trouble.to_string(), || trouble.failure(true));
        }
    }

    /// Applies what others have committed. Within one transaction; the caller tells.
    pub(super) fn follow(&mut self, log: &Log) -> Result<(), Trouble> {
        if self.is_doubtful {
            return self.start_over(log);
        }
        let mut rows = log.rows_from(self.replica.applied)?.into_iter().peekable();
        match rows.next_if(|row| row.seq == self.replica.applied) {
            Some(row) if self.replica.last_sum.is_none_or(|sum| sum == row.sum) => {}
            // The last batch is always there: compaction keeps it, and what comes behind it.
            Some(_) => return Err(Trouble::Replaced(log.file().to_owned())),
            None if rows.peek().is_none() && self.replica.applied > 0 => {
                return Err(Trouble::Replaced(log.file().to_owned()));
            }
            None => {}
        }
        // What another process has compacted away cannot be followed step by step.
        if rows.peek().is_some_and(|row| row.seq > self.replica.applied + 1) {
            return self.start_over(log);
        }
        for row in rows {
            self.replica.follow(row, log, |event| self.heard.push(Heard::Happened(event)))?;
        }
        Ok(())
    }

    fn start_over(&mut self, log: &Log) -> Result<(), Trouble> {
        let fresh = Replica::load(log, self.replica.settings)?;
        if fresh.applied < self.replica.applied {
            return Err(Trouble::Replaced(log.file().to_owned()));
        }
        let before = std::mem::replace(&mut self.replica, fresh);
        self.is_doubtful = false;
        self.heard.push(Heard::Skipped);
        for event in self.waits_that_ended().into_iter().chain(self.losses_since(&before.machine)) {
            self.heard.push(Heard::Concluded(event));
        }
        Ok(())
    }

    /// What became of the waits of this process: the repeat of a request gets its first answer. Asked of a copy, for
    /// an answer must not depend on having asked.
    fn waits_that_ended(&self) -> Vec<Event> {
        let mut copy = self.replica.machine.clone();
        let mut ended = Vec::new();
        for (ticket, ask) in &self.waits {
            let (ticket, session) = (*ticket, ask.caller.session);
            let locks: LockNames = ask.wants.iter().map(|want| want.lock.clone()).collect();
            let is_waiting = locks.iter().filter_map(|lock| copy.lock(lock)).any(|lock| waits_at(lock, ticket));
            if is_waiting {
                continue;
            }
            let why = match ask.caller.number.map(|_| copy.apply(Command::Acquire(ask.clone())).answer) {
                Some(Ok(Answer::Granted { token })) => {
                    let number = ask.caller.number;
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

    /// What the sessions that are listened for have lost since the machine was so.
    fn losses_since(&self, before: &Machine) -> Vec<Event> {
        let mut losses = Vec::new();
        for session in self.listeners.sessions() {
            let Some(now) = self.replica.machine.session(session) else {
                losses.push(Event::SessionEnded { session, how: SessionEnd::Expired });
                continue;
            };
            let kept: Vec<Token> = now.grants().map(|(_, token)| token).collect();
            let had = before.session(session).into_iter().flat_map(|view| view.grants());
            for (locks, token) in had.filter(|(_, token)| !kept.contains(token)) {
                let how = self.how_it_ended(&locks, token);
                losses.push(Event::GrantEnded { locks, session, token, how });
            }
        }
        losses
    }

    /// A grant whose session lives on, and that its holder did not give back, was taken away.
    fn how_it_ended(&self, locks: &LockNames, token: Token) -> Ending {
        let machine = &self.replica.machine;
        let of_used = locks.iter().filter_map(|lock| machine.lock(lock)).flat_map(|lock| lock.history());
        let of_idle = locks.iter().flat_map(|lock| machine.forced(lock));
        let recorded = of_used.chain(of_idle).find(|ended| ended.token == token);
        recorded.map(|ended| ended.how.clone()).unwrap_or_else(|| {
            let moved_to = self.replica.machine.last_token().unwrap_or(token);
            let reason = Label::new("the record is gone");
            Ending::Forced(Arc::new(Force { by: Label::new("unknown"), reason, moved_to }))
        })
    }

    /// Tells whom it concerns what others have committed.
    pub(super) fn tell_heard(&mut self) {
        for heard in std::mem::take(&mut self.heard) {
            match heard {
                Heard::Happened(event) => self.tell(&[event]),
                Heard::Skipped => self.listeners.tell_missed(),
                Heard::Concluded(event) => {
                    self.note(&event);
                    self.listeners.tell_owners(&event);
                }
            }
        }
    }

    pub(super) fn tell(&mut self, events: &[Event]) {
        events.iter().for_each(|event| self.note(event));
        self.listeners.tell(events);
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Granted { ticket: Some(ticket), .. } | Event::LeftQueue { ticket, .. } => {
                self.waits.remove(ticket);
            }
            Event::SessionEnded { session, .. } => self.alive.forget(*session),
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
        match self.alive.look(session) {
            Sign::Until { deadline, .. } => Some(deadline.left().as_millis() as u64),
            Sign::Over => Some(0),
            Sign::Lost | Sign::Hidden => None,
        }
    }
}

fn waits_at(lock: LockView<'_>, ticket: Ticket) -> bool {
    lock.waiters().any(|waiter| waiter.ticket == ticket)
}
