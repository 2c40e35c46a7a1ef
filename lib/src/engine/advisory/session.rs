//! A session, which is a connection to PostgreSQL.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use palisade_core::{LockName, RequestNo, SessionId, Token};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::engine::Failure;
use crate::engine::postgres::connection::CALL_TIMEOUT;
use crate::engine::postgres::error::failure;
use crate::engine::remote::{ConnectError, Peer};

/// A session.
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) client: Client,
    peer: Peer,
    pub(super) has_ended: Cell<bool>,
    used: RefCell<HashMap<LockName, Use>>,
    pub(super) grants: RefCell<HashMap<Token, Grant>>,
    /// Acquires that are being sent.
    pub(super) pending: RefCell<HashSet<RequestNo>>,
    /// Notified when a pending acquire was answered, and when the session ends.
    pub(super) answered: Notify,
    last_token: Cell<u64>,
}

/// How this session uses a lock. PostgreSQL grants a connection what it holds already, so a conflict is found here.
#[derive(Clone, Copy)]
struct Use {
    is_shared: bool,
    count: u32,
}

pub(super) struct Grant {
    pub(super) lock: LockName,
    pub(super) is_shared: bool,
    pub(super) number: Option<RequestNo>,
}

impl Session {
    pub(super) fn new(id: SessionId, client: Client, peer: Peer) -> Session {
        Session {
            id,
            client,
            peer,
            has_ended: Cell::new(false),
            used: RefCell::default(),
            grants: RefCell::default(),
            pending: RefCell::default(),
            answered: Notify::new(),
            last_token: Cell::new(0),
        }
    }

    pub(super) fn end(&self) {
        self.has_ended.set(true);
        self.answered.notify_waiters();
    }

    /// Performs a call within the time-out.
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        match timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) if self.client.is_closed() => Err(Failure::SessionEnded),
            Ok(Err(error)) => Err(failure(&self.peer, error)),
            Err(_) => Err(ConnectError::no_answer(CALL_TIMEOUT).at(&self.peer).failure(true)),
        }
    }

    pub(super) async fn query(&self, sql: &str, lock: &LockName) -> Result<Vec<Row>, Failure> {
        self.call(self.client.query_typed(sql, &[(&lock.as_str(), Type::TEXT)])).await
    }

    /// Tries to acquire a lock once. The outcome is noted even if the caller is gone.
    pub(super) async fn try_acquire(
        self: &Rc<Self>,
        lock: &LockName,
        is_shared: bool,
        number: Option<RequestNo>,
    ) -> Result<Option<Token>, Failure> {
        if !self.reserve(lock, is_shared) {
            return Ok(None);
        }
        self.pending.borrow_mut().extend(number);
        let (session, lock) = (self.clone(), lock.clone());
        let attempt = spawn_local(async move {
            let sql = match is_shared {
                true => "SELECT pg_try_advisory_lock_shared(hashtextextended($1, 0))",
                false => "SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
            };
            let outcome = session.query(sql, &lock).await.map(|rows| {
                let is_granted = rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false));
                is_granted.then(|| session.grant(lock.clone(), is_shared, number))
            });
            if !matches!(outcome, Ok(Some(_))) {
                session.unreserve(&lock);
            }
            if let Some(number) = number {
                session.pending.borrow_mut().remove(&number);
            }
            session.answered.notify_waiters();
            outcome
        });
        attempt.await.unwrap_or(Err(Failure::SessionEnded))
    }

    /// Returns false if this session uses the lock in a way that excludes this one.
    fn reserve(&self, lock: &LockName, is_shared: bool) -> bool {
        let mut used = self.used.borrow_mut();
        match used.get_mut(lock) {
            None => drop(used.insert(lock.clone(), Use { is_shared, count: 1 })),
            Some(some) if some.is_shared && is_shared => some.count += 1,
            Some(_) => return false,
        }
        true
    }

    pub(super) fn unreserve(&self, lock: &LockName) {
        let mut used = self.used.borrow_mut();
        if let Some(some) = used.get_mut(lock) {
            some.count -= 1;
            if some.count == 0 {
                used.remove(lock);
            }
        }
    }

    fn grant(&self, lock: LockName, is_shared: bool, number: Option<RequestNo>) -> Token {
        self.last_token.set(self.last_token.get() + 1);
        let Ok(token) = Token::new(self.last_token.get()) else { unreachable!("no counter gets that far") };
        self.grants.borrow_mut().insert(token, Grant { lock, is_shared, number });
        token
    }
}
