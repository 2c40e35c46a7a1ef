//! Marks in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::LockName;
use tokio::sync::OwnedMutexGuard;

use super::resource_locks::ResourceLocks;
use super::{MarkLock, MarkRecord, Marks, MarksFuture};
use crate::Mark;

/// Marks in this process, lost with it. Use them only for data that are lost with it too: otherwise a restart lets a paused
/// holder seal again, and write. All clones are the same marks.
#[derive(Debug, Clone, Default)]
pub struct MemoryMarks {
    marks: Arc<Mutex<HashMap<LockName, MarkRecord>>>,
    locks: Arc<ResourceLocks>,
}

impl MemoryMarks {
    fn marks(&self) -> MutexGuard<'_, HashMap<LockName, MarkRecord>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marks for MemoryMarks {
    fn peek<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Option<Mark>> {
        Box::pin(async { Ok(self.marks().get(resource).and_then(|record| record.mark)) })
    }

    fn lock<'a>(&'a self, resource: &'a LockName) -> MarksFuture<'a, Box<dyn MarkLock>> {
        Box::pin(async {
            let lock = self.locks.lock(resource).await;
            let record = self.marks().get(resource).cloned().unwrap_or_default();
            let lock: Box<dyn MarkLock> =
                Box::new(MemoryMarkLock { marks: self.clone(), resource: resource.clone(), record, _lock: lock });
            Ok(lock)
        })
    }
}

struct MemoryMarkLock {
    marks: MemoryMarks,
    resource: LockName,
    record: MarkRecord,
    _lock: OwnedMutexGuard<()>,
}

impl MarkLock for MemoryMarkLock {
    fn record(&self) -> &MarkRecord {
        &self.record
    }

    fn save(&mut self, record: MarkRecord) -> MarksFuture<'_, ()> {
        self.record = record.clone();
        self.marks.marks().insert(self.resource.clone(), record);
        Box::pin(async { Ok(()) })
    }
}
