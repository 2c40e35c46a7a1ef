//! The resource of a request.

use std::fmt;
use std::sync::Arc;

use ::http::Method;
use ::http::request::Parts;
use palisade_core::{BadName, LockName};

use super::path;

/// The resource, and so the mark, of a request. The owner of the service chooses it, because all writes to the same data must
/// share one mark.
#[derive(Clone)]
pub struct Scope {
    kind: Kind,
    open: Option<Arc<Exception>>,
}

#[derive(Clone)]
enum Kind {
    One(LockName),
    PerPath,
    PerLock,
    By(Arc<Choice>),
}

type Choice = dyn Fn(&Parts) -> LockName + Send + Sync;
type Exception = dyn Fn(&Parts) -> bool + Send + Sync;

impl Scope {
    /// Makes the whole service one resource, protected by one lock. The safe choice.
    ///
    /// # Errors
    ///
    /// It is no name of a lock.
    pub fn one(name: &str) -> Result<Scope, BadName> {
        Ok(Scope::of(Kind::One(LockName::new(name)?)))
    }

    /// Makes each path a resource: the lock `orders/42` protects `/orders/42`, with any query. Correct only if no two
    /// paths lead to the same data. A path has one spelling, and any other is refused: a service might take it for the
    /// same resource. There are no empty segments, no slash at the end, no parameters (`;`), no encoded slashes; the
    /// characters that RFC 3986 allows in a path stand for themselves, and all others are encoded, in upper case.
    pub fn per_path() -> Scope {
        Scope::of(Kind::PerPath)
    }

    /// Makes each lock that clients name in the header a resource. The fence trusts clients to name the lock that
    /// protects the data of their request.
    pub fn per_lock() -> Scope {
        Scope::of(Kind::PerLock)
    }

    /// Chooses the resource by a function.
    pub fn by(choice: impl Fn(&Parts) -> LockName + Send + Sync + 'static) -> Scope {
        Scope::of(Kind::By(Arc::new(choice)))
    }

    /// Exempts requests from the fence, for example health checks.
    #[must_use]
    pub fn except(self, is_open: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Scope {
        Scope { open: Some(Arc::new(is_open)), ..self }
    }

    fn of(kind: Kind) -> Scope {
        Scope { kind, open: None }
    }

    /// Returns whether a request needs no fence. `OPTIONS` never does: it reads no data.
    pub(super) fn is_open(&self, parts: &Parts) -> bool {
        parts.method == Method::OPTIONS || self.open.as_ref().is_some_and(|is_open| is_open(parts))
    }

    /// Returns the resource of a request.
    pub(super) fn resource(&self, parts: &Parts, named: Option<&LockName>) -> Result<LockName, String> {
        let found = match &self.kind {
            Kind::One(name) => name.clone(),
            Kind::By(choice) => choice(parts),
            Kind::PerPath => LockName::new(path::name(parts.uri.path())?).map_err(|error| error.to_string())?,
            Kind::PerLock => {
                return named
                    .cloned()
                    .ok_or_else(|| "the lock must be named here: `34; lock=\"orders/42\"`".to_owned());
            }
        };
        match named {
            Some(named) if *named != found => {
                Err(format!("the lock '{named}' does not protect this; '{found}' does"))
            }
            _ => Ok(found),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::One(name) => f.debug_tuple("One").field(name).finish(),
            Kind::PerPath => f.write_str("PerPath"),
            Kind::PerLock => f.write_str("PerLock"),
            Kind::By(_) => f.write_str("By"),
        }
    }
}
