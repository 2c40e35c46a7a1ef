//! The state machine behind a mutex.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use palisade_core::{
    Acquire, Answer, Caller, Command, Event, Events, Label, Limits, LockName, Machine, Refusal, RequestNo, SessionId,
    Token, Ttl, Value, Waiting,
};
use tokio::sync::{Notify, mpsc};

use super::Config;
use crate::engine::host::{self, Begun, Subscriptions};
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Offers, Opened, Order, Raised,
    Released, SessionClock, WakeUp, Watched,
};
use crate::{BootInstant, SignedToken};

/// Locks in the memory of one process.
#[derive(Clone)]
pub struct Memory {
    namespace: Arc<Namespace>,
}

struct Namespace {
    state: Mutex<State>,
    /// Notified when a deadline may be earlier than the one that the expiry task waits for.
    earlier_deadline: Notify,
}

struct State {
    machine: Machine,
    subscriptions: Subscriptions,
    /// The deadline of each session.
    deadlines: HashMap<SessionId, BootInstant>,
    /// The end of the lock-delay of each withheld grant.
    delays: BTreeMap<Token, (BootInstant, LockName)>,
    granted_at: HashMap<Token, BootInstant>,
}

/// Named namespaces. They stay while no client is connected, so that their tokens keep rising.
static NAMESPACES: LazyLock<Mutex<HashMap<String, Arc<Namespace>>>> = LazyLock::new(Mutex::default);

impl Memory {
    /// Opens a namespace, or creates it. Must be called within a `tokio` runtime with a local set, in which a task
    /// expires sessions.
    pub fn connect(config: &Config) -> Memory {
        let namespace = match &config.name {
            None => Arc::new(Namespace::new()),
            Some(name) => {
                let mut all = NAMESPACES.lock().unwrap_or_else(PoisonError::into_inner);
                all.entry(name.clone()).or_insert_with(|| Arc::new(Namespace::new())).clone()
            }
        };
        tokio::task::spawn_local(expire_sessions(Arc::downgrade(&namespace)));
        Memory { namespace }
    }

    fn apply(&self, command: Command) -> Result<Answer, Refusal> {
        self.namespace.lock().apply(command)
    }
}

/// Ends expired sessions and lock-delays until the namespace is dropped.
async fn expire_sessions(namespace: Weak<Namespace>) {
    // The longest time after which a dropped namespace is noticed.
    const MAX_SLEEP: Duration = Duration::from_secs(1);
    while let Some(namespace) = namespace.upgrade() {
        // Created first: a notification between the next two lines must not get lost.
        let notified = namespace.earlier_deadline.notified();
        let next = namespace.lock().end_due();
        let left = next.map_or(MAX_SLEEP, |at| at.left().min(MAX_SLEEP));
        drop(tokio::time::timeout(left, notified).await);
    }
}

