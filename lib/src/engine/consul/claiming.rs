//! How claims are created, wait, are granted, and end.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use palisade_core::{Acquire, LockName, Refusal, RequestNo, SessionEnd, SessionId};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::backend::{ATTEMPTS, ConsulGrant, RETRY_PAUSE, Shared, WaitTask};
use super::connection::{Conflict, Connection, Op, Pairs};
use super::delayed::{Lists, delay_ms};
use super::error::contended;
use crate::engine::Failure;
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::check_size;
use crate::engine::claims::queue::{self, Blocked, CheckKind, Standing, claim_keys, not_held};
use crate::engine::claims::requests::Request;
use crate::engine::claims::stored::{Claim, Claims, Keys, Record, to_json};
use crate::engine::remote::{AcquireReply, CancelReply, ConnectError, Held, RemoteConnection, WaitKey, jittered};

/// Claims for more locks leave no record of their release, which would exceed the limit of a transaction.
const MOST_RECORDED: usize = 16;
/// The largest transaction that Consul accepts unless it is configured (`limits.txn_max_req_len`).
const MOST_BYTES: usize = 512 << 10;

/// The turns of this client's acquires for each lock. Requests go over several TCP connections and may overtake each other, so
/// an acquire is sent after the answer to the one before it.
#[derive(Default)]
pub(super) struct Turns(RefCell<HashMap<LockName, Weak<Mutex<()>>>>);

impl Turns {
    async fn take(&self, acquire: &Acquire) -> Vec<OwnedMutexGuard<()>> {
        let mut locks: Vec<_> = acquire.wants.iter().map(|want| &want.lock).collect();
        locks.sort_unstable();
        let mut taken = Vec::new();
        for lock in locks {
            let turn = self.turn(lock);
            taken.push(turn.lock_owned().await);
        }
        taken
    }

    fn turn(&self, lock: &LockName) -> Arc<Mutex<()>> {
        let mut turns = self.0.borrow_mut();
        if let Some(turn) = turns.get(lock).and_then(Weak::upgrade) {
            return turn;
        }
        // Locks are used once or often: the table stays as small as the number of acquires under way.
        if turns.len() == turns.capacity() {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        let turn = Arc::default();
        turns.insert(lock.clone(), Arc::downgrade(&turn));
        turn
    }
}

/// A claim as a read found it.
pub(super) struct Found {
    standing: Standing,
    /// The versions of the keys that it waits for.
    seen: Vec<(String, i64)>,
    /// When to read again, if no change of a key will wake it.
    retry: Option<Duration>,
}

impl Shared {
    pub(super) fn read_lists<'a>(
        &self,
        connection: &Connection,
        locks: impl IntoIterator<Item = &'a LockName>,
        pairs: &Pairs,
    ) -> Result<Vec<Claims>, CallError> {
        self.note_index(pairs.index());
        let read = |lock| Claims::read(&self.keys, &pairs.tree(&self.keys.claims(lock)));
        let lists = locks.into_iter().map(read).collect::<Result<_, _>>();
        lists.map_err(|error| connection.unexpected(error))
    }

    /// Creates the claim of an acquire, unless it stands already, and reads the lists of its locks.
    async fn create(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
    ) -> Result<(Pairs, Vec<Claims>), Failure> {
        let session = acquire.caller.session;
        let uuid = self.open_holder(connection, session, delay_ms(acquire)).await?;
        let locks = || acquire.wants.iter().map(|want| &want.lock);
        let (names, done) = (claim_keys(&self.keys, locks(), (session, number)), self.keys.done(session, number));
        let session_key = self.keys.session(session);
        let mut turns = self.turns.take(acquire).await;
        for _ in 0..ATTEMPTS {
            let offset = self.offset.get();
            let bodies = queue::bodies(acquire, self.label(session), offset.offset, false);
            let mut operations = vec![
                Op::check_index(self.keys.offset(), offset.changed),
                Op::check_absent(done.as_str()),
                Op::check_absent(names[0].as_str()),
            ];
            if acquire.delay.is_some() {
                // A close deletes the claims that it finds.
                let main = self.uuid(connection, session).await?;
                operations.push(Op::check_session(session_key.as_str(), &main));
            }
            let claims = names.iter().zip(&bodies);
            operations.extend(claims.map(|(key, body)| Op::lock(key.as_str(), &to_json(body), &uuid)));
            operations.extend(locks().map(|lock| Op::read_all(self.keys.claims(lock))));
            if names.len() > 1 {
                check_size(&connection.peer, names.len(), Op::bytes(&operations), MOST_BYTES)?;
            }
            let sent = self.clone().send_create(connection.clone(), (session, number), operations, turns).await;
            let (answer, returned) = sent?;
            turns = returned;
            if let Ok(pairs) = answer {
                let lists = self.read_lists(connection, locks(), &pairs);
                return Ok((pairs, lists.map_err(|error| Failure::from(error).possibly_applied())?));
            }
            let lists = locks().map(|lock| self.keys.claims(lock));
            let others = [self.keys.offset(), done.clone(), session_key.clone()];
            let pairs = connection.read(others.into_iter().chain(lists)).await?;
            if pairs.get(&done).is_some() {
                return Err(Refusal::Withdrawn { number }.into());
            }
            if pairs.get(&session_key).is_none() {
                return Err(Failure::SessionEnded);
            }
            self.note_offset(connection, pairs.get(&self.keys.offset()))?;
            let lists = self.read_lists(connection, locks(), &pairs)?;
            if lists[0].position(session, number).is_some() {
                return Ok((pairs, lists));
            }
        }
        Err(contended(&connection.peer).into())
    }

