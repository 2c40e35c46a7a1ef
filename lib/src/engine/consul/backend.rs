//! Consul as the store of [`Remote`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{
    Acquire, Ending, Force, Label, Limit, LockName, Mode, Patience, Refusal, RequestNo, SessionEnd, SessionId, Token,
    Ttl, Value,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep};

use super::Config;
use super::claiming::Turns;
use super::connection::{
    CALL_TIMEOUT, Connection, Dialer, ELECTION, MOST_OPERATIONS, NAMES, Op, Pairs, SessionWatch, Stored,
};
use super::delayed::{OpenSession, Uuids, check_delay, delay_ms};
use super::error::contended;
use super::observer::Observer;
use super::waiting::Waits;
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::queue::{CheckKind, claim_keys, hindered, not_held, number_of};
use crate::engine::claims::requests::{Request, Requests};
use crate::engine::claims::stored::{self, Claim, Claims, Key, Keys, Offset, Pair, Record, SessionBody, to_json};
use crate::engine::host::random_session;
use crate::engine::remote::{
    AcquireReply, Backend, CancelReply, ClientState, ConnectError, Connected, DataLoss, ForceRelease, Held, Peer,
    Remote, RemoteConnection, WaitKey, check_acquire, check_label, check_least, check_most, check_value, jittered,
    keep_alive_timeout,
};
use crate::engine::{
    Failure, Forced, Guarantees, Level, LockInfo, Offers, Order, Raised, SessionClock, Unavailable, WakeUp, Watched,
};

/// How often an operation is tried whose keys other clients keep changing.
pub(super) const ATTEMPTS: u32 = 20;
/// The most locks of one acquire: its transaction writes and reads each, and has three conditions.
const MOST_LOCKS: u64 = (MOST_OPERATIONS as u64 - 3) / 2;
/// How long a query for a session waits. Its answer also shows that the agent works.
const SESSION_WAIT: Duration = Duration::from_secs(10);
/// The pause before a task repeats a request after a transient failure.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Locks kept in Consul.
pub type Consul = Remote<ConsulBackend>;

/// Locks in Consul. A claim is a key that the Consul session of its client holds, and the keys of a lock are ordered by the
/// indexes that created them.
pub struct ConsulBackend {
    peer: Peer,
    shared: Rc<Shared>,
}

/// The part of the backend that tasks share.
pub(super) struct Shared {
    pub(super) client: Rc<ClientState<ConsulBackend>>,
    dialer: Dialer,
    pub(super) keys: Keys,
    /// The sessions of this client.
    pub(super) sessions: RefCell<HashMap<SessionId, OpenSession>>,
    /// Locked while a session for claims with a delay is opened.
    pub(super) opening: tokio::sync::Mutex<()>,
    pub(super) offset: Cell<Offset>,
    /// The highest index that this client has seen.
    seen: Cell<i64>,
    data_loss: DataLoss,
    /// Notified after each transaction that creates a claim.
    pub(super) answered: Notify,
    pub(super) turns: Turns,
    pub(super) waits: Waits,
    /// The claim that each wait was last seen behind, and its version.
    pub(super) behind: RefCell<HashMap<WaitKey, (String, i64)>>,
}

/// The data of a grant that its release needs.
#[derive(Debug, Clone)]
pub struct ConsulGrant {
    pub(super) number: Option<RequestNo>,
    pub(super) request: Request,
    pub(super) delay_ms: u64,
}

/// The task of a waiting acquire, which ends with the wait.
#[derive(Default)]
pub struct WaitTask(pub(super) Option<AbortHandle>);

impl Drop for WaitTask {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Backend for ConsulBackend {
    type Config = Config;
    type Connection = Connection;
    type GrantExtra = ConsulGrant;
    type WaitExtra = WaitTask;
    type SessionExtra = Requests;
    type SharedExtra = ();

    const NAME: &'static str = "Consul";
    const CALL_TIMEOUT: Duration = CALL_TIMEOUT;

