//! etcd as the store of [`Remote`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, EventType, GetOptions, KeyValue, LeaseGrantOptions, PutOptions, Txn, TxnOp, WatchOptions,
};
use palisade_core::{
    Acquire, Ending, Force, Label, Limit, LockName, Mode, Patience, Refusal, RequestNo, SessionEnd, SessionId, Token,
    Ttl, Value,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, spawn_local};

use super::Config;
use super::connection::{CALL_TIMEOUT, Connection, Dialer, NAMES, SessionWatch, lease};
use super::observer::Observer;
use super::requests::{Request, Requests};
use super::wire::{self, Claim, Claims, Key, Keys, Record, SessionBody, to_json};
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::queue::{CheckKind, claim_keys, hindered, not_held, number_of};
use crate::engine::claims::stored::{self, Offset};
use crate::engine::host::random_session;
use crate::engine::remote::{
    AcquireReply, Backend, CancelReply, ClientState, ConnectError, Connected, DataLoss, ForceRelease, Held, Peer,
    Remote, WaitKey, check_acquire, check_label, check_least, check_most, check_value, keep_alive_timeout,
};
use crate::engine::{
    Failure, Forced, Guarantees, Level, LockInfo, Offers, Order, Raised, SessionClock, Unavailable, WakeUp, Watched,
};

/// How often an operation is tried whose lists other clients keep changing.
pub(super) const ATTEMPTS: u32 = 20;
/// The most operations that are put into one transaction. etcd's own limit is 128 unless it is configured.
const OPERATIONS: usize = 100;
/// The most keys that one read returns.
const PAGE: i64 = 1000;

/// Locks kept in etcd.
pub type Etcd = Remote<EtcdBackend>;

/// Locks in etcd. A claim is a key with the session's lease, and the keys of a lock are ordered by the revisions that created
/// them.
pub struct EtcdBackend {
    peer: Peer,
    shared: Rc<Shared>,
}

/// The part of the backend that tasks share.
pub(super) struct Shared {
    pub(super) client: Rc<ClientState<EtcdBackend>>,
    dialer: Dialer,
    pub(super) keys: Keys,
    labels: RefCell<HashMap<SessionId, Label>>,
    pub(super) offset: Cell<Offset>,
    /// The cluster and its highest revision that this client has seen.
    seen: Cell<Option<(u64, i64)>>,
    data_loss: DataLoss,
    /// Notified after each transaction that creates a claim.
    pub(super) answered: Notify,
}

/// The data of a grant that its release needs.
#[derive(Debug, Clone)]
pub struct EtcdGrant {
    pub(super) number: Option<RequestNo>,
    pub(super) request: Request,
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

impl Backend for EtcdBackend {
    type Config = Config;
    type Connection = Connection;
    type GrantExtra = EtcdGrant;
    type WaitExtra = WaitTask;
    type SessionExtra = Requests;
    type SharedExtra = ();

    const NAME: &'static str = "etcd";
    const CALL_TIMEOUT: Duration = CALL_TIMEOUT;

