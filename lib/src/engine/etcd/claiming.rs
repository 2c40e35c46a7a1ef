//! How claims are created, wait, are granted, and end.

use std::rc::Rc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, Event, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp, WatchOptions,
};
use palisade_core::{Acquire, Limit, Mode, Reentry, Refusal, RequestNo, SessionEnd, SessionId, Want};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::backend::{ATTEMPTS, EtcdGrant, Shared, WaitTask, contended, read_all};
use super::connection::{Answer, Connection, Watch, lease};
use super::requests::Request;
use super::wire::{Body, Claim, Claims, Keys, Record, to_json};
use crate::engine::Failure;
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::queue::{self, Blocked, CheckKind, Standing, claim_keys, not_held};
use crate::engine::claims::{self, Position};
use crate::engine::remote::{
    AcquireReply, CancelReply, ConnectError, Held, Peer, RemoteConnection, WaitKey, check_most, jittered,
};

/// The pause before a waiter reads its lists again after a transient failure.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Claims for more locks leave no record of their release, which would exceed the limit of a transaction.
const MOST_RECORDED: usize = 16;
/// The largest transaction that creates a claim. etcd accepts 1.5 MiB unless it is configured (`--max-request-bytes`).
const MOST_BYTES: usize = 1280 << 10;
/// How often a transaction that creates a claim contains the name of each lock, besides the values: in a condition and two reads,
/// each with both ends of a range, and in the key that it creates.
const NAMES_PER_LOCK: usize = 7;
/// The bytes of each key besides the name: the session, and lengths.
const BYTES_PER_KEY: usize = 48;

/// The condition under which a claim is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    None,
    /// There are no claims for its locks.
    Alone,
    /// No claim for its locks was created or changed after this revision.
    Since(i64),
}

/// The outcome of an attempt to create a claim. With the claims of each lock.
enum Created {
    /// The claim stands.
    Stands(Vec<Claims>, i64),
    /// The condition was not met.
    Not(Vec<Claims>, i64),
}

/// Reads the oldest claim and the two newest ones.
fn read_ends(claims: &str) -> [TxnOp; 2] {
    let read = |order, limit| {
        let options = GetOptions::new().with_prefix().with_sort(SortTarget::Create, order).with_limit(limit);
        TxnOp::get(claims, Some(options))
    };
    [read(SortOrder::Ascend, 1), read(SortOrder::Descend, 2)]
}

/// Joins parts of one list, which may overlap.
fn joined(parts: Vec<Claims>) -> Claims {
    let mut claims: Vec<_> = parts.into_iter().flat_map(|part| part.0).collect();
    claims.sort_unstable_by_key(|claim| claim.revision);
    claims.dedup_by_key(|claim| claim.revision);
    Claims(claims)
}

impl Shared {
    /// Returns the keys of an acquire's claim.
    fn claim_keys(&self, acquire: &Acquire, number: RequestNo) -> Vec<String> {
        let session = acquire.caller.session;
        let place = self.requests(session, |requests| requests.place(number));
        claim_keys(&self.keys, acquire.wants.iter().map(|want| &want.lock), (session, place))
    }

    /// Returns the values of an acquire's claim.
    fn bodies(&self, acquire: &Acquire, number: RequestNo, offset: u64, granted: bool) -> Vec<Body> {
        let bodies = queue::bodies(acquire, self.label(acquire.caller.session), offset, granted).into_iter();
        bodies.map(|body| Body { number: Some(number), ..body }).collect()
    }

    /// Refuses an acquire of several locks whose transaction etcd would not accept.
    pub(super) fn check_size(&self, peer: &Peer, acquire: &Acquire, number: RequestNo) -> Result<(), Failure> {
        if acquire.wants.len() == 1 {
            return Ok(());
        }
        let bodies = self.bodies(acquire, number, self.offset.get().offset, true);
        let values: usize = bodies.iter().map(|body| to_json(body).len()).sum();
        let name = |want: &Want| NAMES_PER_LOCK * (self.keys.claims(&want.lock).len() + BYTES_PER_KEY);
        let names: usize = acquire.wants.iter().map(name).sum();
        claims::check_size(peer, acquire.wants.len(), names + values, MOST_BYTES)
    }

