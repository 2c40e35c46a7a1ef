//! What the clients do: programs that use the library as an application would, and report everything they were told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use palisade::simulation::sleep;
use palisade::{ErrorKind, Guard, LockGuard, Loss, Options, Palisade, Standing};
use palisade_core::{LockName, Token};
use palisade_fence::{ErrorKind as FenceErrorKind, Sealed, Settled};

use super::judge::{Record, WatchPosition};
use super::resource::Counter;
use crate::faulty_disk::Rng;

/// The locks that protect counters, each with its counter.
pub(super) const COUNTED: [&str; 3] = ["counted/0", "counted/1", "counted/2"];
/// Permits of the semaphore.
const PERMITS: u32 = 3;

/// What a client's tasks share with each other and with the world.
pub(super) struct Shared {
    pub(super) number: usize,
    pub(super) url: String,
    pub(super) ttl: Duration,
    pub(super) record: Rc<RefCell<Record>>,
    pub(super) rng: RefCell<Rng>,
    pub(super) counters: Vec<Counter>,
    /// The grants that the client has, by token.
    pub(super) held: RefCell<BTreeMap<Token, Held>>,
    /// The faults are over: the client does only what must succeed.
    pub(super) are_faults_over: Rc<Cell<bool>>,
    /// The client ends.
    pub(super) is_ending: Rc<Cell<bool>>,
    /// Cycles that were completed since the faults are over.
    pub(super) cycles_after_faults: Cell<u32>,
    /// Increments that were acknowledged, and those whose outcome is unknown.
    pub(super) acknowledged: Rc<RefCell<[u64; COUNTED.len()]>>,
    pub(super) unknown: Rc<RefCell<[u64; COUNTED.len()]>>,
    pub(super) is_closed: Cell<bool>,
    /// The pause between two operations, at most.
    pub(super) think: Duration,
}

/// A grant that a client has.
pub(super) struct Held {
    pub(super) guard: Rc<dyn AsGuard>,
    /// The client has begun to release it.
    pub(super) is_released: bool,
    pub(super) is_exclusive: bool,
}

/// Any kind of guard.
pub(super) trait AsGuard {
    fn guard(&self) -> &Guard;
}

impl<G: Deref<Target = Guard>> AsGuard for G {
    fn guard(&self) -> &Guard {
        self
    }
}

/// How long an operation may wait.
enum Wait {
    Try,
    Within(Duration),
    /// As long as it takes, unless the caller drops the future before.
    Dropped(Duration),
    Forever,
}

impl Shared {
    fn below(&self, bound: usize) -> usize {
        self.rng.borrow_mut().below(bound)
    }

    fn random_time(&self, longest: Duration) -> Duration {
        longest * self.below(1_000) as u32 / 1_000
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.record.borrow_mut().note(format_args!("client {} {what}", self.number));
    }

    fn count(&self, what: &'static str) {
        self.record.borrow_mut().count(what);
    }

    /// Returns the last committed index.
    fn last_index(&self) -> u64 {
        self.record.borrow().history.last_index()
    }

    fn check(&self, checked: impl FnOnce(&Record) -> Result<(), String>) {
        let checked = checked(&self.record.borrow());
        self.record.borrow_mut().check(checked.map_err(|what| format!("{what} (client {})", self.number)));
    }
}

/// Runs until the client ends. Connects again after it has closed the client.
pub(super) async fn run(shared: Rc<Shared>) {
    while !shared.is_ending.get() {
        let options = Options::new().ttl(shared.ttl).label(format!("client-{}", shared.number));
        let Ok(palisade) = options.connect(&shared.url).await else {
            sleep(Duration::from_millis(200) + shared.random_time(Duration::from_secs(1))).await;
            continue;
        };
        shared.note(format_args!("is connected"));
        let workers = (0..1 + shared.below(2)).map(|_| work(shared.clone(), palisade.clone()));
        let workers: Vec<_> = workers.map(tokio::task::spawn_local).collect();
        if shared.below(3) == 0 {
            tokio::task::spawn_local(watch(shared.clone(), palisade.clone()));
        }
        for worker in workers {
            drop(worker.await);
        }
        let closed = palisade.close().await;
        shared.note(format_args!("has closed: {}", if closed.is_ok() { "ok" } else { "failed" }));
    }
    shared.is_closed.set(true);
}

