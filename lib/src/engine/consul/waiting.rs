//! Waiting for changes of claims, with a bounded number of TCP connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

use super::backend::RETRY_PAUSE;
use super::connection::Connection;
use crate::engine::claims::queue::Blocked;
use crate::engine::remote::{RemoteConnection, jittered};

/// How many waits have a blocking query to themselves, and so a TCP connection. By default, Consul accepts 200 connections of
/// one host.
const QUERIES: usize = 16;
/// How long a query waits. Afterwards the claim is read again, whether or not anything has changed.
const WAIT: Duration = Duration::from_secs(60);

/// The waits of a client. The first ones have a query each, for the claim that they wait for. The others share a query for all
/// claims.
pub(super) struct Waits {
    queries: Semaphore,
    /// The prefix of all claims.
    all: String,
    shared: RefCell<Weak<SharedQuery>>,
}

/// The versions of all claims.
type Versions = Rc<BTreeMap<String, i64>>;

/// A query for all claims. It ends when no wait uses it.
struct SharedQuery {
    versions: watch::Receiver<Versions>,
    connection: Weak<Connection>,
    task: AbortHandle,
}

impl Drop for SharedQuery {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Waits {
    pub(super) fn new(all: String) -> Waits {
        Waits { queries: Semaphore::new(QUERIES), all, shared: RefCell::default() }
    }

    /// Waits until the versions of the keys that a claim waits for are no longer these, a query fails, or a while has passed.
    pub(super) async fn until_changed(&self, connection: &Rc<Connection>, blocked: &Blocked, seen: &[(String, i64)]) {
        let (Blocked::Claim(prefix) | Blocked::Any { claims: prefix, .. }) = blocked;
        let Ok(_permit) = self.queries.try_acquire() else {
            return self.until_shared_change(connection, prefix, seen).await;
        };
        let query = match blocked {
            Blocked::Claim(_) => "",
            Blocked::Any { .. } => "recurse",
        };
        let mut index = seen.iter().map(|(_, changed)| *changed).max().unwrap_or(0);
        let changed = async {
            while let Ok((pairs, next)) = connection.next_change(prefix, query, index, WAIT).await {
                if pairs.versions(prefix) != seen {
                    return;
                }
                index = next;
            }
            sleep(jittered(RETRY_PAUSE)).await;
        };
        drop(timeout(WAIT, changed).await);
    }

    async fn until_shared_change(&self, connection: &Rc<Connection>, prefix: &str, seen: &[(String, i64)]) {
        let shared = self.shared_query(connection);
        let mut versions = shared.versions.clone();
        let is_other = |versions: &Versions| {
            let now = versions.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
            !now.map(|(key, changed)| (key.as_str(), *changed)).eq(seen.iter().map(|(key, at)| (key.as_str(), *at)))
        };
        drop(timeout(WAIT, versions.wait_for(is_other)).await);
        // The query may be behind the read that `seen` is from.
        sleep(jittered(RETRY_PAUSE)).await;
    }

    fn shared_query(&self, connection: &Rc<Connection>) -> Rc<SharedQuery> {
        if let Some(shared) = self.shared.borrow().upgrade()
            && shared.connection.ptr_eq(&Rc::downgrade(connection))
        {
            return shared;
        }
        let (sender, versions) = watch::channel(Versions::default());
        let (all, queried) = (self.all.clone(), connection.clone());
        let task = spawn_local(async move {
            let mut index = 0;
            while !queried.is_broken() {
                match queried.next_change(&all, "recurse", index, WAIT).await {
                    Ok((pairs, next)) => {
                        sender.send_replace(Rc::new(pairs.versions(&all).into_iter().collect()));
                        index = next;
                    }
                    Err(_) => sleep(jittered(RETRY_PAUSE)).await,
                }
            }
        });
        let (connection, task) = (Rc::downgrade(connection), task.abort_handle());
        let shared = Rc::new(SharedQuery { versions, connection, task });
        self.shared.replace(Rc::downgrade(&shared));
        shared
    }
}