    /// Creates the claim of an acquire, unless it stands already.
    async fn create(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
        condition: Condition,
    ) -> Result<Created, Failure> {
        let session = acquire.caller.session;
        let lease = lease(session)?;
        let names = self.claim_keys(acquire, number);
        // A claim that nothing can share waits for the one before it, whatever is ahead of that.
        let reads_ends = matches!(&acquire.wants[..], [want] if want.mode == Mode::Exclusive)
            && condition == Condition::None
            && acquire.reentry == Reentry::Queue;
        loop {
            let offset = self.offset.get();
            let mut conditions = vec![
                Compare::mod_revision(self.keys.offset(), CompareOp::Equal, offset.changed),
                Compare::create_revision(self.keys.done(session, number), CompareOp::Equal, 0),
                Compare::create_revision(names[0].as_str(), CompareOp::Equal, 0),
            ];
            let claims: Vec<_> = acquire.wants.iter().map(|want| self.keys.claims(&want.lock)).collect();
            conditions.extend(claims.iter().filter_map(|claims| match condition {
                Condition::None => None,
                // The revisions of no key are 0.
                Condition::Alone => {
                    Some(Compare::create_revision(claims.as_str(), CompareOp::Equal, 0).with_prefix())
                }
                Condition::Since(revision) => {
                    Some(Compare::mod_revision(claims.as_str(), CompareOp::Less, revision + 1).with_prefix())
                }
            }));
            let bodies = self.bodies(acquire, number, offset.offset, condition != Condition::None);
            let put = |(key, body): (&String, &Body)| {
                TxnOp::put(key.as_str(), to_json(body), Some(PutOptions::new().with_lease(lease)))
            };
            let lists = || claims.iter().cloned().map(read_all);
            let reads: Vec<_> = if reads_ends { read_ends(&claims[0]).into() } else { lists().collect() };
            let create: Vec<_> = names.iter().zip(&bodies).map(put).chain(reads).collect();
            let refuse = [self.keys.offset(), self.keys.done(session, number)].map(|key| TxnOp::get(key, None));
            let refuse: Vec<_> = refuse.into_iter().chain(lists()).collect();
            let txn = Txn::new().when(conditions).and_then(create).or_else(refuse);
            let answer = self.clone().send_create(connection.clone(), (session, number), txn).await;
            let answer = answer?;
            self.note_revision(answer.revision);
            let reads = answer.reads();
            if answer.succeeded() {
                let mut lists = self.read_lists(connection, &reads)?;
                if reads_ends {
                    lists = vec![joined(lists)];
                    let ahead = reads[0].count().unsigned_abs().saturating_sub(1);
                    if let Err(refusal) = check_most(Limit::WaitersPerLock, ahead) {
                        self.withdraw(connection, &names).await?;
                        return Err(refusal.into());
                    }
                }
                return Ok(Created::Stands(lists, answer.revision));
            }
            let [key, done, lists @ ..] = &reads[..] else {
                return Err(connection.peer.unexpected("an answer in parts"));
            };
            if !done.kvs().is_empty() {
                return Err(Refusal::Withdrawn { number }.into());
            }
            self.note_offset(connection, key.kvs().first())?;
            let lists = self.read_lists(connection, lists)?;
            if lists[0].position(session, number).is_some() {
                return Ok(Created::Stands(lists, answer.revision));
            }
            if self.offset.get() != offset {
                continue;
            }
            if condition != Condition::None {
                return Ok(Created::Not(lists, answer.revision));
            }
            // The key of another claim is used again only after that claim is deleted.
            return Err(contended(connection).into());
        }
    }

    /// Deletes a claim that was not granted. If that fails, the claim may stay, and the keeper cancels the acquire.
    async fn withdraw(&self, connection: &Connection, keys: &[String]) -> Result<(), Failure> {
        let delete: Vec<_> = keys.iter().map(|key| TxnOp::delete(key.as_str(), None)).collect();
        let deleted = connection.txn(Txn::new().and_then(delete)).await.map(drop);
        deleted.map_err(|error| Failure::from(error).possibly_applied())
    }