    fn new(config: Config, client: Rc<ClientState<EtcdBackend>>) -> EtcdBackend {
        let addresses: Vec<_> = config.nodes.iter().map(ToString::to_string).collect();
        let shared = Shared {
            client,
            keys: Keys::new(&config.prefix, NAMES),
            dialer: Dialer::new(config),
            labels: RefCell::default(),
            offset: Cell::default(),
            seen: Cell::new(None),
            data_loss: DataLoss::default(),
            answered: Notify::new(),
        };
        EtcdBackend { peer: Peer::new(EtcdBackend::NAME, addresses.join(", ")), shared: Rc::new(shared) }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "etcd",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Engine,
            wake_up: WakeUp::Pushed,
            offers: Offers { delay: false, resize: false, signed: false, ..Offers::ALL },
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn grant_extra(acquire: &Acquire, requests: &Requests) -> EtcdGrant {
        let number = acquire.caller.number;
        EtcdGrant { number, request: number.and_then(|number| requests.get(number)).unwrap_or_default() }
    }

    async fn connect(&self) -> Result<Connected<EtcdBackend>, ConnectError> {
        let shared = &self.shared;
        shared.data_loss.check()?;
        let longest = keep_alive_timeout(shared.client.shortest_ttl(), CALL_TIMEOUT);
        let mut dialed = shared.dialer.dial(&shared.keys, longest).await?;
        shared.check_data(dialed.cluster, dialed.revision)?;
        let connection = dialed.connection;
        shared.note_offset(&connection, dialed.offset.as_ref())?;
        tokio::select! {
            error = &mut dialed.driver => return Err(error),
            attached = shared.attach(&connection) => attached?,
        }
        let driven = shared.clone();
        let driver = Box::pin(async move {
            let error = dialed.driver.await;
            driven.dialer.skip_member();
            error
        });
        Ok(Connected { connection, orphans: Vec::new(), driver })
    }

    async fn open_session(&self, connection: &Rc<Connection>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        check_least(Limit::TtlMinMs, ttl.as_ms())?;
        check_most(Limit::TtlMaxMs, ttl.as_ms())?;
        check_label(label)?;
        let (shared, session, mut client) = (&self.shared, random_session(), connection.client());
        let id = lease(session)?;
        // etcd counts in seconds, and has a shortest TTL. A session may live longer than its TTL, but never shorter.
        let seconds = ttl.as_ms().div_ceil(1000) as i64;
        let options = LeaseGrantOptions::new().with_id(id);
        connection.call(CALL_TIMEOUT, client.lease_grant(seconds, Some(options))).await?;
        let body = SessionBody { label: label.as_str().to_owned(), ttl_ms: ttl.as_ms(), closed: false };
        let put = TxnOp::put(shared.keys.session(session), to_json(&body), Some(PutOptions::new().with_lease(id)));
        let opened = connection.txn(Txn::new().and_then([put])).await?;
        shared.labels.borrow_mut().insert(session, label.clone());
        shared.watch_session(connection, session, opened.revision + 1);
        Ok(session)
    }

    async fn keep_alive(&self, connection: &Rc<Connection>, id: SessionId, timeout: Duration) -> Result<(), Failure> {
        Ok(connection.keep_alive(&self.shared.keys, id, timeout).await?)
    }

    async fn close_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        let (shared, id, mut client) = (&self.shared, lease(session)?, connection.client());
        // The end of this session is no news to its client.
        connection.forget_session(session);
        // Watchers can tell the end of this lease from an expiry.
        let key = shared.keys.session(session);
        let closed = to_json(&SessionBody { closed: true, ..SessionBody::default() });
        let put = TxnOp::put(key.as_str(), closed, Some(PutOptions::new().with_lease(id)));
        let is_open = Compare::create_revision(key.as_str(), CompareOp::Greater, 0);
        connection.txn(Txn::new().when([is_open]).and_then([put])).await?;
        connection.call(CALL_TIMEOUT, client.lease_revoke(id)).await?;
        shared.labels.borrow_mut().remove(&session);
        Ok(())
    }

    async fn detach_session(&self, connection: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        self.keep_alive(connection, session, CALL_TIMEOUT).await?;
        connection.forget_session(session);
        Ok(())
    }

    async fn acquire(&self, connection: &Rc<Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        let (shared, number) = (&self.shared, number_of(acquire)?);
        let reply = match acquire.patience {
            Patience::Try => shared.try_acquire(connection, acquire, number).await,
            Patience::Wait => {
                let queued = shared.queue(connection, acquire, number, CheckKind::Yes).await;
                queued.map(|standing| shared.wait_if_blocked(connection, acquire, number, standing))
            }
        };
        if let Ok(AcquireReply::Busy) | Err(Failure::Refused(_)) = reply {
            shared.requests(acquire.caller.session, |requests| requests.free_place_of(number));
        }
        reply
    }

    async fn cancel(&self, connection: &Rc<Connection>, wait: WaitKey) -> Result<CancelReply<EtcdGrant>, Failure> {
        let (shared, (session, number)) = (&self.shared, wait);
        shared.until_answered(session, number).await;
        let request = shared.requests(session, |requests| requests.get(number)).unwrap_or_default();
        let reply = shared.cancel(connection, session, number, request.clone()).await?;
        shared.requests(session, |requests| {
            requests.end(number);
            if matches!(reply, CancelReply::Gone) {
                requests.free_place(&request);
            }
        });
        Ok(reply)
    }

