//! The Palisade service as the store of [`Remote`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use palisade_core::{Acquire, Label, LockName, Refusal, SessionEnd, SessionId, Token, Ttl, Value};
use redis_protocol::resp3::types::BytesFrame;
use tokio::sync::mpsc;

use super::Config;
use super::connection::{CALL_TIMEOUT, Connection, Dialer};
use super::error::{NoReply, ReplyError, Unexpected};
use super::hello::{Hello, hello, received, unanswered};
use super::nodes::{ClientAge, NodeErrors};
use super::probe;
use super::wire::{self, Command, field, items, number, optional, small, text, token};
use crate::SignedToken;
use crate::engine::remote::{
    AcquireReply, Backend, CancelReply, ClientState, ConnectError, Connected, ForceRelease, Held, Peer, Remote,
    WaitKey, jittered, keep_alive_timeout, within,
};
use crate::engine::{
    Failure, Forced, Guarantees, Level, LockInfo, Offers, Order, Raised, SessionClock, WakeUp, Watched,
};
use crate::time::{Instant, sleep};

/// The pause before a command is sent again to a service that is not the leader yet.
const LEADER_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause before the nodes are asked again for a leader.
const LONGEST_LEADER_PAUSE: Duration = Duration::from_secs(1);
/// How long a node of a cluster may take to answer a login, before the client tries the next node.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of locks in one reply to LIST.
const PAGE: u64 = 200;

/// Locks kept by the Palisade service.
pub type Service = Remote<ServiceBackend>;

/// A Palisade service.
pub struct ServiceBackend {
    dialer: Rc<Dialer>,
    peer: Peer,
    client: Rc<ClientState<ServiceBackend>>,
    /// Since when the nodes that answer know no leader.
    leaderless_since: Cell<Option<Instant>>,
    /// The nodes that were passed over because they never serve this client, and the reasons that were logged.
    refusals: RefCell<BTreeMap<usize, String>>,
}

impl Backend for ServiceBackend {
    type Config = Config;
    type Connection = Connection;
    type GrantExtra = ();
    type WaitExtra = ();
    type SessionExtra = ();
    type SharedExtra = ();

    const NAME: &'static str = "the service";
    const CALL_TIMEOUT: Duration = CALL_TIMEOUT;

    fn new(config: Config, client: Rc<ClientState<ServiceBackend>>) -> ServiceBackend {
        let (peer, leaderless_since) = (Peer::new(Self::NAME, addresses(&config)), Cell::new(None));
        let (dialer, refusals) = (Rc::new(Dialer::new(config)), RefCell::default());
        ServiceBackend { peer, dialer, client, leaderless_since, refusals }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "palisade",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Engine,
            wake_up: WakeUp::Pushed,
            offers: Offers::ALL,
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn repeat_within(&self) -> Duration {
        if self.dialer.config.addresses.len() > 1 { CALL_TIMEOUT } else { Duration::ZERO }
    }

    fn grant_extra(_: &Acquire, (): &()) {}

    async fn connect(&self) -> Result<Connected<ServiceBackend>, ConnectError> {
        let until = Instant::now() + keep_alive_timeout(self.client.shortest_ttl(), CALL_TIMEOUT);
        loop {
            let tried = self.try_nodes().await;
            let is_leaderless = matches!(&tried, Err(tried) if tried.is_leaderless);
            if !is_leaderless {
                self.leaderless_since.set(None);
            } else if Instant::now() < until {
                // An election takes a second or two.
                let pause = self.leader_pause().min(until - Instant::now());
                sleep(pause).await;
                continue;
            }
            self.dialer.set_silent(None);
            return tried.map_err(|tried| tried.error);
        }
    }

    async fn open_session(&self, connection: &Rc<Connection>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        let command = Command::new(&["SESSION", "OPEN"]).number(ttl.as_ms()).text("LABEL").label(label)?;
        connection.call(&command, |reply| wire::session(field(reply, "session")?)).await
    }

    async fn keep_alive(&self, connection: &Rc<Connection>, id: SessionId, timeout: Duration) -> Result<(), Failure> {
        let lives = |reply: &BytesFrame| match items(reply)? {
            [ttl] => Ok(number(ttl)? > 0),
            _ => Err(Unexpected::instead_of("one TTL", reply)),
        };
        match connection.call_within(timeout, &Command::on_session("KEEPALIVE", id), lives).await? {
            true => Ok(()),
            false => Err(Failure::SessionEnded),
        }
    }

    async fn close_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        connection.call(&Command::on_session("CLOSE", session), |_| Ok(())).await
    }

