//! One connection to PostgreSQL, and the calls on it. Calls are pipelined. A call without a reply in time breaks
//! the connection. Through a pooler each call waits for the reply to the one before: some poolers send the reply to a
//! pipelined call to another client.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use palisade_core::{Acquire, Mode, Patience, Reentry, RequestNo, SessionId, Token};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::spawn_local;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{AsyncMessage, Client, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::TLS;
use super::{Config, error};
use crate::engine::Failure;
use crate::engine::remote::{AcquireReply, ConnectError, GivenUp, Held, Peer, RemoteConnection, connect_tcp};
use crate::engine::sql_text::{not_granted, permits, refusal};

/// A call that takes longer fails, and breaks the connection. It is above the time for which the server waits for a row lock.
pub(in crate::engine) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a connection without a pooler. A release that grants nothing, and a request that is queued, need not wait for the
/// disk; the functions override this for everything else. Statements are planned once and always by index: the tables may be
/// small when the client connects and large later, and planning costs more than running.
const SETTINGS: &str = "SET synchronous_commit = off; SET lock_timeout = '3s'; SET statement_timeout = '4s'; \
     SET idle_in_transaction_session_timeout = '10s'; SET default_transaction_isolation = 'read committed'; \
     SET default_transaction_read_only = off; SET plan_cache_mode = force_generic_plan; SET jit = off; \
     SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
     SET enable_material = off";

/// A connection.
pub struct Connection {
    client: Rc<Client>,
    peer: Peer,
    /// PostgreSQL refuses requests of connections with a lower epoch once a session was attached.
    pub(super) epoch: i32,
    /// `None` through a pooler, which does not keep prepared statements.
    prepared: Option<Prepared>,
    /// Serialises calls through a pooler.
    pooled_call: Arc<Mutex<()>>,
    pub(super) given_up: GivenUp,
    is_broken: Cell<bool>,
}

/// The most frequent calls.
struct Prepared {
    acquire: Statement,
    release: Statement,
    keep_alive: Statement,
}

const ACQUIRE: &str = "SELECT palisade.take($1, $2, $3, $4, $5, $6)";
const ACQUIRE_TYPES: [Type; 6] = [Type::INT8, Type::INT4, Type::INT8, Type::TEXT, Type::BOOL, Type::BOOL];
const RELEASE: &str = "SELECT palisade.give_back($1, $2, $3)";
const RELEASE_TYPES: [Type; 3] = [Type::INT8, Type::TEXT, Type::INT8];
/// Also returns the position of the flushed log. If it is lower later, the server has lost data.
const KEEP_ALIVE: &str = "SELECT palisade.keep_alive($1), (pg_current_wal_flush_lsn() - '0/0')::bigint";
const KEEP_ALIVE_TYPES: [Type; 1] = [Type::INT8];

/// A parameter and its type.
pub(in crate::engine) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

