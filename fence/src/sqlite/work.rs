//! The work of a transaction.

use std::fmt;
use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Result, Transaction};

/// A closure that runs in one transaction and returns a value.
#[derive(Clone)]
pub struct Work(Arc<Inside>);

type Inside = dyn Fn(&Transaction<'_>) -> Result<Value> + Send + Sync;

impl Work {
    /// Wraps a closure. It must not begin or end the transaction.
    pub fn new(work: impl Fn(&Transaction<'_>) -> Result<Value> + Send + Sync + 'static) -> Work {
        Work(Arc::new(work))
    }

    pub(super) fn run(&self, transaction: &Transaction<'_>) -> Result<Value> {
        (self.0)(transaction)
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}
