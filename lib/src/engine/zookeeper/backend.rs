//! ZooKeeper as the store of [`Remote`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{
    Acquire, Ending, Force, Label, Limit, LockName, Mode, Refusal, RequestNo, SessionEnd, SessionId, Token, Ttl,
    Value,
};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};
use zookeeper_client::{Client, CreateMode, Error, MultiWriteError, SessionState, StateWatcher};

use super::calls::{CALL_TIMEOUT, Claim, LockState, Store, too_busy};
use super::config::Config;
use super::error::{self, NodeError};
use super::session::Session;
use super::wire::{self, EndedData, ForcedData, LostData, SessionData};
use crate::BootInstant;
use crate::engine::remote::{
    AcquireReply, Backend, CancelReply, ClientState, ConnectError, Connected, DataLoss, ForceRelease, GivenUp, Held,
    Peer, Remote, RemoteConnection, WaitKey, check_acquire, check_label, check_least, check_most, check_value,
    jittered,
};
use crate::engine::{
    EndedInfo, Failure, Forced, Guarantees, HolderInfo, Level, LockInfo, Offers, Order, Raised, SessionClock,
    Unavailable, WaiterInfo, WakeUp, Watched, host,
};

/// How often a transaction is tried whose conditions other clients change.
const TRIES: usize = 20;
/// The pause before a failed read of a session's node is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// Locks kept in ZooKeeper.
pub type Zookeeper = Remote<ZookeeperBackend>;

/// Locks in ZooKeeper: nodes that clients create, in the order in which ZooKeeper creates them.
pub struct ZookeeperBackend {
    shared: Rc<Shared>,
}

/// The part of the backend that its tasks share.
pub(super) struct Shared {
    pub(super) client: Rc<ClientState<ZookeeperBackend>>,
    pub(super) store: Store,
    sessions: RefCell<HashMap<SessionId, Rc<Session>>>,
    /// Sessions whose close was not answered in time.
    closing: RefCell<HashMap<SessionId, StateWatcher>>,
    /// The task that serves all watches.
    pub(super) watching: RefCell<Option<AbortHandle>>,
    /// The highest transaction that this client has seen.
    last_seen: Cell<i64>,
    data_loss: DataLoss,
}

/// The connection that [`Remote`] sees. It never breaks: each session has a client of its own, which reconnects.
pub struct Connection {
    given_up: GivenUp,
}

impl RemoteConnection for Connection {
    fn is_broken(&self) -> bool {
        self.given_up.is_noted()
    }
}

impl Drop for ZookeeperBackend {
    fn drop(&mut self) {
        for session in self.shared.sessions.borrow().values() {
            session.abort_tasks();
        }
        if let Some(watching) = self.shared.watching.take() {
            watching.abort();
        }
    }
}

impl Backend for ZookeeperBackend {
    type Config = Config;
    type Connection = Connection;
    type GrantExtra = ();
    type WaitExtra = ();
    type SessionExtra = ();
    type SharedExtra = ();

    const NAME: &'static str = "ZooKeeper";
    const CALL_TIMEOUT: Duration = CALL_TIMEOUT;

