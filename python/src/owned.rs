//! Values that a forked child must not touch.

use std::mem;
use std::process;

use pyo3::prelude::*;

use crate::error::misuse;

/// A value that only the process that made it may use. A forked child has a copy of the memory, but neither the keeper's thread
/// nor a connection of its own.
pub(crate) struct Owned<T> {
    value: Option<T>,
    pid: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned { value: Some(value), pid: process::id() }
    }

    /// Returns the value, or raises `Forked` in another process.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        match self.if_here() {
            Some(value) => Ok(value),
            None => {
                let (made, here) = (self.pid, process::id());
                let what = format!(
                    "process {made} made this, and process {here} is a fork of it; the locks stay with process {made}; connect again \
                     in this process"
                );
                Err(misuse(py, "Forked", &what))
            }
        }
    }

    /// Returns the value; `None` in another process.
    pub(crate) fn if_here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.is_here())
    }

    fn is_here(&self) -> bool {
        self.pid == process::id()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // Dropping a client or a guard sends a request over a connection that the parent uses. The child leaks its copy instead.
        if !self.is_here() {
            mem::forget(self.value.take());
        }
    }
}
