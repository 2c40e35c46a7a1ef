//! The engine: each call becomes one request to the log, or a look at the replica.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{
    Acquire, Answer, Caller, Command, Label, LockName, Patience, Refusal, RequestNo, SessionId, Token, Ttl, Value,
    Waiting,
};
use tokio::sync::{Notify, mpsc};

use super::Config;
use super::alive::{Alive, Renewed};
use super::answer::Answered;
use super::bell::Bells;
use super::commit::{Queue, put};
use super::draft::{Draft, What};
use super::error::Trouble;
use super::interest::Task;
use super::log::{Lasting, Log, boot_name};
use super::log_lock::LogLock;
use super::place::{self, Place};
use super::replica::{Replica, Settings};
use super::state::State;
use crate::engine::host::{self, Begun};
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Offers, Opened, Order, Raised,
    Released, SessionClock, WakeUp, Watched,
};
use crate::{BootInstant, SignedToken};

/// How long it may seem that a file is used in another way before a caller is told.
const LONGEST_DOUBT: Duration = Duration::from_secs(2);
/// Between two attempts meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// Locks of the processes of one host.
#[derive(Clone)]
pub struct Embedded {
    pub(super) shared: Rc<Shared>,
    /// They end with the last clone of this engine.
    _tasks: Rc<[Task; 3]>,
}

/// What the engine and its tasks share.
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) log_lock: LogLock,
    pub(super) bells: Bells,
    pub(super) state: RefCell<State>,
    /// Somebody waits, watches or lives who did not before.
    pub(super) changed: Rc<Notify>,
}

impl Embedded {
    /// Opens the file, or makes it. Must be called within a `tokio` runtime with I/O and time enabled, and within a
    /// local set.
    ///
    /// # Cancellation
    ///
    /// A file that was made stays.
    ///
    /// # Errors
    ///
    /// [`Failure::Unavailable`] with what is wrong with the file and what to do about it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use palisade::engine::{Engine, embedded::{Config, Embedded}};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let file = directory.path().join("locks.db");
    /// let local = tokio::task::LocalSet::new();
    /// let engine = local.run_until(Embedded::connect(Config::at(file))).await?;
    /// assert_eq!(engine.guarantees().engine, "embedded");
    /// # Ok(()) }
    /// ```
    pub async fn connect(config: Config) -> Result<Embedded, Failure> {
        let give_up_at = BootInstant::now() + LONGEST_DOUBT;
        loop {
            match Embedded::try_connect(&config).await {
                // A process that is just ending looks as if it used the file in another way.
                Err(trouble) if trouble.is_about_others() && !give_up_at.has_passed() => {
                    tokio::time::sleep(PAUSE).await;
                }
                connected => return Ok(connected?),
            }
        }
    }

    async fn try_connect(config: &Config) -> Result<Embedded, Trouble> {
        let place = Place::find(config)?;
        let settings = Settings::new(place::boot(config)?, config.compact_after);
        let log_lock = LogLock::open(&place)?;
        let held = log_lock.take().await?;
        let state = State::open(Log::open(&place, &log_lock)?, &place, settings)?;
        let bells = Bells::new(&place, state.log.access());
        let state = RefCell::new(state.arrive(&place, &bells)?);
        drop(held);
        let changed = Rc::new(Notify::new());
        let shared = Rc::new(Shared { queue: Queue::default(), log_lock, bells, state, changed });
        let (committer, minder, listener) = (shared.clone(), shared.clone(), shared.clone());
        let tasks = [
            Task::spawn(async move { committer.commit_forever().await }),
            Task::spawn(async move { minder.mind_forever().await }),
            Task::spawn(async move { listener.listen_forever().await }),
        ];
        Ok(Embedded { shared, _tasks: Rc::new(tasks) })
    }

    async fn apply(&self, command: Command) -> Result<Result<Answer, Refusal>, Failure> {
        Ok(self.shared.submit(What::Command(command)).await?.answer)
    }

