//! A store that has lost data, as a connected client notices it.

use std::cell::RefCell;

use super::{Backend, ClientState, ConnectError};

/// The loss of data that a client has noticed. Later calls fail until the application connects again.
#[derive(Default)]
pub(crate) struct DataLoss(RefCell<Option<ConnectError>>);

impl DataLoss {
    /// Fails if a loss was noticed.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }

    /// Reports a loss to every session, and returns it as an error.
    pub(crate) fn report<B: Backend>(&self, client: &ClientState<B>, what: &str) -> ConnectError {
        let error = ConnectError::permanent(format!(
            "it has lost data: {what} (restored from a backup, deleted, or started empty). Other clients may hold the locks \
             that this client held. Check the protected data, raise the tokens, then connect again"
        ));
        tracing::error!(%what, store = B::NAME, "the store has lost data");
        self.0.replace(Some(error.clone()));
        client.data_lost(&format!("{} has lost data: {what}", B::NAME), || error.failure(false));
        error
    }
}
