//! Fences for resources: seals that refuse an overtaken token, and adapters for databases, files, object stores and HTTP.
//!
//! A holder of a distributed lock can be paused for a minute, lose the lock, wake up, and write. Only the resource can
//! refuse that write. It is **sealed** with the grant's token before anything is read under it. From then on it refuses
//! older tokens, for reads too. Writes are numbered, so that one that is delivered twice is applied once.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_fence::{Seal, Token, memory::Memory};
//! let orders = Memory::new("orders");
//! let mut paused = orders.seal(Token::new(33)?).await?;           // or: palisade.lock("orders").seal(&orders).acquire()
//! let mut newer = orders.seal(Token::new(34)?).await?;            // another client has the lock now
//! newer.write(b"theirs".to_vec()).await?;
//! let error = paused.write(b"mine".to_vec()).await.expect_err("it was overtaken");
//! assert_eq!(error.overtaken_by(), Some(newer.token()));
//! # Ok(()) }
//! ```
//!
//! - [`Seal`] is a resource that can be sealed. Only a [`Sealed`] resource can be read and written.
//! - [`Resource`] is what an adapter implements, [`FenceState`] the rules that it follows.
//! - [`Ratchet`] is a weaker check, which other systems use and which loses updates.
//! - The feature `signed` verifies tokens that come with a signature.
//! - [`memory`] is the reference; each other adapter is a separate module and feature.
#![forbid(unsafe_code)]

mod error;
mod mark;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "sqlite"))]
mod name;
mod number;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod off_thread;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod problem;
mod ratchet;
mod resource;
mod sealed;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "http")]
pub mod http;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "object-store")]
pub mod object_store;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "signed")]
pub mod signed;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use error::{Error, ErrorKind};
pub use mark::{FenceState, Mark, Stamp, Superseded, Verdict};
pub use number::{Author, Seq};
pub use palisade_core::{BadNumber, Seal, SealError, Token};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use problem::Problem;
pub use ratchet::Ratchet;
pub use resource::{Pass, Resource};
pub use sealed::{Sealed, Settled};
