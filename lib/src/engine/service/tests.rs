//! Tests of a connection over streams that fail or buffer bytes.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use palisade_core::{Event, LockName};
use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex, split};

use super::ServiceBackend;
use super::connection::{CALL_TIMEOUT, Connection, Stream};
use super::wire::{self, Command};
use crate::engine::remote::{ClientState, Peer, SecurityError};
use crate::engine::{Failure, Watched};

fn connection() -> Connection {
    Connection::new(Peer::new("the service", "host:1".to_owned()), Rc::default())
}

fn ping() -> Command {
    Command::new(&["PING"])
}

/// A writer that sends no bytes before it is flushed.
struct Buffering<W> {
    buffered: Vec<u8>,
    inner: W,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Buffering<W> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.buffered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while !this.buffered.is_empty() {
            let sent = ready!(Pin::new(&mut this.inner).poll_write(cx, &this.buffered))?;
            this.buffered.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn an_encrypted_stream_is_flushed_after_a_write() {
    let (near, mut far) = duplex(8);
    let (reader, writer) = split(near);
    let writer = Box::new(Buffering { buffered: Vec::new(), inner: writer });
    let connection = connection();
    let answer = connection.request(&ping(), CALL_TIMEOUT);
    let service = async {
        let mut ping = [0; 14];
        far.read_exact(&mut ping).await.expect("a command");
        far.write_all(b"+PONG\r\n").await.expect("an open stream");
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        biased;
        answer = answer => answer.expect("a reply"),
        error = connection.drive(Stream { reader: Box::new(reader), writer, is_encrypted: true }) => panic!("{error}"),
        () = service => unreachable!("it does not end"),
    };
    assert!(wire::is_text(&answer, "PONG"));
}

/// A stream that fails every write, with a TLS alert as the reason to be read.
struct FailingStream;

impl AsyncWrite for FailingStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for FailingStream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
    }
}

#[tokio::test]
async fn the_reason_for_a_failed_write_is_read_before_the_connection_breaks() {
    let connection = connection();
    drop(connection.request(&ping(), CALL_TIMEOUT));
    let error = connection
        .drive(Stream { reader: Box::new(FailingStream), writer: Box::new(FailingStream), is_encrypted: true })
        .await;
    let Failure::Unavailable(failure) = error.failure(false) else { panic!("{error}") };
    let cause = failure.source.as_ref().and_then(|source| source.downcast_ref());
    assert_eq!(cause, Some(&SecurityError::CertificateNeeded), "{error}");
}

/// An encrypted stream may have sent a part of a failed write, a plain one has not.
#[tokio::test]
async fn a_command_that_may_have_been_sent_may_have_taken_effect() {
    for is_encrypted in [true, false] {
        let connection = connection();
        let answer = connection.request(&ping(), CALL_TIMEOUT);
        let reader = Box::new(tokio::io::empty());
        drop(connection.drive(Stream { reader, writer: Box::new(FailingStream), is_encrypted }).await);
        match answer.await {
            Err(no_reply) => assert_eq!(no_reply.may_have_taken_effect, is_encrypted),
            other => panic!("{other:?}"),
        }
    }
}

/// The service answers in the order of the commands, and pushes at once: an event may come before the reply to the watch.
#[tokio::test]
async fn watchers_learn_that_they_missed_events_before_the_first_event_of_a_new_connection() {
    let event = Event::Resized { lock: LockName::new("a").expect("a name"), limit: 3 };
    let json = serde_json::to_string(&event).expect("an event");
    let push = format!(">3\r\n$5\r\nevent\r\n%0\r\n${}\r\n{json}\r\n", json.len());
    for is_attached in [false, true] {
        let client: Rc<ClientState<ServiceBackend>> = Rc::default();
        let mut watch = client.watch("");
        let connection = Connection::new(Peer::new("the service", "host:1".to_owned()), client);
        if is_attached {
            connection.attached();
        }
        let (near, mut far) = duplex(4096);
        far.write_all(push.as_bytes()).await.expect("an open stream");
        drop(far);
        let (reader, writer) = split(near);
        let stream = Stream { reader: Box::new(reader), writer: Box::new(writer), is_encrypted: false };
        drop(connection.drive(stream).await);
        let expected = [Watched::Missed, Watched::Event(event.clone())];
        for expected in &expected[usize::from(is_attached)..] {
            assert_eq!(watch.recv().await.as_ref(), Some(expected));
        }
    }
}
