//! What goes through: counted, and bounded, so that those who wait never keep out those who release.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Code, Problem};

/// What has gone through since the start.
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
pub(super) struct Counted(Arc<Traffic>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Traffic {
    pub(super) fn connected(self: Arc<Traffic>) -> Counted {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Counted(self)
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

/// Counts a request, under the path that is documented and never under what a client made up.
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

/// How many requests of a kind there may be at once.
#[derive(Clone)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    most: usize,
}

/// A place that a request takes. One that goes on after its answer has begun keeps a copy.
#[derive(Clone)]
pub(super) struct Place {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Places {
    pub(super) fn new(most: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(most)), most }
    }
}

/// Lets a request in, if there is a place.
pub(super) async fn admit(State(places): State<Places>, mut request: Request, next: Next) -> Response {
    let Ok(permit) = places.free.try_acquire_owned() else {
        return Problem::overloaded(places.most).into_response();
    };
    let place = Place { _permit: Arc::new(permit) };
    request.extensions_mut().insert(place.clone());
    next.run(request).await
}
