//! The order of arrival, as far as clients can tell.
//!
//! Requests that are under way together may arrive in any order. But once something is answered that was sent after a
//! request, that request has arrived; whoever begins to ask only then comes later.

use std::time::Instant;

/// One request on a hot lock, and what became of it.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    /// Before it was sent.
    pub(crate) began_at: Instant,
    /// After it was sent.
    pub(crate) sent_at: Instant,
    /// How many grants were before it.
    pub(crate) order: usize,
    /// Before its release was sent.
    pub(crate) freeing_at: Instant,
    /// After its release was answered.
    pub(crate) freed_at: Instant,
}

/// How many grants came before that of a request which was certainly there earlier.
pub(crate) fn overtaking(grants: &[Grant]) -> usize {
    // Each request with the moment at which it has certainly arrived.
    let mut round_trips: Vec<(Instant, Instant)> =
        grants.iter().map(|grant| (grant.freeing_at, grant.freed_at)).collect();
    round_trips.sort_unstable();
    // The first answer to anything that was sent from here on.
    for at in (1..round_trips.len()).rev() {
        round_trips[at - 1].1 = round_trips[at - 1].1.min(round_trips[at].1);
    }
    let arrived_at = |grant: &Grant| {
        let later = round_trips.partition_point(|(sent_at, _)| *sent_at <= grant.sent_at);
        round_trips.get(later).map(|(_, answered_at)| *answered_at)
    };
    let mut arrived: Vec<(Instant, usize)> =
        grants.iter().filter_map(|grant| Some((arrived_at(grant)?, grant.order))).collect();
    arrived.sort_unstable();
    // The latest grant of all that have arrived up to here.
    for at in 1..arrived.len() {
        arrived[at].1 = arrived[at].1.max(arrived[at - 1].1);
    }
    let overtakes = |grant: &&Grant| {
        let earlier = arrived.partition_point(|(arrived_at, _)| *arrived_at <= grant.began_at);
        earlier > 0 && arrived[earlier - 1].1 > grant.order
    };
    grants.iter().filter(overtakes).count()
}
