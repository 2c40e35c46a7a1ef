//! Expiry: ends expired sessions and lock-delays that affect a wait, a watch or a session of this process.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{LockName, SessionId};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::batch::LogRequest;
use super::commit::CommitQueue;
use super::lease::LeaseState;
use super::state::State;
use super::task::Task;
use crate::BootInstant;

/// The longest time for which a change can go unnoticed while a call waits or watches.
const POLL: Duration = Duration::from_millis(250);

/// Scans start at intervals of at least this many times their length, so that they take at most a quarter of the time.
const INTERVAL_RATIO: u32 = 4;

/// The work that is due, and the time of the next scan.
#[derive(Default)]
struct Scan {
    /// Sessions that seem to have expired.
    due: Vec<SessionId>,
    is_delay_over: bool,
    next: Option<BootInstant>,
    /// The processes that own the blocking sessions. Their exit ends these sessions.
    processes: HashMap<SessionId, u32>,
    /// Whether a call of this process waits or watches.
    must_poll: bool,
}

impl Scan {
    fn repeat_at(&mut self, at: BootInstant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn add(&mut self, session: SessionId, lease: LeaseState) {
        match lease {
            LeaseState::Expired | LeaseState::Missing => self.due.push(session),
            LeaseState::Unreadable => self.repeat_at(BootInstant::now() + POLL),
            LeaseState::Live { deadline, pid } => {
                self.repeat_at(deadline);
                self.processes.extend(pid.map(|pid| (session, pid)));
            }
        }
    }
}

impl State {
    /// Returns whether a blocker of these locks seems to have expired, or a lock-delay to be over.
    pub(super) fn is_anything_due(&self, locks: &[LockName]) -> bool {
        let is_over = |session| matches!(self.leases.state(session), LeaseState::Expired | LeaseState::Missing);
        self.replica.blockers(locks).into_iter().any(is_over)
            || self.replica.delays.values().any(|(at, _)| at.has_passed())
    }

    /// Scans the sessions and lock-delays that affect this process. `deadlines` caches the deadlines of watched sessions.
    fn scan(&self, deadlines: &mut HashMap<SessionId, BootInstant>) -> Scan {
        let is_watching = self.subscriptions.is_watching();
        let must_poll = is_watching || self.subscriptions.is_waiting();
        let mut scan = Scan { must_poll, ..Scan::default() };
        if let Some((deadline, session)) = self.leases.first_own() {
            scan.add(session, self.leases.state(session));
            if !deadline.has_passed() {
                scan.repeat_at(deadline);
            }
        }
        let wanted: BTreeSet<_> =
            self.waits.values().flat_map(|acquire| &acquire.wants).map(|want| &want.lock).collect();
        for session in self.replica.blockers(wanted) {
            scan.add(session, self.leases.state(session));
        }
        if is_watching {
            self.scan_for_watchers(deadlines, &mut scan);
        }
        if must_poll {
            for (at, _) in self.replica.delays.values() {
                scan.is_delay_over |= at.has_passed();
                scan.repeat_at(*at);
            }
        }
        scan
    }

    /// Scans all sessions, since a watcher receives every end. There may be many: a lease file is only read when the
    /// last known deadline has passed.
    fn scan_for_watchers(&self, deadlines: &mut HashMap<SessionId, BootInstant>, scan: &mut Scan) {
        let mut seen = HashMap::new();
        for session in self.replica.machine.sessions().map(|session| session.id()) {
            let known = deadlines.get(&session).filter(|deadline| !deadline.has_passed()).copied();
            let live = |deadline| LeaseState::Live { deadline, pid: None };
            let deadline = match known.map_or_else(|| self.leases.state(session), live) {
                LeaseState::Live { deadline, .. } => deadline,
                LeaseState::Unreadable => BootInstant::now() + POLL,
                LeaseState::Expired | LeaseState::Missing => {
                    scan.due.push(session);
                    continue;
                }
            };
            scan.repeat_at(deadline);
            seen.insert(session, deadline);
        }
        *deadlines = seen;
    }
}

/// The task that ends sessions and lock-delays.
pub(super) struct ExpiryTask {
    pub(super) queue: Rc<CommitQueue>,
    pub(super) state: Rc<RefCell<State>>,
    /// Notified when a scan may find something new.
    pub(super) changed: Rc<Notify>,
}

impl ExpiryTask {
    pub(super) async fn run(self) {
        let mut deadlines = HashMap::new();
        let mut exit_watches: HashMap<SessionId, Task> = HashMap::new();
        loop {
            let began_at = Instant::now();
            let scan = self.scan(&mut deadlines);
            let next_at = began_at + began_at.elapsed() * INTERVAL_RATIO + Duration::from_millis(1);
            exit_watches.retain(|session, _| scan.processes.contains_key(session));
            for (session, pid) in &scan.processes {
                exit_watches
                    .entry(*session)
                    .or_insert_with(|| Task::spawn(notify_of_exit(*pid, self.changed.clone())));
            }
            if !scan.due.is_empty() || scan.is_delay_over {
                let end = LogRequest::EndDue { locks: self.wanted(), sessions: scan.due };
                if let Err(error) = self.queue.submit(end).await {
                    tracing::debug!(%error, "expired sessions could not be ended; this is retried");
                    tokio::time::sleep(POLL).await;
                }
            } else {
                self.sleep(scan.next, scan.must_poll).await;
            }
            tokio::time::sleep_until(next_at).await;
        }
    }

    fn scan(&self, deadlines: &mut HashMap<SessionId, BootInstant>) -> Scan {
        let mut state = self.state.borrow_mut();
        if (state.subscriptions.is_waiting() || state.subscriptions.is_watching())
            && let Err(error) = state.catch_up()
        {
            tracing::debug!(%error, "cannot read the log; this is retried");
        }
        state.scan(deadlines)
    }

    fn wanted(&self) -> Vec<LockName> {
        let state = self.state.borrow();
        state.waits.values().flat_map(|acquire| &acquire.wants).map(|want| want.lock.clone()).collect()
    }

    async fn sleep(&self, until: Option<BootInstant>, must_poll: bool) {
        let poll = must_poll.then_some(POLL);
        let changed = self.changed.notified();
        match until.map(BootInstant::left).into_iter().chain(poll).min() {
            Some(left) => drop(tokio::time::timeout(left, changed).await),
            None => changed.await,
        }
    }
}

/// Notifies when a process exit_watches. This is only a hint: in another container the number may mean another process, or
/// none. The lock on the lease file decides.
#[cfg(target_os = "linux")]
async fn notify_of_exit(pid: u32, changed: Rc<Notify>) {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::readable::readable;

    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::NONBLOCK) else { return };
    let Ok(process) = readable(process) else { return };
    if process.readable().await.is_ok() {
        changed.notify_one();
    }
}

#[cfg(not(target_os = "linux"))]
async fn notify_of_exit(_pid: u32, _changed: Rc<Notify>) {}
