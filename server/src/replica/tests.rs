//! Voters, driven step by step.

use palisade_core::{Acquire, Answer, Label, LockName, SessionId, Ttl};

use super::*;
use crate::storage::disk::RealDisk;
use crate::storage::{HardState, Member, Record, Store};

/// A voter and its disk.
struct Node {
    replica: Replica<u32, u32>,
    store: Store<RealDisk>,
    disk: RealDisk,
}

impl Node {
    fn start(directory: &std::path::Path) -> Node {
        let disk = RealDisk::open(directory.to_owned()).unwrap();
        let (store, recovered) = Store::open_with(disk.clone(), None, 4096).unwrap();
        let replica =
            Replica::new(1, &Membership { voters: vec![1], ..Membership::default() }, 7, &recovered).unwrap();
        let mut node = Node { replica, store, disk };
        node.run();
        assert!(node.replica.is_leader());
        node
    }

    /// Persists all writes until there is no output left.
    fn run(&mut self) -> (Vec<Done<u32>>, Vec<u32>) {
        let (mut done, mut reads) = (Vec::new(), Vec::new());
        loop {
            let outputs = self.replica.outputs();
            done.extend(outputs.applied);
            reads.extend(outputs.reads);
            if outputs.persist.is_empty() {
                return (done, reads);
            }
            for (number, write) in outputs.persist {
                self.store.append(&write).unwrap();
                self.replica.persisted(number);
            }
        }
    }

    fn carry_out(&mut self, command: Command) -> Result<Answer, palisade_core::Refusal> {
        self.replica.propose(vec![Proposal { command, origin: 5 }]).unwrap();
        let (mut done, _) = self.run();
        assert_eq!((done.len(), done[0].origin), (1, Some(5)));
        done.remove(0).applied.answer
    }

    /// Opens a session with the next id: 1, 2, 3 …
    fn open(&mut self) -> SessionId {
        let id = u64::from(self.replica.machine().session_count()) + 1;
        let (session, ttl) = (SessionId::new(id).unwrap(), Ttl::from_ms(10_000).unwrap());
        match self.carry_out(Command::OpenSession { session, ttl, label: Label::new("x") }) {
            Ok(Answer::Opened { session }) => session,
            other => panic!("{other:?}"),
        }
    }

    fn acquire(&mut self, session: SessionId, lock: &str) -> Result<Answer, palisade_core::Refusal> {
        self.carry_out(Command::Acquire(Acquire::exclusive(session, LockName::new(lock).unwrap())))
    }
}

#[test]
fn nothing_is_answered_before_it_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let (session, ttl) = (SessionId::new(1).unwrap(), Ttl::from_ms(10_000).unwrap());
    let command = Command::OpenSession { session, ttl, label: Label::new("x") };
    node.replica.propose(vec![Proposal { command, origin: 5 }]).unwrap();
    let outputs = node.replica.outputs();
    assert!(outputs.applied.is_empty());
    let (number, write) = &outputs.persist[0];
    assert!(node.replica.outputs().applied.is_empty());
    node.store.append(write).unwrap();
    node.replica.persisted(*number);
    assert_eq!(node.replica.outputs().applied.len(), 1);
}

#[test]
fn acknowledged_commands_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let session = node.open();
    let granted = node.acquire(session, "a").unwrap();
    let before = node.replica.machine().snapshot();
    drop(node);
    let mut node = Node::start(directory.path());
    assert_eq!(node.replica.machine().snapshot(), before);
    let other = node.open();
    assert_eq!(node.acquire(other, "a"), Ok(Answer::Busy));
    let Answer::Granted { token } = granted else { panic!("{granted:?}") };
    let Ok(Answer::Granted { token: next }) = node.acquire(other, "b") else { panic!("not granted") };
    assert!(next > token);
}

#[test]
fn a_read_sees_all_commands_answered_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let session = node.open();
    node.acquire(session, "a").unwrap();
    node.replica.read(9);
    assert_eq!(node.run().1, [9]);
}

#[test]
fn a_snapshot_replaces_the_log_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let session = node.open();
    for number in 0..200 {
        node.acquire(session, &format!("lock/{number}")).unwrap();
        if let Some(compaction) = node.replica.compaction(2_000) {
            let compacted = compaction.carry_out(&node.disk).unwrap();
            let index = compacted.index;
            node.replica.compacted(Some(compacted));
            node.store.forget(index).unwrap();
        }
    }
    let before = node.replica.machine().snapshot();
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert!(files < 8, "{files} files are left");
    drop(node);
    assert_eq!(Node::start(directory.path()).replica.machine().snapshot(), before);
}