    fn new(config: Config, client: Rc<ClientState<ZookeeperBackend>>) -> ZookeeperBackend {
        let store = Store::new(Peer::new(Self::NAME, config.cluster()), config);
        let shared = Shared {
            client,
            store,
            sessions: RefCell::default(),
            closing: RefCell::default(),
            watching: RefCell::default(),
            last_seen: Cell::new(0),
            data_loss: DataLoss::default(),
        };
        ZookeeperBackend { shared: Rc::new(shared) }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "zookeeper",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Engine,
            wake_up: WakeUp::Pushed,
            offers: Offers { delay: false, detach: false, resize: false, signed: false, ..Offers::ALL },
        }
    }

    fn peer(&self) -> &Peer {
        &self.shared.store.peer
    }

    fn grant_extra(_: &Acquire, (): &()) {}

    async fn connect(&self) -> Result<Connected<ZookeeperBackend>, ConnectError> {
        self.shared.store.prepare().await?;
        let connection = Rc::new(Connection { given_up: GivenUp::default() });
        let driven = connection.clone();
        let driver = Box::pin(async move { driven.given_up.wait().await });
        Ok(Connected { connection, orphans: Vec::new(), driver })
    }

    async fn open_session(&self, _: &Rc<Connection>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        check_least(Limit::TtlMinMs, ttl.as_ms())?;
        check_most(Limit::TtlMaxMs, ttl.as_ms())?;
        check_label(label)?;
        self.shared.open_session(ttl, label).await
    }

    async fn keep_alive(&self, _: &Rc<Connection>, session: SessionId, limit: Duration) -> Result<(), Failure> {
        let session = self.shared.session(session)?;
        let path = self.shared.store.paths.session(session.id);
        let check = Store::send_check(&session.client, [path.as_str()]);
        self.shared.check_session(&session, self.shared.store.answer(limit, check).await.map(drop))?;
        session.renewed_at.set(BootInstant::now());
        Ok(())
    }

    async fn close_session(&self, _: &Rc<Connection>, session: SessionId) -> Result<(), Failure> {
        let open = self.shared.sessions.borrow_mut().remove(&session);
        let state = match open {
            Some(open) => {
                open.abort_tasks();
                Some(open.client.state_watcher())
            }
            None => self.shared.closing.borrow_mut().remove(&session),
        };
        let Some(mut state) = state else { return Ok(()) };
        // The driver closes the session when the last handle of its client is dropped.
        let closed = async { while !state.peek_state().is_terminated() && !state.changed().await.is_terminated() {} };
        if timeout(CALL_TIMEOUT, closed).await.is_ok() {
            return Ok(());
        }
        self.shared.closing.borrow_mut().insert(session, state);
        Err(error::outside(&self.shared.store.peer, Error::Timeout))
    }

    async fn acquire(&self, _: &Rc<Connection>, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        let session = self.shared.session(acquire.caller.session)?;
        let number = number_of(acquire)?;
        let request = session.request(number, acquire, &self.shared.store);
        let reply = self.shared.acquire(&session, &request).await;
        if let Err(Failure::Refused(_)) = reply {
            session.forget(number);
        }
        reply
    }

    async fn cancel(&self, _: &Rc<Connection>, wait: WaitKey) -> Result<CancelReply<()>, Failure> {
        let session = self.shared.session(wait.0)?;
        let request = session.requests.borrow().get(&wait.1).cloned();
        let Some(request) = request else {
            session.note_cancelled(wait.1);
            return Ok(CancelReply::Gone);
        };
        if let Some(token) = request.token.get() {
            return Ok(CancelReply::Granted(token, ()));
        }
        request.is_cancelled.set(true);
        request.stop_waiting();
        self.shared.withdraw(&session, &request).await?;
        Ok(CancelReply::Gone)
    }

    async fn release(&self, _: &Rc<Connection>, held: &Held, _: Option<&()>) -> Result<(), Failure> {
        let session = self.shared.session(held.session)?;
        let request = session.granted(held)?;
        let store = &self.shared.store;
        let failure = |error| error::in_session(&store.peer, error);
        let mut writer = session.client.new_multi_writer();
        for node in &*request.nodes.borrow() {
            writer.add_delete(node, None).map_err(failure)?;
        }
        let (token, label) = (held.token.get(), session.label.clone());
        let ended = EndedData { token, session: session.id.get(), label, forced: None };
        for (parent, data) in request.parents.iter().zip(&*request.lock_data.borrow()) {
            writer.add_set_data(wire::lock_node(parent), &data.with(&ended).0, None).map_err(failure)?;
        }
        match store.answer(CALL_TIMEOUT, writer.commit()).await {
            Ok(_) => {
                session.forget(request.number);
                Ok(())
            }
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => {
                session.forget(request.number);
                Err(not_held(held).into())
            }
            Err(error) => Err(failure(error.into())),
        }
    }

    async fn publish(&self, _: &Rc<Connection>, held: &Held, value: &Value) -> Result<(), Failure> {
        check_value(value)?;
        let session = self.shared.session(held.session)?;
        let request = session.granted(held)?;
        if request.is_set() || request.wants[0].mode != Mode::Exclusive {
            return Err(Refusal::ValueNotPossible.into());
        }
        request.data.borrow_mut().publish(value);
        let (data, node) = (wire::write(&*request.data.borrow()), request.nodes.borrow()[0].clone());
        match self.shared.store.answer(CALL_TIMEOUT, session.client.set_data(&node, &data, None)).await {
            Ok(_) => Ok(()),
            Err(Error::NoNode) => Err(not_held(held).into()),
            Err(error) => Err(error::in_session(&self.shared.store.peer, error)),
        }
    }

    async fn force_release(&self, _: &Rc<Connection>, force: &ForceRelease) -> Result<Forced, Failure> {
        check_label(&force.by)?;
        check_label(&force.reason)?;
        let client = self.shared.any_client().await?;
        for _ in 0..TRIES {
            if let Some(forced) = self.shared.try_force(&client, force).await? {
                return Ok(forced);
            }
        }
        Err(too_busy(&self.shared.store.peer))
    }

    async fn resize(&self, _: &Rc<Connection>, _: &LockName, _: u32) -> Result<(), Failure> {
        Err(Unavailable::new("this engine does not resize semaphores").without_effect().permanent().into())
    }

    async fn raise_tokens(&self, _: &Rc<Connection>, above: Token) -> Result<Raised, Failure> {
        above.check_raise()?;
        let client = self.shared.any_client().await?;
        self.shared.raise_tokens(&client, above).await
    }

    async fn inspect(&self, _: &Rc<Connection>, lock: &LockName) -> Result<Option<LockInfo>, Failure> {
        let client = self.shared.any_client().await?;
        let locks = std::slice::from_ref(lock);
        let states = self.shared.store.answer(CALL_TIMEOUT, self.shared.store.confirmed_states(&client, locks)).await;
        let states = states.map_err(|error| error::outside(&self.shared.store.peer, error))?;
        Ok(states.into_iter().next().and_then(|state| lock_info(lock, state)))
    }

    async fn list(&self, _: &Rc<Connection>, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let (client, store) = (self.shared.any_client().await?, &self.shared.store);
        let failure = |error: NodeError| error::outside(&store.peer, error);
        store.answer(CALL_TIMEOUT, store.confirm(&client)).await.map_err(|error| failure(error.into()))?;
        let names = store.answer(CALL_TIMEOUT, store.lock_names(&client, prefix)).await.map_err(failure)?;
        let states = store.answer(CALL_TIMEOUT, store.lock_states(&client, &names)).await.map_err(failure)?;
        Ok(names.iter().zip(states).filter_map(|(name, state)| lock_info(name, state)).collect())
    }

    async fn watch(&self, _: &Rc<Connection>, prefix: &str) -> Result<mpsc::Receiver<Watched>, Failure> {
        self.shared.start_watching().await?;
        Ok(self.shared.client.watch(prefix))
    }

    fn begin_request(&self, acquire: &Acquire) -> Result<(), Failure> {
        number_of(acquire)?;
        check_acquire(acquire)?;
        Ok(())
    }

    fn end_request(&self, acquire: &Acquire, failure: Option<&Failure>) {
        // Busy and refused requests are forgotten when they are answered, held ones when they are released.
        let (Some(failure), Some(number)) = (failure, acquire.caller.number) else { return };
        if !failure.may_have_taken_effect()
            && let Ok(session) = self.shared.session(acquire.caller.session)
            && session.requests.borrow().get(&number).is_some_and(|request| request.nodes.borrow().is_empty())
        {
            session.forget(number);
        }
    }
}

