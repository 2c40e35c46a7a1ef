//! What goes through: counted, and bounded, so that those who wait never keep out those who release.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::principal::Visitor;
use super::problem::{Code, Problem};
use super::{Bounds, input};
use crate::service::{Asker, SHARE};

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

/// How many requests of a kind there may be at once, of one user and of all.
#[derive(Clone)]
pub(super) struct Places {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    total: usize,
    by_user: HashMap<String, usize>,
}

/// A place that a request takes. One that goes on after its answer has begun keeps a copy.
#[derive(Clone)]
pub(super) struct Place {
    _taken: Arc<TakenPlace>,
}

struct TakenPlace {
    places: Places,
    user: Option<String>,
    visitor: Arc<Visitor>,
}

impl Places {
    pub(super) fn new(most: usize) -> Places {
        Places { most, taken: Arc::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a request that has arrived. Its connection is busy meanwhile, and nobody else's to have.
    fn take(&self, user: Option<&str>, visitor: Arc<Visitor>) -> Result<Place, Problem> {
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
        visitor.set_idle(false);
        Ok(Place { _taken: Arc::new(TakenPlace { places: self.clone(), user: user.map(str::to_owned), visitor }) })
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
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
        self.visitor.set_idle(true);
    }
}

/// Lets a request in once all of it has arrived, if there is a place: a slow one takes none.
pub(super) async fn admit(
    State((places, bounds)): State<(Places, Bounds)>,
    request: Request,
    next: Next,
) -> Response {
    let mut request = match input::arrived(request, &bounds).await {
        Ok(request) => request,
        Err(problem) => return problem.into_response(),
    };
    let user =
        request.extensions().get::<Asker>().and_then(|asker| asker.who.user().map(|user| user.name().to_owned()));
    let Some(visitor) = request.extensions().get::<Arc<Visitor>>().cloned() else {
        return Problem::no_auth().into_response();
    };
    match places.take(user.as_deref(), visitor) {
        Ok(place) => {
            request.extensions_mut().insert(place.clone());
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}