    /// Sends a transaction that creates a claim. It is awaited even if the caller is gone, so that a cancel knows whether a copy
    /// may still arrive, and the next acquire does not overtake it.
    async fn send_create(
        self: Rc<Self>,
        connection: Rc<Connection>,
        (session, number): WaitKey,
        operations: Vec<Op>,
        turns: Vec<OwnedMutexGuard<()>>,
    ) -> Result<(Result<Pairs, Conflict>, Vec<OwnedMutexGuard<()>>), CallError> {
        self.requests(session, |requests| requests.note_sent(number));
        let sent = spawn_local(async move {
            let answer = connection.txn(&operations).await;
            let is_answered = !matches!(&answer, Err(CallError::Failed { may_have_taken_effect: true, .. }));
            self.requests(session, |requests| requests.note_end(number, is_answered));
            self.answered.notify_waiters();
            Ok((answer?, turns))
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

    fn found(&self, acquire: &Acquire, number: RequestNo, lists: &Lists) -> Found {
        let (key, pairs) = ((acquire.caller.session, number), &lists.pairs);
        let (standing, revision) = queue::standing(&self.keys, key, &acquire.wants, &lists.lists);
        if let Some(revision) = revision {
            self.requests(key.0, |requests| requests.note_claim(number, revision));
        }
        let seen = match &standing {
            Standing::Blocked(Blocked::Claim(on) | Blocked::Any { claims: on, .. }) => pairs.versions(on),
            _ => Vec::new(),
        };
        match (&standing, &seen[..]) {
            (Standing::Blocked(Blocked::Claim(_)), [behind]) => {
                self.behind.borrow_mut().insert(key, behind.clone());
            }
            _ => drop(self.behind.borrow_mut().remove(&key)),
        }
        Found { standing, seen, retry: lists.retry }
    }

    /// Deletes a claim that was not granted. If that fails, the claim may stay, and the keeper cancels the acquire.
    async fn withdraw(&self, connection: &Connection, acquire: &Acquire, number: RequestNo) -> Result<(), Failure> {
        let locks = acquire.wants.iter().map(|want| &want.lock);
        let names = claim_keys(&self.keys, locks, (acquire.caller.session, number));
        let delete: Vec<_> = names.into_iter().map(Op::delete).collect();
        let deleted = connection.txn(&delete).await.map(drop);
        deleted.map_err(|error| Failure::from(error).possibly_applied())
    }

    /// Creates a claim, and deletes it if it is not granted at once: no condition of a transaction says that a list is empty.
    pub(super) async fn try_acquire(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
    ) -> Result<AcquireReply, Failure> {
        let found = self.queue(connection, acquire, number, CheckKind::Yes).await?;
        if let Standing::Granted(token) = found.standing {
            return Ok(AcquireReply::Granted(token));
        }
        self.withdraw(connection, acquire, number).await?;
        Ok(AcquireReply::Busy)
    }

    /// Creates the claim of an acquire, and returns its state.
    pub(super) async fn queue(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
        check: CheckKind,
    ) -> Result<Found, Failure> {
        let (pairs, lists) = self.create(connection, acquire, number).await?;
        // From here on the claim stands, so no failure may say that nothing has changed.
        let lists = self.end_delays(connection, acquire, number, pairs, lists).await;
        let lists = lists.map_err(Failure::possibly_applied)?;
        let checked = queue::check(&self.keys, self.offset.get().offset, acquire, number, &lists.lists);
        if let (CheckKind::Yes, Err(failure)) = (check, checked) {
            self.withdraw(connection, acquire, number).await?;
            return Err(failure);
        }
        let found = self.found(acquire, number, &lists);
        self.mark(connection, acquire, number, found).await.map_err(Failure::possibly_applied)
    }

    /// Marks a claim for several locks that are all available.
    async fn mark(
        &self,
        connection: &Connection,
        acquire: &Acquire,
        number: RequestNo,
        found: Found,
    ) -> Result<Found, Failure> {
        let Standing::Available(token, revision) = found.standing else { return Ok(found) };
        let session = acquire.caller.session;
        let uuid = self.holder(connection, session, delay_ms(acquire)).await?;
        let names = claim_keys(&self.keys, acquire.wants.iter().map(|want| &want.lock), (session, number));
        let offset = token.get().saturating_sub(revision.unsigned_abs());
        let bodies = queue::bodies(acquire, self.label(session), offset, true);
        let mut operations = vec![Op::check_session(names[0].as_str(), &uuid)];
        let claims = names.iter().zip(&bodies);
        operations.extend(claims.map(|(key, body)| Op::lock(key.as_str(), &to_json(body), &uuid)));
        let standing = match connection.txn(&operations).await? {
            Ok(_) => Standing::Granted(token),
            Err(Conflict) => Standing::Gone,
        };
        Ok(Found { standing, seen: Vec::new(), retry: None })
    }

    pub(super) fn wait_if_blocked(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        acquire: &Acquire,
        number: RequestNo,
        found: Found,
    ) -> AcquireReply {
        if let Standing::Granted(token) = found.standing {
            return AcquireReply::Granted(token);
        }
        let wait = self.clone().wait(connection.clone(), acquire.clone(), number, found);
        let key = (acquire.caller.session, number);
        self.client.wait_extra(key, |_, task| *task = WaitTask(Some(spawn_local(wait).abort_handle())));
        AcquireReply::Queued
    }

    /// Waits until a claim is granted, and settles the wait. Ends when the connection breaks: the next one repeats the acquire.
    async fn wait(self: Rc<Self>, connection: Rc<Connection>, acquire: Acquire, number: RequestNo, mut found: Found) {
        let key = (acquire.caller.session, number);
        loop {
            match &found.standing {
                Standing::Granted(token) => return self.client.settle(key, Ok(*token)),
                Standing::Blocked(_) if let Some(pause) = found.retry => sleep(jittered(pause)).await,
                Standing::Blocked(blocked) => self.waits.until_changed(&connection, blocked, &found.seen).await,
                // It was released by force before this client knew of its grant: it queues again.
                Standing::Gone | Standing::Available(..) => {}
            }
            let read = match found.standing {
                Standing::Gone => self.queue(&connection, &acquire, number, CheckKind::No).await,
                _ => self.read_standing(&connection, &acquire, number).await,
            };
            match read {
                Ok(read) => found = read,
                Err(_) if connection.is_broken() => return,
                Err(Failure::SessionEnded) => return self.client.session_ended(key.0, SessionEnd::Expired),
                Err(failure) if failure.is_retryable() => sleep(jittered(RETRY_PAUSE)).await,
                // The claim stands. The keeper cancels the acquire.
                Err(failure) => return self.client.settle(key, Err(failure.possibly_applied())),
            }
        }
    }

    /// Reads the state of a claim. The read is linearizable: it also proves that the claim, and so its session, still exists.
    async fn read_standing(
        &self,
        connection: &Connection,
        acquire: &Acquire,
        number: RequestNo,
    ) -> Result<Found, Failure> {
        let locks = || acquire.wants.iter().map(|want| &want.lock);
        let session_key = self.keys.session(acquire.caller.session);
        let lists = locks().map(|lock| self.keys.claims(lock));
        let pairs = connection.read([session_key.clone()].into_iter().chain(lists)).await?;
        if pairs.get(&session_key).is_none() {
            return Err(Failure::SessionEnded);
        }
        let lists = self.read_lists(connection, locks(), &pairs)?;
        let lists = self.end_delays(connection, acquire, number, pairs, lists).await?;
        let found = self.found(acquire, number, &lists);
        self.mark(connection, acquire, number, found).await
    }

    /// Cancels a wait with one request, under the condition that the claim which it is behind has not changed: so it was
    /// not granted. Returns whether that is so.
    pub(super) async fn cancel_behind(
        &self,
        connection: &Connection,
        key: WaitKey,
        request: &Request,
        (behind, version): &(String, i64),
    ) -> Result<bool, Failure> {
        if request.may_arrive_late() {
            return Ok(false);
        }
        let mut operations = vec![Op::check_index(behind.as_str(), *version)];
        operations.extend(claim_keys(&self.keys, &request.locks, key).into_iter().map(Op::delete));
        Ok(connection.txn(&operations).await?.is_ok())
    }

    pub(super) async fn cancel(
        &self,
        connection: &Connection,
        session: SessionId,
        number: RequestNo,
        mut request: Request,
    ) -> Result<CancelReply<ConsulGrant>, Failure> {
        let names = claim_keys(&self.keys, &request.locks, (session, number));
        if names.is_empty() {
            return Ok(CancelReply::Gone);
        }
        let pairs = connection.read(request.locks.iter().map(|lock| self.keys.claims(lock))).await?;
        let lists = self.read_lists(connection, &request.locks, &pairs)?;
        let own = |claims: &Claims| {
            claims.position(session, number).map(|at| (at < claims.granted(), claims.0[at].clone()))
        };
        let own: Option<Vec<_>> = lists.iter().map(own).collect();
        if let Some([(_, claim), ..]) = own.as_deref()
            && own.iter().flatten().all(|(is_granted, _)| *is_granted)
        {
            request.revision = claim.revision;
            let delay_ms = claim.body.delay_ms;
            return Ok(CancelReply::Granted(claim.token, ConsulGrant { number: Some(number), request, delay_ms }));
        }
        let mut operations: Vec<_> = names.into_iter().map(Op::delete).collect();
        if request.may_arrive_late() {
            // A late copy of the acquire must find the mark.
            let uuid = self.uuid(connection, session).await?;
            operations.push(Op::lock(self.keys.done(session, number), b"", &uuid));
        } else if own.is_none() {
            return Ok(CancelReply::Gone);
        }
        match connection.txn(&operations).await? {
            Ok(_) => Ok(CancelReply::Gone),
            Err(Conflict) => Err(contended(&connection.peer).into()),
        }
    }

    /// Finds the claim of a grant that this client may not know, and the session of Consul that holds it.
    pub(super) async fn find_grant(&self, connection: &Connection, held: &Held) -> Result<(Claim, Rc<str>), Failure> {
        let pairs = connection.read([self.keys.claims(&held.lock)]).await?;
        let mut lists = self.read_lists(connection, [&held.lock], &pairs)?;
        let claim = queue::find_grant(lists.pop().unwrap_or_default(), held)?;
        let holder = self.holder_of(&pairs, &claim).ok_or_else(|| not_held(held))?;
        Ok((claim, holder))
    }

    /// Deletes the claim of a grant. Its name has the session and the number of the acquire, so that a repeated release never
    /// deletes another claim.
    pub(super) async fn release(
        &self,
        connection: &Connection,
        held: &Held,
        number: RequestNo,
        request: &Request,
        holder: &str,
    ) -> Result<(), Failure> {
        let (session, keys, locks) = (held.session, &self.keys, &request.locks);
        let names = claim_keys(keys, locks, (session, number));
        let Some(first) = names.first() else { return Err(not_held(held).into()) };
        let uuid = self.uuid(connection, session).await?;
        let mut operations = vec![Op::check_session(first.as_str(), holder)];
        operations.extend(names.iter().map(|name| Op::delete(name.as_str())));
        if request.may_arrive_late() {
            operations.push(Op::lock(keys.done(session, number), b"", &uuid));
        }
        if locks.len() <= MOST_RECORDED {
            operations
                .extend(locks.iter().flat_map(|lock| [keys.claims(lock), keys.history(lock)]).map(Op::read_all));
        }
        match connection.txn(&operations).await? {
            Ok(pairs) => self.record_release(connection, held, &names, locks, &uuid, &pairs).await,
            Err(Conflict) => return Err(not_held(held).into()),
        }
        Ok(())
    }

    /// Records a release while the lock is in use, for people. A lock that is idle afterwards leaves nothing behind.
    async fn record_release(
        &self,
        connection: &Connection,
        held: &Held,
        names: &[String],
        locks: &[LockName],
        uuid: &str,
        pairs: &Pairs,
    ) {
        self.note_index(pairs.index());
        if locks.len() > MOST_RECORDED {
            return;
        }
        let (session, token) = (held.session, held.token);
        let record = to_json(&Record { session, label: self.label(session), token, forced: None });
        let mut operations = Vec::new();
        for lock in locks {
            // The condition has put the deleted claim among the results.
            let is_idle = pairs.versions(&self.keys.claims(lock)).iter().all(|(key, _)| names.contains(key));
            let history = self.keys.history(lock);
            if !is_idle {
                let key = Keys::record(&history, token);
                // Another session may hold the key.
                operations.extend([Op::delete(key.as_str()), Op::lock(key, &record, uuid)]);
            } else if !pairs.versions(&history).is_empty() {
                operations.push(Op::delete_all(history));
            }
        }
        if !operations.is_empty() {
            // The release is done whether or not it is recorded.
            drop(connection.txn(&operations).await);
        }
    }
}