/// Returns the number of an acquire, which names its claims.
fn number_of(acquire: &Acquire) -> Result<RequestNo, Failure> {
    acquire.caller.number.ok_or_else(|| {
        let what = "an acquire in ZooKeeper needs a request number, so that its nodes can be found again";
        Unavailable::new(what).without_effect().permanent().into()
    })
}

pub(super) fn not_held(held: &Held) -> Refusal {
    Refusal::NotHeld { lock: held.lock.clone(), token: held.token }
}

// Sessions.
impl Shared {
    pub(super) fn session(&self, session: SessionId) -> Result<Rc<Session>, Failure> {
        self.sessions.borrow().get(&session).cloned().ok_or(Failure::SessionEnded)
    }

    pub(super) fn note_seen(&self, transaction: i64) {
        self.last_seen.set(self.last_seen.get().max(transaction));
    }

    /// Ends all sessions of this client, because ZooKeeper has lost data.
    fn report_data_loss(&self, what: &str) -> Failure {
        for session in self.sessions.take().values() {
            session.abort_tasks();
        }
        self.data_loss.report(&self.client, what).at(&self.store.peer).failure(false)
    }

    fn check_data_loss(&self) -> Result<(), Failure> {
        self.data_loss.check().map_err(|error| error.at(&self.store.peer).failure(false))
    }

