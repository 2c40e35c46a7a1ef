//! One connection to PostgreSQL, and the calls that are made on it. Calls go out as they are made and are answered in
//! that order; one that is not answered for too long gives the line up. Through a pooler each call waits for the answer to
//! the one before: poolers have given the answers to a second call to somebody else.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::TryStreamExt;
use palisade_core::{Acquire, LockName, Mode, Patience, Reentry, Refusal, RequestNo, SessionId, Token};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Row, Statement};

use super::error::{self, Trouble};
use super::look::ALL;
use crate::engine::{Failure, Unavailable};

/// A call that is not answered for so long fails, and its line with it. The server gives up waiting for a row sooner.
pub(super) const CALL: Duration = Duration::from_secs(5);

/// What the server is told about a connection that is ours alone: a release that grants nobody, and joining a queue, need
/// not wait for the disk (everything else does, whatever is set here), and nothing waits for long. Everything is found by an index and planned
/// once: tables that are small when somebody connects do not stay so, and a plan costs more than what it is for.
const SETTINGS: &str = "SET synchronous_commit = off; SET lock_timeout = '3s'; SET statement_timeout = '4s'; \
     SET idle_in_transaction_session_timeout = '10s'; SET default_transaction_isolation = 'read committed'; \
     SET default_transaction_read_only = off; SET plan_cache_mode = force_generic_plan; SET jit = off; \
     SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
     SET enable_material = off";

/// A connection.
pub(super) struct Line {
    client: Rc<Client>,
    address: String,
    /// Requests of an older one are refused once a session was attached.
    pub(super) epoch: i32,
    /// Absent where a pooler is in between, which has no place for them.
    prepared: Option<Prepared>,
    /// Whose turn it is, where a pooler is in between.
    turn: Arc<Mutex<()>>,
    given_up: Notify,
    why: RefCell<Option<Trouble>>,
    is_broken: Cell<bool>,
}

/// What is called most.
struct Prepared {
    take: Statement,
    give_back: Statement,
    keep_alive: Statement,
}

const TAKE: &str = "SELECT palisade.take($1, $2, $3, $4, $5, $6)";
const TAKE_TYPES: [Type; 6] = [Type::INT8, Type::INT4, Type::INT8, Type::TEXT, Type::BOOL, Type::BOOL];
const GIVE_BACK: &str = "SELECT palisade.give_back($1, $2, $3)";
const GIVE_BACK_TYPES: [Type; 3] = [Type::INT8, Type::TEXT, Type::INT8];
/// How far the log on the disk has come tells whether the server has lost something since.
const KEEP_ALIVE: &str = "SELECT palisade.keep_alive($1), (pg_current_wal_flush_lsn() - '0/0')::bigint";
const KEEP_ALIVE_TYPES: [Type; 1] = [Type::INT8];

/// How a request stands.
pub(super) enum Said {
    Granted(Token),
    Queued,
    Busy,
}

/// A parameter and its type.
pub(super) type Given<'a> = (&'a (dyn ToSql + Sync), Type);