/// Another member's snapshot may become durable while this one makes its own.
#[test]
fn a_compaction_continues_from_a_snapshot_that_came_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let session = node.open();
    // A second time each would take another token, and the release would not fit.
    let take_and_release = |node: &mut Node, lock: &str| {
        let Ok(Answer::Granted { token }) = node.acquire(session, lock) else { panic!("not granted") };
        let lock = LockName::new(lock).unwrap();
        node.carry_out(Command::Release { caller: None, lock, token }).unwrap();
    };
    (0..10).for_each(|_| take_and_release(&mut node, "a"));
    let (index, membership) = (node.replica.applied(), node.replica.membership().clone());
    let machine = node.replica.machine().snapshot();
    (0..10).for_each(|_| take_and_release(&mut node, "b"));
    let compaction = node.replica.compaction(0).unwrap();
    let received = Snapshot { index, term: node.replica.term(), membership, machine };
    crate::storage::write_received_snapshot(&node.disk, &received).unwrap();
    compaction.carry_out(&node.disk).unwrap();
    let made = crate::storage::read_snapshot(&node.disk).unwrap().unwrap();
    assert_eq!((made.index, made.machine), (node.replica.applied(), node.replica.machine().snapshot()));
}

/// The entries before the snapshot are gone, and the member does not know yet that it needs them no more.
#[test]
fn a_member_campaigns_only_when_the_snapshot_that_it_received_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let mut leader = Node::start(directory.path());
    let session = leader.open();
    for lock in ["a", "b", "c"] {
        leader.acquire(session, lock).unwrap();
    }
    let founders = Membership { voters: vec![1, 2], ..Membership::default() };
    let (index, machine) = (leader.replica.applied(), leader.replica.machine().snapshot());
    let snapshot = Snapshot { index, term: leader.replica.term(), membership: founders.clone(), machine };
    let follower = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(follower.path().to_owned()).unwrap();
    let (_, recovered) = Store::open_with(disk, None, 4096).unwrap();
    let mut replica: Replica<u32, u32> = Replica::new(2, &founders, 7, &recovered).unwrap();
    let message = |msg_type| {
        let term = leader.replica.term();
        PeerMessage(Message { msg_type, from: 1, to: 2, term, ..Message::default() })
    };
    replica.receive_snapshot(message(MessageType::MsgSnapshot), &snapshot).unwrap();
    let (number, _) = replica.outputs().persist.pop().expect("the snapshot's term is written");
    replica.campaign();
    replica.receive(message(MessageType::MsgTimeoutNow)).unwrap();
    (0..2 * ELECTION_TICKS).for_each(|_| replica.tick(ELECTION_TICKS));
    assert!(replica.outputs().messages.is_empty());
    replica.persisted(number);
    replica.campaign();
    assert!(!replica.outputs().messages.is_empty());
}

#[test]
fn a_member_without_a_vote_does_not_campaign() {
    let directory = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(directory.path().to_owned()).unwrap();
    let (_, recovered) = Store::open_with(disk, None, 4096).unwrap();
    for members in [
        Membership { voters: vec![1, 2], learners: vec![3], ..Membership::default() },
        Membership { voters: vec![1, 2], ..Membership::default() },
    ] {
        let mut replica: Replica<u32, u32> = Replica::new(3, &members, 7, &recovered).unwrap();
        replica.campaign();
        assert!(replica.outputs().messages.is_empty(), "{members:?}");
    }
}

/// Exchanges messages between members until there are none left. Every write is durable at once.
fn exchange(members: &mut [Replica<u32, u32>]) {
    let mut disks: Vec<_> = members.iter().map(|_| Recovered::default()).collect();
    exchange_on(members, &mut disks);
}

