//! What an engine declares about itself. What is not declared is refused, by one piece of code above all engines.

use std::fmt;

use serde::Serialize;

/// What an engine promises, readable at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Guarantees {
    /// The engine's name, as errors and people call it.
    pub engine: &'static str,
    /// What its tokens are worth.
    pub level: Level,
    /// In which order waiters are served.
    pub order: Order,
    /// Whose clock ends a session.
    pub session_clock: SessionClock,
    /// How a waiter learns that it is its turn.
    pub wake_up: WakeUp,
    /// Which kinds of lock and which operations it has.
    pub offers: Offers,
}

/// What an engine's tokens are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// No token can exist.
    Advisory,
    /// Tokens rise while the store keeps its data; a failover can take them back.
    HealthyOnly,
    /// Tokens always rise, under the store's own fault model.
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

/// In which order waiters are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// First come, first served, over all processes.
    Fair,
    /// The client that asks at the right moment.
    Race,
}

/// Whose clock ends a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionClock {
    /// The boot clock of the host that all clients share.
    SameHost,
    /// The engine's own monotonic clock.
    Engine,
    /// The wall clock of the store's server. A jump of it ends a session too early or too late; grants and tokens do
    /// not depend on it. (Grants do where the store is several servers that decide for themselves, which is one reason
    /// why such an engine is [`Advisory`](Level::Advisory).)
    Store,
}

/// How a waiter learns that it is its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WakeUp {
    /// It is told.
    Pushed,
    /// It asks again and again.
    Polled,
}

/// Which kinds of lock and which operations an engine has, beside exclusive locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Offers {
    /// Shared holders.
    pub shared: bool,
    /// Semaphores.
    pub permits: bool,
    /// Several locks at once, all or nothing.
    pub several: bool,
    /// Values that holders publish.
    pub values: bool,
    /// A delay after an expiry.
    pub delay: bool,
    /// Taking a lock away.
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
    /// Everything there is.
    pub const ALL: Offers = Offers {
        shared: true,
        permits: true,
        several: true,
        values: true,
        delay: true,
        force_release: true,
        list: true,
        watch: true,
        detach: true,
        signed: true,
    };
}
