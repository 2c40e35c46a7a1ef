//! What the machine remembers.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::list::{Link, List};
use crate::slab::Slot;
use crate::view::Ended;
use crate::{
    Answer, BadNumber, Delay, Kind, Label, LockName, Mode, Refusal, RequestNo, SessionId, Token, Ttl, Value,
};

/// What an exclusive holder takes: all there is. A lock is a semaphore with this many permits, of which a shared
/// holder takes one.
pub(crate) const ALL: u32 = u32::MAX;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
    /// What it holds and waits for, oldest first.
    pub(crate) claims: List<Claim>,
    /// How many places those claims have.
    pub(crate) locks: u32,
    pub(crate) answers: Option<Box<Answers>>,
}

/// The numbered requests of a session that are no longer waiting or held.
#[derive(Clone, Serialize, Deserialize, Default)]
pub(crate) struct Answers {
    /// The highest number in `settled`, now or ever.
    pub(crate) highest: u64,
    /// The highest number that is no longer in `settled`.
    pub(crate) forgotten: u64,
    /// Oldest first.
    pub(crate) settled: VecDeque<Settled>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Settled {
    pub(crate) number: RequestNo,
    /// 0 for a request that was cancelled before it arrived: any body matches.
    pub(crate) fingerprint: u64,
    pub(crate) answer: Result<Answer, Box<Refusal>>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) packed: PackedStand,
    pub(crate) number: Option<RequestNo>,
    pub(crate) fingerprint: u64,
    pub(crate) rare: Option<Box<Rare>>,
    /// `NONE` once withheld: the session is gone then.
    pub(crate) session: Slot<Session>,
    pub(crate) first: Slot<Place>,
    pub(crate) at_session: Link<Claim>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Stand {
    Waiting { arrival: u64 },
    Held { token: Token },
    Withheld { token: Token },
}

/// A [`Stand`] in eight bytes: there are at least as many claims as locks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "Stand", into = "Stand")]
pub(crate) struct PackedStand(u64);

const TAG_BITS: u32 = 2;

impl PackedStand {
    pub(crate) fn of(stand: Stand) -> PackedStand {
        match stand.try_into() {
            Ok(packed) => packed,
            Err(error) => unreachable!("nobody counts that far: {error}"),
        }
    }

    fn new(tag: u64, number: u64) -> PackedStand {
        PackedStand(number << TAG_BITS | tag)
    }
}

impl TryFrom<Stand> for PackedStand {
    type Error = BadNumber;
    fn try_from(stand: Stand) -> Result<PackedStand, BadNumber> {
        let max = u64::MAX >> TAG_BITS;
        match stand {
            Stand::Waiting { arrival } if arrival > max => {
                Err(BadNumber::TooLarge { what: "arrival", value: arrival, max })
            }
            Stand::Waiting { arrival } => Ok(PackedStand::new(0, arrival)),
            Stand::Held { token } => Ok(PackedStand::new(1, token.get())),
            Stand::Withheld { token } => Ok(PackedStand::new(2, token.get())),
        }
    }
}

impl From<PackedStand> for Stand {
    fn from(packed: PackedStand) -> Stand {
        let number = packed.0 >> TAG_BITS;
        match (packed.0 & ((1 << TAG_BITS) - 1), Token::new(number)) {
            (0, _) => Stand::Waiting { arrival: number },
            (1, Ok(token)) => Stand::Held { token },
            (2, Ok(token)) => Stand::Withheld { token },
            _ => unreachable!("it was packed from a stand"),
        }
    }
}

impl Claim {
    pub(crate) fn stand(&self) -> Stand {
        self.packed.into()
    }

    pub(crate) fn set_stand(&mut self, stand: Stand) {
        self.packed = PackedStand::of(stand);
    }
}

/// What few claims have.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rare {
    pub(crate) delay: Option<Delay>,
    pub(crate) value: Option<Value>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Lock {
    pub(crate) name: LockName,
    /// How many permits there are; [`ALL`] for an ordinary lock.
    pub(crate) limit: u32,
    /// How many of them the holders have.
    pub(crate) taken: u32,
    pub(crate) holders: List<Place>,
    pub(crate) queue: List<Place>,
    pub(crate) history: Option<Box<History>>,
}

/// The last grants that ended while the lock was in use, oldest first.
#[derive(Clone, Serialize, Deserialize, Default)]
pub(crate) struct History(pub(crate) VecDeque<Ended>);

/// How many endings of idle locks are kept.
pub(crate) const FORCED_KEPT: usize = 256;

/// A grant of a lock that is idle now, and that was taken away.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Forced {
    pub(crate) lock: LockName,
    pub(crate) ended: Ended,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) claim: Slot<Claim>,
    pub(crate) lock: Slot<Lock>,
    /// How many permits it has or wants.
    pub(crate) need: u32,
    /// The claim's place at its next lock.
    pub(crate) sibling: Slot<Place>,
    /// In the lock's queue while waiting, among its holders afterwards.
    pub(crate) at_lock: Link<Place>,
}

impl Claim {
    /// The token of a claim that is held or withheld.
    pub(crate) fn token(&self) -> Option<Token> {
        match self.stand() {
            Stand::Held { token } | Stand::Withheld { token } => Some(token),
            Stand::Waiting { .. } => None,
        }
    }
}

impl Lock {
    pub(crate) fn kind(&self) -> Kind {
        if self.limit == ALL { Kind::Lock } else { Kind::Semaphore { limit: self.limit } }
    }

    pub(crate) fn mode(&self, need: u32) -> Mode {
        match (self.limit, need) {
            (ALL, ALL) => Mode::Exclusive,
            (ALL, _) => Mode::Shared,
            (of, count) => Mode::Permits { count, of },
        }
    }

    /// Whether so many permits are left. Says nothing about whose turn it is.
    pub(crate) fn admits(&self, need: u32) -> bool {
        self.taken.checked_add(need).is_some_and(|taken| taken <= self.limit)
    }

    /// Whether a new request gets it at once: nobody waits, and enough is left.
    pub(crate) fn is_free(&self, need: u32) -> bool {
        self.queue.is_empty() && self.admits(need)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }
}

impl Mode {
    /// How many permits it takes.
    pub(crate) fn need(self) -> u32 {
        match self {
            Mode::Exclusive => ALL,
            Mode::Shared => 1,
            Mode::Permits { count, .. } => count,
        }
    }

    /// How many permits there are where it is used.
    pub(crate) fn limit(self) -> u32 {
        match self {
            Mode::Exclusive | Mode::Shared => ALL,
            Mode::Permits { of, .. } => of,
        }
    }
}

pub(crate) fn at_lock(place: &Place) -> &Link<Place> {
    &place.at_lock
}
pub(crate) fn at_lock_mut(place: &mut Place) -> &mut Link<Place> {
    &mut place.at_lock
}
pub(crate) fn at_session(claim: &Claim) -> &Link<Claim> {
    &claim.at_session
}
pub(crate) fn at_session_mut(claim: &mut Claim) -> &mut Link<Claim> {
    &mut claim.at_session
}
