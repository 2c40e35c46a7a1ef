//! The clock for deadlines. It is monotonic, and also counts while the host is suspended.

use std::fmt;
use std::time::Duration;

/// A moment on the host's boot clock (`CLOCK_BOOTTIME` on Linux). Not comparable between hosts, or across a reboot.
///
/// ```
/// use palisade::BootInstant;
/// let before = BootInstant::now();
/// assert!(BootInstant::now() >= before);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant {
    ns: u64,
}

impl BootInstant {
    /// Returns the current time.
    pub fn now() -> BootInstant {
        #[cfg(feature = "_simulation")]
        if let Some(time) = crate::simulation::boot_time() {
            return BootInstant::after_boot(time);
        }
        #[cfg(target_os = "linux")]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let clock = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(clock);
        BootInstant { ns: (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64) }
    }

    pub(crate) fn from_ns(ns: u64) -> BootInstant {
        BootInstant { ns }
    }

    pub(crate) fn as_ns(self) -> u64 {
        self.ns
    }

    /// The moment at which the host has been up for this long.
    ///
    /// ```
    /// use palisade::BootInstant;
    /// let now = BootInstant::now();
    /// assert_eq!(BootInstant::after_boot(now.since_boot()), now);
    /// ```
    pub fn after_boot(time: Duration) -> BootInstant {
        BootInstant { ns: 0 } + time
    }

    /// Waits until this moment. The time that the host is suspended counts. Needs a `tokio` runtime with I/O and time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use palisade::BootInstant;
    /// let soon = BootInstant::now() + std::time::Duration::from_millis(5);
    /// soon.reached().await;
    /// assert!(soon.has_passed());
    /// # }
    /// ```
    pub async fn reached(self) {
        #[cfg(feature = "_simulation")]
        if let Some(reached) = crate::simulation::timers::reached(self.since_boot()) {
            return reached.await;
        }
        while !self.has_passed() {
            sleep_until(self).await;
        }
    }

    /// Returns the time from the host's boot to this moment.
    ///
    /// ```
    /// assert!(!palisade::BootInstant::now().since_boot().is_zero());
    /// ```
    pub fn since_boot(self) -> Duration {
        Duration::from_nanos(self.ns)
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    ///
    /// ```
    /// use palisade::BootInstant;
    /// use std::time::Duration;
    /// let soon = BootInstant::now() + Duration::from_secs(60);
    /// assert!(soon.since(BootInstant::now()) <= Duration::from_secs(60));
    /// ```
    pub fn since(self, earlier: BootInstant) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }

    /// Returns the time from now to this moment; zero if it has passed.
    ///
    /// ```
    /// use palisade::BootInstant;
    /// use std::time::Duration;
    /// let soon = BootInstant::now() + Duration::from_secs(60);
    /// assert!(soon.left() > Duration::from_secs(50));
    /// ```
    pub fn left(self) -> Duration {
        self.since(BootInstant::now())
    }

    /// Whether this moment has passed.
    ///
    /// ```
    /// use palisade::BootInstant;
    /// use std::time::Duration;
    /// let soon = BootInstant::now() + Duration::from_secs(60);
    /// assert!(!soon.has_passed());
    /// ```
    pub fn has_passed(self) -> bool {
        BootInstant::now() >= self
    }
}

/// Waits until a moment. The time that the host is suspended counts.
#[cfg(target_os = "linux")]
async fn sleep_until(at: BootInstant) {
    // The sleep does not count suspended time, so it may end late. It is only used if no timer can be created.
    if sleep_on_timer(at).await.is_err() {
        tokio::time::sleep(at.left()).await;
    }
}

#[cfg(target_os = "linux")]
async fn sleep_on_timer(at: BootInstant) -> std::io::Result<()> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    if at.has_passed() {
        return Ok(());
    }
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let value = Timespec { tv_sec: (at.ns / 1_000_000_000) as i64, tv_nsec: (at.ns % 1_000_000_000) as i64 };
    timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: zero, it_value: value })?;
    // `new` is deprecated because some types may change their descriptor. An `OwnedFd` never does.
    #[allow(deprecated)]
    let timer = tokio::io::unix::AsyncFd::new(timer)?;
    timer.readable().await.map(drop)
}

/// Waits until a moment.
#[cfg(not(target_os = "linux"))]
async fn sleep_until(at: BootInstant) {
    tokio::time::sleep(at.left()).await;
}

impl std::ops::Add<Duration> for BootInstant {
    type Output = BootInstant;
    fn add(self, duration: Duration) -> BootInstant {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        BootInstant { ns: self.ns.saturating_add(ns) }
    }
}

impl fmt::Display for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s after boot", self.ns as f64 / 1e9)
    }
}
