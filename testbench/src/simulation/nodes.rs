//! The nodes: what reaches them, what they want done, their disks, and the network between them.

use std::collections::BTreeSet;
use std::time::Duration;

use palisade_server::node::{ConnectionId, Input, Message, Output, RequestId};
use palisade_server::replica::{LogLost, PeerMessage};
use palisade_server::storage::{Membership, read_snapshot, write_received_snapshot, write_watermark};

use super::host::{Arrival, Host, NEW_LOG, OLD_LOG, Running, member};
use super::judge::Effects;
use super::redis_client;
use super::world::{MAX_DRIFT_PPM, World, WorldEvent};

impl World {
    pub(super) fn host_time(&self, host: usize) -> Duration {
        self.hosts[host].clock.read(self.now)
    }

    pub(super) fn start_host(&mut self, host: usize) -> bool {
        let rate = self.rng.below(2 * MAX_DRIFT_PPM as usize) as i64 - MAX_DRIFT_PPM;
        self.hosts[host].is_far_off = false;
        match self.hosts[host].start(self.now, &self.plan, rate) {
            Ok(started) => {
                self.note(format_args!("node {} starts", self.hosts[host].id));
                if started.is_log_shorter {
                    self.count("path: log shorter after a restart");
                }
                if started.has_forgotten_vote {
                    self.fail(format!("A: node {} has forgotten its vote", self.hosts[host].id));
                }
                self.drain_output(host);
                for other in (0..self.hosts.len()).filter(|other| *other != host) {
                    self.connect_member(host, other);
                    self.connect_member(other, host);
                }
                self.ask_at_start(host);
                true
            }
            Err(error) => {
                self.note(format_args!("node {} does not start: {error}", self.hosts[host].id));
                if self.hosts[host].is_damaged && !error.is_io {
                    self.count("path: node refuses a damaged disk");
                    self.hosts[host].needs_replacement = true;
                } else if error.is_io {
                    self.disk_failed(host);
                } else {
                    self.fail(format!("A: node {} does not start: {error}", self.hosts[host].id));
                }
                false
            }
        }
    }

    /// Lets a node connect to another one, if it must be connected to it and is not. It says which version of the log it understands. A
    /// node with another member's directory would speak for that member, which says it again whenever it connects.
    fn connect_member(&mut self, from: usize, to: usize) {
        let Host { id, starts, log_version, copied_from: None, running: Some(running), .. } = &self.hosts[from]
        else {
            return;
        };
        let (id, starts, log) = (*id, *starts, *log_version);
        let receiver = &self.hosts[to];
        if !running.contacts.contains(&receiver.id)
            || self.cut.contains(&(id, receiver.id))
            || receiver.copied_from.is_some()
        {
            return;
        }
        let Some(receiver) = &mut self.hosts[to].running else { return };
        if receiver.connected.insert(id, starts) != Some(starts) {
            self.arrive(to, Arrival::Input(Input::MemberConnected { id, member: Some(member(id)), log }));
        }
    }

    /// Starts the node of a machine that was stopped.
    pub(super) fn restart(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        machine.is_dark = false;
        if machine.running.is_some() || machine.needs_replacement || !machine.has_begun {
            return;
        }
        if machine.log_version == OLD_LOG {
            machine.log_version = NEW_LOG;
            self.count("operator: member upgraded");
        }
        self.start_host(host);
    }

    pub(super) fn schedule_tick(&mut self, host: usize, wake_at: Duration) {
        let machine = &mut self.hosts[host];
        let (Some(running), start) = (&mut machine.running, machine.starts) else { return };
        let Some(at) = machine.clock.when(wake_at).map(|at| at.max(self.now)) else { return };
        if running.tick_at.is_none_or(|planned| at < planned) {
            running.tick_at = Some(at);
            self.schedule_at(at, WorldEvent::Tick { host, start });
        }
    }

    pub(super) fn tick(&mut self, host: usize, start: u64) {
        let machine = &mut self.hosts[host];
        if machine.starts != start || machine.is_paused {
            return;
        }
        let Some(running) = machine.running.as_mut().filter(|running| running.tick_at == Some(self.now)) else {
            return;
        };
        running.tick_at = None;
        running.node.step(machine.clock.read(self.now), Input::Tick);
        self.drain_output(host);
    }

