//! The guarantees of an engine. The library checks requests against them, and refuses those that need more.

use std::fmt;

use serde::Serialize;

/// The promises of an engine, readable at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Guarantees {
    /// The engine's name in messages.
    pub engine: &'static str,
    /// How far its tokens can be trusted.
    pub level: Level,
    /// The order in which waiters are granted a lock.
    pub order: Order,
    /// The clock by which sessions end.
    pub session_clock: SessionClock,
    /// How a waiter learns of its grant.
    pub wake_up: WakeUp,
    /// The kinds of lock and the operations that it has.
    pub offers: Offers,
}

/// How far an engine's tokens can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// There are no tokens.
    Advisory,
    /// Tokens rise while the store keeps its data. A failover may lose data, and then tokens are issued again.
    HealthyOnly,
    /// Tokens always rise, as long as the store keeps its durability promises.
    Fenced,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Advisory => "advisory",
            Level::HealthyOnly => "healthy-only",
            Level::Fenced => "fenced",
        })
    }
}

/// The order in which waiters are granted a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// First come, first served, over all processes.
    Fair,
    /// No order: the client whose retry comes first after a release gets the lock.
    Race,
}

/// The clock by which sessions end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionClock {
    /// The boot clock of the host that all clients share.
    SameHost,
    /// The engine's own monotonic clock.
    Engine,
    /// The wall clock of the store's server. If it jumps, sessions end too early or too late. Grants and tokens do not depend
    /// on it, except for Redlock, whose servers decide independently. This is one reason why Redlock is
    /// [`Advisory`](Level::Advisory).
    Store,
}

/// How a waiter learns of its grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WakeUp {
    /// The engine notifies it.
    Pushed,
    /// It polls.
    Polled,
}

/// The kinds of lock and the operations that an engine has in addition to exclusive locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Offers {
    /// Shared holders.
    pub shared: bool,
    /// Semaphores.
    pub permits: bool,
    /// Semaphores in use whose number of permits can be changed.
    pub resize: bool,
    /// Several locks at once, all or nothing.
    pub several: bool,
    /// Values that holders publish.
    pub values: bool,
    /// Lock-delays: after its holder's session expires, a lock is not granted for a time.
    pub delay: bool,
    /// Releasing a lock by force.
    pub force_release: bool,
    /// A list of all locks in use.
    pub list: bool,
    /// Watching.
    pub watch: bool,
    /// Sessions that outlive their client.
    pub detach: bool,
    /// Signed tokens.
    pub signed: bool,
}

impl Offers {
    /// All of them.
    pub const ALL: Offers = Offers {
        shared: true,
        permits: true,
        resize: true,
        several: true,
        values: true,
        delay: true,
        force_release: true,
        list: true,
        watch: true,
        detach: true,
        signed: true,
    };

    /// None of them.
    pub const NONE: Offers = Offers {
        shared: false,
        permits: false,
        resize: false,
        several: false,
        values: false,
        delay: false,
        force_release: false,
        list: false,
        watch: false,
        detach: false,
        signed: false,
    };
}
