//! A disk in memory that fails as disks do: what was not flushed may be lost, sector by sector; flushes fail; it fills
//! up; bits flip; flushes take as long as a test wants. A seed decides everything else.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, iter};

use palisade_server::storage::disk::{Disk, DiskFile};

/// The unit that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A disk with injected faults.
#[derive(Debug, Clone, Default)]
pub struct FaultyDisk {
    state: Arc<Mutex<State>>,
    gate: Arc<Gate>,
}

/// The gate at which flushes are held back.
#[derive(Debug, Default)]
struct Gate {
    flushes: Mutex<Flushes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Flushes {
    is_closed: bool,
    waiting: usize,
}

impl Gate {
    fn flushes(&self) -> MutexGuard<'_, Flushes> {
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while flushes are held back.
    fn pass(&self) {
        let mut flushes = self.flushes();
        flushes.waiting += 1;
        self.changed.notify_all();
        while flushes.is_closed {
            flushes = self.changed.wait(flushes).unwrap_or_else(PoisonError::into_inner);
        }
        flushes.waiting -= 1;
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Every file there ever was.
    files: Vec<File>,
    /// The names that exist now, and those that would exist after a power cut.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// The changes of names that are not durable yet.
    changes: Vec<BTreeMap<String, usize>>,
    /// Operations until the disk fails, and how.
    plan: Option<(usize, Fault)>,
    /// Renames until such a plan begins.
    plan_after_renames: Option<(usize, usize, Fault)>,
    operations: usize,
}

#[derive(Debug, Clone, Default)]
struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// What the next flush writes. A flush that fails writes nothing, and the next one does not try again, as in Linux.
    dirty: Vec<Range<usize>>,
}

/// How the disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The power fails: nothing works any more.
    PowerCut,
    /// The process is killed: it does nothing any more, and what it has written is there for the next one.
    Killed,
    /// There is no space left, from now on.
    Full,
    /// A flush fails, once.
    FailedFlush,
}

/// A file of it.
#[derive(Debug)]
pub struct FaultyFile {
    state: Arc<Mutex<State>>,
    gate: Arc<Gate>,
    file: usize,
}

/// Pseudo-random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, name.to_owned())
}

impl FaultyDisk {
    /// Fails in this way after this number of operations.
    pub fn fail_after(&self, operations: usize, fault: Fault) {
        lock(&self.state).plan = Some((operations, fault));
    }

    /// Fails in this way after this number of renames, and then of operations. Files get their names in renames.
    pub fn fail_after_renames(&self, renames: usize, operations: usize, fault: Fault) {
        lock(&self.state).plan_after_renames = Some((renames, operations, fault));
    }

    /// Ends the process that uses the disk. What was written and not flushed stays, until the power fails.
    pub fn kill_writer(&self) {
        let mut state = lock(&self.state);
        state.plan = state.plan.take().filter(|(_, fault)| *fault != Fault::Killed);
    }

    /// Makes space.
    pub fn make_space(&self) {
        let mut state = lock(&self.state);
        state.plan = state.plan.take().filter(|(_, fault)| *fault != Fault::Full);
    }

    /// Ends the failure that was planned, and makes space.
    pub fn mend(&self) {
        let mut state = lock(&self.state);
        (state.plan, state.plan_after_renames) = (None, None);
    }

    /// Returns whether the disk fails now.
    pub fn is_failing(&self) -> bool {
        matches!(lock(&self.state).plan, Some((0, _)))
    }

    /// Returns whether the power was cut, or the process killed.
    pub fn is_dead(&self) -> bool {
        matches!(lock(&self.state).plan, Some((0, Fault::PowerCut | Fault::Killed)))
    }

    /// Returns whether the process was killed.
    pub fn is_killed(&self) -> bool {
        matches!(lock(&self.state).plan, Some((0, Fault::Killed)))
    }

    /// Returns whether there is no space left.
    pub fn is_full(&self) -> bool {
        matches!(lock(&self.state).plan, Some((0, Fault::Full)))
    }

    /// Holds back every flush, until [`release_flushes`](FaultyDisk::release_flushes).
    pub fn hold_flushes(&self) {
        self.gate.flushes().is_closed = true;
    }

    /// Lets flushes return, including those that were held back.
    pub fn release_flushes(&self) {
        self.gate.flushes().is_closed = false;
        self.gate.changed.notify_all();
    }

    /// Waits until a flush is held back. Returns whether that happened within this time.
    pub fn await_held_flush(&self, within: Duration) -> bool {
        let is_none = |flushes: &mut Flushes| flushes.waiting == 0;
        let waited = self.gate.changed.wait_timeout_while(self.gate.flushes(), within, is_none);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> usize {
        lock(&self.state).operations
    }

    /// Returns the disk after a power cut: what was flushed, and a random part of the rest.
    pub fn after_power_cut(&self, rng: &mut Rng) -> FaultyDisk {
        let before = lock(&self.state);
        // Changes of names become durable in their order, up to some point.
        let arrived = rng.below(before.changes.len() + 1);
        let names = before.changes[..arrived].last().unwrap_or(&before.durable_names);
        before.with_files(names, |file| file.after_power_cut(rng))
    }

    /// Returns a disk with the same files.
    pub fn copy(&self) -> FaultyDisk {
        let state = lock(&self.state);
        state.with_files(&state.names, |file| File::durable(file.now.clone()))
    }

    /// Returns a disk with the files that were flushed: the disk after a power cut at which nothing else arrives.
    pub fn flushed_copy(&self) -> FaultyDisk {
        let state = lock(&self.state);
        state.with_files(&state.durable_names, |file| File::durable(file.durable.clone()))
    }

    /// Returns the disk with one bit flipped in what was written, and its position.
    pub fn with_flipped_bit(&self, rng: &mut Rng) -> Option<(FaultyDisk, String, usize)> {
        let mut after = lock(&self.state).clone();
        (after.plan, after.plan_after_renames) = (None, None);
        let names: Vec<_> = after.names.clone().into_iter().collect();
        let (name, file) = names.get(rng.below(names.len()))?.clone();
        let bytes = &mut after.files[file].now;
        let written = bytes.iter().rposition(|byte| *byte != 0)? + 1;
        let at = rng.below(written);
        bytes[at] ^= 1 << rng.below(8);
        Some((FaultyDisk { state: Arc::new(Mutex::new(after)), gate: Arc::default() }, name, at))
    }
}

impl State {
    /// Returns a disk with files of these names, and nothing else.
    fn with_files(&self, names: &BTreeMap<String, usize>, mut copy: impl FnMut(&File) -> File) -> FaultyDisk {
        let files = names.values().map(|file| copy(&self.files[*file])).collect();
        let names: BTreeMap<_, _> = names.keys().cloned().zip(0..).collect();
        let state = State { files, names: names.clone(), durable_names: names, ..State::default() };
        FaultyDisk { state: Arc::new(Mutex::new(state)), gate: Arc::default() }
    }

