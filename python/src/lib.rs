//! The extension module `palisade._native`: the library `palisade` for the Python modules in `palisade/`.
//!
//! Every call that waits returns an `Operation`. A thread waits for it, or an event loop polls it. The keeper of a client never
//! calls Python, so a busy interpreter does not delay a renewal.
#![forbid(unsafe_code)]

mod client;
mod error;
mod guard;
mod operation;
mod owned;
mod view;
mod watch;

use pyo3::prelude::*;

/// The library `palisade`, for the modules next to this one.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::client::{Client, connect};
    #[pymodule_export]
    use super::guard::Guard;
    #[pymodule_export]
    use super::operation::{Operation, Wakeups};
    #[pymodule_export]
    use super::watch::{Observer, Watch};

    /// The SQL of the schema `palisade_fence`.
    #[pymodule_export]
    const POSTGRES_FENCE: &str = palisade_fence::postgres::INSTALL;
    /// The functions of the fence in Redis.
    #[pymodule_export]
    const REDIS_FENCE: &str = palisade_fence::redis::LIBRARY;
}
