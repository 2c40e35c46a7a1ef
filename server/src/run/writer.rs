//! Makes writes durable, in order: on the calling thread while the disk is fast, otherwise on a separate thread.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, mpsc as std_mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::replica::{Compacted, Compaction, CompactionError};
use crate::storage::disk::Disk;
use crate::storage::{StorageError, Store, Watermark, Write, write_watermark};

/// A write that takes longer than this should not have blocked the calling thread.
const SLOW: Duration = Duration::from_millis(20);
/// After a slow write the thread writes until it has been fast this many times in a row.
const QUICK_AGAIN: u32 = 64;

/// A report of the writing threads.
pub(super) enum Written {
    /// Everything up to this number is durable; the last write took this long.
    UpTo(u64, Duration),
    /// A write failed: what is on the disk is unknown.
    Failed(StorageError),
    /// A snapshot was made, or was not.
    Compacted(Result<Compacted, CompactionError>),
}

enum Job {
    Write(u64, Write),
    Forget(u64),
}

/// The store, and the channels to and from the writing threads.
pub(super) struct Writer<D: Disk> {
    store: Arc<Mutex<Store<D>>>,
    /// How many quick writes the thread must do before this one writes again.
    quick_writes_needed: u32,
    jobs: std_mpsc::Sender<Job>,
    reports: mpsc::UnboundedSender<Written>,
    disk: D,
}

impl<D: Disk> Writer<D> {
    /// Starts the thread. Its reports arrive at the returned receiver.
    pub(super) fn start(disk: D, store: Store<D>) -> io::Result<(Writer<D>, mpsc::UnboundedReceiver<Written>)> {
        let (jobs, work) = std_mpsc::channel();
        let (reports, reported) = mpsc::unbounded_channel();
        let sink = reports.clone();
        let store = Arc::new(Mutex::new(store));
        let shared = store.clone();
        thread::Builder::new().name("palisade-writer".to_owned()).spawn(move || {
            while let Ok(job) = work.recv() {
                // A panic while it was locked has ended the service.
                let mut store = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let began = Instant::now();
                let report = match job {
                    Job::Write(number, write) => match store.append(&write) {
                        Ok(()) => Written::UpTo(number, began.elapsed()),
                        Err(error) => Written::Failed(error),
                    },
                    Job::Forget(index) => {
                        if let Err(error) = store.forget(index) {
                            tracing::warn!(%error, "an old part of the log could not be removed");
                        }
                        continue;
                    }
                };
                drop(store);
                let is_over = matches!(report, Written::Failed(_));
                if sink.send(report).is_err() || is_over {
                    return;
                }
            }
        })?;
        Ok((Writer { store, quick_writes_needed: 0, jobs, reports, disk }, reported))
    }

    /// Writes on the calling thread. That saves two thread switches, which take about as long as a write to a fast disk.
    /// Returns the write if the thread should do it: no client is served while this thread waits for the disk.
    pub(super) fn write_here(&mut self, write: Write) -> Result<Option<Write>, StorageError> {
        if self.quick_writes_needed > 0 {
            return Ok(Some(write));
        }
        let mut store = match self.store.try_lock() {
            Ok(store) => store,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return Ok(Some(write)),
        };
        let began = Instant::now();
        store.append(&write)?;
        drop(store);
        self.record_duration(began.elapsed());
        Ok(None)
    }

    /// Records how long a write took.
    pub(super) fn record_duration(&mut self, took: Duration) {
        self.quick_writes_needed = if took > SLOW { QUICK_AGAIN } else { self.quick_writes_needed.saturating_sub(1) };
    }

    /// Lets the thread write. A thread that has ended has reported why.
    pub(super) fn write(&self, number: u64, write: Write) {
        drop(self.jobs.send(Job::Write(number, write)));
    }

    /// Lets the thread remove log entries that a snapshot has.
    pub(super) fn forget(&self, index: u64) {
        drop(self.jobs.send(Job::Forget(index)));
    }

    /// Replaces the token watermark on the calling thread: no token of the next block may be answered before it is durable.
    pub(super) fn replace_watermark(&self, watermark: Watermark) -> Result<(), StorageError> {
        write_watermark(&self.disk, watermark)
    }

    /// Makes a snapshot on a new thread.
    pub(super) fn compact(&self, compaction: Compaction) {
        let (disk, sink) = (self.disk.clone(), self.reports.clone());
        let started = thread::Builder::new()
            .name("palisade-compact".to_owned())
            .spawn(move || drop(sink.send(Written::Compacted(compaction.carry_out(&disk)))));
        if let Err(error) = started {
            let failed = CompactionError::from(StorageError::no_thread(error));
            drop(self.reports.send(Written::Compacted(Err(failed))));
        }
    }
}
