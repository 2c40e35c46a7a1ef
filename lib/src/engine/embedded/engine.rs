//! The engine: each call becomes one request to the log, or a read of the replica.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use palisade_core::{
    Acquire, Answer, Caller, Command, Label, LockName, Patience, Refusal, RequestNo, SessionId, Token, Ttl, Value,
    Waiting,
};
use tokio::sync::{Notify, mpsc};

use super::batch::LogRequest;
use super::commit::{CommitQueue, Committer};
use super::config::Config;
use super::error::StoreError;
use super::expiry::ExpiryTask;
use super::lease::Renewal;
use super::log::Log;
use super::paths::{self, Paths};
use super::replica::Settings;
use super::reply::Reply;
use super::state::State;
use super::task::Task;
use super::wake_file::WakeFiles;
use crate::engine::host::{self, Begun};
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Offers, Opened, Order, Raised,
    Released, SessionClock, WakeUp, Watched,
};
use crate::{BootInstant, SignedToken};

/// The time for which connecting is retried while other processes use the file in a conflicting way. A process that
/// is just exiting looks like such a conflict.
const CONFLICT_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two of these attempts.
const CONFLICT_RETRY: Duration = Duration::from_millis(20);

/// Locks in a file, shared by the processes of one host.
#[derive(Clone)]
pub struct Embedded {
    pub(super) state: Rc<RefCell<State>>,
    queue: Rc<CommitQueue>,
    wake_files: Rc<WakeFiles>,
    /// Notified when a wait, a watch or a session begins.
    changed: Rc<Notify>,
    /// They end with the last clone of this engine.
    _tasks: Rc<[Task; 3]>,
}

impl Embedded {
    /// Opens the file, or creates it. Must be called within a `tokio` runtime with I/O and time enabled, and within a
    /// local set.
    ///
    /// # Cancellation
    ///
    /// A file that was created stays.
    ///
    /// # Errors
    ///
    /// [`Failure::Unavailable`] with the problem of the file and its remedy.
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
        let times_out_at = BootInstant::now() + CONFLICT_TIMEOUT;
        loop {
            match Embedded::try_connect(&config).await {
                Err(error) if error.is_caused_by_others() && !times_out_at.has_passed() => {
                    tokio::time::sleep(CONFLICT_RETRY).await;
                }
                connected => return Ok(connected?),
            }
        }
    }

    async fn try_connect(config: &Config) -> Result<Embedded, StoreError> {
        let paths = Paths::find(config.file.as_deref())?;
        let settings = Settings::new(paths::boot(config.boot_id.as_deref())?, config.compact_after);
        let log_lock = Log::open_lock(&paths)?;
        let guard = log_lock.acquire().await?;
        let state = State::open(Log::open(&paths, &log_lock)?, &paths, settings)?;
        let wake_files = Rc::new(WakeFiles::new(&paths, state.log.access()));
        let state = Rc::new(RefCell::new(state.recover(&paths, &wake_files)?));
        drop(guard);
        let (queue, changed) = (Rc::new(CommitQueue::default()), Rc::new(Notify::new()));
        let committer = Committer {
            queue: queue.clone(),
            log_lock,
            wake_files: wake_files.clone(),
            state: state.clone(),
            changed: changed.clone(),
        };
        let expiry = ExpiryTask { queue: queue.clone(), state: state.clone(), changed: changed.clone() };
        let tasks = [
            Task::spawn(committer.run()),
            Task::spawn(expiry.run()),
            Task::spawn(follow_others(wake_files.clone(), state.clone(), changed.clone())),
        ];
        Ok(Embedded { state, queue, wake_files, changed, _tasks: Rc::new(tasks) })
    }

    async fn apply(&self, command: Command) -> Result<Result<Answer, Refusal>, Failure> {
        Ok(self.queue.submit(LogRequest::Command(command)).await?.answer)
    }

    /// Ends expired sessions and lock-delays at these locks, so that a reader does not see expired holders. If that fails,
    /// the reader sees the state of the log.
    async fn end_due(&self, locks: Vec<LockName>) {
        let is_due = self.state.borrow().is_anything_due(&locks);
        if !is_due {
            return;
        }
        if let Err(error) = self.queue.submit(LogRequest::EndDue { locks, sessions: Vec::new() }).await {
            tracing::debug!(%error, "expired sessions could not be ended");
        }
    }
}

