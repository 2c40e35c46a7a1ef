//! The connections of a client, and the calls on them. A connection of MySQL runs one call at a time, so a client opens further
//! ones while calls queue up. They are replaced together: when one breaks, or a call is not answered in time.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Row, Value};
use palisade_core::{Acquire, LockName, Token};
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::error;
use super::fast_path::{FastCall, FastPath};
use super::wire::{acquire_call, id, literal, number, text};
use crate::engine::Failure;
use crate::engine::remote::{AcquireReply, ConnectError, GivenUp, Held, Peer, RemoteConnection, jittered};
use crate::engine::sql_text::{not_granted, refusal};

/// A call that takes longer fails, and breaks the connection. It is above the time for which the server waits for a row lock.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Settings of a connection: short waits for row locks, and a day before the server closes an idle connection.
const SETTINGS: &str = "SET SESSION innodb_lock_wait_timeout = 2, wait_timeout = 86400, autocommit = 1, \
     sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";
/// The fast path depends on this level. The procedures set their own.
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE";
/// How long connections beyond the first may be idle.
const IDLE: Duration = Duration::from_secs(30);
/// How often a statement is sent if it fails because of deadlocks and row lock time-outs.
const ATTEMPTS: u32 = 8;

/// The connections of a client. One worker task drives each.
pub struct Connection {
    opts: Opts,
    pub(super) peer: Peer,
    /// MySQL refuses requests of connections with a lower epoch once a session was attached.
    epoch: i32,
    jobs: RefCell<VecDeque<Job>>,
    /// The first locks of the acquires that are running. Acquires of one lock run one after the other, so that they stay in order.
    acquiring: RefCell<HashSet<LockName>>,
    job_ready: Notify,
    workers: Cell<usize>,
    idle: Cell<usize>,
    max_workers: Cell<usize>,
    fast_path: FastPath,
    pub(super) given_up: GivenUp,
}

struct Job {
    sql: String,
    fast_call: Option<FastCall>,
    /// The first lock of an acquire.
    lock: Option<LockName>,
    reply: oneshot::Sender<Result<Reply, Failure>>,
}

enum Reply {
    Rows(Vec<Row>),
    /// The fast path performed the call, with this token.
    Fast(Token),
}

/// Connects and sets up the connection.
pub(super) async fn dial(opts: &Opts) -> Result<Conn, Error> {
    let mut conn = Conn::new(opts.clone()).await?;
    conn.query_drop(SETTINGS).await?;
    conn.query_drop(ISOLATION).await?;
    Ok(conn)
}

// Workers.
impl Connection {
    pub(super) fn new(first: Conn, opts: Opts, max_workers: usize, peer: Peer, epoch: i32) -> Rc<Connection> {
        let connection = Rc::new(Connection {
            opts,
            peer,
            epoch,
            jobs: RefCell::default(),
            acquiring: RefCell::default(),
            job_ready: Notify::new(),
            workers: Cell::new(1),
            idle: Cell::new(0),
            max_workers: Cell::new(max_workers),
            fast_path: FastPath::default(),
            given_up: GivenUp::default(),
        });
        spawn_local(connection.clone().work(Some(first)));
        connection
    }

    /// Ends the workers, and fails the calls that were not sent. Only the first error counts.
    pub(super) fn end(&self, error: ConnectError) {
        let error = self.given_up.note(error.at(&self.peer));
        for job in self.jobs.take() {
            drop(job.reply.send(Err(error.failure(false))));
        }
        self.job_ready.notify_waiters();
    }

    /// Performs calls until the connection ends. Workers beyond the first also end when they are idle for long.
    async fn work(self: Rc<Self>, first: Option<Conn>) {
        let is_first = first.is_some();
        let conn = match first {
            Some(conn) => Some(conn),
            None => timeout(CALL_TIMEOUT, dial(&self.opts)).await.ok().and_then(Result::ok),
        };
        let Some(mut conn) = conn else {
            // The server may accept no more connections. Use those that are open.
            self.workers.set(self.workers.get() - 1);
            self.max_workers.set(self.workers.get().max(1));
            return;
        };
        loop {
            let job_ready = self.job_ready.notified();
            if self.is_broken() {
                return;
            }
            if let Some(job) = self.next_job() {
                self.perform(&mut conn, job).await;
                continue;
            }
            self.idle.set(self.idle.get() + 1);
            let is_needed = timeout(IDLE, job_ready).await.is_ok() || is_first;
            self.idle.set(self.idle.get() - 1);
            if !is_needed {
                self.workers.set(self.workers.get() - 1);
                drop(conn.disconnect().await);
                return;
            }
        }
    }