    async fn acquire(&self, connection: &Rc<Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        connection.acquire(acquire).await
    }

    async fn cancel(&self, connection: &Rc<Connection>, wait: WaitKey) -> Result<CancelReply<()>, Failure> {
        let (session, number) = wait;
        let command = Command::new(&["LOCK", "CANCEL"]).session(session).text("REQ").number(number.get());
        match connection.call(&command, |reply| optional(reply, token)).await {
            Ok(Some(token)) | Err(Failure::Refused(Refusal::AlreadyGranted { token })) => {
                Ok(CancelReply::Granted(token, ()))
            }
            Ok(None) | Err(Failure::Refused(Refusal::NotWaiting)) => Ok(CancelReply::Gone),
            Err(failure) => Err(failure),
        }
    }

    async fn release(&self, connection: &Rc<Connection>, held: &Held, _: Option<&()>) -> Result<(), Failure> {
        connection.call(&Command::on_grant("RELEASE", held), |_| Ok(())).await
    }

    async fn publish(&self, connection: &Rc<Connection>, held: &Held, value: &Value) -> Result<(), Failure> {
        let command = Command::on_grant("PUBLISH", held).value(value)?;
        connection.call(&command, |_| Ok(())).await
    }

    async fn sign(&self, connection: &Rc<Connection>, held: &Held) -> Result<SignedToken, Failure> {
        let command = Command::on_grant("SIGN", held);
        connection.call(&command, |reply| Ok(SignedToken::new(text(reply)?))).await
    }

    async fn force_release(&self, connection: &Rc<Connection>, force: &ForceRelease) -> Result<Forced, Failure> {
        let ForceRelease { lock, only, by, reason } = force;
        let mut command = Command::new(&["LOCK", "BREAK", lock.as_str(), "REASON"]).label(reason)?;
        if let Some(token) = only {
            command = command.text("TOKEN").number(token.get());
        }
        let forced = |reply: &BytesFrame| {
            Ok(Forced { grants: small(field(reply, "grants")?)?, moved_to: token(field(reply, "moved_to")?)? })
        };
        connection.call(&command.text("BY").label(by)?, forced).await
    }

    async fn resize(&self, connection: &Rc<Connection>, lock: &LockName, limit: u32) -> Result<(), Failure> {
        let command = Command::new(&["LOCK", "RESIZE", lock.as_str()]).number(limit.into());
        connection.call(&command, |_| Ok(())).await
    }

    async fn raise_tokens(&self, connection: &Rc<Connection>, above: Token) -> Result<Raised, Failure> {
        let raised = connection.call(&Command::new(&["TOKENS", "RAISE"]).number(above.get()), number).await?;
        Ok(if raised == 1 { Raised::Now } else { Raised::Before })
    }