/// One task of a client: one operation after the other.
async fn work(shared: Rc<Shared>, palisade: Palisade) {
    loop {
        let think =
            if shared.are_faults_over.get() { shared.think.min(Duration::from_secs(1)) } else { shared.think };
        sleep(shared.random_time(think)).await;
        if shared.is_ending.get() {
            return;
        }
        if shared.are_faults_over.get() {
            let counter = shared.below(COUNTED.len());
            if increment(&shared, &palisade, counter, Wait::Forever).await {
                shared.cycles_after_faults.set(shared.cycles_after_faults.get() + 1);
            }
            continue;
        }
        let counter = shared.below(COUNTED.len());
        match shared.below(24) {
            0..8 => {
                let wait = wait(&shared);
                increment(&shared, &palisade, counter, wait).await;
            }
            8 => hold(&shared, palisade.rw_lock("shared").read(), &["shared"], false).await,
            9 => hold(&shared, palisade.rw_lock("shared").write(), &["shared"], true).await,
            10 | 11 => {
                let count = 1 + shared.below(2) as u32;
                let request = palisade.semaphore("permits", PERMITS).many(count);
                hold(&shared, request, &["permits"], false).await;
            }
            12 => {
                shared.count("path: several locks at once");
                let names = [COUNTED[counter], "plain"];
                hold(&shared, palisade.lock_all(names), &names, true).await;
            }
            13 => {
                let request = palisade.lock("plain").delay(Duration::from_millis(500));
                hold(&shared, request, &["plain"], true).await;
            }
            14 | 15 => hold(&shared, palisade.lock("plain"), &["plain"], true).await,
            16 => campaign(&shared, &palisade).await,
            17 | 18 => inspect(&shared, &palisade).await,
            19 if shared.below(4) == 0 => force(&shared, &palisade, counter).await,
            20 if shared.below(4) == 0 => resize(&shared, &palisade).await,
            21 if shared.below(10) == 0 => return,
            _ => {}
        }
    }
}

fn wait(shared: &Shared) -> Wait {
    match shared.below(8) {
        0 | 1 => Wait::Try,
        2 | 3 => Wait::Within(shared.random_time(Duration::from_secs(2))),
        4 => Wait::Dropped(shared.random_time(Duration::from_secs(1))),
        _ => Wait::Forever,
    }
}

/// Acquires a lock in one of the ways in which it can be acquired, and checks the outcome.
async fn acquire<G: Deref<Target = Guard> + From<Guard> + 'static>(
    shared: &Rc<Shared>,
    request: palisade::Request<G>,
    names: &[&str],
    wait: Wait,
    is_exclusive: bool,
) -> Option<Rc<G>> {
    let since = shared.last_index();
    let outcome = match wait {
        Wait::Try => request.try_acquire().await,
        Wait::Within(limit) => request.acquire_within(limit).await,
        Wait::Forever => request.acquire().await.map(Some),
        Wait::Dropped(after) => match select(pin!(request.acquire()), pin!(sleep(after))).await {
            Either::Left((outcome, _)) => outcome.map(Some),
            Either::Right(_) => {
                shared.count("path: acquire dropped");
                shared.note(format_args!("drops its acquire of {names:?}"));
                return None;
            }
        },
    };
    match outcome {
        Ok(Some(guard)) => {
            let guard = Rc::new(guard);
            granted(shared, &guard, names, since, is_exclusive);
            Some(guard)
        }
        Ok(None) => {
            if let (Wait::Try, [name]) = (&wait, names) {
                let name = LockName::new(name).expect("a name");
                shared.check(|record| record.history.check_busy(&name, since));
            } else {
                shared.count("path: acquire timed out");
            }
            None
        }
        Err(error) => {
            if matches!(error.kind(), ErrorKind::Lost(_)) {
                shared.count("path: session expired while a client waited");
            }
            shared.note(format_args!("cannot acquire {names:?}: {}", kind(error.kind())));
            None
        }
    }
}