    fn next_job(&self) -> Option<Job> {
        let (mut jobs, mut acquiring) = (self.jobs.borrow_mut(), self.acquiring.borrow_mut());
        // An acquire whose caller is gone need not be sent.
        jobs.retain(|job| job.lock.is_none() || !job.reply.is_closed());
        let at = jobs.iter().position(|job| job.lock.as_ref().is_none_or(|lock| !acquiring.contains(lock)))?;
        let job = jobs.remove(at)?;
        acquiring.extend(job.lock.clone());
        Some(job)
    }

    async fn perform(&self, conn: &mut Conn, job: Job) {
        let reply = match self.try_fast_path(conn, job.fast_call).await {
            Ok(Some(token)) => Ok(Reply::Fast(token)),
            Ok(None) => self.query(conn, &job.sql, &[]).await.map(Reply::Rows),
            Err(failure) => Err(failure),
        };
        if let Some(lock) = &job.lock {
            self.acquiring.borrow_mut().remove(lock);
            // Another worker may have skipped the next acquire of this lock.
            self.job_ready.notify_one();
        }
        drop(job.reply.send(reply));
    }

    /// Returns the token if the fast path performed the call.
    async fn try_fast_path(&self, conn: &mut Conn, call: Option<FastCall>) -> Result<Option<Token>, Failure> {
        let Some(call) = call.filter(|call| self.fast_path.is_worth_trying(call)) else { return Ok(None) };
        match self.query(conn, call.sql, &call.params).await {
            Ok(_) if conn.affected_rows() == 1 => {
                let token = call.token.or_else(|| Token::new(conn.last_insert_id()?).ok());
                token.map(Some).ok_or_else(|| self.peer.unexpected("a grant without a token"))
            }
            Err(Failure::Denied(_)) => {
                self.fast_path.note_denied();
                Ok(None)
            }
            done => {
                self.fast_path.note_contended(&call.lock);
                done.map(|_| None)
            }
        }
    }

    /// Sends a statement, again after a deadlock or a row lock time-out. A statement with parameters is prepared.
    async fn query(&self, conn: &mut Conn, sql: &str, params: &[Value]) -> Result<Vec<Row>, Failure> {
        let mut attempt = 1;
        loop {
            let query = async {
                match params {
                    [] => conn.query(sql).await,
                    params => conn.exec(sql, params.to_vec()).await,
                }
            };
            match timeout(CALL_TIMEOUT, query).await {
                Ok(Ok(_)) if has_open_transaction(conn) => {
                    // The call is not committed, whatever its reply says. Dropping the connection rolls it back.
                    let error = ConnectError::transient("a call left its transaction open");
                    self.end(error.clone());
                    return Err(error.at(&self.peer).failure(true));
                }
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) if error::is_contention(&error) && attempt < ATTEMPTS => {
                    sleep(jittered(Duration::from_millis(2) * attempt)).await;
                    attempt += 1;
                }
                Ok(Err(error)) => {
                    if error.is_fatal() || conn.is_disconnected() || error::leaves_transaction(&error) {
                        self.end(ConnectError::transient(error::message(&error)));
                    }
                    return Err(error::failure(&self.peer, error));
                }
                Err(_) => return Err(self.no_answer(CALL_TIMEOUT)),
            }
        }
    }

    /// Breaks the connection because a call was not answered in time.
    fn no_answer(&self, waited: Duration) -> Failure {
        let error = ConnectError::no_answer(waited);
        self.end(error.clone());
        error.at(&self.peer).failure(true)
    }
}

/// Whether the server reports an open transaction with its last reply.
fn has_open_transaction(conn: &Conn) -> bool {
    conn.last_ok_packet().is_some_and(|ok| ok.status_flags().contains(StatusFlags::SERVER_STATUS_IN_TRANS))
}