/// The same, and keeps what they write.
fn exchange_on(members: &mut [Replica<u32, u32>], disks: &mut [Recovered]) {
    loop {
        let (mut messages, mut is_idle) = (Vec::new(), true);
        for (member, disk) in members.iter_mut().zip(disks.iter_mut()) {
            let outputs = member.outputs();
            is_idle &= outputs.persist.is_empty();
            for (number, write) in outputs.persist {
                disk.hard_state = write.hard_state;
                disk.records.extend(write.records);
                member.persisted(number);
            }
            messages.extend(outputs.messages);
        }
        if messages.is_empty() && is_idle {
            return;
        }
        for message in messages {
            if let Some(member) = members.get_mut(message.to() as usize - 1) {
                member.receive(message).unwrap();
            }
        }
    }
}

/// The consensus library forgets once in every election time-out which members answer.
#[test]
fn a_member_that_answers_is_always_known_to_run() {
    let founders = Membership { voters: vec![1, 2, 3], ..Membership::default() };
    let recovered = Recovered::default();
    let mut members: Vec<_> = (1..=3).map(|id| Replica::new(id, &founders, 7, &recovered).unwrap()).collect();
    members[0].campaign();
    exchange(&mut members);
    assert!(members[0].is_leader());
    for _ in 0..3 * ELECTION_TICKS {
        members.iter_mut().for_each(|member| member.tick(ELECTION_TICKS));
        assert!(members[0].followers().all(|follower| follower.is_active));
        exchange(&mut members);
    }
    // One that does not answer any more is noticed.
    for _ in 0..3 * ELECTION_TICKS {
        members[..2].iter_mut().for_each(|member| member.tick(ELECTION_TICKS));
        exchange(&mut members[..2]);
    }
    let active: Vec<_> = members[0].followers().map(|follower| follower.is_active).collect();
    assert_eq!(active.iter().filter(|is_active| **is_active).count(), 1);
}

/// The leader lets it apply the entry that it has acknowledged. The copy has another entry with that index, of a leader that was
/// deposed.
#[test]
fn a_member_with_an_older_copy_of_its_log_applies_none_of_it() {
    let founders = Membership { voters: vec![1, 2, 3], ..Membership::default() };
    let mut recovered =
        Recovered { hard_state: HardState { term: 1, ..HardState::default() }, ..Recovered::default() };
    let mut members: Vec<_> = (1..=3).map(|id| Replica::new(id, &founders, 7, &recovered).unwrap()).collect();
    members[0].campaign();
    exchange(&mut members);
    assert_eq!((members[0].is_leader(), members[0].term(), members[0].last_index()), (true, 2, 1));

    recovered.records = vec![Record { index: 1, term: 1, is_membership: false, data: Vec::new().into() }];
    let mut copy: Replica<u32, u32> = Replica::new(2, &founders, 7, &recovered).unwrap();
    members[0].tick(ELECTION_TICKS);
    let heartbeat = members[0].outputs().messages.into_iter().find(|message| message.to() == 2).unwrap();
    assert_eq!(copy.receive(heartbeat), Err(LogLost::Here { last: 1, known: 1 }));
    assert!(copy.outputs().applied.is_empty());
    assert_eq!(copy.applied(), 0);
}

/// The leader has compacted the entry, so that it cannot say of which term it is.
#[test]
fn a_heartbeat_without_a_term_lets_a_member_apply_nothing() {
    let founders = Membership { voters: vec![1, 2, 3], ..Membership::default() };
    let records = vec![Record { index: 1, term: 1, is_membership: false, data: Vec::new().into() }];
    let hard_state = HardState { term: 1, ..HardState::default() };
    let recovered = Recovered { hard_state, records, ..Recovered::default() };
    let mut member: Replica<u32, u32> = Replica::new(2, &founders, 7, &recovered).unwrap();
    let mut heartbeat = |log_term| {
        let message = Message {
            msg_type: MessageType::MsgHeartbeat,
            from: 1,
            to: 2,
            term: 2,
            commit: 1,
            log_term,
            ..Message::default()
        };
        member.receive(PeerMessage(message)).unwrap();
        drop(member.outputs());
        member.applied()
    };
    assert_eq!(heartbeat(0), 0);
    assert_eq!(heartbeat(1), 1);
}