    fn new(config: Config, client: Rc<ClientState<ConsulBackend>>) -> ConsulBackend {
        let addresses: Vec<_> = config.nodes.iter().map(ToString::to_string).collect();
        let keys = Keys::new(&config.prefix, NAMES);
        let shared = Shared {
            client,
            waits: Waits::new(keys.locks("")),
            keys,
            dialer: Dialer::new(config),
            sessions: RefCell::default(),
            opening: tokio::sync::Mutex::default(),
            offset: Cell::default(),
            seen: Cell::new(0),
            data_loss: DataLoss::default(),
            answered: Notify::new(),
            turns: Turns::default(),
            behind: RefCell::default(),
        };
        ConsulBackend { peer: Peer::new(ConsulBackend::NAME, addresses.join(", ")), shared: Rc::new(shared) }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "consul",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Engine,
            wake_up: WakeUp::Pushed,
            offers: Offers { resize: false, signed: false, ..Offers::ALL },
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn grant_extra(acquire: &Acquire, requests: &Requests) -> ConsulGrant {
        let number = acquire.caller.number;
        let request = number.and_then(|number| requests.get(number)).unwrap_or_default();
        ConsulGrant { number, request, delay_ms: delay_ms(acquire) }
    }

    async fn connect(&self) -> Result<Connected<ConsulBackend>, ConnectError> {
        let shared = &self.shared;
        shared.data_loss.check()?;
        let ttl = shared.client.shortest_ttl();
        let longest = keep_alive_timeout(ttl, CALL_TIMEOUT);
        // The callers of a client with sessions wait for each attempt, and the reconnect loop makes the next one.
        let patience = ttl.map_or(ELECTION, |_| Duration::ZERO);
        let dialed = shared.dialer.dial(&shared.keys, longest, patience).await?;
        shared.check_data(dialed.index)?;
        let connection = dialed.connection;
        shared.note_offset(&connection, dialed.offset.as_ref())?;
        if let Err(error) = shared.attach(&connection).await {
            shared.dialer.skip_node();
            return Err(error);
        }
        let (driven, driving) = (shared.clone(), connection.clone());
        let driver = Box::pin(async move {
            let error = driving.given_up.wait().await;
            driving.session_watches.borrow_mut().clear();
            driven.dialer.skip_node();
            error
        });
        Ok(Connected { connection, orphans: Vec::new(), driver })
    }

    async fn open_session(&self, connection: &Rc<Connection>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        check_least(Limit::TtlMinMs, ttl.as_ms())?;
        check_most(Limit::TtlMaxMs, ttl.as_ms())?;
        check_label(label)?;
        let (shared, session) = (&self.shared, random_session());
        let uuid = shared.create_session(connection, session, ttl.as_ms(), 0).await?;
        let body = SessionBody { label: label.as_str().to_owned(), ttl_ms: ttl.as_ms(), closed: false };
        let lock = Op::lock(shared.keys.session(session), &to_json(&body), &uuid);
        if connection.txn(&[lock]).await?.is_err() {
            return Err(connection.peer.unexpected("a session that cannot be written"));
        }
        let uuids = Uuids { main: uuid, delayed: BTreeMap::new() };
        shared.sessions.borrow_mut().insert(session, OpenSession { label: label.clone(), uuids });
        shared.watch_session(connection, session);
        Ok(session)
    }

    async fn keep_alive(&self, connection: &Rc<Connection>, id: SessionId, timeout: Duration) -> Result<(), Failure> {
        Ok(self.shared.renew(connection, id, timeout).await?)
    }

    async fn close_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        let shared = &self.shared;
        // The end of this session is no news to its client.
        connection.forget_session(session);
        shared.destroy(connection, session).await?;
        shared.sessions.borrow_mut().remove(&session);
        Ok(())
    }

    async fn detach_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        self.keep_alive(connection, session, CALL_TIMEOUT).await?;
        connection.forget_session(session);
        Ok(())
    }

    async fn acquire(&self, connection: &Rc<Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        let number = number_of(acquire)?;
        match acquire.patience {
            Patience::Try => self.shared.try_acquire(connection, acquire, number).await,
            Patience::Wait => {
                let standing = self.shared.queue(connection, acquire, number, CheckKind::Yes).await?;
                Ok(self.shared.wait_if_blocked(connection, acquire, number, standing))
            }
        }
    }

