//! The timers of the keeper and of its engines: those of `tokio`, or of a simulated process.

#[cfg(feature = "_simulation")]
pub(crate) use crate::simulation::timers::{Instant, sleep, sleep_until, timeout, timeout_at};
#[cfg(not(feature = "_simulation"))]
#[allow(unused_imports, reason = "each engine needs some of them")]
pub(crate) use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
