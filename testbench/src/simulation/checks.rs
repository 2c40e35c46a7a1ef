//! What the world compares with the committed history: the states of the nodes, what clients believe, and the end.

use std::collections::BTreeSet;
use std::time::Duration;

use palisade::Standing;
use palisade_core::{Ending, SessionEnd, Token};

use super::application::COUNTED;
use super::judge::Effects;
use super::world::World;

/// How many entries a node applies before its state is compared with the judge's.
const ENTRIES_PER_COMPARISON: usize = 64;

impl World {
    /// Compares the state of a node with the judge's, once it has applied enough entries.
    pub(super) fn compare_sometimes(&mut self, host: usize) {
        let last = self.record.borrow().history.last_index();
        let Some(running) = &mut self.hosts[host].running else { return };
        if running.uncompared >= ENTRIES_PER_COMPARISON && running.applied == last {
            running.uncompared = 0;
            self.compare(host);
        }
    }

    /// Compares the state of a node with the judge's, if both are at the same entry.
    pub(super) fn compare(&self, host: usize) {
        let Some(running) = &self.hosts[host].running else { return };
        let mut record = self.record.borrow_mut();
        if running.applied == record.history.last_index()
            && running.node.machine().snapshot() != record.history.model().snapshot()
        {
            let what = format!("A: the state of node {} differs at entry {}", self.hosts[host].id, running.applied);
            record.fail(what);
        }
    }

    /// Checks what was committed against what the clients believe.
    pub(super) fn check_effects(&mut self, effects: &Effects) {
        for ended in &effects.ended {
            let is_expired = ended.how == Ending::SessionEnded(SessionEnd::Expired);
            let mut is_known = false;
            for at in 0..self.clients.len() {
                let client = &self.clients[at];
                let Some(process) = &client.process else { continue };
                let held = client.shared.held.borrow();
                let Some(held) = held.get(&ended.token) else { continue };
                is_known = true;
                if ended.how == Ending::Released && !held.is_released {
                    self.fail(format!("M: {} was released, and its holder, client {at}, has not", ended.token));
                }
                if is_expired {
                    process.set_time(self.client_time(at));
                    let is_lost = process.enter(|| matches!(held.guard.guard().standing(), Standing::Lost(_)));
                    if is_lost {
                        self.count(match client.is_paused {
                            true => "path: holder lost its lock while paused",
                            false => "path: holder told of its loss before the engine ended the session",
                        });
                    } else if self.is_within_drift(at) {
                        self.fail(format!("N: {} was ended, and its holder, client {at}, was not told", ended.token));
                    }
                }
            }
            if !is_known && ended.how == Ending::Released {
                self.count("path: orphaned grant released");
            }
        }
        self.check_ttls(effects);
        if !effects.granted.is_empty()
            && self
                .hosts
                .iter()
                .any(|machine| machine.running.as_ref().is_some_and(|running| running.node.leader().is_none()))
        {
            self.count("path: grant during an election");
        }
        for token in &effects.granted {
            self.check_exclusive(*token);
        }
        let mut record = self.record.borrow_mut();
        for what in &effects.paths {
            record.count(what);
        }
    }

    /// Checks that no session has expired before its TTL, whatever its clients did. A node's clock is wrong by 5% at most.
    fn check_ttls(&mut self, effects: &Effects) {
        for (session, ttl) in &effects.restarted {
            self.ttls.insert(*session, (self.now, Duration::from_millis(ttl.as_ms())));
        }
        for session in &effects.expired {
            self.count("path: session expired");
            if let Some((began_at, ttl)) = self.ttls.remove(session)
                && self.now - began_at < ttl * 94 / 100
            {
                let lived = self.now - began_at;
                self.fail(format!("N: {session:?} has expired {lived:?} after its TTL of {ttl:?} began"));
            }
        }
    }