    async fn cancel(&self, connection: &Rc<Connection>, wait: WaitKey) -> Result<CancelReply<ConsulGrant>, Failure> {
        let (shared, (session, number)) = (&self.shared, wait);
        shared.until_answered(session, number).await;
        let request = shared.requests(session, |requests| requests.get(number)).unwrap_or_default();
        let behind = shared.behind.borrow_mut().remove(&wait);
        let reply = match behind {
            Some(behind) if shared.cancel_behind(connection, wait, &request, &behind).await? => CancelReply::Gone,
            _ => shared.cancel(connection, session, number, request).await?,
        };
        shared.requests(session, |requests| requests.end(number));
        Ok(reply)
    }

    async fn release(
        &self,
        connection: &Rc<Connection>,
        held: &Held,
        grant: Option<&ConsulGrant>,
    ) -> Result<(), Failure> {
        let shared = &self.shared;
        match grant.and_then(|grant| Some((grant, grant.number?))) {
            Some((grant, number)) if grant.request.revision > 0 => {
                let holder = shared.holder(connection, held.session, grant.delay_ms).await?;
                shared.release(connection, held, number, &grant.request, &holder).await
            }
            _ => {
                let (claim, holder) = shared.find_grant(connection, held).await?;
                shared.release(connection, held, claim.number, &Request::of(&claim), &holder).await
            }
        }
    }

    async fn publish(&self, connection: &Rc<Connection>, held: &Held, value: &Value) -> Result<(), Failure> {
        check_value(value)?;
        let (shared, Held { session, lock, .. }) = (&self.shared, held);
        let (mut claim, uuid) = shared.find_grant(connection, held).await?;
        if claim.body.mode != Mode::Exclusive || !claim.body.locks.is_empty() {
            return Err(Refusal::ValueNotPossible.into());
        }
        claim.body.value = Some(stored::hex(value));
        let key = shared.keys.claim(lock, *session, claim.number);
        let operations =
            [Op::check_session(key.as_str(), &uuid), Op::lock(key.as_str(), &to_json(&claim.body), &uuid)];
        match connection.txn(&operations).await? {
            Ok(_) => Ok(()),
            Err(_) => Err(not_held(held).into()),
        }
    }

    async fn force_release(&self, connection: &Rc<Connection>, force: &ForceRelease) -> Result<Forced, Failure> {
        check_label(&force.by)?;
        check_label(&force.reason)?;
        for _ in 0..ATTEMPTS {
            if let Some(forced) = self.shared.force_release(connection, force).await? {
                return Ok(forced);
            }
        }
        Err(contended(&connection.peer).into())
    }

    async fn resize(&self, _: &Rc<Connection>, _: &LockName, _: u32) -> Result<(), Failure> {
        let what =
            "Consul: a semaphore in use cannot be resized; release it, then use it with another number of permits";
        Err(Unavailable::new(what).without_effect().permanent().into())
    }

    async fn raise_tokens(&self, connection: &Rc<Connection>, above: Token) -> Result<Raised, Failure> {
        above.check_raise()?;
        for _ in 0..ATTEMPTS {
            if let Some(raised) = self.shared.raise_tokens(connection, above).await? {
                return Ok(raised);
            }
        }
        Err(contended(&connection.peer).into())
    }

