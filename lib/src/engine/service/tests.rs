//! A line over streams that do what real ones do only now and then.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex, split};

use super::Obstacle;
use super::command::Command;
use super::dial::Stream;
use super::error::Trouble;
use super::line::{CALL, Line};
use super::reply;
use crate::engine::Failure;

fn line() -> Line {
    Line::new("host:1".to_owned(), Rc::default())
}

/// Takes everything, and sends nothing before it is flushed.
struct Buffering<W> {
    taken: Vec<u8>,
    to: W,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Buffering<W> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.taken.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while !this.taken.is_empty() {
            let sent = ready!(Pin::new(&mut this.to).poll_write(cx, &this.taken))?;
            this.taken.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn what_an_encrypted_stream_has_taken_is_also_sent() {
    let (near, mut far) = duplex(8);
    let (reader, writer) = split(near);
    let writer = Box::new(Buffering { taken: Vec::new(), to: writer });
    let line = line();
    let answer = line.ask(&Command::ping(), CALL);
    let service = async {
        let mut ping = [0; 14];
        far.read_exact(&mut ping).await.expect("it is asked");
        far.write_all(b"+PONG\r\n").await.expect("it listens");
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        biased;
        answer = answer => answer.expect("it is answered"),
        trouble = line.drive(Stream { reader: Box::new(reader), writer, is_encrypted: true }) => panic!("{trouble}"),
        () = service => unreachable!("it does not end"),
    };
    assert!(reply::is_text(&answer, "PONG"));
}

/// Cannot be written to; why, can still be read.
struct Gone;

impl AsyncWrite for Gone {
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

impl AsyncRead for Gone {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
    }
}

#[tokio::test]
async fn why_nothing_can_be_sent_any_more_is_read_before_the_line_is_given_up() {
    let line = line();
    drop(line.ask(&Command::ping(), CALL));
    let trouble = line.drive(Stream { reader: Box::new(Gone), writer: Box::new(Gone), is_encrypted: true }).await;
    assert!(matches!(trouble, Trouble::Barred { obstacle: Obstacle::CertificateNeeded, .. }), "{trouble}");
}

/// Of what an encrypted stream has failed to write, some may have been sent. Of what another has, nothing.
#[tokio::test]
async fn a_question_that_may_have_been_sent_may_have_taken_effect() {
    for is_encrypted in [true, false] {
        let line = line();
        let answer = line.ask(&Command::ping(), CALL);
        let reader = Box::new(tokio::io::empty());
        drop(line.drive(Stream { reader, writer: Box::new(Gone), is_encrypted }).await);
        match answer.await {
            Err(Failure::Unavailable(why)) => assert_eq!(why.may_have_taken_effect, is_encrypted),
            other => panic!("{other:?}"),
        }
    }
}
