//! Runs blocking work outside the threads that run futures.

use std::error::Error as StdError;

/// Runs the work on a blocking thread of the tokio runtime, or, without a runtime, on this thread.
///
/// The work continues when the future is dropped.
///
/// # Errors
///
/// The work was not finished: it panicked, or the runtime is shutting down.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Box<dyn StdError + Send + Sync>> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => Ok(runtime.spawn_blocking(work).await?),
        Err(_) => Ok(work()),
    }
}
