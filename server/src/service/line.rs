//! A client's line: answers go out in the order of the questions, whatever is known first.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::resp::{Reply, Version};

/// How much may wait to be read by a client. One that is further behind is cut off.
const LONGEST_BACKLOG: usize = 16 << 20;

/// A client's line.
pub(super) struct Line {
    stream: Rc<TcpStream>,
    inner: RefCell<Inner>,
    /// Something is to be written that could not be written at once, or the line is to be closed.
    pub(super) behind: Notify,
}

struct Inner {
    version: Version,
    is_detailed: bool,
    /// The answers that are awaited or cannot go out yet.
    answers: VecDeque<Option<Vec<u8>>>,
    /// The number of the first of them.
    first: u64,
    out: Vec<u8>,
    is_listed: bool,
    is_closed: bool,
}

impl Line {
    pub(super) fn new(stream: Rc<TcpStream>) -> Line {
        let inner = Inner {
            version: Version::Two,
            is_detailed: false,
            answers: VecDeque::new(),
            first: 0,
            out: Vec::new(),
            is_listed: false,
            is_closed: false,
        };
        Line { stream, inner: RefCell::new(inner), behind: Notify::new() }
    }

    pub(super) fn version(&self) -> Version {
        self.inner.borrow().version
    }

    pub(super) fn set_version(&self, version: Version) {
        self.inner.borrow_mut().version = version;
    }

    /// Whether refusals and events come with their details, for programs.
    pub(super) fn is_detailed(&self) -> bool {
        self.inner.borrow().is_detailed
    }

    pub(super) fn set_detailed(&self, is_detailed: bool) {
        self.inner.borrow_mut().is_detailed = is_detailed;
    }

    /// A place for the answer to a question that was just asked.
    pub(super) fn ask(&self) -> u64 {
        let mut inner = self.inner.borrow_mut();
        inner.answers.push_back(None);
        inner.first + inner.answers.len() as u64 - 1
    }

    /// The answer to a question. Returns whether the line is to be flushed by whoever collects such lines.
    pub(super) fn answer(&self, question: u64, reply: &Reply) -> bool {
        let mut inner = self.inner.borrow_mut();
        let Inner { version, answers, first, out, .. } = &mut *inner;
        if question == *first {
            reply.encode(*version, out);
            answers.pop_front();
            *first += 1;
            while let Some(Some(_)) = answers.front() {
                if let Some(Some(bytes)) = answers.pop_front() {
                    out.extend_from_slice(&bytes);
                    *first += 1;
                }
            }
        } else if let Some(place) = answers.get_mut((question - *first) as usize) {
            let mut bytes = Vec::new();
            reply.encode(*version, &mut bytes);
            *place = Some(bytes);
        }
        inner.list()
    }

    /// Says something unasked.
    pub(super) fn push(&self, reply: &Reply) -> bool {
        let mut inner = self.inner.borrow_mut();
        let Inner { version, out, .. } = &mut *inner;
        reply.encode(*version, out);
        inner.list()
    }

    /// Writes what can be written now.
    pub(super) fn flush(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.is_listed = false;
        while !inner.out.is_empty() {
            match self.stream.try_write(&inner.out) {
                Ok(written) if written == inner.out.len() => inner.out.clear(),
                Ok(written) => drop(inner.out.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    inner.out.clear();
                    inner.is_closed = true;
                }
            }
        }
        if inner.out.len() > LONGEST_BACKLOG {
            inner.is_closed = true;
        }
        if !inner.out.is_empty() || inner.is_closed {
            self.behind.notify_one();
        }
    }

    pub(super) fn is_behind(&self) -> bool {
        !self.inner.borrow().out.is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.inner.borrow().is_closed
    }

    /// How many answers it waits for.
    pub(super) fn open_questions(&self) -> usize {
        self.inner.borrow().answers.len()
    }
}

impl Inner {
    /// Whether it is not on the list of lines to be flushed yet; then it is from now on.
    fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.is_listed, true)
    }
}
