//! Everything that goes wrong, and what operators do.

use std::time::Duration;

use palisade_server::storage::{HardState, Membership, Watermark, write_watermark};

use super::host::{Host, member};
use super::world::{MAX_DRIFT_PPM, World, WorldEvent};
use crate::faulty_disk::{Fault, FaultyDisk};

/// How long a damage of a disk waits for a moment at which the cluster can do without that disk.
const DAMAGE_WAITS: Duration = Duration::from_secs(5);

/// What happens to the disk of a machine that is down, or what a careless operator does to it.
#[derive(Clone, Copy)]
pub(super) enum Damage {
    BitFlipped,
    /// An older copy of it is put back.
    OlderCopy,
    /// An older copy of another machine's disk is put there, and the node is started as that machine's.
    OtherMachine,
    Lost,
    /// It is lost in a power cut of all machines.
    LostInPowerCut,
}

impl World {
    pub(super) fn schedule_fault(&mut self) {
        let delay = self.plan.fault_every / 10 + self.random_time(2 * self.plan.fault_every);
        self.schedule_in(delay, WorldEvent::Fault);
    }

    /// Something goes wrong, or an operator does something.
    pub(super) fn inject_fault(&mut self) {
        if self.faults >= self.plan.faults {
            return;
        }
        self.faults += 1;
        self.use_redis_commands();
        let host = self.rng.below(self.hosts.len());
        let client = self.rng.below(self.clients.len());
        match self.rng.below(41) {
            0 | 1 => self.kill_host(host, "fault: node killed"),
            2 => {
                if let Some(leader) = self.leader() {
                    self.kill_host(leader, "fault: leader killed");
                }
            }
            3 | 4 => self.cut_power(host, "fault: power cut"),
            5 => self.stop_within_write(host),
            6 => {
                for host in 0..self.hosts.len() {
                    self.cut_power(host, "fault: power cut of all nodes");
                }
            }
            7 => {
                // What a follower has not written is lost with the leader.
                for other in (0..self.hosts.len()).filter(|other| *other != host) {
                    self.cut_power(other, "fault: power cut");
                }
            }
            8 | 9 => {
                let longest = 4 * self.plan.ttl;
                self.pause_host(host, longest, "fault: node paused for several TTLs");
            }
            10 => self.pause_host(host, Duration::from_millis(800), "fault: node paused briefly"),
            11 => self.suspend_host(host),
            12 => self.cut_off(host),
            13 => {
                if let Some(leader) = self.leader() {
                    self.cut_off(leader);
                }
            }
            14 => self.cut_one_way(host),
            15 => self.cut_ring(),
            16 => self.flap(host),
            17 | 18 => self.cut_client(client, host),
            19 => self.break_connections(),
            20 => {
                self.count("fault: disk slow");
                self.note(format_args!("the disk of node {} is slow", self.hosts[host].id));
                self.hosts[host].slow_until = self.now + self.random_time(Duration::from_secs(8));
            }
            21 => self.fill_disk(host),
            22 => {
                if self.hosts[host].running.is_some() {
                    self.count("fault: flush failed");
                    let operations = self.rng.below(6);
                    self.hosts[host].disk.fail_after(operations, Fault::FailedFlush);
                }
            }
            23 => self.schedule_damage(host, Damage::BitFlipped),
            24 => self.schedule_damage(host, Damage::OlderCopy),
            25 => self.schedule_damage(host, Damage::Lost),
            26 => self.back_up(host),
            27 => self.change_rate_of_host(host),
            28 | 29 => self.change_rate_of_client(client),
            30 => {
                if self.clients[client].process.is_some() {
                    self.count("fault: client killed");
                    self.kill_client(client);
                    let after = self.random_time(Duration::from_secs(5));
                    self.schedule_in(after, WorldEvent::StartClient { client });
                }
            }
            31 | 32 => self.pause_client(client, false),
            33 => self.pause_client(client, true),
            34 => self.add_member(host),
            35 => self.add_two(host),
            36 => self.remove_member(host),
            37 => self.transfer(host),
            38 => self.schedule_damage(host, Damage::OtherMachine),
            _ => self.administer(),
        }
    }

