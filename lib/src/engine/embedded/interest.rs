//! Who ends sessions: whoever has an interest in what they hold, or in what is withheld after them.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{GrantState, LockName, Machine, SessionId};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::alive::Sign;
use super::draft::What;
use super::engine::Shared;
use super::state::State;
use crate::BootInstant;

/// Behind all that wakes: how long something can go unnoticed at most while somebody waits or watches.
const POLL: Duration = Duration::from_millis(250);

/// Looking around takes at most this part of the time.
const SHARE: u32 = 4;

/// A task that ends when this is dropped.
pub(super) struct Task(JoinHandle<()>);

impl Task {
    pub(super) fn spawn(work: impl Future<Output = ()> + 'static) -> Task {
        Task(tokio::task::spawn_local(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The sessions that stand in the way at these locks: those that hold them, and the first that waits. One further
/// behind is in nobody's way until it is the first.
pub(super) fn blockers<'l>(machine: &Machine, locks: impl IntoIterator<Item = &'l LockName>) -> BTreeSet<SessionId> {
    let mut sessions = BTreeSet::new();
    for lock in locks.into_iter().filter_map(|lock| machine.lock(lock)) {
        sessions.extend(lock.holders().filter_map(|grant| match grant.state {
            GrantState::Held { session, .. } => Some(session),
            GrantState::Withheld => None,
        }));
        sessions.extend(lock.waiters().next().map(|waiter| waiter.session));
    }
    sessions
}

/// What there is to do, and when to look again.
#[derive(Default)]
struct Outlook {
    /// Sessions that seem to be over.
    due: Vec<SessionId>,
    is_delay_over: bool,
    next: Option<BootInstant>,
    /// Processes whose death would be news.
    processes: HashMap<SessionId, u32>,
    /// Whether somebody waits or watches.
    is_interested: bool,
}

impl Outlook {
    fn look_again_at(&mut self, at: BootInstant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn add(&mut self, session: SessionId, sign: Sign) {
        match sign {
            Sign::Over | Sign::Lost => self.due.push(session),
            Sign::Hidden => {}
            Sign::Until { deadline, pid } => {
                self.look_again_at(deadline);
                self.processes.extend(pid.map(|pid| (session, pid)));
            }
        }
    }
}

impl State {
    /// Whether anything at these locks seems to be over.
    pub(super) fn is_anything_due(&self, locks: &[LockName]) -> bool {
        let is_over = |session| matches!(self.alive.look(session), Sign::Over | Sign::Lost);
        blockers(&self.replica.machine, locks).into_iter().any(is_over)
            || self.replica.delays.values().any(|(at, _)| at.has_passed())
    }

    /// Looks at all in which somebody here has an interest. `deadlines` is what watchers know of sessions.
    fn look_around(&self, deadlines: &mut HashMap<SessionId, BootInstant>) -> Outlook {
        let is_watching = self.listeners.is_watching();
        let is_interested = is_watching || self.listeners.is_waiting();
        let mut outlook = Outlook { is_interested, ..Outlook::default() };
        if let Some((deadline, session)) = self.alive.first_own() {
            outlook.add(session, self.alive.look(session));
            outlook.look_again_at(deadline);
        }
        let wanted: BTreeSet<_> = self.waits.values().flat_map(|ask| &ask.wants).map(|want| &want.lock).collect();
        for session in blockers(&self.replica.machine, wanted) {
            outlook.add(session, self.alive.look(session));
        }
        if is_watching {
            self.look_for_watchers(deadlines, &mut outlook);
        }
        if is_interested {
            for (at, _) in self.replica.delays.values() {
                outlook.is_delay_over |= at.has_passed();
                outlook.look_again_at(*at);
            }
        }
        outlook
    }

    /// A watcher wants to see every end, but there may be many sessions: each is looked at when the deadline that was
    /// seen last has passed.
    fn look_for_watchers(&self, deadlines: &mut HashMap<SessionId, BootInstant>, outlook: &mut Outlook) {
        let mut seen = HashMap::new();
        for session in self.replica.machine.sessions().map(|session| session.id()) {
            let known = deadlines.get(&session).filter(|deadline| !deadline.has_passed()).copied();
            let deadline = match known.map_or_else(|| self.alive.look(session), until) {
                Sign::Until { deadline, .. } => deadline,
                Sign::Hidden => BootInstant::now() + POLL,
                Sign::Over | Sign::Lost => {
                    outlook.due.push(session);
                    continue;
                }
            };
            outlook.look_again_at(deadline);
            seen.insert(session, deadline);
        }
        *deadlines = seen;
    }
}

fn until(deadline: BootInstant) -> Sign {
    Sign::Until { deadline, pid: None }
}

impl Shared {
    /// Ends what is over and stands in somebody's way, for ever.
    pub(super) async fn mind_forever(&self) {
        let mut deadlines = HashMap::new();
        let mut deaths: HashMap<SessionId, Task> = HashMap::new();
        loop {
            let began = Instant::now();
            let outlook = self.look(&mut deadlines);
            let earliest = began + began.elapsed() * SHARE + Duration::from_millis(1);
            deaths.retain(|session, _| outlook.processes.contains_key(session));
            for (session, pid) in &outlook.processes {
                deaths.entry(*session).or_insert_with(|| Task::spawn(tell_of_death(*pid, self.changed.clone())));
            }
            if !outlook.due.is_empty() || outlook.is_delay_over {
                let end = What::EndDue { locks: self.wanted(), sessions: outlook.due };
                if let Err(error) = self.submit(end).await {
                    tracing::debug!(%error, "sessions that are over could not be ended; tried again");
                    tokio::time::sleep(POLL).await;
                }
            } else {
                self.rest(outlook.next, outlook.is_interested).await;
            }
            tokio::time::sleep_until(earliest).await;
        }
    }

    fn look(&self, deadlines: &mut HashMap<SessionId, BootInstant>) -> Outlook {
        let mut state = self.state.borrow_mut();
        if (state.listeners.is_waiting() || state.listeners.is_watching())
            && let Err(error) = state.catch_up()
        {
            tracing::debug!(%error, "cannot read the log; tried again");
        }
        state.look_around(deadlines)
    }

    fn wanted(&self) -> Vec<LockName> {
        let state = self.state.borrow();
        state.waits.values().flat_map(|ask| &ask.wants).map(|want| want.lock.clone()).collect()
    }

    async fn rest(&self, until: Option<BootInstant>, is_interested: bool) {
        let poll = is_interested.then_some(POLL);
        let changed = self.changed.notified();
        match until.map(BootInstant::left).into_iter().chain(poll).min() {
            Some(left) => drop(tokio::time::timeout(left, changed).await),
            None => changed.await,
        }
    }
}

/// A hint only, for the number may mean another process, or none, in another container: the lock on the session's
/// file is what counts.
#[cfg(target_os = "linux")]
async fn tell_of_death(pid: u32, changed: Rc<Notify>) {
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
async fn tell_of_death(_pid: u32, _changed: Rc<Notify>) {}
