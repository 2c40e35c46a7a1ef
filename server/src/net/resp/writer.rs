//! The replies to one client, in the order of its requests.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;

use super::reply_queue::ReplyQueue;
use super::transport::Transport;
use super::{Form, Reply, Version};
use crate::net::audit::Audit;
use crate::net::unread::{Account, Charge};
use crate::node::Principal;

/// The replies to one client.
pub(in crate::net) struct ReplyWriter {
    transport: Rc<Transport>,
    /// How many bytes the client may leave unread before it is disconnected.
    longest_backlog: usize,
    inner: RefCell<Inner>,
    /// Signalled when bytes could not be written at once, and when the connection is to be closed.
    pub(in crate::net) changed: Notify,
}

struct Inner {
    principal: Principal,
    audit: Arc<Audit>,
    account: Account,
    /// The unread bytes, if they are more than the client's fair share.
    charge: Charge,
    replies: ReplyQueue,
    /// Since when the client has read nothing.
    stalled_at: Option<Instant>,
    is_to_be_flushed: bool,
    is_awaited: bool,
    is_closed: bool,
}

impl ReplyWriter {
    pub(super) fn new(
        transport: Rc<Transport>,
        longest_backlog: usize,
        principal: Principal,
        audit: Arc<Audit>,
        account: &Account,
    ) -> ReplyWriter {
        let inner = Inner {
            principal,
            audit,
            account: account.clone(),
            charge: account.charge(0),
            replies: ReplyQueue::default(),
            stalled_at: None,
            is_to_be_flushed: false,
            is_awaited: false,
            is_closed: false,
        };
        ReplyWriter { transport, longest_backlog, inner: RefCell::new(inner), changed: Notify::new() }
    }

    pub(in crate::net) fn principal(&self) -> Principal {
        self.inner.borrow().principal.clone()
    }

    pub(super) fn is_authenticated(&self) -> bool {
        !matches!(self.inner.borrow().principal, Principal::Unauthenticated)
    }

    /// Sets the principal after a login.
    pub(super) fn set_principal(&self, principal: Principal, audit: Arc<Audit>, account: &Account) {
        let mut inner = self.inner.borrow_mut();
        (inner.principal, inner.audit, inner.account) = (principal, audit, account.clone());
        inner.charge = account.charge(0);
        inner.charge_unread();
    }

    pub(super) fn audit(&self) -> Arc<Audit> {
        self.inner.borrow().audit.clone()
    }

    /// Drops all unsent replies, and sends nothing more.
    pub(in crate::net) fn close(&self) {
        self.inner.borrow_mut().close();
    }

    /// Wakes the connection, which closes, if its user was changed or removed.
    pub(in crate::net) fn check_principal(&self) {
        if self.inner.borrow().principal.is_revoked() {
            self.changed.notify_one();
        }
    }

    pub(super) fn version(&self) -> Version {
        self.inner.borrow().replies.version
    }

    pub(super) fn set_version(&self, version: Version) {
        self.inner.borrow_mut().replies.version = version;
    }

    /// Returns whether refusals and events have details, for programs.
    pub(in crate::net) fn is_detailed(&self) -> bool {
        self.inner.borrow().replies.is_detailed
    }

    pub(super) fn set_detailed(&self, is_detailed: bool) {
        self.inner.borrow_mut().replies.is_detailed = is_detailed;
    }

    /// Reserves the place of the next request's reply, and returns its number.
    pub(super) fn begin(&self) -> u64 {
        self.inner.borrow_mut().replies.begin()
    }

    /// Sets the form of a reply.
    pub(super) fn set_form(&self, number: u64, form: Form) {
        self.inner.borrow_mut().replies.set_form(number, form);
    }

    /// Returns the form of a reply that is known now.
    pub(in crate::net) fn take_form(&self, number: u64) -> Option<Form> {
        self.inner.borrow_mut().replies.take_form(number)
    }