    // Machines that stop.

    fn schedule_restart(&mut self, host: usize) {
        let longest = if self.rng.below(4) == 0 { 4 * self.plan.ttl } else { Duration::from_secs(1) };
        let after = Duration::from_millis(20) + self.random_time(longest);
        self.schedule_in(after, WorldEvent::Restart { host });
    }

    fn kill_host(&mut self, host: usize, what: &'static str) {
        if self.hosts[host].running.is_none() {
            return;
        }
        self.count(what);
        self.note(format_args!("node {} is killed", self.hosts[host].id));
        self.stop_host(host);
        self.schedule_restart(host);
    }

    /// A term begins at a node: sometimes its power fails after its vote, and it is back before the election is over.
    pub(super) fn term_began(&mut self, host: usize) {
        if !self.are_faults_over.get() && self.faults < self.plan.faults && self.rng.below(6) == 0 {
            let (start, after) = (self.hosts[host].starts, self.random_time(Duration::from_millis(10)));
            self.schedule_in(after, WorldEvent::PowerCut { host, start });
        }
    }

    /// The power fails for a moment.
    pub(super) fn flicker(&mut self, host: usize, start: u64) {
        if self.hosts[host].starts == start && self.hosts[host].running.is_some() {
            self.faults += 1;
            self.count("fault: power cut in a new term");
            self.lose_power(host);
            let after = Duration::from_millis(1) + self.random_time(Duration::from_millis(20));
            self.schedule_in(after, WorldEvent::Restart { host });
        }
    }

    /// The new leader replaces entries of a node: sometimes its power fails while they are written.
    pub(super) fn entries_replaced(&mut self, host: usize) {
        if !self.are_faults_over.get() && self.faults < self.plan.faults && self.rng.below(4) == 0 {
            self.faults += 1;
            self.count("fault: power cut while entries are replaced");
            let operations = self.rng.below(3);
            self.hosts[host].disk.fail_after(operations, Fault::PowerCut);
        }
    }

    fn cut_power(&mut self, host: usize, what: &'static str) {
        if self.hosts[host].running.is_none() {
            return;
        }
        self.count(what);
        let is_writing = self.hosts[host].running.as_ref().is_some_and(|running| !running.writes.is_empty());
        if is_writing && self.rng.below(2) == 0 {
            // In the middle of a write.
            let operations = self.rng.below(3);
            let machine = &mut self.hosts[host];
            machine.disk.fail_after(operations, Fault::PowerCut);
            if let Some(running) = &mut machine.running
                && let Some((_, write)) = running.writes.front()
            {
                drop(running.store.append(write));
            }
        }
        self.lose_power(host);
    }

    /// The power fails now.
    fn lose_power(&mut self, host: usize) {
        self.note(format_args!("power cut at node {}", self.hosts[host].id));
        self.hosts[host].disk = self.hosts[host].disk.after_power_cut(&mut self.rng);
        match self.rng.below(2) {
            0 => self.stop_host(host),
            _ => {
                self.count("fault: power cut that closes no connection");
                self.end_host(host, false);
            }
        }
        self.schedule_restart(host);
    }

    /// The power fails after the next few operations of the disk, or the process is killed.
    fn stop_within_write(&mut self, host: usize) {
        if self.hosts[host].running.is_some() {
            let (what, fault) = match self.rng.below(2) {
                0 => ("fault: power cut within a disk operation", Fault::PowerCut),
                _ => ("fault: node killed within a disk operation", Fault::Killed),
            };
            self.count(what);
            match self.rng.below(2) {
                0 => {
                    let operations = self.rng.below(12);
                    self.hosts[host].disk.fail_after(operations, fault);
                }
                // A file has just got its name.
                _ => {
                    let (renames, operations) = (self.rng.below(3), self.rng.below(3));
                    self.hosts[host].disk.fail_after_renames(renames, operations, fault);
                }
            }
        }
    }

