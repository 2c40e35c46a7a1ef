//! The one place where a stream to the service is made.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::Trouble;
use super::{Config, Obstacle, Tls};

pub(super) type Reader = Box<dyn AsyncRead + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Unpin>;

/// A stream to the service.
pub(super) struct Stream {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) is_encrypted: bool,
}

pub(super) struct Dialer {
    pub(super) config: Config,
    /// What the files say, as long as nothing is wrong with it.
    tls: RefCell<Option<TlsConnector>>,
}

impl Dialer {
    pub(super) fn new(config: Config) -> Dialer {
        Dialer { config, tls: RefCell::new(None) }
    }

    pub(super) async fn dial(&self) -> Result<Stream, Trouble> {
        let tls = match &self.config.tls {
            // Before anybody is called: without its files there is nothing to say.
            Some(tls) => Some((self.read(tls).map_err(|obstacle| self.barred(obstacle))?, self.name(tls)?)),
            None => None,
        };
        let stream = TcpStream::connect((self.config.host.as_str(), self.config.port)).await;
        let stream = stream.map_err(|error| self.not_reached(error))?;
        stream.set_nodelay(true).map_err(|error| self.not_reached(error))?;
        let Some((connector, name)) = tls else {
            let (reader, writer) = stream.into_split();
            return Ok(Stream { reader: Box::new(reader), writer: Box::new(writer), is_encrypted: false });
        };
        let stream = connector.connect(name, stream).await.map_err(|error| match Obstacle::before(&error) {
            Some(obstacle) => self.barred(obstacle),
            None => Trouble::of_stream(self.config.address(), error),
        });
        let (reader, writer) = split(stream?);
        Ok(Stream { reader: Box::new(reader), writer: Box::new(writer), is_encrypted: true })
    }

    /// Something was in the way: what the files say may be it, so they are read again.
    pub(super) fn forget_files(&self) {
        *self.tls.borrow_mut() = None;
    }

    fn read(&self, tls: &Tls) -> Result<TlsConnector, Obstacle> {
        if let Some(connector) = &*self.tls.borrow() {
            return Ok(connector.clone());
        }
        let connector = tls.load()?;
        *self.tls.borrow_mut() = Some(connector.clone());
        Ok(connector)
    }

    fn name(&self, tls: &Tls) -> Result<ServerName<'static>, Trouble> {
        let name = tls.name.as_ref().unwrap_or(&self.config.host);
        let no_name = |_| Obstacle::WrongName { why: format!("'{}' can be nobody's", name.escape_debug()) };
        ServerName::try_from(name.clone()).map_err(|bad| self.barred(no_name(bad)))
    }

    pub(super) fn barred(&self, obstacle: Obstacle) -> Trouble {
        Trouble::Barred { address: self.config.address(), obstacle }
    }

    fn not_reached(&self, error: io::Error) -> Trouble {
        Trouble::NotReached { address: self.config.address(), source: Arc::new(error) }
    }
}