// Calls.
impl Connection {
    /// Performs a call. Acquires of the same lock are sent in the order of these calls.
    async fn call(
        self: &Rc<Self>,
        sql: String,
        fast_call: Option<FastCall>,
        lock: Option<LockName>,
    ) -> Result<Reply, Failure> {
        if let Some(error) = self.given_up.error() {
            return Err(error.failure(false));
        }
        let (sender, reply) = oneshot::channel();
        self.jobs.borrow_mut().push_back(Job { sql, fast_call, lock, reply: sender });
        if self.jobs.borrow().len() > self.idle.get() && self.workers.get() < self.max_workers.get() {
            self.workers.set(self.workers.get() + 1);
            spawn_local(self.clone().work(None));
        }
        self.job_ready.notify_one();
        reply.await.unwrap_or_else(|_| Err(self.no_answer(CALL_TIMEOUT)))
    }

    pub(super) async fn rows(self: &Rc<Self>, sql: String) -> Result<Vec<Row>, Failure> {
        match self.call(sql, None, None).await? {
            Reply::Rows(rows) => Ok(rows),
            Reply::Fast(_) => unreachable!("the call has no fast path"),
        }
    }

    pub(super) async fn row(self: &Rc<Self>, sql: String) -> Result<Row, Failure> {
        self.first(self.rows(sql).await?)
    }

    /// The same, with another time-out.
    pub(super) async fn row_within(self: &Rc<Self>, longest: Duration, sql: String) -> Result<Row, Failure> {
        timeout(longest, self.row(sql)).await.unwrap_or_else(|_| Err(self.no_answer(longest)))
    }

    fn first(&self, rows: Vec<Row>) -> Result<Row, Failure> {
        rows.into_iter().next().ok_or_else(|| self.peer.unexpected("a reply without a row"))
    }

    /// Performs a call that returns one row. Fails if the row has a refusal in this column.
    pub(super) async fn unless_refused(self: &Rc<Self>, sql: String, at: usize) -> Result<Row, Failure> {
        let row = self.row(sql).await?;
        match text(&row, at) {
            None => Ok(row),
            detail => Err(refusal(&self.peer, detail.as_deref())),
        }
    }

    pub(super) fn token(&self, row: &Row, at: usize) -> Result<Token, Failure> {
        id(row, at).ok_or_else(|| self.peer.unexpected("a token out of range"))
    }

    /// Acquires locks. Returns also how many acquires are ahead of a queued one.
    pub(super) async fn acquire(self: &Rc<Self>, acquire: &Acquire) -> Result<(AcquireReply, u64), Failure> {
        // The procedure refuses an acquire without locks.
        let lock = acquire.wants.first().map(|want| &want.lock);
        let mut fast_call = FastCall::acquire(acquire, self.epoch);
        let has_fast_path = fast_call.is_some();
        let sql = acquire_call(acquire, self.epoch);
        loop {
            let row = match self.call(sql.clone(), fast_call.take(), lock.cloned()).await? {
                Reply::Rows(rows) => self.first(rows)?,
                Reply::Fast(token) => return Ok((AcquireReply::Granted(token), 0)),
            };
            return match text(&row, 0).as_deref() {
                // One transaction ends a bounded number of expired sessions, and there are more.
                Some("again") => continue,
                Some("granted") => {
                    let token = self.token(&row, 1)?;
                    if has_fast_path && let Some(lock) = lock {
                        self.fast_path.note_uncontended(lock);
                    }
                    Ok((AcquireReply::Granted(token), 0))
                }
                Some("queued") => Ok((AcquireReply::Queued, number(&row, 2).unwrap_or(0))),
                Some("refused") => Err(refusal(&self.peer, text(&row, 2).as_deref())),
                reply => not_granted(&self.peer, reply).map(|reply| (reply, 0)),
            };
        }
    }

    /// Releases a grant. Returns the events of the call.
    pub(super) async fn release(self: &Rc<Self>, held: &Held) -> Result<Option<String>, Failure> {
        let Held { session, lock, token } = held;
        let sql = format!("CALL palisade_give_back({session}, {}, {token})", literal(lock.as_str()));
        match self.call(sql, Some(FastCall::release(held)), None).await? {
            Reply::Fast(_) => Ok(None),
            Reply::Rows(rows) => {
                let row = self.first(rows)?;
                match text(&row, 1) {
                    None => Ok(text(&row, 2)),
                    detail => Err(refusal(&self.peer, detail.as_deref())),
                }
            }
        }
    }
}

impl RemoteConnection for Connection {
    fn is_broken(&self) -> bool {
        self.given_up.is_noted()
    }
}