    /// A write or a flush of a node has failed: the process ends.
    pub(super) fn disk_failed(&mut self, host: usize) {
        self.note(format_args!("the disk of node {} fails", self.hosts[host].id));
        let disk = &self.hosts[host].disk;
        // After a failed flush it is unknown what is on the disk. The next process still reads what this one has written.
        let has_power = disk.is_full() || disk.is_killed() || (!disk.is_dead() && self.rng.below(2) == 0);
        if has_power {
            self.hosts[host].disk.kill_writer();
            self.stop_host(host);
            self.schedule_restart(host);
        } else {
            self.lose_power(host);
        }
    }

    fn fill_disk(&mut self, host: usize) {
        if self.hosts[host].running.is_some() {
            self.count("fault: disk full");
            self.note(format_args!("the disk of node {} is full", self.hosts[host].id));
            self.hosts[host].disk.fail_after(0, Fault::Full);
            let until = self.random_time(Duration::from_secs(6));
            self.schedule_in(until, WorldEvent::RepairDisk { host });
        }
    }

    fn pause_host(&mut self, host: usize, longest: Duration, what: &'static str) {
        if self.hosts[host].is_up() {
            self.count(what);
            self.note(format_args!("node {} is paused", self.hosts[host].id));
            self.hosts[host].is_paused = true;
            let (until, start) = (self.random_time(longest), self.hosts[host].starts);
            self.schedule_in(until, WorldEvent::ResumeHost { host, start });
        }
    }

    /// The machine sleeps: its clock stops, too.
    fn suspend_host(&mut self, host: usize) {
        if self.hosts[host].is_up() {
            let now = self.now;
            self.hosts[host].clock.set_rate(now, None);
            self.pause_host(host, 4 * self.plan.ttl, "fault: node suspended");
        }
    }

    pub(super) fn resume_host(&mut self, host: usize, start: u64) {
        let machine = &mut self.hosts[host];
        if machine.starts != start || !machine.is_paused {
            return;
        }
        machine.is_paused = false;
        if machine.clock.rate().is_none() {
            self.set_rate_of_host(host, 0);
        }
        let machine = &mut self.hosts[host];
        let id = machine.id;
        let inbox = std::mem::take(&mut machine.inbox);
        if let Some(running) = &mut machine.running {
            running.tick_at = None;
        }
        self.note(format_args!("node {id} goes on"));
        for arrival in inbox {
            self.arrive(host, arrival);
        }
        self.drain_output(host);
    }

    // Networks.

    fn cut_links(&mut self, cut: Vec<(u64, u64)>) {
        let longest = if self.rng.below(3) == 0 { 4 * self.plan.ttl } else { Duration::from_secs(2) };
        let until = self.random_time(longest);
        self.cut_links_until(cut, until);
    }

    fn cut_links_until(&mut self, cut: Vec<(u64, u64)>, until: Duration) {
        self.note(format_args!("cut: {cut:?}"));
        self.cut.extend(&cut);
        self.schedule_in(until, WorldEvent::HealLinks { cut });
    }

    fn both_ways(&self, host: usize) -> Vec<(u64, u64)> {
        let id = self.hosts[host].id;
        self.hosts.iter().flat_map(|other| [(id, other.id), (other.id, id)]).filter(|(a, b)| a != b).collect()
    }

    pub(super) fn cut_off(&mut self, host: usize) {
        if self.hosts.len() > 1 {
            self.count("fault: node cut off");
            let cut = self.both_ways(host);
            match self.rng.below(2) {
                0 => self.cut_links(cut),
                _ => self.cut_off_with_clients(host, cut),
            }
        }
    }

