//! A batch in the making: what was asked for is applied to the replica, and what changed it is collected.

use std::collections::{BTreeSet, HashSet};
use std::io;

use palisade_core::{
    Acquire, Answer, Caller, Command, Event, Label, LockName, Patience, Refusal, SessionId, Token, Ttl,
};

use super::alive::{Alive, Renewed, Sign};
use super::bell::Bells;
use super::error::Trouble;
use super::interest::blockers;
use super::log::Batch;
use super::replica::{Moment, Replica};
use crate::BootInstant;

/// What is asked of the log.
pub(super) enum What {
    Command(Command),
    Open {
        ttl: Ttl,
        label: Label,
    },
    /// Does this session still live? Its new deadline has been written.
    Verify(SessionId),
    /// Give a session that was left another TTL.
    RenewLeft {
        session: SessionId,
        began: BootInstant,
    },
    /// Give a session another TTL, and let it live by that alone.
    Leave {
        session: SessionId,
        began: BootInstant,
    },
    /// End the sessions that are over, of these and of those that stand in the way at these locks.
    EndDue {
        locks: Vec<LockName>,
        sessions: Vec<SessionId>,
    },
}

impl What {
    /// Whether it only ends something of a session of this process. That need not survive a power cut: after it no
    /// such session lives, so what was to end has ended. What it lets in instead is another matter.
    pub(super) fn is_light(&self, alive: &Alive) -> bool {
        match self {
            What::Command(Command::CloseSession { session }) => alive.is_own(*session),
            What::Command(command @ (Command::Release { .. } | Command::Cancel { .. })) => {
                command.caller().is_some_and(|caller| alive.is_own(caller.session))
            }
            What::Command(_) => false,
            What::EndDue { .. } | What::Verify(_) => true,
            What::Open { .. } | What::RenewLeft { .. } | What::Leave { .. } => false,
        }
    }
}

/// What the rules, or the files around them, say to one caller.
pub(super) type Outcome = Result<Result<Answer, Refusal>, Trouble>;

/// What was asked for, applied to the replica.
pub(super) struct Drafted {
    pub(super) batch: Batch,
    pub(super) events: Vec<Event>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) opened: Vec<(SessionId, Ttl)>,
}