    fn step(&mut self, is_flush: bool) -> io::Result<()> {
        self.operations += 1;
        let Some((left, fault)) = &mut self.plan else { return Ok(()) };
        if *left > 0 {
            *left -= 1;
            return Ok(());
        }
        match fault {
            Fault::PowerCut => Err(io::Error::other("the power is cut")),
            Fault::Killed => Err(io::Error::other("the process is killed")),
            Fault::Full if is_flush => Ok(()),
            Fault::Full => Err(io::ErrorKind::StorageFull.into()),
            Fault::FailedFlush if !is_flush => Ok(()),
            Fault::FailedFlush => {
                self.plan = None;
                Err(io::Error::other("the flush failed"))
            }
        }
    }

    fn count_rename(&mut self) {
        match self.plan_after_renames.take() {
            Some((0, operations, fault)) => self.plan = Some((operations, fault)),
            Some((renames, operations, fault)) => self.plan_after_renames = Some((renames - 1, operations, fault)),
            None => {}
        }
    }

    fn rename(&mut self, change: impl FnOnce(&mut BTreeMap<String, usize>) -> io::Result<()>) -> io::Result<()> {
        self.step(false)?;
        change(&mut self.names)?;
        let names = self.names.clone();
        self.changes.push(names);
        Ok(())
    }
}

impl File {
    fn durable(bytes: Vec<u8>) -> File {
        File { now: bytes.clone(), durable: bytes, dirty: Vec::new() }
    }

    fn after_power_cut(&self, rng: &mut Rng) -> File {
        let mut bytes = self.durable.clone();
        // A file may have grown, or not.
        if self.now.len() > bytes.len() && rng.below(2) == 0 {
            bytes.resize(self.now.len(), 0);
        }
        for at in (0..bytes.len()).step_by(SECTOR) {
            let end = (at + SECTOR).min(bytes.len());
            let new = self.now.get(at..end.min(self.now.len())).unwrap_or_default();
            if rng.below(2) == 0 {
                bytes[at..at + new.len()].copy_from_slice(new);
            }
        }
        File::durable(bytes)
    }
}

impl Disk for FaultyDisk {
    type File = FaultyFile;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(lock(&self.state).names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = lock(&self.state);
        state.names.get(name).map(|file| state.files[*file].now.clone()).ok_or_else(|| gone(name))
    }

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        let mut state = lock(&self.state);
        let file = state.files.len();
        state.files.push(File::default());
        state.rename(|names| match names.contains_key(name) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => {
                names.insert(name.to_owned(), file);
                Ok(())
            }
        })?;
        Ok(FaultyFile { state: self.state.clone(), gate: self.gate.clone(), file })
    }

    fn open(&self, name: &str) -> io::Result<FaultyFile> {
        let file = lock(&self.state).names.get(name).copied().ok_or_else(|| gone(name))?;
        Ok(FaultyFile { state: self.state.clone(), gate: self.gate.clone(), file })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        lock(&self.state).rename(|names| {
            let file = names.remove(from).ok_or_else(|| gone(from))?;
            names.insert(to.to_owned(), file);
            Ok(())
        })?;
        lock(&self.state).count_rename();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        lock(&self.state).rename(|names| names.remove(name).map(drop).ok_or_else(|| gone(name)))
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        let mut state = lock(&self.state);
        state.step(true)?;
        let names = state.names.clone();
        let before = std::mem::replace(&mut state.durable_names, names);
        let changes = std::mem::take(&mut state.changes);
        // No power cut brings the removed files back.
        for file in iter::once(before).chain(changes).flat_map(BTreeMap::into_values) {
            if !state.names.values().any(|kept| *kept == file) {
                state.files[file] = File::default();
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Writes at once, so that the same seed always does the same.
    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        job();
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = lock(&self.state);
        let done = state.step(false);
        // A power cut, or a full disk, leaves a part of it.
        let bytes = if done.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let file = &mut state.files[self.file].now;
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        if file.len() < to {
            file.resize(to, 0);
        }
        file[from..to].copy_from_slice(bytes);
        state.files[self.file].dirty.push(from..to);
        done
    }

    fn sync(&mut self) -> io::Result<()> {
        self.gate.pass();
        let mut state = lock(&self.state);
        let flushed = state.step(true);
        let File { now, durable, dirty } = &mut state.files[self.file];
        let dirty = std::mem::take(dirty);
        flushed?;
        durable.resize(now.len(), 0);
        for range in dirty {
            durable[range.clone()].copy_from_slice(&now[range]);
        }
        Ok(())
    }
}
