//! The thread that writes: whatever is to be made durable, in order, and nothing else.

use std::io;
use std::sync::mpsc as std_mpsc;
use std::thread;

use tokio::sync::mpsc;

use crate::replica::{Compaction, CompactionError};
use crate::storage::disk::Disk;
use crate::storage::{StorageError, Store, Write};

/// What the writing threads report.
pub(super) enum Written {
    /// Everything up to this number is durable.
    UpTo(u64),
    /// A write failed: nobody knows what is on the disk.
    Failed(StorageError),
    /// A snapshot was made, up to this entry, or was not.
    Compacted(Result<u64, CompactionError>),
}

enum Job {
    Write(u64, Write),
    Forget(u64),
}

/// The way to the writing threads.
pub(super) struct Writer<D> {
    jobs: std_mpsc::Sender<Job>,
    reports: mpsc::UnboundedSender<Written>,
    disk: D,
}

impl<D: Disk> Writer<D> {
    /// Starts the thread. Its reports are awaited at the other end of the channel.
    pub(super) fn start(disk: D, mut store: Store<D>) -> io::Result<(Writer<D>, mpsc::UnboundedReceiver<Written>)> {
        let (jobs, work) = std_mpsc::channel();
        let (reports, reported) = mpsc::unbounded_channel();
        let sink = reports.clone();
        thread::Builder::new().name("palisade-writer".to_owned()).spawn(move || {
            while let Ok(job) = work.recv() {
                let report = match job {
                    Job::Write(number, write) => match store.append(&write) {
                        Ok(()) => Written::UpTo(number),
                        Err(error) => Written::Failed(error),
                    },
                    Job::Forget(index) => {
                        if let Err(error) = store.forget(index) {
                            tracing::warn!(%error, "an old part of the log could not be removed");
                        }
                        continue;
                    }
                };
                let is_over = matches!(report, Written::Failed(_));
                if sink.send(report).is_err() || is_over {
                    return;
                }
            }
        })?;
        Ok((Writer { jobs, reports, disk }, reported))
    }

    /// Has something written. A thread that has ended has reported why.
    pub(super) fn write(&self, number: u64, write: Write) {
        drop(self.jobs.send(Job::Write(number, write)));
    }

    /// Has the log forget what a snapshot holds.
    pub(super) fn forget(&self, index: u64) {
        drop(self.jobs.send(Job::Forget(index)));
    }

    /// Has a snapshot made, on a thread of its own.
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