    /// Deletes the claims of these lists that have no lease: no session keeps them alive, and none releases them. Another program
    /// has written them, such as `etcdctl make-mirror`. Returns whether there were some.
    async fn delete_abandoned(&self, connection: &Connection, lists: &[Claims]) -> Result<bool, CallError> {
        let abandoned: Vec<_> =
            lists.iter().flat_map(|claims| &claims.0).filter(|claim| claim.is_abandoned).collect();
        for claim in &abandoned {
            let key = self.keys.claim(&claim.lock, claim.session, claim.place);
            let is_same = [
                Compare::create_revision(key.as_str(), CompareOp::Equal, claim.revision),
                Compare::lease(key.as_str(), CompareOp::Equal, 0),
            ];
            connection.txn(Txn::new().when(is_same).and_then([TxnOp::delete(key, None)])).await?;
        }
        Ok(!abandoned.is_empty())
    }

    /// Sends a transaction that creates a claim. It is awaited even if the caller is gone, so that a cancel knows whether a copy
    /// may still arrive.
    async fn send_create(
        self: Rc<Self>,
        connection: Rc<Connection>,
        (session, number): WaitKey,
        txn: Txn,
    ) -> Result<Answer, CallError> {
        self.requests(session, |requests| requests.note_sent(number));
        let sent = spawn_local(async move {
            let answer = connection.txn(txn).await;
            let is_answered = !matches!(&answer, Err(CallError::Failed { may_have_taken_effect: true, .. }));
            self.requests(session, |requests| requests.note_end(number, is_answered));
            self.answered.notify_waiters();
            answer
        });
        sent.await.unwrap_or_else(|_| {
            let error = ConnectError::closed();
            Err(CallError::Failed { error, may_have_taken_effect: true })
        })
    }

    /// Waits until no transaction that creates this claim is under way. Each has a time-out.
    pub(super) async fn until_answered(&self, session: SessionId, number: RequestNo) {
        loop {
            let answered = self.answered.notified();
            if !self.requests(session, |requests| requests.is_under_way(number)) {
                return;
            }
            answered.await;
        }
    }

    fn standing(&self, session: SessionId, number: RequestNo, wants: &[Want], lists: &[Claims]) -> Standing {
        let (standing, revision) = queue::standing(&self.keys, (session, number), wants, lists);
        if let Some(revision) = revision {
            self.requests(session, |requests| requests.note_claim(number, revision));
        }
        standing
    }

    pub(super) async fn try_acquire(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
    ) -> Result<AcquireReply, Failure> {
        let session = acquire.caller.session;
        let mut condition = Condition::Alone;
        for _ in 0..ATTEMPTS {
            let (lists, revision) = match self.create(connection, acquire, number, condition).await? {
                Created::Stands(lists, _) => match self.standing(session, number, &acquire.wants, &lists) {
                    Standing::Granted(token) => return Ok(AcquireReply::Granted(token)),
                    // Only an acquire that waits leaves such a claim.
                    _ => return Ok(AcquireReply::Busy),
                },
                Created::Not(lists, revision) => (lists, revision),
            };
            if self.delete_abandoned(connection, &lists).await? {
                condition = Condition::Alone;
                continue;
            }
            queue::check(&self.keys, self.offset.get().offset, acquire, number, &lists)?;
            let is_available =
                |(want, claims): (&Want, &Claims)| claims::position(&claims.entries(), want.mode) == Position::Front;
            if !acquire.wants.iter().zip(&lists).all(is_available) {
                return Ok(AcquireReply::Busy);
            }
            condition = Condition::Since(revision);
        }
        Ok(AcquireReply::Busy)
    }