impl Namespace {
    fn new() -> Namespace {
        let state = State {
            machine: Machine::new(Limits::default()),
            subscriptions: Subscriptions::default(),
            deadlines: HashMap::new(),
            delays: BTreeMap::new(),
            granted_at: HashMap::new(),
        };
        Namespace { state: Mutex::new(state), earlier_deadline: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only complete commands change the state, so it is valid after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn apply(&mut self, command: Command) -> Result<Answer, Refusal> {
        let applied = self.machine.apply(command);
        self.note_times(&applied.events);
        self.subscriptions.tell(&applied.events);
        applied.answer
    }

    fn note_times(&mut self, events: &Events) {
        for event in events {
            match event {
                Event::SessionOpened { session, ttl } => {
                    self.deadlines.insert(*session, BootInstant::now() + Duration::from_millis(ttl.as_ms()));
                }
                Event::SessionEnded { session, .. } => drop(self.deadlines.remove(session)),
                Event::Granted { token, .. } => drop(self.granted_at.insert(*token, BootInstant::now())),
                Event::GrantEnded { token, .. } => drop(self.granted_at.remove(token)),
                Event::Withheld { locks, token, delay } => {
                    let ends_at = BootInstant::now() + Duration::from_millis(delay.as_ms());
                    self.delays.insert(*token, (ends_at, locks[0].clone()));
                }
                Event::DelayEnded { token, .. } => drop(self.delays.remove(token)),
                _ => {}
            }
        }
    }

    /// Ends expired sessions and lock-delays, and returns the next deadline.
    fn end_due(&mut self) -> Option<BootInstant> {
        let now = BootInstant::now();
        let due: Vec<_> = self.deadlines.iter().filter(|(_, at)| **at <= now).map(|(session, _)| *session).collect();
        for session in due {
            drop(self.apply(Command::ExpireSession { session }));
        }
        let ended: Vec<_> =
            self.delays.iter().filter(|(_, (at, _))| *at <= now).map(|(t, (_, l))| (*t, l.clone())).collect();
        for (token, lock) in ended {
            drop(self.apply(Command::EndDelay { lock, token }));
        }
        self.deadlines.values().copied().chain(self.delays.values().map(|(at, _)| *at)).min()
    }

    fn info(&self, lock: palisade_core::LockView<'_>) -> LockInfo {
        let ms = |duration: Duration| duration.as_millis() as u64;
        LockInfo::of(lock, |session, token| {
            let held_for = self.granted_at.get(&token).map(|at| ms(BootInstant::now().since(*at)));
            let time_left = session.and_then(|session| self.deadlines.get(&session)).map(|at| ms(at.left()));
            (held_for, time_left)
        })
    }
}

#[async_trait(?Send)]
impl Engine for Memory {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "memory",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::SameHost,
            wake_up: WakeUp::Pushed,
            offers: Offers { signed: false, ..Offers::ALL },
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        let mut state = self.namespace.lock();
        let open = Command::OpenSession { session: host::random_session(), ttl, label };
        let Answer::Opened { session } = state.apply(open)? else {
            unreachable!("the machine opens a session or refuses")
        };
        self.namespace.earlier_deadline.notify_waiters();
        Ok(Opened { session, notices: state.subscriptions.subscribe(session), lifeline: None })
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let mut state = self.namespace.lock();
        state.end_due();
        let view = state.machine.session(session).ok_or(Failure::SessionEnded)?;
        let deadline = BootInstant::now() + Duration::from_millis(view.ttl().as_ms());
        state.deadlines.insert(session, deadline);
        Ok(())
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        match self.apply(Command::CloseSession { session }) {
            Ok(_) | Err(Refusal::NoSuchSession { .. }) => Ok(()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn detach_session(&self, session: SessionId) -> Result<(), Failure> {
        self.keep_alive(session).await
    }

    async fn acquire(&self, request: Acquire) -> Result<Acquired, Failure> {
        let has_lock_delay = request.delay.is_some();
        let wait = {
            let mut state = self.namespace.lock();
            match host::begun(state.apply(Command::Acquire(request)))? {
                Begun::Done(acquired) => return Ok(acquired),
                Begun::Waits(ticket) => state.subscriptions.wait(ticket),
            }
        };
        if has_lock_delay {
            self.namespace.earlier_deadline.notify_waiters();
        }
        match wait.await {
            Ok(outcome) => outcome.map(|token| Acquired::Granted { token }),
            Err(_) => Err(Failure::SessionEnded),
        }
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        let waiting = Waiting::Request(number);
        host::cancelled(self.apply(Command::Cancel { caller: session.into(), waiting }))
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        host::released(self.apply(Command::Release { caller: Some(session.into()), lock, token }))
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        let caller = Caller::from(session);
        Ok(self.apply(Command::Publish { caller, lock, token, value }).map(drop)?)
    }

    async fn sign(&self, _: SessionId, _: LockName, _: Token) -> Result<SignedToken, Failure> {
        Err(host::not_signing())
    }

    async fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> Result<Forced, Failure> {
        host::forced(self.apply(Command::ForceRelease { lock, only, by, reason }))
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        Ok(self.apply(Command::Resize { lock, limit }).map(drop)?)
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        host::raised(above, self.apply(Command::RaiseTokens { above }))
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let state = self.namespace.lock();
        let idle = || LockInfo::idle(&state.machine, &lock);
        Ok(state.machine.lock(&lock).map(|view| state.info(view)).or_else(idle))
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        let state = self.namespace.lock();
        Ok(host::matching(&state.machine, &prefix).into_iter().map(|view| state.info(view)).collect())
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        Ok(self.namespace.lock().subscriptions.watch(prefix))
    }
}
