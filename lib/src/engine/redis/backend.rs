//! Redis as the store of [`Remote`].

use std::cell::Cell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{
    Acquire, Label, Limit, LockName, Refusal, RequestNo, SessionEnd, SessionId, Token, Ttl, Value as Published,
};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::connection::{CALL_TIMEOUT, Connection, Dialer};
use super::error::CallError;
use super::namespace::NamespaceState;
use super::numbers::RequestNumbers;
use super::wire::{self, Reply, Request};
use super::{Config, DataLost};
use crate::BootInstant;
use crate::engine::remote::{
    AcquireReply, Backend, CancelReply, ClientState, ConnectError, Connected, ForceRelease, Held, Peer, Reconnector,
    Remote, WaitKey, check_least, check_most, keep_alive_timeout, within,
};
use crate::engine::{
    Failure, Forced, Guarantees, Level, LockInfo, Offers, Order, Raised, SessionClock, Unavailable, WakeUp, Watched,
};

/// The longest pause between polls of waits. Polls are needed because a push can be lost with its connection, and because Redis
/// ends expired sessions only within calls.
const LONGEST_POLL: Duration = Duration::from_secs(1);
/// The shortest pause between polls, so that sessions that expire one after the other do not cause a call each.
const SHORTEST_POLL: Duration = Duration::from_millis(5);
/// How long Redis publishes events after the last renewal of a watch. Without watches it saves that work.
const WATCH_LEASE: Duration = Duration::from_secs(30);
/// How often a watch is renewed: two renewals may fail.
const WATCH_RENEWAL: Duration = Duration::from_secs(10);
/// The most locks that one call describes. Redis serves no other client during a call.
const LOCKS_PER_CALL: usize = 100;

/// Locks kept in Redis.
pub type Redis = Remote<RedisBackend>;

/// Locks in Redis, changed by Lua code that runs there.
pub struct RedisBackend {
    peer: Peer,
    shared: Rc<Shared>,
}

/// The part of the backend that the driver of a connection shares.
struct Shared {
    client: Rc<ClientState<RedisBackend>>,
    dialer: Rc<Dialer>,
    namespace: Rc<NamespaceState>,
    poll_at: Cell<Instant>,
    poll_sooner: Notify,
    /// When the watch on the current connection must be renewed; `None` if there is no watch.
    renew_watch_at: Cell<Option<Instant>>,
}

/// The data of a grant that its release needs.
pub struct RedisGrant {
    /// The first of its locks; `None` if this client does not know it.
    lock: Option<LockName>,
    /// Whether its acquire was sent only once, so that no late copy of it can arrive.
    was_never_retried: bool,
}

pub(super) fn peer(config: &Config) -> Peer {
    let addresses: Vec<_> = config.nodes.iter().map(ToString::to_string).collect();
    Peer::new(RedisBackend::NAME, addresses.join(", "))
}

impl Backend for RedisBackend {
    type Config = Config;
    type Connection = Connection;
    type GrantExtra = RedisGrant;
    type WaitExtra = ();
    type SessionExtra = RequestNumbers;
    type SharedExtra = ();

    const NAME: &'static str = "Redis";
    const CALL_TIMEOUT: Duration = CALL_TIMEOUT;

