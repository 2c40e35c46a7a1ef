//! Newtypes for identity and time, so that no two of them can be swapped by accident.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Refusal;

/// Why a number from outside is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadNumber {
    /// Zero is not a token, a session, a request number, a TTL or a delay.
    #[error("{what} must not be 0")]
    Zero {
        /// Which kind of number.
        what: &'static str,
    },
    /// The number is too large to be represented safely.
    #[error("{what} {value} is above the highest possible, {max}")]
    TooLarge {
        /// Which kind of number.
        what: &'static str,
        /// The number.
        value: u64,
        /// The highest number that is accepted.
        max: u64,
    },
}

/// A fencing token: each grant's token is greater than every earlier token of the same lock.
///
/// Tokens stay below 2^53, so that no JSON reader rounds them.
///
/// ```
/// use palisade_core::Token;
/// assert!(Token::new(33)? < Token::new(34)?);
/// assert!(Token::new(0).is_err());
/// assert!(Token::new(1 << 53).is_err());
/// # Ok::<(), palisade_core::BadNumber>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(NonZeroU64);

impl Token {
    /// The highest possible token.
    pub const MAX: Token = Token(NonZeroU64::new((1 << 53) - 1).expect("not zero"));

    /// Returns the token with this number. Refuses 0 and numbers from 2^53 on.
    ///
    /// ```
    /// use palisade_core::Token;
    /// assert_eq!(Token::new((1 << 53) - 1)?, Token::MAX);
    /// assert!(Token::new(1 << 53).is_err());
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn new(number: u64) -> Result<Token, BadNumber> {
        let token = NonZeroU64::new(number).map(Token).ok_or(BadNumber::Zero { what: "token" })?;
        if token > Token::MAX {
            return Err(BadNumber::TooLarge { what: "token", value: number, max: Token::MAX.get() });
        }
        Ok(token)
    }

    /// The highest token that an operator can raise a counter above. Half of all tokens are left then.
    pub const HIGHEST_RAISE: Token = Token(NonZeroU64::new(1 << 52).expect("not zero"));

    /// Checks that a counter can be raised above this token.
    ///
    /// # Errors
    ///
    /// [`Refusal::RaiseTooHigh`] above [`HIGHEST_RAISE`](Token::HIGHEST_RAISE): one typing error would use up the tokens.
    ///
    /// ```
    /// use palisade_core::Token;
    /// assert!(Token::new(38)?.check_raise().is_ok());
    /// assert!(Token::MAX.check_raise().is_err());
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn check_raise(self) -> Result<(), Refusal> {
        let max = Token::HIGHEST_RAISE;
        if self > max { Err(Refusal::RaiseTooHigh { above: self, max }) } else { Ok(()) }
    }

    /// Returns the number.
    ///
    /// ```
    /// assert_eq!(palisade_core::Token::new(33)?.get(), 33);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// The id of a session, which its host draws at random.
///
/// No two sessions that exist at one time have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct SessionId(NonZeroU64);

impl SessionId {
    /// Returns the session id with this number. Refuses 0.
    ///
    /// ```
    /// use palisade_core::SessionId;
    /// assert!(SessionId::new(0).is_err());
    /// assert!(SessionId::new(1)? < SessionId::new(2)?);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn new(number: u64) -> Result<SessionId, BadNumber> {
        NonZeroU64::new(number).map(SessionId).ok_or(BadNumber::Zero { what: "session" })
    }

    /// Returns the id that random bits select. It has 16 digits, and every JSON parser reads it exactly.
    ///
    /// ```
    /// use palisade_core::SessionId;
    /// assert_eq!(SessionId::from_random(0).get(), 1_000_000_000_000_000);
    /// assert!(SessionId::from_random(u64::MAX).get() < 1 << 53);
    /// ```
    pub fn from_random(bits: u64) -> SessionId {
        const FIRST: u64 = 1_000_000_000_000_000;
        let offset = bits % ((1 << 53) - FIRST);
        SessionId(NonZeroU64::MIN.saturating_add(FIRST - 1 + offset))
    }

    /// Returns the number.
    ///
    /// ```
    /// assert_eq!(palisade_core::SessionId::new(7)?.get(), 7);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// The number that a client gives to a request of its session, so that a repeat is recognised.
///
/// A client numbers its requests upwards from 1 and uses a number again only to repeat the very same request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct RequestNo(NonZeroU64);

impl RequestNo {
    /// Returns the request number. Refuses 0.
    ///
    /// ```
    /// use palisade_core::RequestNo;
    /// assert!(RequestNo::new(0).is_err());
    /// assert!(RequestNo::new(1)? < RequestNo::new(2)?);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn new(number: u64) -> Result<RequestNo, BadNumber> {
        NonZeroU64::new(number).map(RequestNo).ok_or(BadNumber::Zero { what: "request number" })
    }