    /// The leader has given others a vote: sometimes they and the leader are cut off before the rest learns it, or a power cut takes the
    /// disk of a member.
    pub(super) fn voters_added(&mut self, leader: usize, mut side: Vec<u64>) {
        if side.is_empty() || self.are_faults_over.get() || self.faults >= self.plan.faults {
            return;
        }
        let choice = self.rng.below(4);
        if choice == 0 {
            return;
        }
        self.faults += 1;
        if choice == 1 {
            let others = self.hosts.len() - 1;
            let host = (leader + 1 + self.rng.below(others)) % self.hosts.len();
            return self.damage(host, Damage::LostInPowerCut, self.now + Duration::from_millis(300));
        }
        self.count("fault: cut while members get their votes");
        side.push(self.hosts[leader].id);
        let rest: Vec<_> = self.hosts.iter().map(|machine| machine.id).filter(|id| !side.contains(id)).collect();
        let cut = side.iter().flat_map(|a| rest.iter().flat_map(|b| [(*a, *b), (*b, *a)])).collect();
        let until = Duration::from_secs(1) + self.random_time(Duration::from_secs(4));
        self.cut_links_until(cut, until);
    }

    /// Some clients are on the side of the node, for longer than their sessions live.
    fn cut_off_with_clients(&mut self, host: usize, cut: Vec<(u64, u64)>) {
        let until = Duration::from_secs(2) + self.plan.ttl + self.random_time(2 * self.plan.ttl);
        self.cut_links_until(cut, until);
        for client in 0..self.clients.len() {
            if self.rng.below(3) > 0 {
                self.count("fault: client cut off with a node");
                self.cut_client_from((0..self.hosts.len()).filter(|other| *other != host), client, until);
            }
        }
    }

    fn cut_one_way(&mut self, host: usize) {
        let other = self.rng.below(self.hosts.len());
        if other != host {
            self.count("fault: link cut in one direction");
            let cut = vec![(self.hosts[host].id, self.hosts[other].id)];
            self.cut_links(cut);
        }
    }

    /// Each node reaches only its neighbours.
    fn cut_ring(&mut self) {
        let ids: Vec<_> = self.hosts.iter().map(|machine| machine.id).collect();
        if ids.len() < 4 {
            return;
        }
        self.count("fault: ring of links");
        let is_neighbour = |a: usize, b: usize| (a + 1) % ids.len() == b || (b + 1) % ids.len() == a || a == b;
        let pairs = (0..ids.len()).flat_map(|a| (0..ids.len()).map(move |b| (a, b)));
        let cut = pairs.filter(|(a, b)| !is_neighbour(*a, *b)).map(|(a, b)| (ids[a], ids[b])).collect();
        self.cut_links(cut);
    }

    /// The links of a node are cut and mended a few times.
    fn flap(&mut self, host: usize) {
        if self.hosts.len() > 1 {
            self.count("fault: flapping link");
            let cut = self.both_ways(host);
            self.cut.extend(&cut);
            for times in 1..=4 {
                let at = Duration::from_millis(times * 150) + self.random_time(Duration::from_millis(100));
                self.schedule_in(at, WorldEvent::HealLinks { cut: cut.clone() });
            }
        }
    }

    fn cut_client(&mut self, client: usize, host: usize) {
        self.count("fault: client cut off from a node");
        let hosts = if self.rng.below(2) == 0 { 0..self.hosts.len() } else { host..host + 1 };
        let until = self.random_time(3 * self.plan.ttl);
        self.cut_client_from(hosts, client, until);
    }

    fn cut_client_from(&mut self, hosts: impl Iterator<Item = usize>, client: usize, until: Duration) {
        for host in hosts {
            self.note(format_args!("client {client} does not reach node {}", self.hosts[host].id));
            self.client_cut.insert((client, host));
            self.schedule_in(until, WorldEvent::HealClient { client, host });
        }
    }

