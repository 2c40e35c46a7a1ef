//! PostgreSQL tables: a schema of functions and triggers that any client in any language uses, and helpers on top.
//!
//! The mark is a row in the same database as the data. Every write holds it until its transaction ends, so the check
//! and the write are one step: a seal waits for writers under older tokens, and refuses those that come after it.
//! `docs/fencing/postgres.md` shows the same in plain SQL.
//!
//! - [`Fence`] is for an application that has its own connections or pool: seal, then ordinary transactions, or single
//!   statements under a token that is shown once.
//! - [`Postgres`] numbers its writes and is a [`Resource`](crate::Resource): it finds out the outcome of a write whose answer
//!   was lost.
//! - [`install`] puts the schema into a database, [`protect`] puts the trigger on a table. `palisade fence postgres`
//!   prints the same.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_fence::{Seal, Token, postgres::{Postgres, Sql}};
//! use tokio_postgres::NoTls;
//! let orders = Postgres::connect("postgres://app@db/shop", NoTls, "orders").await?;
//! let mut orders = orders.seal(Token::new(34)?).await?;       // or: palisade.lock("orders").seal(&orders).acquire()
//! let rows = orders.query(Sql::new("SELECT total FROM orders WHERE id = $1").bind(42)).await?;
//! let total: i64 = rows[0].get(0);
//! orders.execute(Sql::new("UPDATE orders SET total = $1 WHERE id = $2").bind(total + 5).bind(42)).await?;
//! # Ok(()) }
//! ```

mod change;
mod connections;
mod error;
mod fence;
mod install;
mod resource;
mod transaction;
mod under;

pub use change::{Change, Failed, Sql, Step};
#[cfg(feature = "http")]
pub(crate) use connections::Connections;
pub use fence::Fence;
#[cfg(feature = "http")]
pub(crate) use fence::literal;
pub use install::{INSTALL, install, problems, protect, protect_sql, tables_with_row_marks};
pub use resource::Postgres;
pub use transaction::Transaction;
pub use under::Under;
