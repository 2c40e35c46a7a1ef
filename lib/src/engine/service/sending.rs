//! What goes out on a stream, and how much of it has gone.

use std::io;

use tokio::io::AsyncWriteExt;

use super::dial::Writer;

pub(super) struct Sending {
    writer: Writer,
    /// Such a stream must be flushed, and does not know how much of what it failed to send was sent.
    is_encrypted: bool,
    bytes: Vec<u8>,
    sent: usize,
    is_flushed: bool,
}

impl Sending {
    pub(super) fn new(writer: Writer, is_encrypted: bool) -> Sending {
        Sending { writer, is_encrypted, bytes: Vec::new(), sent: 0, is_flushed: true }
    }

    /// Where to put what goes out next, once the stream has taken everything else.
    pub(super) fn next(&mut self) -> Option<&mut Vec<u8>> {
        if self.sent < self.bytes.len() {
            return None;
        }
        self.bytes.clear();
        self.sent = 0;
        Some(&mut self.bytes)
    }

    /// Whether there is nothing to do.
    pub(super) fn is_done(&self) -> bool {
        self.sent == self.bytes.len() && self.is_flushed
    }

    /// Sends some of it; returns how many bytes more may now have been sent.
    ///
    /// # Cancellation
    ///
    /// Nothing was taken that is not counted.
    pub(super) async fn send(&mut self) -> (usize, io::Result<()>) {
        let rest = &self.bytes[self.sent..];
        if rest.is_empty() {
            let flushed = self.writer.flush().await;
            self.is_flushed = true;
            return (0, flushed);
        }
        match self.writer.write(rest).await {
            Ok(taken) => {
                self.sent += taken;
                self.is_flushed = !self.is_encrypted;
                (taken, Ok(()))
            }
            Err(error) if self.is_encrypted => (rest.len(), Err(error)),
            Err(error) => (0, Err(error)),
        }
    }
}
