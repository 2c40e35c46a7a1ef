//! A long run on one store: worker processes that are stopped, terminated and killed, a store that is killed and started
//! again, and a judge that trusts none of them.
//!
//! Each worker appends every grant to a separate file before it uses it. A grant is *certainly held* from the moment at
//! which the guard said so until the client asks to release it, or until the last `safe_until` that was written: neither a
//! stopped nor a killed worker shortens that, because its session lives on at the store. (`embedded:` ends the session of a
//! process that has died at once; there a kill, which is written before it is done, ends it too.)

pub mod judge;
mod record;
pub mod store;
pub mod work;

pub use record::now;

/// The locks that every worker wants, each with a fenced number.
pub const HOT: usize = 8;
/// The permits of a semaphore.
pub const PERMITS: u32 = 4;
/// Locks of this kind: shared, and with permits.
pub const OTHERS: usize = 2;

/// The name of a hot lock.
pub fn hot(number: usize) -> String {
    format!("hot/{number}")
}

/// The file of the fenced number of a lock, if it has one.
pub fn number_file(lock: &str) -> Option<String> {
    lock.strip_prefix("hot/").map(|number| format!("number-{number}"))
}
