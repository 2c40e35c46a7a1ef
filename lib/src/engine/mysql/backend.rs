//! MySQL as the store of [`Remote`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use palisade_core::{Acquire, Label, LockName, Patience, SessionEnd, SessionId, Token, Ttl, Value};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::connection::{CALL_TIMEOUT, Connection, dial};
use super::poll::{Poll, WATCH_LEASE, begin_watch, fetch_notices, read_events, sweep};
use super::poll_backoff::PollBackoff;
use super::wire::{id, literal, number, settle_granted, text};
use super::{Config, schema, wire};
use crate::BootInstant;
use crate::engine::remote::{
    AcquireReply, Backend, CancelReply, ClientState, ConnectError, Connected, ForceRelease, Held, Peer, Remote,
    WaitKey, check_acquire, within,
};
use crate::engine::sql_text::{explain_denial, other_data, refusal};
use crate::engine::{
    Failure, Forced, Guarantees, Level, LockInfo, Offers, Order, Raised, SessionClock, WakeUp, Watched,
};

/// The longest time that the installation may take on a loaded server: it creates about 60 objects.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Locks kept in a MySQL or MariaDB. [`connect`](Remote::connect) installs the tables and procedures in the database if they
/// are missing.
pub type Mysql = Remote<MysqlBackend>;

/// A MySQL or MariaDB with the tables and procedures `palisade_…`.
pub struct MysqlBackend {
    config: Config,
    peer: Peer,
    client: Rc<ClientState<MysqlBackend>>,
    /// The number of the current connection. MySQL refuses acquires of older connections.
    epoch: Cell<i32>,
    /// The identity of the data: a random UUID that the installation stores.
    cluster: RefCell<Option<String>>,
}

/// The state of the poll that survives a reconnect.
#[derive(Default)]
pub struct PollState {
    /// The number of the last event that watchers were sent; `None` if there are no watchers.
    pub(super) last_event: Cell<Option<u64>>,
    /// Notified when a wait or a watch begins, to wake the poll.
    pub(super) wake_up: Notify,
}

impl Backend for MysqlBackend {
    type Config = Config;
    type Connection = Connection;
    type GrantExtra = LockName;
    /// `None` until the wait is queued.
    type WaitExtra = Option<PollBackoff>;
    /// How many keep-alives of the session the server has confirmed.
    type SessionExtra = u64;
    type SharedExtra = PollState;

    const NAME: &'static str = "MySQL";
    const CALL_TIMEOUT: Duration = CALL_TIMEOUT;

    fn new(config: Config, client: Rc<ClientState<MysqlBackend>>) -> MysqlBackend {
        MysqlBackend { peer: config.peer(), config, client, epoch: Cell::new(0), cluster: RefCell::new(None) }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "mysql",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Store,
            wake_up: WakeUp::Polled,
            offers: Offers { signed: false, ..Offers::ALL },
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn grant_extra(acquire: &Acquire, _: &u64) -> LockName {
        acquire.wants[0].lock.clone()
    }

    async fn connect(&self) -> Result<Connected<MysqlBackend>, ConnectError> {
        let opts = self.config.opts()?;
        let mut conn = within(CALL_TIMEOUT, async { Ok(dial(&opts).await?) }).await?;
        self.epoch.set(self.epoch.get() + 1);
        let cluster = match within(CALL_TIMEOUT, recognise(&mut conn)).await? {
            Some(cluster) => cluster,
            None => within(INSTALL_TIMEOUT, schema::install_if_missing(&mut conn)).await?,
        };
        let orphans = within(CALL_TIMEOUT * 2, self.attach_all(&mut conn, cluster)).await?;
        let (peer, epoch) = (self.peer.clone(), self.epoch.get());
        let connection = Connection::new(conn, opts, self.config.connections, peer, epoch);
        let poll = Poll::new(connection.clone(), self.client.clone());
        let guard = EndOnDrop(connection.clone());
        let driver = Box::pin(async move {
            tokio::select! {
                error = guard.0.given_up.wait() => error,
                never = poll.run() => match never {},
            }
        });
        Ok(Connected { connection, orphans, driver })
    }

    async fn open_session(&self, connection: &Rc<Connection>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        let sql = format!("CALL palisade_open({}, {})", ttl.as_ms(), literal(label.as_str()));
        let row = connection.unless_refused(sql, 1).await?;
        id(&row, 0).ok_or_else(|| self.peer.unexpected("a session without a number"))
    }

    async fn keep_alive(&self, connection: &Rc<Connection>, id: SessionId, timeout: Duration) -> Result<(), Failure> {
        let row = connection.row_within(timeout, format!("CALL palisade_keep_alive({id})")).await?;
        let keep_alives = number(&row, 0).ok_or(Failure::SessionEnded)?;
        self.note_keep_alives(id, keep_alives);
        Ok(())
    }

    async fn close_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        // One call ends a bounded number of grants and waits.
        loop {
            let row = connection.row(format!("CALL palisade_close({session})")).await?;
            settle_granted(&self.client, text(&row, 1));
            if number(&row, 2) != Some(1) {
                return Ok(());
            }
        }
    }