    async fn release(
        &self,
        connection: &Rc<Connection>,
        held: &Held,
        grant: Option<&EtcdGrant>,
    ) -> Result<(), Failure> {
        let shared = &self.shared;
        match grant.and_then(|grant| Some((grant.number?, &grant.request))) {
            Some((number, request)) if request.revision > 0 => {
                shared.release(connection, held, number, request).await
            }
            _ => {
                let claim = shared.find_grant(connection, held).await?;
                let request = Request::of(&claim);
                shared.release(connection, held, claim.number, &request).await
            }
        }
    }

    async fn publish(&self, connection: &Rc<Connection>, held: &Held, value: &Value) -> Result<(), Failure> {
        check_value(value)?;
        let (shared, Held { session, lock, .. }) = (&self.shared, held);
        let mut claim = shared.find_grant(connection, held).await?;
        if claim.body.mode != Mode::Exclusive || !claim.body.locks.is_empty() {
            return Err(Refusal::ValueNotPossible.into());
        }
        claim.body.value = Some(wire::hex(value));
        let key = shared.keys.claim(lock, *session, claim.place);
        let stands = Compare::create_revision(key.as_str(), CompareOp::Equal, claim.revision);
        let put = TxnOp::put(key, to_json(&claim.body), Some(PutOptions::new().with_lease(lease(*session)?)));
        let published = connection.txn(Txn::new().when([stands]).and_then([put])).await?;
        if published.succeeded() { Ok(()) } else { Err(not_held(held).into()) }
    }

    async fn force_release(&self, connection: &Rc<Connection>, force: &ForceRelease) -> Result<Forced, Failure> {
        check_label(&force.by)?;
        check_label(&force.reason)?;
        for _ in 0..ATTEMPTS {
            if let Some(forced) = self.shared.force_release(connection, force).await? {
                return Ok(forced);
            }
        }
        Err(contended(connection).into())
    }

    async fn resize(&self, _: &Rc<Connection>, _: &LockName, _: u32) -> Result<(), Failure> {
        let what =
            "etcd: a semaphore in use cannot be resized; release it, then use it with another number of permits";
        Err(Unavailable::new(what).without_effect().permanent().into())
    }

    async fn raise_tokens(&self, connection: &Rc<Connection>, above: Token) -> Result<Raised, Failure> {
        above.check_raise()?;
        for _ in 0..ATTEMPTS {
            if let Some(raised) = self.shared.raise_tokens(connection, above).await? {
                return Ok(raised);
            }
        }
        Err(contended(connection).into())
    }

    async fn inspect(&self, connection: &Rc<Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure> {
        let keys = &self.shared.keys;
        let reads = [keys.claims(lock), keys.history(lock), keys.forced(lock)].map(read_all);
        let reads = connection.txn(Txn::new().and_then(reads)).await?.reads();
        let [claims, history, forced] = &reads[..] else { return Err(self.peer.unexpected("an answer in parts")) };
        let claims = Claims::read(keys, claims.kvs()).map_err(|error| connection.unexpected(error))?;
        Ok(claims.info(&[history.kvs(), forced.kvs()].concat()))
    }

    async fn list(&self, connection: &Rc<Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let (claims, _) = self.shared.read_claims(connection, prefix).await?;
        Ok(wire::by_lock(claims).values().filter_map(|claims| claims.info::<KeyValue>(&[])).collect())
    }

    async fn watch(&self, connection: &Rc<Connection>, prefix: &str) -> Result<mpsc::Receiver<Watched>, Failure> {
        let watch = self.shared.client.watch(prefix);
        Observer::start(&self.shared, connection).await?;
        Ok(watch)
    }

    fn begin_request(&self, acquire: &Acquire) -> Result<(), Failure> {
        let number = number_of(acquire)?;
        check_acquire(acquire)?;
        self.shared.check_size(&self.peer, acquire, number)?;
        self.shared.requests(acquire.caller.session, |requests| requests.begin_in_free_place(number, acquire));
        Ok(())
    }

    fn end_request(&self, acquire: &Acquire, failure: Option<&Failure>) {
        let may_be_repeated =
            failure.is_some_and(|failure| failure.may_have_taken_effect() || failure.is_retryable());
        if let Some(number) = acquire.caller.number.filter(|_| !may_be_repeated) {
            self.shared.requests(acquire.caller.session, |requests| requests.end(number));
        }
    }
}

/// The failure of an operation whose lists other clients kept changing.
pub(super) fn contended(connection: &Connection) -> CallError {
    let error = ConnectError::transient("other clients change the lock all the time; try again").at(&connection.peer);
    CallError::Failed { error, may_have_taken_effect: false }
}

pub(super) fn read_all(prefix: String) -> TxnOp {
    TxnOp::get(prefix, Some(GetOptions::new().with_prefix()))
}

/// The end of the range of keys with this prefix.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        // UTF-8 has no byte 255.
        *last += 1;
    }
    end
}

