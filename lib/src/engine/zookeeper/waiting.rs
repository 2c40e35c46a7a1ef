//! Acquires: creating claims, and waiting until they are granted.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use palisade_core::{Patience, Reentry, Refusal, Token};
use tokio::task::spawn_local;
use tokio::time::sleep;
use zookeeper_client::{Client, CreateMode, Error, MultiWriteError, MultiWriteResult};

use super::backend::Shared;
use super::calls::{CALL_TIMEOUT, ClaimList, Contention, Store, too_busy};
use super::error::{self, NodeError};
use super::session::{Request, Session};
use super::wire::{self, ClaimData, ClaimName, LockData};
use crate::engine::claims::{self, Entry, Position};
use crate::engine::remote::{AcquireReply, jittered};
use crate::engine::{Failure, Unavailable};

/// How often a transaction is tried whose conditions other clients change.
const TRIES: usize = 20;
/// The pause before a waiter asks again after a failed call.
const PAUSE: Duration = Duration::from_millis(100);

/// The largest transaction that creates claims. A server closes the connection after a request of 1 MiB (`jute.maxbuffer`), and
/// the record of the transaction in its log is larger than the request.
const MOST_BYTES: usize = 768 << 10;
/// What a transaction contains for each claim besides the path of its parent and its contents: its name, its ACL, and lengths.
const BYTES_PER_CLAIM: usize = 160;

/// Whether a claim is granted.
enum Verdict {
    Granted(Token),
    Blocked(Blocker),
}

/// What a claim waits for.
enum Blocker {
    /// That this claim goes, or is marked.
    Claim { path: String, is_marked: bool },
    /// That another claim of this lock goes.
    List { path: String, seen: Vec<String> },
}

impl Shared {
    /// Creates the claims of a request, or finds those that an earlier attempt created, and looks whether they are granted.
    pub(super) async fn acquire(
        self: &Rc<Self>,
        session: &Rc<Session>,
        request: &Rc<Request>,
    ) -> Result<AcquireReply, Failure> {
        if let Some(token) = request.token.get() {
            return Ok(AcquireReply::Granted(token));
        }
        if request.nodes.borrow().is_empty() && request.is_sent.get() {
            self.find_claims(session, request).await?;
        }
        let is_new = request.nodes.borrow().is_empty();
        let verdict = match is_new {
            true => self.claim(session, request).await,
            false => self.examine(session, request).await,
        };
        match verdict {
            Ok(Verdict::Granted(token)) => Ok(AcquireReply::Granted(token)),
            Ok(Verdict::Blocked(blocker)) => match request.acquire.patience {
                Patience::Try => {
                    self.delete_claims(session, request).await.map_err(Failure::possibly_applied)?;
                    Ok(AcquireReply::Busy)
                }
                Patience::Wait if session.is_over.get() => Err(Failure::SessionEnded),
                Patience::Wait => {
                    let waiting = spawn_local(self.clone().wait(session.clone(), request.clone(), blocker));
                    request.stop_waiting();
                    request.waiting.replace(Some(waiting.abort_handle()));
                    Ok(AcquireReply::Queued)
                }
            },
            Err(Failure::Refused(refusal)) => {
                self.delete_claims(session, request).await.map_err(Failure::possibly_applied)?;
                Err(refusal.into())
            }
            // Its claims stand. The keeper cancels an acquire that may have taken effect.
            Err(failure) if !request.nodes.borrow().is_empty() => Err(failure.possibly_applied()),
            Err(failure) => Err(failure),
        }
    }

