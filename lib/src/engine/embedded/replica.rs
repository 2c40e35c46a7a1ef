//! The machine in memory, kept up with the log.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade_core::{Applied, Command, Event, LockName, Machine, RequestNo, SessionId, Token};

use super::error::Trouble;
use super::log::{Appended, Batch, Granted, Log, Notes, Row, Sizes};
use crate::BootInstant;

/// How many batches, or bytes of them, make a snapshot worth while.
const COMPACT_ROWS: u64 = 2_000;
const COMPACT_BYTES: u64 = 1 << 20;

pub(super) struct Replica {
    pub(super) machine: Machine,
    /// The number of the last batch that was applied.
    pub(super) applied: u64,
    /// The checksum of that batch, by which it is known that the log still has it; `None` if it came with the snapshot.
    pub(super) last_sum: Option<u32>,
    pub(super) notes: Notes,
    /// When the delay of each withheld grant is over.
    pub(super) delays: BTreeMap<Token, (BootInstant, LockName)>,
    /// What was last known of the log's size.
    pub(super) sizes: Sizes,
    pub(super) settings: Settings,
}

/// What does not change while a process is connected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) boot: u64,
    /// How many batches make a snapshot worth while.
    pub(super) compact_after: u64,
}

impl Settings {
    pub(super) fn new(boot: u64, compact_after: Option<u64>) -> Settings {
        Settings { boot, compact_after: compact_after.unwrap_or(COMPACT_ROWS) }
    }
}

/// When something was committed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) boot: u64,
    pub(super) at: BootInstant,
    pub(super) unix_ms: u64,
}

impl Moment {
    pub(super) fn now(boot: u64) -> Moment {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Moment { boot, at: BootInstant::now(), unix_ms: since_1970.as_millis() as u64 }
    }

    fn of(batch: &Batch) -> Moment {
        Moment { boot: batch.boot, at: BootInstant::from_ns(batch.at_boot_ns), unix_ms: batch.at_unix_ms }
    }
}

impl Replica {
    /// The machine as the file has it. Within one transaction.
    pub(super) fn load(log: &Log, settings: Settings) -> Result<Replica, Trouble> {
        let mut replica = Replica::at_snapshot(log, settings)?;
        for row in log.rows_from(replica.applied + 1)? {
            replica.follow(row, log, |_| {})?;
        }
        Ok(replica)
    }

    /// The machine as the snapshot has it, without what came behind.
    pub(super) fn at_snapshot(log: &Log, settings: Settings) -> Result<Replica, Trouble> {
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
        replica.count_delays();
        Ok(replica)
    }

    /// Applies the batch that comes next, and hands out what happened.
    pub(super) fn follow(&mut self, row: Row, log: &Log, mut tell: impl FnMut(Event)) -> Result<(), Trouble> {
        if row.seq != self.applied + 1 {
            return Err(Trouble::damaged(log.file(), format!("batch {} is missing", self.applied + 1)));
        }
        let moment = Moment::of(&row.batch);
        for command in row.batch.commands {
            self.apply(command, moment).events.into_iter().for_each(&mut tell);
        }
        self.advance(Appended { size: row.size, sum: row.sum });
        Ok(())
    }

    /// Counts a batch whose commands have been applied.
    pub(super) fn advance(&mut self, appended: Appended) {
        self.applied += 1;
        self.last_sum = Some(appended.sum);
        self.sizes.rows += 1;
        self.sizes.bytes += appended.size;
    }

    pub(super) fn apply(&mut self, command: Command, moment: Moment) -> Applied {
        let applied = self.machine.apply(command);
        for event in &applied.events {
            match event {
                Event::Granted { token, number, .. } => {
                    let granted = Granted { at_unix_ms: moment.unix_ms, number: *number };
                    self.notes.granted.insert(*token, granted);
                }
                Event::GrantEnded { token, .. } => drop(self.notes.granted.remove(token)),
                Event::Withheld { token, locks, delay } => {
                    self.notes.withheld_at.insert(*token, (moment.boot, moment.at.as_ns()));
                    self.count_delay(*token, locks[0].clone(), delay.as_ms());
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

    /// Whether a session holds something by its request of this number.
    pub(super) fn holds_by(&self, session: SessionId, number: RequestNo) -> bool {
        let grants = self.machine.session(session).into_iter().flat_map(|view| view.grants());
        let mut notes = grants.filter_map(|(_, token)| self.notes.granted.get(&token));
        notes.any(|granted| granted.number == Some(number))
    }

    fn count_delays(&mut self) {
        let withheld: Vec<_> = self.machine.withheld().collect();
        for (locks, token, delay) in withheld {
            self.count_delay(token, locks[0].clone(), delay.as_ms());
        }
    }

    /// From the moment it began; anew if that was before the host was booted.
    fn count_delay(&mut self, token: Token, lock: LockName, delay_ms: u64) {
        let began = match self.notes.withheld_at.get(&token) {
            Some((boot, ns)) if *boot == self.settings.boot => BootInstant::from_ns(*ns),
            _ => BootInstant::now(),
        };
        self.delays.insert(token, (began + Duration::from_millis(delay_ms), lock));
    }

    /// Writes a snapshot if it is worth while. Within the transaction of the batch that has just been appended.
    pub(super) fn compact(&self, log: &Log, appended: Appended) -> Result<Option<Sizes>, Trouble> {
        let is_large = |sizes: &Sizes| {
            sizes.rows > self.settings.compact_after || sizes.bytes > COMPACT_BYTES.max(4 * sizes.snapshot)
        };
        let known = Sizes { rows: self.sizes.rows + 1, bytes: self.sizes.bytes + appended.size, ..self.sizes };
        if !is_large(&known) {
            return Ok(None);
        }
        // Another process may have done it meanwhile.
        let sizes = log.sizes()?;
        if !is_large(&sizes) {
            return Ok(Some(sizes));
        }
        let seq = self.applied + 1;
        let snapshot = log.compact(sizes.snapshot_at, seq, &self.machine, &self.notes)?;
        Ok(Some(Sizes { snapshot_at: seq, snapshot, rows: 0, bytes: 0 }))
    }
}