impl Shared {
    pub(super) fn requests<T: Default>(&self, session: SessionId, change: impl FnOnce(&mut Requests) -> T) -> T {
        self.client.session_extra(session, change).unwrap_or_default()
    }

    pub(super) fn label(&self, session: SessionId) -> String {
        self.labels.borrow().get(&session).map(|label| label.as_str().to_owned()).unwrap_or_default()
    }

    /// Reports to every session that etcd has lost data, if its revision went back or it is another cluster.
    fn check_data(&self, cluster: u64, revision: i64) -> Result<(), ConnectError> {
        let what = match self.seen.get() {
            Some((seen, _)) if seen != cluster => format!("it is another cluster ({cluster:x}, not {seen:x})"),
            Some((_, seen)) if seen > revision => format!("its revision went back from {seen} to {revision}"),
            _ => {
                self.seen.set(Some((cluster, revision)));
                return Ok(());
            }
        };
        Err(self.data_loss.report(&self.client, &what))
    }

    pub(super) fn note_revision(&self, revision: i64) {
        if let Some((cluster, seen)) = self.seen.get() {
            self.seen.set(Some((cluster, seen.max(revision))));
        }
    }

    pub(super) fn note_offset(&self, connection: &Connection, kv: Option<&KeyValue>) -> Result<(), CallError> {
        let read = Offset::read(&self.keys, kv.map(|kv| (kv.value(), kv.mod_revision())));
        let offset = read.map_err(|error| CallError::unaffected(error.at(&connection.peer)))?;
        if let Some(what) = offset.loss_since(self.offset.get(), &self.keys) {
            let error = self.data_loss.report(&self.client, &what).at(&connection.peer);
            let error = connection.given_up.note(error);
            return Err(CallError::Failed { error, may_have_taken_effect: false });
        }
        self.offset.set(offset);
        Ok(())
    }

    pub(super) fn read_lists(
        &self,
        connection: &Connection,
        reads: &[etcd_client::GetResponse],
    ) -> Result<Vec<Claims>, CallError> {
        let read = |read: &etcd_client::GetResponse| Claims::read(&self.keys, read.kvs());
        reads.iter().map(read).collect::<Result<_, _>>().map_err(|error| connection.unexpected(error))
    }

    // Sessions.

    /// Compares the sessions and grants of this client with etcd, and watches the sessions.
    async fn attach(self: &Rc<Self>, connection: &Rc<Connection>) -> Result<(), ConnectError> {
        for session in self.client.sessions() {
            let key = self.keys.session(session);
            let read = connection.get(key.as_str(), Some(GetOptions::new().with_prefix())).await?;
            if !read.kvs().iter().any(|kv| kv.key() == key.as_bytes()) {
                self.client.session_ended(session, SessionEnd::Expired);
                continue;
            }
            let revision = super::connection::revision(read.header());
            for kv in read.kvs() {
                if let Some(Key::Lost(_, token)) = self.keys.parse(kv.key())
                    && self.client.grants(session, |its, _| its).contains(&token)
                {
                    self.lost(session, token, kv.value());
                }
            }
            self.attach_grants(connection, session).await?;
            self.watch_session(connection, session, revision + 1);
        }
        if self.client.watchers.borrow().is_watching() {
            Observer::start(self, connection).await?;
        }
        Ok(())
    }

    async fn attach_grants(&self, connection: &Connection, session: SessionId) -> Result<(), CallError> {
        let grants = self.client.grants(session, |token, grant| {
            let key = self.keys.claim(grant.request.locks.first()?, session, grant.request.place);
            Some((token, key, grant.request.revision))
        });
        let grants: Vec<_> = grants.into_iter().flatten().collect();
        let mut missing = HashSet::new();
        for page in grants.chunks(OPERATIONS) {
            let reads: Vec<_> = page.iter().map(|(_, key, _)| TxnOp::get(key.as_str(), None)).collect();
            let reads = connection.txn(Txn::new().and_then(reads)).await?.reads();
            for ((token, _, revision), read) in page.iter().zip(reads) {
                if read.kvs().first().map(KeyValue::create_revision) != Some(*revision) {
                    missing.insert(*token);
                }
            }
        }
        self.client.end_missing_grants(session, &missing, |_| false);
        Ok(())
    }

