//! Marks in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::LockName;
use tokio::sync::OwnedMutexGuard;

use super::turns::Turns;
use super::{Kept, Later, Marks, Turn};
use crate::Mark;

/// Marks in this process: they are forgotten with it. Right where the data are, too; otherwise a restart lets a paused
/// holder seal again, and write. All clones are the same marks.
#[derive(Debug, Clone, Default)]
pub struct MemoryMarks {
    marks: Arc<Mutex<HashMap<LockName, Kept>>>,
    turns: Arc<Turns>,
}

impl MemoryMarks {
    fn marks(&self) -> MutexGuard<'_, HashMap<LockName, Kept>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marks for MemoryMarks {
    fn peek<'a>(&'a self, resource: &'a LockName) -> Later<'a, Option<Mark>> {
        Box::pin(async { Ok(self.marks().get(resource).and_then(|kept| kept.mark)) })
    }

    fn turn<'a>(&'a self, resource: &'a LockName) -> Later<'a, Box<dyn Turn>> {
        Box::pin(async {
            let turn = self.turns.wait(resource).await;
            let kept = self.marks().get(resource).cloned().unwrap_or_default();
            let turn: Box<dyn Turn> =
                Box::new(Taken { marks: self.clone(), resource: resource.clone(), kept, _turn: turn });
            Ok(turn)
        })
    }
}

struct Taken {
    marks: MemoryMarks,
    resource: LockName,
    kept: Kept,
    _turn: OwnedMutexGuard<()>,
}

impl Turn for Taken {
    fn kept(&self) -> &Kept {
        &self.kept
    }

    fn keep(&mut self, kept: Kept) -> Later<'_, ()> {
        self.kept = kept.clone();
        self.marks.marks().insert(self.resource.clone(), kept);
        Box::pin(async { Ok(()) })
    }
}