    /// Creates the claim of an acquire that waits, and returns its state with the revision at which it was read.
    pub(super) async fn queue(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
        check: CheckKind,
    ) -> Result<(Standing, i64), Failure> {
        let session = acquire.caller.session;
        let mut created = None;
        if acquire.wants.len() > 1 {
            created = Some(self.create(connection, acquire, number, Condition::Alone).await?);
        }
        let created = match created {
            Some(created @ Created::Stands(..)) => created,
            _ => self.create(connection, acquire, number, Condition::None).await?,
        };
        let (Created::Stands(mut lists, mut revision) | Created::Not(mut lists, mut revision)) = created;
        // From here on the claim stands, so no failure may say that nothing has changed.
        let is_one_deleted = self.delete_abandoned(connection, &lists).await;
        if is_one_deleted.map_err(|error| Failure::from(error).possibly_applied())? {
            let read = self.read_claims_ahead(connection, acquire, number).await;
            (lists, revision) = read.map_err(Failure::possibly_applied)?;
        }
        let checked = queue::check(&self.keys, self.offset.get().offset, acquire, number, &lists);
        if let (CheckKind::Yes, Err(failure)) = (check, checked) {
            self.withdraw(connection, &self.claim_keys(acquire, number)).await?;
            return Err(failure);
        }
        let standing = self.standing(session, number, &acquire.wants, &lists);
        let marked = self.mark(connection, acquire, number, standing).await;
        Ok((marked.map_err(Failure::possibly_applied)?, revision))
    }

    /// Marks a claim for several locks that are all available.
    async fn mark(
        &self,
        connection: &Connection,
        acquire: &Acquire,
        number: RequestNo,
        standing: Standing,
    ) -> Result<Standing, Failure> {
        let Standing::Available(token, revision) = standing else { return Ok(standing) };
        let session = acquire.caller.session;
        let keys = self.claim_keys(acquire, number);
        let offset = token.get().saturating_sub(revision.unsigned_abs());
        let lease = lease(session)?;
        let put = |(key, body): (&String, &Body)| {
            TxnOp::put(key.as_str(), to_json(body), Some(PutOptions::new().with_lease(lease)))
        };
        let marks: Vec<_> = keys.iter().zip(&self.bodies(acquire, number, offset, true)).map(put).collect();
        let stands: Vec<_> =
            keys.iter().map(|key| Compare::create_revision(key.as_str(), CompareOp::Equal, revision)).collect();
        let marked = connection.txn(Txn::new().when(stands).and_then(marks)).await?;
        Ok(if marked.succeeded() { Standing::Granted(token) } else { Standing::Gone })
    }

    pub(super) fn wait_if_blocked(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
        (standing, revision): (Standing, i64),
    ) -> AcquireReply {
        if let Standing::Granted(token) = standing {
            return AcquireReply::Granted(token);
        }
        let wait = self.clone().wait(connection.clone(), acquire.clone(), number, standing, revision);
        let key = (acquire.caller.session, number);
        self.client.wait_extra(key, |_, task| *task = WaitTask(Some(spawn_local(wait).abort_handle())));
        AcquireReply::Queued
    }

    /// Waits until a claim is granted, and settles the wait. Ends when the connection breaks: the next one repeats the acquire.
    async fn wait(
        self: Rc<Self>,
        connection: Rc<Connection>,
        acquire: Acquire,
        number: RequestNo,
        mut standing: Standing,
        mut revision: i64,
    ) {
        let key = (acquire.caller.session, number);
        loop {
            match &standing {
                Standing::Granted(token) => return self.client.settle(key, Ok(*token)),
                Standing::Blocked(blocked) => self.await_change(&connection, blocked, revision).await,
                // It was released by force before this client knew of its grant: it queues again.
                Standing::Gone | Standing::Available(..) => {}
            }
            let read = match standing {
                Standing::Gone => self.queue(&connection, &acquire, number, CheckKind::No).await,
                _ => self.read_standing(&connection, &acquire, number).await,
            };
            match read {
                Ok(read) => (standing, revision) = read,
                Err(_) if connection.is_broken() => return,
                Err(Failure::SessionEnded) => return self.client.session_ended(key.0, SessionEnd::Expired),
                Err(failure) if failure.is_retryable() => sleep(jittered(RETRY_PAUSE)).await,
                // The claim stands. The keeper cancels the acquire.
                Err(failure) => return self.client.settle(key, Err(failure.possibly_applied())),
            }
        }
    }