impl Line {
    pub(super) fn new(client: Client, address: String, epoch: i32) -> Line {
        let (given_up, why) = (Notify::new(), RefCell::new(None));
        Line {
            client: Rc::new(client),
            address,
            epoch,
            prepared: None,
            turn: Arc::default(),
            given_up,
            why,
            is_broken: Cell::new(false),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Prepares a connection that is ours alone: nothing of this is possible through a pooler.
    pub(super) async fn prepare(&mut self, channel: &str) -> Result<(), Trouble> {
        self.client.batch_execute(&format!("{SETTINGS}; LISTEN {channel}")).await?;
        let (take, give_back, keep_alive) = tokio::try_join!(
            self.client.prepare_typed(TAKE, &TAKE_TYPES),
            self.client.prepare_typed(GIVE_BACK, &GIVE_BACK_TYPES),
            self.client.prepare_typed(KEEP_ALIVE, &KEEP_ALIVE_TYPES),
        )?;
        self.prepared = Some(Prepared { take, give_back, keep_alive });
        Ok(())
    }

    /// Waits until somebody has found that the line is silent.
    pub(super) async fn given_up(&self) -> Trouble {
        loop {
            let given_up = self.given_up.notified();
            if let Some(why) = self.why.borrow().clone() {
                return why;
            }
            given_up.await;
        }
    }

    /// It has ended: what is asked now is not sent.
    pub(super) fn end(&self) {
        self.is_broken.set(true);
    }

    fn give_up(&self, waited: Duration) -> Trouble {
        let why = Trouble::passing(format!("does not answer; waited {} ms", waited.as_millis()));
        self.give_up_because(why.clone());
        why
    }

    fn give_up_because(&self, why: Trouble) {
        *self.why.borrow_mut() = Some(why);
        self.given_up.notify_waiters();
    }

    async fn within<T>(
        &self,
        patience: Duration,
        ask: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        if self.is_broken.get() || self.client.is_closed() {
            return Err(Trouble::passing("the connection was closed".to_owned()).failure(&self.address, false));
        }
        match timeout(patience, ask).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME) {
                    // A pooler has come in between, or was not noticed. The next line looks again.
                    self.give_up_because(Trouble::passing("its prepared statements are gone".to_owned()));
                }
                Err(error::failure(&self.address, error))
            }
            Err(_) => Err(self.give_up(patience).failure(&self.address, true)),
        }
    }

    /// Calls when it is its turn, through a pooler. Whoever asks may go: the turn ends with the answer, not before.
    async fn in_turn(&self, patience: Duration, sql: &str, given: &[Given<'_>]) -> Result<Vec<Row>, Failure> {
        let turn = self.turn.clone().lock_owned().await;
        let given =
            encoded(given).map_err(|error| self.unexpected(&format!("cannot be sent what is asked: {error}")))?;
        let (client, sql) = (self.client.clone(), sql.to_owned());
        let answer = async move {
            let _turn = turn;
            client.query_typed_raw(&sql, given).await?.try_collect().await
        };
        self.within(patience, async move {
            spawn_local(answer).await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
        })
        .await
    }

    /// What is in a column of an answer. If it is something else, it answers something else: then nothing on this line can
    /// be believed any more.
    pub(super) fn cell<'a, T: FromSql<'a>>(&self, row: &'a Row, at: usize) -> Result<T, Failure> {
        row.try_get(at).map_err(|error| {
            let why = Trouble::from(error);
            self.give_up_because(why.clone());
            why.failure(&self.address, true)
        })
    }

    /// Calls something that is not called often.
    pub(super) async fn rows(&self, sql: &str, given: &[Given<'_>]) -> Result<Vec<Row>, Failure> {
        match self.prepared {
            Some(_) => self.within(CALL, self.client.query_typed(sql, given)).await,
            None => self.in_turn(CALL, sql, given).await,
        }
    }

    pub(super) async fn row(&self, sql: &str, given: &[Given<'_>]) -> Result<Row, Failure> {
        let row = self.rows(sql, given).await?.pop();
        row.ok_or_else(|| self.unexpected("an answer without a row"))
    }

    pub(super) fn unexpected(&self, what: &str) -> Failure {
        let what = format!("PostgreSQL at {}: {what}, which this build does not understand", self.address);
        Unavailable::new(what).for_good().into()
    }

    fn refusal(&self, detail: Option<&str>) -> Failure {
        match detail.map(serde_json::from_str::<Refusal>) {
            Some(Ok(refusal)) => refusal.into(),
            _ => self.unexpected(&format!("a refusal '{}'", detail.unwrap_or("").escape_debug())),
        }
    }

    /// Asks for locks.
    pub(super) async fn acquire(&self, ask: &Acquire) -> Result<Said, Failure> {
        let session = big(ask.caller.session.get());
        let number = ask.caller.number.map(|number| big(number.get()));
        let waits = ask.patience == Patience::Wait;
        let may_queue = ask.reentry == Reentry::Queue;
        match &ask.wants[..] {
            [want]
                if want.mode == Mode::Exclusive && ask.delay.is_none() && ask.value.is_none() && number.is_some() =>
            {
                let lock = want.lock.as_str();
                let given: [&(dyn ToSql + Sync); 6] = [&session, &self.epoch, &number, &lock, &waits, &may_queue];
                let prepared = self.prepared.as_ref().map(|prepared| &prepared.take);
                let rows = self.call(prepared, TAKE, &TAKE_TYPES, &given, CALL).await?;
                match self.cell::<Option<&str>>(self.first(&rows)?, 0)? {
                    Some(token) if token.starts_with(|first: char| first.is_ascii_digit()) => {
                        Ok(Said::Granted(self.token(token.parse().ok())?))
                    }
                    Some(refusal) if refusal.starts_with(['{', '"']) => Err(self.refusal(Some(refusal))),
                    said => self.standing(said),
                }
            }
            wants => {
                let locks: Vec<_> = wants.iter().map(|want| want.lock.as_str()).collect();
                let needs: Vec<_> = wants.iter().map(|want| need(want.mode)).collect();
                let permits: Vec<_> = wants.iter().map(|want| permits(want.mode)).collect();
                let delay = ask.delay.map(|delay| big(delay.as_ms()));
                let value = ask.value.as_ref().map(|value| value.as_bytes());
                let sql = "SELECT said, token, detail FROM palisade.request($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
                let given: [Given<'_>; 10] = [
                    (&session, Type::INT8),
                    (&self.epoch, Type::INT4),
                    (&number, Type::INT8),
                    (&locks, Type::TEXT_ARRAY),
                    (&needs, Type::INT8_ARRAY),
                    (&permits, Type::INT8_ARRAY),
                    (&waits, Type::BOOL),
                    (&may_queue, Type::BOOL),
                    (&delay, Type::INT8),
                    (&value, Type::BYTEA),
                ];
                let row = self.row(sql, &given).await?;
                match self.cell::<Option<&str>>(&row, 0)? {
                    Some("granted") => Ok(Said::Granted(self.token(self.cell(&row, 1)?)?)),
                    Some("refused") => Err(self.refusal(self.cell(&row, 2)?)),
                    said => self.standing(said),
                }
            }
        }
    }

    /// How a request stands that is neither granted nor refused.
    fn standing(&self, said: Option<&str>) -> Result<Said, Failure> {
        match said {
            Some("queued") => Ok(Said::Queued),
            Some("busy") => Ok(Said::Busy),
            // Another line has taken over: whoever asks there is answered.
            Some("outdated") => {
                Err(Trouble::passing("another connection has taken over".to_owned()).failure(&self.address, false))
            }
            other => Err(self.unexpected(&format!("'{}'", other.unwrap_or("nothing").escape_debug()))),
        }
    }

    fn first<'a>(&self, rows: &'a [Row]) -> Result<&'a Row, Failure> {
        rows.first().ok_or_else(|| self.unexpected("an answer without a row"))
    }

    async fn call(
        &self,
        prepared: Option<&Statement>,
        sql: &str,
        types: &[Type],
        given: &[&(dyn ToSql + Sync)],
        patience: Duration,
    ) -> Result<Vec<Row>, Failure> {
        match prepared {
            Some(statement) => self.within(patience, self.client.query(statement, given)).await,
            None => {
                let given: Vec<Given<'_>> = given.iter().copied().zip(types.iter().cloned()).collect();
                self.in_turn(patience, sql, &given).await
            }
        }
    }

    /// Gives back a grant; a refusal of the rules is told apart from a failure.
    pub(super) async fn give_back(
        &self,
        session: SessionId,
        lock: &LockName,
        token: Token,
    ) -> Result<Result<(), Refusal>, Failure> {
        let (session, lock, token) = (big(session.get()), lock.as_str(), big(token.get()));
        let prepared = self.prepared.as_ref().map(|prepared| &prepared.give_back);
        let rows = self.call(prepared, GIVE_BACK, &GIVE_BACK_TYPES, &[&session, &lock, &token], CALL).await?;
        match self.cell::<Option<&str>>(self.first(&rows)?, 0)? {
            None => Ok(Ok(())),
            detail => match self.refusal(detail) {
                Failure::Refused(refusal) => Ok(Err(refusal)),
                failure => Err(failure),
            },
        }
    }

    /// Keeps a session alive; says whether it lives, and how far the server's log has come.
    pub(super) async fn keep_alive(&self, session: SessionId, patience: Duration) -> Result<(bool, i64), Failure> {
        let session = big(session.get());
        let prepared = self.prepared.as_ref().map(|prepared| &prepared.keep_alive);
        let rows = self.call(prepared, KEEP_ALIVE, &KEEP_ALIVE_TYPES, &[&session], patience).await?;
        let row = self.first(&rows)?;
        Ok((self.cell(row, 0)?, self.cell(row, 1)?))
    }

    pub(super) fn token(&self, number: Option<i64>) -> Result<Token, Failure> {
        let token = number.and_then(|number| Token::new(u64::try_from(number).ok()?).ok());
        token.ok_or_else(|| self.unexpected("a token that is none"))
    }

    /// An answer that is NULL, or a refusal.
    pub(super) async fn unless_refused(&self, sql: &str, given: &[Given<'_>]) -> Result<(), Failure> {
        match self.cell(&self.row(sql, given).await?, 0)? {
            None => Ok(()),
            detail => Err(self.refusal(detail)),
        }
    }

    pub(super) fn refused(&self, detail: &str) -> Failure {
        self.refusal(Some(detail))
    }

    /// What became of requests that wait, and what else a session has to be told.
    pub(super) async fn look_up(&self, session: SessionId, numbers: &[RequestNo]) -> Result<Vec<String>, Failure> {
        let (session, numbers) =
            (big(session.get()), numbers.iter().map(|number| big(number.get())).collect::<Vec<_>>());
        let given: [Given<'_>; 2] = [(&session, Type::INT8), (&numbers, Type::INT8_ARRAY)];
        let rows = self.rows("SELECT palisade.look_up($1, $2)", &given).await?;
        rows.iter().map(|row| self.cell(row, 0)).collect()
    }
}

/// A parameter as it is sent, so that a call needs nothing of its caller any more.
#[derive(Debug)]
struct Encoded(Option<BytesMut>);

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(bytes) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn encoded(given: &[Given<'_>]) -> Result<Vec<(Encoded, Type)>, Box<dyn std::error::Error + Sync + Send>> {
    let encode = |(value, kind): &Given<'_>| {
        let mut bytes = BytesMut::new();
        let bytes = match value.to_sql_checked(kind, &mut bytes)? {
            IsNull::Yes => None,
            IsNull::No => Some(bytes),
        };
        Ok((Encoded(bytes), kind.clone()))
    };
    given.iter().map(encode).collect()
}

/// What a mode takes of a lock's permits.
fn need(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => ALL,
        Mode::Shared => 1,
        Mode::Permits { count, .. } => i64::from(count),
    }
}

fn permits(mode: Mode) -> Option<i64> {
    match mode {
        Mode::Exclusive | Mode::Shared => None,
        Mode::Permits { of, .. } => Some(i64::from(of)),
    }
}

/// PostgreSQL has no unsigned numbers. Nobody counts so far, and what is made up is nobody's.
pub(super) fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
