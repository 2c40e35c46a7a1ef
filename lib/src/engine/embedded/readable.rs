//! Waiting until a kernel descriptor is readable.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor. Must be called within a `tokio` runtime with I/O enabled.
#[allow(deprecated, reason = "its replacement is unsafe, for types that do not own their descriptor; this one does")]
pub(super) fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}
