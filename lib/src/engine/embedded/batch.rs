//! Building a batch: applies requests to the replica, and collects the commands that changed it.

use std::collections::{BTreeSet, HashSet};
use std::io;

use palisade_core::{
    Acquire, Answer, Caller, Command, Event, Label, LockName, Patience, Refusal, SessionId, Token, Ttl,
};

use super::error::StoreError;
use super::lease::{LeaseState, Leases, Renewal};
use super::log::Batch;
use super::replica::{Replica, Timestamp};
use super::wake_file::WakeFiles;
use crate::BootInstant;
use crate::engine::host;

/// A request to the log.
pub(super) enum LogRequest {
    Command(Command),
    Open {
        ttl: Ttl,
        label: Label,
    },
    /// Checks that a session is still open after its new deadline was written.
    Verify(SessionId),
    /// Renews a detached session.
    RenewDetached {
        session: SessionId,
        began_at: BootInstant,
    },
    /// Renews a session and detaches it from its process.
    Detach {
        session: SessionId,
        began_at: BootInstant,
    },
    /// Ends those of these sessions, and of the blockers of these locks, that have expired. Ends lock-delays that are over.
    EndDue {
        locks: Vec<LockName>,
        sessions: Vec<SessionId>,
    },
}

impl LogRequest {
    /// Returns whether the request may be flushed with a later commit, because it only ends something of a session of
    /// this process. After a power cut that session has ended anyway. The caller also checks that no waiter is
    /// granted the lock.
    pub(super) fn may_defer_flush(&self, leases: &Leases) -> bool {
        match self {
            LogRequest::Command(Command::CloseSession { session }) => leases.is_own(*session),
            LogRequest::Command(command @ (Command::Release { .. } | Command::Cancel { .. })) => {
                command.caller().is_some_and(|caller| leases.is_own(caller.session))
            }
            LogRequest::Command(_) => false,
            LogRequest::EndDue { .. } | LogRequest::Verify(_) => true,
            LogRequest::Open { .. } | LogRequest::RenewDetached { .. } | LogRequest::Detach { .. } => false,
        }
    }
}

/// The machine's answer, or an error of the session's lease file.
pub(super) type Outcome = Result<Result<Answer, Refusal>, StoreError>;

/// A batch whose commands were applied to the replica, and their results.
pub(super) struct PreparedBatch {
    pub(super) batch: Batch,
    pub(super) events: Vec<Event>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) opened: Vec<(SessionId, Ttl)>,
}

/// A batch under construction.
pub(super) struct BatchBuilder<'a> {
    replica: &'a mut Replica,
    leases: &'a mut Leases,
    wake_files: &'a WakeFiles,
    timestamp: Timestamp,
    commands: Vec<Command>,
    events: Vec<Event>,
    opened: Vec<(SessionId, Ttl)>,
    /// Locks that a request did not get at once. Their blockers, the holders and the first waiter, may have expired.
    contended: BTreeSet<LockName>,
    /// Further sessions to check.
    suspects: Vec<SessionId>,
}

