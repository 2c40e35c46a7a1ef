//! Held locks.

use std::sync::Arc;

use futures_util::FutureExt;
use palisade::{
    BootInstant, EfficiencyGuard, Error, Leadership, LockGuard, Loss, Permit, ReadGuard, SessionId, Standing,
    WriteGuard,
};
use pyo3::prelude::*;

use crate::error::{class, exception, loss_object, misuse};
use crate::operation::{Operation, seconds};
use crate::owned::Owned;

/// A guard of each kind.
pub(crate) enum Held {
    Lock(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Leadership(Leadership),
    Efficiency(EfficiencyGuard),
}

/// Calls a method that all guards have.
macro_rules! on_each {
    ($held:expr, $guard:ident => $call:expr) => {
        match $held {
            Held::Lock($guard) => $call,
            Held::Read($guard) => $call,
            Held::Write($guard) => $call,
            Held::Permit($guard) => $call,
            Held::Leadership($guard) => $call,
            Held::Efficiency($guard) => $call,
        }
    };
}

impl Held {
    fn with_token(&self) -> Option<&palisade::Guard> {
        match self {
            Held::Lock(guard) => Some(guard),
            Held::Read(guard) => Some(guard),
            Held::Write(guard) => Some(guard),
            Held::Permit(guard) => Some(guard),
            Held::Leadership(guard) => Some(guard),
            Held::Efficiency(_) => None,
        }
    }

    fn standing(&self) -> Standing {
        on_each!(self, guard => guard.standing())
    }

    fn safe_until(&self) -> BootInstant {
        on_each!(self, guard => guard.safe_until())
    }

    fn session(&self) -> SessionId {
        on_each!(self, guard => guard.session())
    }

    async fn release(&self) -> Result<(), Error> {
        on_each!(self, guard => guard.release().await)
    }

    async fn lost(&self) -> Loss {
        on_each!(self, guard => guard.lost().await)
    }

    async fn jeopardy(&self) -> Standing {
        on_each!(self, guard => guard.jeopardy().await)
    }

    async fn renewed(&self, seen: BootInstant) -> BootInstant {
        on_each!(self, guard => guard.renewed(seen).await)
    }
}

/// A held lock, several locks at once, or permits.
#[pyclass(frozen)]
pub(crate) struct Guard {
    held: Owned<Arc<Held>>,
}

impl Guard {
    pub(crate) fn new(held: Held) -> Guard {
        Guard { held: Owned::new(Arc::new(held)) }
    }

    fn with_token<'a>(&'a self, py: Python<'_>) -> PyResult<&'a palisade::Guard> {
        let guard = self.held.get(py)?.with_token();
        guard.ok_or_else(|| misuse(py, "Misuse", "an efficiency lock has no token: two clients may hold it at once"))
    }
}

#[pymethods]
impl Guard {
    fn token(&self, py: Python<'_>) -> PyResult<u64> {
        self.with_token(py)?.token().map(palisade::Token::get).map_err(|error| exception(py, &error))
    }

    fn ensure(&self, py: Python<'_>, time: f64) -> PyResult<()> {
        self.with_token(py)?.ensure(seconds(time, "time")?).map_err(|error| exception(py, &error))
    }

    fn session(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.held.get(py)?.session().get())
    }

    /// Returns the end of the lease in seconds of CLOCK_BOOTTIME.
    fn safe_until(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.held.get(py)?.safe_until().since_boot().as_secs_f64())
    }

    fn standing(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        standing(py, &self.held.get(py)?.standing())
    }

    fn release(&self, py: Python<'_>) -> PyResult<Operation> {
        let held = self.held.get(py)?.clone();
        Ok(Operation::new(async move { held.release().await }, |py, ()| Ok(py.None())))
    }

    /// Waits until it is lost.
    fn lost(&self, py: Python<'_>) -> PyResult<Operation> {
        let held = self.held.get(py)?.clone();
        Ok(Operation::new(async move { Ok(held.lost().await) }, |py, loss| loss_object(py, &loss).map(Bound::unbind)))
    }

    /// Waits until it is in jeopardy or lost.
    fn jeopardy(&self, py: Python<'_>) -> PyResult<Operation> {
        let held = self.held.get(py)?.clone();
        Ok(Operation::new(async move { Ok(held.jeopardy().await) }, |py, now| standing(py, &now)))
    }

    /// Waits for the next renewal, and returns the new end of the lease.
    fn renewed(&self, py: Python<'_>) -> PyResult<Operation> {
        let held = self.held.get(py)?.clone();
        let seen = held.safe_until();
        Ok(Operation::new(async move { Ok(held.renewed(seen).await) }, |py, until| {
            Ok(until.since_boot().as_secs_f64().into_pyobject(py)?.into_any().unbind())
        }))
    }

    #[pyo3(signature = (lock=None))]
    fn signed_token(&self, py: Python<'_>, lock: Option<String>) -> PyResult<Operation> {
        self.with_token(py)?;
        let held = self.held.get(py)?.clone();
        let sign = async move {
            match (held.with_token(), lock) {
                (Some(guard), None) => guard.signed_token().await.map(Some),
                (Some(guard), Some(lock)) => guard.signed_token_for(&lock).await.map(Some),
                (None, _) => Ok(None),
            }
        };
        Ok(Operation::new(sign, |py, signed| {
            Ok(signed.map(|signed| signed.as_str().to_owned()).into_pyobject(py)?.into_any().unbind())
        }))
    }

    /// Publishes the leader's value.
    fn publish(&self, py: Python<'_>, value: Vec<u8>) -> PyResult<Operation> {
        let held = self.held.get(py)?.clone();
        let publish = async move {
            match &*held {
                Held::Leadership(leadership) => leadership.publish(value).await,
                _ => Ok(()),
            }
        };
        Ok(Operation::new(publish, |py, ()| Ok(py.None())))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A thread that waits for the loss keeps the Rust guard alive. Python has dropped its own, so the lock is released now.
        if let Some(held) = self.held.if_here()
            && Arc::strong_count(held) > 1
        {
            let _ = held.release().now_or_never();
        }
    }
}

fn standing(py: Python<'_>, standing: &Standing) -> PyResult<Py<PyAny>> {
    let (state, loss) = match standing {
        Standing::Held => ("held", None),
        Standing::Jeopardy { .. } => ("jeopardy", None),
        Standing::Lost(loss) => ("lost", Some(loss_object(py, loss)?)),
    };
    class(py, "Standing")?.call1((state, loss)).map(Bound::unbind)
}
