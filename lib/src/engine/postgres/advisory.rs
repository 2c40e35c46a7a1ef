//! `?mode=advisory`: PostgreSQL's session advisory locks. Nothing is written and nothing is installed; a session is a
//! connection, and ends with it. There is no token, no queue, and of others only who they are is known.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{
    Acquire, Label, Limit, Limits, LockName, Mode, Patience, Refusal, RequestNo, SessionEnd, SessionId, Token, Ttl,
    Value,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::connection::{CALL_TIMEOUT, Param, dial};
use super::error::failure;
use super::{Config, pooler};
use crate::SignedToken;
use crate::engine::remote::{ConnectError, Peer};
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, HolderInfo, Level, LockInfo, Notice, Offers, Opened,
    Order, Raised, Released, SessionClock, Unavailable, WakeUp, Watched, host,
};

/// How long to wait before a lock that is not free is asked for again: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// Session advisory locks of a PostgreSQL.
pub struct Advisory {
    config: Config,
    link: RefCell<Option<Rc<Link>>>,
}

/// A session, which is a connection.
struct Link {
    client: Client,
    peer: Peer,
    session: SessionId,
    has_ended: Cell<bool>,
    used: RefCell<HashMap<LockName, Use>>,
    granted: RefCell<HashMap<Token, Granted>>,
    /// Requests that are under way.
    asked: RefCell<HashSet<RequestNo>>,
    answered: Notify,
    last_token: Cell<u64>,
}

/// How a lock is used here. PostgreSQL gives a connection what it has already, so it must not be asked.
#[derive(Clone, Copy)]
struct Use {
    is_shared: bool,
    count: u32,
}

struct Granted {
    lock: LockName,
    is_shared: bool,
    number: Option<RequestNo>,
}

impl Advisory {
    /// Connects to a PostgreSQL.
    ///
    /// # Errors
    ///
    /// It cannot be reached, does not let this client in, or there is a pooler in between that gives each transaction
    /// another connection: locks would be left behind in connections of others.
    pub async fn connect(config: Config) -> Result<Advisory, Failure> {
        let advisory = Advisory { config, link: RefCell::new(None) };
        drop(advisory.dial(None).await?);
        Ok(advisory)
    }

    /// A connection, if it is a session of the server's for itself.
    async fn dial(
        &self,
        ttl: Option<(Ttl, &Label)>,
    ) -> Result<(Client, futures_util::future::LocalBoxFuture<'static, ConnectError>), Failure> {
        let peer = self.config.peer();
        let dialling = async {
            let dialed = dial(&self.config, |_| ()).await?;
            let mut driver = dialed.driver;
            let settle = async {
                if pooler::is_between(&dialed.client, dialed.local, &self.config).await? {
                    return Err(ConnectError::permanent(
                        "mode=advisory cannot be used through a pooler in transaction mode: locks would stay behind in \
                         connections of others. Connect to PostgreSQL itself, or leave mode=advisory out"
                            .to_owned(),
                    ));
                }
                if let Some((ttl, label)) = ttl {
                    prepare(&dialed.client, ttl, label).await?;
                }
                Ok(())
            };
            tokio::select! {
                settled = settle => settled?,
                error = &mut driver => return Err(error),
            }
            Ok((dialed.client, driver))
        };
        match timeout(CALL_TIMEOUT, dialling).await {
            Ok(dialed) => dialed.map_err(|error: ConnectError| error.at(&peer).failure(false)),
            Err(_) => Err(ConnectError::no_answer(CALL_TIMEOUT).at(&peer).failure(false)),
        }
    }

    fn link(&self, session: SessionId) -> Result<Rc<Link>, Failure> {
        let link = self.link.borrow().clone().filter(|link| link.session == session && !link.has_ended.get());
        link.ok_or(Failure::SessionEnded)
    }
}