    /// Waits until what a claim waits for may have changed after this revision.
    async fn await_change(&self, connection: &Rc<Connection>, blocked: &Blocked, revision: i64) {
        let on = match blocked {
            Blocked::Claim(on) | Blocked::Any { claims: on, .. } => on,
        };
        let watch = match connection.take_kept_watch(on) {
            Some(watch) => Some(watch),
            None => self.begin_watch(connection, blocked, revision).await,
        };
        let Some(mut watch) = watch else { return };
        while let Some(response) = watch.next().await {
            if response.events().iter().filter_map(Event::kv).any(|kv| kv.mod_revision() > revision) {
                return connection.keep_watch(on, watch);
            }
        }
    }

    /// Watches what a claim waits for. Returns `None` if that may have changed already, or the connection is broken.
    ///
    /// The watch begins with the current revision, and a read finds earlier changes. etcd serves a watch that begins with a
    /// past revision only every 100 ms.
    async fn begin_watch(&self, connection: &Rc<Connection>, blocked: &Blocked, revision: i64) -> Option<Watch> {
        let (on, watching, reading, count) = match blocked {
            Blocked::Claim(claim) => (claim, WatchOptions::new(), GetOptions::new(), 1),
            Blocked::Any { claims, own, count } => {
                let reading = GetOptions::new().with_prefix().with_max_create_revision(*own);
                (claims, WatchOptions::new().with_prefix(), reading, *count)
            }
        };
        let mut watch = connection.watch(on.as_str(), watching, 0);
        let begun = watch.begun().await?;
        if begun > revision {
            // The same member answers, so the read need not be linearizable. It must not be older than the watch.
            let reading = reading.with_keys_only().with_serializable();
            let read = connection.get(on.as_str(), Some(reading)).await.ok()?;
            let is_same = read.kvs().len() == count && read.kvs().iter().all(|kv| kv.mod_revision() <= revision);
            if !is_same || super::connection::revision(read.header()) < begun {
                return None;
            }
        }
        Some(watch)
    }

    /// Reads the state of a claim. The read is linearizable: it also proves that the claim, and so its session, still exists.
    async fn read_standing(
        &self,
        connection: &Connection,
        acquire: &Acquire,
        number: RequestNo,
    ) -> Result<(Standing, i64), Failure> {
        let (lists, revision) = self.read_claims_ahead(connection, acquire, number).await?;
        let standing = self.standing(acquire.caller.session, number, &acquire.wants, &lists);
        Ok((self.mark(connection, acquire, number, standing).await?, revision))
    }

    /// Reads the lists of an acquire's locks, up to its own claim if that is known, and the revision at which they were read.
    async fn read_claims_ahead(
        &self,
        connection: &Connection,
        acquire: &Acquire,
        number: RequestNo,
    ) -> Result<(Vec<Claims>, i64), Failure> {
        loop {
            let (lists, revision) = self.read_claims_once(connection, acquire, number).await?;
            if !self.delete_abandoned(connection, &lists).await? {
                return Ok((lists, revision));
            }
        }
    }

    async fn read_claims_once(
        &self,
        connection: &Connection,
        acquire: &Acquire,
        number: RequestNo,
    ) -> Result<(Vec<Claims>, i64), Failure> {
        let session = acquire.caller.session;
        let own = self.requests(session, |requests| requests.get(number)).map_or(0, |request| request.revision);
        let lists = acquire.wants.iter().map(|want| {
            let options = GetOptions::new().with_prefix().with_max_create_revision(own);
            TxnOp::get(self.keys.claims(&want.lock), Some(options))
        });
        let session_key = TxnOp::get(self.keys.session(session), Some(GetOptions::new().with_keys_only()));
        let reads: Vec<_> = [session_key].into_iter().chain(lists).collect();
        let answer = connection.txn(Txn::new().and_then(reads)).await?;
        self.note_revision(answer.revision);
        let reads = answer.reads();
        let [session_key, lists @ ..] = &reads[..] else {
            return Err(connection.peer.unexpected("an answer in parts"));
        };
        if session_key.kvs().is_empty() {
            return Err(Failure::SessionEnded);
        }
        Ok((self.read_lists(connection, lists)?, answer.revision))
    }