    /// Ends what is over at these locks, so that nobody is shown who is dead. If it cannot be written, what is shown
    /// is still what the log says.
    async fn end_due(&self, locks: Vec<LockName>) {
        let is_due = self.shared.state.borrow().is_anything_due(&locks);
        if !is_due {
            return;
        }
        if let Err(error) = self.shared.submit(What::EndDue { locks, sessions: Vec::new() }).await {
            tracing::debug!(%error, "sessions that are over could not be ended");
        }
    }
}

impl Shared {
    async fn listen_forever(&self) {
        loop {
            self.bells.rung().await;
            if let Err(error) = self.state.borrow_mut().catch_up() {
                tracing::warn!(%error, "cannot read what other processes have done");
            }
            self.changed.notify_one();
        }
    }
}

impl State {
    /// The caller has the log's lock.
    fn open(log: Log, place: &Place, settings: Settings) -> Result<State, Trouble> {
        if log.set_up()? {
            place.make_durable()?;
        }
        let access = log.access();
        let made = access.create_directory(&place.sessions);
        made.map_err(|error| Trouble::io("create", &place.sessions, error))?;
        let made = access.open_or_create(&place.bell);
        made.map_err(|error| Trouble::io("create", &place.bell, error))?;
        let reading = log.read()?;
        let replica = Replica::load(&log, settings)?;
        drop(reading);
        Ok(State::new(log, replica, Alive::new(place.sessions.clone(), access, settings.boot)))
    }

    /// Makes sure that the file can be used as it is, ends the sessions that are over, and removes what is left of those
    /// that ended before. The caller has the log's lock.
    fn arrive(mut self, place: &Place, bells: &Bells) -> Result<State, Trouble> {
        let log = self.log.clone();
        let boot = self.replica.settings.boot;
        let floor = log.admit(self.replica.machine.last_token(), boot)?;
        let writing = log.begin(Lasting::AtOnce)?;
        let is_new_boot = log.boot()?.as_ref() != Some(&boot_name(boot));
        let sessions = self.replica.machine.sessions().map(|session| session.id()).collect();
        let mut draft = Draft::new(&mut self.replica, &mut self.alive, bells);
        draft.raise_tokens(floor);
        if is_new_boot {
            draft.end_sessions_of_processes();
            log.set_boot(boot)?;
        }
        let everybody = What::EndDue { locks: Vec::new(), sessions };
        let drafted = draft.carry_out([&everybody].into_iter());
        if log.is_bound() {
            // Ending dead sessions may have granted their locks to waiters.
            log.reserve(self.replica.machine.last_token())?;
        }
        log.renew_binding()?;
        if !drafted.batch.commands.is_empty() {
            let (appended, sizes) = put(&log, &self.replica, &drafted.batch, writing)?;
            self.has_written(appended, sizes);
        } else {
            log.commit(writing)?;
        }
        log.bind(self.replica.machine.last_token(), boot)?;
        self.wake_others(bells, &drafted.events);
        self.clean_up(bells, &drafted.events);
        self.remove_leftovers(place);
        Ok(self)
    }

    fn remove_leftovers(&self, place: &Place) {
        let Ok(entries) = fs::read_dir(&place.sessions) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".bell").unwrap_or(name).parse().ok());
            let session = number.and_then(|number| SessionId::new(number).ok());
            if session.is_some_and(|session| self.replica.machine.session(session).is_none()) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}

