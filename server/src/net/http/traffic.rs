//! Limits and counts requests, so that requests that wait never keep out a release.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::client::Client;
use super::problem::{Code, Problem};
use super::{Bounds, input};
use crate::net::unread::SHARE;
use crate::node::RequestContext;

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    connections: AtomicU64,
    counts: Mutex<Counts>,
}

/// Requests by method, path and status; problems by code.
#[derive(Debug, Default, Clone)]
pub(super) struct Counts {
    pub(super) requests: BTreeMap<(String, String, u16), u64>,
    pub(super) problems: BTreeMap<&'static str, u64>,
}

/// A connection that is counted until this is dropped.
pub(super) struct OpenConnection(Arc<Traffic>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Traffic {
    pub(super) fn connected(self: Arc<Traffic>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self)
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, method: String, path: String, response: &Response) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.requests.entry((method, path, response.status().as_u16())).or_default() += 1;
        if let Some(Code(code)) = response.extensions().get() {
            *counts.problems.entry(code).or_default() += 1;
        }
    }
}

/// Counts a request under its documented path. Other paths count as `other`, so that clients cannot create metrics.
pub(super) async fn count(State(traffic): State<Arc<Traffic>>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let (method, path) = match path {
        Some(path) => (request.method().to_string(), path),
        None => ("other".to_owned(), "other".to_owned()),
    };
    let response = next.run(request).await;
    let method = if response.status() == 405 { "other".to_owned() } else { method };
    traffic.count(method, path, &response);
    response
}

/// Limits the requests of one kind, of one user and of all.
#[derive(Clone)]
pub(super) struct RequestLimit {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    total: usize,
    by_user: HashMap<String, usize>,
}

/// The permit of one request. A watch keeps a clone after its response has begun.
#[derive(Clone)]
pub(super) struct RequestPermit {
    _shared: Arc<SharedPermit>,
}

struct SharedPermit {
    limit: RequestLimit,
    user: Option<String>,
    client: Arc<Client>,
}

impl RequestLimit {
    pub(super) fn new(most: usize) -> RequestLimit {
        RequestLimit { most, taken: Arc::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that has arrived. Until it is answered its connection is busy, and no other client can displace it.
    fn take(&self, user: Option<&str>, client: Arc<Client>) -> Result<RequestPermit, Problem> {
        let mut taken = self.taken();
        let share = (self.most / SHARE).max(1);
        if taken.total >= self.most {
            return Err(Problem::overloaded(self.most));
        }
        if let Some(user) = user {
            let of_user = taken.by_user.entry(user.to_owned()).or_default();
            if *of_user >= share {
                return Err(Problem::over_share(user, share));
            }
            *of_user += 1;
        }
        taken.total += 1;
        drop(taken);
        client.set_idle(false);
        Ok(RequestPermit {
            _shared: Arc::new(SharedPermit { limit: self.clone(), user: user.map(str::to_owned), client }),
        })
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        let mut taken = self.limit.taken();
        taken.total -= 1;
        if let Some(user) = &self.user
            && let Some(of_user) = taken.by_user.get_mut(user)
        {
            *of_user -= 1;
            if *of_user == 0 {
                taken.by_user.remove(user);
            }
        }
        drop(taken);
        self.client.set_idle(true);
    }
}

/// Admits a request once all of it has arrived: a slow one does not count.
pub(super) async fn admit(
    State((limit, bounds)): State<(RequestLimit, Bounds)>,
    request: Request,
    next: Next,
) -> Response {
    let mut request = match input::read_body(request, &bounds).await {
        Ok(request) => request,
        Err(problem) => return problem.into_response(),
    };
    let context = request.extensions().get::<RequestContext>();
    let user = context.and_then(|context| context.principal.user_name()).map(str::to_owned);
    let Some(client) = request.extensions().get::<Arc<Client>>().cloned() else {
        return Problem::no_auth().into_response();
    };
    match limit.take(user.as_deref(), client) {
        Ok(permit) => {
            request.extensions_mut().insert(permit.clone());
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}