    /// Returns the number.
    ///
    /// ```
    /// assert_eq!(palisade_core::RequestNo::new(7)?.get(), 7);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// How long a session lives without a keep-alive. The machine only stores it; the host measures the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "u64")]
pub struct Ttl(NonZeroU32);

/// A lock-delay, Consul's word: how long a lock stays *withheld*, that is held by no session and granted to none, after
/// its holder's session expired. It gives a holder that has lost its lock time to notice. The machine only stores it;
/// the host measures the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Delay(NonZeroU32);

fn millis(what: &'static str, ms: u64) -> Result<NonZeroU32, BadNumber> {
    let max = u64::from(u32::MAX);
    let short = u32::try_from(ms).map_err(|_| BadNumber::TooLarge { what, value: ms, max })?;
    NonZeroU32::new(short).ok_or(BadNumber::Zero { what })
}

impl Ttl {
    /// The TTL of a session that does not expire. Only [`OpenAndAcquire`](crate::OpenAndAcquire) accepts it.
    pub const ENDLESS: Ttl = Ttl(NonZeroU32::MAX);

    /// Returns a TTL of this many milliseconds, below 2^32 - 1. A machine's limits may be narrower.
    ///
    /// ```
    /// use palisade_core::Ttl;
    /// assert!(Ttl::from_ms(0).is_err());
    /// assert!(Ttl::from_ms(u64::MAX).is_err());
    /// assert_eq!(Ttl::from_ms(10_000)?.to_string(), "10000");
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn from_ms(ms: u64) -> Result<Ttl, BadNumber> {
        match millis("ttl_ms", ms).map(Ttl)? {
            Ttl::ENDLESS => Err(BadNumber::TooLarge { what: "ttl_ms", value: ms, max: ms - 1 }),
            ttl => Ok(ttl),
        }
    }

    /// Returns the TTL in milliseconds.
    ///
    /// ```
    /// assert_eq!(palisade_core::Ttl::from_ms(10_000)?.as_ms(), 10_000);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn as_ms(self) -> u64 {
        u64::from(self.0.get())
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ttl, D::Error> {
        let is_from_client = deserializer.is_human_readable();
        let ms = u64::deserialize(deserializer)?;
        // Logs and snapshots have it. The JSON of a client must not.
        if !is_from_client && ms == Ttl::ENDLESS.as_ms() {
            return Ok(Ttl::ENDLESS);
        }
        Ttl::from_ms(ms).map_err(de::Error::custom)
    }
}

impl Delay {
    /// Returns a lock-delay of this many milliseconds. A machine's limits may be narrower.
    ///
    /// ```
    /// use palisade_core::Delay;
    /// assert!(Delay::from_ms(0).is_err());
    /// assert!(Delay::from_ms(15_000)? > Delay::from_ms(500)?);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn from_ms(ms: u64) -> Result<Delay, BadNumber> {
        millis("delay_ms", ms).map(Delay)
    }

    /// Returns the lock-delay in milliseconds.
    ///
    /// ```
    /// assert_eq!(palisade_core::Delay::from_ms(500)?.as_ms(), 500);
    /// # Ok::<(), palisade_core::BadNumber>(())
    /// ```
    pub fn as_ms(self) -> u64 {
        u64::from(self.0.get())
    }
}

/// Identifies one waiting request until it leaves the queue. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    pub(crate) arrival: u64,
    pub(crate) slot: u32,
}

impl Ticket {
    /// Returns the number of its arrival: of two waits, the one with the lower number came first.
    ///
    /// ```
    #[doc = include_str!("example.txt")]
    /// let lock = machine.lock(&orders).ok_or("not in use")?;
    /// let first = lock.waiters().next().ok_or("no waiter")?;
    /// assert_eq!(first.ticket.arrival(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn arrival(self) -> u64 {
        self.arrival
    }
}

macro_rules! conversions {
    ($($name:ident, $new:ident, $get:ident;)*) => {$(
        impl TryFrom<u64> for $name {
            type Error = BadNumber;
            fn try_from(number: u64) -> Result<$name, BadNumber> {
                $name::$new(number)
            }
        }
        impl From<$name> for u64 {
            fn from(value: $name) -> u64 {
                value.$get()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.$get(), f)
            }
        }
    )*};
}

conversions! {
    Token, new, get;
    SessionId, new, get;
    RequestNo, new, get;
    Ttl, from_ms, as_ms;
    Delay, from_ms, as_ms;
}