    async fn acquire(&self, connection: &Rc<Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        check_acquire(acquire)?;
        let (reply, ahead) = connection.acquire(acquire).await?;
        if acquire.patience == Patience::Wait && !matches!(reply, AcquireReply::Granted(_)) {
            note_queued(&self.client, acquire, ahead);
        }
        Ok(reply)
    }

    async fn cancel(&self, connection: &Rc<Connection>, wait: WaitKey) -> Result<CancelReply<LockName>, Failure> {
        let (session, number) = wait;
        let row = connection.row(format!("CALL palisade_cancel({session}, {number})")).await?;
        settle_granted(&self.client, text(&row, 4));
        match text(&row, 0).as_deref() {
            Some("granted") => {
                let lock = LockName::new(&text(&row, 3).unwrap_or_default());
                let lock = lock.map_err(|error| self.peer.unexpected(error))?;
                Ok(CancelReply::Granted(connection.token(&row, 1)?, lock))
            }
            Some("gone") => Ok(CancelReply::Gone),
            _ => Err(refusal(&self.peer, text(&row, 2).as_deref())),
        }
    }

    async fn release(&self, connection: &Rc<Connection>, held: &Held, _: Option<&LockName>) -> Result<(), Failure> {
        let released = connection.release(held).await;
        if let Err(Failure::Refused(_)) = released {
            // A notice says why the grant had ended.
            fetch_notices(&self.client, connection, held.session).await;
        }
        settle_granted(&self.client, released?);
        Ok(())
    }

    async fn publish(&self, connection: &Rc<Connection>, held: &Held, value: &Value) -> Result<(), Failure> {
        let Held { session, lock, token } = held;
        let (lock, value) = (literal(lock.as_str()), literal(value.as_bytes()));
        let sql = format!("CALL palisade_publish({session}, {lock}, {token}, {value})");
        connection.unless_refused(sql, 0).await.map(drop)
    }

    async fn force_release(&self, connection: &Rc<Connection>, force: &ForceRelease) -> Result<Forced, Failure> {
        let ForceRelease { lock, only, by, reason } = force;
        let only = only.map_or("NULL".to_owned(), |token| token.to_string());
        let [lock, by, reason] = [lock.as_str(), by.as_str(), reason.as_str()].map(literal);
        let row =
            connection.unless_refused(format!("CALL palisade_force({lock}, {only}, {by}, {reason})"), 2).await?;
        // The holder may be a session of this client.
        self.client.extra.wake_up.notify_one();
        let grants = number(&row, 0).and_then(|grants| u32::try_from(grants).ok()).unwrap_or(0);
        Ok(Forced { grants, moved_to: connection.token(&row, 1)? })
    }

    async fn resize(&self, connection: &Rc<Connection>, lock: &LockName, limit: u32) -> Result<(), Failure> {
        let sql = format!("CALL palisade_resize({}, {limit})", literal(lock.as_str()));
        connection.unless_refused(sql, 0).await.map(drop)
    }

    async fn raise_tokens(&self, connection: &Rc<Connection>, above: Token) -> Result<Raised, Failure> {
        // An expired holder with a lower token would make the call fail, so end it first.
        sweep(connection).await;
        let is_already_above = connection.row(format!(
            "SELECT s.token >= {above} AND NOT EXISTS (SELECT 1 FROM palisade_lock l WHERE l.token < {above}) \
             FROM palisade_state s"
        ));
        let is_already_above = number(&is_already_above.await?, 0) == Some(1);
        let raised = connection.rows(format!("CALL palisade_raise_tokens({above})")).await;
        let why = "only a user with write access to the tables palisade_… can raise tokens; connect as the user that \
             installed them";
        raised.map_err(|failure| explain_denial(failure, why))?;
        Ok(if is_already_above { Raised::Before } else { Raised::Now })
    }

