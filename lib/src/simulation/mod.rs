//! A process without threads, clocks or sockets, for simulations of whole clusters.
//!
//! Inside a [`Process`] this library runs unchanged, on one thread: the keeper is a task, the clocks show the time that the
//! simulation sets, timers fire when it lets them, and connections are opened by its [`Network`]. Everything follows from what
//! the simulation does, so the same simulation does the same twice.

pub(crate) mod timers;

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::LocalSet;

use timers::Timers;

/// The two ends of a simulated connection.
pub struct Stream {
    /// What the other side sends.
    pub reader: Box<dyn AsyncRead + Unpin>,
    /// What is sent to the other side.
    pub writer: Box<dyn AsyncWrite + Unpin>,
}

/// Opens the connections of a process.
pub trait Network {
    /// Connects to a port of a host.
    fn connect(&self, host: &str, port: u16) -> LocalBoxFuture<'static, io::Result<Stream>>;
}

/// The time in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// The monotonic clock, which stops while the host is suspended.
    pub monotonic: Duration,
    /// The time since boot, which goes on.
    pub boot: Duration,
}

/// A simulated process. Dropping it kills it.
pub struct Process {
    tasks: LocalSet,
    host: Rc<Host>,
    woken: Arc<Woken>,
}

/// What a process has of its host.
struct Host {
    time: Cell<Time>,
    timers: RefCell<Timers>,
    random: Cell<u64>,
    network: Box<dyn Network>,
}

thread_local! {
    /// The host of the process that runs.
    static CURRENT: RefCell<Option<Rc<Host>>> = const { RefCell::new(None) };
}

/// Leaves the process when it is dropped.
struct Entered(Option<Rc<Host>>);

impl Drop for Entered {
    fn drop(&mut self) {
        let outer = self.0.take();
        CURRENT.with(|current| *current.borrow_mut() = outer);
    }
}

fn enter(host: &Rc<Host>) -> Entered {
    Entered(CURRENT.with(|current| current.borrow_mut().replace(host.clone())))
}

fn current() -> Option<Rc<Host>> {
    CURRENT.with(|current| current.borrow().clone())
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Process {
    /// Starts a process without tasks. Its random numbers follow from the seed.
    pub fn new(network: impl Network + 'static, seed: u64) -> Process {
        let host = Host {
            time: Cell::default(),
            timers: RefCell::default(),
            random: Cell::new(seed | 1),
            network: Box::new(network),
        };
        Process { tasks: LocalSet::new(), host: Rc::new(host), woken: Arc::default() }
    }

    /// Adds a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn_local(task);
        self.woken.0.store(true, Ordering::Release);
    }

    /// Sets the clocks.
    pub fn set_time(&self, time: Time) {
        self.host.time.set(time);
    }

    /// Runs all tasks until none can go on.
    pub fn run(&mut self) {
        let _entered = enter(&self.host);
        let waker = Waker::from(self.woken.clone());
        loop {
            self.host.timers.borrow_mut().fire(self.host.time.get());
            if !self.woken.0.swap(false, Ordering::AcqRel) {
                return;
            }
            // Ready if there is no task: nothing is left to do then either.
            let _ = Pin::new(&mut self.tasks).poll(&mut Context::from_waker(&waker));
        }
    }

    /// Whether a task can go on now.
    pub fn is_awake(&self) -> bool {
        self.woken.0.load(Ordering::Acquire)
    }

    /// Returns the time on the monotonic clock at which the next timer fires, unless the host is suspended meanwhile.
    pub fn next_timer(&self) -> Option<Duration> {
        self.host.timers.borrow().next(self.host.time.get())
    }

    /// Runs `f` inside the process, for example to read its clock.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        let _entered = enter(&self.host);
        f()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _entered = enter(&self.host);
        // Tasks that are dropped may read the clock.
        drop(std::mem::take(&mut self.tasks));
    }
}

/// Whether the caller runs inside a simulated process.
pub(crate) fn is_inside() -> bool {
    CURRENT.with(|current| current.borrow().is_some())
}

/// Returns the time since boot, inside a simulated process.
pub(crate) fn boot_time() -> Option<Duration> {
    CURRENT.with(|current| current.borrow().as_ref().map(|host| host.time.get().boot))
}

/// Returns a random number, inside a simulated process.
pub(crate) fn random() -> Option<u64> {
    CURRENT.with(|current| {
        let current = current.borrow();
        let random = &current.as_ref()?.random;
        // xorshift64
        let mut next = random.get();
        next ^= next << 13;
        next ^= next >> 7;
        next ^= next << 17;
        random.set(next);
        Some(next >> 16)
    })
}

/// Opens a connection, inside a simulated process.
pub(crate) fn connect(host: &str, port: u16) -> Option<LocalBoxFuture<'static, io::Result<Stream>>> {
    current().map(|process| process.network.connect(host, port))
}

/// Waits, inside a simulated process.
pub async fn sleep(duration: Duration) {
    timers::sleep(duration).await;
}