/// Other members refuse messages that are much larger than an entry may be.
#[test]
fn many_large_commands_become_several_entries() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let before = node.replica.last_index();
    let reason = Label::new(&"x".repeat(200 << 10));
    let lock = LockName::new("a").unwrap();
    let by = Label::new("");
    let command = Command::ForceRelease { lock, only: None, by, reason };
    let proposals = (0..20).map(|origin| Proposal { command: command.clone(), origin }).collect();
    node.replica.propose(proposals).unwrap();
    let origins: Vec<_> = node.run().0.into_iter().filter_map(|done| done.origin).collect();
    assert_eq!(origins, (0..20).collect::<Vec<_>>());
    let entries = node.replica.last_index() - before;
    assert!((3..=5).contains(&entries), "{entries} entries for 4 MB");
}

/// A node that restarts often must not keep its log for ever.
#[test]
fn entries_from_before_a_restart_count_for_the_next_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let session = node.open();
    (0..50).for_each(|number| drop(node.acquire(session, &format!("lock/{number}"))));
    assert!(node.replica.compaction(1_000_000).is_none());
    drop(node);
    let mut node = Node::start(directory.path());
    let compaction = node.replica.compaction(3_000).expect("50 entries are larger");
    // It could not be written. It is tried again, but not at once.
    drop(compaction);
    node.replica.compacted(None);
    assert!(node.replica.compaction(0).is_none());
    node.acquire(session, "another").unwrap();
    let compacted = node.replica.compaction(3_000).unwrap().carry_out(&node.disk).unwrap();
    assert_eq!(compacted.index, node.replica.applied());
    node.replica.compacted(Some(compacted));
    assert!(node.replica.compaction(0).is_none());
}

/// The snapshot of a leader that was deposed comes while that of the next one waits to be installed.
#[test]
fn a_snapshot_that_is_ignored_does_not_replace_the_one_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut leader = Node::start(directory.path());
    let founders = Membership { voters: vec![1, 2], ..Membership::default() };
    let mut snapshot_now = |term| {
        leader.open();
        let (index, machine) = (leader.replica.applied(), leader.replica.machine().snapshot());
        Snapshot { index, term, membership: founders.clone(), machine }
    };
    let (older, newer) = (snapshot_now(6), snapshot_now(7));
    for (first, second) in [(&newer, &older), (&older, &newer)] {
        // The second one comes from an earlier term.
        let mut replica: Replica<u32, u32> = Replica::new(2, &founders, 7, &Recovered::default()).unwrap();
        for (snapshot, term) in [(first, 8), (second, 7)] {
            let message = Message { msg_type: MessageType::MsgSnapshot, from: 1, to: 2, term, ..Message::default() };
            replica.receive_snapshot(PeerMessage(message), snapshot).unwrap();
        }
        let (number, _) = replica.outputs().persist.pop().expect("the snapshot's term is written");
        replica.persisted(number);
        assert_eq!((replica.applied(), replica.machine().snapshot()), (first.index, first.machine.clone()));
    }
}

/// The consensus library asks no member if only one of them votes, and does not look which one that is.
#[test]
fn a_leader_without_a_vote_confirms_no_reads_alone() {
    let founders = Membership { voters: vec![1, 2], ..Membership::default() };
    let recovered = Recovered::default();
    let mut members: Vec<_> = (1..=2).map(|id| Replica::new(id, &founders, 7, &recovered).unwrap()).collect();
    members[1].campaign();
    // Member 2 leads, takes the vote of member 1, and is restarted before either has written down that the change is committed.
    let (mut written, mut has_begun) = (Recovered::default(), false);
    loop {
        if members[1].is_leader() && !has_begun {
            let change = MembershipChange { learners: vec![1], ..MembershipChange::default() };
            has_begun = members[1].change_members(&change);
        }
        let (own, other) = (members[1].outputs(), members[0].outputs());
        if !members[1].membership().is_joint() && members[1].membership().voters == [2] {
            break;
        }
        for (number, write) in own.persist {
            written.hard_state = write.hard_state;
            written.records.extend(write.records);
            members[1].persisted(number);
        }
        other.persist.iter().for_each(|(number, _)| members[0].persisted(*number));
        own.messages.into_iter().for_each(|message| members[0].receive(message).unwrap());
        other.messages.into_iter().for_each(|message| members[1].receive(message).unwrap());
    }
    members[1] = Replica::new(2, &founders, 7, &written).unwrap();
    members[0].campaign();
    exchange(&mut members);
    assert!(members[0].is_leader() && members[0].membership().voters == [2]);
    members[0].read(9);
    assert!(members[0].outputs().reads.is_empty());
    // Nor does it try again and again.
    assert!(!members[0].has_new_reads());
}