pub(super) struct Draft<'a> {
    replica: &'a mut Replica,
    alive: &'a mut Alive,
    bells: &'a Bells,
    moment: Moment,
    commands: Vec<Command>,
    events: Vec<Event>,
    opened: Vec<(SessionId, Ttl)>,
    /// Where somebody did not get what he wanted.
    contended: BTreeSet<LockName>,
    /// Who is to be looked at beside those who stand in the way.
    suspects: Vec<SessionId>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(replica: &'a mut Replica, alive: &'a mut Alive, bells: &'a Bells) -> Draft<'a> {
        let moment = Moment::now(replica.settings.boot);
        let (commands, events, opened) = (Vec::new(), Vec::new(), Vec::new());
        let (contended, suspects) = (BTreeSet::new(), Vec::new());
        Draft { replica, alive, bells, moment, commands, events, opened, contended, suspects }
    }

    /// Does what is asked, in this order. Who did not get a lock is asked again if somebody turns out to be dead.
    pub(super) fn carry_out<'w>(mut self, asked: impl Iterator<Item = &'w What> + Clone) -> Drafted {
        let mut outcomes: Vec<Outcome> = asked.clone().map(|what| self.perform(what)).collect();
        if self.end_what_is_due() {
            for (what, outcome) in asked.zip(&mut outcomes) {
                if let (What::Command(Command::Acquire(ask)), Ok(Ok(Answer::Busy))) = (what, &outcome) {
                    *outcome = Ok(self.acquire(ask));
                }
            }
        }
        let Moment { boot, at, unix_ms } = self.moment;
        let (at_boot_ns, pid) = (at.as_ns(), std::process::id());
        let batch = Batch { boot, at_boot_ns, pid, at_unix_ms: unix_ms, commands: self.commands };
        Drafted { batch, events: self.events, outcomes, opened: self.opened }
    }

    /// Gives no token up to and including this one any more.
    pub(super) fn raise_tokens(&mut self, floor: u64) {
        let last = self.replica.machine.last_token().map_or(0, Token::get);
        if let Ok(above) = Token::new(floor)
            && floor > last
        {
            tracing::warn!(last, floor, "the file is older than what was given out of it: tokens begin above that");
            drop(self.apply(Command::RaiseTokens { above }));
        }
    }

    /// After a reboot: ends the sessions that lived by their processes, and gives those that live by their TTL alone
    /// all of it again, since nobody knows how long the host was down.
    pub(super) fn end_sessions_of_processes(&mut self) {
        let all: Vec<_> = self.replica.machine.sessions().map(|session| (session.id(), session.ttl())).collect();
        for (session, ttl) in all {
            if self.alive.was_left(session) {
                self.alive.stand_in(session, ttl);
            } else {
                drop(self.apply(Command::ExpireSession { session }));
            }
        }
    }

    fn perform(&mut self, what: &What) -> Outcome {
        match what {
            What::Command(Command::Acquire(ask)) => Ok(self.acquire(ask)),
            What::Command(command) => Ok(self.apply(command.clone())),
            What::Open { ttl, label } => self.open(*ttl, label.clone()),
            What::Verify(session) => Ok(self.find(*session).map(|_| Answer::Done)),
            What::RenewLeft { session, began } => {
                self.renew(*session, |alive, ttl| alive.renew_left(*session, *began, ttl))
            }
            What::Leave { session, began } => self.renew(*session, |alive, ttl| alive.leave(*session, *began, ttl)),
            What::EndDue { locks, sessions } => {
                self.contended.extend(locks.iter().cloned());
                self.suspects.extend(sessions);
                Ok(Ok(Answer::Done))
            }
        }
    }

    /// Applies a command, and keeps it for the log if it changed anything.
    fn apply(&mut self, command: Command) -> Result<Answer, Refusal> {
        let applied = self.replica.apply(command.clone(), self.moment);
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

    fn acquire(&mut self, ask: &Acquire) -> Result<Answer, Refusal> {
        let mut ask = ask.clone();
        let Caller { session, number } = ask.caller;
        let is_repeat = || number.is_some_and(|number| self.replica.holds_by(session, number));
        if ask.patience == Patience::Try && !self.is_available(&ask) && !is_repeat() {
            // The rules would remember the answer to a numbered request, which would have to be written.
            ask.caller.number = None;
        }
        let locks: Vec<_> = ask.wants.iter().map(|want| want.lock.clone()).collect();
        let answer = self.apply(Command::Acquire(ask));
        if let Ok(Answer::Busy | Answer::Queued { .. }) = answer {
            self.contended.extend(locks);
        }
        answer
    }

    /// Whether a request would be granted at once.
    fn is_available(&self, ask: &Acquire) -> bool {
        ask.wants
            .iter()
            .all(|want| self.replica.machine.lock(&want.lock).is_none_or(|lock| lock.is_available(want.mode)))
    }

    fn open(&mut self, ttl: Ttl, label: Label) -> Outcome {
        let answer = self.apply(Command::OpenSession { ttl, label });
        let Ok(Answer::Opened { session }) = answer else { return Ok(answer) };
        if let Err(error) = self.alive.create(session, ttl) {
            let trouble = Trouble::io("create", &self.alive.path(session), error);
            drop(self.apply(Command::CloseSession { session }));
            return Err(trouble);
        }
        self.bells.listen(session);
        self.opened.push((session, ttl));
        Ok(answer)
    }

    /// Gives a session another TTL, in whatever way.
    fn renew(&mut self, session: SessionId, renew: impl FnOnce(&mut Alive, Ttl) -> io::Result<Renewed>) -> Outcome {
        let ttl = match self.find(session) {
            Ok(ttl) => ttl,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let renewed = renew(self.alive, ttl);
        match renewed.map_err(|error| Trouble::io("write", &self.alive.path(session), error))? {
            Renewed::InTime | Renewed::Perhaps => Ok(Ok(Answer::Done)),
            Renewed::TooLate => {
                drop(self.apply(Command::ExpireSession { session }));
                Ok(Err(Refusal::NoSuchSession { session }))
            }
            Renewed::NotOurs => {
                let pid = self.alive.keeper(session).unwrap_or(0);
                Err(Trouble::OthersSession { session: session.get(), pid })
            }
        }
    }

    fn find(&self, session: SessionId) -> Result<Ttl, Refusal> {
        let view = self.replica.machine.session(session);
        view.map(|view| view.ttl()).ok_or(Refusal::NoSuchSession { session })
    }

    /// Ends sessions and delays that are over, as far as anybody here cares. Whoever is granted thereby may be dead
    /// too, so it looks again until nothing changes. Returns whether anything did.
    fn end_what_is_due(&mut self) -> bool {
        let mut looked_at = HashSet::new();
        let mut has_ended = false;
        loop {
            let mut ends = self.end_delays();
            let mut around = std::mem::take(&mut self.suspects);
            around.extend(blockers(&self.replica.machine, &self.contended));
            for session in around {
                if looked_at.insert(session) && self.is_over(session) {
                    ends |= self.apply(Command::ExpireSession { session }).is_ok();
                }
            }
            if !ends {
                return has_ended;
            }
            has_ended = true;
        }
    }

    fn is_over(&self, session: SessionId) -> bool {
        match self.alive.look(session) {
            Sign::Over => true,
            Sign::Until { .. } | Sign::Hidden => false,
            Sign::Lost => {
                if let Ok(ttl) = self.find(session) {
                    self.alive.stand_in(session, ttl);
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
            // One that could not be ended must not be tried again for ever.
            self.replica.delays.remove(&token);
        }
        ends
    }
}