    /// Something comes to a machine.
    pub(super) fn arrive(&mut self, host: usize, arrival: Arrival) {
        let time = self.host_time(host);
        let machine = &mut self.hosts[host];
        let Some(running) = &mut machine.running else { return };
        if machine.is_paused {
            return machine.inbox.push(arrival);
        }
        match arrival {
            Arrival::Input(input) => running.node.step(time, input),
            Arrival::Bytes(connection, bytes) => {
                let Running { node, connections, .. } = running;
                let Some(open) = connections.get_mut(&connection) else { return };
                for input in open.receive(&bytes, node) {
                    node.step(time, input);
                }
                self.flush(host, connection);
            }
            Arrival::Closed(connection) => {
                running.connections.remove(&connection);
                let connection = ConnectionId(connection);
                running.node.step(time, Input::Disconnected { connection, delivered: true });
            }
            Arrival::Snapshot(message, snapshot) => {
                if write_received_snapshot(&machine.disk, &snapshot).is_err() {
                    return self.disk_failed(host);
                }
                running.node.step(time, Input::ReceivedSnapshot(message, snapshot));
            }
        }
        self.drain_output(host);
    }

    /// Carries out the output of a node.
    pub(super) fn drain_output(&mut self, host: usize) {
        for _ in 0..10_000 {
            let Some(running) = &mut self.hosts[host].running else { return };
            let output = running.node.take_output();
            let has_more = output.has_more;
            let wake_at = output.wake_at;
            if !self.apply_output(host, output) {
                return;
            }
            if !has_more {
                return self.schedule_tick(host, wake_at);
            }
        }
        self.fail(format!("L: the output of node {} does not end", self.hosts[host].id));
    }

    /// Returns whether the node still runs.
    pub(super) fn apply_output(&mut self, host: usize, output: Output) -> bool {
        if let Some(lost) = output.log_lost {
            self.log_lost(host, &lost);
            return false;
        }
        let running = self.hosts[host].running.as_mut();
        let is_replaced = running.is_some_and(|running| {
            output.writes.iter().fold(false, |is, (_, write)| running.note_records(write) || is)
        });
        if is_replaced {
            self.count("path: uncommitted entries replaced");
            self.entries_replaced(host);
        }
        self.observe(host);
        if let Some(watermark) = output.watermark
            && write_watermark(&self.hosts[host].disk, watermark).is_err()
        {
            self.disk_failed(host);
            return false;
        }
        if output.is_deposed {
            self.note(format_args!("node {} steps down", self.hosts[host].id));
            self.disconnect_all(host, true);
        }
        let (mut written_to, mut to_redis) = (BTreeSet::new(), Vec::new());
        if let Some(running) = &mut self.hosts[host].running {
            for message in output.messages {
                match message {
                    Message::Reply(RequestId { connection: redis_client::CONNECTION, number }, response) => {
                        to_redis.push((number, response));
                    }
                    Message::Reply(id, response) => {
                        if let Some(open) = running.connections.get_mut(&id.connection.0) {
                            open.reply(id.number, response);
                            written_to.insert(id.connection.0);
                        }
                    }
                    Message::Push(to, push) => {
                        for connection in to {
                            if let Some(open) = running.connections.get_mut(&connection.0) {
                                open.push(&push);
                                written_to.insert(connection.0);
                            }
                        }
                    }
                }
            }
        }
        for connection in written_to {
            self.flush(host, connection);
        }
        for (number, response) in to_redis {
            self.judge_redis_reply(number, &response);
        }
        if let Some(membership) = &output.membership {
            self.membership_changed(host, membership);
        }
        if let (Some(contacts), Some(running)) = (output.contacts, &mut self.hosts[host].running) {
            running.contacts = contacts.into_keys().collect();
        }
        for message in output.peer_messages {
            self.send(host, message);
        }
        if let Some(running) = &mut self.hosts[host].running {
            running.writes.extend(output.writes);
            if output.compaction.is_some() {
                running.compaction = output.compaction;
                let start = self.hosts[host].starts;
                // A large one takes seconds, in which the log grows.
                let longest = if self.rng.below(4) == 0 { 2_000 } else { 50 };
                let takes = Duration::from_millis(1 + self.rng.below(longest) as u64);
                self.schedule_in(takes, WorldEvent::Compact { host, start });
            }
        }
        self.begin_write(host);
        true
    }

    fn membership_changed(&mut self, host: usize, membership: &Membership) {
        if membership.is_joint() {
            self.count("path: joint membership");
        }
        let Some(running) = &mut self.hosts[host].running else { return };
        let before = std::mem::replace(&mut running.voters, membership.voters.clone());
        if running.node.is_leader() {
            let new = membership.voters.iter().filter(|id| !before.contains(id)).copied();
            self.voters_added(host, new.collect());
        }
    }

    /// Sends what a node has written to a client.
    pub(super) fn flush(&mut self, host: usize, connection: u64) {
        let Some(running) = &mut self.hosts[host].running else { return };
        let Some(open) = running.connections.get_mut(&connection) else { return };
        let bytes = open.take_bytes();
        if !bytes.is_empty() {
            self.send_bytes(connection, bytes, false);
        }
    }

