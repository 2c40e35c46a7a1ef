//! PostgreSQL as the store of [`Remote`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Acquire, Label, LockName, RequestNo, SessionEnd, SessionId, Token, Ttl, Value};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;

use super::connection::{CALL_TIMEOUT, Connection, Param, big, dial};
use super::{Config, pooler, schema, wire};
use crate::BootInstant;
use crate::engine::remote::{
    AcquireReply, Backend, CancelReply, ClientState, ConnectError, Connected, ForceRelease, Held, Peer, Remote,
    WaitKey, jittered, within,
};
use crate::engine::sql_text::{explain_denial, other_data};
use crate::engine::{
    Failure, Forced, Guarantees, Level, LockInfo, Offers, Order, Raised, SessionClock, WakeUp, Watched,
};

/// How often waits are polled although PostgreSQL pushes grants: a push can be lost, and expired holders end only in calls.
const POLL_PUSHED: Duration = Duration::from_millis(700);
/// How often waits are polled through a pooler, which prevents pushes.
const POLL_POOLED: Duration = Duration::from_millis(25);
/// How often expired sessions are ended that no wait needs to be ended, and how often watches are renewed.
const SWEEP: Duration = Duration::from_secs(5);
/// How often expired sessions are ended while this client watches, since watchers learn of an expiry only then.
const SWEEP_WATCHED: Duration = Duration::from_millis(500);
/// The most steps of each kind in one sweep, so that the poll is not delayed for long.
const SWEEP_STEPS: usize = 256;
/// The rows that `palisade.clean` examines in one step.
const CLEAN_ROWS: i32 = 1000;
/// How long PostgreSQL sends events after the last renewal of a watch. Several renewals may fail.
const WATCH_LEASE: Duration = Duration::from_secs(30);

/// Locks kept in a PostgreSQL. [`connect`](Remote::connect) installs the schema `palisade` if it is missing.
pub type Postgres = Remote<PostgresBackend>;

/// A PostgreSQL with the schema `palisade`.
pub struct PostgresBackend {
    config: Config,
    peer: Peer,
    client: Rc<ClientState<PostgresBackend>>,
    shared: Rc<Shared>,
}

struct Shared {
    client: Rc<ClientState<PostgresBackend>>,
    /// The channel that only this client listens on.
    channel: String,
    /// The number of the current connection. PostgreSQL refuses acquires of older connections.
    epoch: Cell<i32>,
    wake_up: Cell<WakeUp>,
    incarnation: RefCell<Option<Incarnation>>,
}

/// The identity of the data, and the highest position of the flushed log that the server has reported.
struct Incarnation {
    cluster: String,
    flushed: i64,
}

impl Backend for PostgresBackend {
    type Config = Config;
    type Connection = Connection;
    type GrantExtra = LockName;
    type WaitExtra = ();
    type SessionExtra = ();
    /// Wakes the poll of waits.
    type SharedExtra = Notify;

    const NAME: &'static str = "PostgreSQL";
    const CALL_TIMEOUT: Duration = CALL_TIMEOUT;

    fn new(config: Config, client: Rc<ClientState<PostgresBackend>>) -> PostgresBackend {
        let random = RandomState::new();
        let shared = Shared {
            client: client.clone(),
            channel: format!("palisade_{:016x}{:016x}", random.hash_one(0), random.hash_one(1)),
            epoch: Cell::new(0),
            wake_up: Cell::new(WakeUp::Pushed),
            incarnation: RefCell::new(None),
        };
        PostgresBackend { peer: config.peer(), config, client, shared: Rc::new(shared) }
    }

