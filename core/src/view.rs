//! Read access to the machine. It depends on `machine`, never the other way round.
//!
//! The examples share a beginning, `example.txt`: alice holds `orders/42` with a value and a delay, bob waits for it.

use serde::{Deserialize, Serialize};

use crate::machine::{ClaimState, Lock, LockEntry, Session};
use crate::slab::Slot;
use crate::{
    Caller, Delay, Ended, Kind, Label, Limits, LockName, LockNames, Machine, Mode, Refusal, RequestNo, Secret,
    SessionId, Ticket, Token, Ttl, Value,
};

/// A position in a listing. A lock that is in use during the whole listing is returned exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Cursor(pub u32);

impl Machine {
    /// Returns the limits in force.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// assert_eq!(machine.limits().name_bytes, 512);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the last token given; `None` before the first.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// assert_eq!(machine.last_token(), Some(token));
    /// assert_eq!(Machine::new(Limits::default()).last_token(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn last_token(&self) -> Option<Token> {
        Token::new(self.last_token).ok()
    }

    /// Returns the force-released grants of a lock that is idle since, oldest first. Only the last 256 of all idle
    /// locks are kept.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// machine.apply(Command::CloseSession { session: bob });
    /// let (by, reason) = (palisade_core::Label::new("root"), palisade_core::Label::new("it hangs"));
    /// machine.apply(Command::ForceRelease { lock: orders.clone(), only: None, by, reason });
    /// assert!(machine.lock(&orders).is_none());
    /// let ended = machine.forced(&orders).next().ok_or("no record")?;
    /// assert!(matches!(&ended.how, Ending::Forced(force) if force.reason.as_str() == "it hangs"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forced<'a>(&'a self, lock: &'a LockName) -> impl Iterator<Item = &'a Ended> + use<'a> {
        self.forced.iter().filter(move |forced| forced.lock == *lock).map(|forced| &forced.ended)
    }

    /// Returns the number of open sessions.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// assert_eq!(machine.session_count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn session_count(&self) -> u32 {
        self.sessions.len()
    }

    /// Returns the number of locks that are held or waited for.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// assert_eq!(machine.lock_count(), 1);
    /// machine.apply(Command::CloseSession { session: alice });
    /// machine.apply(Command::CloseSession { session: bob });
    /// assert_eq!(machine.lock_count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_count(&self) -> u32 {
        self.locks.len()
    }

    /// Returns a lock that is held or waited for; `None` for any other lock.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// assert!(machine.lock(&orders).is_some());
    /// assert!(machine.lock(&LockName::new("orders/43")?).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock(&self, name: &LockName) -> Option<LockView<'_>> {
        self.find_lock(name).map(|slot| LockView { machine: self, lock: &self.locks[slot] })
    }

    /// Returns the session that holds this lock with this token, and the mode. If `session` is given, it must be the
    /// holder.
    ///
    /// # Errors
    ///
    /// The refusal that [`Command::Release`](crate::Command::Release) would get.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// assert_eq!(machine.held(None, &orders, token)?, (alice, Mode::Exclusive));
    /// assert_eq!(machine.held(Some(alice), &orders, token)?, (alice, Mode::Exclusive));
    /// let other = Refusal::OtherSession { lock: orders.clone(), token };
    /// assert_eq!(machine.held(Some(bob), &orders, token), Err(other));
    /// machine.apply(Command::Release { caller: None, lock: orders.clone(), token });
    /// assert_eq!(machine.held(None, &orders, token), Err(Refusal::NotHeld { lock: orders, token }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn held(
        &self,
        session: Option<SessionId>,
        lock: &LockName,
        token: Token,
    ) -> Result<(SessionId, Mode), Refusal> {
        let claim = match session {
            Some(session) => self.held_claim_of(Caller::from(session), lock, token)?,
            None => self.held_claim(lock, token)?,
        };
        let view = self.lock(lock).ok_or_else(|| Refusal::NoSuchLock { lock: lock.clone() })?;
        let grant = view.holders().find(|grant| grant.token == token);
        let mode = grant.map(|grant| grant.mode).ok_or_else(|| Refusal::NotHeld { lock: lock.clone(), token })?;
        Ok((self.sessions[self.claims[claim].session].id, mode))
    }

    /// Returns the session, the token and the secret of a lock that is held with a secret; `None` if it is free. Show the
    /// secret only to a client that may use the lock.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoSecret`]: it is held without a secret, or withheld.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let (invoices, session) = (LockName::new("invoices")?, SessionId::new(3)?);
    /// let (ttl, label, secret) = (Ttl::ENDLESS, Label::new("carol"), Secret::new(b"7f3a"));
    /// let acquire = Acquire::exclusive(session, invoices.clone());
    /// assert_eq!(machine.held_with_secret(&invoices)?, None);
    /// machine.apply(Command::OpenAndAcquire(OpenAndAcquire {
    ///     ttl,
    ///     label,
    ///     secret: Some(secret.clone()),
    ///     renews: false,
    ///     acquire,
    /// }));
    /// assert!(matches!(machine.held_with_secret(&invoices)?, Some((id, _, held)) if id == session && *held == secret));
    /// assert_eq!(machine.held_with_secret(&orders), Err(Refusal::NoSecret { lock: orders }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn held_with_secret(&self, lock: &LockName) -> Result<Option<(SessionId, Token, &Secret)>, Refusal> {
        let Some(slot) = self.find_lock(lock).filter(|slot| !self.locks[*slot].holders.is_empty()) else {
            return Ok(None);
        };
        let held = self.claim_with_secret(slot).and_then(|claim| Some((claim, self.secret_of(claim)?)));
        let Some((claim, secret)) = held else { return Err(Refusal::NoSecret { lock: lock.clone() }) };
        Ok(Some((self.sessions[self.claims[claim].session].id, self.token_of(claim), secret)))
    }

    /// Returns whether the request of this number waits or is held. A repeat of it would change nothing.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let number = RequestNo::new(1)?;
    /// assert!(!machine.has_request(bob, number));
    /// let request = Acquire::exclusive(Caller { session: bob, number: Some(number) }, LockName::new("orders/43")?);
    /// machine.apply(Command::Acquire(request));
    /// assert!(machine.has_request(bob, number));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn has_request(&self, session: SessionId, number: RequestNo) -> bool {
        self.find_session(session).is_some_and(|session| self.find_request(session, number).is_some())
    }

    /// Returns all locks in use from a cursor on, each with the cursor after it, in a stable order.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let (cursor, lock) = machine.locks(Cursor::default()).next().ok_or("no lock")?;
    /// assert_eq!(lock.name(), &orders);
    /// assert!(machine.locks(cursor).next().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn locks(&self, from: Cursor) -> impl Iterator<Item = (Cursor, LockView<'_>)> {
        self.locks.iter_from(from.0).map(|(slot, lock)| (Cursor(slot.number() + 1), LockView { machine: self, lock }))
    }

    /// Returns an open session.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// assert!(machine.session(alice).is_some());
    /// machine.apply(Command::ExpireSession { session: alice });
    /// assert!(machine.session(alice).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn session(&self, id: SessionId) -> Option<SessionView<'_>> {
        self.find_session(id).map(|slot| SessionView { machine: self, session: &self.sessions[slot] })
    }

    /// Returns all open sessions, in a stable order.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let names: Vec<_> = machine.sessions().map(|session| session.label().as_str()).collect();
    /// assert_eq!(names, ["alice", "bob"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sessions(&self) -> impl Iterator<Item = SessionView<'_>> {
        self.sessions.iter().map(|(_, session)| SessionView { machine: self, session })
    }

    /// Returns the grants whose locks are withheld. A host that restarts measures their lock-delays again from the
    /// beginning.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// machine.apply(Command::ExpireSession { session: alice });
    /// let (locks, expired, delay) = machine.withheld().next().ok_or("nothing is withheld")?;
    /// assert_eq!((&locks[0], expired, delay.as_ms()), (&orders, token, 15_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn withheld(&self) -> impl Iterator<Item = (LockNames, Token, Delay)> {
        self.claims.iter().filter_map(|(slot, claim)| match (claim.state(), &claim.extras) {
            (ClaimState::Withheld { token }, Some(extras)) => Some((self.locks_of(slot), token, extras.delay?)),
            _ => None,
        })
    }
}

