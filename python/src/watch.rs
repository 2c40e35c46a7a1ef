//! Watches and observers.

use std::sync::Arc;

use pyo3::prelude::*;
use tokio::sync::Mutex;

use crate::operation::Operation;
use crate::owned::Owned;
use crate::view;

/// The events of locks.
#[pyclass(frozen)]
pub(crate) struct Watch {
    watch: Owned<Arc<Mutex<palisade::Watch>>>,
}

impl Watch {
    pub(crate) fn new(watch: palisade::Watch) -> Watch {
        Watch { watch: Owned::new(Arc::new(Mutex::new(watch))) }
    }
}

#[pymethods]
impl Watch {
    /// Waits for the next event; None once the client is closed.
    fn next(&self, py: Python<'_>) -> PyResult<Operation> {
        let watch = self.watch.get(py)?.clone();
        let next = async move {
            let mut watch = watch.lock().await;
            loop {
                match watch.next().await {
                    Some(watched) => match view::in_json(&watched) {
                        Some(event) => return Ok(Some(event)),
                        None => continue,
                    },
                    None => return Ok(None),
                }
            }
        };
        Ok(Operation::new(next, |py, event| match event {
            Some(event) => view::event(py, &event),
            None => Ok(py.None()),
        }))
    }
}

/// The leaders of an election.
#[pyclass(frozen)]
pub(crate) struct Observer {
    observer: Owned<Arc<Mutex<palisade::Observer>>>,
}

impl Observer {
    pub(crate) fn new(observer: palisade::Observer) -> Observer {
        Observer { observer: Owned::new(Arc::new(Mutex::new(observer))) }
    }
}

#[pymethods]
impl Observer {
    /// Returns the leader, then waits until it is another or publishes another value.
    fn next(&self, py: Python<'_>) -> PyResult<Operation> {
        let observer = self.observer.get(py)?.clone();
        Ok(Operation::new(async move { observer.lock().await.next().await }, view::leader))
    }
}