    /// Finds the claims that an earlier attempt created, if its answer was lost. The check comes first: the server answers the
    /// read after everything that the session has sent before.
    async fn find_claims(&self, session: &Session, request: &Request) -> Result<(), Failure> {
        let own = self.store.paths.session(session.id);
        let check = Store::send_check(&session.client, [own.as_str()]);
        let read = Store::send_read(&session.client, &request.parents);
        self.check_session(session, self.store.answer(CALL_TIMEOUT, check).await.map(drop))?;
        let read = self.store.answer(CALL_TIMEOUT, read).await;
        let lists = read.map_err(|error| error::in_session(&self.store.peer, error))?;
        let prefix = ClaimName::prefix(session.id, request.number);
        let mut nodes = Vec::new();
        for (parent, list) in request.parents.iter().zip(&lists) {
            let found = list.claims.iter().find(|(_, node)| node.starts_with(&prefix));
            nodes.extend(found.map(|(_, node)| format!("{parent}/{node}")));
        }
        // One transaction has created all of them.
        if nodes.len() == request.wants.len() {
            let contents = self.store.answer(CALL_TIMEOUT, session.client.get_data(&nodes[0])).await;
            let (_, stat) = contents.map_err(|error| error::in_session(&self.store.peer, error))?;
            request.czxid.set(stat.czxid);
            request.nodes.replace(nodes);
        }
        Ok(())
    }

    /// Creates the claims of a request, and looks whether they are granted.
    async fn claim(&self, session: &Session, request: &Request) -> Result<Verdict, Failure> {
        match self.create_claims(session, request).await? {
            None => {
                // The history of a lock begins when the lock comes into use.
                request.lock_data.replace(vec![LockData::default()]);
                Ok(Verdict::Granted(self.granted(session, request)?))
            }
            Some(lists) => {
                self.check_refusals(session, request, &lists)?;
                self.judge(session, request, lists).await
            }
        }
    }

    /// Creates the claims of a request, and returns the lists that they are in; `None` if the claim is alone in its list.
    async fn create_claims(&self, session: &Session, request: &Request) -> Result<Option<Vec<ClaimList>>, Failure> {
        let store = &self.store;
        let options = store.options(CreateMode::EphemeralSequential);
        let failure = |error| error::in_session(&store.peer, error);
        for _ in 0..TRIES {
            if request.is_cancelled.get() {
                return Err(Refusal::Withdrawn { number: request.number }.into());
            }
            let offset = store.offset();
            request.data.borrow_mut().offset = offset.number;
            let data = wire::write(&*request.data.borrow());
            let bytes = request.parents.iter().map(|parent| parent.len() + data.len() + BYTES_PER_CLAIM).sum();
            claims::check_size(&store.peer, request.wants.len(), bytes, MOST_BYTES)?;
            let parents = store.send_parents(&session.client, &request.parents);
            let mut writer = session.client.new_multi_writer();
            writer.add_check_version(&store.paths.offset(), offset.version).map_err(failure)?;
            for (want, parent) in request.wants.iter().zip(&request.parents) {
                let name = ClaimName::unnumbered(session.id, request.number, want.mode, request.is_set());
                let path = format!("{parent}/{name}");
                writer.add_create(&path, &data, &options).map_err(failure)?;
            }
            // Only for its answer, which contains the number of the transaction and that of the claims. Before 3.9 the answer
            // to a create in a transaction has no such numbers (ZOOKEEPER-4026).
            writer.add_set_data(&request.parents[0], b"", None).map_err(failure)?;
            request.is_sent.set(true);
            // The server processes the requests of a session in their order: the transaction finds the parents, and the read
            // finds the claims. The first poll sends the parents.
            let may_be_alone = !request.is_set() && !store.is_contended(&request.parents[0]);
            let mut parents = pin!(parents);
            let early = parents.as_mut().now_or_never();
            let created = writer.commit();
            let read = (!may_be_alone).then(|| Store::send_read(&session.client, &request.parents));
            let all = async {
                let parents = match early {
                    Some(done) => done,
                    None => parents.await,
                };
                (parents, created.await, OptionFuture::from(read).await)
            };
            let (parents, created, read) = match tokio::time::timeout(CALL_TIMEOUT, all).await {
                Ok(answers) => answers,
                Err(_) => return Err(failure(Error::Timeout)),
            };
            if let Err(error) = parents {
                // The parents may exist nevertheless, and the claims below them.
                let failure = failure(error);
                let is_refused = matches!(created, Err(MultiWriteError::OperationFailed { .. }));
                return Err(if is_refused { failure } else { failure.possibly_applied() });
            }
            match created {
                Ok(results) => {
                    let (mut nodes, mut is_alone) = (Vec::with_capacity(request.wants.len()), false);
                    for result in results {
                        match result {
                            MultiWriteResult::Create { path, .. } => nodes.push(path),
                            MultiWriteResult::SetData { stat } => {
                                request.czxid.set(stat.mzxid);
                                is_alone = !request.is_set() && stat.num_children == 1;
                            }
                            _ => {}
                        }
                    }
                    request.nodes.replace(nodes);
                    let found = if is_alone { Contention::Free } else { Contention::Contended };
                    store.note_contention(&request.parents[0], found);
                    if is_alone {
                        return Ok(None);
                    }
                    let read = match read {
                        Some(read) => read,
                        None => {
                            let read = Store::send_read(&session.client, &request.parents);
                            store.answer(CALL_TIMEOUT, read).await
                        }
                    };
                    return Ok(Some(read.map_err(|error| error::in_session(&store.peer, error))?));
                }
                Err(MultiWriteError::OperationFailed { index: 0, source: Error::BadVersion }) => {
                    self.load_offset(&session.client).await?;
                }
                Err(MultiWriteError::OperationFailed { index, source: Error::NoNode }) => {
                    match index.checked_sub(1).and_then(|index| request.parents.get(index)) {
                        // The server has removed the empty parent.
                        Some(parent) => store.forget_parent(parent),
                        None => return Err(error::no_namespace(&store.peer, &store.paths.root)),
                    }
                }
                Err(error) => return Err(failure(error.into())),
            }
        }
        Err(too_busy(&store.peer))
    }

