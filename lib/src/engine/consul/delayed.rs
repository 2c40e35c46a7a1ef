//! Lock-delays. Consul's lock-delay is a setting of a session, and ours of an acquire. So claims with a delay are held by a further
//! session of Consul, one for each delay, which leaves them behind when it expires. Such a claim is abandoned. It still blocks its
//! locks, until the next waiter may delete it.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::try_join_all;
use http::{Method, StatusCode};
use palisade_core::{Acquire, Delay, Label, Limit, LockNames, Refusal, RequestNo, SessionId, Token};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::backend::{ATTEMPTS, Shared};
use super::connection::{CALL_TIMEOUT, Connection, MOST_OPERATIONS, Op, Pairs, Stored};
use super::error::{contended, ttl_range};
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::queue::{self, Blocked, Standing, claim_keys};
use crate::engine::claims::stored::{Claim, Claims, Key, Pair, SessionBody, to_json};
use crate::engine::host::random_session;
use crate::engine::remote::ConnectError;
use crate::engine::{Failure, LockInfo};

/// The longest lock-delay. It is Consul's limit.
const LONGEST_MS: u64 = 60_000;
/// The longest pause between two attempts to delete an abandoned claim.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// The TTL of a session of a client that only views locks. It ends after one transaction.
const VIEWER_TTL_MS: u64 = 60_000;

/// A session of this client.
pub(super) struct OpenSession {
    pub(super) label: Label,
    pub(super) uuids: Uuids,
}

/// The ids of the sessions of Consul that a session of Palisade consists of.
#[derive(Clone)]
pub(super) struct Uuids {
    pub(super) main: Rc<str>,
    /// The sessions that hold claims with a lock-delay, by the delay in milliseconds.
    pub(super) delayed: BTreeMap<u64, Rc<str>>,
}

impl Uuids {
    /// Reads them from the keys of a session; `None` if it has ended.
    fn read(shared: &Shared, session: SessionId, pairs: &Pairs) -> Option<Uuids> {
        let key = shared.keys.session(session);
        let main = pairs.get(&key)?.session.as_deref()?.into();
        let begin = format!("{key}/delay/");
        let delayed = pairs.tree(&begin).into_iter().filter_map(|stored| {
            let (key, value) = (str::from_utf8(stored.key()).ok()?, str::from_utf8(stored.value()).ok()?);
            Some((key.strip_prefix(&begin)?.parse().ok()?, value.into()))
        });
        Some(Uuids { main, delayed: delayed.collect() })
    }

    /// The session that holds claims with this delay.
    fn holder(&self, delay_ms: u64) -> Option<Rc<str>> {
        if delay_ms == 0 { Some(self.main.clone()) } else { self.delayed.get(&delay_ms).cloned() }
    }
}

/// A claim that its session has left behind.
#[derive(Debug, Clone)]
struct Abandoned {
    /// Its keys.
    keys: Vec<String>,
    /// The index that has changed the first one.
    changed: i64,
    was_granted: bool,
    delay_ms: u64,
}

/// The claims of an acquire's locks.
pub(super) struct Lists {
    pub(super) pairs: Pairs,
    pub(super) lists: Vec<Claims>,
    /// When to try again to delete the abandoned claim that the acquire waits for.
    pub(super) retry: Option<Duration>,
}

#[derive(Deserialize)]
struct CreatedSession {
    #[serde(rename = "ID")]
    id: String,
}

pub(super) fn delay_ms(acquire: &Acquire) -> u64 {
    acquire.delay.map_or(0, Delay::as_ms)
}

/// Refuses a delay that Consul would shorten.
pub(super) fn check_delay(acquire: &Acquire) -> Result<(), Refusal> {
    match delay_ms(acquire) {
        value if value > LONGEST_MS => Err(Refusal::OverLimit { limit: Limit::DelayMaxMs, max: LONGEST_MS, value }),
        _ => Ok(()),
    }
}