    async fn inspect(&self, connection: &Rc<Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure> {
        match show(connection, lock, 0).await? {
            Some(page) => all_pages(connection, page).await.map(Some),
            None => Ok(None),
        }
    }

    async fn list(&self, connection: &Rc<Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let (mut locks, mut cursor) = (Vec::new(), 0);
        loop {
            let command = Command::new(&["LOCK", "LIST"]).prefix(prefix).text("CURSOR").number(cursor);
            let read = |reply: &BytesFrame| {
                let locks: Vec<_> =
                    items(field(reply, "locks")?)?.iter().map(wire::lock).collect::<Result<_, _>>()?;
                Ok((locks, number(field(reply, "cursor")?)?))
            };
            let (page, next) = connection.call(&command.text("COUNT").number(PAGE), read).await?;
            for lock in page {
                locks.push(all_pages(connection, lock).await?);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        locks.retain(|lock| lock.name.as_str().starts_with(prefix));
        // A lock that was unused and is in use again between two pages may be on both.
        locks.sort_by(|a, b| a.name.cmp(&b.name));
        locks.dedup_by(|a, b| a.name == b.name);
        Ok(locks)
    }

    async fn watch(&self, connection: &Rc<Connection>, prefix: &str) -> Result<mpsc::Receiver<Watched>, Failure> {
        let watch = self.client.watch(prefix);
        connection.call(&Command::watch(prefix), |_| Ok(())).await?;
        Ok(watch)
    }
}

/// Returns a page of a lock, and the cursor of the next one.
async fn show(connection: &Connection, lock: &LockName, cursor: u64) -> Result<Option<(LockInfo, u64)>, Failure> {
    let command = Command::new(&["LOCK", "SHOW", lock.as_str(), "CURSOR"]).number(cursor);
    connection.call(&command, |reply| optional(reply, wire::lock)).await
}

/// Adds the other pages to the first. A queue that moves meanwhile may be returned with gaps.
async fn all_pages(connection: &Connection, first: (LockInfo, u64)) -> Result<LockInfo, Failure> {
    let (mut lock, mut cursor) = first;
    while cursor > 0 {
        let Some((page, next)) = show(connection, &lock.name, cursor).await? else { break };
        lock.holders.extend(page.holders);
        lock.waiters.extend(page.waiters);
        cursor = next;
    }
    Ok(lock)
}

impl ServiceBackend {
    /// Returns the pause before the nodes are asked again for a leader: an eighth of the time that they have had none. So a quick
    /// election is noticed soon, and many clients of a cluster without a majority do not flood it.
    fn leader_pause(&self) -> Duration {
        let now = Instant::now();
        let since = self.leaderless_since.get().unwrap_or(now);
        self.leaderless_since.set(Some(since));
        let longest = self.client.shortest_ttl().map_or(LONGEST_LEADER_PAUSE, |ttl| ttl / 8);
        let longest = longest.clamp(LEADER_PAUSE, LONGEST_LEADER_PAUSE);
        jittered(((now - since) / 8).clamp(LEADER_PAUSE, longest))
    }

    /// Tries the nodes of the service, the one that led last first.
    async fn try_nodes(&self) -> Result<Connected<ServiceBackend>, NotServed> {
        let mut errors = NodeErrors::new(&self.dialer.config);
        for (node, is_direct) in self.dialer.attempts() {
            // The others will know a leader before this one answers.
            if errors.is_leaderless() && self.dialer.is_silent(node) {
                errors.note(node, ConnectError::transient("does not answer"));
                continue;
            }
            // It has said already that it cannot relay, or could not be reached.
            if !is_direct && errors.is_useless(node) {
                continue;
            }
            match self.try_connect(node, is_direct).await {
                Err(error) => {
                    if error.is_permanent() {
                        // A file may be the reason, and may be replaced before the next attempt. Another node may be well.
                        self.dialer.forget_files();
                    }
                    if error.is_silent() {
                        self.dialer.set_silent(Some(node));
                    }
                    errors.note(node, error);
                }
                Ok(connected) => {
                    self.dialer.try_first(node);
                    self.refusals.borrow_mut().remove(&node);
                    self.warn_of_refusals(&errors);
                    return Ok(connected);
                }
            }
        }
        let age = if self.client.shortest_ttl().is_some() { ClientAge::Old } else { ClientAge::New };
        let is_leaderless = errors.is_leaderless();
        let error = errors.summary(age);
        if !error.is_permanent() {
            self.warn_of_refusals(&errors);
        }
        Err(NotServed { is_leaderless, error })
    }

    /// Logs each node that was passed over because it never serves this client. Once, as each reconnect finds it again.
    fn warn_of_refusals(&self, errors: &NodeErrors) {
        let mut logged = self.refusals.borrow_mut();
        for (node, error) in errors.refusals() {
            let why = error.to_string();
            if logged.get(&node) != Some(&why) {
                tracing::warn!(%error, "passed over a node");
                logged.insert(node, why);
            }
        }
    }

    async fn try_connect(&self, node: usize, is_direct: bool) -> Result<Connected<ServiceBackend>, ConnectError> {
        // If this attempt fails, the sessions must live long enough for another one.
        let limit = keep_alive_timeout(self.client.shortest_ttl(), CALL_TIMEOUT);
        let login_limit = if is_direct { limit.min(LOGIN_TIMEOUT) } else { limit };
        let stream = within(login_limit, self.dialer.dial(node)).await?;
        let peer = Peer::new(Self::NAME, self.dialer.address(node).to_string());
        let connection = Rc::new(Connection::new(peer, self.client.clone()));
        let (driven, dialer) = (connection.clone(), self.dialer.clone());
        let mut driver: LocalBoxFuture<'static, ConnectError> =
            Box::pin(async move { probe::drive(&driven, stream, &dialer, node).await });
        let is_logged_in = Cell::new(false);
        let mut attaching = Box::pin(async {
            let login = within(login_limit, self.log_in(&connection, is_direct)).await;
            let hello = login.map_err(|error| if error.is_silent() { unanswered(error) } else { error })?;
            is_logged_in.set(true);
            probe::check_cluster(&self.dialer, node, &hello, probe::Refused::Smaller).await?;
            within(limit, self.attach_all(&connection)).await?;
            connection.attached();
            self.dialer.set_cluster(hello.cluster);
            Ok::<(), ConnectError>(())
        });
        tokio::select! {
            biased;
            error = &mut driver => {
                // The service may have said why before it closed the connection.
                let refused = attaching.now_or_never().and_then(Result::err);
                let refused = refused.filter(|refused| refused.is_permanent() || refused.is_leaderless());
                return Err(refused.unwrap_or_else(|| if is_logged_in.get() { error } else { unanswered(error) }));
            }
            attached = &mut attaching => attached?,
        }
        drop(attaching);
        Ok(Connected { connection, orphans: Vec::new(), driver })
    }

    /// Attaches all sessions and watches in one write.
    async fn attach_all(&self, connection: &Connection) -> Result<(), ConnectError> {
        let send = |command: Command| (connection.request(&command, CALL_TIMEOUT), command);
        let attach = |session| (session, self.client.tokens(session), send(Command::on_session("ATTACH", session)));
        let attached: Vec<_> = self.client.sessions().into_iter().map(attach).collect();
        let prefixes = {
            let mut watchers = self.client.watchers.borrow_mut();
            drop(watchers.forget_closed());
            watchers.prefixes()
        };
        let watch = |prefix: String| (send(Command::watch(&prefix)), prefix);
        let watched: Vec<_> = prefixes.into_iter().map(watch).collect();
        for (session, known, (reply, command)) in attached {
            self.attached(session, &known, from_leader(connection, reply, &command).await?)?;
        }
        for ((reply, command), prefix) in watched {
            match from_leader(connection, reply, &command).await? {
                Ok(_) => {}
                Err(error @ ReplyError::Denied(_)) => {
                    tracing::warn!(%error, prefix, "a watch ends");
                    self.client.watchers.borrow_mut().end_watch(&prefix);
                }
                Err(error) => return Err(ConnectError::transient(error.to_string())),
            }
        }
        Ok(())
    }

    async fn log_in(&self, connection: &Connection, is_direct: bool) -> Result<Hello, ConnectError> {
        let began_at = Instant::now();
        let hello = hello(connection, self.dialer.config.login.as_ref())?;
        let detail = connection.request(&Command::new(&["CLIENT", "DETAIL", "ON"]), CALL_TIMEOUT);
        let hello = hello.await?;
        connection.logged_in(hello.term, began_at.elapsed());
        hello.check_is_node(&self.dialer.config)?;
        if !hello.is_leader {
            return Err(ConnectError::leaderless());
        }
        if is_direct && hello.is_relayed {
            return Err(ConnectError::transient("this node relays to the one that leads"));
        }
        let detail = wire::accepted(received(detail.await)?);
        detail.map(|_| hello).map_err(|error| ConnectError::transient(error.to_string()))
    }

    /// Handles the reply to the ATTACH of a session.
    fn attached(
        &self,
        session: SessionId,
        known: &HashSet<Token>,
        reply: Result<BytesFrame, ReplyError>,
    ) -> Result<(), ConnectError> {
        match reply {
            Ok(reply) => {
                let held = items(field(&reply, "held")?)?.iter().map(token);
                let held = held.collect::<Result<HashSet<_>, _>>()?;
                self.client.end_missing_grants(session, known, |token| held.contains(&token));
            }
            Err(ReplyError::Refused(Refusal::NoSuchSession { .. })) => {
                self.client.session_ended(session, SessionEnd::Expired);
            }
            // The session was opened by another user. It cannot be kept alive, and is lost when its TTL expires.
            Err(error @ ReplyError::Denied(_)) => {
                tracing::warn!(%error, session = session.get(), "cannot attach a session");
            }
            Err(error) => return Err(ConnectError::transient(error.to_string())),
        }
        Ok(())
    }
}

/// Why no node serves this client.
struct NotServed {
    error: ConnectError,
    /// Whether a node answers, and knows no leader.
    is_leaderless: bool,
}

/// The addresses of all nodes, for messages.
fn addresses(config: &Config) -> String {
    config.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the reply to a command. Repeats the command while the service is not the leader: one that has just started becomes
/// the leader in a moment. The inner error is an error reply.
async fn from_leader(
    connection: &Connection,
    reply: impl Future<Output = Result<BytesFrame, NoReply>>,
    command: &Command,
) -> Result<Result<BytesFrame, ReplyError>, ConnectError> {
    let mut reply = wire::accepted(received(reply.await)?);
    while let Err(ReplyError::NotLeader(_)) = reply {
        sleep(LEADER_PAUSE).await;
        reply = wire::accepted(received(connection.request(command, CALL_TIMEOUT).await)?);
    }
    Ok(reply)
}
