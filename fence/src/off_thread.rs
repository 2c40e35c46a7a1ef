//! Work that blocks, away from the threads that run futures.

use std::error::Error as StdError;

/// Does the work on a thread for such work, if there is a tokio runtime; otherwise here and now.
///
/// The work goes on when the future is dropped.
///
/// # Errors
///
/// The work did not come to an end: it panicked, or the runtime is shutting down.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Box<dyn StdError + Send + Sync>> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => Ok(runtime.spawn_blocking(work).await?),
        Err(_) => Ok(work()),
    }
}
