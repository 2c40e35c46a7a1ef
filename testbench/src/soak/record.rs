//! The record of a worker: one line for each fact, written by the worker and read by the judge.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use palisade::{BootInstant, Token};

/// How much of its locks a grant takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// The number of permits that it takes.
    pub(super) takes: u32,
    /// The number of permits of the lock. An exclusive lock has one.
    pub(super) of: u32,
}

/// A fact. Moments are counted in nanoseconds of the boot clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    /// A worker begins to wait without a bound.
    Waits { id: u64, at: u64, lock: String },
    /// The wait has ended.
    Waited { id: u64, at: u64 },
    /// A grant that was certainly held at `told`, and is until `safe` unless it is released before.
    Granted { id: u64, asked: u64, told: u64, safe: u64, token: u64, share: Share, locks: Vec<String> },
    /// The session was renewed meanwhile.
    Kept { id: u64, safe: u64 },
    /// The lock's fenced number was raised to this, and that was acknowledged.
    Wrote { token: u64, number: u64, lock: String },
    /// The worker is about to release it.
    Ends { id: u64, at: u64 },
    /// The guard says that it is lost. `expired`, `unreachable`, or what must not happen here.
    Lost { id: u64, at: u64, why: String },
    /// The worker is about to close its session, and everything with it.
    Closes { at: u64 },
    /// An operation failed.
    Failed { at: u64, is_retryable: bool, what: String },
}

/// Returns a moment as it is written.
pub(super) fn ns(moment: BootInstant) -> u64 {
    u64::try_from(moment.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the present moment as it is written.
pub fn now() -> u64 {
    ns(BootInstant::now())
}

/// Returns the moment that was written.
pub(super) fn moment(ns: u64) -> BootInstant {
    BootInstant::after_boot(Duration::from_nanos(ns))
}

/// A file that facts are appended to, each by one call, so that a process that is killed leaves whole lines.
pub(super) struct Record {
    file: RefCell<File>,
    last_id: Cell<u64>,
}

impl Record {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub(super) fn open(path: &Path) -> io::Result<Record> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Record { file: RefCell::new(file), last_id: Cell::new(0) })
    }

    /// Returns a number for a wait or a grant of this file.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// Appends a fact.
    ///
    /// # Panics
    ///
    /// The file cannot be written: what happens then would be judged wrongly.
    pub(super) fn write(&self, fact: &Fact) {
        self.file.borrow_mut().write_all(line(fact).as_bytes()).expect("the record can be written");
    }
}

fn line(fact: &Fact) -> String {
    match fact {
        Fact::Waits { id, at, lock } => format!("waits {id} {at} {lock}\n"),
        Fact::Waited { id, at } => format!("waited {id} {at}\n"),
        Fact::Granted { id, asked, told, safe, token, share: Share { takes, of }, locks } => {
            format!("granted {id} {asked} {told} {safe} {token} {takes} {of} {}\n", locks.join(" "))
        }
        Fact::Kept { id, safe } => format!("kept {id} {safe}\n"),
        Fact::Wrote { token, number, lock } => format!("wrote {token} {number} {lock}\n"),
        Fact::Ends { id, at } => format!("ends {id} {at}\n"),
        Fact::Lost { id, at, why } => format!("lost {id} {at} {why}\n"),
        Fact::Closes { at } => format!("closes {at}\n"),
        Fact::Failed { at, is_retryable, what } => {
            format!("failed {at} {is_retryable} {}\n", what.replace('\n', " "))
        }
    }
}

/// Parses a line. Returns `None` if it is not a fact.
pub(super) fn parse(line: &str) -> Option<Fact> {
    let (kind, rest) = line.split_once(' ')?;
    let words: Vec<&str> = rest.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let small = |at: usize| words.get(at)?.parse::<u32>().ok();
    Some(match kind {
        "waits" => Fact::Waits { id: number(0)?, at: number(1)?, lock: (*words.get(2)?).to_owned() },
        "waited" => Fact::Waited { id: number(0)?, at: number(1)? },
        "granted" => Fact::Granted {
            id: number(0)?,
            asked: number(1)?,
            told: number(2)?,
            safe: number(3)?,
            token: Token::new(number(4)?).ok()?.get(),
            share: Share { takes: small(5)?, of: small(6)? },
            locks: words.get(7..)?.iter().map(ToString::to_string).collect(),
        },
        "kept" => Fact::Kept { id: number(0)?, safe: number(1)? },
        "wrote" => Fact::Wrote { token: number(0)?, number: number(1)?, lock: (*words.get(2)?).to_owned() },
        "ends" => Fact::Ends { id: number(0)?, at: number(1)? },
        "lost" => Fact::Lost { id: number(0)?, at: number(1)?, why: words.get(2..)?.join(" ") },
        "closes" => Fact::Closes { at: number(0)? },
        "failed" => Fact::Failed {
            at: number(0)?,
            is_retryable: words.get(1)?.parse().ok()?,
            what: words.get(2..)?.join(" "),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let share = Share { takes: 2, of: 4 };
        let facts = [
            Fact::Waits { id: 1, at: 2, lock: "hot/1".to_owned() },
            Fact::Waited { id: 1, at: 3 },
            Fact::Granted { id: 2, asked: 2, told: 3, safe: 9, token: 7, share, locks: vec!["a".into(), "b".into()] },
            Fact::Kept { id: 2, safe: 10 },
            Fact::Wrote { token: 7, number: 1, lock: "hot/1".to_owned() },
            Fact::Ends { id: 2, at: 5 },
            Fact::Lost { id: 2, at: 5, why: "expired".to_owned() },
            Fact::Closes { at: 6 },
            Fact::Failed { at: 7, is_retryable: true, what: "no way".to_owned() },
        ];
        for fact in facts {
            assert_eq!(parse(line(&fact).trim_end()), Some(fact));
        }
        assert_eq!(parse("ends 2"), None);
    }
}