/// Returns the kind of an error in a word, for the trace.
fn kind(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Lost(Loss::Expired) => "expired",
        ErrorKind::Lost(_) => "lost",
        ErrorKind::Outage { .. } => "outage",
        ErrorKind::Denied { .. } => "denied",
        _ => "error",
    }
}

/// Notes and checks a grant.
fn granted<G: Deref<Target = Guard> + 'static>(
    shared: &Rc<Shared>,
    guard: &Rc<G>,
    names: &[&str],
    since: u64,
    is_exclusive: bool,
) {
    let Ok(token) = guard.token() else {
        return shared.note(format_args!("was given a guard of {names:?} whose lock is lost"));
    };
    shared.note(format_args!("holds {names:?} with token {token}"));
    let locks: Vec<_> = names.iter().map(|name| LockName::new(name).expect("a name")).collect();
    shared.check(|record| record.history.check_grant(token, guard.session(), &locks, since));
    let held = Held { guard: Rc::new(Alias(guard.clone())), is_released: false, is_exclusive };
    shared.held.borrow_mut().insert(token, held);
}

/// A guard that others have too.
struct Alias<G>(Rc<G>);

impl<G: Deref<Target = Guard>> Deref for Alias<G> {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}

/// Releases a lock, or drops its guard.
async fn release<G: Deref<Target = Guard> + 'static>(shared: &Rc<Shared>, token: Option<Token>, guard: Rc<G>) {
    let Some(token) = token else { return };
    if let Some(held) = shared.held.borrow_mut().get_mut(&token) {
        held.is_released = true;
    }
    if shared.below(3) > 0 {
        match guard.release().await {
            Ok(()) => {
                shared.note(format_args!("has released {token}"));
                shared.check(|record| record.history.check_released(token));
            }
            Err(error) => shared.note(format_args!("has not released {token}: {}", kind(error.kind()))),
        }
    }
    shared.held.borrow_mut().remove(&token);
}

/// Holds a lock for a while.
async fn hold<G: Deref<Target = Guard> + From<Guard> + 'static>(
    shared: &Rc<Shared>,
    request: palisade::Request<G>,
    names: &[&str],
    is_exclusive: bool,
) {
    let wait = wait(shared);
    let Some(guard) = acquire(shared, request, names, wait, is_exclusive).await else { return };
    let token = guard.token().ok();
    let longest = if shared.below(6) == 0 { 3 * shared.ttl } else { Duration::from_millis(800) };
    let time = shared.random_time(longest);
    match select(pin!(sleep(time)), pin!(until_lost(shared, &guard))).await {
        Either::Left(_) => {}
        Either::Right((loss, _)) => {
            shared.note(format_args!("has lost {names:?}: {loss}"));
            if let Some(token) = token {
                shared.check(|record| record.history.check_loss(token, guard.session(), &loss));
            }
        }
    }
    release(shared, token, guard).await;
}

/// Waits until a lock is lost.
async fn until_lost(shared: &Shared, guard: &Guard) -> Loss {
    loop {
        if let Standing::Lost(loss) = guard.jeopardy().await {
            return loss;
        }
        let seen = guard.safe_until();
        match select(pin!(guard.renewed(seen)), pin!(guard.lost())).await {
            Either::Left(_) => shared.count("path: jeopardy ended by a keep-alive"),
            Either::Right((loss, _)) => return loss,
        }
    }
}

/// Increments a counter under its lock: seals it, and then reads and writes it a few times. Returns whether that went well.
async fn increment(shared: &Rc<Shared>, palisade: &Palisade, counter: usize, wait: Wait) -> bool {
    let names = [COUNTED[counter]];
    let Some(guard) = acquire(shared, palisade.lock(names[0]), &names, wait, true).await else { return false };
    let token = guard.token().ok();
    let is_written = match token {
        Some(token) => write(shared, &guard, token, counter).await,
        None => false,
    };
    release::<LockGuard>(shared, token, guard).await;
    is_written
}