    async fn inspect(&self, connection: &Rc<Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure> {
        let keys = &self.shared.keys;
        let prefixes = [keys.claims(lock), keys.history(lock), keys.forced(lock)];
        loop {
            let pairs = connection.read(prefixes.clone()).await?;
            let [claims, history, forced] = prefixes.each_ref().map(|prefix| pairs.tree(prefix));
            let claims = Claims::read(keys, &claims).map_err(|error| connection.unexpected(error))?;
            let withheld = self.shared.withheld(&pairs, [&claims].into_iter());
            if !self.shared.end_withheld(connection, &withheld).await {
                return Ok(self.shared.info(&pairs, claims, &[history, forced].concat()));
            }
        }
    }

    async fn list(&self, connection: &Rc<Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let (pairs, locks) = loop {
            let prefix = self.shared.keys.locks(prefix);
            let (pairs, _) = connection.get_keys(&prefix, "?recurse&consistent", CALL_TIMEOUT).await?;
            let locks = stored::by_lock(self.shared.readable_claims(&pairs));
            let withheld = self.shared.withheld(&pairs, locks.values());
            if !self.shared.end_withheld(connection, &withheld).await {
                break (pairs, locks);
            }
        };
        Ok(locks.into_values().filter_map(|claims| self.shared.info::<Stored>(&pairs, claims, &[])).collect())
    }

    async fn watch(&self, connection: &Rc<Connection>, prefix: &str) -> Result<mpsc::Receiver<Watched>, Failure> {
        Observer::start(&self.shared, connection).await?;
        Ok(self.shared.client.watch(prefix))
    }

    fn begin_request(&self, acquire: &Acquire) -> Result<(), Failure> {
        let number = number_of(acquire)?;
        check_acquire(acquire)?;
        check_delay(acquire)?;
        let value = acquire.wants.len() as u64;
        if value > MOST_LOCKS {
            return Err(Refusal::OverLimit { limit: Limit::LocksPerRequest, max: MOST_LOCKS, value }.into());
        }
        self.shared.requests(acquire.caller.session, |requests| requests.begin(number, acquire));
        Ok(())
    }

    fn end_request(&self, acquire: &Acquire, failure: Option<&Failure>) {
        let may_be_repeated =
            failure.is_some_and(|failure| failure.may_have_taken_effect() || failure.is_retryable());
        if let Some(number) = acquire.caller.number.filter(|_| !may_be_repeated) {
            self.shared.behind.borrow_mut().remove(&(acquire.caller.session, number));
            self.shared.requests(acquire.caller.session, |requests| requests.end(number));
        }
    }
}

impl Shared {
    pub(super) fn requests<T: Default>(&self, session: SessionId, change: impl FnOnce(&mut Requests) -> T) -> T {
        self.client.session_extra(session, change).unwrap_or_default()
    }

    pub(super) fn label(&self, session: SessionId) -> String {
        self.sessions.borrow().get(&session).map(|open| open.label.as_str().to_owned()).unwrap_or_default()
    }

    /// Reports to every session that Consul has lost data, if its index went back.
    fn check_data(&self, index: i64) -> Result<(), ConnectError> {
        let seen = self.seen.get();
        if index >= seen {
            self.seen.set(index);
            return Ok(());
        }
        let what = format!("its index went back from {seen} to {index}");
        Err(self.data_loss.report(&self.client, &what))
    }

    pub(super) fn note_index(&self, index: i64) {
        self.seen.set(self.seen.get().max(index));
    }

    pub(super) fn note_offset(&self, connection: &Connection, stored: Option<&Stored>) -> Result<(), CallError> {
        let read = Offset::read(&self.keys, stored.map(|stored| (stored.value(), stored.changed())));
        let offset = read.map_err(|error| CallError::unaffected(error.at(&connection.peer)))?;
        if let Some(what) = offset.loss_since(self.offset.get(), &self.keys) {
            let error = self.data_loss.report(&self.client, &what).at(&connection.peer);
            let error = connection.given_up.note(error);
            return Err(CallError::Failed { error, may_have_taken_effect: false });
        }
        self.offset.set(offset);
        Ok(())
    }

    /// Returns all claims among these keys. One unreadable claim does not hide the others.
    pub(super) fn readable_claims(&self, pairs: &Pairs) -> Vec<Claim> {
        let begin = self.keys.locks("");
        let claims = pairs.all().filter(|stored| stored.key().starts_with(begin.as_bytes()));
        let read = |stored: &Stored| match Claim::read(&self.keys, stored) {
            Ok(claim) => Some(claim),
            Err(unexpected) => {
                unexpected.warn();
                None
            }
        };
        claims.filter_map(read).collect()
    }

    // Sessions.

    /// Compares the sessions and grants of this client with Consul, and watches the sessions.
    async fn attach(self: &Rc<Self>, connection: &Rc<Connection>) -> Result<(), ConnectError> {
        for session in self.client.sessions() {
            let pairs = connection.read([self.keys.session(session)]).await?;
            if self.note_session(session, &pairs) {
                self.attach_grants(connection, session).await?;
                self.watch_session(connection, session);
            }
        }
        if self.client.watchers.borrow().is_watching() {
            Observer::start(self, connection).await?;
        }
        Ok(())
    }