    pub(super) async fn cancel(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        session: SessionId,
        number: RequestNo,
        mut request: Request,
    ) -> Result<CancelReply<EtcdGrant>, Failure> {
        // A late copy of the acquire must find the mark.
        let done = || {
            TxnOp::put(
                self.keys.done(session, number),
                "",
                Some(PutOptions::new().with_lease(i64::try_from(session.get()).unwrap_or_default())),
            )
        };
        let mark: Vec<_> = request.may_arrive_late().then(done).into_iter().collect();
        let keys = claim_keys(&self.keys, &request.locks, (session, request.place));
        let Some(first) = keys.first() else { return Ok(CancelReply::Gone) };
        let stands = Compare::create_revision(first.as_str(), CompareOp::Greater, 0);
        let lists: Vec<_> = request.locks.iter().map(|lock| read_all(self.keys.claims(lock))).collect();
        let answer = connection.txn(Txn::new().when([stands]).and_then(lists).or_else(mark.clone())).await?;
        if !answer.succeeded() {
            return Ok(CancelReply::Gone);
        }
        let lists = self.read_lists(connection, &answer.reads())?;
        let own = |claims: &Claims| {
            claims.position(session, number).map(|at| (at < claims.granted(), claims.0[at].clone()))
        };
        let own: Option<Vec<_>> = lists.iter().map(own).collect();
        let Some([(_, claim), ..]) = own.as_deref() else {
            if !mark.is_empty() {
                connection.txn(Txn::new().and_then(mark)).await?;
            }
            return Ok(CancelReply::Gone);
        };
        if own.iter().flatten().all(|(is_granted, _)| *is_granted) {
            request.revision = claim.revision;
            return Ok(CancelReply::Granted(claim.token, EtcdGrant { number: Some(number), request }));
        }
        let stands = Compare::create_revision(first.as_str(), CompareOp::Equal, claim.revision);
        let delete = keys.iter().map(|key| TxnOp::delete(key.as_str(), None)).chain(mark);
        connection.txn(Txn::new().when([stands]).and_then(delete.collect::<Vec<_>>())).await?;
        Ok(CancelReply::Gone)
    }

    /// Finds the claim of a grant that this client may not know.
    pub(super) async fn find_grant(&self, connection: &Connection, held: &Held) -> Result<Claim, Failure> {
        let read = connection.get(self.keys.claims(&held.lock), Some(GetOptions::new().with_prefix())).await?;
        let claims = Claims::read(&self.keys, read.kvs()).map_err(|error| connection.unexpected(error))?;
        Ok(queue::find_grant(claims, held)?)
    }

    /// Deletes the claim of a grant. The condition is the revision that created the claim, so that a repeated release never
    /// deletes another claim.
    pub(super) async fn release(
        &self,
        connection: &Connection,
        held: &Held,
        number: RequestNo,
        request: &Request,
    ) -> Result<(), Failure> {
        let (session, token, keys) = (held.session, held.token, &self.keys);
        let lease = PutOptions::new().with_lease(lease(session)?);
        let record = to_json(&Record { session, label: self.label(session), token, forced: None });
        let mut operations = Vec::new();
        for lock in &request.locks {
            operations.push(TxnOp::delete(keys.claim(lock, session, request.place), None));
            if request.locks.len() <= MOST_RECORDED {
                // A lock that is idle afterwards leaves nothing behind.
                let is_alone = Compare::create_revision(keys.claims(lock), CompareOp::Equal, request.revision);
                let forget = TxnOp::delete(keys.history(lock), Some(DeleteOptions::new().with_prefix()));
                let note = TxnOp::put(Keys::record(&keys.history(lock), token), record.clone(), Some(lease.clone()));
                let txn = Txn::new().when([is_alone.with_prefix()]).and_then([forget]).or_else([note]);
                operations.push(TxnOp::txn(txn));
            }
        }
        if request.may_arrive_late() {
            operations.push(TxnOp::put(keys.done(session, number), "", Some(lease)));
        }
        let Some(first) = request.locks.first() else { return Err(not_held(held).into()) };
        let first = keys.claim(first, session, request.place);
        let stands = Compare::create_revision(first, CompareOp::Equal, request.revision);
        let released = connection.txn(Txn::new().when([stands]).and_then(operations)).await?;
        self.requests(session, |requests| requests.free_place(request));
        self.note_revision(released.revision);
        if released.succeeded() { Ok(()) } else { Err(not_held(held).into()) }
    }
}