impl<'a> BatchBuilder<'a> {
    pub(super) fn new(
        replica: &'a mut Replica,
        leases: &'a mut Leases,
        wake_files: &'a WakeFiles,
    ) -> BatchBuilder<'a> {
        let timestamp = Timestamp::now(replica.settings.boot);
        let (commands, events, opened) = (Vec::new(), Vec::new(), Vec::new());
        let (contended, suspects) = (BTreeSet::new(), Vec::new());
        BatchBuilder { replica, leases, wake_files, timestamp, commands, events, opened, contended, suspects }
    }

    /// Applies requests in this order. If a blocker had expired, requests that found a lock busy are applied again.
    pub(super) fn build<'r>(mut self, requests: impl Iterator<Item = &'r LogRequest> + Clone) -> PreparedBatch {
        let mut outcomes: Vec<Outcome> = requests.clone().map(|request| self.perform(request)).collect();
        if self.end_due() {
            for (request, outcome) in requests.zip(&mut outcomes) {
                if let (LogRequest::Command(Command::Acquire(acquire)), Ok(Ok(Answer::Busy))) = (request, &outcome) {
                    *outcome = Ok(self.acquire(acquire));
                }
            }
        }
        let Timestamp { boot, at, unix_ms } = self.timestamp;
        let (at_boot_ns, pid) = (at.as_ns(), std::process::id());
        let batch = Batch { boot, at_boot_ns, pid, at_unix_ms: unix_ms, commands: self.commands };
        PreparedBatch { batch, events: self.events, outcomes, opened: self.opened }
    }

    /// Raises the tokens above this one.
    pub(super) fn raise_tokens(&mut self, floor: u64) {
        let last = self.replica.machine.last_token().map_or(0, Token::get);
        if let Ok(above) = Token::new(floor)
            && floor > last
        {
            tracing::warn!(
                last,
                floor,
                "tokens above those in the file were issued before; the next token is above them"
            );
            drop(self.apply(Command::RaiseTokens { above }));
        }
    }

    /// Ends the sessions of processes after a reboot. A detached session gets its full TTL again, since the
    /// length of the downtime is unknown.
    pub(super) fn end_sessions_of_processes(&mut self) {
        let all: Vec<_> = self.replica.machine.sessions().map(|session| (session.id(), session.ttl())).collect();
        for (session, ttl) in all {
            if self.leases.is_detached(session) {
                self.leases.recreate(session, ttl);
            } else {
                drop(self.apply(Command::ExpireSession { session }));
            }
        }
    }

    fn perform(&mut self, request: &LogRequest) -> Outcome {
        match request {
            LogRequest::Command(Command::Acquire(acquire)) => Ok(self.acquire(acquire)),
            LogRequest::Command(command) => Ok(self.apply(command.clone())),
            LogRequest::Open { ttl, label } => self.open(*ttl, label.clone()),
            LogRequest::Verify(session) => Ok(self.find(*session).map(|_| Answer::Done)),
            LogRequest::RenewDetached { session, began_at } => {
                self.renew(*session, |leases, ttl| leases.renew_detached(*session, *began_at, ttl))
            }
            LogRequest::Detach { session, began_at } => {
                self.renew(*session, |leases, ttl| leases.detach(*session, *began_at, ttl))
            }
            LogRequest::EndDue { locks, sessions } => {
                self.contended.extend(locks.iter().cloned());
                self.suspects.extend(sessions);
                Ok(Ok(Answer::Done))
            }
        }
    }

    /// Applies a command, and adds it to the batch if it changed anything.
    fn apply(&mut self, command: Command) -> Result<Answer, Refusal> {
        let applied = self.replica.apply(command.clone(), self.timestamp);
        let is_remembered = match &command {
            Command::Cancel { .. } => applied.answer.is_ok(),
            _ => command.caller().is_some_and(|caller| caller.number.is_some()),
        };
        let is_known = !matches!(applied.answer, Err(Refusal::NoSuchSession { .. }));
        if !applied.events.is_empty() || (is_remembered && is_known) {
            self.commands.push(command);
        }
        self.events.extend(applied.events);
        applied.answer
    }

    fn acquire(&mut self, acquire: &Acquire) -> Result<Answer, Refusal> {
        let mut acquire = acquire.clone();
        let Caller { session, number } = acquire.caller;
        let is_repeat = || number.is_some_and(|number| self.replica.holds_by(session, number));
        if acquire.patience == Patience::Try && !self.is_available(&acquire) && !is_repeat() {
            // Without a number the machine does not store the answer, so a busy lock causes no write.
            acquire.caller.number = None;
        }
        let locks: Vec<_> = acquire.wants.iter().map(|want| want.lock.clone()).collect();
        let answer = self.apply(Command::Acquire(acquire));
        if let Ok(Answer::Busy | Answer::Queued { .. }) = answer {
            self.contended.extend(locks);
        }
        answer
    }

    /// Returns whether a request would be granted at once.
    fn is_available(&self, acquire: &Acquire) -> bool {
        acquire
            .wants
            .iter()
            .all(|want| self.replica.machine.lock(&want.lock).is_none_or(|lock| lock.is_available(want.mode)))
    }

    fn open(&mut self, ttl: Ttl, label: Label) -> Outcome {
        let answer = self.apply(Command::OpenSession { session: host::random_session(), ttl, label });
        let Ok(Answer::Opened { session }) = answer else { return Ok(answer) };
        if let Err(error) = self.leases.create(session, ttl) {
            let error = StoreError::io("create", &self.leases.path(session), error);
            drop(self.apply(Command::CloseSession { session }));
            return Err(error);
        }
        self.wake_files.subscribe(session);
        self.opened.push((session, ttl));
        Ok(answer)
    }

    fn renew(&mut self, session: SessionId, renew: impl FnOnce(&mut Leases, Ttl) -> io::Result<Renewal>) -> Outcome {
        let ttl = match self.find(session) {
            Ok(ttl) => ttl,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let renewal = renew(self.leases, ttl);
        match renewal.map_err(|error| StoreError::io("write", &self.leases.path(session), error))? {
            Renewal::Renewed | Renewal::Unverified => Ok(Ok(Answer::Done)),
            Renewal::Expired => {
                drop(self.apply(Command::ExpireSession { session }));
                Ok(Err(Refusal::NoSuchSession { session }))
            }
            Renewal::NotOwner => {
                let pid = self.leases.owner_pid(session).unwrap_or(0);
                Err(StoreError::NotSessionOwner { session: session.get(), pid })
            }
        }
    }

    fn find(&self, session: SessionId) -> Result<Ttl, Refusal> {
        let view = self.replica.machine.session(session);
        view.map(|view| view.ttl()).ok_or(Refusal::NoSuchSession { session })
    }

    /// Ends lock-delays that are over, and blockers that have expired. A session that gets the lock then may have expired
    /// too, so this repeats until nothing changes. Returns whether anything changed.
    fn end_due(&mut self) -> bool {
        let mut checked = HashSet::new();
        let mut has_ended = false;
        loop {
            let mut ends = self.end_delays();
            let mut suspects = std::mem::take(&mut self.suspects);
            suspects.extend(self.replica.blockers(&self.contended));
            for session in suspects {
                if checked.insert(session) && self.has_expired(session) {
                    ends |= self.apply(Command::ExpireSession { session }).is_ok();
                }
            }
            if !ends {
                return has_ended;
            }
            has_ended = true;
        }
    }

    fn has_expired(&self, session: SessionId) -> bool {
        match self.leases.state(session) {
            LeaseState::Expired => true,
            LeaseState::Live { .. } | LeaseState::Unreadable => false,
            LeaseState::Missing => {
                if let Ok(ttl) = self.find(session) {
                    self.leases.recreate(session, ttl);
                }
                false
            }
        }
    }

    fn end_delays(&mut self) -> bool {
        let over = self.replica.delays.iter().filter(|(_, (at, _))| at.has_passed());
        let over: Vec<_> = over.map(|(token, (_, lock))| (*token, lock.clone())).collect();
        let mut ends = false;
        for (token, lock) in over {
            ends |= self.apply(Command::EndDelay { lock, token }).is_ok();
            // A lock-delay that could not be ended is not retried.
            self.replica.delays.remove(&token);
        }
        ends
    }
}