async fn write(shared: &Rc<Shared>, guard: &LockGuard, token: Token, counter: usize) -> bool {
    let mut sealed = match Sealed::seal(shared.counters[counter].clone(), token).await {
        Ok(sealed) => sealed,
        Err(error) => {
            if matches!(error.kind(), FenceErrorKind::Superseded { .. }) {
                shared.count("path: fence refused a stale seal");
            }
            return false;
        }
    };
    for _ in 0..1 + shared.below(3) {
        let Ok(value) = sealed.read(()).await else { return false };
        // It works on the value for a while, and may lose the lock meanwhile.
        let is_long = shared.below(8) == 0 && !shared.are_faults_over.get();
        let longest = if is_long { 2 * shared.ttl } else { Duration::from_millis(300) };
        sleep(shared.random_time(longest)).await;
        if shared.below(2) == 0 && matches!(guard.standing(), Standing::Lost(_)) {
            return false;
        }
        shared.unknown.borrow_mut()[counter] += 1;
        match sealed.write(value + 1).await {
            Ok(before) => {
                if before != value {
                    let what = format!("U: {token} has overwritten {before}, and had read {value}");
                    shared.record.borrow_mut().fail(what);
                }
            }
            // A copy of it may have been delivered before the seal that this one has met.
            Err(error) if matches!(error.kind(), FenceErrorKind::Stale { .. }) => {
                shared.count("path: fence refused a stale write");
                return false;
            }
            Err(_) => match sealed.settle().await {
                Ok(Settled::Applied(_)) => {
                    shared.count("path: write of unknown outcome settled");
                }
                // It is never carried out.
                Ok(_) => {
                    shared.unknown.borrow_mut()[counter] -= 1;
                    continue;
                }
                // The outcome stays unknown.
                Err(_) => return false,
            },
        }
        shared.unknown.borrow_mut()[counter] -= 1;
        shared.acknowledged.borrow_mut()[counter] += 1;
    }
    true
}

async fn campaign(shared: &Rc<Shared>, palisade: &Palisade) {
    let request = palisade.election("election").candidacy(format!("client-{}", shared.number));
    let wait = wait(shared);
    let Some(leadership) = acquire(shared, request, &["election"], wait, true).await else { return };
    let token = leadership.token().ok();
    if leadership.publish("ready").await.is_ok() {
        shared.count("path: value published");
    }
    sleep(shared.random_time(Duration::from_millis(500))).await;
    release(shared, token, leadership).await;
}

async fn inspect(shared: &Rc<Shared>, palisade: &Palisade) {
    let since = shared.last_index();
    if shared.below(3) == 0 {
        let Ok(locks) = palisade.list("counted/").await else { return };
        for lock in locks {
            shared.check(|record| record.history.check_seen(&lock.name, Some(&lock), since));
        }
    } else {
        let name = LockName::new(COUNTED[shared.below(COUNTED.len())]).expect("a name");
        if let Ok(lock) = palisade.inspect(name.as_str()).await {
            shared.check(|record| record.history.check_seen(&name, lock.as_ref(), since));
        }
    }
}

async fn resize(shared: &Shared, palisade: &Palisade) {
    if palisade.resize("permits", PERMITS).await.is_ok() {
        shared.count("operator: semaphore resized");
    }
}

/// Takes a lock away from its holder, as an operator does.
async fn force(shared: &Rc<Shared>, palisade: &Palisade, counter: usize) {
    if let Ok(forced) = palisade.force_release(COUNTED[counter], "the simulation").await {
        shared.note(format_args!("has taken {} from {} holders", COUNTED[counter], forced.grants));
        shared.count("operator: lock taken away");
    }
}

/// Follows the events of locks.
async fn watch(shared: Rc<Shared>, palisade: Palisade) {
    let prefix = ["", "counted/", "counted/1"][shared.below(3)];
    let mut position = WatchPosition::new(&shared.record.borrow().history);
    let Ok(mut watch) = palisade.watch(prefix).await else { return };
    drop(palisade);
    while let Some(watched) = watch.next().await {
        match watched {
            palisade::engine::Watched::Event(event) => {
                let seen = position.seen(&shared.record.borrow().history, prefix, &event);
                shared.record.borrow_mut().check(seen.map_err(|what| format!("{what} (client {})", shared.number)));
            }
            palisade::engine::Watched::Missed => {
                if position.missed() {
                    shared.count("path: watch missed events");
                }
            }
        }
    }
}
