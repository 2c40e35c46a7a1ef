//! The one place where a connection is made.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;

use futures_util::future::LocalBoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_postgres::config::Host;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};

use super::Config;
use super::error::Trouble;
use super::tls;

/// A connection, and what keeps it going: it ends with the connection, and says why.
pub(super) struct Dialled {
    pub(super) client: Client,
    pub(super) driving: LocalBoxFuture<'static, Trouble>,
    /// Where the server must see it come from, if nothing is in between.
    pub(super) local: Option<SocketAddr>,
}

/// Connects to the first of the hosts that lets us in. What is said unasked goes to `heed`.
pub(super) async fn dial(config: &Config, heed: impl Fn(&str) + Clone + 'static) -> Result<Dialled, Trouble> {
    let tls = tls::load(&config.encryption)?;
    let mut last = None;
    for (at, host) in config.server.get_hosts().iter().enumerate() {
        let mut one = config.server.clone();
        one.channel_binding(config.server.get_channel_binding());
        let attempt = async {
            let Host::Tcp(name) = host else {
                let (client, connection) = config.server.connect(NoTls).await?;
                return Ok(Dialled { client, driving: drive(connection, heed.clone()), local: None });
            };
            let unreached = |error: std::io::Error| Trouble::passing(format!("cannot be reached: {error}"));
            let stream = TcpStream::connect((name.as_str(), config.port(at))).await.map_err(unreached)?;
            stream.set_nodelay(true).map_err(unreached)?;
            let local = stream.local_addr().ok();
            let (client, driving) = match &tls {
                None => {
                    let (client, connection) = one.connect_raw(stream, NoTls).await?;
                    (client, drive(connection, heed.clone()))
                }
                Some(tls) => {
                    use tokio_postgres::tls::MakeTlsConnect;
                    let connect = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls.clone(), name);
                    let connect = connect.map_err(|error| Trouble::for_good(format!("cannot encrypt: {error}")))?;
                    let (client, connection) = one.connect_raw(stream, connect).await?;
                    (client, drive(connection, heed.clone()))
                }
            };
            Ok(Dialled { client, driving, local })
        };
        match attempt.await {
            Ok(dialled) => return Ok(dialled),
            Err(trouble) => last = Some(trouble),
        }
    }
    Err(last.unwrap_or_else(|| Trouble::for_good("the URL names no host".to_owned())))
}

/// Sends and receives until the connection ends.
fn drive<S, T>(mut connection: Connection<S, T>, heed: impl Fn(&str) + 'static) -> LocalBoxFuture<'static, Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    Box::pin(async move {
        loop {
            match poll_fn(|cx| Pin::new(&mut connection).poll_message(cx)).await {
                Some(Ok(AsyncMessage::Notification(note))) => heed(note.payload()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return error.into(),
                None => return Trouble::passing("the connection was closed".to_owned()),
            }
        }
    })
}
