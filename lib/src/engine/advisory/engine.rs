//! The engine: one session at a time, and no locks but those that PostgreSQL grants at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use palisade_core::{
    Acquire, Label, Limit, LockName, Mode, Patience, Refusal, RequestNo, SessionEnd, SessionId, Token, Ttl, Value,
};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::sleep;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::session::{Grant, Session};
use crate::SignedToken;
use crate::engine::postgres::connection::{CALL_TIMEOUT, Param, dial};
use crate::engine::postgres::error::failure;
use crate::engine::postgres::{Config, pooler};
use crate::engine::remote::{ConnectError, check_least, check_most, jittered, within};
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, HolderInfo, Level, LockInfo, Notice, Offers, Opened,
    Order, Raised, Released, SessionClock, Unavailable, WakeUp, Watched, host,
};

/// The pause before a lock is requested again: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(80);

/// Session advisory locks of a PostgreSQL.
pub struct Advisory {
    config: Config,
    session: RefCell<Option<Rc<Session>>>,
}

impl Advisory {
    /// Connects to a PostgreSQL.
    ///
    /// # Errors
    ///
    /// It cannot be reached, refuses this client, or is behind a pooler that gives each transaction another connection:
    /// locks would stay behind in connections that other clients use next.
    pub async fn connect(config: Config) -> Result<Advisory, Failure> {
        let advisory = Advisory { config, session: RefCell::new(None) };
        drop(advisory.dial(None).await?);
        Ok(advisory)
    }

    /// Opens a connection that no pooler shares.
    async fn dial(
        &self,
        session: Option<(Ttl, &Label)>,
    ) -> Result<(Client, LocalBoxFuture<'static, ConnectError>), Failure> {
        let dialing = async {
            let dialed = dial(&self.config, |_| ()).await?;
            let mut driver = dialed.driver;
            let prepare = async {
                if pooler::is_between(&dialed.client, dialed.local, &self.config).await? {
                    return Err(ConnectError::permanent(
                        "mode=advisory cannot be used through a pooler in transaction mode: locks would stay behind in \
                         connections that other clients use next. Connect to PostgreSQL directly, or leave mode=advisory \
                         out",
                    ));
                }
                match session {
                    Some((ttl, label)) => prepare(&dialed.client, ttl, label).await,
                    None => Ok(()),
                }
            };
            tokio::select! {
                prepared = prepare => prepared?,
                error = &mut driver => return Err(error),
            }
            Ok((dialed.client, driver))
        };
        within(CALL_TIMEOUT, dialing).await.map_err(|error| error.at(&self.config.peer()).failure(false))
    }

    fn session(&self, id: SessionId) -> Result<Rc<Session>, Failure> {
        let session = self.session.borrow().clone();
        session.filter(|session| session.id == id && !session.has_ended.get()).ok_or(Failure::SessionEnded)
    }
}

/// Makes the server end a session that is silent for its TTL. Before version 14 the server only notices a dead connection.
async fn prepare(client: &Client, ttl: Ttl, label: &Label) -> Result<(), ConnectError> {
    // Versions of PostgreSQL treat other characters differently.
    let name: String =
        label.as_str().chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).take(63).collect();
    let ms = i64::try_from(ttl.as_ms()).unwrap_or(i64::MAX).min(i64::from(i32::MAX)).to_string();
    let sql = "SELECT set_config('application_name', $1, false), CASE WHEN \
         current_setting('idle_session_timeout', true) IS NOT NULL THEN set_config('idle_session_timeout', $2, false) END";
    client.query_typed(sql, &[(&name, Type::TEXT), (&ms, Type::TEXT)]).await?;
    Ok(())
}

fn not_offered() -> Failure {
    Unavailable::new("session advisory locks have no such thing").without_effect().permanent().into()
}

