//! Distributed locks whose every grant carries a fencing token.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
//! let palisade = palisade::connect("memory:").await?;             // or "embedded:": one file, nothing installed
//! let guard = palisade.lock("orders/42").acquire().await?;        // waits in a fair queue; dropping it is safe
//! let token = guard.token()?;                                     // fails once the lock is lost
//! println!("UPDATE orders … token {token}");                      // the resource refuses a token that was overtaken
//! guard.release().await?;                                         // dropping the guard does it too
//! # Ok(()) }
//! ```
//!
//! A distributed lock alone cannot exclude a second holder: its holder can be paused for a minute, lose the lock, and go on
//! as if it still held it. So every grant carries a token, a number that only rises, and the *resource* refuses a token that
//! a newer one has superseded. Ask first: *what happens if two processes hold it at once?* If that only wastes work, call
//! [`.efficiency()`](Request::efficiency). If it does damage, present [`Guard::token`] with every access.
//!
//! - [`connect`] makes a [`Palisade`]: one session, kept alive by a separate thread.
//! - [`Palisade::lock`], [`rw_lock`](Palisade::rw_lock), [`semaphore`](Palisade::semaphore),
//!   [`lock_all`](Palisade::lock_all) and [`election`](Palisade::election) are requests.
//! - [`recipe`] has what is built from them, such as [`partitions`](Palisade::partitions).
//! - [`acquire`](Request::acquire) waits, [`try_acquire`](Request::try_acquire) does not,
//!   [`acquire_within`](Request::acquire_within) waits for a limited time.
//! - [`seal`](Request::seal) makes resources refuse every older holder before the caller gets the guard; `palisade-fence`
//!   has resources that can be sealed.
//! - A [`Guard`] reports when its lock is lost: [`token`](Guard::token), [`ensure`](Guard::ensure),
//!   [`jeopardy`](Guard::jeopardy), [`lost`](Guard::lost).
//! - An [`Error`] says whether it may be retried and whether it may have taken effect. Contention is not an error.
//! - [`recipe`] has tools that are often better than a lock.
//! - [`blocking`] is the same for programs without async.
#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod clock;
mod connect;
mod detached;
mod election;
pub mod engine;
mod error;
mod guard;
mod keeper;
mod lock;
mod loss;
mod options;
pub mod recipe;
mod seal;
mod signed;
#[cfg(feature = "_simulation")]
#[doc(hidden)]
pub mod simulation;
mod time;
mod watch;

pub use client::{Palisade, connect, connect_env};
pub use clock::BootInstant;
pub use connect::split_secret;
pub use detached::DetachedSession;
pub use election::{Election, Leader, Observer};
pub use error::{Error, ErrorKind, Misuse};
pub use guard::{EfficiencyGuard, Guard, Leadership, LockGuard, Permit, ReadGuard, WriteGuard};
pub use lock::{Lock, LockSet, Request, RwLock, Semaphore};
pub use loss::{Loss, Standing};
pub use options::Options;
pub use palisade_core::{
    BadName, BadNumber, Departure, Ending, Event, Limit, LockName, Mode, Refusal, Seal, SealError, SessionEnd,
    SessionId, Token,
};
pub use seal::{Exclusive, SealingRequest};
pub use signed::SignedToken;
pub use watch::Watch;

/// The examples of the README are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The examples of the pages about recipes, too.
#[cfg(all(doctest, feature = "embedded"))]
mod recipe_pages {
    #[doc = include_str!("../../docs/recipes/cache.md")]
    struct Cache;
    #[doc = include_str!("../../docs/recipes/once.md")]
    struct Once;
    #[doc = include_str!("../../docs/recipes/partitions.md")]
    struct Partitions;
    #[doc = include_str!("../../docs/recipes/compare-and-set.md")]
    struct CompareAndSet;
    #[doc = include_str!("../../docs/recipes/queue.md")]
    struct Queue;
}
