//! One line to the service: what is asked in one turn goes out in one write, answers come in the order of the
//! questions, and a line that is silent for too long is given up.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use palisade_core::Ttl;
use redis_protocol::resp3::decode::complete::decode_bytes_mut;
use redis_protocol::resp3::types::BytesFrame;
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::Obstacle;
use super::command::Command;
use super::dial::{Reader, Stream};
use super::error::{Denied, Trouble};
use super::lasting::{Lasting, WaitKey};
use super::reply::{self, Unexpected};
use super::sending::Sending;
use crate::engine::lines::InTheWay;
use crate::engine::{Failure, Opened};

/// A call that is not answered for so long fails, and its line with it.
pub(super) const CALL: Duration = Duration::from_secs(5);
/// A line on which nothing was heard for so long is asked whether anybody is there.
const QUIET: Duration = Duration::from_secs(5);
/// The longest answer that is waited for. The service cuts off a client that is so far behind.
const LONGEST_ANSWER: usize = 32 << 20;
/// How long to read on when nothing can be sent any more.
const LAST_WORDS: Duration = Duration::from_millis(250);
const READ_STEP: usize = 16 << 10;

/// A line.
pub(super) struct Line {
    address: String,
    lasting: Rc<Lasting>,
    inner: RefCell<Inner>,
    /// There is something to send.
    wake: Notify,
}

struct Inner {
    /// What goes out with the next write.
    out: Vec<u8>,
    /// How many bytes have been taken from there so far, and how many of them the system has taken.
    taken: u64,
    written: u64,
    questions: VecDeque<Question>,
    /// When to look whether an answer is overdue.
    look_at: Instant,
    heard_at: Instant,
    broken: Option<Trouble>,
}

/// Something that was asked and not answered yet.
struct Question {
    then: Then,
    asked_at: Instant,
    due_at: Instant,
    /// Where it ends among all bytes of this line: it cannot have been understood before all of it was sent.
    end: u64,
}

/// What to do with an answer.
enum Then {
    Answer(oneshot::Sender<Result<BytesFrame, Failure>>),
    /// A session is known here before anything that is said about it.
    Open(Ttl, oneshot::Sender<Result<Opened, Failure>>),
    /// A wait outlives its line.
    Wait(WaitKey),
    Nothing,
}

impl Then {
    fn fail(self, trouble: &Trouble, may_have_taken_effect: bool) {
        // Whoever has gone need not be told.
        match self {
            Then::Answer(to) => drop(to.send(Err(trouble.failure(may_have_taken_effect)))),
            Then::Open(_, to) => drop(to.send(Err(trouble.failure(may_have_taken_effect)))),
            Then::Wait(_) | Then::Nothing => {}
        }
    }
}

impl Line {
    pub(super) fn new(address: String, lasting: Rc<Lasting>) -> Line {
        let now = Instant::now();
        let inner = Inner {
            out: Vec::new(),
            taken: 0,
            written: 0,
            questions: VecDeque::new(),
            look_at: now + QUIET,
            heard_at: now,
            broken: None,
        };
        Line { address, lasting, inner: RefCell::new(inner), wake: Notify::new() }
    }

    /// Asks something. It is sent whether or not anybody awaits the answer.
    pub(super) fn ask(
        &self,
        command: &Command,
        within: Duration,
    ) -> impl Future<Output = Result<BytesFrame, Failure>> + use<> {
        let (to, answer) = oneshot::channel();
        self.send(command, Then::Answer(to), within);
        answered(answer)
    }

    /// Opens a session.
    pub(super) async fn open(&self, command: &Command, ttl: Ttl) -> Result<Opened, Failure> {
        let (to, answer) = oneshot::channel();
        self.send(command, Then::Open(ttl, to), CALL);
        answered(answer).await
    }

    /// Asks for what a wait waits for; the wait itself is told.
    pub(super) fn wait(&self, key: WaitKey, command: &Command) {
        self.send(command, Then::Wait(key), CALL);
    }

    fn send(&self, command: &Command, then: Then, within: Duration) {
        let mut inner = self.inner.borrow_mut();
        if let Some(trouble) = &inner.broken {
            return then.fail(trouble, false);
        }
        command.encode(&mut inner.out);
        let (asked_at, end) = (Instant::now(), inner.taken + inner.out.len() as u64);
        let due_at = asked_at + within;
        inner.questions.push_back(Question { then, asked_at, due_at, end });
        inner.look_at = inner.look_at.min(due_at);
        self.wake.notify_one();
    }

    /// Sends and listens until the line breaks, and says why it did.
    pub(super) async fn drive(&self, stream: Stream) -> Trouble {
        let trouble = match self.talk(stream).await {
            Ok(never) => match never {},
            Err(trouble) => trouble,
        };
        let mut inner = self.inner.borrow_mut();
        inner.broken = Some(trouble.clone());
        let (questions, written) = (std::mem::take(&mut inner.questions), inner.written);
        drop(inner);
        for question in questions {
            question.then.fail(&trouble, question.end <= written);
        }
        trouble
    }