/// The server ends a session that is not heard of for its TTL. Before version 14 it cannot, and only notices that the
/// connection is dead.
async fn prepare(client: &Client, ttl: Ttl, label: &Label) -> Result<(), ConnectError> {
    // What PostgreSQL makes of other characters differs from version to version.
    let name: String =
        label.as_str().chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).take(63).collect();
    let ms = i64::try_from(ttl.as_ms()).unwrap_or(i64::MAX).min(i64::from(i32::MAX)).to_string();
    let sql = "SELECT set_config('application_name', $1, false), CASE WHEN \
         current_setting('idle_session_timeout', true) IS NOT NULL THEN set_config('idle_session_timeout', $2, false) END";
    client.query_typed(sql, &[(&name, Type::TEXT), (&ms, Type::TEXT)]).await?;
    Ok(())
}

impl Link {
    async fn ask(&self, sql: &str, lock: &LockName) -> Result<Vec<Row>, Failure> {
        let lock = lock.as_str();
        match timeout(CALL_TIMEOUT, self.client.query_typed(sql, &[(&lock, Type::TEXT)])).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(_)) if self.has_ended.get() || self.client.is_closed() => Err(Failure::SessionEnded),
            Ok(Err(error)) => Err(failure(&self.peer, error)),
            Err(_) => Err(ConnectError::no_answer(CALL_TIMEOUT).at(&self.peer).failure(true)),
        }
    }

    /// Whether the lock can be asked for; then it counts as used here.
    fn reserve(&self, lock: &LockName, is_shared: bool) -> bool {
        let mut used = self.used.borrow_mut();
        match used.get_mut(lock) {
            None => drop(used.insert(lock.clone(), Use { is_shared, count: 1 })),
            Some(some) if some.is_shared && is_shared => some.count += 1,
            Some(_) => return false,
        }
        true
    }

    fn unreserve(&self, lock: &LockName) {
        let mut used = self.used.borrow_mut();
        if let Some(some) = used.get_mut(lock) {
            some.count -= 1;
            if some.count == 0 {
                used.remove(lock);
            }
        }
    }

    /// Asks once. The outcome is noted even if the caller is gone.
    async fn attempt(
        self: &Rc<Self>,
        lock: &LockName,
        is_shared: bool,
        number: Option<RequestNo>,
    ) -> Result<Option<Token>, Failure> {
        if !self.reserve(lock, is_shared) {
            return Ok(None);
        }
        if let Some(number) = number {
            self.asked.borrow_mut().insert(number);
        }
        let (link, lock) = (self.clone(), lock.clone());
        let attempt = spawn_local(async move {
            let sql = match is_shared {
                true => "SELECT pg_try_advisory_lock_shared(hashtextextended($1, 0))",
                false => "SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
            };
            let answer = link.ask(sql, &lock).await;
            let outcome = match answer {
                Ok(rows) if rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) => {
                    Ok(Some(link.grant(lock, is_shared, number)))
                }
                Ok(_) => {
                    link.unreserve(&lock);
                    Ok(None)
                }
                Err(failure) => {
                    link.unreserve(&lock);
                    Err(failure)
                }
            };
            if let Some(number) = number {
                link.asked.borrow_mut().remove(&number);
            }
            link.answered.notify_waiters();
            outcome
        });
        attempt.await.unwrap_or(Err(Failure::SessionEnded))
    }

    fn grant(&self, lock: LockName, is_shared: bool, number: Option<RequestNo>) -> Token {
        self.last_token.set(self.last_token.get() + 1);
        let Ok(token) = Token::new(self.last_token.get()) else { unreachable!("nobody counts so far") };
        self.granted.borrow_mut().insert(token, Granted { lock, is_shared, number });
        token
    }

    fn end(&self) {
        self.has_ended.set(true);
        self.answered.notify_waiters();
    }
}

fn check(limit: Limit, value: u64, is_least: bool) -> Result<(), Refusal> {
    let bound = Limits::default().of(limit);
    match is_least {
        true if value < bound => Err(Refusal::UnderLimit { limit, min: bound, value }),
        false if value > bound => Err(Refusal::OverLimit { limit, max: bound, value }),
        _ => Ok(()),
    }
}

fn not_offered() -> Failure {
    Unavailable::new("session advisory locks have no such thing").without_effect().permanent().into()
}

