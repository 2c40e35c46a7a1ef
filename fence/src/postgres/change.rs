//! Statements and changes.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio_postgres::types::ToSql;

use super::Transaction;

/// Why a change was rolled back: the database's error, or the application's.
pub type Failed = Box<dyn StdError + Send + Sync>;

/// The future of a [`Change`]'s closure. Its bytes are stored as the outcome.
pub type Step<'t> = Pin<Box<dyn Future<Output = Result<Vec<u8>, Failed>> + Send + 't>>;

/// One statement and its parameters.
///
/// ```
/// use palisade_fence::postgres::Sql;
/// let update = Sql::new("UPDATE orders SET total = $1 WHERE id = $2").bind(7_i64).bind(42);
/// ```
#[derive(Debug, Clone)]
pub struct Sql {
    pub(super) text: String,
    pub(super) parameters: Vec<Arc<dyn ToSql + Send + Sync>>,
}

impl Sql {
    /// Returns a statement, with `$1`, `$2` for its parameters.
    pub fn new(text: impl Into<String>) -> Sql {
        Sql { text: text.into(), parameters: Vec::new() }
    }

    /// Adds the next parameter.
    #[must_use]
    pub fn bind(mut self, value: impl ToSql + Send + Sync + 'static) -> Sql {
        self.parameters.push(Arc::new(value));
        self
    }

    pub(super) fn bound(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
    }
}

/// One numbered write: all of it in one transaction, or nothing.
#[derive(Clone)]
pub struct Change(pub(super) Kind);

#[derive(Clone)]
pub(super) enum Kind {
    Statement(Sql),
    Work(Arc<dyn for<'t> Fn(&'t Transaction<'_>) -> Step<'t> + Send + Sync>),
}

impl Change {
    /// Returns a change that runs the closure in the transaction. Its result is stored with the mark, and a repeat of the
    /// write returns it again. An error rolls everything back.
    ///
    /// ```
    /// use palisade_fence::postgres::Change;
    /// let change = Change::new(|transaction| Box::pin(async move {
    ///     let total: i64 = transaction.query_one("SELECT total FROM orders WHERE id = 42", &[]).await?.get(0);
    ///     transaction.execute("UPDATE orders SET total = $1 WHERE id = 42", &[&(total + 5)]).await?;
    ///     Ok(total.to_string().into_bytes())
    /// }));
    /// ```
    pub fn new(work: impl for<'t> Fn(&'t Transaction<'_>) -> Step<'t> + Send + Sync + 'static) -> Change {
        Change(Kind::Work(Arc::new(work)))
    }
}

/// One statement; its outcome is the number of rows that it has changed, in decimal.
impl From<Sql> for Change {
    fn from(sql: Sql) -> Change {
        Change(Kind::Statement(sql))
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Change")
    }
}