    /// Reads the number that is added to new tokens. It never falls, unless data is lost.
    pub(super) async fn load_offset(&self, client: &Client) -> Result<(), Failure> {
        let (store, path) = (&self.store, self.store.paths.offset());
        let before = store.offset().number;
        let load = async {
            // Otherwise a server that is behind could return an older number.
            client.sync(&path).await?;
            store.load_offset(client).await
        };
        store.answer(CALL_TIMEOUT, load).await.map_err(|error| error::in_session(&store.peer, error))?;
        let found = store.offset().number;
        if found < before {
            return Err(self.report_data_loss(&format!("the node '{path}' went back from {before} to {found}")));
        }
        Ok(())
    }

    /// Returns a client for calls that belong to no session.
    pub(super) async fn any_client(&self) -> Result<Rc<Client>, Failure> {
        self.check_data_loss()?;
        let of_session = self.sessions.borrow().values().next().map(|session| session.client.clone());
        match of_session.filter(|client| client.state() == SessionState::SyncConnected) {
            Some(client) => Ok(client),
            None => self.store.base().await,
        }
    }

    async fn open_session(self: &Rc<Self>, ttl: Ttl, label: &Label) -> Result<SessionId, Failure> {
        self.check_data_loss()?;
        let store = &self.store;
        let failure = |error| error::outside(&store.peer, error);
        // A server passes keep-alives on to the leader now and then. If it dies first, the leader counts from an earlier one,
        // which is at most a third of the TTL older: the keeper renews that often.
        let needed = Duration::from_millis(ttl.as_ms() + ttl.as_ms() / 3);
        let asked = needed.min(Duration::from_millis(i32::MAX as u64));
        let client = store.dial(asked).await.map_err(|error| error.at(&store.peer).failure(false))?;
        let granted = client.session_timeout();
        if granted < needed {
            let max = granted.as_millis() as u64 * 3 / 4;
            return Err(Refusal::OverLimit { limit: Limit::TtlMaxMs, max, value: ttl.as_ms() }.into());
        }
        let data = SessionData { label: label.as_str().to_owned(), lost: Vec::new() };
        let (data, options) = (wire::write(&data), store.options(CreateMode::Ephemeral));
        let id = loop {
            let id = host::random_session();
            let path = store.paths.session(id);
            match store.answer(CALL_TIMEOUT, client.create(&path, &data, &options)).await {
                Ok((stat, _)) => {
                    let (seen, now) = (self.last_seen.get(), stat.czxid);
                    if now <= seen {
                        return Err(
                            self.report_data_loss(&format!("its transactions went back from {seen} to {now}"))
                        );
                    }
                    self.note_seen(now);
                    break id;
                }
                Err(Error::NodeExists) => {}
                Err(Error::NoNode) => return Err(error::no_namespace(&store.peer, &store.paths.root)),
                Err(error) => return Err(failure(error)),
            }
        };
        let ttl = Duration::from_millis(ttl.as_ms());
        let session = Rc::new(Session::new(id, client, label.as_str().to_owned(), ttl));
        let tasks = [
            spawn_local(self.clone().follow_state(session.client.state_watcher(), id)),
            spawn_local(self.clone().follow_losses(session.clone())),
            spawn_local(self.clone().end_unrenewed(session.clone())),
        ];
        session.tasks.borrow_mut().extend(tasks.iter().map(|task| task.abort_handle()));
        self.sessions.borrow_mut().insert(id, session);
        store.close_base();
        Ok(id)
    }

    /// Notifies the session when ZooKeeper has ended it.
    async fn follow_state(self: Rc<Self>, mut state: StateWatcher, session: SessionId) {
        while !state.changed().await.is_terminated() {}
        self.session_lost(session);
    }