    fn break_connections(&mut self) {
        let all: Vec<_> = self.connections.keys().copied().collect();
        for connection in all {
            if self.rng.below(3) == 0 {
                self.count("fault: connection reset");
                self.break_connection(connection);
            }
        }
    }

    // Clocks.

    fn rate(&mut self, most: i64) -> i64 {
        self.rng.below(2 * most as usize) as i64 - most
    }

    fn change_rate_of_host(&mut self, host: usize) {
        if self.hosts[host].is_up() && self.hosts[host].clock.rate().is_some() {
            self.count("fault: clock of a node at another rate");
            // While a clock is far off, a holder may learn too late that it lost its lock. The fence still holds.
            let most = if self.rng.below(6) == 0 { 50_000 } else { MAX_DRIFT_PPM };
            let rate = self.rate(most);
            self.note(format_args!("the clock of node {} gains {rate} ppm", self.hosts[host].id));
            self.set_rate_of_host(host, rate);
            if let Some(running) = &mut self.hosts[host].running {
                running.tick_at = None;
            }
            self.drain_output(host);
        }
    }

    fn set_rate_of_host(&mut self, host: usize, rate: i64) {
        let now = self.now;
        let machine = &mut self.hosts[host];
        machine.clock.set_rate(now, Some(rate));
        machine.is_far_off = rate.abs() > MAX_DRIFT_PPM;
    }

    fn change_rate_of_client(&mut self, client: usize) {
        let it = &self.clients[client];
        if it.process.is_some() && !it.is_paused && it.clock.rate().is_some() {
            let is_far_off = self.rng.below(3) == 0;
            self.count(match is_far_off {
                true => "fault: clock of a client far off",
                false => "fault: clock of a client at another rate",
            });
            let rate = self.rate(if is_far_off { 100_000 } else { MAX_DRIFT_PPM });
            self.note(format_args!("the clock of client {client} gains {rate} ppm"));
            self.set_rate_of_client(client, rate);
            self.run_client(client);
        }
    }

    // Clients.

    fn pause_client(&mut self, client: usize, is_suspended: bool) {
        let it = &mut self.clients[client];
        if it.process.is_none() || it.is_paused {
            return;
        }
        it.is_paused = true;
        if is_suspended {
            it.clock.set_rate(self.now, None);
        }
        let incarnation = it.incarnation;
        self.note(format_args!("client {client} is {}", if is_suspended { "suspended" } else { "paused" }));
        self.count(if is_suspended { "fault: client suspended" } else { "fault: client paused" });
        let until = self.random_time(4 * self.plan.ttl);
        self.suspended_at.insert(client, self.now);
        self.schedule_in(until, WorldEvent::ResumeClient { client, incarnation });
    }

    pub(super) fn resume_client(&mut self, client: usize, incarnation: u64) {
        let it = &mut self.clients[client];
        if it.incarnation != incarnation || !it.is_paused || it.process.is_none() {
            return;
        }
        it.is_paused = false;
        let since = self.suspended_at.remove(&client).unwrap_or(self.now);
        if it.clock.rate().is_none() {
            it.suspended += self.now - since;
            self.set_rate_of_client(client, 0);
        }
        self.note(format_args!("client {client} goes on"));
        self.run_client(client);
    }

    // Operators.

    pub(super) fn leader(&self) -> Option<usize> {
        (0..self.hosts.len()).find(|host| self.hosts[*host].is_up() && self.hosts[*host].leads())
    }

    /// The members as the leader knows them.
    pub(super) fn members(&self) -> Option<(usize, Membership)> {
        let leader = self.leader()?;
        Some((leader, self.hosts[leader].running.as_ref()?.node.membership().clone()))
    }

    fn transfer(&mut self, to: usize) {
        let Some(leader) = self.leader() else { return };
        let to = member(self.hosts[to].id).name;
        let Some(running) = &mut self.hosts[leader].running else { return };
        if running.node.transfer(Some(&to)).is_ok() {
            self.count("operator: leader transferred");
            self.note(format_args!("{to} is told to lead"));
        }
        self.drain_output(leader);
    }

