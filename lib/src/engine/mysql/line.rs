//! Connections to the server, and the calls that are made on them. A connection does one thing at a time, so there are
//! a few, made when they are needed; all of them are given up together.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Row, Value};
use palisade_core::{Acquire, LockName, Refusal, SessionId, Token};
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::error::{self, Trouble};
use super::quick::{Quick, Usual};
use super::sql::{name, number, request, text};
use crate::engine::lines::jittered;
use crate::engine::{Failure, Unavailable};

/// A call that is not answered for so long fails, and its line with it. The server gives up waiting for a row sooner.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// What the server is told about a connection: nothing waits for long there, and it may be idle for a day.
const SETTINGS: &str = "SET SESSION innodb_lock_wait_timeout = 2, wait_timeout = 86400, autocommit = 1, \
     sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";
/// What the usual way depends on; the procedures say it for themselves.
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE";
/// How long connections beyond the first may be idle.
const IDLE: Duration = Duration::from_secs(30);
/// How often the same is asked when somebody was in the way.
const ATTEMPTS: u32 = 8;
/// The connections of a client, until one of them breaks.
pub(super) struct Line {
    opts: Opts,
    address: String,
    /// Requests of older ones are refused once a session was attached.
    pub(super) epoch: i32,
    jobs: RefCell<VecDeque<Job>>,
    /// Locks whose requests are under way: those for one lock go one after the other, so that they stay in order.
    under_way: RefCell<HashSet<LockName>>,
    came: Notify,
    workers: Cell<usize>,
    idle: Cell<usize>,
    most: Cell<usize>,
    quick: Quick,
    why: RefCell<Option<Trouble>>,
    ended: Notify,
}

struct Job {
    sql: String,
    /// What it is, if one statement may do.
    usual: Option<Usual>,
    /// The first lock of a request for locks.
    lock: Option<LockName>,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

enum Answer {
    Rows(Vec<Row>),
    /// It was done by one statement; what was taken has this token.
    Done(u64),
}

/// How a request stands.
pub(super) enum Said {
    Granted(Token),
    /// With so many before it, as far as that is said.
    Queued(u64),
    Busy,
}

/// Connects, and says what has to be said first.
pub(super) async fn dial(opts: &Opts) -> Result<Conn, Error> {
    let mut conn = Conn::new(opts.clone()).await?;
    conn.query_drop(SETTINGS).await?;
    conn.query_drop(ISOLATION).await?;
    Ok(conn)
}

impl Line {
    /// A line that begins with this connection.
    pub(super) fn new(first: Conn, opts: Opts, most: usize, address: String, epoch: i32) -> Rc<Line> {
        let line = Rc::new(Line {
            opts,
            address,
            epoch,
            jobs: RefCell::default(),
            under_way: RefCell::default(),
            came: Notify::new(),
            workers: Cell::new(1),
            idle: Cell::new(0),
            most: Cell::new(most),
            quick: Quick::new(),
            why: RefCell::new(None),
            ended: Notify::new(),
        });
        spawn_local(line.clone().work(Some(first)));
        line
    }

    /// Waits until it is broken.
    pub(super) async fn ended(&self) -> Trouble {
        loop {
            let ended = self.ended.notified();
            if let Some(why) = self.why.borrow().clone() {
                return why;
            }
            ended.await;
        }
    }

    /// Nothing is sent any more. What was not sent has certainly not happened.
    pub(super) fn end(&self, why: Trouble) {
        let why = self.why.borrow_mut().get_or_insert(why).clone();
        for job in self.jobs.take() {
            drop(job.answer.send(Err(why.failure(&self.address, false))));
        }
        self.ended.notify_waiters();
        self.came.notify_waiters();
    }

