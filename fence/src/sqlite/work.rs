//! What is done in a transaction.

use std::fmt;
use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Result, Transaction};

/// What is done in one transaction, and the value that comes of it.
#[derive(Clone)]
pub struct Work(Arc<Inside>);

type Inside = dyn Fn(&Transaction<'_>) -> Result<Value> + Send + Sync;

impl Work {
    /// Some work. It leaves beginning and ending the transaction to others.
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