#[async_trait(?Send)]
impl Engine for Advisory {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "postgres-advisory",
            level: Level::Advisory,
            order: Order::Race,
            session_clock: SessionClock::Engine,
            wake_up: WakeUp::Polled,
            offers: Offers { shared: true, ..Offers::NONE },
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        check_least(Limit::TtlMinMs, ttl.as_ms())?;
        check_most(Limit::TtlMaxMs, ttl.as_ms())?;
        check_most(Limit::LabelBytes, label.as_str().len() as u64)?;
        let (client, driver) = self.dial(Some((ttl, &label))).await?;
        let id = host::random_session();
        let session = Rc::new(Session::new(id, client, self.config.peer()));
        let (sender, notices) = mpsc::unbounded_channel();
        let driven = Rc::downgrade(&session);
        *self.session.borrow_mut() = Some(session);
        spawn_local(async move {
            let error = driver.await;
            tracing::debug!(%error, "the connection of a session broke");
            if let Some(session) = driven.upgrade() {
                session.end();
            }
            // The session's locks are free: the connection was the session.
            drop(sender.send(Notice::SessionEnded(SessionEnd::Expired)));
        });
        Ok(Opened { session: id, notices, lifeline: None })
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let session = self.session(session)?;
        session.call(session.client.query_typed("SELECT 1", &[])).await.map(drop)
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        let Ok(session) = self.session(session) else { return Ok(()) };
        session.end();
        drop(self.session.borrow_mut().take());
        // The server notices the end of the connection only a moment later.
        match session.call(session.client.batch_execute("SELECT pg_advisory_unlock_all()")).await {
            Err(Failure::SessionEnded) => Ok(()),
            unlocked => unlocked,
        }
    }

    async fn detach_session(&self, _: SessionId) -> Result<(), Failure> {
        Err(not_offered())
    }

    async fn acquire(&self, ask: Acquire) -> Result<Acquired, Failure> {
        let session = self.session(ask.caller.session)?;
        let want = match &ask.wants[..] {
            [] => return Err(Refusal::NoLocks.into()),
            [want] => want,
            _ => return Err(not_offered()),
        };
        check_most(Limit::NameBytes, want.lock.as_str().len() as u64)?;
        let is_shared = match want.mode {
            Mode::Exclusive => false,
            Mode::Shared => true,
            Mode::Permits { .. } => return Err(not_offered()),
        };
        let number = ask.caller.number;
        let mut pause = FIRST_PAUSE;
        loop {
            if session.has_ended.get() {
                return Err(Failure::SessionEnded);
            }
            match session.try_acquire(&want.lock, is_shared, number).await? {
                Some(token) => return Ok(Acquired::Granted { token }),
                None if ask.patience == Patience::Try => return Ok(Acquired::Busy),
                None => sleep(jittered(pause)).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        let Ok(session) = self.session(session) else { return Ok(Cancelled::Gone) };
        loop {
            let answered = session.answered.notified();
            if session.has_ended.get() {
                return Ok(Cancelled::Gone);
            }
            let granted = session
                .grants
                .borrow()
                .iter()
                .find(|(_, grant)| grant.number == Some(number))
                .map(|(token, _)| *token);
            if let Some(token) = granted {
                return Ok(Cancelled::WasGranted { token });
            }
            if !session.pending.borrow().contains(&number) {
                return Ok(Cancelled::Gone);
            }
            answered.await;
        }
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        let Ok(session) = self.session(session) else { return Ok(Released::Before) };
        let Some(Grant { is_shared, .. }) =
            session.grants.borrow_mut().remove(&token).filter(|grant| grant.lock == lock)
        else {
            return Ok(Released::Before);
        };
        let sql = match is_shared {
            true => "SELECT pg_advisory_unlock_shared(hashtextextended($1, 0))",
            false => "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
        };
        match session.query(sql, &lock).await {
            Ok(_) => {
                session.unreserve(&lock);
                Ok(Released::Now)
            }
            Err(Failure::SessionEnded) => Ok(Released::Before),
            Err(failure) => {
                session.grants.borrow_mut().insert(token, Grant { lock, is_shared, number: None });
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
        let session = self.session.borrow().clone().filter(|session| !session.has_ended.get());
        let rows = match session {
            Some(session) => session.query(sql, &lock).await?,
            None => {
                let (client, driver) = self.dial(None).await?;
                let peer = self.config.peer();
                let params: [Param<'_>; 1] = [(&lock.as_str(), Type::TEXT)];
                tokio::select! {
                    rows = client.query_typed(sql, &params) => rows.map_err(|error| failure(&peer, error))?,
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