impl Connection {
    pub(super) fn new(client: Client, peer: Peer, epoch: i32) -> Connection {
        Connection {
            client: Rc::new(client),
            peer,
            epoch,
            prepared: None,
            pooled_call: Arc::default(),
            given_up: GivenUp::default(),
            is_broken: Cell::new(false),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Prepares statements and listens. Neither works through a pooler.
    pub(super) async fn prepare(&mut self, channel: &str) -> Result<(), ConnectError> {
        self.client.batch_execute(&format!("{SETTINGS}; LISTEN {channel}")).await?;
        let (acquire, release, keep_alive) = tokio::try_join!(
            self.client.prepare_typed(ACQUIRE, &ACQUIRE_TYPES),
            self.client.prepare_typed(RELEASE, &RELEASE_TYPES),
            self.client.prepare_typed(KEEP_ALIVE, &KEEP_ALIVE_TYPES),
        )?;
        self.prepared = Some(Prepared { acquire, release, keep_alive });
        Ok(())
    }

    /// Fails all later calls without sending them.
    pub(super) fn end(&self) {
        self.is_broken.set(true);
    }

    /// Marks the connection as broken, so that the driver ends.
    fn break_off(&self, error: ConnectError) -> ConnectError {
        self.given_up.note(error.clone());
        error.at(&self.peer)
    }

    async fn within<T>(
        &self,
        timeout: Duration,
        query: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        if self.is_broken.get() || self.client.is_closed() {
            return Err(ConnectError::closed().at(&self.peer).failure(false));
        }
        match tokio::time::timeout(timeout, query).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME) {
                    // There is a pooler that was not detected. The next connection checks again.
                    self.break_off(ConnectError::transient("its prepared statements are gone"));
                }
                Err(error::failure(&self.peer, error))
            }
            Err(_) => Err(self.break_off(ConnectError::no_answer(timeout)).failure(true)),
        }
    }

    /// Calls through a pooler. The next call waits for the reply, even if the caller of this one is gone.
    async fn call_pooled(&self, timeout: Duration, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        let only_call = self.pooled_call.clone().lock_owned().await;
        let params = encoded(params)
            .map_err(|error| self.peer.unexpected(format_args!("a parameter that cannot be encoded ({error})")))?;
        let (client, sql) = (self.client.clone(), sql.to_owned());
        let answer = async move {
            let _only_call = only_call;
            client.query_typed_raw(&sql, params).await?.try_collect().await
        };
        self.within(timeout, async move {
            spawn_local(answer).await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
        })
        .await
    }

    /// Reads a column. Another type than expected means that replies and calls do not match any more, so this breaks the connection.
    pub(super) fn column<'a, T: FromSql<'a>>(&self, row: &'a Row, at: usize) -> Result<T, Failure> {
        row.try_get(at).map_err(|error| self.break_off(error.into()).failure(true))
    }

    /// Runs a statement that is not prepared.
    pub(super) async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        match self.prepared {
            Some(_) => self.within(CALL_TIMEOUT, self.client.query_typed(sql, params)).await,
            None => self.call_pooled(CALL_TIMEOUT, sql, params).await,
        }
    }

    pub(super) async fn row(&self, sql: &str, params: &[Param<'_>]) -> Result<Row, Failure> {
        let row = self.rows(sql, params).await?.pop();
        row.ok_or_else(|| self.peer.unexpected("a reply without a row"))
    }

    pub(super) fn refusal(&self, detail: Option<&str>) -> Failure {
        refusal(&self.peer, detail)
    }

    pub(super) async fn acquire(&self, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        let session = big(acquire.caller.session.get());
        let number = acquire.caller.number.map(|number| big(number.get()));
        let waits = acquire.patience == Patience::Wait;
        let may_queue = acquire.reentry == Reentry::Queue;
        match &acquire.wants[..] {
            [want]
                if want.mode == Mode::Exclusive
                    && acquire.delay.is_none()
                    && acquire.value.is_none()
                    && number.is_some() =>
            {
                let lock = want.lock.as_str();
                let params: [&(dyn ToSql + Sync); 6] = [&session, &self.epoch, &number, &lock, &waits, &may_queue];
                let prepared = self.prepared.as_ref().map(|prepared| &prepared.acquire);
                let rows = self.call(prepared, ACQUIRE, &ACQUIRE_TYPES, &params, CALL_TIMEOUT).await?;
                match self.column::<Option<&str>>(self.first(&rows)?, 0)? {
                    Some(token) if token.starts_with(|first: char| first.is_ascii_digit()) => {
                        Ok(AcquireReply::Granted(self.token(token.parse().ok())?))
                    }
                    Some(refusal) if refusal.starts_with(['{', '"']) => Err(self.refusal(Some(refusal))),
                    reply => not_granted(&self.peer, reply),
                }
            }
            wants => {
                let locks: Vec<_> = wants.iter().map(|want| want.lock.as_str()).collect();
                let needs: Vec<_> = wants.iter().map(|want| big(permits(want.mode).0)).collect();
                let permits: Vec<_> = wants.iter().map(|want| permits(want.mode).1.map(i64::from)).collect();
                let delay = acquire.delay.map(|delay| big(delay.as_ms()));
                let value = acquire.value.as_ref().map(|value| value.as_bytes());
                let sql = "SELECT said, token, detail FROM palisade.request($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
                let params: [Param<'_>; 10] = [
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
                let row = self.row(sql, &params).await?;
                match self.column::<Option<&str>>(&row, 0)? {
                    Some("granted") => Ok(AcquireReply::Granted(self.token(self.column(&row, 1)?)?)),
                    Some("refused") => Err(self.refusal(self.column(&row, 2)?)),
                    reply => not_granted(&self.peer, reply),
                }
            }
        }
    }

    fn first<'a>(&self, rows: &'a [Row]) -> Result<&'a Row, Failure> {
        rows.first().ok_or_else(|| self.peer.unexpected("a reply without a row"))
    }

    async fn call(
        &self,
        prepared: Option<&Statement>,
        sql: &str,
        types: &[Type],
        params: &[&(dyn ToSql + Sync)],
        timeout: Duration,
    ) -> Result<Vec<Row>, Failure> {
        match prepared {
            Some(statement) => self.within(timeout, self.client.query(statement, params)).await,
            None => {
                let params: Vec<Param<'_>> = params.iter().copied().zip(types.iter().cloned()).collect();
                self.call_pooled(timeout, sql, &params).await
            }
        }
    }

    pub(super) async fn release(&self, held: &Held) -> Result<(), Failure> {
        let (session, lock, token) = (big(held.session.get()), held.lock.as_str(), big(held.token.get()));
        let prepared = self.prepared.as_ref().map(|prepared| &prepared.release);
        let params: [&(dyn ToSql + Sync); 3] = [&session, &lock, &token];
        let rows = self.call(prepared, RELEASE, &RELEASE_TYPES, &params, CALL_TIMEOUT).await?;
        match self.column::<Option<&str>>(self.first(&rows)?, 0)? {
            None => Ok(()),
            detail => Err(self.refusal(detail)),
        }
    }

    /// Keeps a session alive. Returns whether it lives, and the position of the flushed log.
    pub(super) async fn keep_alive(&self, session: SessionId, timeout: Duration) -> Result<(bool, i64), Failure> {
        let session = big(session.get());
        let prepared = self.prepared.as_ref().map(|prepared| &prepared.keep_alive);
        let rows = self.call(prepared, KEEP_ALIVE, &KEEP_ALIVE_TYPES, &[&session], timeout).await?;
        let row = self.first(&rows)?;
        Ok((self.column(row, 0)?, self.column(row, 1)?))
    }

    pub(super) fn token(&self, number: Option<i64>) -> Result<Token, Failure> {
        let token = number.and_then(|number| Token::new(u64::try_from(number).ok()?).ok());
        token.ok_or_else(|| self.peer.unexpected("a token out of range"))
    }

    /// Runs a statement that returns NULL, or fails with the refusal that it returns.
    pub(super) async fn unless_refused(&self, sql: &str, params: &[Param<'_>]) -> Result<(), Failure> {
        match self.column(&self.row(sql, params).await?, 0)? {
            None => Ok(()),
            detail => Err(self.refusal(detail)),
        }
    }

    /// Fetches the states of waits, and the notices of their session.
    pub(super) async fn look_up(&self, session: SessionId, numbers: &[RequestNo]) -> Result<Vec<String>, Failure> {
        let (session, numbers) =
            (big(session.get()), numbers.iter().map(|number| big(number.get())).collect::<Vec<_>>());
        let params: [Param<'_>; 2] = [(&session, Type::INT8), (&numbers, Type::INT8_ARRAY)];
        let rows = self.rows("SELECT palisade.look_up($1, $2)", &params).await?;
        rows.iter().map(|row| self.column(row, 0)).collect()
    }
}

impl RemoteConnection for Connection {
    fn is_broken(&self) -> bool {
        self.is_broken.get() || self.client.is_closed() || self.given_up.is_noted()
    }
}

/// An encoded parameter, which borrows nothing from the caller.
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

fn encoded(params: &[Param<'_>]) -> Result<Vec<(Encoded, Type)>, Box<dyn std::error::Error + Sync + Send>> {
    let encode = |(value, kind): &Param<'_>| {
        let mut bytes = BytesMut::new();
        let bytes = match value.to_sql_checked(kind, &mut bytes)? {
            IsNull::Yes => None,
            IsNull::No => Some(bytes),
        };
        Ok((Encoded(bytes), kind.clone()))
    };
    params.iter().map(encode).collect()
}

/// Converts to PostgreSQL's signed type. Saturates: no real counter gets there, and a made-up one must not wrap.
pub(super) fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A new connection.
pub(in crate::engine) struct Dialed {
    pub(in crate::engine) client: Client,
    /// Sends and receives. Ends when the connection breaks, with the reason.
    pub(in crate::engine) driver: LocalBoxFuture<'static, ConnectError>,
    /// The address that the server sees, if no proxy or pooler is in between.
    pub(in crate::engine) local: Option<SocketAddr>,
}

/// The messages of a connection. Polling them drives the connection.
type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// Connects to the server. `on_push` receives the payloads of notifications.
pub(in crate::engine) async fn dial(
    config: &Config,
    on_push: impl Fn(&str) + Clone + 'static,
) -> Result<Dialed, ConnectError> {
    let (client, messages, local) = open(config).await?;
    Ok(Dialed { client, driver: Box::pin(drive(messages, on_push)), local })
}

/// Connects to the server, for any thread, and drives the connection in a task of the current runtime.
pub(crate) async fn dial_shared(config: &Config) -> Result<Client, ConnectError> {
    let (client, messages, _) = open(config).await?;
    tokio::spawn(drive(messages, |_| ()));
    Ok(client)
}

async fn open(config: &Config) -> Result<(Client, Messages, Option<SocketAddr>), ConnectError> {
    let tls = config.tls.as_ref().map(|tls| tls.load().map_err(|error| error.connect_error(&TLS))).transpose()?;
    let tls = tls.map(|files| MakeRustlsConnect::new((*files).clone()));
    let Some(Host::Tcp(name)) = config.host() else {
        let (client, connection) = config.server.connect(NoTls).await?;
        return Ok((client, messages(connection), None));
    };
    let stream = connect_tcp(name, config.port()).await?;
    let local = stream.local_addr().ok();
    let (client, messages) = match tls {
        None => {
            let (client, connection) = config.server.connect_raw(stream, NoTls).await?;
            (client, messages(connection))
        }
        Some(mut tls) => {
            let connect = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, name);
            let connect = connect.map_err(|error| ConnectError::permanent(format!("cannot encrypt: {error}")))?;
            let (client, connection) = config.server.connect_raw(stream, connect).await?;
            (client, messages(connection))
        }
    };
    Ok((client, messages, local))
}

fn messages<S, T>(mut connection: tokio_postgres::Connection<S, T>) -> Messages
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(stream::poll_fn(move |cx| connection.poll_message(cx)))
}

/// Sends and receives until the connection ends.
async fn drive(mut messages: Messages, on_push: impl Fn(&str)) -> ConnectError {
    loop {
        match messages.next().await {
            Some(Ok(AsyncMessage::Notification(note))) => on_push(note.payload()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return error.into(),
            None => return ConnectError::closed(),
        }
    }
}