/// How long to wait before the next attempt to delete a claim with this delay.
fn pause(delay_ms: u64) -> Duration {
    Duration::from_millis(delay_ms / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Whether the session of a claim has left it behind.
fn is_abandoned(stored: Option<&Stored>) -> bool {
    stored.is_some_and(|stored| stored.session.is_none())
}

// Sessions of Consul.
impl Shared {
    /// Creates a session of Consul. One without a delay takes its keys with it when it ends.
    pub(super) async fn create_session(
        &self,
        connection: &Connection,
        session: SessionId,
        ttl_ms: u64,
        delay_ms: u64,
    ) -> Result<Rc<str>, Failure> {
        // By default a session ends when the health check of its agent's node fails, and its locks are withheld for a while.
        let body = serde_json::json!({
            "Name": format!("palisade {:014x}", session.get()),
            "TTL": format!("{ttl_ms}ms"),
            "LockDelay": format!("{delay_ms}ms"),
            "Behavior": if delay_ms == 0 { "delete" } else { "release" },
            "NodeChecks": [],
            "ServiceChecks": [],
            "Checks": [],
        });
        let reply = connection.send(Method::PUT, "session/create", to_json(&body), CALL_TIMEOUT).await?;
        if !reply.status.is_success() {
            return Err(match ttl_range(&reply.body) {
                Some((min, _)) if ttl_ms < min => {
                    Refusal::UnderLimit { limit: Limit::TtlMinMs, min, value: ttl_ms }.into()
                }
                Some((_, max)) => Refusal::OverLimit { limit: Limit::TtlMaxMs, max, value: ttl_ms }.into(),
                None => connection.failed(&reply).into(),
            });
        }
        let created: Result<CreatedSession, _> = serde_json::from_slice(&reply.body);
        Ok(created.map_err(|_| connection.peer.unexpected("a session without an id"))?.id.into())
    }

    /// Returns Consul's ids of a session. Those of another client's session are in the keys of the session.
    pub(super) async fn uuids(&self, connection: &Connection, session: SessionId) -> Result<Uuids, CallError> {
        if let Some(open) = self.sessions.borrow().get(&session) {
            return Ok(open.uuids.clone());
        }
        let pairs = connection.read([self.keys.session(session)]).await?;
        Uuids::read(self, session, &pairs).ok_or(CallError::SessionEnded)
    }

    pub(super) async fn uuid(&self, connection: &Connection, session: SessionId) -> Result<Rc<str>, CallError> {
        Ok(self.uuids(connection, session).await?.main)
    }

    /// Returns the session of Consul that holds the claims of a session with this delay.
    pub(super) async fn holder(
        &self,
        connection: &Connection,
        session: SessionId,
        delay_ms: u64,
    ) -> Result<Rc<str>, CallError> {
        let uuids = self.uuids(connection, session).await?;
        uuids.holder(delay_ms).ok_or(CallError::SessionEnded)
    }

    /// The same, and opens it at its first use.
    pub(super) async fn open_holder(
        &self,
        connection: &Connection,
        session: SessionId,
        delay_ms: u64,
    ) -> Result<Rc<str>, Failure> {
        let known = async || Ok::<_, CallError>(self.uuids(connection, session).await?.holder(delay_ms));
        if let Some(uuid) = known().await? {
            return Ok(uuid);
        }
        let _turn = self.opening.lock().await;
        if let Some(uuid) = known().await? {
            return Ok(uuid);
        }
        let key = self.keys.session(session);
        let pairs = connection.read([key.clone()]).await?;
        let (Some(stored), Some(uuids)) = (pairs.get(&key), Uuids::read(self, session, &pairs)) else {
            return Err(Failure::SessionEnded);
        };
        let body: SessionBody = serde_json::from_slice(stored.value())
            .map_err(|_| connection.peer.unexpected("a session with a value of another form"))?;
        let uuid = self.create_session(connection, session, body.ttl_ms, delay_ms).await?;
        let lock = Op::lock(format!("{key}/delay/{delay_ms}"), uuid.as_bytes(), &uuids.main);
        if connection.txn(&[lock]).await?.is_err() {
            return Err(connection.peer.unexpected("a session that cannot be written"));
        }
        if let Some(open) = self.sessions.borrow_mut().get_mut(&session) {
            open.uuids.delayed.insert(delay_ms, uuid.clone());
        }
        Ok(uuid)
    }

    /// Renews all sessions of Consul that a session consists of. It has ended if one of them has.
    pub(super) async fn renew(
        &self,
        connection: &Connection,
        session: SessionId,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let Uuids { main, delayed } = self.uuids(connection, session).await?;
        let renewals = [main].into_iter().chain(delayed.into_values()).map(async |uuid| {
            let path = format!("session/renew/{uuid}");
            let reply = connection.send(Method::PUT, &path, Vec::new(), timeout).await?;
            match reply.status {
                StatusCode::NOT_FOUND => Err(self.why_unknown(connection, &uuid).await?),
                status if status.is_success() => Ok(()),
                _ => Err(connection.failed(&reply)),
            }
        });
        try_join_all(renewals).await.map(drop)
    }

    /// Returns why a session was not found. A leader that was just elected answers before it knows the latest sessions.
    async fn why_unknown(&self, connection: &Connection, uuid: &str) -> Result<CallError, CallError> {
        let found: Option<Vec<IgnoredAny>> = connection.get(&format!("session/info/{uuid}?consistent")).await?;
        if found.is_none_or(|sessions| sessions.is_empty()) {
            return Ok(CallError::SessionEnded);
        }
        let error =
            ConnectError::transient("its leader does not know the session yet; try again").at(&connection.peer);
        Ok(CallError::Failed { error, may_have_taken_effect: false })
    }

    /// Ends a session and its claims. A claim with a delay is deleted before the session that would withhold its locks ends.
    pub(super) async fn destroy(&self, connection: &Connection, session: SessionId) -> Result<(), CallError> {
        let Uuids { main, delayed } = self.uuids(connection, session).await?;
        // Claims with a delay are created under the condition that the session exists. So there will be no more.
        self.destroy_uuid(connection, &main).await?;
        if !delayed.is_empty() {
            let delayed: Vec<_> = delayed.into_values().collect();
            self.delete_delayed(connection, session, &delayed).await?;
            for uuid in &delayed {
                self.destroy_uuid(connection, uuid).await?;
            }
        }
        Ok(())
    }

    async fn destroy_uuid(&self, connection: &Connection, uuid: &str) -> Result<(), CallError> {
        let path = format!("session/destroy/{uuid}");
        let reply = connection.send(Method::PUT, &path, Vec::new(), CALL_TIMEOUT).await?;
        if reply.status.is_success() { Ok(()) } else { Err(connection.failed(&reply)) }
    }

    /// Deletes the claims that these sessions of Consul hold.
    async fn delete_delayed(
        &self,
        connection: &Connection,
        session: SessionId,
        holders: &[Rc<str>],
    ) -> Result<(), CallError> {
        for _ in 0..ATTEMPTS {
            let (pairs, _) = connection.get_keys(&self.keys.locks(""), "?recurse&consistent", CALL_TIMEOUT).await?;
            let delete = |stored: &Stored| {
                let is_own = matches!(self.keys.parse(stored.key()), Some(Key::Claim(_, its, _)) if its == session);
                let (key, holder) = (str::from_utf8(stored.key()).ok()?, stored.session.as_deref()?);
                let is_held = is_own && holders.iter().any(|uuid| **uuid == *holder);
                is_held.then(|| [Op::check_session(key, holder), Op::delete(key)])
            };
            let mut operations = pairs.all().filter_map(delete).flatten().peekable();
            if operations.peek().is_none() {
                return Ok(());
            }
            while operations.peek().is_some() {
                let page: Vec<_> = operations.by_ref().take(MOST_OPERATIONS).collect();
                // Another client may have released one by force. The next round reads what is left.
                drop(connection.txn(&page).await?);
            }
        }
        Err(contended(&connection.peer))
    }
}

// Claims that were left behind.
impl Shared {
    fn abandoned(&self, pairs: &Pairs, claim: &Claim, was_granted: bool) -> Option<Abandoned> {
        let own = (claim.session, claim.number);
        let stored = pairs.get(&self.keys.claim(&claim.lock, own.0, own.1)).filter(|its| its.session.is_none())?;
        let mut keys = claim_keys(&self.keys, [&claim.lock], own);
        keys.extend(claim_keys(&self.keys, claim.locks().iter().filter(|lock| **lock != claim.lock), own));
        Some(Abandoned { keys, changed: stored.changed(), was_granted, delay_ms: claim.body.delay_ms })
    }

    /// Deletes a claim that was left behind. Returns whether it could: Consul refuses to lock its keys during the lock-delay. A claim
    /// that was never granted withholds nothing.
    async fn delete_abandoned(
        &self,
        connection: &Connection,
        abandoned: &Abandoned,
        uuid: &str,
    ) -> Result<bool, CallError> {
        let Abandoned { keys, changed, was_granted, .. } = abandoned;
        let mut operations: Vec<_> = match was_granted {
            true => keys.iter().map(|key| Op::lock(key.as_str(), b"", uuid)).collect(),
            false => vec![Op::check_index(keys[0].as_str(), *changed)],
        };
        operations.extend(keys.iter().map(|key| Op::delete(key.as_str())));
        Ok(connection.txn(&operations).await?.is_ok())
    }

    /// Deletes the abandoned claims that an acquire waits for, as far as their lock-delays are over.
    pub(super) async fn end_delays(
        &self,
        connection: &Connection,
        acquire: &Acquire,
        number: RequestNo,
        mut pairs: Pairs,
        mut lists: Vec<Claims>,
    ) -> Result<Lists, Failure> {
        let session = acquire.caller.session;
        let locks = || acquire.wants.iter().map(|want| &want.lock);
        loop {
            let own = claim_keys(&self.keys, locks(), (session, number));
            if own.iter().any(|key| is_abandoned(pairs.get(key))) {
                return Err(Failure::SessionEnded);
            }
            let blocking = self.blocking(acquire, number, &pairs, &lists);
            if blocking.is_empty() {
                return Ok(Lists { pairs, lists, retry: None });
            }
            let (uuid, mut is_one_gone) = (self.uuid(connection, session).await?, false);
            for abandoned in &blocking {
                is_one_gone |= self.delete_abandoned(connection, abandoned, &uuid).await?;
            }
            if !is_one_gone {
                let retry = blocking.iter().map(|claim| pause(claim.delay_ms)).min();
                return Ok(Lists { pairs, lists, retry });
            }
            pairs = connection.read(locks().map(|lock| self.keys.claims(lock))).await?;
            lists = self.read_lists(connection, locks(), &pairs)?;
        }
    }

    /// The abandoned claims that an acquire waits for.
    fn blocking(&self, acquire: &Acquire, number: RequestNo, pairs: &Pairs, lists: &[Claims]) -> Vec<Abandoned> {
        let key = (acquire.caller.session, number);
        let (Standing::Blocked(Blocked::Claim(prefix) | Blocked::Any { claims: prefix, .. }), _) =
            queue::standing(&self.keys, key, &acquire.wants, lists)
        else {
            return Vec::new();
        };
        let mut blocking = Vec::new();
        for claims in lists {
            let granted = claims.granted();
            let ahead = claims.0.iter().enumerate().take_while(|(_, claim)| !claim.is_of(key.0, key.1));
            let is_blocking =
                |claim: &Claim| self.keys.claim(&claim.lock, claim.session, claim.number).starts_with(&prefix);
            blocking.extend(
                ahead
                    .filter(|(_, claim)| is_blocking(claim))
                    .filter_map(|(at, claim)| self.abandoned(pairs, claim, at < granted)),
            );
        }
        blocking
    }

    /// The session of Consul that holds a claim; `None` if it has left it behind.
    pub(super) fn holder_of(&self, pairs: &Pairs, claim: &Claim) -> Option<Rc<str>> {
        let stored = pairs.get(&self.keys.claim(&claim.lock, claim.session, claim.number));
        stored.and_then(|stored| stored.session.as_deref()).map(Rc::from)
    }

    /// Removes the claims that were left behind before they were granted: their sessions do not wait any more.
    pub(super) fn without_dead_waiters(&self, pairs: &Pairs, claims: &mut Claims) {
        let granted = claims.granted();
        let mut nth = 0;
        claims.0.retain(|claim| {
            nth += 1;
            nth <= granted || self.holder_of(pairs, claim).is_some()
        });
    }

    /// The grants whose locks are withheld, with their delays.
    pub(super) fn withheld<'a>(
        &self,
        pairs: &Pairs,
        lists: impl Iterator<Item = &'a Claims>,
    ) -> BTreeMap<Token, Withheld> {
        let mut withheld = BTreeMap::new();
        for claims in lists {
            for claim in claims.0.iter().take(claims.granted()) {
                let its = self.abandoned(pairs, claim, true).zip(Delay::from_ms(claim.body.delay_ms.max(1)).ok());
                let its = its.map(|(abandoned, delay)| Withheld { locks: claim.locks(), delay, claim: abandoned });
                withheld.extend(its.map(|its| (claim.token, its)));
            }
        }
        withheld
    }

    /// Deletes the claims of these grants whose delays are over. Returns whether there was one. A client that may not write
    /// deletes none.
    pub(super) async fn end_withheld(&self, connection: &Connection, withheld: &BTreeMap<Token, Withheld>) -> bool {
        if withheld.is_empty() {
            return false;
        }
        let own = self.sessions.borrow().values().next().map(|open| open.uuids.main.clone());
        let uuid = match &own {
            Some(uuid) => uuid.clone(),
            None => match self.create_session(connection, random_session(), VIEWER_TTL_MS, 0).await {
                Ok(uuid) => uuid,
                Err(_) => return false,
            },
        };
        let mut is_one_gone = false;
        for its in withheld.values() {
            is_one_gone |= self.delete_abandoned(connection, &its.claim, &uuid).await.unwrap_or(false);
        }
        if own.is_none() {
            drop(self.destroy_uuid(connection, &uuid).await);
        }
        is_one_gone
    }

    /// Returns the state of a lock. A withheld lock has a holder without a session.
    pub(super) fn info<P: Pair>(&self, pairs: &Pairs, mut claims: Claims, records: &[P]) -> Option<LockInfo> {
        self.without_dead_waiters(pairs, &mut claims);
        let withheld: HashSet<_> = self.withheld(pairs, [&claims].into_iter()).into_keys().collect();
        let mut info = claims.info(records)?;
        for holder in info.holders.iter_mut().filter(|holder| withheld.contains(&holder.token)) {
            (holder.session, holder.label) = (None, None);
        }
        Some(info)
    }
}

/// A grant whose session has expired, and whose locks are withheld.
#[derive(Debug, Clone)]
pub(super) struct Withheld {
    pub(super) locks: LockNames,
    pub(super) delay: Delay,
    claim: Abandoned,
}

impl Withheld {
    /// How long to wait before the next attempt to end its delay.
    pub(super) fn pause(&self) -> Duration {
        pause(self.delay.as_ms())
    }
}
