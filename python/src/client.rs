//! Clients, and the requests that they send.

use std::time::Duration;

use palisade::engine::Raised;
use palisade::{Error, Options, Palisade, Request, SessionId, Token};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::guard::{Guard, Held};
use crate::operation::{Operation, seconds};
use crate::owned::Owned;
use crate::view;
use crate::watch::{Observer, Watch};

/// One session at an engine, and the thread that keeps it alive.
#[pyclass(frozen)]
pub(crate) struct Client {
    palisade: Owned<Palisade>,
}

/// Connects to the engine that a URL names.
#[pyfunction]
#[pyo3(signature = (url, ttl, label, drift_per_mille, observer))]
pub(crate) fn connect(
    url: String,
    ttl: Option<f64>,
    label: Option<String>,
    drift_per_mille: Option<u32>,
    observer: bool,
) -> PyResult<Operation> {
    let mut options = Options::new();
    if let Some(ttl) = ttl {
        options = options.ttl(seconds(ttl, "ttl")?);
    }
    if let Some(label) = label {
        options = options.label(label);
    }
    if let Some(drift) = drift_per_mille {
        options = options.drift_per_mille(drift);
    }
    if observer {
        options = options.observer();
    }
    Ok(Operation::new(async move { options.connect(&url).await }, |py, palisade| {
        Ok(Py::new(py, Client { palisade: Owned::new(palisade) })?.into_any())
    }))
}

/// How long an acquire waits.
enum Wait {
    Forever,
    No,
    Within(Duration),
}

async fn acquire<G: From<palisade::Guard>>(
    request: Request<G>,
    wait: Wait,
    is_for_efficiency: bool,
    held: fn(G) -> Held,
) -> Result<Option<Held>, Error> {
    match is_for_efficiency {
        true => send(request.efficiency(), wait, Held::Efficiency).await,
        false => send(request, wait, held).await,
    }
}

async fn send<G: From<palisade::Guard>>(
    request: Request<G>,
    wait: Wait,
    held: fn(G) -> Held,
) -> Result<Option<Held>, Error> {
    Ok(match wait {
        Wait::Forever => Some(request.acquire().await?),
        Wait::No => request.try_acquire().await?,
        Wait::Within(time) => request.acquire_within(time).await?,
    }
    .map(held))
}

#[pymethods]
impl Client {
    fn guarantees(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        view::guarantees(py, self.palisade.get(py)?.guarantees())
    }

