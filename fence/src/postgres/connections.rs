//! A pool of connections: as many as are in use at once, each used for one operation at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Socket};

type Connecting = Pin<Box<dyn Future<Output = Result<Client, tokio_postgres::Error>> + Send>>;

#[derive(Clone)]
pub(crate) struct Connections {
    connect: Arc<dyn Fn() -> Connecting + Send + Sync>,
    idle: Arc<Mutex<Vec<Client>>>,
}

impl Connections {
    pub(crate) fn to<T>(config: Config, tls: T) -> Connections
    where
        T: MakeTlsConnect<Socket, Stream: Send, TlsConnect: Send> + Clone + Send + Sync + 'static,
        <T::TlsConnect as tokio_postgres::tls::TlsConnect<Socket>>::Future: Send,
        T::Stream: 'static,
    {
        let connect = move || -> Connecting {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move {
                let (client, connection) = config.connect(tls).await?;
                // The client reports its errors.
                tokio::spawn(connection);
                Ok(client)
            })
        };
        Connections { connect: Arc::new(connect), idle: Arc::default() }
    }

    /// Takes a connection out of the pool, or opens one. It is closed unless it is [put back](Connections::keep).
    pub(crate) async fn take(&self) -> Result<Client, tokio_postgres::Error> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(client) if client.is_closed() => {}
                Some(client) => return Ok(client),
                None => return (self.connect)().await,
            }
        }
    }

    /// Puts back a connection that is in no transaction.
    pub(crate) fn keep(&self, client: Client) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
    }
}
