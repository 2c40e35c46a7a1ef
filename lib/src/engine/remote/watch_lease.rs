//! The lease of a client's watches at the store.

use std::cell::Cell;
use std::time::Duration;

use crate::BootInstant;

/// When the store stops recording events for this client, unless the client renews the lease. A lease that ran out between
/// two renewals means lost events: the process was paused, or its calls failed.
#[derive(Default)]
pub(crate) struct WatchLease {
    ends_at: Cell<Option<BootInstant>>,
}

impl WatchLease {
    /// Forgets the lease: the next watch is the first.
    pub(super) fn reset(&self) {
        self.ends_at.set(None);
    }

    /// Notes a watch that began by a call sent at `sent_at`. Watches that began earlier may end earlier.
    pub(crate) fn began(&self, sent_at: BootInstant, lease: Duration) {
        self.ends_at.set(self.ends_at.get().or(Some(sent_at + lease)));
    }

    /// Notes that a call sent at `sent_at` has renewed all watches. Returns whether events may have been lost before.
    pub(crate) fn renewed(&self, sent_at: BootInstant, lease: Duration) -> bool {
        self.ends_at.replace(Some(sent_at + lease)).is_some_and(BootInstant::has_passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const AGES: Duration = Duration::from_secs(1000);

    fn since_boot(ago: Duration) -> BootInstant {
        BootInstant::after_boot(BootInstant::now().since_boot().saturating_sub(ago))
    }

    #[test]
    fn a_renewal_in_time_loses_nothing() {
        let lease = WatchLease::default();
        lease.began(since_boot(LEASE / 2), LEASE);
        assert!(!lease.renewed(BootInstant::now(), LEASE));
        assert!(!lease.renewed(BootInstant::now(), LEASE));
    }

    #[test]
    fn a_renewal_after_the_end_of_the_lease_may_have_lost_events() {
        let lease = WatchLease::default();
        lease.began(since_boot(LEASE * 2), LEASE);
        assert!(lease.renewed(BootInstant::now(), LEASE));
        assert!(!lease.renewed(BootInstant::now(), LEASE), "the renewal itself was in time");
    }

    #[test]
    fn a_second_watch_does_not_hide_that_the_first_has_lapsed() {
        let lease = WatchLease::default();
        lease.began(since_boot(LEASE * 2), LEASE);
        lease.began(since_boot(LEASE / 2), LEASE);
        assert!(lease.renewed(BootInstant::now(), LEASE));
    }

    #[test]
    fn a_first_watch_has_missed_nothing() {
        let lease = WatchLease::default();
        lease.began(since_boot(AGES), LEASE);
        lease.reset();
        assert!(!lease.renewed(BootInstant::now(), LEASE));
    }
}
