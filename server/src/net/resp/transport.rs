//! The bytes of a connection, with or without TLS, read and written without waiting.

use std::cell::RefCell;
use std::io::{self, Read, Write};

use rustix::net::RecvFlags;
use rustls::ServerConnection;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::net::hangup;

/// A connection that was accepted.
pub(super) struct Transport {
    stream: TcpStream,
    tls: Option<RefCell<ServerConnection>>,
}

/// The socket below TLS, in the form that rustls wants.
struct Raw<'a>(&'a TcpStream);

impl Read for Raw<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(self.0, buffer)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the bytes that have arrived. If they do not fill the buffer, there are no more: clearing the readiness saves
/// another system call that would block.
fn receive(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    let mut came = 0;
    let all = stream.try_io(Interest::READABLE, || {
        (_, came) = rustix::net::recv(stream, &mut *buffer, RecvFlags::empty())?;
        if came > 0 && came < buffer.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match all {
        Err(error) if came == 0 => Err(error),
        _ => Ok(came),
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Transport {
    pub(super) fn plain(stream: TcpStream) -> Transport {
        Transport { stream, tls: None }
    }

    pub(super) fn encrypted(stream: TcpStream, tls: ServerConnection) -> Transport {
        Transport { stream, tls: Some(RefCell::new(tls)) }
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.stream.readable().await
    }

    /// Waits until the connection was reset.
    pub(super) async fn reset(&self) {
        hangup::reset(&self.stream).await;
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Reads the bytes that have arrived; 0 when the client has closed its side.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return receive(&self.stream, buffer) };
        let mut tls = tls.borrow_mut();
        loop {
            match tls.reader().read(buffer) {
                // A client may close without a TLS alert: commands have lengths, so a truncated one is noticed.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if would_block(&error) => {}
                other => return other,
            }
            // At the end of the stream the reader above tells a TLS close from a truncation.
            tls.read_tls(&mut Raw(&self.stream))?;
            let processed = tls.process_new_packets();
            flush(&mut tls, &self.stream)?;
            processed.map_err(io::Error::other)?;
        }
    }

    /// Writes what can be written now.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.stream.try_write(bytes) };
        let mut tls = tls.borrow_mut();
        flush(&mut tls, &self.stream)?;
        if tls.wants_write() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = tls.writer().write(bytes)?;
        flush(&mut tls, &self.stream)?;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Writes buffered TLS records.
    pub(super) fn try_flush(&self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| flush(&mut tls.borrow_mut(), &self.stream))
    }

    /// Returns whether TLS records are still buffered.
    pub(super) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.borrow().wants_write())
    }

    /// Closes the sending side.
    pub(super) fn close_write(&self) {
        if let Some(tls) = &self.tls {
            tls.borrow_mut().send_close_notify();
            drop(self.try_flush());
        }
        // A client that has disconnected needs no notice.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write);
    }
}

fn flush(tls: &mut ServerConnection, stream: &TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut Raw(stream)) {
            Err(error) if would_block(&error) => break,
            other => other?,
        };
    }
    Ok(())
}