    /// Adds the next machine that is no member, with an empty disk and a new number.
    fn add_member(&mut self, from: usize) {
        let Some((leader, membership)) = self.members() else { return };
        let machines = self.hosts.len();
        let is_spare = |host: &usize| !membership.members.contains_key(&self.hosts[*host].id);
        let Some(host) = (0..machines).map(|next| (from + next) % machines).find(is_spare) else { return };
        if self.plan.nodes + self.plan.spares == 1 {
            return;
        }
        self.empty(host);
        let id = self.hosts[host].id;
        self.hosts[host].contacts = membership.members;
        let Some(leading) = &mut self.hosts[leader].running else { return };
        if leading.node.add_member(id, member(id)).is_ok() {
            self.note(format_args!("node {id} is added"));
            self.count("operator: member added");
            // As a node does before it takes part.
            if write_watermark(&self.hosts[host].disk, Watermark::default()).is_ok() {
                self.start_host(host);
            }
        }
        self.drain_output(leader);
    }

    /// Adds two machines that get nothing for a while. So both may get their votes at once.
    fn add_two(&mut self, from: usize) {
        let until = self.now + Duration::from_secs(1) + self.random_time(Duration::from_secs(2));
        self.add_cut_off(from, until);
        self.schedule_in(Duration::from_millis(300), WorldEvent::Add { host: from, until });
    }

    /// Adds a machine that gets nothing until then.
    pub(super) fn add_cut_off(&mut self, from: usize, until: Duration) {
        let before = self.last_member;
        self.add_member(from);
        if self.last_member > before {
            let id = self.last_member;
            let cut: Vec<_> = self.hosts.iter().map(|machine| (machine.id, id)).filter(|(a, b)| a != b).collect();
            self.cut.extend(&cut);
            self.schedule_at(until, WorldEvent::HealLinks { cut });
        }
    }

    fn remove_member(&mut self, from: usize) {
        let Some((leader, membership)) = self.members() else { return };
        // Without a member whose disk was lost, the others may be needed. The leader notices only after a while that it is gone.
        if membership.members.len() < 3 || membership.members.keys().any(|id| !self.is_whole(*id)) {
            return;
        }
        let machines = self.hosts.len();
        let ids = (0..machines).map(|next| self.hosts[(from + next) % machines].id);
        let Some(id) = ids.into_iter().find(|id| membership.members.contains_key(id)) else { return };
        if self.host_of(id) == Some(leader) {
            self.count("path: leader removed");
        }
        self.remove(leader, &member(id).name);
    }

    fn remove(&mut self, leader: usize, name: &str) {
        let Some(leading) = &mut self.hosts[leader].running else { return };
        if leading.node.remove_member(name).is_ok() {
            self.note(format_args!("{name} is removed"));
            self.count("operator: member removed");
        }
        self.drain_output(leader);
    }

    /// Whether a member has a disk that can be used.
    fn is_whole(&self, id: u64) -> bool {
        self.host_of(id).is_some_and(|host| !self.hosts[host].needs_replacement && !self.hosts[host].is_damaged)
    }

    /// Whether the cluster can do without this machine's disk: all other members have everything, and know who votes.
    fn is_dispensable(&self, host: usize) -> bool {
        let Some((leader, membership)) = self.members() else { return false };
        let Some(leading) = &self.hosts[leader].running else { return false };
        let report = leading.node.cluster_report();
        let is_changing =
            report.applied < report.last_index || !membership.learners.is_empty() || membership.is_joint();
        let has_all = |id: &u64| {
            self.host_of(*id).is_some_and(|other| {
                let machine = &self.hosts[other];
                machine.running.as_ref().is_some_and(|running| {
                    let other = running.node.cluster_report();
                    machine.is_up()
                        && running.writes.is_empty()
                        && other.term == report.term
                        && other.last_index == report.last_index
                        && other.applied == report.applied
                        && other.membership == membership
                })
            })
        };
        leader != host
            && !is_changing
            && membership.voters.len() > 2
            && membership.voters.contains(&self.hosts[host].id)
            && membership.members.keys().all(|id| self.is_whole(*id))
            && membership.members.keys().all(has_all)
    }

