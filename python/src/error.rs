//! Errors and losses as objects of `palisade._types`.

use palisade::{Error, ErrorKind, Loss};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns a class of `palisade._types`.
pub(crate) fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("palisade._types")?.getattr(name)
}

/// Returns the exception of an error, with the same message.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failed| failed)
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let name = match error.kind() {
        ErrorKind::Misuse(_) => "Misuse",
        ErrorKind::Outage { .. } => "Unavailable",
        ErrorKind::Denied { .. } => "Denied",
        ErrorKind::Lost(_) => "Lost",
        ErrorKind::Unsupported { .. } => "Unsupported",
        _ => "Error",
    };
    let fields = PyDict::new(py);
    fields.set_item("engine", error.engine())?;
    fields.set_item("operation", error.operation())?;
    fields.set_item("lock", error.lock())?;
    fields.set_item("is_retryable", error.is_retryable())?;
    fields.set_item("may_have_taken_effect", error.may_have_taken_effect())?;
    fields.set_item("loss", error.loss().map(|loss| loss_object(py, loss)).transpose()?)?;
    // The message and its causes.
    Ok(PyErr::from_value(class(py, name)?.call((format!("{error:?}"),), Some(&fields))?))
}

/// Returns the exception of a call that is wrong in a way that only Python knows.
pub(crate) fn misuse(py: Python<'_>, name: &str, what: &str) -> PyErr {
    match class(py, name).and_then(|class| class.call1((what,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failed) => failed,
    }
}

/// Returns the `Loss` of `palisade._types`.
pub(crate) fn loss_object<'py>(py: Python<'py>, loss: &Loss) -> PyResult<Bound<'py, PyAny>> {
    let (by, reason) = match loss {
        Loss::ForcedBy { by, reason } => (Some(by), Some(reason)),
        _ => (None, None),
    };
    class(py, "Loss")?.call1((loss_kind(loss), loss.to_string(), by, reason))
}

fn loss_kind(loss: &Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::ForcedBy { .. } => "forced",
        Loss::SessionClosed => "session-closed",
        Loss::Released => "released",
        Loss::Detached => "detached",
        Loss::DataLost { .. } => "data-lost",
        Loss::Paused { .. } => "paused",
        Loss::Unreachable { .. } => "unreachable",
        _ => "other",
    }
}