    /// Looks after a wait whether a claim is granted.
    async fn examine(&self, session: &Session, request: &Request) -> Result<Verdict, Failure> {
        let store = &self.store;
        let failure = |error: Error| error::in_session(&store.peer, error);
        let nodes = request.nodes.borrow().clone();
        // The session may have ended at a server that this one does not know of yet. A majority confirms the check, and the
        // read is answered after it.
        let check = Store::send_check(&session.client, nodes.iter().map(String::as_str));
        let read = Store::send_read(&session.client, &request.parents);
        match store.answer(CALL_TIMEOUT, check).await {
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => {
                return Err(self.claim_removed(session, request).await);
            }
            checked => checked.map_err(|error| failure(error.into()))?,
        };
        let lists = store.answer(CALL_TIMEOUT, read).await;
        let lists = lists.map_err(|error| error::in_session(&store.peer, error))?;
        self.judge(session, request, lists).await
    }

    /// Looks whether a claim in these lists is granted.
    async fn judge(
        &self,
        session: &Session,
        request: &Request,
        mut lists: Vec<ClaimList>,
    ) -> Result<Verdict, Failure> {
        let store = &self.store;
        let failure = |error| error::in_session(&store.peer, error);
        let nodes = request.nodes.borrow().clone();
        request.lock_data.replace(lists.iter_mut().map(|list| std::mem::take(&mut list.data)).collect());
        let claims = request.wants.iter().zip(&request.parents).zip(&lists).zip(&nodes);
        for (((want, parent), list), node) in claims {
            let Some(own) = list.claims.iter().position(|(_, name)| node.ends_with(name)) else {
                return Err(self.claim_removed(session, request).await);
            };
            let ahead = self.entries(&session.client, parent, &list.claims[..own]).await.map_err(failure)?;
            let entries: Vec<_> = ahead.iter().map(|(entry, _)| *entry).collect();
            match claims::position(&entries, want.mode) {
                Position::Front => {}
                Position::Behind(index) => {
                    let (path, is_marked) = (format!("{parent}/{}", ahead[index].1), ahead[index].0.is_settled);
                    return Ok(Verdict::Blocked(Blocker::Claim { path, is_marked }));
                }
                Position::ShortOfPermits => {
                    let seen = list.claims.iter().map(|(_, node)| node.clone()).collect();
                    return Ok(Verdict::Blocked(Blocker::List { path: parent.clone(), seen }));
                }
            }
        }
        if request.is_set() {
            self.mark(session, request, &nodes).await?;
        }
        Ok(Verdict::Granted(self.granted(session, request)?))
    }

