//! A client of Redis: it takes, extends, inspects and releases locks by their values.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade_core::{LockName, LockNames, Secret, Ttl};
use palisade_server::node::{ConnectionId, Input, RequestId, Response};
use palisade_server::request::{Extension, Query, Request};

use super::host::Arrival;
use super::world::{World, WorldEvent};

/// Its connection to every node. Connections of the other clients have small numbers.
pub(super) const CONNECTION: ConnectionId = ConnectionId(u64::MAX);
/// A lock that no other client uses, so that it can be held without an end.
const OWN: &str = "of a Redis client";
/// The locks that it uses.
pub(super) const LOCKS: [&str; 2] = ["plain", OWN];

/// Its requests.
#[derive(Default)]
pub(super) struct RedisClient {
    last: u64,
    /// Those without a reply, and the last entry that a leader had applied when they were sent.
    pending: BTreeMap<u64, (Request, u64)>,
}

impl World {
    /// Sends two commands to a node that leads, or to one that runs.
    pub(super) fn use_redis_commands(&mut self) {
        for _ in 0..2 {
            let running: Vec<_> = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_up()).collect();
            let leaders: Vec<_> = running.iter().copied().filter(|host| self.hosts[*host].leads()).collect();
            let hosts = if leaders.is_empty() || self.rng.below(8) == 0 { running } else { leaders };
            let Some(host) = hosts.get(self.rng.below(hosts.len())).copied() else { return };
            let request = self.redis_request();
            self.count("operator: command of a Redis client");
            self.extend_at_the_last_moment(&request);
            self.send_redis_request(host, request);
        }
    }

    /// Plans to change a lock at the newest leader, and to ask the one that was deposed, while that one does not know it.
    pub(super) fn schedule_stale_reads(&mut self) {
        for _ in 0..4 {
            let after = self.random_time(Duration::from_secs(1));
            self.schedule_in(after, WorldEvent::ReadAtLeaders);
        }
    }

    /// Asks a node that has just started, and may not have applied all of its log, for a lock and for the newest session.
    pub(super) fn ask_at_start(&mut self, host: usize) {
        if self.are_faults_over.get() || self.rng.below(2) == 0 {
            return;
        }
        if let Ok(lock) = LockName::new(LOCKS[self.rng.below(LOCKS.len())]) {
            self.send_redis_request(host, Request::DropHeld { lock });
        }
        let session = self.record.borrow().history.newest_session();
        if let Some(session) = session {
            self.send_redis_request(host, Request::Attach { session });
        }
    }

    pub(super) fn read_at_leaders(&mut self) {
        let term = |host: &usize| self.hosts[*host].running.as_ref().and_then(|running| running.leads_in);
        let mut leaders: Vec<_> = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_up()).collect();
        leaders.retain(|host| term(host).is_some());
        leaders.sort_by_key(term);
        let Some(newest) = leaders.pop().filter(|_| !leaders.is_empty()) else { return };
        self.count("path: deposed leader asked");
        let request = self.redis_request();
        self.send_redis_request(newest, request);
        for deposed in leaders {
            let mut locks: LockNames = LOCKS.iter().filter_map(|name| LockName::new(name).ok()).collect();
            let request = match (self.rng.below(2), locks.pop()) {
                (0, Some(lock)) => Request::DropHeld { lock },
                (_, lock) => {
                    locks.extend(lock);
                    Request::Query(Query::Held { locks, secret: None })
                }
            };
            self.send_redis_request(deposed, request);
        }
    }

    /// Checks a reply against the committed history.
    pub(super) fn judge_redis_reply(&mut self, number: u64, response: &Response) {
        let Some((request, since)) = self.redis.pending.remove(&number) else { return };
        let checked = self.record.borrow().history.check_redis_reply(&request, response, since);
        if let Err(what) = checked {
            self.fail(what);
        }
    }

    /// Plans to extend a lock that is taken now when its TTL is just about to pass, or has just passed.
    fn extend_at_the_last_moment(&mut self, request: &Request) {
        if let Request::Acquire(acquire) = request
            && let Some(secret) = acquire.secret.clone()
        {
            let locks = acquire.wants.iter().map(|want| want.lock.clone()).collect();
            let after = self.plan.ttl.saturating_sub(Duration::from_millis(30));
            let after = after + self.random_time(Duration::from_millis(60));
            self.schedule_in(after, WorldEvent::ExtendRedisLock(locks, secret));
        }
    }

    pub(super) fn extend_redis_lock(&mut self, locks: LockNames, secret: Secret) {
        if let Some(leader) = self.leader().filter(|_| !self.are_faults_over.get()) {
            self.count("operator: lock of a Redis client extended at the last moment");
            let time = Extension::For(self.redis_ttl());
            self.send_redis_request(leader, Request::ExtendHeld { locks, secret, time });
        }
    }

    fn redis_ttl(&self) -> Ttl {
        Ttl::from_ms(self.plan.ttl.as_millis() as u64).unwrap_or(Ttl::ENDLESS)
    }

    /// Releases the lock that may be held without an end.
    pub(super) fn end_redis_locks(&mut self) {
        if let (Some(leader), Ok(lock)) = (self.leader(), LockName::new(OWN)) {
            self.send_redis_request(leader, Request::DropHeld { lock });
        }
    }

    fn send_redis_request(&mut self, leader: usize, request: Request) {
        let since = self.record.borrow().history.announced();
        self.redis.last += 1;
        self.redis.pending.insert(self.redis.last, (request.clone(), since));
        let id = RequestId { connection: CONNECTION, number: self.redis.last };
        let Some(running) = &self.hosts[leader].running else { return };
        let connected = Input::Connected { connection: CONNECTION, context: running.context("redis", 0) };
        self.arrive(leader, Arrival::Input(connected));
        self.arrive(leader, Arrival::Input(Input::Request { id, request }));
        self.drain_output(leader);
    }

    fn redis_request(&mut self) -> Request {
        let names: &[&str] = match self.rng.below(4) {
            0 => &LOCKS[..1],
            1 => &LOCKS,
            _ => &[OWN],
        };
        let named = |name: &&str| LockName::new(name).ok();
        let locks: LockNames = names.iter().filter_map(named).collect();
        let secret = Secret::new(&[self.rng.below(2) as u8]);
        let ttl = self.redis_ttl();
        match (self.rng.below(9), locks.first().cloned()) {
            (0, _) => Request::ReleaseHeld { locks, secret },
            (1, Some(lock)) => Request::DropHeld { lock },
            (2, _) => Request::ExtendHeld { locks, secret, time: Extension::For(ttl) },
            (3, _) => Request::ExtendHeld { locks, secret, time: Extension::Add(1000) },
            (4, _) => Request::Query(Query::Held { locks, secret: Some(secret) }),
            (roll, _) => {
                let is_endless = roll == 5 && names == [OWN];
                let ttl = if is_endless { Ttl::ENDLESS } else { ttl };
                Request::take(locks, secret, ttl, self.rng.below(2) == 0)
            }
        }
    }
}
