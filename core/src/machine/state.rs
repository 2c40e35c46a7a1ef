//! The machine's records.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::list::{Link, List};
use crate::slab::Slot;
use crate::{
    Answer, BadNumber, Delay, Ended, Kind, Label, LockName, Mode, Refusal, RequestNo, Secret, SessionId, Token, Ttl,
    Value,
};

/// The permits of an ordinary lock. An exclusive holder takes all of them, a shared holder takes one.
pub(crate) const ALL: u32 = u32::MAX;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
    /// Its grants and waits, oldest first.
    pub(crate) claims: List<Claim>,
    /// The number of entries of those claims.
    pub(crate) locks: u32,
    pub(crate) answers: Option<Box<Answers>>,
    /// Whether it was opened for one request, and ends with the grant or the wait.
    pub(crate) is_for_one_request: bool,
}

/// The numbered requests of a session that are no longer waiting or held.
#[derive(Clone, Serialize, Deserialize, Default)]
pub(crate) struct Answers {
    /// The highest number that was ever in `requests`.
    pub(crate) highest: u64,
    /// The highest number that is no longer in `requests`.
    pub(crate) forgotten: u64,
    /// Oldest first.
    pub(crate) requests: VecDeque<AnsweredRequest>,
}

/// A request that was answered, for its repeats.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct AnsweredRequest {
    pub(crate) number: RequestNo,
    /// 0 for a request that was cancelled before it arrived; then any request matches.
    pub(crate) fingerprint: u64,
    pub(crate) answer: Result<Answer, Box<Refusal>>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) packed: PackedState,
    pub(crate) number: Option<RequestNo>,
    pub(crate) fingerprint: u64,
    pub(crate) extras: Option<Box<ClaimExtras>>,
    /// `NONE` once withheld: the session is gone then.
    pub(crate) session: Slot<Session>,
    pub(crate) first: Slot<LockEntry>,
    pub(crate) at_session: Link<Claim>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ClaimState {
    Waiting { arrival: u64 },
    Held { token: Token },
    Withheld { token: Token },
}

/// A [`ClaimState`] in eight bytes: there are at least as many claims as locks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "ClaimState", into = "ClaimState")]
pub(crate) struct PackedState(u64);

const TAG_BITS: u32 = 2;

impl PackedState {
    pub(crate) fn of(state: ClaimState) -> PackedState {
        match state.try_into() {
            Ok(packed) => packed,
            Err(error) => unreachable!("the arrival counter cannot get this far: {error}"),
        }
    }

    fn new(tag: u64, number: u64) -> PackedState {
        PackedState(number << TAG_BITS | tag)
    }
}

impl TryFrom<ClaimState> for PackedState {
    type Error = BadNumber;
    fn try_from(state: ClaimState) -> Result<PackedState, BadNumber> {
        let max = u64::MAX >> TAG_BITS;
        match state {
            ClaimState::Waiting { arrival } if arrival > max => {
                Err(BadNumber::TooLarge { what: "arrival", value: arrival, max })
            }
            ClaimState::Waiting { arrival } => Ok(PackedState::new(0, arrival)),
            ClaimState::Held { token } => Ok(PackedState::new(1, token.get())),
            ClaimState::Withheld { token } => Ok(PackedState::new(2, token.get())),
        }
    }
}

impl From<PackedState> for ClaimState {
    fn from(packed: PackedState) -> ClaimState {
        let number = packed.0 >> TAG_BITS;
        match (packed.0 & ((1 << TAG_BITS) - 1), Token::new(number)) {
            (0, _) => ClaimState::Waiting { arrival: number },
            (1, Ok(token)) => ClaimState::Held { token },
            (2, Ok(token)) => ClaimState::Withheld { token },
            _ => unreachable!("it was packed from a ClaimState"),
        }
    }
}

impl Claim {
    pub(crate) fn state(&self) -> ClaimState {
        self.packed.into()
    }

    pub(crate) fn set_state(&mut self, state: ClaimState) {
        self.packed = PackedState::of(state);
    }
}

/// The optional parts of a claim. Most claims have none, so they are boxed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimExtras {
    pub(crate) delay: Option<Delay>,
    pub(crate) value: Option<Value>,
    pub(crate) secret: Option<Secret>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Lock {
    pub(crate) name: LockName,
    /// The number of permits; [`ALL`] for an ordinary lock.
    pub(crate) limit: u32,
    /// The number of permits that the holders have.
    pub(crate) taken: u32,
    pub(crate) holders: List<LockEntry>,
    pub(crate) queue: List<LockEntry>,
    pub(crate) history: Option<Box<History>>,
}

/// The last grants that ended while the lock was in use, oldest first.
#[derive(Clone, Serialize, Deserialize, Default)]
pub(crate) struct History(pub(crate) VecDeque<Ended>);

/// How many force-releases of idle locks are kept.
pub(crate) const FORCED_KEPT: usize = 256;

/// A force-released grant of a lock that is idle now.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Forced {
    pub(crate) lock: LockName,
    pub(crate) ended: Ended,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct LockEntry {
    pub(crate) claim: Slot<Claim>,
    pub(crate) lock: Slot<Lock>,
    /// The number of permits that it has or wants.
    pub(crate) need: u32,
    /// The claim's entry at its next lock.
    pub(crate) sibling: Slot<LockEntry>,
    /// Links the lock's queue while waiting, its holders afterwards.
    pub(crate) at_lock: Link<LockEntry>,
}

impl Claim {
    /// Returns the token of a claim that is held or withheld.
    pub(crate) fn token(&self) -> Option<Token> {
        match self.state() {
            ClaimState::Held { token } | ClaimState::Withheld { token } => Some(token),
            ClaimState::Waiting { .. } => None,
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

    /// Returns whether this many permits are left. Ignores the queue.
    pub(crate) fn admits(&self, need: u32) -> bool {
        self.taken.checked_add(need).is_some_and(|taken| taken <= self.limit)
    }

    /// Returns whether a new request would be granted at once: the queue is empty, and enough permits are left.
    pub(crate) fn is_free(&self, need: u32) -> bool {
        self.queue.is_empty() && self.admits(need)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }
}

impl Mode {
    /// Returns the number of permits that it takes.
    pub(crate) fn need(self) -> u32 {
        match self {
            Mode::Exclusive => ALL,
            Mode::Shared => 1,
            Mode::Permits { count, .. } => count,
        }
    }

    /// Returns the number of permits of a lock in this mode.
    pub(crate) fn limit(self) -> u32 {
        match self {
            Mode::Exclusive | Mode::Shared => ALL,
            Mode::Permits { of, .. } => of,
        }
    }
}

pub(crate) fn at_lock(entry: &LockEntry) -> &Link<LockEntry> {
    &entry.at_lock
}
pub(crate) fn at_lock_mut(entry: &mut LockEntry) -> &mut Link<LockEntry> {
    &mut entry.at_lock
}
pub(crate) fn at_session(claim: &Claim) -> &Link<Claim> {
    &claim.at_session
}
pub(crate) fn at_session_mut(claim: &mut Claim) -> &mut Link<Claim> {
    &mut claim.at_session
}
