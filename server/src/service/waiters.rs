//! How many places in queues each user has, and all of them together.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use palisade_core::{Cursor, Machine, SessionId, Ticket};

use super::who::Refused;

/// Counts places in queues.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    most: usize,
    most_per_user: usize,
    total: Rc<Cell<usize>>,
    by_user: HashMap<Rc<str>, Rc<Cell<usize>>>,
    queued: HashMap<Ticket, Places>,
}

/// Places in queues, counted until they are dropped.
#[derive(Debug)]
pub(super) struct Places {
    count: usize,
    total: Rc<Cell<usize>>,
    of_user: Option<Rc<Cell<usize>>>,
}

impl Waiters {
    pub(super) fn new(most: usize, most_per_user: usize) -> Waiters {
        Waiters { most, most_per_user, ..Waiters::default() }
    }

    /// Places for a request that is about to be made, until it is answered. Those of a request that is then queued are
    /// counted by [`queued`](Waiters::queued).
    ///
    /// # Errors
    ///
    /// There would be too many.
    pub(super) fn ask(&mut self, user: Option<&str>, count: usize) -> Result<Places, Refused> {
        let places = self.places(user, count);
        let is_over = |sum: &Rc<Cell<usize>>, most: usize| sum.get() > most;
        if let (Some(of_user), Some(user)) = (&places.of_user, user)
            && is_over(of_user, self.most_per_user)
        {
            let most = self.most_per_user;
            let why = format!("user '{user}' has {most} places in queues, and may have no more; nothing was queued");
            return Err(Refused::OverBound(why));
        }
        if is_over(&places.total, self.most) {
            let why =
                format!("all clients have {} places in queues, and there are no more; nothing was queued", self.most);
            return Err(Refused::OverBound(why));
        }
        Ok(places)
    }

    fn places(&mut self, user: Option<&str>, count: usize) -> Places {
        let of_user = user.map(|user| match self.by_user.get(user) {
            Some(sum) => sum.clone(),
            None => self.by_user.entry(user.into()).or_default().clone(),
        });
        for sum in [Some(&self.total), of_user.as_ref()].into_iter().flatten() {
            sum.set(sum.get() + count);
        }
        Places { count, total: self.total.clone(), of_user }
    }

    /// A request was queued.
    pub(super) fn queued(&mut self, ticket: Ticket, user: Option<&str>, count: usize) {
        let places = self.places(user, count);
        self.queued.insert(ticket, places);
    }

    /// A request waits no longer.
    pub(super) fn left(&mut self, ticket: Ticket) {
        self.queued.remove(&ticket);
    }

    /// Counts those that are there.
    pub(super) fn count<'a>(&mut self, machine: &Machine, user: impl Fn(SessionId) -> Option<&'a str>) {
        self.queued.clear();
        for (_, lock) in machine.locks(Cursor(0)) {
            for waiter in lock.waiters() {
                let places = self.queued.remove(&waiter.ticket).map_or(0, |places| places.count);
                self.queued(waiter.ticket, user(waiter.session), places + 1);
            }
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for sum in [Some(&self.total), self.of_user.as_ref()].into_iter().flatten() {
            sum.set(sum.get() - self.count);
        }
    }
}