/// Applies the commits of other processes when they wake this one.
async fn follow_others(wake_files: Rc<WakeFiles>, state: Rc<RefCell<State>>, changed: Rc<Notify>) {
    loop {
        wake_files.woken().await;
        if let Err(error) = state.borrow_mut().catch_up() {
            tracing::warn!(%error, "cannot read the commits of other processes");
        }
        changed.notify_one();
    }
}

#[async_trait(?Send)]
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
        let Reply { answer, notices, .. } = self.queue.submit(LogRequest::Open { ttl, label }).await?;
        match (answer?, notices) {
            (Answer::Opened { session }, Some(notices)) => {
                let lifeline = self.state.borrow().leases.lifeline(session);
                Ok(Opened { session, notices, lifeline })
            }
            (other, _) => unreachable!("an open is not answered with {other:?}"),
        }
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let began_at = BootInstant::now();
        let renewal = self.state.borrow_mut().renew(session)?;
        let request = match renewal {
            Renewal::Renewed => return Ok(()),
            Renewal::Unverified => LogRequest::Verify(session),
            Renewal::Expired => LogRequest::EndDue { locks: Vec::new(), sessions: vec![session] },
            Renewal::NotOwner => LogRequest::RenewDetached { session, began_at },
        };
        let Reply { answer, .. } = self.queue.submit(request).await?;
        match renewal {
            Renewal::Expired => Err(Failure::SessionEnded),
            _ => Ok(answer.map(drop)?),
        }
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        match self.apply(Command::CloseSession { session }).await? {
            Ok(_) | Err(Refusal::NoSuchSession { .. }) => Ok(()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    async fn detach_session(&self, session: SessionId) -> Result<(), Failure> {
        let detach = LogRequest::Detach { session, began_at: BootInstant::now() };
        Ok(self.queue.submit(detach).await?.answer.map(drop)?)
    }

    async fn acquire(&self, request: Acquire) -> Result<Acquired, Failure> {
        if request.patience == Patience::Wait && !self.state.borrow().leases.is_own(request.caller.session) {
            self.wake_files.subscribe(request.caller.session);
        }
        let Reply { answer, wait, .. } = self.queue.submit(LogRequest::Command(Command::Acquire(request))).await?;
        match (host::begun(answer)?, wait) {
            (Begun::Done(acquired), _) => Ok(acquired),
            (Begun::Waits(_), None) => unreachable!("the reply to a wait has its channel"),
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
        self.state.borrow_mut().catch_up()?;
        self.end_due(vec![lock.clone()]).await;
        let state = self.state.borrow();
        let machine = &state.replica.machine;
        Ok(machine.lock(&lock).map(|view| state.info(view)).or_else(|| LockInfo::idle(machine, &lock)))
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        self.state.borrow_mut().catch_up()?;
        let names = {
            let state = self.state.borrow();
            let matching = host::matching(&state.replica.machine, &prefix);
            matching.into_iter().map(|view| view.name().clone()).collect()
        };
        self.end_due(names).await;
        let state = self.state.borrow();
        Ok(host::matching(&state.replica.machine, &prefix).into_iter().map(|view| state.info(view)).collect())
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        self.wake_files.subscribe_to_all();
        let mut state = self.state.borrow_mut();
        state.catch_up()?;
        self.changed.notify_one();
        Ok(state.subscriptions.watch(prefix))
    }
}

impl State {
    /// Writes a session's next deadline, if the session is still in the log.
    fn renew(&mut self, session: SessionId) -> Result<Renewal, Failure> {
        self.catch_up()?;
        let ttl = self.replica.machine.session(session).ok_or(Failure::SessionEnded)?.ttl();
        let renewal = self.leases.renew(session, ttl);
        Ok(renewal.map_err(|error| StoreError::io("write", &self.leases.path(session), error))?)
    }
}