    fn new(config: Config, client: Rc<ClientState<RedisBackend>>) -> RedisBackend {
        let channel = format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        let peer = peer(&config);
        let shared = Shared {
            client,
            namespace: Rc::new(NamespaceState::new(config.key(), channel)),
            dialer: Rc::new(Dialer::new(config)),
            poll_at: Cell::new(Instant::now() + LONGEST_POLL),
            poll_sooner: Notify::new(),
            renew_watch_at: Cell::new(None),
        };
        RedisBackend { peer, shared: Rc::new(shared) }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "redis",
            level: Level::HealthyOnly,
            order: Order::Fair,
            session_clock: SessionClock::Store,
            wake_up: WakeUp::Pushed,
            offers: Offers { signed: false, ..Offers::ALL },
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn grant_extra(acquire: &Acquire, numbers: &RequestNumbers) -> RedisGrant {
        let was_never_retried = acquire.caller.number.is_some_and(|number| numbers.was_never_retried(number));
        RedisGrant { lock: acquire.wants.first().map(|want| want.lock.clone()), was_never_retried }
    }

    async fn connect(&self) -> Result<Connected<RedisBackend>, ConnectError> {
        if let Some(lost) = self.shared.namespace.data_loss() {
            return Err(lost.connect_error());
        }
        let longest = keep_alive_timeout(self.shared.client.shortest_ttl(), CALL_TIMEOUT);
        let (sender, pushes) = mpsc::unbounded_channel();
        let mut dialed = within(longest, self.shared.dialer.dial(sender)).await?;
        let closed = ConnectError::closed().at(&dialed.peer);
        let connection = Rc::new(Connection::new(
            dialed.redis,
            dialed.peer,
            self.shared.dialer.clone(),
            self.shared.namespace.clone(),
        ));
        tokio::select! {
            () = &mut dialed.driver => return Err(closed),
            attached = within(longest, self.shared.attach(&connection)) => attached?,
        }
        let (shared, driven) = (self.shared.clone(), connection.clone());
        let driver = Box::pin(async move {
            let error = tokio::select! {
                biased;
                () = &mut dialed.driver => closed,
                error = driven.given_up.wait() => error,
                never = shared.receive_pushes(pushes) => match never {},
                never = shared.poll_loop(&driven) => match never {},
            };
            driven.given_up.note(error)
        });
        Ok(Connected { connection, orphans: Vec::new(), driver })
    }

    async fn open_session(&self, connection: &Rc<Connection>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        check_least(Limit::TtlMinMs, ttl.as_ms())?;
        check_most(Limit::TtlMaxMs, ttl.as_ms())?;
        wire::check_label(label)?;
        let run_id = self.shared.namespace.run_id.borrow().clone();
        match self
            .shared
            .request(connection, Request::new("open").arg(ttl.as_ms()).arg(label.as_str()).arg(run_id))
            .await?
        {
            Reply::Opened(session) => Ok(session),
            other => Err(unexpected(connection, &other)),
        }
    }

    async fn keep_alive(&self, connection: &Rc<Connection>, id: SessionId, timeout: Duration) -> Result<(), Failure> {
        let request = Request::new("alive").arg(id.get());
        done(connection, &self.shared.request_within(connection, &request, timeout).await?)
    }

    async fn close_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        let request = Request::new("close").arg(session.get()).locks(&self.shared.locks(session));
        done(connection, &self.shared.request(connection, request).await?)
    }