    fn guarantees(&self) -> Guarantees {
        let wake_up = self.shared.wake_up.get();
        // A watch needs LISTEN.
        let watch = wake_up == WakeUp::Pushed;
        Guarantees {
            engine: "postgres",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Store,
            wake_up,
            offers: Offers { watch, signed: false, ..Offers::ALL },
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn grant_extra(acquire: &Acquire, (): &()) -> LockName {
        acquire.wants[0].lock.clone()
    }

    async fn connect(&self) -> Result<Connected<PostgresBackend>, ConnectError> {
        let client = self.client.clone();
        let dialed = dial(&self.config, move |payload| wire::handle_push(&client, payload));
        let mut dialed = within(CALL_TIMEOUT, dialed).await?;
        let shared = self.shared.clone();
        shared.epoch.set(shared.epoch.get() + 1);
        let mut connection = Connection::new(dialed.client, self.peer.clone(), shared.epoch.get());
        let attaching = within(CALL_TIMEOUT * 2, self.attach_all(&mut connection, dialed.local));
        let orphans = tokio::select! {
            error = &mut dialed.driver => return Err(error),
            attached = attaching => attached?,
        };
        let connection = Rc::new(connection);
        let driven = connection.clone();
        let driver = Box::pin(async move {
            let error = tokio::select! {
                error = &mut dialed.driver => error,
                error = driven.given_up.wait() => error,
                never = shared.background_work(&driven) => match never {},
            };
            driven.end();
            error
        });
        Ok(Connected { connection, orphans, driver })
    }

    async fn open_session(&self, connection: &Rc<Connection>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        let (ms, label) = (big(ttl.as_ms()), label.as_str().as_bytes());
        let channel = (self.shared.wake_up.get() == WakeUp::Pushed).then_some(self.shared.channel.as_str());
        let params: [Param<'_>; 3] = [(&ms, Type::INT8), (&label, Type::BYTEA), (&channel, Type::TEXT)];
        let row = connection.row("SELECT session, refusal FROM palisade.open($1, $2, $3)", &params).await?;
        if let Some(refusal) = connection.column::<Option<&str>>(&row, 1)? {
            return Err(connection.refusal(Some(refusal)));
        }
        let session = connection.column::<Option<i64>>(&row, 0)?;
        let session = session.and_then(|id| SessionId::new(u64::try_from(id).ok()?).ok());
        session.ok_or_else(|| self.peer.unexpected("a session without a number"))
    }

    async fn keep_alive(&self, connection: &Rc<Connection>, id: SessionId, timeout: Duration) -> Result<(), Failure> {
        let (lives, flushed) = connection.keep_alive(id, timeout).await?;
        if let Some(incarnation) = &mut *self.shared.incarnation.borrow_mut() {
            incarnation.flushed = incarnation.flushed.max(flushed);
        }
        if lives { Ok(()) } else { Err(Failure::SessionEnded) }
    }

    async fn close_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        // One call ends a bounded number of grants and waits.
        loop {
            let row = connection.row("SELECT palisade.close($1)", &[(&big(session.get()), Type::INT8)]).await?;
            if connection.column(&row, 0)? {
                return Ok(());
            }
        }
    }

    async fn acquire(&self, connection: &Rc<Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        connection.acquire(acquire).await
    }

    async fn cancel(&self, connection: &Rc<Connection>, wait: WaitKey) -> Result<CancelReply<LockName>, Failure> {
        let (session, number) = wait;
        let (id, request) = (big(session.get()), big(number.get()));
        let params: [Param<'_>; 2] = [(&id, Type::INT8), (&request, Type::INT8)];
        let row = connection.row("SELECT said, token, detail, lock FROM palisade.cancel($1, $2)", &params).await?;
        match connection.column::<Option<&str>>(&row, 0)? {
            Some("granted") => {
                let lock = LockName::new(connection.column::<Option<&str>>(&row, 3)?.unwrap_or(""));
                let lock = lock.map_err(|error| self.peer.unexpected(error))?;
                Ok(CancelReply::Granted(connection.token(connection.column(&row, 1)?)?, lock))
            }
            Some("gone") => Ok(CancelReply::Gone),
            _ => Err(connection.refusal(connection.column(&row, 2)?)),
        }
    }

    async fn release(&self, connection: &Rc<Connection>, held: &Held, _: Option<&LockName>) -> Result<(), Failure> {
        connection.release(held).await
    }

    async fn publish(&self, connection: &Rc<Connection>, held: &Held, value: &Value) -> Result<(), Failure> {
        let Held { session, lock, token } = held;
        let (session, lock, token, value) = (big(session.get()), lock.as_str(), big(token.get()), value.as_bytes());
        let params: [Param<'_>; 4] =
            [(&session, Type::INT8), (&lock, Type::TEXT), (&token, Type::INT8), (&value, Type::BYTEA)];
        connection.unless_refused("SELECT palisade.publish($1, $2, $3, $4)", &params).await
    }

    async fn force_release(&self, connection: &Rc<Connection>, force: &ForceRelease) -> Result<Forced, Failure> {
        let ForceRelease { lock, only, by, reason } = force;
        let (lock, only) = (lock.as_str(), only.map(|token| big(token.get())));
        let (by, reason) = (by.as_str().as_bytes(), reason.as_str().as_bytes());
        let params: [Param<'_>; 4] =
            [(&lock, Type::TEXT), (&only, Type::INT8), (&by, Type::BYTEA), (&reason, Type::BYTEA)];
        let sql = "SELECT grants, moved_to, refusal FROM palisade.force($1, $2, $3, $4)";
        let row = connection.row(sql, &params).await?;
        if let Some(refusal) = connection.column::<Option<&str>>(&row, 2)? {
            return Err(connection.refusal(Some(refusal)));
        }
        let grants = connection.column::<Option<i32>>(&row, 0)?.unwrap_or(0).max(0) as u32;
        Ok(Forced { grants, moved_to: connection.token(connection.column(&row, 1)?)? })
    }

    async fn resize(&self, connection: &Rc<Connection>, lock: &LockName, limit: u32) -> Result<(), Failure> {
        let params: [Param<'_>; 2] = [(&lock.as_str(), Type::TEXT), (&i64::from(limit), Type::INT8)];
        connection.unless_refused("SELECT palisade.resize($1, $2)", &params).await
    }

    async fn raise_tokens(&self, connection: &Rc<Connection>, above: Token) -> Result<Raised, Failure> {
        let params: [Param<'_>; 1] = [(&big(above.get()), Type::INT8)];
        // An expired holder with a lower token would make the call fail, so end it first.
        for _ in 0..SWEEP_STEPS {
            let swept = connection.row("SELECT palisade.sweep()", &[]).await?;
            if connection.column::<i32>(&swept, 0)? == 0 {
                break;
            }
        }
        let owner_only = |failure| {
            let why = "only the role that installed the schema 'palisade', or a superuser, can raise tokens; connect as \
                 that role";
            explain_denial(failure, why)
        };
        let is_already_above = "SELECT t.last_value >= $1 FROM palisade.tokens t";
        let is_already_above = connection.row(is_already_above, &params).await.map_err(owner_only)?;
        connection.rows("SELECT palisade.raise_tokens($1)", &params).await.map_err(owner_only)?;
        Ok(if connection.column::<Option<bool>>(&is_already_above, 0)? == Some(true) {
            Raised::Before
        } else {
            Raised::Now
        })
    }

    async fn inspect(&self, connection: &Rc<Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure> {
        let sql = "SELECT palisade.show($1, NULL)::text";
        let Some(row) = connection.rows(sql, &[(&lock.as_str(), Type::TEXT)]).await?.pop() else { return Ok(None) };
        let lock = wire::lock_info(connection.column(&row, 0)?);
        lock.map(Some).ok_or_else(|| self.peer.unexpected("a description of a lock"))
    }

    async fn list(&self, connection: &Rc<Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let rows = connection.rows("SELECT palisade.show(NULL, $1)::text", &[(&prefix, Type::TEXT)]).await?;
        let mut locks = Vec::new();
        for row in &rows {
            let json = connection.column(row, 0)?;
            // One unreadable lock must not hide the others.
            match wire::lock_info(json) {
                Some(lock) => locks.push(lock),
                None => tracing::warn!(json, "PostgreSQL describes a lock in a way that this build cannot read"),
            }
        }
        Ok(locks)
    }

    async fn watch(&self, connection: &Rc<Connection>, prefix: &str) -> Result<mpsc::Receiver<Watched>, Failure> {
        let watch = self.client.watch(prefix);
        let sent_at = BootInstant::now();
        self.shared.watch(connection, prefix).await?;
        self.client.watch_lease.began(sent_at, WATCH_LEASE);
        connection.rows("SELECT palisade.watch_begun()", &[]).await?;
        Ok(watch)
    }
}

impl PostgresBackend {
    /// Checks the server, and attaches all sessions.
    async fn attach_all(
        &self,
        connection: &mut Connection,
        local: Option<std::net::SocketAddr>,
    ) -> Result<Vec<Held>, ConnectError> {
        let cluster = schema::install_if_missing(connection.client()).await?;
        let sql = "SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN 0 ELSE \
             (pg_current_wal_flush_lsn() - '0/0')::bigint END";
        let row = connection.client().query_typed_one(sql, &[]).await?;
        if row.try_get(0)? {
            return Err(ConnectError::transient("it is a standby, which can grant nothing; connect to the primary"));
        }
        self.shared.check_incarnation(cluster, row.try_get(1)?)?;
        if pooler::is_between(connection.client(), local, &self.config).await? {
            self.shared.wake_up.set(WakeUp::Polled);
        } else {
            self.shared.wake_up.set(WakeUp::Pushed);
            connection.prepare(&self.shared.channel).await?;
        }
        let mut orphans = Vec::new();
        for session in self.client.sessions() {
            orphans.extend(self.attach(connection, session).await?);
        }
        Ok(orphans)
    }

    /// Attaches a session to a new connection. From then on PostgreSQL refuses requests of older connections.
    async fn attach(&self, connection: &Connection, session: SessionId) -> Result<Vec<Held>, ConnectError> {
        let (id, known) = (big(session.get()), self.client.tokens(session));
        let sql = "SELECT lock, number, token FROM palisade.attach($1, $2)";
        let params: [Param<'_>; 2] = [(&id, Type::INT8), (&connection.epoch, Type::INT4)];
        let rows = connection.client().query_typed(sql, &params).await?;
        if rows.is_empty() {
            self.client.session_ended(session, SessionEnd::Expired);
            return Ok(Vec::new());
        }
        // Notices that were kept for the session say why a grant is missing.
        let sql = "SELECT palisade.look_up($1, $2)";
        let params: [Param<'_>; 2] = [(&id, Type::INT8), (&Vec::<i64>::new(), Type::INT8_ARRAY)];
        for row in connection.client().query_typed(sql, &params).await? {
            wire::handle_push(&self.client, row.try_get(0)?);
        }
        let grants: BTreeMap<_, _> = rows.iter().filter_map(wire::attached_grant).collect();
        Ok(self.client.reconcile(session, &known, &grants))
    }
}

impl Shared {
    /// Refuses a server that has other data, or an earlier state of them: it could issue tokens again.
    fn check_incarnation(&self, cluster: String, flushed: i64) -> Result<(), ConnectError> {
        let mut incarnation = self.incarnation.borrow_mut();
        let problem = match &*incarnation {
            Some(known) if known.cluster != cluster => "it has lost its data, or is another one",
            Some(known) if known.flushed > flushed => {
                "it has gone back to an earlier state, as a standby that was promoted too early or a restored backup has"
            }
            _ => {
                *incarnation = Some(Incarnation { cluster, flushed });
                return Ok(());
            }
        };
        Err(other_data(problem, "SELECT palisade.raise_tokens(above)"))
    }

    /// Polls waits, renews watches and sweeps until the connection ends.
    async fn background_work(&self, connection: &Connection) -> std::convert::Infallible {
        let is_pooled = self.wake_up.get() == WakeUp::Polled;
        let mut swept_at = Instant::now();
        let mut watches_renewed_at = None;
        loop {
            let is_watched = self.renew_watches(connection, &mut watches_renewed_at).await;
            tokio::select! {
                () = sleep(jittered(if is_pooled { POLL_POOLED } else { POLL_PUSHED })) => {}
                () = self.client.extra.notified() => {}
            }
            self.poll(connection, is_pooled).await;
            if swept_at.elapsed() >= jittered(if is_watched { SWEEP_WATCHED } else { SWEEP }) {
                swept_at = Instant::now();
                sweep(connection).await;
            }
        }
    }

    /// Fetches the states of all waits; through a pooler, which pushes nothing, also the notices of all sessions.
    async fn poll(&self, connection: &Connection, is_pooled: bool) {
        let mut waits: BTreeMap<SessionId, Vec<RequestNo>> = BTreeMap::new();
        for ((session, number), ()) in self.client.waits(|_, ()| ()) {
            waits.entry(session).or_default().push(number);
        }
        if is_pooled {
            for session in self.client.sessions() {
                waits.entry(session).or_default();
            }
        }
        for (session, numbers) in waits {
            match connection.look_up(session, &numbers).await {
                Ok(notices) => notices.iter().for_each(|notice| wire::handle_push(&self.client, notice)),
                Err(failure) => tracing::debug!(%failure, "cannot poll waits"),
            }
        }
    }

    /// Renews the leases of watches, and ends those whose watchers are gone. Returns whether any watch is left.
    async fn renew_watches(&self, connection: &Connection, renewed_at: &mut Option<Instant>) -> bool {
        let (closed, watched) = {
            let mut watchers = self.client.watchers.borrow_mut();
            (watchers.forget_closed(), watchers.prefixes())
        };
        for prefix in closed {
            let params: [Param<'_>; 2] = [(&self.channel, Type::TEXT), (&prefix, Type::TEXT)];
            drop(connection.rows("SELECT palisade.unwatch($1, $2)", &params).await);
        }
        if renewed_at.is_none_or(|at| at.elapsed() >= SWEEP) {
            *renewed_at = Some(Instant::now());
            let sent_at = BootInstant::now();
            let mut all_renewed = true;
            for prefix in &watched {
                all_renewed &= self.watch(connection, prefix).await.is_ok();
            }
            if all_renewed {
                self.client.watches_renewed(sent_at, WATCH_LEASE);
            }
        }
        !watched.is_empty()
    }

    async fn watch(&self, connection: &Connection, prefix: &str) -> Result<(), Failure> {
        let ms = WATCH_LEASE.as_millis() as i64;
        let params: [Param<'_>; 3] = [(&self.channel, Type::TEXT), (&prefix, Type::TEXT), (&ms, Type::INT8)];
        connection.rows("SELECT palisade.watch($1, $2, $3)", &params).await.map(drop)
    }
}

/// Ends expired sessions, then removes rows of unused locks, each step in its own transaction. A step that finds little to do
/// is the last one of its kind.
async fn sweep(connection: &Connection) {
    for (step, enough) in [("SELECT palisade.sweep()", 1), ("SELECT removed FROM palisade.clean()", CLEAN_ROWS / 2)] {
        for _ in 0..SWEEP_STEPS {
            match connection.row(step, &[]).await {
                Ok(row) if row.try_get::<_, i32>(0).is_ok_and(|done| done >= enough) => {}
                Ok(_) => break,
                Err(failure) => {
                    tracing::debug!(%failure, "cannot sweep");
                    return;
                }
            }
        }
    }
}
