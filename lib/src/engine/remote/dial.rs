//! The parts of opening and giving up a connection that backends share.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::ConnectError;
use crate::time::timeout;

/// Opens a TCP connection.
pub(crate) async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let unreached = |error: io::Error| ConnectError::unreachable(&error).because(Arc::new(error));
    let stream = TcpStream::connect((host, port)).await.map_err(unreached)?;
    stream.set_nodelay(true).map_err(unreached)?;
    Ok(stream)
}

/// Fails an attempt that takes longer.
pub(crate) async fn within<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    timeout(limit, attempt).await.unwrap_or_else(|_| Err(ConnectError::no_answer(limit)))
}

/// Why a connection is not used any more. The first reason counts.
#[derive(Default)]
pub(crate) struct GivenUp {
    error: RefCell<Option<ConnectError>>,
    noted: Notify,
}

impl GivenUp {
    pub(crate) fn note(&self, error: ConnectError) -> ConnectError {
        let first = self.error.borrow_mut().get_or_insert(error).clone();
        self.noted.notify_waiters();
        first
    }

    pub(crate) fn error(&self) -> Option<ConnectError> {
        self.error.borrow().clone()
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.error.borrow().is_some()
    }

    /// Waits until the connection is given up.
    pub(crate) async fn wait(&self) -> ConnectError {
        loop {
            let noted = self.noted.notified();
            if let Some(error) = self.error() {
                return error;
            }
            noted.await;
        }
    }
}