    /// Notes that a request is granted.
    fn granted(&self, session: &Session, request: &Request) -> Result<Token, Refusal> {
        let token = request.data.borrow().token(request.czxid.get())?;
        self.note_seen(request.czxid.get());
        request.token.set(Some(token));
        session.grants.borrow_mut().insert(token, request.number);
        self.report_early_loss(session, token);
        Ok(token)
    }

    /// Refuses a new claim of another kind than the lock, or of a session that would wait for itself.
    fn check_refusals(&self, session: &Session, request: &Request, lists: &[ClaimList]) -> Result<(), Refusal> {
        for (want, list) in request.wants.iter().zip(lists) {
            let Some((first, _)) = list.claims.first() else { continue };
            if (first.session, first.number) != (session.id, request.number) {
                claims::check_kind(&want.lock, first.mode, want.mode)?;
            }
            if request.acquire.reentry == Reentry::Refuse {
                let requests = session.requests.borrow();
                let own = list.claims.iter().filter(|(name, _)| name.session == session.id);
                let held = own.filter_map(|(name, _)| requests.get(&name.number)?.token.get()).next();
                if let Some(token) = held {
                    return Err(Refusal::AlreadyHeld { lock: want.lock.clone(), token });
                }
            }
        }
        Ok(())
    }