    /// Sends the names of the locks, which other clients do not know. Redis then stores them with the session.
    async fn detach_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        let request = Request::new("alive").arg(session.get()).locks(&self.shared.locks(session));
        done(connection, &self.shared.request(connection, request).await?)
    }

    async fn acquire(&self, connection: &Rc<Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        let number = number_of(acquire)?;
        let lowest = self.shared.numbers(acquire.caller.session, |numbers| {
            numbers.send(number);
            numbers.lowest_repeatable()
        });
        let request = Request::acquire(acquire, number, lowest.clamp(1, number.get()));
        match self.shared.request(connection, request).await? {
            Reply::Granted(token) => Ok(AcquireReply::Granted(token)),
            Reply::Busy => Ok(AcquireReply::Busy),
            Reply::Queued { due_ms } => {
                self.shared.poll_after(due_ms);
                Ok(AcquireReply::Queued)
            }
            other => Err(unexpected(connection, &other)),
        }
    }

    async fn cancel(&self, connection: &Rc<Connection>, wait: WaitKey) -> Result<CancelReply<RedisGrant>, Failure> {
        let (session, number) = wait;
        let (lock, was_never_retried) =
            self.shared.numbers(session, |numbers| (numbers.lock(number), numbers.was_never_retried(number)));
        let request = Request::new("cancel").arg(session.get()).arg(number.get()).locks(&lock);
        let reply = match self.shared.request(connection, request).await? {
            Reply::Gone => CancelReply::Gone,
            Reply::Granted(token) => CancelReply::Granted(token, RedisGrant { lock, was_never_retried }),
            other => return Err(unexpected(connection, &other)),
        };
        self.shared.numbers(session, |numbers| numbers.settle(number));
        Ok(reply)
    }

    async fn release(
        &self,
        connection: &Rc<Connection>,
        held: &Held,
        grant: Option<&RedisGrant>,
    ) -> Result<(), Failure> {
        let Held { session, lock, token } = held;
        // Noted before it is sent: a close that overtakes the reply names this lock too.
        let lowest = self.shared.numbers(*session, |numbers| {
            numbers.note_release(lock, false);
            numbers.lowest_repeatable()
        });
        let request = Request::release(held, lowest, grant.is_some_and(|grant| grant.was_never_retried));
        let reply = self.shared.request(connection, request).await;
        let is_certain = !reply.as_ref().is_err_and(Failure::may_have_taken_effect);
        self.shared.numbers(*session, |numbers| numbers.note_release(lock, is_certain));
        match reply {
            Err(Failure::Refused(Refusal::OtherSession { .. })) if grant.is_some() => {
                Err(self.shared.data_lost(connection, DataLost::Taken { token: token.get() }).into())
            }
            reply => done(connection, &reply?),
        }
    }

    async fn publish(&self, connection: &Rc<Connection>, held: &Held, value: &Published) -> Result<(), Failure> {
        wire::check_value(value)?;
        let Held { session, lock, token } = held;
        let request = Request::new("publish").arg(session.get()).arg(lock.as_str()).arg(token.get());
        done(connection, &self.shared.request(connection, request.arg(value.as_bytes())).await?)
    }

    async fn force_release(&self, connection: &Rc<Connection>, force: &ForceRelease) -> Result<Forced, Failure> {
        let ForceRelease { lock, only, by, reason } = force;
        wire::check_label(by)?;
        wire::check_label(reason)?;
        let only = only.map(|token| token.get().to_string()).unwrap_or_default();
        let request = Request::new("force").arg(lock.as_str()).arg(only).arg(by.as_str()).arg(reason.as_str());
        match self.shared.request(connection, request).await? {
            Reply::Forced { grants, moved_to } => Ok(Forced { grants, moved_to }),
            other => Err(unexpected(connection, &other)),
        }
    }

    async fn resize(&self, connection: &Rc<Connection>, lock: &LockName, limit: u32) -> Result<(), Failure> {
        wire::check_permits(limit)?;
        done(
            connection,
            &self.shared.request(connection, Request::new("resize").arg(lock.as_str()).arg(limit)).await?,
        )
    }

    async fn raise_tokens(&self, connection: &Rc<Connection>, above: Token) -> Result<Raised, Failure> {
        let run_id = self.shared.namespace.run_id.borrow().clone();
        let raised = match self.shared.request(connection, Request::new("raise").arg(above.get()).arg(run_id)).await?
        {
            Reply::Raised { is_new: true } => Raised::Now,
            Reply::Raised { is_new: false } => Raised::Before,
            other => return Err(unexpected(connection, &other)),
        };
        match self.shared.missing_replicas(connection).await? {
            None => Ok(raised),
            Some(missing) => {
                let what = format!(
                    "the primary has raised the tokens, but {missing}; repair the replicas, then raise again"
                );
                Err(Unavailable::new(what).into())
            }
        }
    }

    async fn inspect(&self, connection: &Rc<Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure> {
        Ok(self.shared.describe(connection, std::slice::from_ref(lock)).await?.pop())
    }

    async fn list(&self, connection: &Rc<Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let names = self.shared.names(connection, prefix).await?.into_iter().collect::<Vec<_>>();
        let mut locks = Vec::new();
        for page in names.chunks(LOCKS_PER_CALL) {
            locks.extend(self.shared.describe(connection, page).await?);
        }
        Ok(locks)
    }

    async fn watch(&self, connection: &Rc<Connection>, prefix: &str) -> Result<mpsc::Receiver<Watched>, Failure> {
        let watch = self.shared.client.watch(prefix);
        self.shared.renew_watch(connection).await?;
        Ok(watch)
    }

    fn begin_request(&self, acquire: &Acquire) -> Result<(), Failure> {
        let number = number_of(acquire)?;
        wire::check_acquire(acquire)?;
        self.shared.numbers(acquire.caller.session, |numbers| numbers.begin(number, &acquire.wants[0].lock));
        Ok(())
    }

    fn end_request(&self, acquire: &Acquire, failure: Option<&Failure>) {
        let may_be_repeated =
            failure.is_some_and(|failure| failure.may_have_taken_effect() || failure.is_retryable());
        if let Some(number) = acquire.caller.number.filter(|_| !may_be_repeated) {
            self.shared.numbers(acquire.caller.session, |numbers| numbers.settle(number));
        }
    }

    async fn confirm_grant(&self, session: SessionId, connections: &Reconnector<Connection>) -> Result<(), Failure> {
        if self.shared.dialer.config.replicas.is_none() {
            return Ok(());
        }
        let connection = connections.connection().await?;
        // WAIT counts the replicas that have the last write of this connection. An earlier connection may have written the
        // grant, so make one more write here.
        self.keep_alive(&connection, session, CALL_TIMEOUT).await?;
        match self.shared.missing_replicas(&connection).await? {
            None => Ok(()),
            Some(missing) => {
                let what = format!("the lock was granted, but {missing}, so it was released; repair the replicas");
                Err(Unavailable::new(what).without_effect().into())
            }
        }
    }
}

