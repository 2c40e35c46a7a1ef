//! The copy of all locks, and the tasks that keep it true.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use palisade_core::{LockName, SessionId};
use serde::Serialize;
use tokio::sync::{Notify, Semaphore, broadcast, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::lock::{Holder, Lock};
use super::moments::{Moment, Moments};
use super::numbers::{Counters, EventCounts, Sample, Samples};
use super::source::{Member, Source, WatchedItem};

/// How often changes are read and sent.
const TICK: Duration = Duration::from_millis(200);
/// How many locks are read in one tick. It bounds what the pages cost a busy engine.
const READ_AT_ONCE: usize = 200;
/// If more locks have changed than this, the list is read instead.
const MOST_UNREAD: usize = 10_000;
/// How many rows are sent in one tick, to all pages together, and how many to each at least.
const SENT_TO_ALL: usize = 20_000;
const SENT_TO_EACH: usize = 100;
/// How many pages get everything at once, and for how long one that reads slowly keeps the others waiting. So requests of clients
/// need not wait.
const LOADING: usize = 4;
const LONGEST_LOADING: Duration = Duration::from_secs(1);
/// Where the board's clock begins: a lock may be held for longer than the board exists.
const BEGINNING: u64 = 1 << 40;
/// How often the whole list is read, unless it takes long.
const SWEEP: Duration = Duration::from_secs(3);
/// How long the board goes on without a page, if it need not count.
const LINGER: Duration = Duration::from_secs(10);
/// How many messages a page may fall behind before it is dropped.
const BACKLOG: usize = 64;
/// How much a time may differ between two reads of the same state.
const JITTER: u64 = 700;

/// The locks of a source as pages see them, for any number of pages.
pub struct Board {
    source: Arc<dyn Source>,
    started_at: Instant,
    state: Mutex<State>,
    messages: broadcast::Sender<Message>,
    opened: Notify,
    /// Tells this board from one of another process, whose clock is another one.
    pub(super) id: String,
    loading: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<String, Arc<Row>>,
    /// Whether `rows` has all locks.
    is_complete: bool,
    /// Names of rows that pages do not have yet.
    unsent: BTreeSet<String>,
    /// The last row that was sent.
    sent: String,
    samples: Samples,
    counts: EventCounts,
    moments: Moments,
    outage: Option<String>,
}

/// A lock in the list. Times are those of the board.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(super) name: String,
    limit: Option<u32>,
    pub(super) holders: Vec<RowHolder>,
    holder_count: u32,
    pub(super) waiters: Vec<RowWaiter>,
    waiter_count: u32,
    value: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RowHolder {
    token: u64,
    mode: &'static str,
    permits: Option<u32>,
    session: Option<u64>,
    label: Option<String>,
    since: Option<u64>,
    until: Option<u64>,
    ttl: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RowWaiter {
    session: u64,
    label: String,
    mode: &'static str,
    permits: Option<u32>,
    since: Option<u64>,
    until: Option<u64>,
    ttl: Option<u64>,
}

/// A message to all pages.
#[derive(Debug, Clone)]
pub(super) enum Message {
    Rows(Arc<Rows>),
    /// All rows are there: each page gets them again, from the beginning.
    Loaded,
    Numbers(Arc<str>),
    Outage(Arc<str>),
}

/// Rows that have changed.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) now: u64,
    pub(super) rows: Vec<Arc<Row>>,
    pub(super) gone: Vec<String>,
    pub(super) complete: bool,
    /// The message for a page that sees everything.
    pub(super) json: Arc<str>,
}

/// What a new page gets first, and then.
pub(super) struct Opening {
    pub(super) now: u64,
    pub(super) samples: Vec<Sample>,
    pub(super) rows: VecDeque<Arc<Row>>,
    pub(super) is_complete: bool,
    pub(super) outage: Option<String>,
    pub(super) messages: broadcast::Receiver<Message>,
}

impl Board {
    /// Returns a board that shows the locks of this source once [`Board::run`] runs.
    pub fn new(source: Arc<dyn Source>) -> Arc<Board> {
        let (messages, _) = broadcast::channel(BACKLOG);
        let (state, opened, loading) = (Mutex::default(), Notify::new(), Arc::new(Semaphore::new(LOADING)));
        let id = format!("{:016x}", RandomState::new().build_hasher().finish());
        Arc::new(Board { source, started_at: Instant::now(), state, messages, opened, id, loading })
    }

    pub(crate) fn source(&self) -> &dyn Source {
        &*self.source
    }

    /// Returns the milliseconds since the board began.
    pub(super) fn now(&self) -> u64 {
        BEGINNING + u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a page.
    pub(super) fn open(&self) -> Opening {
        let state = self.state();
        let opening = Opening {
            now: self.now(),
            samples: state.samples.kept().iter().cloned().collect(),
            rows: state.rows.values().cloned().collect(),
            is_complete: state.is_complete,
            outage: state.outage.clone(),
            messages: self.messages.subscribe(),
        };
        self.opened.notify_one();
        opening
    }

    /// Waits for a place among the pages that get everything at once. The place is free again when the returned value is dropped, or
    /// after a while.
    pub(super) async fn place(&self) -> oneshot::Sender<()> {
        let permit = self.loading.clone().acquire_owned().await;
        let (place, mut is_dropped) = oneshot::channel();
        tokio::spawn(async move {
            let _permit = permit;
            drop(timeout(LONGEST_LOADING, &mut is_dropped).await);
        });
        place
    }

    /// Returns the moments of a lock, and its holders and waiters with the board's times.
    pub(super) fn details(&self, lock: Option<Lock>, name: &str) -> (u64, Option<Row>, Vec<Moment>) {
        let mut state = self.state();
        let now = self.now();
        if let Some(lock) = &lock {
            state.moments.add_labels(lock);
        }
        let row = lock.map(|lock| state.row(lock, now));
        (now, row, state.moments.of(name))
    }

    /// Follows the source until this is dropped.
    pub async fn run(self: Arc<Board>) {
        tokio::select! {
            () = self.sample() => {}
            () = self.follow_while_needed() => {}
        }
    }

    /// Adds a sample each second.
    async fn sample(&self) {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            seconds.tick().await;
            let (counters, members) = (self.source.counters().await, self.source.members().await);
            let json = {
                let mut state = self.state();
                let counters = counters.unwrap_or_else(|| Counters {
                    locks: state.rows.len() as u64,
                    waiting: state.rows.values().map(|row| u64::from(row.waiter_count)).sum(),
                    ..state.counts.counters()
                });
                let now = self.now();
                let sample = state.samples.add(now, counters);
                numbers(now, &sample, members.as_deref())
            };
            self.send(Message::Numbers(json));
        }
    }

    fn send(&self, message: Message) {
        // An error means that no page is open.
        drop(self.messages.send(message));
    }

    async fn follow_while_needed(&self) {
        let has_counters = self.source.counters().await.is_some();
        loop {
            if has_counters && self.messages.receiver_count() == 0 {
                self.opened.notified().await;
            }
            if let Err(outage) = self.follow(has_counters).await {
                tracing::debug!(%outage, "the page cannot follow the locks");
                self.report(outage);
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    fn report(&self, outage: String) {
        let mut state = self.state();
        let json = json(&Outage { now: self.now(), text: &outage });
        (state.outage, state.is_complete) = (Some(outage), false);
        drop(state);
        self.send(Message::Outage(json));
    }

    /// Follows the source until it fails, or until no page has been open for a while.
    async fn follow(&self, may_stop: bool) -> Result<(), String> {
        // The watch begins before the list is read: no change falls between the two.
        let mut changes = self.source.watch().await?;
        self.state().forget_history();
        let mut swept = self.sweep().await?;
        self.state().unsent.clear();
        self.send(Message::Loaded);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut unread, mut has_missed, mut unseen_since) = (Unread::default(), false, None);
        loop {
            tokio::select! {
                biased;
                _ = ticks.tick() => {
                    self.read(unread.take(READ_AT_ONCE)).await?;
                    if swept.is_over(has_missed) {
                        // The list has all that came before it.
                        (has_missed, unread) = (false, Unread::default());
                        swept = self.sweep().await?;
                    }
                    self.send_rows();
                    let is_seen = !may_stop || self.messages.receiver_count() > 0;
                    let since = *unseen_since.get_or_insert_with(Instant::now);
                    if is_seen {
                        unseen_since = None;
                    } else if since.elapsed() > LINGER {
                        self.state().forget_rows();
                        return Ok(());
                    }
                }
                item = changes.next() => match item {
                    Some(WatchedItem::Event(event)) => {
                        let (mut state, now) = (self.state(), self.now());
                        state.moments.add(&event, now);
                        state.counts.event(&event, now);
                        drop(state);
                        match unread.names.len() < MOST_UNREAD {
                            true => unread.add(event.locks().into_iter().flatten()),
                            // The list has them all, and reading it is less work.
                            false => has_missed = true,
                        }
                    }
                    Some(WatchedItem::Missed) => {
                        has_missed = true;
                        self.state().forget_history();
                    }
                    None => return Err("the watch of the locks has ended; it begins again".to_owned()),
                },
            }
        }
    }

    /// Reads these locks.
    async fn read(&self, names: Vec<LockName>) -> Result<(), String> {
        let locks = join_all(names.iter().map(|name| self.source.lock(name.clone()))).await;
        for (name, lock) in names.iter().zip(locks) {
            let lock = lock?;
            let (mut state, now) = (self.state(), self.now());
            state.update(name.as_str(), lock, now);
        }
        Ok(())
    }

    /// Reads the whole list. Returns when to do it again.
    async fn sweep(&self) -> Result<Swept, String> {
        let began = Instant::now();
        let locks = self.source.list().await?;
        let took = began.elapsed();
        let (mut state, now) = (self.state(), self.now());
        let mut gone: HashSet<String> = state.rows.keys().cloned().collect();
        for lock in locks {
            gone.remove(&lock.name);
            let name = lock.name.clone();
            state.update(&name, Some(lock), now);
        }
        for name in gone {
            state.update(&name, None, now);
        }
        (state.is_complete, state.outage) = (true, None);
        // A list that takes long is read less often.
        let soonest_at = began + took * 10;
        Ok(Swept { soonest_at, next_at: soonest_at.max(began + SWEEP) })
    }

    /// Sends rows that have changed, up to a bound. The rest follows with the next tick.
    fn send_rows(&self) {
        let message = {
            let mut state = self.state();
            if state.unsent.is_empty() {
                return;
            }
            let most = (SENT_TO_ALL / self.messages.receiver_count().max(1)).clamp(SENT_TO_EACH, SENT_TO_ALL / 10);
            let names = state.next_unsent(most);
            let (mut rows, mut gone) = (Vec::new(), Vec::new());
            for name in names {
                match state.rows.get(&name) {
                    Some(row) => rows.push(row.clone()),
                    None => gone.push(name),
                }
            }
            let (now, complete) = (self.now(), state.is_complete && state.unsent.is_empty());
            let json = rows_json(now, &rows, &gone, complete);
            Message::Rows(Arc::new(Rows { now, rows, gone, complete, json }))
        };
        self.send(message);
    }
}

struct Swept {
    /// When the list may be read again.
    soonest_at: Instant,
    next_at: Instant,
}

impl Swept {
    /// Whether the list is to be read again.
    fn is_over(&self, has_missed: bool) -> bool {
        Instant::now() >= if has_missed { self.soonest_at } else { self.next_at }
    }
}

/// Locks that have changed since they were read, the longest unread first.
#[derive(Default)]
struct Unread {
    order: VecDeque<LockName>,
    names: HashSet<LockName>,
}

impl Unread {
    fn add(&mut self, names: impl Iterator<Item = LockName>) {
        for name in names {
            if self.names.insert(name.clone()) {
                self.order.push_back(name);
            }
        }
    }

    fn take(&mut self, most: usize) -> Vec<LockName> {
        let taken: Vec<_> = self.order.drain(..most.min(self.order.len())).collect();
        for name in &taken {
            self.names.remove(name);
        }
        taken
    }
}

impl State {
    /// Takes the names of some rows to send: in turn, so that rows that change all the time do not keep others waiting.
    fn next_unsent(&mut self, most: usize) -> Vec<String> {
        let (before, after) = (..=self.sent.clone(), (Bound::Excluded(self.sent.clone()), Bound::Unbounded));
        let names = self.unsent.range::<String, _>(after).chain(self.unsent.range::<String, _>(before));
        let names: Vec<_> = names.take(most).cloned().collect();
        for name in &names {
            self.unsent.remove(name);
        }
        self.sent = names.last().cloned().unwrap_or_default();
        names
    }

    /// Forgets what happened to the locks. After a gap, a grant whose end was missed would look like one that goes on.
    fn forget_history(&mut self) {
        self.moments = Moments::default();
        self.counts.forget_waits();
    }

    fn forget_rows(&mut self) {
        self.rows.clear();
        self.unsent.clear();
        self.is_complete = false;
    }

    /// Replaces a row, if the lock has changed.
    fn update(&mut self, name: &str, lock: Option<Lock>, now: u64) {
        if let Some(lock) = &lock {
            self.moments.add_labels(lock);
        }
        let row = lock.filter(|lock| lock.holder_count + lock.waiter_count > 0).map(|lock| self.row(lock, now));
        match (self.rows.get(name), row) {
            (None, None) => return,
            (Some(old), Some(new)) if old.is_about(&new) => return,
            (_, Some(row)) => drop(self.rows.insert(name.to_owned(), Arc::new(row))),
            (Some(_), None) => drop(self.rows.remove(name)),
        }
        self.unsent.insert(name.to_owned());
    }

    /// Turns ages and times left into times of the board.
    fn row(&self, lock: Lock, now: u64) -> Row {
        let known = self.rows.get(&lock.name);
        let name = LockName::new(&lock.name).ok();
        let waiting_since = |session: u64| {
            let before = known.and_then(|row| row.waiters.iter().find(|waiter| waiter.session == session));
            let queued = || self.counts.waiting_since(name.as_ref()?, SessionId::new(session).ok()?);
            before.and_then(|waiter| waiter.since).or_else(queued)
        };
        let waiters = lock.waiters.into_iter().map(|waiter| RowWaiter {
            since: waiter
                .waits_for_ms
                .map_or_else(|| waiting_since(waiter.session), |age| Some(now.saturating_sub(age))),
            until: waiter.time_left_ms.map(|left| now.saturating_add(left)),
            ttl: waiter.ttl_ms,
            session: waiter.session,
            label: waiter.label,
            mode: waiter.mode,
            permits: waiter.permits,
        });
        Row {
            waiters: waiters.collect(),
            holders: lock.holders.into_iter().map(|holder| RowHolder::at(holder, now)).collect(),
            limit: lock.limit,
            holder_count: lock.holder_count,
            waiter_count: lock.waiter_count,
            value: lock.value,
            name: lock.name,
        }
    }
}

impl RowHolder {
    fn at(holder: Holder, now: u64) -> RowHolder {
        RowHolder {
            token: holder.token,
            mode: holder.mode,
            permits: holder.permits,
            session: holder.session,
            label: holder.label,
            since: holder.held_for_ms.map(|age| now.saturating_sub(age)),
            until: holder.time_left_ms.map(|left| now.saturating_add(left)),
            ttl: holder.ttl_ms,
        }
    }
}

impl Row {
    /// Returns whether both are the same, apart from the time that reading them took.
    fn is_about(&self, other: &Row) -> bool {
        let is_near = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => one.abs_diff(other) <= JITTER,
            (one, other) => one == other,
        };
        let are_near = |(one, other): ((_, _), (_, _))| is_near(one.0, other.0) && is_near(one.1, other.1);
        self.without_times() == other.without_times() && self.times().zip(other.times()).all(are_near)
    }

    fn times(&self) -> impl Iterator<Item = (Option<u64>, Option<u64>)> {
        let holders = self.holders.iter().map(|holder| (holder.since, holder.until));
        holders.chain(self.waiters.iter().map(|waiter| (waiter.since, waiter.until)))
    }

    fn without_times(&self) -> Row {
        let mut row = self.clone();
        for holder in &mut row.holders {
            (holder.since, holder.until) = (None, None);
        }
        for waiter in &mut row.waiters {
            (waiter.since, waiter.until) = (None, None);
        }
        row
    }
}

/// Says why the source cannot be read.
#[derive(Serialize)]
pub(super) struct Outage<'a> {
    pub(super) now: u64,
    pub(super) text: &'a str,
}

#[derive(Serialize)]
struct Numbers<'a> {
    now: u64,
    sample: &'a Sample,
    members: Option<&'a [Member]>,
}