    /// Ends a session whose keeper has not kept it alive: the driver alone would do so as long as this process runs.
    async fn end_unrenewed(self: Rc<Self>, session: Rc<Session>) {
        loop {
            let ends_at = session.renewed_at.get() + session.ttl;
            if ends_at.has_passed() {
                return self.session_lost(session.id);
            }
            sleep(ends_at.left()).await;
        }
    }

    /// Forgets a session, which closes its client, and notifies it.
    pub(super) fn session_lost(&self, id: SessionId) {
        let session = self.sessions.borrow_mut().remove(&id);
        if let Some(session) = session {
            session.abort_tasks();
        }
        self.client.session_ended(id, SessionEnd::Expired);
    }

    /// Interprets the check of a session's node.
    pub(super) fn check_session(
        &self,
        session: &Session,
        checked: Result<(), MultiWriteError>,
    ) -> Result<(), Failure> {
        let failure = match checked {
            Ok(()) => return Ok(()),
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => Failure::SessionEnded,
            Err(error) => error::in_session(&self.store.peer, Error::from(error)),
        };
        if matches!(failure, Failure::SessionEnded) {
            self.session_lost(session.id);
        }
        Err(failure)
    }

    /// Reports grants that were released by force: their records are in the session's node.
    async fn follow_losses(self: Rc<Self>, session: Rc<Session>) {
        let path = self.store.paths.session(session.id);
        let mut reported = HashSet::new();
        loop {
            match session.client.get_and_watch_data(&path).await {
                Ok((data, _, watcher)) => {
                    let lost = wire::read::<SessionData>(&data).lost;
                    for record in lost.iter().filter(|record| !reported.contains(&record.token)) {
                        self.report_loss(&session, record);
                    }
                    reported = lost.iter().map(|record| record.token).collect();
                    watcher.changed().await;
                }
                Err(Error::NoNode) => return self.session_lost(session.id),
                Err(Error::SessionExpired | Error::ClientClosed | Error::AuthFailed) => return,
                Err(_) => sleep(jittered(PAUSE)).await,
            }
        }
    }

    fn report_loss(self: &Rc<Self>, session: &Rc<Session>, record: &LostData) {
        let (Ok(token), Ok(moved_to)) = (Token::new(record.token), Token::new(record.moved_to)) else { return };
        let (by, reason) = (Label::new(&record.by), Label::new(&record.reason));
        let ending = Ending::Forced(Arc::new(Force { by, reason, moved_to }));
        let number = session.grants.borrow_mut().remove(&token);
        match number {
            Some(number) => {
                session.requests.borrow_mut().remove(&number);
                self.client.grant_ended(session.id, token, ending);
            }
            None => {
                let requests = session.requests.borrow();
                if requests.values().any(|request| request.token.get().is_none()) {
                    session.early_losses.borrow_mut().insert(token, ending);
                }
            }
        }
    }

    /// Reports a loss that was noticed before its grant, once the grant is known.
    pub(super) fn report_early_loss(&self, session: &Session, token: Token) {
        if let Some(ending) = session.early_losses.borrow_mut().remove(&token) {
            let (client, session) = (self.client.clone(), session.id);
            spawn_local(async move { client.grant_ended(session, token, ending) });
        }
    }
}

impl Session {
    /// Returns the request of a grant.
    fn granted(&self, held: &Held) -> Result<Rc<super::session::Request>, Refusal> {
        let number = self.grants.borrow().get(&held.token).copied();
        let request = number.and_then(|number| self.requests.borrow().get(&number).cloned());
        let is_its = |request: &Rc<super::session::Request>| request.wants.iter().any(|want| want.lock == held.lock);
        request.filter(is_its).ok_or_else(|| not_held(held))
    }
}