/// Returns the number of an acquire, by which Redis recognises a repeated one.
fn number_of(acquire: &Acquire) -> Result<RequestNo, Failure> {
    acquire.caller.number.ok_or_else(|| {
        let what = "an acquire needs a request number, so that another connection can repeat it";
        Unavailable::new(what).without_effect().permanent().into()
    })
}

fn unexpected(connection: &Connection, reply: &Reply) -> Failure {
    connection.peer.unexpected(format_args!("{reply:?}"))
}

fn done(connection: &Connection, reply: &Reply) -> Result<(), Failure> {
    if matches!(reply, Reply::Done) { Ok(()) } else { Err(unexpected(connection, reply)) }
}

impl Shared {
    async fn request(&self, connection: &Rc<Connection>, request: Request) -> Result<Reply, Failure> {
        self.request_within(connection, &request, CALL_TIMEOUT).await
    }

    async fn request_within(
        &self,
        connection: &Rc<Connection>,
        request: &Request,
        timeout: Duration,
    ) -> Result<Reply, Failure> {
        match self.call(connection, request, timeout).await? {
            Reply::SessionEnded => Err(Failure::SessionEnded),
            Reply::Refused(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }

    /// Sends a request, unless Redis has lost data.
    async fn call(
        &self,
        connection: &Rc<Connection>,
        request: &Request,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        if let Some(lost) = self.namespace.data_loss() {
            return Err(lost.call_error(&connection.peer));
        }
        match connection.request(request, timeout).await? {
            Reply::DataLost(lost) => Err(self.data_lost(connection, lost)),
            reply => Ok(reply),
        }
    }

    /// Reports the loss of data to every session. All later calls of this client fail.
    fn data_lost(&self, connection: &Connection, lost: DataLost) -> CallError {
        let lost = self.namespace.note_data_loss(lost);
        tracing::error!(%lost, "Redis has lost data");
        let error = lost.call_error(&connection.peer);
        self.client.data_lost(&format!("Redis has lost data: {lost}"), || error.clone().into());
        error
    }

    /// Changes the request numbers of a session of this client.
    fn numbers<T: Default>(&self, session: SessionId, change: impl FnOnce(&mut RequestNumbers) -> T) -> T {
        self.client.session_extra(session, change).unwrap_or_default()
    }

    /// Returns the locks that a session holds or may hold: an acquire whose reply was lost may have been granted.
    fn locks(&self, session: SessionId) -> Vec<LockName> {
        let mut locks = self.numbers(session, |numbers| numbers.locks());
        locks.extend(self.client.grants(session, |_, grant| grant.lock.clone()).into_iter().flatten());
        locks
    }

    /// Subscribes, checks that no data are lost, and attaches sessions and watches.
    async fn attach(&self, connection: &Rc<Connection>) -> Result<(), ConnectError> {
        connection.subscribe(&self.namespace.channel()).await?;
        self.namespace.run_id.replace(connection.run_id().await?);
        let sessions = self.client.sessions();
        let mut request = Request::new("attach");
        request = request.arg(&*self.namespace.run_id.borrow()).arg(&*self.namespace.recorded_run_id.borrow());
        let mut known = Vec::new();
        for session in &sessions {
            known.push(self.client.tokens(*session));
            let grants = self.client.grants(*session, |token, grant| Some((grant.lock.clone()?, token)));
            let grants: Vec<_> = grants.into_iter().flatten().collect();
            request = request.arg(session.get()).arg(grants.len());
            request =
                grants.iter().fold(request, |request, (lock, token)| request.arg(lock.as_str()).arg(token.get()));
        }
        let found = match self.call(connection, &request, CALL_TIMEOUT).await? {
            Reply::Attached(found) => found,
            other => return Err(connection.unexpected(wire::Unexpected(format!("{other:?}"))).into()),
        };
        for ((session, known), held) in sessions.into_iter().zip(known).zip(found) {
            match held {
                Some(held) => self.client.end_missing_grants(session, &known, |token| held.contains(&token)),
                None => self.client.session_ended(session, SessionEnd::Expired),
            }
        }
        self.renew_watch_at.set(None);
        if self.client.watchers.borrow().is_watching() {
            self.renew_watch(connection).await?;
        }
        Ok(())
    }

    async fn receive_pushes(&self, mut pushes: UnboundedReceiver<PushInfo>) -> Infallible {
        loop {
            let Some(push) = pushes.recv().await else { std::future::pending().await };
            if let (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) =
                (push.kind, &push.data[..])
            {
                wire::handle_push(&self.client, channel, message);
            }
        }
    }

    /// Polls waits and renews the watch until the connection ends.
    async fn poll_loop(&self, connection: &Rc<Connection>) -> Infallible {
        loop {
            tokio::select! {
                () = sleep_until(self.poll_at.get()) => {
                    self.poll_at.set(Instant::now() + LONGEST_POLL);
                    self.poll(connection).await;
                }
                () = self.poll_sooner.notified() => {}
            }
        }
    }

    /// Makes the next poll earlier, if a session or lock-delay that a wait may depend on ends in `due_ms`.
    fn poll_after(&self, due_ms: Option<u64>) {
        let due = due_ms.map_or(LONGEST_POLL, |ms| Duration::from_millis(ms.saturating_add(1)));
        let at = Instant::now() + due.clamp(SHORTEST_POLL, LONGEST_POLL);
        if at < self.poll_at.get() {
            self.poll_at.set(at);
            self.poll_sooner.notify_one();
        }
    }

    /// Fetches the states of all waits. The call also ends expired sessions, of all clients.
    async fn poll(&self, connection: &Rc<Connection>) {
        let waits: Vec<_> = self.client.waits(|_, ()| ()).into_iter().map(|(key, ())| key).collect();
        let is_watching = self.client.watchers.borrow().is_watching();
        if waits.is_empty() && !is_watching {
            return;
        }
        if is_watching && self.renew_watch_at.get().is_some_and(|at| at <= Instant::now()) {
            // If it fails, the next poll retries it.
            drop(self.renew_watch(connection).await);
        }
        let request = waits
            .iter()
            .fold(Request::new("poll"), |request, (session, number)| request.arg(session.get()).arg(number.get()));
        let Ok(Reply::Polled { due_ms, states }) = self.request(connection, request).await else { return };
        for (key, state) in waits.into_iter().zip(states) {
            match state {
                Reply::Granted(token) => self.client.settle(key, Ok(token)),
                Reply::Refused(refusal) => self.client.settle(key, Err(refusal.into())),
                Reply::SessionEnded => self.client.session_ended(key.0, SessionEnd::Expired),
                // Still queued, or not arrived yet.
                _ => {}
            }
        }
        self.poll_after(due_ms);
    }

    /// Starts the watch on this connection, or renews its lease.
    async fn renew_watch(&self, connection: &Rc<Connection>) -> Result<(), CallError> {
        if self.renew_watch_at.get().is_none() {
            connection.subscribe(&self.namespace.event_channel()).await?;
        }
        let (sent_at, renew_at) = (BootInstant::now(), Instant::now() + WATCH_RENEWAL);
        let watch = Request::new("watch").arg(WATCH_LEASE.as_millis() as u64);
        self.call(connection, &watch, CALL_TIMEOUT).await?;
        self.client.watches_renewed(sent_at, WATCH_LEASE);
        self.renew_watch_at.set(Some(renew_at));
        self.poll_after(Some(0));
        Ok(())
    }

    /// Waits for the replicas. Returns a message if too few of them have the last write of this connection.
    async fn missing_replicas(&self, connection: &Connection) -> Result<Option<String>, Failure> {
        let Some(replicas) = self.dialer.config.replicas else { return Ok(None) };
        let confirmed = connection.replicated(replicas).await?;
        let (count, ms) = (replicas.count, replicas.timeout.as_millis());
        let missing = || format!("only {confirmed} of {count} replicas had it within {ms} ms");
        Ok((confirmed < count).then(missing))
    }

    async fn describe(&self, connection: &Rc<Connection>, locks: &[LockName]) -> Result<Vec<LockInfo>, Failure> {
        match self.request(connection, Request::new("inspect").locks(locks)).await? {
            Reply::Locks(locks) => Ok(locks),
            other => Err(unexpected(connection, &other)),
        }
    }

    /// Returns the names of all locks with this prefix.
    async fn names(&self, connection: &Connection, prefix: &str) -> Result<BTreeSet<LockName>, Failure> {
        let (mut names, mut cursor, pattern) = (BTreeSet::new(), 0, pattern(prefix));
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&self.namespace.key).arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
            let page = connection.call(&scan, CALL_TIMEOUT).await?;
            cursor = read_page(&page, &mut names).map_err(|error| connection.unexpected(error))?;
            if cursor == 0 {
                return Ok(names);
            }
        }
    }
}

/// Adds the locks of a page of HSCAN; returns the cursor of the next one.
fn read_page(page: &Value, names: &mut BTreeSet<LockName>) -> Result<u64, wire::Unexpected> {
    let [next, fields] = wire::items(page)? else { return Err(wire::Unexpected(format!("{page:?} as a page"))) };
    for field in wire::items(fields)?.iter().step_by(2) {
        let name = wire::bytes(field)?.strip_prefix(b"l").unwrap_or_default();
        // One unreadable name must not hide the others.
        match str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()) {
            Some(name) => drop(names.insert(name)),
            None => tracing::warn!(name = %name.escape_ascii(), "a lock has a name that this build does not accept"),
        }
    }
    wire::number(next)
}

/// Returns the HSCAN pattern for the fields of locks whose names have this prefix.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::from("l");
    for character in prefix.chars() {
        if "*?[]\\^-".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}