    /// Answers a request. Returns whether the caller has to flush this writer.
    pub(in crate::net) fn answer(&self, number: u64, reply: &Reply) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.is_closed {
            return false;
        }
        inner.replies.answer(number, reply);
        self.enforce_limit(&mut inner);
        inner.mark_for_flush()
    }

    /// Sends a push to a client that understands it. Returns whether the caller has to flush this writer.
    pub(in crate::net) fn push(&self, reply: &Reply) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.is_closed || !inner.replies.push(reply) {
            return false;
        }
        self.enforce_limit(&mut inner);
        inner.mark_for_flush()
    }

    /// Sends a message to a client that has subscribed to it. Returns whether the caller has to flush this writer.
    pub(in crate::net) fn send_message(&self, message: &Reply) -> bool {
        let mut inner = self.inner.borrow_mut();
        if inner.is_closed {
            return false;
        }
        inner.replies.add_message(message);
        self.enforce_limit(&mut inner);
        inner.mark_for_flush()
    }

    /// Writes what can be written now.
    pub(in crate::net) fn flush(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.is_to_be_flushed = false;
        self.write(&mut inner);
        if self.has_unsent(&inner) || inner.is_closed || inner.is_awaited {
            self.changed.notify_one();
        }
    }

    fn write(&self, inner: &mut Inner) {
        let before = inner.replies.out.len();
        let written = loop {
            if inner.replies.out.is_empty() {
                break self.transport.try_flush();
            }
            match self.transport.try_write(&inner.replies.out) {
                Ok(written) if written == inner.replies.out.len() => inner.replies.out.clear(),
                Ok(written) => drop(inner.replies.out.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if written.is_err() {
            inner.close();
        }
        inner.charge_unread();
        if !self.has_unsent(inner) {
            inner.stalled_at = None;
        } else if inner.stalled_at.is_none() || inner.replies.out.len() < before {
            inner.stalled_at = Some(Instant::now());
        }
    }

    /// Disconnects a client that leaves too much unread.
    fn enforce_limit(&self, inner: &mut Inner) {
        inner.charge_unread();
        if self.is_over(inner) && !inner.is_closed {
            self.write(inner);
            if self.is_over(inner) {
                inner.audit.does_not_read(inner.replies.unread());
                inner.close();
                self.changed.notify_one();
            }
        }
    }

    fn is_over(&self, inner: &Inner) -> bool {
        inner.replies.unread() > self.longest_backlog || inner.account.is_over(inner.replies.unread())
    }

    fn has_unsent(&self, inner: &Inner) -> bool {
        !inner.replies.out.is_empty() || self.transport.has_unsent()
    }

    pub(super) fn has_unsent_bytes(&self) -> bool {
        self.has_unsent(&self.inner.borrow())
    }

    /// Returns since when the client has read nothing.
    pub(super) fn stalled_at(&self) -> Option<Instant> {
        self.inner.borrow().stalled_at
    }

    /// Returns whether the connection must be closed, also because its user was changed or removed.
    pub(super) fn is_closed(&self) -> bool {
        let inner = self.inner.borrow();
        inner.is_closed || inner.principal.is_revoked()
    }

    /// Sets whether every flush is signalled.
    pub(super) fn set_awaited(&self, is_awaited: bool) {
        self.inner.borrow_mut().is_awaited = is_awaited;
    }

    /// Returns the number of requests whose replies cannot be sent yet.
    pub(super) fn unanswered(&self) -> usize {
        self.inner.borrow().replies.unanswered()
    }

    /// Returns whether the reply to this request is known.
    pub(super) fn is_answered(&self, number: u64) -> bool {
        self.inner.borrow().replies.is_answered(number)
    }

    /// Returns the number of unsent bytes.
    pub(super) fn unread(&self) -> usize {
        self.inner.borrow().replies.unread()
    }
}

impl Inner {
    /// Charges the unread bytes to the client's account. A fair share is not charged.
    fn charge_unread(&mut self) {
        let unread = self.replies.unread();
        self.charge.set(if unread > self.account.fair() { unread } else { 0 });
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.replies.clear();
        self.charge.set(0);
    }

    /// Marks the writer as to be flushed. Returns whether it was not marked before.
    fn mark_for_flush(&mut self) -> bool {
        !std::mem::replace(&mut self.is_to_be_flushed, true)
    }
}
