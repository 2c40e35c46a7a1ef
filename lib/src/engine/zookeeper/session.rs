//! Sessions: each is one client of ZooKeeper, whose nodes go with it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Acquire, Ending, RequestNo, SessionId, Token, Want};
use tokio::task::AbortHandle;
use zookeeper_client::Client;

use super::calls::Store;
use super::wire::{ClaimData, LockData};
use crate::BootInstant;

/// How many cancelled requests a session remembers that have not arrived.
const CANCELLED: usize = 10_000;

pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) client: Rc<Client>,
    pub(super) label: String,
    pub(super) ttl: Duration,
    /// When the last keep-alive was answered.
    pub(super) renewed_at: Cell<BootInstant>,
    /// Requests that wait or are held.
    pub(super) requests: RefCell<HashMap<RequestNo, Rc<Request>>>,
    /// Requests that were cancelled before they arrived.
    pub(super) cancelled: RefCell<BTreeSet<RequestNo>>,
    /// The requests of the grants.
    pub(super) grants: RefCell<HashMap<Token, RequestNo>>,
    /// Grants that were released by force before their acquire was answered.
    pub(super) early_losses: RefCell<HashMap<Token, Ending>>,
    pub(super) tasks: RefCell<Vec<AbortHandle>>,
    /// Whether its tasks have been ended. A new one would keep its client, and so its nodes, alive.
    pub(super) is_over: Cell<bool>,
}

/// An acquire that waits or is held.
pub(super) struct Request {
    pub(super) number: RequestNo,
    /// Its locks, sorted by name.
    pub(super) wants: Vec<Want>,
    /// The parents of its claims, in the order of the wants.
    pub(super) parents: Vec<String>,
    pub(super) acquire: Acquire,
    pub(super) data: RefCell<ClaimData>,
    /// Whether the creation of its claims was sent.
    pub(super) is_sent: Cell<bool>,
    pub(super) is_cancelled: Cell<bool>,
    /// The paths of its claims, in the order of the wants, once they are known.
    pub(super) nodes: RefCell<Vec<String>>,
    /// The transaction that created its claims, once it is known.
    pub(super) czxid: Cell<i64>,
    /// What its locks' nodes contained at the last read.
    pub(super) lock_data: RefCell<Vec<LockData>>,
    /// The token, once it is granted.
    pub(super) token: Cell<Option<Token>>,
    pub(super) waiting: RefCell<Option<AbortHandle>>,
}

impl Session {
    pub(super) fn new(id: SessionId, client: Client, label: String, ttl: Duration) -> Session {
        Session {
            id,
            client: Rc::new(client),
            label,
            ttl,
            renewed_at: Cell::new(BootInstant::now()),
            requests: RefCell::default(),
            cancelled: RefCell::default(),
            grants: RefCell::default(),
            early_losses: RefCell::default(),
            tasks: RefCell::default(),
            is_over: Cell::new(false),
        }
    }

    /// Returns the request with this number, or begins it.
    pub(super) fn request(&self, number: RequestNo, acquire: &Acquire, store: &Store) -> Rc<Request> {
        let mut requests = self.requests.borrow_mut();
        let begin = || {
            let mut wants = acquire.wants.to_vec();
            wants.sort_unstable_by(|a, b| a.lock.cmp(&b.lock));
            let (is_set, offset) = (wants.len() > 1, store.offset().number);
            let parts = wants.iter().filter(|_| is_set).map(|want| want.lock.as_str().to_owned()).collect();
            let mut data = ClaimData { label: self.label.clone(), offset, parts, ..ClaimData::default() };
            if let Some(value) = &acquire.value {
                data.publish(value);
            }
            Rc::new(Request {
                number,
                parents: wants.iter().map(|want| store.paths.claims(&want.lock)).collect(),
                wants,
                acquire: acquire.clone(),
                data: RefCell::new(data),
                is_sent: Cell::new(false),
                is_cancelled: Cell::new(self.cancelled.borrow_mut().remove(&number)),
                nodes: RefCell::default(),
                czxid: Cell::default(),
                lock_data: RefCell::default(),
                token: Cell::new(None),
                waiting: RefCell::default(),
            })
        };
        requests.entry(number).or_insert_with(begin).clone()
    }

    /// Notes that a request that has not arrived is cancelled.
    pub(super) fn note_cancelled(&self, number: RequestNo) {
        let mut cancelled = self.cancelled.borrow_mut();
        cancelled.insert(number);
        if cancelled.len() > CANCELLED {
            cancelled.pop_first();
        }
    }

    pub(super) fn forget(&self, number: RequestNo) {
        let request = self.requests.borrow_mut().remove(&number);
        if let Some(token) = request.and_then(|request| request.token.get()) {
            self.grants.borrow_mut().remove(&token);
        }
    }

    /// Ends the tasks of the session, which use its client.
    pub(super) fn abort_tasks(&self) {
        self.is_over.set(true);
        for task in self.tasks.borrow_mut().drain(..) {
            task.abort();
        }
        for request in self.requests.borrow().values() {
            request.stop_waiting();
        }
    }
}

impl Request {
    pub(super) fn is_set(&self) -> bool {
        self.wants.len() > 1
    }

    pub(super) fn stop_waiting(&self) {
        if let Some(task) = self.waiting.borrow_mut().take() {
            task.abort();
        }
    }
}