    /// One connection's work: takes what there is to do until the line ends, or there is too little to do.
    fn work(self: Rc<Self>, first: Option<Conn>) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            let is_first = first.is_some();
            let conn = match first {
                Some(conn) => Ok(conn),
                None => timeout(CALL, dial(&self.opts)).await.unwrap_or_else(|_| Err(silence().into())),
            };
            let Ok(mut conn) = conn else {
                // The others have to do.
                self.workers.set(self.workers.get() - 1);
                self.most.set(self.workers.get().max(1));
                return;
            };
            loop {
                let came = self.came.notified();
                if self.why.borrow().is_some() {
                    return;
                }
                if let Some(job) = self.next_job() {
                    self.carry_out(&mut conn, job).await;
                    continue;
                }
                self.idle.set(self.idle.get() + 1);
                let is_needed = timeout(IDLE, came).await.is_ok() || is_first;
                self.idle.set(self.idle.get() - 1);
                if !is_needed {
                    self.workers.set(self.workers.get() - 1);
                    drop(conn.disconnect().await);
                    return;
                }
            }
        })
    }

    fn next_job(&self) -> Option<Job> {
        let (mut jobs, mut under_way) = (self.jobs.borrow_mut(), self.under_way.borrow_mut());
        // A request that nobody wants any more need not be made.
        jobs.retain(|job| job.lock.is_none() || !job.answer.is_closed());
        let at = jobs.iter().position(|job| job.lock.as_ref().is_none_or(|lock| !under_way.contains(lock)))?;
        let job = jobs.remove(at)?;
        under_way.extend(job.lock.clone());
        Some(job)
    }

    async fn carry_out(&self, conn: &mut Conn, job: Job) {
        let answer = match self.carry_out_quickly(conn, job.usual.as_ref()).await {
            Ok(Some(token)) => Ok(Answer::Done(token)),
            Ok(None) => self.ask(conn, &job.sql, Vec::new()).await.map(Answer::Rows),
            Err(failure) => Err(failure),
        };
        if let Some(lock) = &job.lock {
            self.under_way.borrow_mut().remove(lock);
            // Somebody else may have passed over the next one for this lock.
            self.came.notify_one();
        }
        drop(job.answer.send(answer));
    }

    /// Tries the usual way. Returns the token if that was all.
    async fn carry_out_quickly(&self, conn: &mut Conn, usual: Option<&Usual>) -> Result<Option<u64>, Failure> {
        let Some(usual) = usual.filter(|usual| self.quick.is_worth(usual)) else { return Ok(None) };
        let (sql, values) = usual.statement();
        match self.ask(conn, sql, values).await {
            Ok(_) if conn.affected_rows() == 1 => match usual {
                Usual::Take { .. } => conn.last_insert_id().map(Some).ok_or_else(|| self.unexpected("no token")),
                Usual::GiveBack { token, .. } => Ok(Some(token.get())),
            },
            Err(Failure::Denied(_)) => {
                self.quick.note_not_allowed();
                Ok(None)
            }
            done => {
                self.quick.note(usual.lock(), false);
                done.map(|_| None)
            }
        }
    }

    /// Asks until nobody is in the way. What has values is prepared.
    async fn ask(&self, conn: &mut Conn, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Failure> {
        let mut attempt = 1;
        loop {
            let asking = async {
                match values.is_empty() {
                    true => conn.query(sql).await,
                    false => conn.exec(sql, values.clone()).await,
                }
            };
            match timeout(CALL, asking).await {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) if error::is_in_the_way(&error) && attempt < ATTEMPTS => {
                    sleep(jittered(Duration::from_millis(2) * attempt)).await;
                    attempt += 1;
                }
                Ok(Err(error)) => {
                    let is_broken = error.is_fatal() || conn.is_disconnected() || error::leaves_transaction(&error);
                    let failure = error::failure(&self.address, error);
                    if is_broken {
                        self.end(Trouble::passing(failure.to_string()));
                    }
                    return Err(failure);
                }
                Err(_) => {
                    self.end(no_answer(CALL));
                    return Err(no_answer(CALL).failure(&self.address, true));
                }
            }
        }
    }

    /// Calls something. Requests for the same lock are made in this order.
    async fn call(
        self: &Rc<Self>,
        sql: String,
        usual: Option<Usual>,
        lock: Option<LockName>,
    ) -> Result<Answer, Failure> {
        if let Some(why) = &*self.why.borrow() {
            return Err(why.failure(&self.address, false));
        }
        let (answer, answered) = oneshot::channel();
        self.jobs.borrow_mut().push_back(Job { sql, usual, lock, answer });
        if self.jobs.borrow().len() > self.idle.get() && self.workers.get() < self.most.get() {
            self.workers.set(self.workers.get() + 1);
            spawn_local(self.clone().work(None));
        }
        self.came.notify_one();
        answered.await.unwrap_or_else(|_| Err(no_answer(CALL).failure(&self.address, true)))
    }

    pub(super) async fn rows(self: &Rc<Self>, sql: String) -> Result<Vec<Row>, Failure> {
        match self.call(sql, None, None).await? {
            Answer::Rows(rows) => Ok(rows),
            Answer::Done(_) => Err(self.unexpected("no answer")),
        }
    }

    pub(super) async fn row(self: &Rc<Self>, sql: String) -> Result<Row, Failure> {
        let row = self.rows(sql).await?.into_iter().next();
        row.ok_or_else(|| self.unexpected("an answer without a row"))
    }

    /// The same, and the line is given up if it takes longer than that.
    pub(super) async fn row_within(self: &Rc<Self>, patience: Duration, sql: String) -> Result<Row, Failure> {
        match timeout(patience, self.row(sql)).await {
            Ok(row) => row,
            Err(_) => {
                self.end(no_answer(patience));
                Err(no_answer(patience).failure(&self.address, true))
            }
        }
    }

    pub(super) fn unexpected(&self, what: &str) -> Failure {
        let what = format!("MySQL at {}: {what}, which this build does not understand", self.address);
        Unavailable::new(what).permanent().into()
    }

    /// A refusal, as the procedures write it.
    pub(super) fn refused(&self, detail: Option<&str>) -> Failure {
        match detail.map(serde_json::from_str::<Refusal>) {
            Some(Ok(refusal)) => refusal.into(),
            _ => self.unexpected(&format!("a refusal '{}'", detail.unwrap_or("").escape_debug())),
        }
    }

    /// An answer that is NULL, or a refusal.
    pub(super) async fn unless_refused(self: &Rc<Self>, sql: String) -> Result<(), Failure> {
        match text(&self.row(sql).await?, 0) {
            None => Ok(()),
            detail => Err(self.refused(detail.as_deref())),
        }
    }

    pub(super) fn token(&self, number: Option<u64>) -> Result<Token, Failure> {
        let token = number.and_then(|number| Token::new(number).ok());
        token.ok_or_else(|| self.unexpected("a token that is none"))
    }

    /// Asks for locks.
    pub(super) async fn acquire(self: &Rc<Self>, ask: &Acquire) -> Result<Said, Failure> {
        let lock = ask.wants.first().map(|want| want.lock.clone());
        let usual = Usual::take(ask, self.epoch);
        let is_usual = usual.is_some();
        let sql = request(ask, self.epoch);
        let mut answer = self.call(sql.clone(), usual, lock.clone()).await?;
        let rows = loop {
            match answer {
                // More dead sessions were in the way than one transaction ends; it has ended some of them.
                Answer::Rows(rows) if rows.first().and_then(|row| text(row, 0)).as_deref() == Some("again") => {
                    answer = self.call(sql.clone(), None, lock.clone()).await?;
                }
                Answer::Rows(rows) => break rows,
                Answer::Done(token) => return Ok(Said::Granted(self.token(Some(token))?)),
            }
        };
        let Some(row) = rows.first() else { return Err(self.unexpected("an answer without a row")) };
        match text(row, 0).as_deref() {
            Some("granted") => {
                let token = self.token(number(row, 1))?;
                if is_usual {
                    self.quick.note(&ask.wants[0].lock, true);
                }
                Ok(Said::Granted(token))
            }
            Some("queued") => Ok(Said::Queued(number(row, 2).unwrap_or(0))),
            Some("busy") => Ok(Said::Busy),
            Some("refused") => Err(self.refused(text(row, 2).as_deref())),
            // Another line has taken over: whoever asks there is answered.
            Some("outdated") => {
                Err(Trouble::passing("another connection has taken over".to_owned()).failure(&self.address, false))
            }
            other => Err(self.unexpected(&format!("'{}'", other.unwrap_or("nothing").escape_debug()))),
        }
    }

    /// Gives back a grant; a refusal of the rules is told apart from a failure. Returns the events of the call.
    pub(super) async fn give_back(
        self: &Rc<Self>,
        session: SessionId,
        lock: &LockName,
        token: Token,
    ) -> Result<Result<String, Refusal>, Failure> {
        let sql = format!("CALL palisade_give_back({}, {}, {})", session.get(), name(lock), token.get());
        let usual = Usual::GiveBack { session, lock: lock.clone(), token };
        let rows = match self.call(sql, Some(usual), None).await? {
            Answer::Rows(rows) => rows,
            Answer::Done(_) => return Ok(Ok(String::new())),
        };
        let Some(row) = rows.first() else { return Err(self.unexpected("an answer without a row")) };
        match text(row, 1) {
            None => Ok(Ok(text(row, 2).unwrap_or_default())),
            Some(refusal) => match self.refused(Some(&refusal)) {
                Failure::Refused(refusal) => Ok(Err(refusal)),
                failure => Err(failure),
            },
        }
    }
}

fn silence() -> std::io::Error {
    std::io::Error::from(std::io::ErrorKind::TimedOut)
}

pub(super) fn no_answer(waited: Duration) -> Trouble {
    Trouble::passing(format!("does not answer; waited {} ms", waited.as_millis()))
}