#[derive(Serialize)]
struct RowsMessage<'a> {
    now: u64,
    rows: Vec<&'a Row>,
    gone: &'a [String],
    complete: bool,
}

pub(super) fn json(message: &impl Serialize) -> Arc<str> {
    serde_json::to_string(message).unwrap_or_default().into()
}

fn numbers(now: u64, sample: &Sample, members: Option<&[Member]>) -> Arc<str> {
    json(&Numbers { now, sample, members })
}

pub(super) fn rows_json(now: u64, rows: &[Arc<Row>], gone: &[String], complete: bool) -> Arc<str> {
    json(&RowsMessage { now, rows: rows.iter().map(|row| &**row).collect(), gone, complete })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_changes_all_the_time_keeps_no_other_waiting() {
        let mut state = State::default();
        let names = |from: &str, to: &str| [from, to].map(str::to_owned).to_vec();
        state.unsent = BTreeSet::from(["a", "b", "c", "d"].map(str::to_owned));
        assert_eq!(state.next_unsent(2), names("a", "b"));
        state.unsent.extend(names("a", "b"));
        assert_eq!(state.next_unsent(2), names("c", "d"));
        assert_eq!(state.next_unsent(2), names("a", "b"));
        assert!(state.next_unsent(2).is_empty());
    }

    #[test]
    fn a_list_that_takes_long_is_read_less_often() {
        let now = Instant::now();
        let hour = Duration::from_secs(3600);
        let later = Swept { soonest_at: now + hour, next_at: now + hour };
        assert!(!later.is_over(false) && !later.is_over(true));
        let soon = Swept { soonest_at: now, next_at: now + hour };
        assert!(!soon.is_over(false) && soon.is_over(true));
    }
}
