//! Timers that are simulated inside a simulated process, and `tokio`'s outside.

use std::collections::BTreeMap;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};

use super::{Host, Time, current};

/// The timers of a process, by the clock that they follow.
#[derive(Default)]
pub(super) struct Timers {
    last: u64,
    monotonic: BTreeMap<(Duration, u64), Waker>,
    boot: BTreeMap<(Duration, u64), Waker>,
}

/// The clock that a timer follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    Monotonic,
    Boot,
}

impl Clock {
    fn now(self, time: Time) -> Duration {
        match self {
            Clock::Monotonic => time.monotonic,
            Clock::Boot => time.boot,
        }
    }
}

impl Timers {
    fn of(&mut self, clock: Clock) -> &mut BTreeMap<(Duration, u64), Waker> {
        match clock {
            Clock::Monotonic => &mut self.monotonic,
            Clock::Boot => &mut self.boot,
        }
    }

    /// Wakes the tasks whose time has come.
    pub(super) fn fire(&mut self, time: Time) {
        for clock in [Clock::Monotonic, Clock::Boot] {
            let timers = self.of(clock);
            while let Some(first) = timers.first_entry().filter(|first| first.key().0 <= clock.now(time)) {
                first.remove().wake();
            }
        }
    }

    /// Returns the time on the monotonic clock at which the next timer fires.
    pub(super) fn next(&self, time: Time) -> Option<Duration> {
        let first = |timers: &BTreeMap<(Duration, u64), Waker>| timers.first_key_value().map(|((at, _), _)| *at);
        let boot = first(&self.boot).map(|at| time.monotonic + at.saturating_sub(time.boot));
        first(&self.monotonic).into_iter().chain(boot).min()
    }
}

/// A timer of a simulated process.
struct Timer {
    host: Rc<Host>,
    clock: Clock,
    at: Duration,
    /// Its number, once it was polled.
    number: Option<u64>,
}

impl Timer {
    fn new(host: Rc<Host>, clock: Clock, at: Duration) -> Timer {
        Timer { host, clock, at, number: None }
    }

    fn cancel(&mut self) {
        if let Some(number) = self.number.take() {
            self.host.timers.borrow_mut().of(self.clock).remove(&(self.at, number));
        }
    }
}

impl Future for Timer {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.get_mut();
        if timer.at <= timer.clock.now(timer.host.time.get()) {
            timer.cancel();
            return Poll::Ready(());
        }
        let mut timers = timer.host.timers.borrow_mut();
        let number = *timer.number.get_or_insert_with(|| {
            timers.last += 1;
            timers.last
        });
        timers.of(timer.clock).insert((timer.at, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Waits until a time since boot, inside a simulated process.
pub(crate) fn reached(boot: Duration) -> Option<impl Future<Output = ()>> {
    current().map(|host| Timer::new(host, Clock::Boot, boot))
}

/// A moment on the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(tokio::time::Instant);

/// The moment that stands for the start of every simulated clock. Only differences to it are used.
fn origin() -> tokio::time::Instant {
    static ORIGIN: OnceLock<tokio::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(tokio::time::Instant::now)
}

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant(match current() {
            Some(host) => origin() + host.time.get().monotonic,
            None => tokio::time::Instant::now(),
        })
    }

    pub(crate) fn elapsed(self) -> Duration {
        Instant::now() - self
    }

    pub(crate) fn checked_add(self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0 + duration)
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.0 - earlier.0
    }
}

/// Waits for a moment.
pub(crate) struct Sleep {
    deadline: Instant,
    timer: Either<Timer, Pin<Box<tokio::time::Sleep>>>,
}

impl Sleep {
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.deadline = deadline;
        match &mut self.timer {
            Either::Left(timer) => {
                timer.cancel();
                timer.at = deadline.0.saturating_duration_since(origin());
            }
            Either::Right(sleep) => sleep.as_mut().reset(deadline.0),
        }
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.get_mut().timer {
            Either::Left(timer) => Pin::new(timer).poll(context),
            Either::Right(sleep) => sleep.as_mut().poll(context),
        }
    }
}

pub(crate) fn sleep_until(deadline: Instant) -> Sleep {
    let timer = match current() {
        Some(host) => {
            Either::Left(Timer::new(host, Clock::Monotonic, deadline.0.saturating_duration_since(origin())))
        }
        None => Either::Right(Box::pin(tokio::time::sleep_until(deadline.0))),
    };
    Sleep { deadline, timer }
}

pub(crate) fn sleep(duration: Duration) -> Sleep {
    sleep_until(Instant::now() + duration)
}

/// The time has passed.
#[derive(Debug)]
pub(crate) struct Elapsed;

pub(crate) async fn timeout_at<T>(deadline: Instant, future: impl Future<Output = T>) -> Result<T, Elapsed> {
    match select(std::pin::pin!(future), sleep_until(deadline)).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right(_) => Err(Elapsed),
    }
}

pub(crate) async fn timeout<T>(duration: Duration, future: impl Future<Output = T>) -> Result<T, Elapsed> {
    timeout_at(Instant::now() + duration, future).await
}