    /// Returns the entries of claims. Claims for several locks may be marked, so their contents are read; those that are gone
    /// are left out.
    async fn entries<'a>(
        &self,
        client: &Client,
        parent: &str,
        claims: &'a [(ClaimName, String)],
    ) -> Result<Vec<(Entry, &'a str)>, NodeError> {
        let sets: Vec<_> =
            claims.iter().filter(|(name, _)| name.is_set).map(|(_, node)| format!("{parent}/{node}")).collect();
        let mut contents = match sets.is_empty() {
            true => Vec::new(),
            false => self.store.answer(CALL_TIMEOUT, Store::read_claims(client, &sets)).await?,
        }
        .into_iter();
        let mut entries = Vec::with_capacity(claims.len());
        for (name, node) in claims {
            let is_settled = match name.is_set {
                false => true,
                true => match contents.next().flatten() {
                    Some((data, _)) => data.granted,
                    None => continue,
                },
            };
            entries.push((Entry { mode: name.mode, is_settled }, node.as_str()));
        }
        Ok(entries)
    }

    /// Marks a claim for several locks as granted, which also proves that it exists.
    async fn mark(&self, session: &Session, request: &Request, nodes: &[String]) -> Result<(), Failure> {
        request.data.borrow_mut().granted = true;
        let data = wire::write(&*request.data.borrow());
        let mut writer = session.client.new_multi_writer();
        for node in nodes {
            let added = writer.add_set_data(node, &data, None);
            added.map_err(|error| error::in_session(&self.store.peer, error))?;
        }
        match self.store.answer(CALL_TIMEOUT, writer.commit()).await {
            Ok(_) => Ok(()),
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => {
                Err(self.claim_removed(session, request).await)
            }
            Err(error) => Err(error::in_session(&self.store.peer, Error::from(error))),
        }
    }

    /// Deletes the claims of a request, and forgets it. Their names are unique, so a late deletion affects no newer claim.
    pub(super) async fn delete_claims(&self, session: &Session, request: &Request) -> Result<(), Failure> {
        let nodes = request.nodes.borrow().clone();
        let mut writer = session.client.new_multi_writer();
        for node in &nodes {
            let added = writer.add_delete(node, None);
            added.map_err(|error| error::in_session(&self.store.peer, error))?;
        }
        match self.store.answer(CALL_TIMEOUT, writer.commit()).await {
            Ok(_) => {}
            // The transaction has deleted none of them, and another program only one.
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) if nodes.len() > 1 => {
                for node in &nodes {
                    match self.store.answer(CALL_TIMEOUT, session.client.delete(node, None)).await {
                        Ok(()) | Err(Error::NoNode) => {}
                        Err(error) => return Err(error::in_session(&self.store.peer, error)),
                    }
                }
            }
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => {}
            Err(error) => return Err(error::in_session(&self.store.peer, Error::from(error))),
        }
        session.forget(request.number);
        Ok(())
    }

    /// Cancels a request that is not granted.
    pub(super) async fn withdraw(&self, session: &Session, request: &Request) -> Result<(), Failure> {
        if request.nodes.borrow().is_empty() && request.is_sent.get() {
            self.find_claims(session, request).await?;
        }
        self.delete_claims(session, request).await
    }

    /// The failure of a request whose claim is gone: its session has ended, or an operator has deleted it.
    async fn claim_removed(&self, session: &Session, request: &Request) -> Failure {
        let path = self.store.paths.session(session.id);
        let check = Store::send_check(&session.client, [path.as_str()]);
        match self.check_session(session, self.store.answer(CALL_TIMEOUT, check).await.map(drop)) {
            Err(failure) => failure,
            Ok(()) => {
                let what =
                    format!("{}: the node of the request was deleted; request the lock again", self.store.peer);
                let removed = Unavailable::new(what).permanent();
                // Its nodes at the other locks may stand.
                if request.is_set() { removed.into() } else { removed.without_effect().into() }
            }
        }
    }

    /// Waits until a request is granted or fails, and settles it.
    async fn wait(self: Rc<Self>, session: Rc<Session>, request: Rc<Request>, mut blocker: Blocker) {
        let key = (session.id, request.number);
        loop {
            if let Err(error) = await_change(&session.client, &blocker).await {
                if matches!(error, Error::SessionExpired | Error::ClientClosed | Error::AuthFailed) {
                    // The task that follows the session's state ends its waits.
                    return;
                }
                sleep(jittered(PAUSE)).await;
            }
            match self.examine(&session, &request).await {
                Ok(Verdict::Granted(token)) => return self.client.settle(key, Ok(token)),
                Ok(Verdict::Blocked(next)) => blocker = next,
                Err(Failure::SessionEnded) => return self.session_lost(session.id),
                Err(failure) if failure.is_retryable() => sleep(jittered(PAUSE)).await,
                // Its claims stand. The keeper cancels the acquire, which needs the request.
                Err(failure) => return self.client.settle(key, Err(failure.possibly_applied())),
            }
        }
    }
}

/// Waits until a blocker has changed. The driver sets the watch again on every new connection.
async fn await_change(client: &Client, blocker: &Blocker) -> Result<(), Error> {
    match blocker {
        Blocker::Claim { path, is_marked } => match client.get_and_watch_data(path).await {
            Ok((data, _, watcher)) => {
                if *is_marked || !wire::read::<ClaimData>(&data).granted {
                    watcher.changed().await;
                }
                Ok(())
            }
            Err(Error::NoNode) => Ok(()),
            Err(error) => Err(error),
        },
        Blocker::List { path, seen } => match client.list_and_watch_children(path).await {
            Ok((children, watcher)) => {
                let mut now: Vec<_> = wire::sorted(children).into_iter().map(|(_, node)| node).collect();
                now.retain(|node| seen.contains(node));
                // Only claims that go return permits.
                if now.len() == seen.len() {
                    watcher.changed().await;
                }
                Ok(())
            }
            Err(Error::NoNode) => Ok(()),
            Err(error) => Err(error),
        },
    }
}
