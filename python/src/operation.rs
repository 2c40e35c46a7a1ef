//! Calls that wait, for threads and for event loops.

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use palisade::Error;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::exception;
use crate::owned::Owned;

/// How long the main thread waits before it lets Python handle signals such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Turns the result into a Python object, or raises.
type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Pending = Pin<Box<dyn Future<Output = Finish> + Send>>;

/// A call that was not answered yet. Nothing is sent before `wait` or `poll`. Dropping or cancelling it leaves nothing queued and
/// nothing held.
#[pyclass(frozen)]
pub(crate) struct Operation {
    /// `None` once it was answered or cancelled.
    pending: Owned<Mutex<Option<Pending>>>,
}

impl Operation {
    /// Returns the call of a future. `convert` makes the Python object of its result.
    pub(crate) fn new<T: Send + 'static>(
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Operation {
        let pending: Pending = Box::pin(async move {
            let result = future.await;
            let finish: Finish = Box::new(move |py| match result {
                Ok(value) => convert(py, value),
                Err(error) => Err(exception(py, &error)),
            });
            finish
        });
        Operation { pending: Owned::new(Mutex::new(Some(pending))) }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Pending> {
        let taken = lock(self.pending.get(py)?).take();
        taken.ok_or_else(|| PyRuntimeError::new_err("this operation was waited for already"))
    }
}

#[pymethods]
impl Operation {
    /// Waits without the GIL, and lets Python handle signals meanwhile. Raises TimeoutError after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline =
            timeout.map(|timeout| seconds(timeout, "timeout")).transpose()?.map(|time| Instant::now() + time);
        let mut pending = self.take(py)?;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        // Python runs signal handlers on its main thread only.
        let is_main = rustix::thread::gettid() == rustix::process::getpid();
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let nap = [left, is_main.then_some(SIGNAL_INTERVAL)].into_iter().flatten().min();
            let polled = py.detach(|| {
                let polled = pending.as_mut().poll(&mut Context::from_waker(&waker));
                if polled.is_pending() {
                    nap.map_or_else(thread::park, thread::park_timeout);
                }
                polled
            });
            match polled {
                Poll::Ready(finish) => return finish(py),
                Poll::Pending if left == Some(Duration::ZERO) => {
                    return Err(PyTimeoutError::new_err("it was not answered in time"));
                }
                Poll::Pending => py.check_signals()?,
            }
        }
    }

    /// Returns `(result,)`, or None after arranging that `wakeups` reports this number when `poll` is to be called again.
    fn poll(&self, py: Python<'_>, wakeups: &Wakeups, number: u64) -> PyResult<Option<(Py<PyAny>,)>> {
        let mut pending = self.take(py)?;
        let waker = Waker::from(Arc::new(Notify { shared: wakeups.shared.clone(), number }));
        match pending.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(finish) => finish(py).map(|result| Some((result,))),
            Poll::Pending => {
                *lock(self.pending.get(py)?) = Some(pending);
                Ok(None)
            }
        }
    }

    /// Gives it up. It is not an error if it was answered already.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let cancelled = lock(self.pending.get(py)?).take();
        drop(cancelled);
        Ok(())
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The wake-ups of an event loop, as a descriptor that the loop watches. The threads that report them never need the GIL.
#[pyclass(frozen)]
pub(crate) struct Wakeups {
    shared: Arc<Shared>,
}

struct Shared {
    descriptor: OwnedFd,
    ready: Mutex<Vec<u64>>,
}

#[pymethods]
impl Wakeups {
    #[new]
    fn new() -> PyResult<Wakeups> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Wakeups { shared: Arc::new(Shared { descriptor, ready: Mutex::default() }) })
    }

    fn fileno(&self) -> i32 {
        self.shared.descriptor.as_raw_fd()
    }

    /// Returns the numbers of the operations to poll.
    fn take(&self) -> Vec<u64> {
        // It fails if it was read already: then the list tells.
        let _ = rustix::io::read(&self.shared.descriptor, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.shared.ready))
    }
}

/// Wakes an event loop.
struct Notify {
    shared: Arc<Shared>,
    number: u64,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        let mut ready = lock(&self.shared.ready);
        let was_empty = ready.is_empty();
        ready.push(self.number);
        drop(ready);
        if was_empty {
            // It fails only if the counter is full, and then the loop is awake.
            let _ = rustix::io::write(&self.shared.descriptor, &1_u64.to_ne_bytes());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a time that Python gives in seconds.
pub(crate) fn seconds(seconds: f64, what: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{what} is a number of seconds from 0 on, and not {seconds}")))
}