    pub(super) fn begin_write(&mut self, host: usize) {
        let is_slow = self.hosts[host].slow_until > self.now;
        let machine = &mut self.hosts[host];
        let start = machine.starts;
        if let Some(running) = &mut machine.running
            && !running.is_writing
            && !running.writes.is_empty()
        {
            running.is_writing = true;
            let micros = if is_slow { 20_000 + self.rng.below(400_000) } else { 100 + self.rng.below(2_000) };
            self.schedule_in(Duration::from_micros(micros as u64), WorldEvent::Persist { host, start });
        }
    }

    pub(super) fn persist(&mut self, host: usize, start: u64) {
        let machine = &mut self.hosts[host];
        if machine.starts != start {
            return;
        }
        let Some(running) = &mut machine.running else { return };
        running.is_writing = false;
        // Writes that wait share a flush.
        let mut done = None;
        let mut has_failed = false;
        while let Some((number, write)) = running.writes.pop_front() {
            if running.store.append(&write).is_err() {
                has_failed = true;
                break;
            }
            if let (Some(first), Some(last)) = (write.records.first(), write.records.last()) {
                machine.written_before = machine.last_written.min(first.index - 1);
                machine.last_written = last.index;
            }
            machine.promised = write.hard_state;
            done = Some(number);
            if self.rng.below(2) == 0 {
                break;
            }
        }
        if has_failed {
            return self.disk_failed(host);
        }
        if let Some(number) = done {
            // The disk works also while the process is paused.
            self.arrive(host, Arrival::Input(Input::Persisted { number }));
        }
        self.begin_write(host);
    }

    pub(super) fn compact(&mut self, host: usize, start: u64) {
        let machine = &mut self.hosts[host];
        if machine.starts != start {
            return;
        }
        let Some(running) = &mut machine.running else { return };
        let Some(compaction) = running.compaction.take() else { return };
        let compacted = compaction.carry_out(&machine.disk).ok();
        if let Some(compacted) = &compacted {
            if running.store.forget(compacted.index).is_err() && machine.disk.is_dead() {
                return self.disk_failed(host);
            }
            self.count("path: snapshot made");
            if !self.hosts[host].is_damaged
                && let Err(what) = self.hosts[host].check_files(self.plan.segment_size)
            {
                let id = self.hosts[host].id;
                self.fail(format!("A: after a snapshot the files of node {id} lack what it has written: {what}"));
            }
        } else if machine.disk.is_dead() {
            return self.disk_failed(host);
        }
        self.arrive(host, Arrival::Input(Input::Compacted(compacted)));
    }

    pub(super) fn log_lost(&mut self, host: usize, lost: &LogLost) {
        self.note(format_args!("node {} stops: {lost}", self.hosts[host].id));
        if !self.hosts[host].is_damaged {
            return self.fail(format!("A: node {} has lost its log: {lost}", self.hosts[host].id));
        }
        self.stop_host(host);
        self.hosts[host].needs_replacement = true;
    }