    /// Checks that no other client counts on a lock that was granted.
    pub(super) fn check_exclusive(&self, token: Token) {
        let (locks, forced) = {
            let record = self.record.borrow();
            let Some(grant) = record.history.grants.get(&token) else { return };
            let is_forced = |other: &Token| {
                record
                    .history
                    .grants
                    .get(other)
                    .is_some_and(|grant| matches!(grant.ended, Some((_, Ending::Forced(_)))))
            };
            let held = self
                .clients
                .iter()
                .flat_map(|client| client.shared.held.borrow().keys().copied().collect::<Vec<_>>());
            (grant.locks.clone(), held.filter(is_forced).collect::<BTreeSet<_>>())
        };
        for (at, client) in self.clients.iter().enumerate() {
            let Some(process) = client.process.as_ref().filter(|_| self.is_within_drift(at)) else { continue };
            process.set_time(self.client_time(at));
            for (other, held) in client.shared.held.borrow().iter() {
                let guard = held.guard.guard();
                let is_same_lock = guard.locks().iter().any(|lock| locks.contains(lock));
                let is_excluded = *other >= token || held.is_released || !held.is_exclusive || forced.contains(other);
                if is_same_lock && !is_excluded {
                    let is_lost = process.enter(|| matches!(guard.standing(), Standing::Lost(_)));
                    if !is_lost {
                        self.fail(format!("M: {token} was granted, and client {at} counts on {other} of {locks:?}"));
                    }
                }
            }
        }
    }

    /// Ends all faults, and checks that everything goes on and comes to an end.
    pub(super) fn finish(&mut self) {
        self.heal();
        let bound = Duration::from_secs(60) + 20 * self.plan.ttl + 2 * self.plan.think;
        let limit = self.now + bound;
        let is_done = |world: &World| {
            let mut clients = world.clients.iter();
            clients.all(|client| client.shared.cycles_after_faults.get() >= 2) && world.is_settled()
        };
        while !is_done(self) && !self.has_failed() {
            if self.now >= limit {
                let cycles: Vec<_> =
                    self.clients.iter().map(|client| client.shared.cycles_after_faults.get()).collect();
                let what = format!("L: no progress within {bound:?} without faults: {cycles:?}, {}", self.state());
                return self.fail(what);
            }
            self.run_until(self.now + Duration::from_millis(500));
            self.administer();
        }
        self.is_ending.set(true);
        let limit = self.now + bound;
        let is_empty = |world: &World| {
            let record = world.record.borrow();
            record.history.model().session_count() == 0 && record.history.locks_in_use() == 0
        };
        let are_closed = |world: &World| world.clients.iter().all(|client| client.shared.is_closed.get());
        let is_over = |world: &World| are_closed(world) && is_empty(world) && world.is_settled();
        while !is_over(self) && !self.has_failed() {
            if self.now >= limit {
                return self.fail(format!("L: sessions or locks are left after {bound:?}: {}", self.state()));
            }
            self.end_redis_locks();
            self.run_until(self.now + Duration::from_millis(500));
        }
        if self.has_failed() {
            return;
        }
        (0..self.hosts.len()).for_each(|host| self.compare(host));
        for counter in 0..COUNTED.len() {
            let (value, acknowledged) = (self.counters[counter].value(), self.acknowledged.borrow()[counter]);
            let most = acknowledged + self.unknown.borrow()[counter];
            if value < acknowledged || value > most {
                self.fail(format!("U: counter {counter} is {value}, {acknowledged} to {most} were acknowledged"));
            }
        }
    }

    /// Describes the nodes, for the report of a failure.
    pub(super) fn state(&self) -> String {
        let nodes = self.hosts.iter().map(|machine| match &machine.running {
            Some(running) => {
                let report = running.node.cluster_report();
                format!("node {}: {report:?}", machine.id)
            }
            None => format!("node {} is down", machine.id),
        });
        let record = self.record.borrow();
        let model = record.history.model();
        let rest = format!("{} sessions, {} locks in use", model.session_count(), record.history.locks_in_use());
        format!("{rest}; {}", nodes.collect::<Vec<_>>().join("; "))
    }

    /// Whether all members run and have applied the same.
    pub(super) fn is_settled(&self) -> bool {
        let Some((_, membership)) = self.members() else { return false };
        if membership.is_joint() || !membership.learners.is_empty() {
            return false;
        }
        let last = self.record.borrow().history.last_index();
        membership.members.keys().all(|member| {
            let machine = self.host_of(*member).map(|host| &self.hosts[host]);
            let machine = machine.filter(|machine| machine.member() == *member);
            machine.and_then(|machine| machine.running.as_ref()).is_some_and(|running| running.applied == last)
        })
    }
}
