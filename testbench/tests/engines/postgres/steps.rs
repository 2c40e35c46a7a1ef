//! Random steps for the state machine and a store.

use palisade_core::Mode;
use proptest::collection::vec;
use proptest::prelude::*;

/// The number of locks.
pub(crate) const LOCKS: usize = 4;

/// A step.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Open,
    Close(usize),
    Expire(usize),
    Acquire {
        client: usize,
        wants: Vec<(usize, Mode)>,
        waits: bool,
        may_queue: bool,
        delay: bool,
        value: bool,
    },
    Repeat(usize),
    Cancel(usize),
    /// Cancels a request before it arrives; then it arrives.
    CancelFirst {
        client: usize,
        lock: usize,
    },
    Release {
        grant: usize,
        client: Option<usize>,
        lock: Option<usize>,
    },
    Publish {
        grant: usize,
        client: Option<usize>,
    },
    Force {
        lock: usize,
        only: Option<usize>,
    },
    Resize {
        lock: usize,
        limit: u32,
    },
    EndDelay(usize),
}

fn permits() -> impl Strategy<Value = Mode> {
    (0..4_u32, 1..4_u32).prop_map(|(count, of)| Mode::Permits { count, of })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        5 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        3 => permits(),
    ]
}

/// A lock and a mode. One lock is mostly a semaphore: if every lock were of every kind, most requests would be refused.
fn want() -> impl Strategy<Value = (usize, Mode)> {
    prop_oneof![4 => (0..LOCKS, mode()), 1 => (Just(LOCKS - 1), permits())]
}

/// Any step, the most effective ones more often.
pub(crate) fn step() -> impl Strategy<Value = Step> {
    let acquire = (0..4_usize, vec(want(), 1..4), any::<[bool; 2]>(), 0..8_u8, 0..8_u8);
    let acquire = acquire.prop_map(|(client, wants, [waits, may_queue], delay, value)| Step::Acquire {
        client,
        wants,
        waits,
        may_queue,
        delay: delay == 0,
        value: value == 0,
    });
    prop_oneof![
        1 => Just(Step::Open),
        1 => (0..4_usize).prop_map(Step::Close),
        2 => (0..4_usize).prop_map(Step::Expire),
        16 => acquire,
        2 => (0..64_usize).prop_map(Step::Repeat),
        3 => (0..64_usize).prop_map(Step::Cancel),
        1 => (0..4_usize, 0..LOCKS).prop_map(|(client, lock)| Step::CancelFirst { client, lock }),
        8 => (0..64_usize, proptest::option::weighted(0.1, 0..4_usize), proptest::option::weighted(0.1, 0..LOCKS))
            .prop_map(|(grant, client, lock)| Step::Release { grant, client, lock }),
        1 => (0..64_usize, proptest::option::weighted(0.1, 0..4_usize))
            .prop_map(|(grant, client)| Step::Publish { grant, client }),
        2 => (0..LOCKS, proptest::option::of(0..64_usize)).prop_map(|(lock, only)| Step::Force { lock, only }),
        2 => (prop_oneof![0..LOCKS, Just(LOCKS - 1)], 0..5_u32).prop_map(|(lock, limit)| Step::Resize { lock, limit }),
        2 => (0..64_usize).prop_map(Step::EndDelay),
    ]
}