    async fn attach_grants(&self, connection: &Connection, session: SessionId) -> Result<(), CallError> {
        let grants = self.client.grants(session, |token, grant| {
            let key = self.keys.claim(grant.request.locks.first()?, session, grant.number?);
            Some((token, key, grant.request.revision))
        });
        let grants: Vec<_> = grants.into_iter().flatten().collect();
        let mut missing = HashSet::new();
        for page in grants.chunks(MOST_OPERATIONS) {
            let pairs = connection.read(page.iter().map(|(_, key, _)| key.clone())).await?;
            let is_missing = |key: &str, revision| {
                let held = pairs.get(key).filter(|stored| stored.session.is_some());
                held.map(Pair::created) != Some(revision)
            };
            missing.extend(
                page.iter().filter(|(_, key, revision)| is_missing(key, *revision)).map(|(token, ..)| *token),
            );
        }
        self.client.end_missing_grants(session, &missing, |_| false);
        Ok(())
    }

    /// Checks that Consul still has the data that this client has seen.
    async fn verify(&self, connection: &Connection, session: SessionId) -> Result<(), CallError> {
        if let Err(error) = self.check_data(connection.index(&self.keys).await?) {
            let error = connection.given_up.note(error.at(&connection.peer));
            return Err(CallError::Failed { error, may_have_taken_effect: false });
        }
        // Other clients may have written meanwhile, so that the index shows nothing.
        self.attach_grants(connection, session).await
    }

    /// Reports the end of a session, and of its grants that were released by force. Returns whether the session exists.
    fn note_session(&self, session: SessionId, pairs: &Pairs) -> bool {
        if pairs.get(&self.keys.session(session)).is_none() {
            self.sessions.borrow_mut().remove(&session);
            self.client.session_ended(session, SessionEnd::Expired);
            return false;
        }
        for record in pairs.all() {
            if let Some(Key::Lost(_, token)) = self.keys.parse(record.key())
                && self.client.grants(session, |its, _| its).contains(&token)
            {
                let force = stored::read_force(record.value(), token);
                self.client.grant_ended(session, token, Ending::Forced(Arc::new(force)));
            }
        }
        true
    }

    /// Watches a session with one query at a time, until it ends or the connection breaks.
    fn watch_session(self: &Rc<Self>, connection: &Rc<Connection>, session: SessionId) {
        let (shared, watched) = (self.clone(), connection.clone());
        let task = spawn_local(async move {
            let (key, mut index, mut seen) = (shared.keys.session(session), 0, Vec::new());
            while !watched.is_broken() {
                let began = Instant::now();
                match watched.next_change(&key, "recurse&consistent", index, SESSION_WAIT).await {
                    Ok((pairs, next)) => {
                        if !shared.note_session(session, &pairs) {
                            return;
                        }
                        let versions = pairs.versions(&key);
                        if versions == seen && began.elapsed() < SESSION_WAIT / 2 {
                            // A restored snapshot ends queries.
                            drop(shared.verify(&watched, session).await);
                        }
                        (index, seen) = (next, versions);
                    }
                    Err(_) => sleep(jittered(RETRY_PAUSE)).await,
                }
            }
        });
        connection.session_watches.borrow_mut().insert(session, SessionWatch(task.abort_handle()));
    }

