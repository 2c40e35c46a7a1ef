//! Distributed locks whose every grant carries a fencing token.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
//! let palisade = palisade::connect("memory:").await?;             // or "embedded:": one file, nothing installed
//! let guard = palisade.lock("orders/42").acquire().await?;        // waits its turn; dropping the future is safe
//! let token = guard.token()?;                                     // fails once the lock is lost
//! println!("UPDATE orders … token {token}");                      // the resource refuses a token that was overtaken
//! guard.release().await?;                                         // dropping the guard does it too
//! # Ok(()) }
//! ```
//!
//! A lock across machines is an opinion: its holder can be stopped for a minute and wake up believing that it still
//! holds it. So every grant carries a number that only goes up, and the *resource* refuses a number that has been
//! overtaken. Ask yourself first: *what if two processes hold it at once?* If that only wastes work, say
//! [`.efficiency()`](Request::efficiency). If it does damage, present [`Guard::token`] with every access.
//!
//! - [`connect`] makes a [`Palisade`]: one session, kept alive by a thread of its own.
//! - [`Palisade::lock`], [`rw_lock`](Palisade::rw_lock), [`semaphore`](Palisade::semaphore),
//!   [`lock_all`](Palisade::lock_all) and [`election`](Palisade::election) say what is wanted.
//! - [`acquire`](Request::acquire) waits, [`try_acquire`](Request::try_acquire) asks once,
//!   [`acquire_within`](Request::acquire_within) waits for a limited time.
//! - [`seal`](Request::seal) shuts the resources against every older holder before there is a guard; `palisade-fence`
//!   has resources that can be sealed.
//! - A [`Guard`] knows when it is lost: [`token`](Guard::token), [`ensure`](Guard::ensure),
//!   [`jeopardy`](Guard::jeopardy), [`lost`](Guard::lost).
//! - An [`Error`] says whether it may be retried and whether it may have taken effect. Contention is not an error.
//! - [`blocking`] is the same for programs without async.
#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod clock;
mod connect;
mod election;
pub mod engine;
mod error;
mod guard;
mod keeper;
mod left;
mod lock;
mod loss;
mod options;
mod seal;
mod signed;
mod watch;

pub use client::{Palisade, connect, connect_env};
pub use clock::BootInstant;
pub use connect::split_secret;
pub use election::{Election, Leader, Observer};
pub use error::{Error, ErrorKind, Misuse};
pub use guard::{EfficiencyGuard, Guard, Leadership, LockGuard, Permit, ReadGuard, WriteGuard};
pub use left::LeftSession;
pub use lock::{Lock, LockSet, Request, RwLock, Semaphore};
pub use loss::{Loss, Standing};
pub use options::Options;
pub use palisade_core::{
    BadName, BadNumber, Departure, Ending, Event, LockName, Mode, Refusal, Seal, SealError, SessionEnd, SessionId,
    Token,
};
pub use seal::{Exclusive, SealingRequest};
pub use signed::SignedToken;
pub use watch::Watch;

/// The examples of the README are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
