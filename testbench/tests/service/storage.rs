//! The service's files on a disk that fails: what was acknowledged is there, or it is said what is wrong and where.

use palisade_server::storage::disk::Disk;
use palisade_server::storage::{
    HardState, Membership, Record, Recovered, Snapshot, StorageError, Store, Watermark, Write,
    write_received_snapshot, write_snapshot, write_watermark,
};
use palisade_testbench::faulty_disk::{Fault, FaultyDisk, Rng};

/// Small, so that there are many.
const SEGMENT: usize = 4096;

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("PALISADE_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(300);
    0..count
}

/// A node that writes numbered entries, and now and then a snapshot.
struct Node {
    disk: FaultyDisk,
    store: Store<FaultyDisk>,
    written: u64,
    acknowledged: u64,
    /// The last snapshot that was durable.
    snapshot: u64,
}

fn entry(index: u64) -> Record {
    let data = vec![index as u8; 1 + (index * 97 % 1500) as usize];
    Record { index, term: 1 + index / 50, is_membership: false, data: data.into() }
}

fn snapshot(index: u64) -> Snapshot {
    Snapshot {
        index,
        term: 1 + index / 50,
        membership: Membership::default(),
        machine: vec![7; (index * 31 % 3000) as usize],
    }
}

impl Node {
    fn start(disk: FaultyDisk) -> Result<(Node, Recovered), StorageError> {
        let (store, found) = Store::open_with(disk.clone(), None, SEGMENT)?;
        let base = found.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        let last = found.records.last().map_or(base, |record| record.index);
        Ok((Node { disk, store, written: last, acknowledged: last, snapshot: base }, found))
    }

    fn write(&mut self, entries: u64) -> Result<(), StorageError> {
        let records = (self.written + 1..=self.written + entries).map(entry).collect();
        let hard_state = HardState { term: 1 + self.written / 50, vote: 1, commit: self.acknowledged };
        self.written += entries;
        self.store.append(&Write { hard_state, records })?;
        self.acknowledged = self.written;
        Ok(())
    }

    /// Writes a snapshot that lacks the last entries: they are not applied yet.
    fn compact(&mut self, lacks: u64) -> Result<(), StorageError> {
        let up_to = self.acknowledged.saturating_sub(lacks).max(self.snapshot + 1);
        write_snapshot(&self.disk, &snapshot(up_to))?;
        self.snapshot = up_to;
        self.store.forget(self.snapshot)
    }

    fn work(&mut self, rng: &mut Rng, steps: usize) -> Result<(), StorageError> {
        for _ in 0..steps {
            match rng.below(8) {
                0 if self.acknowledged > self.snapshot => self.compact(rng.below(6) as u64)?,
                // A vote has no entries.
                1 => self.write(0)?,
                _ => self.write(1 + rng.below(4) as u64)?,
            }
        }
        Ok(())
    }
}

/// Everything that was acknowledged, at most what was written, all of it as it was.
#[track_caller]
fn check(found: &Recovered, acknowledged: u64, written: u64, seed: u64) {
    let base = found.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
    if let Some(found) = &found.snapshot {
        assert_eq!(*found, snapshot(base), "seed {seed}: the snapshot is not what was written");
    }
    let last = base + found.records.len() as u64;
    assert!(last >= acknowledged, "seed {seed}: entry {acknowledged} was acknowledged, and {last} is the last");
    assert!(last <= written, "seed {seed}: entry {last} was never written");
    for (record, index) in found.records.iter().zip(base + 1..) {
        assert_eq!(*record, entry(index), "seed {seed}");
    }
}

#[test]
fn a_power_cut_at_any_moment_takes_nothing_that_was_acknowledged() {
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let mut disk = FaultyDisk::default();
        let (mut acknowledged, mut written) = (0, 0);
        // Again and again, also while it recovers.
        for _ in 0..4 {
            disk.fail_after(rng.below(160), Fault::PowerCut);
            if let Ok((mut node, found)) = Node::start(disk.clone()) {
                check(&found, acknowledged, written, seed);
                let worked = node.work(&mut rng, 40);
                (acknowledged, written) = (node.acknowledged, node.written);
                drop(worked);
            }
            disk = disk.after_power_cut(&mut rng);
        }
        let (node, found) = Node::start(disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        check(&found, acknowledged, written, seed);
        drop(node);
    }
}

