//! The state machine in memory, which applies the rows of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use palisade_core::{Applied, Command, Event, GrantState, LockName, Machine, RequestNo, SessionId, Token};

use super::error::StoreError;
use super::log::{Appended, Batch, Granted, Log, Notes, Row, Sizes};
use crate::BootInstant;

/// The number of batches after which a snapshot is written. A process that connects applies at most this many.
const COMPACT_ROWS: u64 = 2_000;
/// The least size of the batches, in bytes, after which a snapshot is written.
const COMPACT_BYTES: u64 = 1 << 20;

pub(super) struct Replica {
    pub(super) machine: Machine,
    /// The number of the last batch that was applied.
    pub(super) applied: u64,
    /// The checksum of that batch. It shows whether the log still has the batch. `None` after loading a snapshot.
    pub(super) last_sum: Option<u32>,
    pub(super) notes: Notes,
    /// When the lock-delay of each withheld grant ends.
    pub(super) delays: BTreeMap<Token, (BootInstant, LockName)>,
    /// The size of the log, as last measured or counted.
    pub(super) sizes: Sizes,
    pub(super) settings: Settings,
}

/// Settings that stay the same while a process is connected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) boot: u64,
    /// The number of batches after which a snapshot is written.
    pub(super) compact_after: u64,
}

impl Settings {
    pub(super) fn new(boot: u64, compact_after: Option<u64>) -> Settings {
        Settings { boot, compact_after: compact_after.unwrap_or(COMPACT_ROWS) }
    }
}

/// The time of a commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timestamp {
    pub(super) boot: u64,
    pub(super) at: BootInstant,
    pub(super) unix_ms: u64,
}

impl Timestamp {
    pub(super) fn now(boot: u64) -> Timestamp {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp { boot, at: BootInstant::now(), unix_ms: since_1970.as_millis() as u64 }
    }

    fn of(batch: &Batch) -> Timestamp {
        Timestamp { boot: batch.boot, at: BootInstant::from_ns(batch.at_boot_ns), unix_ms: batch.at_unix_ms }
    }
}

impl Replica {
    /// Loads the machine from the file. Must run within one transaction.
    pub(super) fn load(log: &Log, settings: Settings) -> Result<Replica, StoreError> {
        let mut replica = Replica::at_snapshot(log, settings)?;
        for row in log.rows_from(replica.applied + 1)? {
            replica.apply_row(row, log, |_| {})?;
        }
        Ok(replica)
    }

    fn at_snapshot(log: &Log, settings: Settings) -> Result<Replica, StoreError> {
        let snapshot = log.snapshot()?;
        let mut replica = Replica {
            machine: snapshot.machine,
            applied: snapshot.seq,
            last_sum: None,
            notes: snapshot.notes,
            delays: BTreeMap::new(),
            sizes: Sizes { snapshot_at: snapshot.seq, snapshot: snapshot.size, rows: 0, bytes: 0 },
            settings,
        };
        replica.start_delays();
        Ok(replica)
    }

    /// Applies the next batch, and passes its events to `send`.
    pub(super) fn apply_row(&mut self, row: Row, log: &Log, mut send: impl FnMut(Event)) -> Result<(), StoreError> {
        if row.seq != self.applied + 1 {
            return Err(StoreError::damaged(log.file(), format!("batch {} is missing", self.applied + 1)));
        }
        let timestamp = Timestamp::of(&row.batch);
        for command in row.batch.commands {
            self.apply(command, timestamp).events.into_iter().for_each(&mut send);
        }
        self.advance(Appended { size: row.size, sum: row.sum });
        Ok(())
    }

    /// Counts a batch whose commands were applied.
    pub(super) fn advance(&mut self, appended: Appended) {
        self.applied += 1;
        self.last_sum = Some(appended.sum);
        self.sizes.rows += 1;
        self.sizes.bytes += appended.size;
    }

    pub(super) fn apply(&mut self, command: Command, timestamp: Timestamp) -> Applied {
        let applied = self.machine.apply(command);
        for event in &applied.events {
            match event {
                Event::Granted { token, number, .. } => {
                    let granted = Granted { at_unix_ms: timestamp.unix_ms, number: *number };
                    self.notes.granted.insert(*token, granted);
                }
                Event::GrantEnded { token, .. } => drop(self.notes.granted.remove(token)),
                Event::Withheld { token, locks, delay } => {
                    self.notes.withheld_at.insert(*token, (timestamp.boot, timestamp.at.as_ns()));
                    self.start_delay(*token, locks[0].clone(), delay.as_ms());
                }
                Event::DelayEnded { token, .. } => {
                    self.notes.withheld_at.remove(token);
                    self.delays.remove(token);
                }
                _ => {}
            }
        }
        applied
    }

    /// Returns whether a session holds a grant of the request with this number.
    pub(super) fn holds_by(&self, session: SessionId, number: RequestNo) -> bool {
        let grants = self.machine.session(session).into_iter().flat_map(|view| view.grants());
        let mut notes = grants.filter_map(|(_, token)| self.notes.granted.get(&token));
        notes.any(|granted| granted.number == Some(number))
    }

    /// Returns the sessions that block these locks: the holders and the first waiter. A later waiter blocks no
    /// request until it is the first.
    pub(super) fn blockers<'l>(&self, locks: impl IntoIterator<Item = &'l LockName>) -> BTreeSet<SessionId> {
        let mut sessions = BTreeSet::new();
        for lock in locks.into_iter().filter_map(|lock| self.machine.lock(lock)) {
            sessions.extend(lock.holders().filter_map(|grant| match grant.state {
                GrantState::Held { session, .. } => Some(session),
                GrantState::Withheld => None,
            }));
            sessions.extend(lock.waiters().next().map(|waiter| waiter.session));
        }
        sessions
    }

    fn start_delays(&mut self) {
        let withheld: Vec<_> = self.machine.withheld().collect();
        for (locks, token, delay) in withheld {
            self.start_delay(token, locks[0].clone(), delay.as_ms());
        }
    }

    /// Computes the end of a lock-delay. One of an earlier boot starts again, since that boot's clock is gone.
    fn start_delay(&mut self, token: Token, lock: LockName, delay_ms: u64) {
        let began = match self.notes.withheld_at.get(&token) {
            Some((boot, ns)) if *boot == self.settings.boot => BootInstant::from_ns(*ns),
            _ => BootInstant::now(),
        };
        self.delays.insert(token, (began + Duration::from_millis(delay_ms), lock));
    }

    /// Writes a snapshot if the log is large. Must run within the transaction of the batch that was just appended.
    pub(super) fn compact(&self, log: &Log, appended: Appended) -> Result<Option<Sizes>, StoreError> {
        let is_large = |sizes: &Sizes| {
            sizes.rows > self.settings.compact_after || sizes.bytes > COMPACT_BYTES.max(4 * sizes.snapshot)
        };
        let known = Sizes { rows: self.sizes.rows + 1, bytes: self.sizes.bytes + appended.size, ..self.sizes };
        if !is_large(&known) {
            return Ok(None);
        }
        // Another process may have compacted the log meanwhile.
        let sizes = log.sizes()?;
        if !is_large(&sizes) {
            return Ok(Some(sizes));
        }
        let seq = self.applied + 1;
        let snapshot = log.compact(sizes.snapshot_at, seq, &self.machine, &self.notes)?;
        Ok(Some(Sizes { snapshot_at: seq, snapshot, rows: 0, bytes: 0 }))
    }
}