// Operators.
impl Shared {
    /// Ends the grants of a lock in one transaction. `None` if they changed meanwhile.
    async fn try_force(&self, client: &Client, force: &ForceRelease) -> Result<Option<Forced>, Failure> {
        let (store, lock) = (&self.store, &force.lock);
        let failure = |error: NodeError| error::outside(&store.peer, error);
        let added = |error: Error| failure(error.into());
        let locks = std::slice::from_ref(lock);
        let states = store.answer(CALL_TIMEOUT, store.confirmed_states(client, locks)).await.map_err(failure)?;
        let state = states.into_iter().next().unwrap_or_default();
        let ended = grants_to_end(lock, &state, force.only)?;
        let Some(highest) = ended.iter().map(|claim| claim.token).max() else { return Ok(None) };
        let moved_to = Token::new(highest.get() + 1).map_err(|_| Refusal::TokensExhausted { max: Token::MAX })?;

        // A claim for several locks ends at all of them.
        let mut parts = vec![lock.clone()];
        parts.extend(ended.iter().flat_map(|claim| &claim.data.parts).filter_map(|part| LockName::new(part).ok()));
        parts.sort_unstable();
        parts.dedup();
        let states = store.answer(CALL_TIMEOUT, store.lock_states(client, &parts)).await.map_err(failure)?;
        let (mut writer, mut written) = (client.new_multi_writer(), Vec::new());
        for (part, state) in parts.iter().zip(states) {
            let parent = store.paths.claims(part);
            let mut data = state.data;
            for claim in &state.claims {
                let Some(its) = ended.iter().find(|ended| ended.is_same_request(claim)) else { continue };
                let path = format!("{parent}/{}", claim.node);
                writer.add_delete(&path, None).map_err(added)?;
                written.push(path);
                let forced = Some((force.by.as_str().into(), force.reason.as_str().into(), moved_to.get()));
                let (token, session) = (its.token.get(), its.name.session.get());
                data = data.with(&EndedData { token, session, label: its.data.label.clone(), forced });
            }
            writer.add_set_data(wire::lock_node(&parent), &data.0, None).map_err(added)?;
            written.push(wire::lock_node(&parent).to_owned());
        }
        let mut sessions: Vec<_> = ended.iter().map(|claim| claim.name.session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        for session in sessions {
            let path = store.paths.session(session);
            let (data, stat) = match store.answer(CALL_TIMEOUT, client.get_data(&path)).await {
                // Its claim went with it, or another program created the claim.
                Err(Error::NoNode) => continue,
                found => found.map_err(|error| failure(NodeError::at(&path)(error)))?,
            };
            let mut data: SessionData = wire::read(&data);
            for claim in ended.iter().filter(|claim| claim.name.session == session) {
                let (by, reason) = (force.by.as_str().to_owned(), force.reason.as_str().to_owned());
                data.add(LostData { token: claim.token.get(), moved_to: moved_to.get(), by, reason });
            }
            writer.add_set_data(&path, &wire::write(&data), Some(stat.version)).map_err(added)?;
            written.push(path);
        }
        let tokens: Vec<_> = ended.iter().map(|claim| claim.token.get()).collect();
        let (by, reason) = (force.by.as_str(), force.reason.as_str());
        let record = wire::write(&ForcedData { lock: lock.as_str(), tokens: &tokens, by, reason });
        let options = store.options(CreateMode::PersistentSequential);
        writer.add_create(&format!("{}/record-", store.paths.forced()), &record, &options).map_err(added)?;
        written.push(store.paths.forced());
        match store.answer(CALL_TIMEOUT, writer.commit()).await {
            Ok(_) => Ok(Some(Forced { grants: ended.len() as u32, moved_to })),
            Err(MultiWriteError::OperationFailed { source: Error::NoNode | Error::BadVersion, .. }) => Ok(None),
            Err(MultiWriteError::OperationFailed { index, source }) => {
                Err(failure(NodeError { error: source, path: written.into_iter().nth(index) }))
            }
            Err(error) => Err(added(error.into())),
        }
    }

    /// Raises the number that is added to new tokens. Claims keep the number that they were created with, so it is refused
    /// while there are claims with lower tokens.
    async fn raise_tokens(&self, client: &Client, above: Token) -> Result<Raised, Failure> {
        let store = &self.store;
        let failure = |error| error::outside(&store.peer, error);
        self.refuse_lower_claims(client, above, "").await?;
        for _ in 0..TRIES {
            self.load_offset(client).await?;
            let offset = store.offset();
            let path = store.paths.offset();
            // Writes the same number, to learn the number of a transaction that is later than all claims so far.
            let same = offset.number.to_string();
            let stat =
                match store.answer(CALL_TIMEOUT, client.set_data(&path, same.as_bytes(), Some(offset.version))).await
                {
                    Err(Error::BadVersion) => continue,
                    written => written.map_err(failure)?,
                };
            let now = u64::try_from(stat.mzxid).unwrap_or(0);
            if now.saturating_add(offset.number) >= above.get() {
                return Ok(Raised::Before);
            }
            let raised = (above.get() - now).to_string();
            match store.answer(CALL_TIMEOUT, client.set_data(&path, raised.as_bytes(), Some(stat.version))).await {
                Ok(_) => {
                    self.load_offset(client).await?;
                    // A claim may have been created between the first look and the write.
                    self.refuse_lower_claims(client, above, "the tokens were raised, but ").await?;
                    return Ok(Raised::Now);
                }
                Err(Error::BadVersion) => {}
                Err(error) => return Err(failure(error)),
            }
        }
        Err(too_busy(&store.peer))
    }

    async fn refuse_lower_claims(&self, client: &Client, above: Token, done: &str) -> Result<(), Failure> {
        let store = &self.store;
        let failure = |error: NodeError| error::outside(&store.peer, error);
        store.answer(CALL_TIMEOUT, store.confirm(client)).await.map_err(|error| failure(error.into()))?;
        let names = store.answer(CALL_TIMEOUT, store.lock_names(client, "")).await.map_err(failure)?;
        let states = store.answer(CALL_TIMEOUT, store.lock_states(client, &names)).await.map_err(failure)?;
        let is_lower = |state: &LockState| state.claims.iter().any(|claim| claim.token <= above);
        let Some((name, _)) = names.iter().zip(&states).find(|(_, state)| is_lower(state)) else { return Ok(()) };
        let what = format!(
            "{done}locks are held with lower tokens: {}; release them or take them away (palisade ls, palisade break), \
             then raise again",
            name.as_str().escape_debug()
        );
        let refused = Unavailable::new(what).permanent();
        Err(if done.is_empty() { refused.without_effect() } else { refused }.into())
    }
}

impl Claim {
    fn is_same_request(&self, other: &Claim) -> bool {
        (self.name.session, self.name.number) == (other.name.session, other.name.number)
    }
}

fn grants_to_end(lock: &LockName, state: &LockState, only: Option<Token>) -> Result<Vec<Claim>, Refusal> {
    if state.claims.is_empty() && only.is_none() {
        return Err(Refusal::NoSuchLock { lock: lock.clone() });
    }
    let granted = state.claims.iter().filter(|claim| claim.is_granted);
    let ended: Vec<_> = granted.filter(|claim| only.is_none_or(|only| claim.token == only)).cloned().collect();
    match (ended.is_empty(), only) {
        (true, Some(token)) => Err(Refusal::NotHeld { lock: lock.clone(), token }),
        (true, None) => Err(Refusal::NoHolder { lock: lock.clone() }),
        (false, _) => Ok(ended),
    }
}

/// Describes a lock; `None` if it is not in use.
fn lock_info(lock: &LockName, state: LockState) -> Option<LockInfo> {
    let first = state.claims.first()?;
    let limit = match first.name.mode {
        Mode::Permits { of, .. } => Some(of),
        Mode::Exclusive | Mode::Shared => None,
    };
    let granted = || state.claims.iter().filter(|claim| claim.is_granted);
    let holders = granted().map(|claim| HolderInfo {
        token: claim.token,
        mode: claim.name.mode,
        session: Some(claim.name.session),
        label: Some(claim.data.label.clone()),
        held_for_ms: None,
        time_left_ms: None,
    });
    let waiters = state.claims.iter().filter(|claim| !claim.is_granted).map(|claim| WaiterInfo {
        session: claim.name.session,
        label: claim.data.label.clone(),
        mode: claim.name.mode,
    });
    Some(LockInfo {
        name: lock.clone(),
        limit,
        holders: holders.collect(),
        waiters: waiters.collect(),
        value: granted().find_map(|claim| claim.data.published()),
        history: state.data.history().filter_map(ended_info).collect(),
    })
}

fn ended_info(ended: EndedData) -> Option<EndedInfo> {
    Some(EndedInfo {
        token: Token::new(ended.token).ok()?,
        session: SessionId::new(ended.session).ok()?,
        label: ended.label,
        how: match ended.forced {
            None => "released".to_owned(),
            Some((by, reason, _)) => format!("forced by {by}: {reason}"),
        },
    })
}