    /// Keeps a copy of a node's disk. A copy of a node that has no other members leads alone where it is put back, and nothing
    /// can notice that before the other members speak to it.
    fn back_up(&mut self, host: usize) {
        let running = self.hosts[host].running.as_ref();
        let has_others = running.is_some_and(|running| running.node.membership().voters.len() > 1);
        if has_others && self.hosts[host].is_up() && !self.hosts[host].is_damaged {
            self.count("operator: backup taken");
            self.hosts[host].backup = Some(self.hosts[host].disk.after_power_cut(&mut self.rng));
        }
    }

    fn schedule_damage(&mut self, host: usize, how: Damage) {
        self.damage(host, how, self.now + DAMAGE_WAITS);
    }

    /// Damages the disk of a machine, or waits until the cluster can do without it.
    pub(super) fn damage(&mut self, host: usize, how: Damage, until: Duration) {
        if self.are_faults_over.get() || self.now > until {
            return;
        }
        if !self.is_dispensable(host) {
            let again = match how {
                // The next write of a client is not far.
                Damage::LostInPowerCut => Duration::from_micros(100) + self.random_time(Duration::from_millis(1)),
                _ => Duration::from_millis(20) + self.random_time(Duration::from_millis(200)),
            };
            return self.schedule_in(again, WorldEvent::Damage { host, how, until });
        }
        match how {
            Damage::BitFlipped => self.flip_bit(host),
            Damage::OlderCopy => self.put_back_older_copy(host),
            Damage::OtherMachine => self.copy_from_other_machine(host),
            Damage::Lost => self.lose_disk(host),
            Damage::LostInPowerCut => self.lose_disk_in_power_cut(host),
        }
    }

    fn flip_bit(&mut self, host: usize) {
        let Some((disk, name, at)) = self.hosts[host].disk.with_flipped_bit(&mut self.rng) else { return };
        self.count("fault: bit flipped");
        self.note(format_args!("a bit of node {} flips: {name} at {at}", self.hosts[host].id));
        let has_started = self.restart_with(host, disk, None);
        let machine = &self.hosts[host];
        if has_started && machine.started_with < machine.written_before {
            let (id, found, had) = (machine.id, machine.started_with, machine.written_before);
            self.fail(format!("A: node {id} does not notice that its log is damaged: it had {had}, and has {found}"));
        }
    }

    fn put_back_older_copy(&mut self, host: usize) {
        let Some(copy) = self.hosts[host].backup.take() else { return };
        self.count("fault: older copy of a disk");
        self.note(format_args!("an older copy of its disk is put back at node {}", self.hosts[host].id));
        self.restart_with(host, copy, None);
    }

    /// From then on two nodes take themselves for one member. The one in the wrong place still sends, and nothing is sent to it.
    fn copy_from_other_machine(&mut self, host: usize) {
        let count = self.hosts.len();
        let mut others = (1..count).map(|next| (host + next) % count);
        let Some(other) = others.find(|other| self.hosts[*other].backup.is_some()) else { return };
        let Some(copy) = self.hosts[other].backup.as_ref().map(|copy| copy.after_power_cut(&mut self.rng)) else {
            return;
        };
        self.count("fault: older copy of another machine's disk");
        let (id, copied_from) = (self.hosts[host].id, self.hosts[other].id);
        self.note(format_args!(
            "an older copy of the disk of node {copied_from} is put in place of that of node {id}"
        ));
        self.restart_with(host, copy, Some(copied_from));
    }

