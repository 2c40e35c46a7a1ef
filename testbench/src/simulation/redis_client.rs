//! A client of Redis: it takes, extends and releases locks by their values, and reads no replies.

use std::time::Duration;

use palisade_core::{LockName, LockNames, Secret, Ttl};
use palisade_server::node::{ConnectionId, Input, RequestId};
use palisade_server::request::{Extension, Request};

use super::host::{Arrival, context};
use super::world::{World, WorldEvent};

/// Its connection to every node. Connections of the other clients have small numbers.
const CONNECTION: ConnectionId = ConnectionId(u64::MAX);
/// A lock that no other client uses, so that it can be held without an end.
const OWN: &str = "of a Redis client";

impl World {
    /// Sends two commands to the node that leads.
    pub(super) fn use_redis_commands(&mut self) {
        for _ in 0..2 {
            let Some(leader) = self.leader() else { return };
            let request = self.redis_request();
            self.count("operator: command of a Redis client");
            self.extend_at_the_last_moment(&request);
            self.send_redis_request(leader, request);
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
        self.redis_requests += 1;
        let id = RequestId { connection: CONNECTION, number: self.redis_requests };
        let connected = Input::Connected { connection: CONNECTION, context: context("redis") };
        self.arrive(leader, Arrival::Input(connected));
        self.arrive(leader, Arrival::Input(Input::Request { id, request }));
        self.drain_output(leader);
    }

    fn redis_request(&mut self) -> Request {
        let names: &[&str] = match self.rng.below(4) {
            0 => &["plain"],
            1 => &["plain", OWN],
            _ => &[OWN],
        };
        let named = |name: &&str| LockName::new(name).ok();
        let locks: LockNames = names.iter().filter_map(named).collect();
        let secret = Secret::new(&[self.rng.below(2) as u8]);
        let ttl = self.redis_ttl();
        match (self.rng.below(8), locks.first().cloned()) {
            (0, _) => Request::ReleaseHeld { locks, secret },
            (1, Some(lock)) => Request::DropHeld { lock },
            (2, _) => Request::ExtendHeld { locks, secret, time: Extension::For(ttl) },
            (3, _) => Request::ExtendHeld { locks, secret, time: Extension::Add(1000) },
            (roll, _) => {
                let is_endless = roll == 4 && names == [OWN];
                let ttl = if is_endless { Ttl::ENDLESS } else { ttl };
                Request::take(locks, secret, ttl, self.rng.below(2) == 0)
            }
        }
    }
}