    fn lost(&self, session: SessionId, token: Token, record: &[u8]) {
        let force = wire::read_force(record, token);
        self.client.grant_ended(session, token, Ending::Forced(Arc::new(force)));
    }

    /// Reports the end of a session, and of its grants that are released by force.
    fn watch_session(self: &Rc<Self>, connection: &Rc<Connection>, session: SessionId, from: i64) {
        let options = WatchOptions::new().with_prefix();
        let mut watch = connection.watch(self.keys.session(session), options, from);
        let (shared, given_up) = (self.clone(), connection.clone());
        let task = spawn_local(async move {
            while let Some(response) = watch.next().await {
                for event in response.events() {
                    let Some(kv) = event.kv() else { continue };
                    match (shared.keys.parse(kv.key()), event.event_type()) {
                        (Some(Key::Session(_)), EventType::Delete) => {
                            shared.client.session_ended(session, SessionEnd::Expired);
                        }
                        (Some(Key::Lost(_, token)), EventType::Put) => shared.lost(session, token, kv.value()),
                        _ => {}
                    }
                }
            }
            // The next connection reads the session again.
            given_up.given_up.note(ConnectError::transient("a compaction has removed events").at(&given_up.peer));
        });
        connection.session_watches.borrow_mut().insert(session, SessionWatch(task.abort_handle()));
    }

    /// Returns `None` if a claim has changed meanwhile.
    async fn force_release(&self, connection: &Connection, force: &ForceRelease) -> Result<Option<Forced>, Failure> {
        let (keys, lock) = (&self.keys, &force.lock);
        let read = connection.get(keys.claims(lock), Some(GetOptions::new().with_prefix())).await?;
        let claims = Claims::read(keys, read.kvs()).map_err(|error| connection.unexpected(error))?;
        let granted = claims.granted();
        // A claim without a lease ends too, if it is not granted: no session gives it up.
        let is_ended = |(nth, claim): &(usize, Claim)| match force.only {
            Some(only) => *nth < granted && claim.token == only,
            None => *nth < granted || claim.is_abandoned,
        };
        let ended: Vec<_> = claims.0.into_iter().enumerate().filter(is_ended).map(|(_, claim)| claim).collect();
        let Some(highest) = ended.iter().map(|claim| claim.token).max() else {
            return Err(match force.only {
                Some(token) => Refusal::NotHeld { lock: lock.clone(), token }.into(),
                None => Refusal::NoHolder { lock: lock.clone() }.into(),
            });
        };
        let exhausted = |_| Refusal::TokensExhausted { max: Token::MAX };
        let moved_to = Token::new(highest.get() + 1).map_err(exhausted)?;
        let forced = Force { by: force.by.clone(), reason: force.reason.clone(), moved_to };
        let mut transactions = vec![(Vec::new(), Vec::new())];
        for claim in &ended {
            let Claim { session, place, token, .. } = *claim;
            let own = keys.claim(lock, session, place);
            let stands = Compare::create_revision(own.as_str(), CompareOp::Equal, claim.revision);
            // The other entries of a copied claim may be missing, or of another revision. An acquire deletes them.
            let names = match claim.is_abandoned {
                true => vec![own],
                false => claim_keys(keys, &claim.locks(), (session, place)),
            };
            let label = claim.body.label.clone();
            let record = to_json(&Record { session, label, token, forced: Some(forced.clone()) });
            let mut operations: Vec<_> = names.into_iter().map(|key| TxnOp::delete(key, None)).collect();
            if let Ok(lease) = lease(session) {
                // A session without its lease has no client to tell.
                let is_open = Compare::lease(keys.session(session), CompareOp::Equal, lease);
                let of_session = Some(PutOptions::new().with_lease(lease));
                let tell = TxnOp::put(keys.lost(session, token), to_json(&forced), of_session);
                operations.push(TxnOp::txn(Txn::new().when([is_open]).and_then([tell])));
            }
            operations.push(TxnOp::put(Keys::record(&keys.forced(lock), token), record, None));
            if transactions.last().is_some_and(|(_, done)| done.len() + operations.len() > OPERATIONS) {
                transactions.push((Vec::new(), Vec::new()));
            }
            let Some((conditions, done)) = transactions.last_mut() else { unreachable!("it has one") };
            conditions.push(stands);
            // Two grants may share the place of a record. The newer one replaces the older.
            if ended.len() > 1 {
                operations.pop();
            }
            done.extend(operations);
        }
        if let (true, Some(claim)) = (ended.len() > 1, ended.last()) {
            let (session, token, label) = (claim.session, claim.token, claim.body.label.clone());
            let record = to_json(&Record { session, label, token, forced: Some(forced.clone()) });
            let Some((_, operations)) = transactions.last_mut() else { unreachable!("it has one") };
            operations.push(TxnOp::put(Keys::record(&keys.forced(lock), token), record, None));
        }
        for (conditions, operations) in transactions {
            match connection.txn(Txn::new().when(conditions).and_then(operations)).await {
                Ok(answer) if answer.succeeded() => {}
                // A holder's session has ended meanwhile.
                Ok(_) | Err(CallError::SessionEnded) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Forced { grants: ended.len() as u32, moved_to }))
    }