/// The members are idle after the change. Then all are restarted, and one of the first has lost its disk.
#[test]
fn members_know_who_votes_after_a_restart() {
    let founders = Membership { voters: vec![1, 2], ..Membership::default() };
    let mut disks = [(); 3].map(|()| Recovered::default());
    let mut members: Vec<_> =
        (1..=3).map(|id| Replica::new(id, &founders, 7, &Recovered::default()).unwrap()).collect();
    members[0].campaign();
    exchange_on(&mut members, &mut disks);
    for change in [
        MembershipChange { learners: vec![3], ..MembershipChange::default() },
        MembershipChange { voters: vec![3], ..MembershipChange::default() },
    ] {
        assert!(members[0].change_members(&change));
        exchange_on(&mut members, &mut disks);
    }
    for id in [2, 3] {
        let mut restarted: Replica<u32, u32> = Replica::new(id, &founders, 7, &disks[id as usize - 1]).unwrap();
        drop(restarted.outputs());
        assert_eq!(restarted.membership().voters, [1, 2, 3], "member {id}");
    }
}

#[test]
fn the_only_voter_leads_at_once_although_its_log_ends_with_a_change_of_the_members() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path());
    let member = Member::new("node1", "node1:7422");
    let change = MembershipChange { voters: vec![1], members: [(1, member)].into(), ..MembershipChange::default() };
    assert!(node.replica.change_members(&change));
    node.run();
    drop(node);
    let node = Node::start(directory.path());
    assert!(node.replica.membership().members.contains_key(&1));
}

/// The leader has lost its vote and dies. The only voter has not yet written what it received last.
#[test]
fn an_only_voter_does_not_lead_before_it_has_written_its_log() {
    let founders = Membership { voters: vec![1, 2], ..Membership::default() };
    let mut members: Vec<Replica<u32, u32>> =
        (1..=2).map(|id| Replica::new(id, &founders, 7, &Recovered::default()).unwrap()).collect();
    members[0].campaign();
    exchange(&mut members);
    assert!(members[0].change_members(&MembershipChange { learners: vec![1], ..MembershipChange::default() }));
    exchange(&mut members);
    assert!(members.iter().all(|member| member.membership().voters == [2]) && members[0].is_leader());

    let session = SessionId::new(1).unwrap();
    let command = Command::OpenSession { session, ttl: Ttl::from_ms(10_000).unwrap(), label: Label::new("x") };
    members[0].propose(vec![Proposal { command, origin: 5 }]).unwrap();
    for message in members[0].outputs().messages {
        members[1].receive(message).unwrap();
    }
    let (number, _) = members[1].outputs().persist.pop().expect("the entry is written");
    members[1].suspect(1);
    members[1].campaign();
    (0..3 * ELECTION_TICKS).for_each(|_| members[1].tick(ELECTION_TICKS));
    drop(members[1].outputs());
    assert!(!members[1].is_leader());
    members[1].persisted(number);
    members[1].campaign();
    exchange(&mut members);
    assert!(members[1].is_leader() && members[1].machine().session_count() == 1);
}

/// The consensus library keeps a record of each step until it is told that the step is durable, also if there was nothing to write.
#[test]
fn idle_members_need_no_more_memory() {
    const TICKS: usize = 250_000;

    fn resident_bytes() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }
    // Other tests of the same process need memory too.
    if std::env::var_os("PALISADE_TEST_ALONE").is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "replica::tests::idle_members_need_no_more_memory"]).env("PALISADE_TEST_ALONE", "1");
        let output = alone.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        return;
    }
    let founders = Membership { voters: vec![1, 2], ..Membership::default() };
    let mut members: Vec<Replica<u32, u32>> =
        (1..=2).map(|id| Replica::new(id, &founders, 7, &Recovered::default()).unwrap()).collect();
    members[0].campaign();
    exchange(&mut members);
    let before = resident_bytes();
    for _ in 0..TICKS {
        members.iter_mut().for_each(|member| member.tick(2 * ELECTION_TICKS - 1));
        exchange(&mut members);
    }
    let grown = resident_bytes().saturating_sub(before);
    // A record has 56 bytes, and each member takes at least one step for each tick.
    assert!(grown < TICKS * 56 / 2, "{grown} bytes more");
    assert!(members[0].is_leader());
}