    /// Returns the acquire of a request that Python has put together. Without a guard it is None: the lock is held by others.
    #[pyo3(signature = (kind, names, permits, value, delay, efficiency, accept_failover, wait, timeout))]
    #[allow(clippy::too_many_arguments, reason = "the Python class Request is their struct")]
    fn acquire(
        &self,
        py: Python<'_>,
        kind: &str,
        names: Vec<String>,
        permits: (u32, u32),
        value: Option<Vec<u8>>,
        delay: Option<f64>,
        efficiency: bool,
        accept_failover: bool,
        wait: bool,
        timeout: Option<f64>,
    ) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        let wait = match (wait, timeout) {
            (false, _) => Wait::No,
            (true, None) => Wait::Forever,
            (true, Some(timeout)) => Wait::Within(seconds(timeout, "timeout")?),
        };
        let delay = delay.map(|delay| seconds(delay, "delay")).transpose()?;
        let name = names.first().cloned().unwrap_or_default();
        macro_rules! operation {
            ($request:expr, $held:expr) => {{
                let mut request = $request;
                if let Some(delay) = delay {
                    request = request.delay(delay);
                }
                if accept_failover {
                    request = request.dangerous_accept_failover();
                }
                Operation::new(acquire(request, wait, efficiency, $held), |py, held| match held {
                    Some(held) => Ok(Py::new(py, Guard::new(held))?.into_any()),
                    None => Ok(py.None()),
                })
            }};
        }
        Ok(match kind {
            "lock" => operation!(palisade.lock_all(names), Held::Lock),
            "read" => operation!(palisade.rw_lock(name).read(), Held::Read),
            "write" => operation!(palisade.rw_lock(name).write(), Held::Write),
            "permits" => operation!(palisade.semaphore(name, permits.1).many(permits.0), Held::Permit),
            "leadership" => {
                operation!(palisade.election(name).candidacy(value.unwrap_or_default()), Held::Leadership)
            }
            _ => return Err(PyValueError::new_err(format!("'{kind}' is no kind of lock"))),
        })
    }

    fn inspect(&self, py: Python<'_>, name: String) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.inspect(&name).await }, |py, lock| match lock {
            Some(lock) => view::lock(py, &lock),
            None => Ok(py.None()),
        }))
    }

    fn list(&self, py: Python<'_>, prefix: String) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.list(&prefix).await }, |py, locks| {
            let locks = locks.iter().map(|lock| view::lock(py, lock)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, locks)?.into_any().unbind())
        }))
    }

    fn watch(&self, py: Python<'_>, prefix: String) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.watch(&prefix).await }, |py, watch| {
            Ok(Py::new(py, Watch::new(watch))?.into_any())
        }))
    }

    /// Returns how many grants ended, and the token to which the lock moved on.
    fn force_release(&self, py: Python<'_>, name: String, reason: String, token: Option<u64>) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        let only = token.map(valid_token).transpose()?;
        let force = async move {
            match only {
                Some(token) => palisade.force_release_only(&name, token, &reason).await,
                None => palisade.force_release(&name, &reason).await,
            }
        };
        Ok(Operation::new(force, |py, forced| {
            Ok((forced.grants, forced.moved_to.get()).into_pyobject(py)?.into_any().unbind())
        }))
    }

    fn resize(&self, py: Python<'_>, name: String, permits: u32) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.resize(&name, permits).await }, |py, ()| Ok(py.None())))
    }

    /// Returns whether this call has raised them.
    fn raise_tokens(&self, py: Python<'_>, above: u64) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        let above = valid_token(above)?;
        Ok(Operation::new(async move { palisade.raise_tokens(above).await }, |py, raised| {
            Ok((raised == Raised::Now).into_pyobject(py)?.to_owned().into_any().unbind())
        }))
    }

    fn leader(&self, py: Python<'_>, name: String) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.election(name).leader().await }, view::leader))
    }

    fn observe(&self, py: Python<'_>, name: String) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.election(name).observe().await }, |py, observer| {
            Ok(Py::new(py, Observer::new(observer))?.into_any())
        }))
    }

    fn detach(&self, py: Python<'_>) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.detach().await }, |py, session| {
            Ok(session.get().into_pyobject(py)?.into_any().unbind())
        }))
    }

    /// Renews the session of a client that has detached.
    fn detached_keep_alive(&self, py: Python<'_>, session: u64) -> PyResult<Operation> {
        let session = self.palisade.get(py)?.detached_session(valid_session(session)?);
        Ok(Operation::new(async move { session.keep_alive().await }, |py, ()| Ok(py.None())))
    }

    fn detached_release(&self, py: Python<'_>, session: u64, name: String, token: u64) -> PyResult<Operation> {
        let session = self.palisade.get(py)?.detached_session(valid_session(session)?);
        let token = valid_token(token)?;
        Ok(Operation::new(async move { session.release(&name, token).await }, |py, ()| Ok(py.None())))
    }

    fn detached_close(&self, py: Python<'_>, session: u64) -> PyResult<Operation> {
        let session = self.palisade.get(py)?.detached_session(valid_session(session)?);
        Ok(Operation::new(async move { session.close().await }, |py, ()| Ok(py.None())))
    }

    fn close(&self, py: Python<'_>) -> PyResult<Operation> {
        let palisade = self.palisade.get(py)?.clone();
        Ok(Operation::new(async move { palisade.close().await }, |py, ()| Ok(py.None())))
    }
}

fn valid_token(token: u64) -> PyResult<Token> {
    Token::new(token).map_err(|bad| PyValueError::new_err(bad.to_string()))
}

fn valid_session(session: u64) -> PyResult<SessionId> {
    SessionId::new(session).map_err(|bad| PyValueError::new_err(bad.to_string()))
}