    /// Returns `None` if another client has changed the tokens or created a claim meanwhile.
    async fn raise_tokens(&self, connection: &Connection, above: Token) -> Result<Option<Raised>, Failure> {
        let (keys, all) = (&self.keys, self.keys.locks(""));
        let one = GetOptions::new().with_prefix().with_limit(1);
        let reads = [TxnOp::get(keys.offset(), None), TxnOp::get(all.as_str(), Some(one))];
        let answer = connection.txn(Txn::new().and_then(reads)).await?;
        let reads = answer.reads();
        let [key, claims] = &reads[..] else { return Err(connection.peer.unexpected("an answer in parts")) };
        self.note_offset(connection, key.kvs().first())?;
        let (offset, revision) = (self.offset.get(), answer.revision.unsigned_abs());
        if revision + offset.offset >= above.get() {
            // Current grants keep their tokens, but a claim that waits would be granted with a lower one.
            let locks = stored::by_lock(self.read_claims(connection, "").await?.0);
            let waits_lower = |claims: &Claims| claims.0[claims.granted()..].iter().any(|claim| claim.token <= above);
            return match locks.iter().find(|(_, claims)| waits_lower(claims)) {
                None => Ok(Some(Raised::Before)),
                Some((lock, _)) => Err(hindered(lock).without_effect().into()),
            };
        }
        if let Some(kv) = claims.kvs().first() {
            let lock = match keys.parse(kv.key()) {
                Some(Key::Claim(lock, ..)) => lock.to_string(),
                _ => kv.key().escape_ascii().to_string(),
            };
            return Err(hindered(lock).without_effect().into());
        }
        let conditions = [
            Compare::mod_revision(keys.offset(), CompareOp::Equal, offset.changed),
            Compare::create_revision(all, CompareOp::Equal, 0).with_prefix(),
        ];
        let raised = (above.get() - revision).to_string();
        let put = TxnOp::put(keys.offset(), raised, None);
        let answer = connection.txn(Txn::new().when(conditions).and_then([put])).await?;
        Ok(answer.succeeded().then_some(Raised::Now))
    }

    /// Reads all claims for locks whose names have this prefix, ordered by their keys, and the revision at which they were read.
    pub(super) async fn read_claims(
        &self,
        connection: &Connection,
        prefix: &str,
    ) -> Result<(Vec<Claim>, i64), CallError> {
        let begin = self.keys.locks(prefix);
        let (mut from, mut revision, mut claims) = (begin.clone().into_bytes(), 0, Vec::new());
        loop {
            let options = GetOptions::new().with_range(end_of(&begin)).with_limit(PAGE).with_revision(revision);
            let page = connection.get(from, Some(options)).await?;
            if revision == 0 {
                revision = super::connection::revision(page.header());
            }
            for kv in page.kvs() {
                // One unreadable claim must not hide the others.
                match Claim::read(&self.keys, kv) {
                    Ok(claim) => claims.push(claim),
                    Err(unexpected) => unexpected.warn(),
                }
            }
            match page.kvs().last() {
                Some(last) if page.more() => from = [last.key(), &[0]].concat(),
                _ => return Ok((claims, revision)),
            }
        }
    }
}
