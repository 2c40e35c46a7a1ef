//! A socket whose close can be detected while it is read and written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::net::hangup;

/// A connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Socket(Arc<TcpStream>);

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Socket {
        Socket(Arc::new(stream))
    }

    /// Waits until the client has closed its side, however much of what it sent is still unread.
    pub(super) async fn closed(&self) {
        hangup::closed(&self.0).await;
    }

    /// Waits until the connection was reset.
    pub(super) async fn reset(&self) {
        hangup::reset(&self.0).await;
    }

    fn poll_io<T>(
        &self,
        context: &mut Context<'_>,
        poll: impl Fn(&TcpStream, &mut Context<'_>) -> Poll<io::Result<()>>,
        mut io: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(poll(&self.0, context))?;
            match io(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = |stream: &TcpStream| {
            let count = stream.try_read(buffer.initialize_unfilled())?;
            buffer.advance(count);
            Ok(())
        };
        self.poll_io(context, TcpStream::poll_read_ready, read)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_io(context, TcpStream::poll_write_ready, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(context, TcpStream::poll_write_ready, |stream| stream.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write).map_err(Into::into))
    }
}
