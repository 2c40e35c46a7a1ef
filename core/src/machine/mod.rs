//! The state, and how a command changes it.
//!
//! There are four slabs: sessions; claims (one request of a session, and its state: waiting, held, withheld); locks; and
//! entries (a claim's membership in the queue or among the holders of one lock). A claim for several locks has an entry
//! at each of them and takes them all in one step.

mod acquire;
mod claims;
mod index;
mod operate;
mod release;
mod repeat;
mod secret;
mod sessions;
mod state;

use std::collections::VecDeque;

use crate::slab::Slab;
use crate::{Answer, Applied, Command, Events, Limits, Refusal, Token};

use index::Index;
pub(crate) use state::{ALL, Claim, ClaimExtras, ClaimState, FORCED_KEPT, Forced, Lock, LockEntry, Session};

/// The locks of one namespace. Applies commands one after the other.
///
/// ```
/// use palisade_core::{Command, Label, Limits, Machine, SessionId, Ttl};
/// let mut machine = Machine::new(Limits::default());
/// let (session, ttl) = (SessionId::new(7)?, Ttl::from_ms(10_000)?);
/// let open = Command::OpenSession { session, ttl, label: Label::new("me") };
/// assert!(machine.apply(open).answer.is_ok());
/// # Ok::<(), palisade_core::BadNumber>(())
/// ```
#[derive(Clone)]
pub struct Machine {
    pub(crate) limits: Limits,
    /// The last token given, 0 for none. One counter for all locks: a deleted lock leaves nothing behind.
    pub(crate) last_token: u64,
    pub(crate) last_arrival: u64,
    pub(crate) sessions: Slab<Session>,
    pub(crate) locks: Slab<Lock>,
    pub(crate) claims: Slab<Claim>,
    pub(crate) entries: Slab<LockEntry>,
    /// The last force-released grants of idle locks, oldest first.
    pub(crate) forced: VecDeque<Forced>,
    pub(crate) index: Index,
}

impl Machine {
    /// Returns a machine without sessions or locks. Its first token is 1.
    ///
    /// ```
    /// use palisade_core::{Limits, Machine};
    /// let machine = Machine::new(Limits { sessions: 100, ..Limits::default() });
    /// assert_eq!((machine.lock_count(), machine.last_token()), (0, None));
    /// ```
    pub fn new(limits: Limits) -> Machine {
        Machine {
            limits,
            last_token: 0,
            last_arrival: 0,
            sessions: Slab::new(),
            locks: Slab::new(),
            claims: Slab::new(),
            entries: Slab::new(),
            forced: VecDeque::new(),
            index: Index::new(0),
        }
    }

    /// Keys the look-up tables by a secret number. Without it, untrusted clients of a host could choose names that
    /// collide. Nothing observable changes.
    ///
    /// ```
    /// use palisade_core::{Limits, Machine};
    /// let machine = Machine::new(Limits::default()).with_hash_key(0x5eed);
    /// assert_eq!(machine.snapshot(), Machine::new(Limits::default()).snapshot());
    /// ```
    pub fn with_hash_key(mut self, key: u64) -> Machine {
        self.index = Index::new(key);
        self.index_everything();
        self
    }

    /// Applies one command: all of it, or, when it is refused, nothing.
    ///
    /// ```
    /// use palisade_core::{Command, Event, Label, Limits, Machine, Refusal, SessionId, Ttl};
    /// let mut machine = Machine::new(Limits::default());
    /// let session = SessionId::new(7)?;
    /// let open = |ms| Ttl::from_ms(ms).map(|ttl| Command::OpenSession { session, ttl, label: Label::new("me") });
    ///
    /// let opened = machine.apply(open(10_000)?);
    /// assert!(opened.answer.is_ok());
    /// assert!(matches!(opened.events[0], Event::SessionOpened { .. }));
    ///
    /// let refused = machine.apply(open(1)?);
    /// assert!(matches!(refused.answer, Err(Refusal::UnderLimit { min: 100, .. })));
    /// assert!(refused.events.is_empty());
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn apply(&mut self, command: Command) -> Applied {
        let mut events = Events::new();
        let answer = match command.caller() {
            Some(caller) => match caller.number {
                Some(number) => self.answer_once(caller.session, number, command, &mut events),
                None => self.perform(command, 0, &mut events),
            },
            None => self.perform(command, 0, &mut events),
        };
        Applied { answer, events }
    }

    fn perform(&mut self, command: Command, fingerprint: u64, events: &mut Events) -> Result<Answer, Refusal> {
        match command {
            Command::OpenSession { session, ttl, label } => self.open_session(session, ttl, label, events),
            Command::CloseSession { session } => self.end_session(session, crate::SessionEnd::Closed, events),
            Command::ExpireSession { session } => self.end_session(session, crate::SessionEnd::Expired, events),
            Command::Acquire(acquire) => self.acquire(acquire, fingerprint, events),
            Command::Release { caller, lock, token } => self.release(caller, &lock, token, events),
            Command::Cancel { caller, waiting } => self.cancel(caller, waiting, events),
            Command::Publish { caller, lock, token, value } => self.publish(caller, lock, token, value, events),
            Command::ForceRelease { lock, only, by, reason } => self.force_release(&lock, only, by, reason, events),
            Command::Resize { lock, limit } => self.resize(lock, limit, events),
            Command::EndDelay { lock, token } => self.end_delay(&lock, token, events),
            Command::RaiseTokens { above } => Ok(self.raise_tokens(above, events)),
            Command::Configure { limits } => Ok(self.configure(limits, events)),
            Command::OpenAndAcquire(request) => self.open_and_acquire(request, events),
            Command::ExtendHeld { locks, secret, ttl } => self.extend_held(&locks, &secret, ttl, events),
            Command::ReleaseHeld { locks, secret } => self.release_held(&locks, &secret, events),
        }
    }

    /// Takes the next token from the counter.
    fn next_token(&mut self) -> Result<Token, Refusal> {
        match Token::new(self.last_token + 1) {
            Ok(token) => {
                self.last_token = token.get();
                Ok(token)
            }
            Err(_) => Err(Refusal::TokensExhausted { max: Token::MAX }),
        }
    }
}