    /// Replaces the disk of a machine. The number of its member never comes back.
    fn lose_disk(&mut self, host: usize) {
        self.count("fault: disk lost");
        self.note(format_args!("node {} loses its disk", self.hosts[host].id));
        self.empty(host);
    }

    fn lose_disk_in_power_cut(&mut self, host: usize) {
        self.count("fault: disk lost in a power cut of all nodes");
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            self.cut_power(other, "fault: power cut of all nodes");
        }
        self.lose_disk(host);
    }

    /// Restarts a machine with another disk, which may lack what its member has promised. Returns whether its node runs.
    fn restart_with(&mut self, host: usize, disk: FaultyDisk, copied_from: Option<u64>) -> bool {
        self.stop_host(host);
        let machine = &mut self.hosts[host];
        (machine.disk, machine.copied_from, machine.backup) = (disk, copied_from, None);
        (machine.is_damaged, machine.last_written, machine.promised) = (true, 0, HardState::default());
        self.start_host(host)
    }

    /// Gives a machine an empty disk and a new number.
    fn empty(&mut self, host: usize) {
        self.disconnect_all(host, true);
        self.last_member += 1;
        // Events that are scheduled for its earlier starts must not reach it.
        let starts = self.hosts[host].starts;
        self.hosts[host] = Host { starts, ..Host::new(self.last_member) };
    }

    /// Removes members whose disks were lost, and adds machines again whose disks were damaged.
    pub(super) fn administer(&mut self) {
        let Some((leader, membership)) = self.members() else { return };
        for (id, lost) in &membership.members {
            match self.host_of(*id) {
                None => return self.remove(leader, &lost.name),
                Some(host) if self.hosts[host].needs_replacement => {
                    self.count("path: node that lost its log is replaced");
                    return self.remove(leader, &lost.name);
                }
                Some(host) if self.hosts[host].copied_from.is_some() => {
                    self.count("path: node with another member's directory replaced");
                    self.stop_host(host);
                    self.hosts[host].needs_replacement = true;
                    return self.remove(leader, &lost.name);
                }
                // It has caught up, and has everything that it had promised.
                Some(host) if self.hosts[host].is_damaged && self.has_caught_up(host, leader) => {
                    self.hosts[host].is_damaged = false;
                }
                Some(_) => {}
            }
        }
        let missing = self.plan.nodes.saturating_sub(membership.members.len());
        let is_changing = membership.is_joint() || !membership.learners.is_empty();
        if missing > 0 && !is_changing {
            self.add_member(0);
        }
    }

    fn has_caught_up(&self, host: usize, leader: usize) -> bool {
        let follower = self.hosts[host].running.as_ref().map(|running| running.node.cluster_report());
        let leading = self.hosts[leader].running.as_ref().map(|running| running.node.cluster_report());
        match (follower, leading) {
            (Some(follower), Some(leading)) => {
                follower.applied == leading.last_index && follower.term == leading.term && leading.applied > 0
            }
            _ => false,
        }
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.note(format_args!("the faults are over"));
        self.are_faults_over.set(true);
        self.cut.clear();
        self.client_cut.clear();
        for host in 0..self.hosts.len() {
            self.hosts[host].disk.mend();
            self.hosts[host].slow_until = Duration::ZERO;
            let start = self.hosts[host].starts;
            self.resume_host(host, start);
            // An old build knows no changes of the members, and is upgraded.
            if self.hosts[host].log_version == super::host::OLD_LOG && self.hosts[host].running.is_some() {
                self.stop_host(host);
            }
            self.schedule_in(Duration::ZERO, WorldEvent::Restart { host });
        }
        for client in 0..self.clients.len() {
            let incarnation = self.clients[client].incarnation;
            self.resume_client(client, incarnation);
            self.schedule_in(Duration::ZERO, WorldEvent::StartClient { client });
        }
    }
}