    async fn talk(&self, stream: Stream) -> Result<std::convert::Infallible, Trouble> {
        let Stream { mut reader, writer, is_encrypted } = stream;
        let mut sending = Sending::new(writer, is_encrypted);
        let mut incoming = BytesMut::new();
        let mut look = pin!(sleep_until(self.inner.borrow().look_at));
        loop {
            if let Some(next) = sending.next() {
                self.take(next);
            }
            let look_at = self.inner.borrow().look_at;
            if look.deadline() != look_at {
                look.as_mut().reset(look_at);
            }
            incoming.reserve(READ_STEP);
            // Whether an answer is overdue is asked last: what has arrived meanwhile is read first.
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                (written, outcome) = sending.send(), if !sending.is_done() => {
                    self.inner.borrow_mut().written += written as u64;
                    if let Err(error) = outcome {
                        return Err(self.last_words(reader, incoming).await.unwrap_or(self.broken(error)));
                    }
                }
                read = reader.read_buf(&mut incoming) => self.read(read, &mut incoming)?,
                () = &mut look => self.look()?,
            }
        }
    }

    fn read(&self, read: io::Result<usize>, incoming: &mut BytesMut) -> Result<(), Trouble> {
        match read {
            Ok(0) => Err(Trouble::Closed { address: self.address.clone() }),
            Ok(_) => self.listen(incoming),
            Err(error) => Err(self.broken(error)),
        }
    }

    /// Nothing can be sent any more. What was said before, and why, may still be there to be read.
    async fn last_words(&self, mut reader: Reader, mut incoming: BytesMut) -> Option<Trouble> {
        let reading = async {
            loop {
                let read = reader.read_buf(&mut incoming).await;
                if let Err(trouble) = self.read(read, &mut incoming) {
                    return trouble;
                }
            }
        };
        timeout(LAST_WORDS, reading).await.ok().filter(Trouble::is_for_good)
    }

    fn broken(&self, error: io::Error) -> Trouble {
        Trouble::of_stream(self.address.clone(), error)
    }

    fn take(&self, sending: &mut Vec<u8>) {
        let mut inner = self.inner.borrow_mut();
        std::mem::swap(&mut inner.out, sending);
        inner.taken += sending.len() as u64;
    }

    /// Gives up when an answer is overdue; when nothing has been heard for long, asks for a sign of life.
    fn look(&self) -> Result<(), Trouble> {
        let now = Instant::now();
        let mut inner = self.inner.borrow_mut();
        let overdue =
            inner.questions.iter().filter(|question| question.due_at <= now).map(|question| question.asked_at);
        if let Some(asked_at) = overdue.min() {
            return Err(Trouble::Silent { address: self.address.clone(), waited: now - asked_at });
        }
        let next_due = inner.questions.iter().map(|question| question.due_at).min();
        let quiet_at = inner.heard_at + QUIET;
        inner.look_at = next_due.unwrap_or(quiet_at.max(now + QUIET / 2));
        if next_due.is_none() && quiet_at <= now {
            drop(inner);
            self.send(&Command::ping(), Then::Nothing, CALL);
        }
        Ok(())
    }

    /// Takes in what has arrived whole.
    fn listen(&self, incoming: &mut BytesMut) -> Result<(), Trouble> {
        self.inner.borrow_mut().heard_at = Instant::now();
        let garbled = |what| Trouble::Garbled { address: self.address.clone(), what };
        loop {
            match decode_bytes_mut(incoming) {
                Ok(Some((frame, _, _))) => self.heed(frame).map_err(|Unexpected(what)| garbled(what))?,
                Ok(None) if incoming.len() > LONGEST_ANSWER => return Err(garbled("an endless answer".to_owned())),
                Ok(None) => return Ok(()),
                // The begin of an alert: what is encrypted does not understand what is not.
                Err(_) if incoming.starts_with(&[0x15, 0x03]) => {
                    return Err(Trouble::Barred { address: self.address.clone(), obstacle: Obstacle::Encrypted });
                }
                Err(error) => return Err(garbled(error.to_string())),
            }
        }
    }

    fn heed(&self, frame: BytesFrame) -> Result<(), Unexpected> {
        if let BytesFrame::Push { data, .. } = &frame {
            for prefix in self.lasting.heed(super::push::read(data)?) {
                self.send(&Command::unwatch(&prefix), Then::Nothing, CALL);
            }
            return Ok(());
        }
        let question = self.inner.borrow_mut().questions.pop_front();
        let Some(question) = question else { return Err(Unexpected::instead_of("nothing", &frame)) };
        match question.then {
            Then::Answer(to) => drop(to.send(Ok(frame))),
            Then::Open(ttl, to) => self.opened(frame, ttl, to)?,
            Then::Wait(key) => self.waited(frame, key)?,
            Then::Nothing => {}
        }
        Ok(())
    }

    fn opened(
        &self,
        frame: BytesFrame,
        ttl: Ttl,
        to: oneshot::Sender<Result<Opened, Failure>>,
    ) -> Result<(), Unexpected> {
        let opened = match reply::accepted(frame) {
            Ok(map) => Ok(self.lasting.opened(reply::session(reply::field(&map, "session")?)?, ttl)),
            Err(denied) => Err(denied.into()),
        };
        if let Err(Ok(opened)) = to.send(opened) {
            // Nobody will keep it alive.
            self.lasting.forget(opened.session);
        }
        Ok(())
    }

    fn waited(&self, frame: BytesFrame, key: WaitKey) -> Result<(), Unexpected> {
        match reply::accepted(frame) {
            Ok(queued) if reply::is_text(&queued, "QUEUED") => {}
            Ok(map) => self.lasting.settle(key, Ok(reply::token(reply::field(&map, "token")?)?)),
            Err(denied) => {
                if let Denied::NotAllowed(_) | Denied::NotNow(_) = denied {
                    // It may have begun to wait on an earlier line, when it was allowed or there was room.
                    self.send(&Command::cancel(key.0, key.1), Then::Nothing, CALL);
                }
                self.lasting.settle(key, Err(denied.into()));
            }
        }
        Ok(())
    }
}

async fn answered<T>(answer: oneshot::Receiver<Result<T, Failure>>) -> Result<T, Failure> {
    match answer.await {
        Ok(answer) => answer,
        // Questions are dropped unanswered only together with the keeper's runtime.
        Err(_) => std::future::pending().await,
    }
}
