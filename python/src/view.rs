//! Locks, events and leaders as objects of `palisade._types`.

use palisade::engine::{Guarantees, LockInfo, Watched};
use palisade::{Departure, Ending, Event, Leader, LockName, SessionEnd};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::error::class;

/// Returns an object that its class in `palisade._types` makes of JSON.
fn from_json(py: Python<'_>, name: &str, json: &Value) -> PyResult<Py<PyAny>> {
    class(py, name)?.call_method1("_from_json", (json.to_string(),)).map(Bound::unbind)
}

fn to_json(value: impl serde::Serialize) -> PyResult<Value> {
    serde_json::to_value(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

pub(crate) fn guarantees(py: Python<'_>, guarantees: &Guarantees) -> PyResult<Py<PyAny>> {
    from_json(py, "Guarantees", &to_json(guarantees)?)
}

pub(crate) fn lock(py: Python<'_>, lock: &LockInfo) -> PyResult<Py<PyAny>> {
    from_json(py, "LockInfo", &to_json(lock)?)
}

pub(crate) fn leader(py: Python<'_>, leader: Option<Leader>) -> PyResult<Py<PyAny>> {
    match leader {
        None => Ok(py.None()),
        Some(Leader { value, token, label }) => {
            let value = pyo3::types::PyBytes::new(py, &value);
            class(py, "Leader")?.call1((value, token.get(), label)).map(Bound::unbind)
        }
    }
}

pub(crate) fn event(py: Python<'_>, event: &Value) -> PyResult<Py<PyAny>> {
    from_json(py, "Event", event)
}

/// Describes an event; `None` if it is not about a lock.
pub(crate) fn in_json(watched: &Watched) -> Option<Value> {
    let Watched::Event(event) = watched else { return Some(json!({ "kind": "missed", "locks": [] })) };
    let locks = event.locks()?;
    let locks: Vec<_> = locks.iter().map(LockName::as_str).collect();
    let mut json = match event {
        Event::Queued { session, .. } => json!({ "kind": "queued", "session": session }),
        Event::LeftQueue { session, why, .. } => {
            json!({ "kind": "left-queue", "session": session, "how": departure(why) })
        }
        Event::Granted { session, token, .. } => json!({ "kind": "granted", "session": session, "token": token }),
        Event::GrantEnded { session, token, how, .. } => {
            json!({ "kind": "ended", "session": session, "token": token, "how": ending(how) })
        }
        Event::Withheld { token, .. } => json!({ "kind": "withheld", "token": token }),
        Event::DelayEnded { token, .. } => json!({ "kind": "delay-ended", "token": token }),
        Event::Published { token, value, .. } => {
            json!({ "kind": "published", "token": token, "value": value.as_bytes() })
        }
        Event::Resized { limit, .. } => json!({ "kind": "resized", "permits": limit }),
        // An event about sessions or settings.
        _ => return None,
    };
    json["locks"] = locks.into();
    Some(json)
}

fn ending(how: &Ending) -> String {
    match how {
        Ending::Released => "released".to_owned(),
        Ending::SessionEnded(how) => session_end(*how).to_owned(),
        Ending::Forced(force) => format!("forced by {}: {}", force.by.as_str(), force.reason.as_str()),
    }
}

fn departure(why: &Departure) -> String {
    match why {
        Departure::Cancelled => "cancelled".to_owned(),
        Departure::SessionEnded(how) => session_end(*how).to_owned(),
        Departure::Refused(refusal) => refusal.to_string(),
    }
}

fn session_end(how: SessionEnd) -> &'static str {
    match how {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
    }
}
