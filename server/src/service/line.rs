//! A client's line: answers go out in the order of the questions, whatever is known first.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;

use super::audit::{Audit, Origin, Protocol};
use super::transport::Transport;
use super::unread::{Account, Charge};
use super::who::Who;
use crate::resp::{Reply, Version};

/// A client's line.
pub(super) struct Line {
    transport: Rc<Transport>,
    /// How many bytes may wait to be read by the client. One that is further behind is cut off.
    longest_backlog: usize,
    inner: RefCell<Inner>,
    /// Something is to be written that could not be written at once, or the line is to be closed.
    pub(super) behind: Notify,
}

struct Inner {
    who: Who,
    audit: Arc<Audit>,
    account: Account,
    /// What is kept for the client, where that is more than all could have.
    charge: Charge,
    version: Version,
    is_detailed: bool,
    /// The answers that are awaited or cannot go out yet.
    answers: VecDeque<Option<Vec<u8>>>,
    /// Bytes of those that cannot go out yet.
    held_back: usize,
    /// The number of the first of them.
    first: u64,
    out: Vec<u8>,
    /// Since when the client has read nothing of it.
    stalled_at: Option<Instant>,
    is_listed: bool,
    is_awaited: bool,
    is_closed: bool,
}

impl Line {
    pub(super) fn new(
        transport: Rc<Transport>,
        longest_backlog: usize,
        who: Who,
        audit: Arc<Audit>,
        account: &Account,
    ) -> Line {
        let inner = Inner {
            who,
            audit,
            account: account.clone(),
            charge: account.charge(0),
            version: Version::Two,
            is_detailed: false,
            answers: VecDeque::new(),
            held_back: 0,
            first: 0,
            out: Vec::new(),
            stalled_at: None,
            is_listed: false,
            is_awaited: false,
            is_closed: false,
        };
        Line { transport, longest_backlog, inner: RefCell::new(inner), behind: Notify::new() }
    }

    pub(super) fn who(&self) -> Who {
        self.inner.borrow().who.clone()
    }

    /// From now on this client is at its end.
    pub(super) fn set_who(&self, who: Who, audit: Arc<Audit>, account: &Account) {
        let mut inner = self.inner.borrow_mut();
        (inner.who, inner.audit, inner.account) = (who, audit, account.clone());
        inner.charge = account.charge(0);
        inner.note_kept();
    }

    pub(super) fn audit(&self) -> Arc<Audit> {
        self.inner.borrow().audit.clone()
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { protocol: Protocol::Resp, audit: self.audit() }
    }

    /// Nothing more goes over this line.
    pub(super) fn close(&self) {
        self.inner.borrow_mut().close();
    }

    /// Has the connection's end noticed, if its user has to say anew who it is.
    pub(super) fn look_who(&self) {
        if self.inner.borrow().who.is_gone() {
            self.behind.notify_one();
        }
    }

    /// Whether this client may be shown this lock.
    pub(super) fn sees(&self, lock: &str) -> bool {
        let inner = self.inner.borrow();
        if inner.who.is_gone() {
            self.behind.notify_one();
            return false;
        }
        inner.who.sees(lock)
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
        if inner.is_closed {
            return false;
        }
        let Inner { version, answers, held_back, first, out, .. } = &mut *inner;
        if question == *first {
            reply.encode(*version, out);
            answers.pop_front();
            *first += 1;
            while let Some(Some(_)) = answers.front() {
                if let Some(Some(bytes)) = answers.pop_front() {
                    *held_back -= bytes.len();
                    out.extend_from_slice(&bytes);
                    *first += 1;
                }
            }
        } else if let Some(place) = answers.get_mut((question - *first) as usize) {
            let mut bytes = Vec::new();
            reply.encode(*version, &mut bytes);
            *held_back += bytes.len();
            *place = Some(bytes);
        }
        self.bound(&mut inner);
        inner.list()
    }

    /// Says something unasked.
    pub(super) fn push(&self, reply: &Reply) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.is_closed {
            return false;
        }
        let Inner { version, out, .. } = &mut *inner;
        reply.encode(*version, out);
        self.bound(&mut inner);
        inner.list()
    }

    /// Writes what can be written now.
    pub(super) fn flush(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.is_listed = false;
        self.write(&mut inner);
        if self.is_owing(&inner) || inner.is_closed || inner.is_awaited {
            self.behind.notify_one();
        }
    }

    fn write(&self, inner: &mut Inner) {
        let before = inner.out.len();
        let written = loop {
            if inner.out.is_empty() {
                break self.transport.try_flush();
            }
            match self.transport.try_write(&inner.out) {
                Ok(written) if written == inner.out.len() => inner.out.clear(),
                Ok(written) => drop(inner.out.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if written.is_err() {
            inner.close();
        }
        inner.note_kept();
        if !self.is_owing(inner) {
            inner.stalled_at = None;
        } else if inner.stalled_at.is_none() || inner.out.len() < before {
            inner.stalled_at = Some(Instant::now());
        }
    }

    /// Cuts off a client for which too much is kept.
    fn bound(&self, inner: &mut Inner) {
        inner.note_kept();
        if self.is_over(inner) && !inner.is_closed {
            self.write(inner);
            if self.is_over(inner) {
                inner.audit.does_not_read(inner.kept());
                inner.close();
                self.behind.notify_one();
            }
        }
    }

    fn is_over(&self, inner: &Inner) -> bool {
        inner.kept() > self.longest_backlog || inner.account.is_over(inner.kept())
    }

    fn is_owing(&self, inner: &Inner) -> bool {
        !inner.out.is_empty() || self.transport.is_behind()
    }

    pub(super) fn is_behind(&self) -> bool {
        self.is_owing(&self.inner.borrow())
    }

    /// Since when there is something to read for a client that reads nothing.
    pub(super) fn stalled_at(&self) -> Option<Instant> {
        self.inner.borrow().stalled_at
    }

    /// Whether nothing more goes over this line. It ends, too, when its user has to say anew who it is.
    pub(super) fn is_closed(&self) -> bool {
        let inner = self.inner.borrow();
        inner.is_closed || inner.who.is_gone()
    }

    /// Whether it is to be made known when something went out, for whoever waits for that.
    pub(super) fn set_awaited(&self, is_awaited: bool) {
        self.inner.borrow_mut().is_awaited = is_awaited;
    }

    /// How many answers it waits for.
    pub(super) fn open_questions(&self) -> usize {
        self.inner.borrow().answers.len()
    }

    /// How many bytes of answers are kept for it.
    pub(super) fn kept(&self) -> usize {
        self.inner.borrow().kept()
    }
}

impl Inner {
    fn kept(&self) -> usize {
        self.out.len() + self.held_back
    }

    /// Counts what is kept. What any client may have need not be counted.
    fn note_kept(&mut self) {
        let kept = self.kept();
        self.charge.set(if kept > self.account.fair() { kept } else { 0 });
    }

    /// Nothing more goes over this line.
    fn close(&mut self) {
        self.is_closed = true;
        self.out = Vec::new();
        for answer in self.answers.iter_mut().filter(|answer| answer.is_some()) {
            *answer = Some(Vec::new());
        }
        self.held_back = 0;
        self.charge.set(0);
    }

    /// Whether it is not on the list of lines to be flushed yet; then it is from now on.
    fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.is_listed, true)
    }
}