/// A lock that is in use.
#[derive(Clone, Copy)]
pub struct LockView<'a> {
    machine: &'a Machine,
    lock: &'a Lock,
}

impl<'a> LockView<'a> {
    /// Returns its name.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// assert_eq!(lock.name().as_str(), "orders/42");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(&self) -> &'a LockName {
        &self.lock.name
    }

    /// Returns whether it is in use as a lock or as a semaphore.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// assert_eq!(lock.kind(), Kind::Lock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kind(&self) -> Kind {
        self.lock.kind()
    }

    /// Returns the number of grants that take it.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// assert_eq!(lock.holder_count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holder_count(&self) -> u32 {
        self.lock.holders.len
    }

    /// Returns whether a new request would be granted at once: the kind matches, the queue is empty, and enough permits
    /// are left.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// assert!(!lock.is_available(palisade_core::Mode::Exclusive));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_available(&self, mode: Mode) -> bool {
        self.lock.limit == mode.limit() && self.lock.is_free(mode.need())
    }

    /// Returns the length of its queue.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// assert_eq!(lock.waiter_count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waiter_count(&self) -> u32 {
        self.lock.queue.len
    }

    /// Returns the grants that take it, oldest first.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// let grant = lock.holders().next().ok_or("not held")?;
    /// assert_eq!((grant.token, grant.mode), (token, Mode::Exclusive));
    /// assert!(matches!(grant.state, GrantState::Held { session, .. } if session == alice));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holders(&self) -> impl Iterator<Item = GrantView<'a>> + use<'a> {
        let (machine, lock) = (self.machine, self.lock);
        lock.holders.iter(&machine.entries, |entry| &entry.at_lock).map(move |slot| grant_view(machine, lock, slot))
    }

    /// Returns its queue, in the order of arrival.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// let first = lock.waiters().next().ok_or("no waiter")?;
    /// assert_eq!((first.session, first.label.as_str()), (bob, "bob"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waiters(&self) -> impl Iterator<Item = WaiterView<'a>> + use<'a> {
        let (machine, lock) = (self.machine, self.lock);
        lock.queue.iter(&machine.entries, |entry| &entry.at_lock).map(move |slot| waiter_view(machine, lock, slot))
    }

    /// Returns the grants that ended while it was in use, oldest first. Only the last few are kept.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// machine.apply(Command::Release { caller: None, lock: orders.clone(), token });
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// let ended = lock.history().next().ok_or("no history")?;
    /// assert_eq!((ended.session, ended.token, &ended.how), (alice, token, &Ending::Released));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn history(&self) -> impl Iterator<Item = &'a Ended> + use<'a> {
        self.lock.history.iter().flat_map(|history| history.0.iter())
    }

    /// Returns the grants that were force-released before it was in use, oldest first. See [`Machine::forced`].
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// assert_eq!(lock.forced_before().count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forced_before(&self) -> impl Iterator<Item = &'a Ended> + use<'a> {
        self.machine.forced(&self.lock.name)
    }

    /// Returns the value that its holder publishes.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// assert_eq!(lock.value(), Some(&Value::new(b"10.0.0.1")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn value(&self) -> Option<&'a Value> {
        let holder = self.machine.entries.get(self.lock.holders.head)?;
        self.machine.claims[holder.claim].extras.as_ref()?.value.as_ref()
    }
}