#[test]
fn a_full_disk_and_a_failed_flush_acknowledge_nothing() {
    for seed in seeds() {
        for fault in [Fault::Full, Fault::FailedFlush] {
            let mut rng = Rng::new(seed);
            let disk = FaultyDisk::default();
            let (mut node, _) = Node::start(disk.clone()).expect("the disk is new");
            disk.fail_after(rng.below(120), fault);
            // A segment that could not be prepared is prepared again when it is needed.
            let worked = node.work(&mut rng, 60);
            assert!(fault != Fault::Full || worked.is_err(), "seed {seed}: it cannot have gone on");
            assert!(matches!(worked, Ok(()) | Err(StorageError::Io { .. })), "seed {seed}: {worked:?}");
            // Nothing is known of what was not flushed; the process ends, and the power may fail as well.
            let (acknowledged, written) = (node.acknowledged, node.written);
            drop(node);
            disk.mend();
            let disk = if rng.below(2) == 0 { disk } else { disk.after_power_cut(&mut rng) };
            let (_, found) = Node::start(disk.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            check(&found, acknowledged, written, seed);
            // What the next process has read counts as durable.
            let (_, after) = Node::start(disk.after_power_cut(&mut rng)).unwrap();
            assert_eq!(after, found, "seed {seed}");
        }
    }
}

#[test]
fn a_flipped_bit_is_never_taken_for_what_was_written() {
    let mut refused = 0;
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let disk = FaultyDisk::default();
        let (mut node, _) = Node::start(disk.clone()).expect("the disk is new");
        node.work(&mut rng, 40).expect("nothing fails");
        let (acknowledged, written) = (node.acknowledged, node.written);
        drop(node);
        let Some((disk, file, at)) = disk.with_flipped_bit(&mut rng) else { continue };
        match Node::start(disk) {
            // What is not needed any more may be what it likes.
            Ok((_, found)) => check(&found, acknowledged, written, seed),
            Err(error @ (StorageError::Damaged { .. } | StorageError::UnknownFormat { .. })) => {
                refused += 1;
                assert!(error.to_string().contains(&file), "seed {seed}: byte {at} of {file} was changed: {error}");
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(refused > seeds().count() / 2, "only {refused} were noticed");
}

#[test]
fn a_log_that_lost_an_entry_which_the_watermark_knows_is_refused() {
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let disk = FaultyDisk::default();
        let (mut node, _) = Node::start(disk.clone()).expect("the disk is new");
        node.work(&mut rng, 20).expect("nothing fails");
        // So the last part of the log has an entry, and not only votes.
        node.write(1).expect("nothing fails");
        let known = Watermark { index: node.acknowledged, tokens: 77 };
        write_watermark(&disk, known).expect("nothing fails");
        drop(node);
        let (_, found) = Node::start(disk.clone()).expect("the log is whole");
        assert_eq!(found.watermark, known, "seed {seed}");
        for name in disk.list().expect("nothing fails").iter().rev().filter(|name| name.starts_with("log-")) {
            disk.remove(name).expect("it is there");
            if found.snapshot.as_ref().is_some_and(|snapshot| snapshot.index == known.index) {
                continue;
            }
            let Err(error) = Node::start(disk.clone()) else { panic!("seed {seed}: it started without {name}") };
            assert!(matches!(error, StorageError::LogCut { tokens: 77, .. }), "seed {seed}: {error}");
            assert!(Store::open_with(disk.clone(), Some(76), SEGMENT).is_err(), "seed {seed}: token 77 was given");
            Store::open_with(disk.clone(), Some(77), SEGMENT).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

/// A member that was cut off wrote entries that were never committed. The snapshot of another member replaces them.
#[test]
fn entries_that_a_received_snapshot_replaced_do_not_come_back() {
    let disk = FaultyDisk::default();
    let (mut store, _) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
    let old = (1..=150).map(|index| Record { term: 3, ..entry(index) }).collect();
    store.append(&Write { hard_state: HardState { term: 3, vote: 1, commit: 40 }, records: old }).unwrap();
    write_received_snapshot(&disk, &Snapshot { term: 5, ..snapshot(100) }).unwrap();

    // It stops before it has written anything after the snapshot.
    let (mut store, found) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
    assert_eq!((found.last_index(), found.records.len()), (100, 0));
    let next = Record { term: 5, ..entry(101) };
    let write = Write { hard_state: HardState { term: 5, vote: 2, commit: 100 }, records: vec![next.clone()] };
    store.append(&write).unwrap();
    let (_, found) = Store::open_with(disk, None, SEGMENT).unwrap();
    assert_eq!(found.records, [next]);
}

/// The last frame of a segment is a vote. After a restart the entries before it are still needed.
#[test]
fn a_segment_that_ends_with_a_vote_keeps_its_entries() {
    let disk = FaultyDisk::default();
    let (mut store, _) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
    let write = |records| Write { hard_state: HardState { term: 1, vote: 1, commit: 1 }, records };
    store.append(&write((1..=3).map(entry).collect())).unwrap();
    store.append(&write(Vec::new())).unwrap();
    drop(store);

    let (mut store, _) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
    // It does not fit, so another segment begins.
    let large = Record { data: vec![4; SEGMENT].into(), ..entry(4) };
    store.append(&write(vec![large.clone()])).unwrap();
    write_snapshot(&disk, &snapshot(1)).unwrap();
    store.forget(1).unwrap();
    let (_, found) = Store::open_with(disk, None, SEGMENT).unwrap();
    assert_eq!(found.records, [entry(2), entry(3), large]);
}

/// The power fails after a segment was begun, before its first frame. The one before has the only vote.
#[test]
fn the_vote_survives_while_the_current_segment_is_empty() {
    let hard_state = HardState { term: 7, vote: 2, commit: 3 };
    // A write that needs another segment ends after any of its steps.
    for operations in 0..20 {
        let mut disk = FaultyDisk::default();
        let (mut store, _) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
        store.append(&Write { hard_state, records: (1..=3).map(entry).collect() }).unwrap();
        disk.fail_after(operations, Fault::PowerCut);
        let large = Record { data: vec![4; SEGMENT].into(), ..entry(4) };
        let is_written = store.append(&Write { hard_state, records: vec![large] }).is_ok();
        drop(store);
        disk = disk.after_power_cut(&mut Rng::new(operations as u64));

        let (mut store, _) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
        write_snapshot(&disk, &snapshot(3)).unwrap();
        store.forget(3).unwrap();
        let (_, found) = Store::open_with(disk, None, SEGMENT).unwrap();
        assert_eq!(found.hard_state, hard_state, "{operations} operations, written: {is_written}");
    }
}

/// The next process answers for what it has read, so it must make that durable first.
#[test]
fn what_a_killed_process_has_written_is_flushed_by_the_next_one() {
    for fault in [Fault::Killed, Fault::FailedFlush] {
        for operations in 0..24 {
            for seed in 0..20 {
                let (disk, mut rng) = (FaultyDisk::default(), Rng::new(seed));
                let (mut node, _) = Node::start(disk.clone()).unwrap();
                disk.fail_after(operations, fault);
                while node.write(1).is_ok() && node.written < 20 {}
                disk.mend();
                let (_, found) = Node::start(disk.clone()).unwrap();
                let (_, after) = Node::start(disk.after_power_cut(&mut rng)).unwrap();
                assert_eq!(after, found, "{fault:?} after {operations} operations, seed {seed}");
            }
        }
    }
}

/// A deposed leader's entries are in the log, the last ones of a higher term than the snapshot that another node has sent since.
#[test]
fn stale_entries_behind_a_received_snapshot_are_skipped() {
    let disk = FaultyDisk::default();
    let (mut store, _) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
    let record = |index, term| Record { index, term, is_membership: false, data: vec![1].into() };
    let write = |records| Write { hard_state: HardState { term: 6, vote: 1, commit: 0 }, records };
    store.append(&write((1..=8).map(|index| record(index, 4)).collect())).unwrap();
    store.append(&write(vec![record(9, 6)])).unwrap();
    write_received_snapshot(&disk, &Snapshot { term: 5, ..snapshot(4) }).unwrap();
    drop(store);
    let (mut store, found) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
    assert_eq!(found.records, []);
    store.append(&write(vec![record(5, 5), record(6, 7)])).unwrap();
    drop(store);
    let (_, found) = Store::open_with(disk, None, SEGMENT).unwrap();
    assert_eq!(found.records, [record(5, 5), record(6, 7)]);
}

/// The entries that replace others are in the snapshot, and those that they replaced are not.
#[test]
fn entries_that_were_replaced_before_a_snapshot_do_not_come_back() {
    let disk = FaultyDisk::default();
    let (mut store, _) = Store::open_with(disk.clone(), None, SEGMENT).unwrap();
    let record = |index, term| Record { index, term, is_membership: false, data: vec![1].into() };
    let write = |records| Write { hard_state: HardState { term: 6, vote: 1, commit: 4 }, records };
    store.append(&write((1..=8).map(|index| record(index, 5)).collect())).unwrap();
    store.append(&write(vec![record(3, 4), record(4, 4)])).unwrap();
    write_snapshot(&disk, &Snapshot { term: 4, ..snapshot(4) }).unwrap();
    drop(store);
    let (_, found) = Store::open_with(disk, None, SEGMENT).unwrap();
    assert_eq!(found.records, []);
}

/// The file has its name, and the flush of the directory has failed. The next attempt must not rely on the name.
#[test]
fn a_received_snapshot_is_durable_at_the_next_attempt() {
    for operations in 0..8 {
        for seed in 0..10 {
            let disk = FaultyDisk::default();
            drop(Store::open_with(disk.clone(), None, SEGMENT).unwrap());
            disk.fail_after(operations, Fault::FailedFlush);
            drop(write_received_snapshot(&disk, &snapshot(9)));
            disk.mend();
            write_received_snapshot(&disk, &snapshot(9)).unwrap();
            let disk = disk.after_power_cut(&mut Rng::new(seed));
            let (_, found) = Store::open_with(disk, None, SEGMENT).unwrap();
            assert_eq!(found.snapshot, Some(snapshot(9)), "{operations} operations");
        }
    }
}

#[test]
fn a_snapshot_under_another_name_is_refused() {
    let disk = FaultyDisk::default();
    drop(Store::open_with(disk.clone(), None, SEGMENT).unwrap());
    write_snapshot(&disk, &snapshot(9)).unwrap();
    disk.rename("snapshot-00000000000000000009", "snapshot-00000000000000000010").unwrap();
    let opened = Store::open_with(disk, None, SEGMENT);
    assert!(matches!(opened.map(drop), Err(StorageError::Damaged { .. })));
}