    /// Returns `None` if a claim has changed meanwhile.
    async fn force_release(&self, connection: &Connection, force: &ForceRelease) -> Result<Option<Forced>, Failure> {
        let (keys, lock) = (&self.keys, &force.lock);
        let pairs = connection.read([keys.claims(lock)]).await?;
        let claims = Claims::read(keys, &pairs.tree(&keys.claims(lock)));
        let claims = claims.map_err(|error| connection.unexpected(error))?;
        let granted = claims.granted();
        let ended = claims.0.into_iter().take(granted);
        let ended: Vec<_> = ended.filter(|claim| force.only.is_none_or(|only| only == claim.token)).collect();
        let Some(highest) = ended.iter().map(|claim| claim.token).max() else {
            return Err(match force.only {
                Some(token) => Refusal::NotHeld { lock: lock.clone(), token }.into(),
                None => Refusal::NoHolder { lock: lock.clone() }.into(),
            });
        };
        let exhausted = |_| Refusal::TokensExhausted { max: Token::MAX };
        let moved_to = Token::new(highest.get() + 1).map_err(exhausted)?;
        let forced = Force { by: force.by.clone(), reason: force.reason.clone(), moved_to };
        let mut transactions: Vec<Vec<Op>> = vec![Vec::new()];
        for claim in &ended {
            let Claim { session, number, token, .. } = *claim;
            let names = claim_keys(keys, &claim.locks(), (session, number));
            let record = Record { session, label: claim.body.label.clone(), token, forced: Some(forced.clone()) };
            let holder = self.holder_of(&pairs, claim);
            let key = keys.claim(lock, session, number);
            let mut operations = vec![match &holder {
                Some(holder) => Op::check_session(key, holder),
                None => Op::check_index(key.as_str(), pairs.get(&key).map_or(0, Pair::changed)),
            }];
            operations.extend(names.into_iter().map(Op::delete));
            let main = match holder {
                Some(holder) if claim.body.delay_ms == 0 => Ok(holder),
                _ => self.uuid(connection, session).await,
            };
            match main {
                Ok(main) => operations.push(Op::lock(keys.lost(session, token), &to_json(&forced), &main)),
                // No client holds it.
                Err(CallError::SessionEnded) => {}
                Err(error) => return Err(error.into()),
            }
            // Two grants may share the place of a record. The newer one replaces the older.
            operations.push(Op::set(Keys::record(&keys.forced(lock), token), &to_json(&record)));
            if transactions.last().is_some_and(|last| last.len() + operations.len() > MOST_OPERATIONS) {
                transactions.push(Vec::new());
            }
            transactions.last_mut().unwrap_or_else(|| unreachable!("it has one")).extend(operations);
        }
        for operations in transactions {
            match connection.txn(&operations).await {
                Ok(Ok(_)) => {}
                // A holder's session has ended meanwhile.
                Ok(Err(_)) | Err(CallError::SessionEnded) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Forced { grants: ended.len() as u32, moved_to }))
    }

    /// Returns `None` if another client has changed the tokens meanwhile.
    ///
    /// A transaction cannot check that there are no claims. So they are read before the tokens are raised and again
    /// afterwards: claims that are created after the raise have higher tokens.
    async fn raise_tokens(&self, connection: &Connection, above: Token) -> Result<Option<Raised>, Failure> {
        let keys = &self.keys;
        let index = connection.index(keys).await?;
        let pairs = connection.read([keys.offset()]).await?;
        self.note_offset(connection, pairs.get(&keys.offset()))?;
        let (offset, index) = (self.offset.get(), index.unsigned_abs());
        let hindering = async |is_hindering: &dyn Fn(&Claim, bool) -> bool| {
            let prefix = keys.locks("");
            let (pairs, _) = connection.get_keys(&prefix, "?recurse&consistent", CALL_TIMEOUT).await?;
            let locks = stored::by_lock(self.readable_claims(&pairs));
            let found = locks.into_iter().find(|(_, claims)| {
                let granted = claims.granted();
                claims.0.iter().enumerate().any(|(nth, claim)| is_hindering(claim, nth < granted))
            });
            Ok::<_, CallError>(found.map(|(lock, _)| lock))
        };
        if index + offset.offset >= above.get() {
            // Current grants keep their tokens, but a claim that waits would be granted with a lower one.
            return match hindering(&|claim, is_granted| claim.token <= above && !is_granted).await? {
                None => Ok(Some(Raised::Before)),
                Some(lock) => Err(hindered(&lock).without_effect().into()),
            };
        }
        // Without the key of the offset there may be a claim with a higher token than the next one would have.
        if let Some(lock) = hindering(&|_, _| true).await? {
            return Err(hindered(&lock).without_effect().into());
        }
        let raised = (above.get() - index).to_string();
        let operations = [Op::check_index(keys.offset(), offset.changed), Op::set(keys.offset(), raised.as_bytes())];
        if connection.txn(&operations).await?.is_err() {
            return Ok(None);
        }
        match hindering(&|claim, _| claim.token <= above).await? {
            None => Ok(Some(Raised::Now)),
            Some(lock) => Err(hindered(&lock).into()),
        }
    }
}