/// The state of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantState<'a> {
    /// Its session is open.
    Held {
        /// The holder.
        session: SessionId,
        /// The label of the holder's session. Not escaped.
        label: &'a Label,
    },
    /// Its session has expired, and its [lock-delay](Delay) is not over.
    Withheld,
}

/// A grant, as one of its locks shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantView<'a> {
    /// Its token.
    pub token: Token,
    /// How the lock is held.
    pub mode: Mode,
    /// Whether its session is still open.
    pub state: GrantState<'a>,
}

/// A request in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaiterView<'a> {
    /// Identifies the waiting request.
    pub ticket: Ticket,
    /// The waiter.
    pub session: SessionId,
    /// The label of the waiter's session. Not escaped.
    pub label: &'a Label,
    /// How the lock is wanted.
    pub mode: Mode,
}

fn grant_view<'a>(machine: &'a Machine, lock: &Lock, slot: Slot<LockEntry>) -> GrantView<'a> {
    let entry = &machine.entries[slot];
    let claim = &machine.claims[entry.claim];
    let mode = lock.mode(entry.need);
    match claim.state() {
        ClaimState::Held { token } => {
            let Session { id, label, .. } = &machine.sessions[claim.session];
            GrantView { token, mode, state: GrantState::Held { session: *id, label } }
        }
        ClaimState::Withheld { token } => GrantView { token, mode, state: GrantState::Withheld },
        ClaimState::Waiting { .. } => unreachable!("a holder is not waiting"),
    }
}

fn waiter_view<'a>(machine: &'a Machine, lock: &Lock, slot: Slot<LockEntry>) -> WaiterView<'a> {
    let entry = &machine.entries[slot];
    let claim = &machine.claims[entry.claim];
    let ClaimState::Waiting { arrival } = claim.state() else { unreachable!("a waiter does not hold") };
    let Session { id, label, .. } = &machine.sessions[claim.session];
    let ticket = Ticket { arrival, slot: entry.claim.number() };
    WaiterView { ticket, session: *id, label, mode: lock.mode(entry.need) }
}

/// An open session.
#[derive(Clone, Copy)]
pub struct SessionView<'a> {
    machine: &'a Machine,
    session: &'a Session,
}

impl<'a> SessionView<'a> {
    /// Returns its number.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let session = machine.session(alice).ok_or("not open")?;
    /// assert_eq!(session.id(), alice);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// Returns how long it lives without a keep-alive.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let session = machine.session(alice).ok_or("not open")?;
    /// assert_eq!(session.ttl().as_ms(), 10_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ttl(&self) -> Ttl {
        self.session.ttl
    }

    /// Returns its label. Not escaped.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let session = machine.session(alice).ok_or("not open")?;
    /// assert_eq!(session.label().as_str(), "alice");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn label(&self) -> &'a Label {
        &self.session.label
    }

    /// Returns the number of locks that it holds or waits for.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let session = machine.session(bob).ok_or("not open")?;
    /// assert_eq!(session.lock_count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_count(&self) -> u32 {
        self.session.locks
    }

    /// Returns its grants, in the order of the requests.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let session = machine.session(alice).ok_or("not open")?;
    /// let (locks, held) = session.grants().next().ok_or("holds nothing")?;
    /// assert_eq!((&locks[0], held), (&orders, token));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grants(&self) -> impl Iterator<Item = (LockNames, Token)> + use<'a> {
        let machine = self.machine;
        let claims = self.session.claims.iter(&machine.claims, |claim| &claim.at_session);
        claims.filter_map(move |slot| match machine.claims[slot].state() {
            ClaimState::Held { token } => Some((machine.locks_of(slot), token)),
            _ => None,
        })
    }
}