impl Engine for Advisory {
    fn guarantees(&self) -> Guarantees {
        let none = Offers {
            shared: true,
            permits: false,
            several: false,
            values: false,
            delay: false,
            force_release: false,
            list: false,
            watch: false,
            detach: false,
            signed: false,
        };
        Guarantees {
            engine: "postgres-advisory",
            level: Level::Advisory,
            order: Order::Race,
            session_clock: SessionClock::Engine,
            wake_up: WakeUp::Polled,
            offers: none,
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        check(Limit::TtlMinMs, ttl.as_ms(), true)?;
        check(Limit::TtlMaxMs, ttl.as_ms(), false)?;
        check(Limit::LabelBytes, label.as_str().len() as u64, false)?;
        let (client, driver) = self.dial(Some((ttl, &label))).await?;
        let Ok(session) = SessionId::new(RandomState::new().hash_one(0) >> 11 | 1) else { unreachable!("not zero") };
        let link = Rc::new(Link {
            client,
            peer: self.config.peer(),
            session,
            has_ended: Cell::new(false),
            used: RefCell::default(),
            granted: RefCell::default(),
            asked: RefCell::default(),
            answered: Notify::new(),
            last_token: Cell::new(0),
        });
        let (sender, notices) = mpsc::unbounded_channel();
        *self.link.borrow_mut() = Some(link.clone());
        let watched = Rc::downgrade(&link);
        spawn_local(async move {
            let error = driver.await;
            tracing::debug!(%error, "a session's connection is over");
            if let Some(link) = watched.upgrade() {
                link.end();
            }
            // Whatever it held is free: the connection was the session.
            drop(sender.send(Notice::SessionEnded(SessionEnd::Expired)));
        });
        Ok(Opened { session, notices, lifeline: None })
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let link = self.link(session)?;
        match timeout(CALL_TIMEOUT, link.client.query_typed("SELECT 1", &[])).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) if link.client.is_closed() => Err(Failure::SessionEnded),
            Ok(Err(error)) => Err(failure(&link.peer, error)),
            Err(_) => Err(ConnectError::no_answer(CALL_TIMEOUT).at(&link.peer).failure(true)),
        }
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        let Ok(link) = self.link(session) else { return Ok(()) };
        link.end();
        drop(self.link.borrow_mut().take());
        // Unlocked first, as the server notices the end of a connection a moment later.
        let unlocked = timeout(CALL_TIMEOUT, link.client.batch_execute("SELECT pg_advisory_unlock_all()")).await;
        match unlocked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if link.client.is_closed() => {
                tracing::debug!(%error, "the connection is over, and with it its locks");
                Ok(())
            }
            Ok(Err(error)) => Err(failure(&link.peer, error)),
            Err(_) => Err(ConnectError::no_answer(CALL_TIMEOUT).at(&link.peer).failure(true)),
        }
    }

    async fn detach_session(&self, _: SessionId) -> Result<(), Failure> {
        Err(not_offered())
    }

    async fn acquire(&self, ask: Acquire) -> Result<Acquired, Failure> {
        let link = self.link(ask.caller.session)?;
        let want = match &ask.wants[..] {
            [] => return Err(Refusal::NoLocks.into()),
            [want] => want,
            _ => return Err(not_offered()),
        };
        check(Limit::NameBytes, want.lock.as_str().len() as u64, false)?;
        let is_shared = match want.mode {
            Mode::Exclusive => false,
            Mode::Shared => true,
            Mode::Permits { .. } => return Err(not_offered()),
        };
        let number = ask.caller.number;
        let mut pause = FIRST_PAUSE;
        loop {
            if link.has_ended.get() {
                return Err(Failure::SessionEnded);
            }
            match link.attempt(&want.lock, is_shared, number).await? {
                Some(token) => return Ok(Acquired::Granted { token }),
                None if ask.patience == Patience::Try => return Ok(Acquired::Busy),
                None => sleep(pause / 2 + pause * (RandomState::new().hash_one(0) % 64) as u32 / 128).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        let Ok(link) = self.link(session) else { return Ok(Cancelled::Gone) };
        loop {
            let answered = link.answered.notified();
            if link.has_ended.get() {
                return Ok(Cancelled::Gone);
            }
            let granted =
                link.granted.borrow().iter().find(|(_, grant)| grant.number == Some(number)).map(|(token, _)| *token);
            if let Some(token) = granted {
                return Ok(Cancelled::WasGranted { token });
            }
            if !link.asked.borrow().contains(&number) {
                return Ok(Cancelled::Gone);
            }
            answered.await;
        }
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        let Ok(link) = self.link(session) else { return Ok(Released::Before) };
        let Some(Granted { is_shared, .. }) =
            link.granted.borrow_mut().remove(&token).filter(|grant| grant.lock == lock)
        else {
            return Ok(Released::Before);
        };
        let sql = match is_shared {
            true => "SELECT pg_advisory_unlock_shared(hashtextextended($1, 0))",
            false => "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
        };
        match link.ask(sql, &lock).await {
            Ok(_) => {
                link.unreserve(&lock);
                Ok(Released::Now)
            }
            Err(Failure::SessionEnded) => Ok(Released::Before),
            Err(failure) => {
                link.granted.borrow_mut().insert(token, Granted { lock, is_shared, number: None });
                Err(failure)
            }
        }
    }

    async fn publish(&self, _: SessionId, _: LockName, _: Token, _: Value) -> Result<(), Failure> {
        Err(not_offered())
    }

    async fn sign(&self, _: SessionId, _: LockName, _: Token) -> Result<SignedToken, Failure> {
        Err(host::not_signing())
    }

    async fn force_release(&self, _: LockName, _: Option<Token>, _: Label, _: Label) -> Result<Forced, Failure> {
        Err(not_offered())
    }

    async fn resize(&self, _: LockName, _: u32) -> Result<(), Failure> {
        Err(not_offered())
    }

    async fn raise_tokens(&self, _: Token) -> Result<Raised, Failure> {
        Err(not_offered())
    }

    /// The holders as PostgreSQL shows them: the number of the holder's server process stands for the token.
    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let sql = "SELECT l.pid, l.mode = 'ShareLock', a.application_name FROM pg_locks l \
             LEFT JOIN pg_stat_activity a ON a.pid = l.pid, hashtextextended($1, 0) k \
             WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND l.classid = ((k >> 32) & 4294967295)::oid AND l.objid = (k & 4294967295)::oid ORDER BY l.pid";
        let link = self.link.borrow().clone().filter(|link| !link.has_ended.get());
        let rows = match link {
            Some(link) => link.ask(sql, &lock).await?,
            None => {
                let (client, driver) = self.dial(None).await?;
                let peer = self.config.peer();
                let name = lock.as_str();
                let given: [Param<'_>; 1] = [(&name, Type::TEXT)];
                tokio::select! {
                    rows = client.query_typed(sql, &given) => rows.map_err(|error| failure(&peer, error))?,
                    error = driver => return Err(error.at(&peer).failure(false)),
                }
            }
        };
        let holders: Vec<_> = rows.iter().filter_map(holder).collect();
        let (limit, waiters, value, history) = (None, Vec::new(), None, Vec::new());
        Ok((!holders.is_empty()).then_some(LockInfo { name: lock, limit, holders, waiters, value, history }))
    }

    /// PostgreSQL does not know the names of advisory locks.
    async fn list(&self, _: String) -> Result<Vec<LockInfo>, Failure> {
        Err(not_offered())
    }

    async fn watch(&self, _: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        Err(not_offered())
    }
}

fn holder(row: &Row) -> Option<HolderInfo> {
    let pid = u64::try_from(row.try_get::<_, i32>(0).ok()?).ok()?;
    Some(HolderInfo {
        token: Token::new(pid).ok()?,
        mode: if row.try_get(1).ok()? { Mode::Shared } else { Mode::Exclusive },
        session: Some(SessionId::new(pid).ok()?),
        label: row.try_get(2).ok()?,
        held_for_ms: None,
        time_left_ms: None,
    })
}
