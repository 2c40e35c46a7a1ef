//! Connections of simulated clients: bytes that the world carries.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_util::future::LocalBoxFuture;
use palisade::simulation::{Network, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// The client's end of a connection, shared with the world.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    incoming: VecDeque<u8>,
    is_reset: bool,
    reader: Option<Waker>,
    outgoing: Vec<u8>,
    is_closed: bool,
}

pub(super) type SharedPipe = Rc<RefCell<Pipe>>;

impl Pipe {
    /// Gives the client bytes.
    pub(super) fn deliver(&mut self, bytes: &[u8]) {
        self.incoming.extend(bytes);
        self.wake();
    }

    /// Breaks the connection.
    pub(super) fn reset(&mut self) {
        self.is_reset = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Takes what the client has sent.
    pub(super) fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Whether the client has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

struct ReadEnd(SharedPipe);

struct WriteEnd(SharedPipe);

impl AsyncRead for ReadEnd {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.0.borrow_mut();
        if pipe.incoming.is_empty() {
            if pipe.is_reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            pipe.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = pipe.incoming.len().min(buffer.remaining());
        let (first, second) = pipe.incoming.as_slices();
        let first = &first[..first.len().min(count)];
        buffer.put_slice(first);
        buffer.put_slice(&second[..count - first.len()]);
        pipe.incoming.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl Drop for ReadEnd {
    fn drop(&mut self) {
        self.0.borrow_mut().is_closed = true;
    }
}

impl AsyncWrite for WriteEnd {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.borrow_mut();
        if pipe.is_reset {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        pipe.outgoing.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns both ends of a connection.
pub(super) fn stream(pipe: &SharedPipe) -> Stream {
    Stream { reader: Box::new(ReadEnd(pipe.clone())), writer: Box::new(WriteEnd(pipe.clone())) }
}

/// An attempt of a client to connect to a port.
pub(super) struct Attempt {
    pub(super) port: u16,
    pub(super) outcome: oneshot::Sender<io::Result<Stream>>,
}

/// The attempts that the world has not seen yet.
#[derive(Clone, Default)]
pub(super) struct Dials(Rc<RefCell<Vec<Attempt>>>);

impl Dials {
    pub(super) fn take(&self) -> Vec<Attempt> {
        self.0.take()
    }
}

impl Network for Dials {
    fn connect(&self, _: &str, port: u16) -> LocalBoxFuture<'static, io::Result<Stream>> {
        let (outcome, connected) = oneshot::channel();
        self.0.borrow_mut().push(Attempt { port, outcome });
        // An attempt that the world has dropped is never answered.
        Box::pin(async {
            match connected.await {
                Ok(connected) => connected,
                Err(_) => std::future::pending().await,
            }
        })
    }
}