    async fn inspect(&self, connection: &Rc<Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure> {
        Ok(wire::locks(&connection.rows(wire::lock_query(lock)).await?).pop())
    }

    async fn list(&self, connection: &Rc<Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        Ok(wire::locks(&connection.rows(wire::prefix_query(prefix)).await?))
    }

    async fn watch(&self, connection: &Rc<Connection>, prefix: &str) -> Result<mpsc::Receiver<Watched>, Failure> {
        let sent_at = BootInstant::now();
        let last = begin_watch(connection).await?;
        // Send the earlier events to the older watches only, before the new watch is added.
        let position = &self.client.extra.last_event;
        while position.get().is_some_and(|read| read < last) && read_events(&self.client, connection).await {}
        position.set(position.get().max(Some(last)));
        self.client.extra.wake_up.notify_one();
        let watch = self.client.watch(prefix);
        self.client.watch_lease.began(sent_at, WATCH_LEASE);
        Ok(watch)
    }
}

/// Begins to poll a wait that is queued behind this many others.
pub(super) fn note_queued(client: &ClientState<MysqlBackend>, acquire: &Acquire, ahead: u64) {
    let Some(number) = acquire.caller.number else { return };
    let backoff = PollBackoff::new(Instant::now(), ahead);
    if client.wait_extra((acquire.caller.session, number), |_, wait| *wait = Some(backoff)).is_some() {
        client.extra.wake_up.notify_one();
    }
}

/// Ends the workers of a connection when its driver ends, or is dropped with the engine.
struct EndOnDrop(Rc<Connection>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(ConnectError::transient("the client was closed"));
    }
}

impl MysqlBackend {
    /// Checks that the data are the same, and attaches all sessions.
    async fn attach_all(&self, conn: &mut Conn, cluster: String) -> Result<Vec<Held>, ConnectError> {
        match &mut *self.cluster.borrow_mut() {
            Some(known) if *known != cluster => return Err(gone_back("it has lost its data, or is another one")),
            known => *known = Some(cluster),
        }
        if self.client.extra.last_event.get().is_some() {
            // `Remote` tells watchers that they may have missed events.
            self.client.extra.last_event.set(conn.query_first("SELECT events FROM palisade_state").await?);
        }
        let mut orphans = Vec::new();
        for session in self.client.sessions() {
            orphans.extend(self.attach(conn, session).await?);
        }
        // `Remote` repeats the waiting acquires. They are polled when they are queued again.
        for (key, ()) in self.client.waits(|_, _| ()) {
            self.client.wait_extra(key, |_, wait| *wait = None);
        }
        Ok(orphans)
    }

    /// Attaches a session to a new connection. From then on MySQL refuses requests of older connections.
    async fn attach(&self, conn: &mut Conn, session: SessionId) -> Result<Vec<Held>, ConnectError> {
        let known = self.client.tokens(session);
        let rows: Vec<Row> = conn.query(format!("CALL palisade_attach({session}, {})", self.epoch.get())).await?;
        let Some(first) = rows.first() else {
            self.client.session_ended(session, SessionEnd::Expired);
            return Ok(Vec::new());
        };
        if !self.note_keep_alives(session, number(first, 0).unwrap_or(0)) {
            return Err(gone_back(
                "it has gone back to an earlier state, as a replica that was promoted too early or a restored backup has",
            ));
        }
        // Notices that were kept for the session say why a grant is missing.
        let notices: Vec<Row> = conn.query(wire::notices_query(session)).await?;
        if let Some(forget) = wire::handle_notices(&self.client, session, &notices) {
            conn.query_drop(forget).await?;
        }
        Ok(self.client.reconcile(session, &known, &rows.iter().filter_map(wire::attached_grant).collect()))
    }

    /// Notes how many keep-alives the server has stored. Returns false if it has lost some: its data have gone back.
    fn note_keep_alives(&self, session: SessionId, stored: u64) -> bool {
        let note = |known: &mut u64| stored >= std::mem::replace(known, stored.max(*known));
        self.client.session_extra(session, note).unwrap_or(true)
    }
}

/// Returns the identity of the data; `None` if the schema is missing or has to be checked.
async fn recognise(conn: &mut Conn) -> Result<Option<String>, ConnectError> {
    let is_read_only: Option<u8> = conn.query_first("SELECT @@global.read_only").await?;
    if is_read_only == Some(1) {
        let what = "it is a replica, or read-only, and can grant nothing; connect to the primary";
        return Err(ConnectError::transient(what));
    }
    Ok(schema::usable(conn).await)
}

/// The error for a server whose data are older than what this client has seen, so that it could issue tokens again.
fn gone_back(how: &str) -> ConnectError {
    other_data(how, "CALL palisade_raise_tokens(above)")
}
