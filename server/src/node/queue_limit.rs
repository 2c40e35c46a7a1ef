//! Limits on places in queues: of each user, and of all users together.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use palisade_core::{Cursor, Machine, SessionId, Ticket};

use super::response::Refused;

/// Counts places in queues. A request for several locks takes one in each queue.
#[derive(Debug, Default)]
pub(super) struct QueueLimit {
    most: usize,
    most_per_user: usize,
    total: Rc<Cell<usize>>,
    by_user: HashMap<Rc<str>, Rc<Cell<usize>>>,
    queued: HashMap<Ticket, QueuePlaces>,
}

/// Places in queues, counted until they are dropped.
#[derive(Debug)]
pub(super) struct QueuePlaces {
    count: usize,
    total: Rc<Cell<usize>>,
    of_user: Option<Rc<Cell<usize>>>,
}

impl QueueLimit {
    pub(super) fn new(most: usize, most_per_user: usize) -> QueueLimit {
        QueueLimit { most, most_per_user, ..QueueLimit::default() }
    }

    /// Takes places for a request until it is answered. If it is then queued, [`queued`](QueueLimit::queued) counts them.
    ///
    /// # Errors
    ///
    /// There would be too many.
    pub(super) fn take(&mut self, user: Option<&str>, count: usize) -> Result<QueuePlaces, Refused> {
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

    fn places(&mut self, user: Option<&str>, count: usize) -> QueuePlaces {
        let of_user = user.map(|user| match self.by_user.get(user) {
            Some(sum) => sum.clone(),
            None => self.by_user.entry(user.into()).or_default().clone(),
        });
        for sum in [Some(&self.total), of_user.as_ref()].into_iter().flatten() {
            sum.set(sum.get() + count);
        }
        QueuePlaces { count, total: self.total.clone(), of_user }
    }

    /// Counts a request that was queued.
    pub(super) fn queued(&mut self, ticket: Ticket, user: Option<&str>, count: usize) {
        let places = self.places(user, count);
        self.queued.insert(ticket, places);
    }

    /// Stops counting a request that has left its queues.
    pub(super) fn left(&mut self, ticket: Ticket) {
        self.queued.remove(&ticket);
    }

    /// Counts all requests in the machine's queues.
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

impl Drop for QueuePlaces {
    fn drop(&mut self) {
        for sum in [Some(&self.total), self.of_user.as_ref()].into_iter().flatten() {
            sum.set(sum.get() - self.count);
        }
    }
}