    /// Ends the node of a machine, without any effect on its disk. Its connections are closed.
    pub(super) fn stop_host(&mut self, host: usize) {
        self.end_host(host, true);
        let member = self.hosts[host].member();
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let delay = self.latency();
            self.schedule_in(delay, WorldEvent::Suspect { host: other, member });
        }
    }

    /// Ends the node of a machine. Without power, a machine closes no connection.
    pub(super) fn end_host(&mut self, host: usize, has_power: bool) {
        let machine = &mut self.hosts[host];
        (machine.running, machine.is_paused, machine.is_dark) = (None, false, !has_power);
        machine.inbox.clear();
        self.disconnect_all(host, has_power);
    }

    /// Tells the judge what a node has applied, and whether it leads.
    pub(super) fn observe(&mut self, host: usize) {
        let Some(running) = &mut self.hosts[host].running else { return };
        let applied = running.node.applied_index();
        if running.node.snapshot_index() > running.applied {
            // The snapshot of another member has replaced the log.
            running.records = running.records.split_off(&(running.node.snapshot_index() + 1));
        }
        let mut found = Vec::new();
        while running.applied < applied {
            running.applied += 1;
            found.push((running.applied, running.records.remove(&running.applied)));
        }
        let term = running.node.term();
        let has_term_begun = std::mem::replace(&mut running.term, term) != term;
        let leads_in = running.node.is_leader().then_some(term);
        let has_begun_to_lead = leads_in.is_some() && leads_in != running.leads_in;
        running.leads_in = leads_in;
        running.uncompared += found.len();
        if has_term_begun {
            self.term_began(host);
        }
        let id = self.hosts[host].id;
        if leads_in.is_some() && self.hosts[host].is_far_off {
            self.leader_drifted_until = self.now + 2 * self.plan.ttl;
        }
        for (index, entry) in found {
            let checked = match entry {
                Some((term, data)) => self.record.borrow_mut().history.applied(index, term, &data),
                // It is in a snapshot.
                None if index <= self.record.borrow().history.last_index() => Ok(Effects::default()),
                None => Err(format!("A: entry {index} is in a snapshot, and no node has applied it")),
            };
            match checked {
                Ok(effects) => self.check_effects(&effects),
                Err(what) => return self.fail(format!("{what} (node {id})")),
            }
        }
        if leads_in.is_some() {
            self.record.borrow_mut().history.announce(applied);
        }
        if let (Some(term), true) = (leads_in, has_begun_to_lead) {
            self.note(format_args!("node {id} leads in term {term}"));
            self.count("path: election");
            if self.hosts.iter().enumerate().any(|(other, machine)| other != host && machine.leads()) {
                self.count("path: two nodes believe that they lead");
                self.schedule_stale_reads();
            }
            if let Some(other) = self.leaders.insert(term, id).filter(|other| *other != id) {
                self.fail(format!("M: node {other} and node {id} lead in term {term}"));
            }
        }
        self.compare_sometimes(host);
    }

    pub(super) fn send(&mut self, host: usize, message: PeerMessage) {
        if let Some(promise) = message.promise()
            && let Err(what) = self.hosts[host].check_promise(promise, self.plan.segment_size)
        {
            let id = self.hosts[host].id;
            return self.fail(format!("A: node {id} says what is not on its disk: {what}"));
        }
        let Some(running) = &self.hosts[host].running else { return };
        let is_connected = running.contacts.contains(&message.to());
        if is_connected && !running.node.membership().members.contains_key(&message.to()) {
            self.count("path: message to a member that the log does not name");
        }
        let is_cut = !is_connected || self.cut.contains(&(self.hosts[host].id, message.to()));
        let is_lost = is_cut || (self.rng.below(40) == 0 && !self.are_faults_over.get());
        let member = message.to();
        if message.needs_snapshot() {
            let input = Input::SnapshotSent { member, has_arrived: !is_lost };
            // The node is in the middle of its output, and learns it afterwards.
            let time = self.host_time(host);
            if let Some(running) = &mut self.hosts[host].running {
                running.node.step(time, input);
            }
        }
        if is_lost {
            self.count("fault: message lost");
            if self.rng.below(4) == 0 {
                // The connection was closed, or too much waited.
                self.count("path: node told that messages were dropped");
                let time = self.host_time(host);
                if let Some(running) = &mut self.hosts[host].running {
                    running.node.step(time, Input::Unreachable { member });
                }
            }
            return;
        }
        let delay = self.latency();
        if delay > Duration::from_millis(20) {
            self.count("fault: message late");
        }
        if self.rng.below(60) == 0 && !message.needs_snapshot() {
            self.count("fault: message repeated");
            let later = self.latency() + self.random_time(Duration::from_millis(500));
            if let Ok(copy) = PeerMessage::decode(&message.encode()) {
                self.schedule_in(later, WorldEvent::Message(Box::new(copy)));
            }
        }
        self.schedule_in(delay, WorldEvent::Message(Box::new(message)));
    }

    pub(super) fn host_of(&self, member: u64) -> Option<usize> {
        self.hosts.iter().position(|machine| machine.id == member)
    }

    pub(super) fn deliver(&mut self, message: PeerMessage) {
        let Some(to) = self.host_of(message.to()) else { return };
        if self.hosts[to].member() != message.to() {
            // As the nodes do when they connect to each other.
            return self.count("path: node with another member's directory not spoken to");
        }
        // Bytes come over a wire. Most messages are heartbeats, and writing and reading each would take a tenth of the time.
        self.delivered += 1;
        let message = match self.delivered.is_multiple_of(8) {
            true => PeerMessage::decode(&message.encode()),
            false => Ok(message),
        };
        let message = match message {
            Ok(message) => message,
            Err(error) => return self.fail(format!("A: a message cannot be read: {error}")),
        };
        let from = self.host_of(message.from());
        if let Some(from) = from {
            self.connect_member(from, to);
        }
        if !message.needs_snapshot() {
            return self.arrive(to, Arrival::Input(Input::Received(message)));
        }
        let Some(from) = from else { return };
        if let Ok(Some(snapshot)) = read_snapshot(&self.hosts[from].disk) {
            self.count("path: snapshot sent");
            let is_learner = self.hosts[from]
                .running
                .as_ref()
                .is_some_and(|running| running.node.membership().learners.contains(&message.to()));
            if is_learner {
                self.count("path: snapshot sent while a member joins");
            }
            self.arrive(to, Arrival::Snapshot(message, Box::new(snapshot)));
        }
    }
}