impl Engine for Embedded {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "embedded",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::SameHost,
            wake_up: WakeUp::Pushed,
            offers: Offers { signed: false, ..Offers::ALL },
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        let Answered { answer, notices, .. } = self.shared.submit(What::Open { ttl, label }).await?;
        match (answer?, notices) {
            (Answer::Opened { session }, Some(notices)) => {
                let lifeline = self.shared.state.borrow().alive.lifeline(session);
                Ok(Opened { session, notices, lifeline })
            }
            (other, _) => unreachable!("an open is not answered with {other:?}"),
        }
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let began = BootInstant::now();
        let renewed = self.shared.state.borrow_mut().renew(session)?;
        let what = match renewed {
            Renewed::InTime => return Ok(()),
            Renewed::Perhaps => What::Verify(session),
            Renewed::TooLate => What::EndDue { locks: Vec::new(), sessions: vec![session] },
            Renewed::NotOurs => What::RenewLeft { session, began },
        };
        let Answered { answer, .. } = self.shared.submit(what).await?;
        match renewed {
            Renewed::TooLate => Err(Failure::SessionEnded),
            _ => Ok(answer.map(drop)?),
        }
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        match self.apply(Command::CloseSession { session }).await? {
            Ok(_) | Err(Refusal::NoSuchSession { .. }) => Ok(()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn leave_session(&self, session: SessionId) -> Result<(), Failure> {
        let left = What::Leave { session, began: BootInstant::now() };
        Ok(self.shared.submit(left).await?.answer.map(drop)?)
    }

    async fn acquire(&self, ask: Acquire) -> Result<Acquired, Failure> {
        if ask.patience == Patience::Wait && !self.shared.state.borrow().alive.is_own(ask.caller.session) {
            self.shared.bells.listen(ask.caller.session);
        }
        let Answered { answer, wait, .. } = self.shared.submit(What::Command(Command::Acquire(ask))).await?;
        match (host::begun(answer)?, wait) {
            (Begun::Done(acquired), _) => Ok(acquired),
            (Begun::Waits(_), None) => unreachable!("a wait that begins is listened for"),
            (Begun::Waits(_), Some(wait)) => match wait.await {
                Ok(outcome) => outcome.map(|token| Acquired::Granted { token }),
                Err(_) => Err(Failure::SessionEnded),
            },
        }
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        let waiting = Waiting::Request(number);
        host::cancelled(self.apply(Command::Cancel { caller: session.into(), waiting }).await?)
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        host::released(self.apply(Command::Release { caller: Some(session.into()), lock, token }).await?)
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        let caller = Caller::from(session);
        Ok(self.apply(Command::Publish { caller, lock, token, value }).await?.map(drop)?)
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
        host::forced(self.apply(Command::ForceRelease { lock, only, by, reason }).await?)
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        Ok(self.apply(Command::Resize { lock, limit }).await?.map(drop)?)
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        host::raised(above, self.apply(Command::RaiseTokens { above }).await?)
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        self.shared.state.borrow_mut().catch_up()?;
        self.end_due(vec![lock.clone()]).await;
        let state = self.shared.state.borrow();
        let machine = &state.replica.machine;
        Ok(machine.lock(&lock).map(|view| state.info(view)).or_else(|| LockInfo::idle(machine, &lock)))
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        self.shared.state.borrow_mut().catch_up()?;
        let names = {
            let state = self.shared.state.borrow();
            let matching = host::matching(&state.replica.machine, &prefix);
            matching.into_iter().map(|view| view.name().clone()).collect()
        };
        self.end_due(names).await;
        let state = self.shared.state.borrow();
        Ok(host::matching(&state.replica.machine, &prefix).into_iter().map(|view| state.info(view)).collect())
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        self.shared.bells.listen_for_everything();
        let mut state = self.shared.state.borrow_mut();
        state.catch_up()?;
        self.shared.changed.notify_one();
        Ok(state.listeners.watch(prefix))
    }
}

impl State {
    /// Writes the session's next deadline, if the log still knows the session.
    fn renew(&mut self, session: SessionId) -> Result<Renewed, Failure> {
        self.catch_up()?;
        let ttl = self.replica.machine.session(session).ok_or(Failure::SessionEnded)?.ttl();
        let renewed = self.alive.renew(session, ttl);
        Ok(renewed.map_err(|error| Trouble::io("write", &self.alive.path(session), error))?)
    }
}
