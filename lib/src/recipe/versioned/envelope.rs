//! The stored form of a value, and the rule that tells whether a write has happened. Both are pure.
//!
//! A value is stored with the id of its write, and with the last write of each recent writer. A writer whose reply was lost looks for its
//! id among them. If other writers have overwritten the value since, the id is still there, however often they wrote: only many
//! *writers* push it out.

use serde::{Deserialize, Serialize};

use crate::recipe::random::random;

/// The last writes of this many writers are remembered.
pub(super) const REMEMBERED: usize = 64;

/// A value as it is stored, in JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Envelope<T> {
    #[serde(flatten)]
    pub(super) history: History,
    pub(super) value: T,
}

/// The writes of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct History {
    /// The first write. Another one has created the value again after it was deleted.
    first: String,
    /// The write that stored the value, and the last writes of other writers before it, the latest first.
    recent: Vec<Write>,
}

/// A write, and its number among all writes of the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Write {
    id: String,
    number: u64,
}

/// A writer makes one write after the other, and begins the next only when it knows the outcome of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Writer(u64);

impl Writer {
    pub(super) fn new() -> Writer {
        Writer(random())
    }

    /// Returns the id of a new write.
    pub(super) fn write(self) -> String {
        format!("{:016x}-{:016x}", self.0, random())
    }
}

/// Returns the part of an id that names the writer.
fn writer_of(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

impl History {
    /// Returns the history after this write.
    pub(super) fn next(previous: Option<&History>, id: &str) -> History {
        let (id, number) = (id.to_owned(), previous.map_or(0, History::number).saturating_add(1));
        let Some(previous) = previous else {
            return History { first: id.clone(), recent: vec![Write { id, number }] };
        };
        let others = previous.recent.iter().filter(|write| writer_of(&write.id) != writer_of(&id)).cloned();
        let others: Vec<Write> = others.take(REMEMBERED - 1).collect();
        History { first: previous.first.clone(), recent: [vec![Write { id, number }], others].concat() }
    }

    /// Returns the id of the write that stored the value.
    pub(super) fn last(&self) -> &str {
        self.recent.first().map_or("", |write| &write.id)
    }

    fn number(&self) -> u64 {
        self.recent.first().map_or(0, |write| write.number)
    }

    /// Returns whether the last write of each writer since the one with this number is remembered.
    fn remembers_since(&self, number: u64) -> bool {
        let oldest = self.recent.last().map_or(0, |write| write.number);
        self.recent.len() < REMEMBERED || oldest <= number.saturating_add(1)
    }
}

/// A write whose reply was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unconfirmed {
    pub(super) id: String,
    /// The history that it continues; `None` if it creates the value.
    pub(super) after: Option<History>,
}

/// Whether a write has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    Yes,
    /// It may still come: the value that it replaces is the stored one.
    NotYet,
    /// The value that it replaces was replaced by another write.
    Never,
    Unknown,
}

impl Unconfirmed {
    /// Decides by the history of the value that is stored now.
    pub(super) fn has_happened(&self, stored: Option<&History>) -> Happened {
        let Some(stored) = stored else {
            // Another program has deleted the value, perhaps after the write.
            return if self.after.is_some() { Happened::Unknown } else { Happened::NotYet };
        };
        if stored.recent.iter().any(|write| write.id == self.id) {
            return Happened::Yes;
        }
        match &self.after {
            Some(after) if after.first != stored.first => Happened::Unknown,
            Some(after) if after.last() == stored.last() => Happened::NotYet,
            after if stored.remembers_since(after.as_ref().map_or(0, History::number)) => Happened::Never,
            _ => Happened::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the history after these writers have written.
    fn written(after: Option<&History>, writers: impl IntoIterator<Item = Writer>) -> History {
        let mut last = after.cloned();
        for writer in writers {
            last = Some(History::next(last.as_ref(), &writer.write()));
        }
        last.expect("a write")
    }

    fn many(count: usize) -> Vec<Writer> {
        (0..count).map(|_| Writer::new()).collect()
    }

    /// A value, a write that replaces it, and the history with and without that write after others have written.
    fn after_others(others: &[Writer]) -> [Happened; 2] {
        let base = written(None, many(3));
        let unconfirmed = Unconfirmed { id: Writer::new().write(), after: Some(base.clone()) };
        let carried_out = History::next(Some(&base), &unconfirmed.id);
        [carried_out, base].map(|history| {
            let history = if others.is_empty() { history } else { written(Some(&history), others.iter().copied()) };
            unconfirmed.has_happened(Some(&history))
        })
    }

    #[test]
    fn a_write_is_found_although_others_have_overwritten_it() {
        assert_eq!(after_others(&[]), [Happened::Yes, Happened::NotYet]);
        assert_eq!(after_others(&many(1)), [Happened::Yes, Happened::Never]);
        assert_eq!(after_others(&many(REMEMBERED - 1)), [Happened::Yes, Happened::Never]);
        let few: Vec<Writer> = many(5).into_iter().cycle().take(1000).collect();
        assert_eq!(after_others(&few), [Happened::Yes, Happened::Never], "however often few writers have written");
    }

    #[test]
    fn a_write_that_may_be_forgotten_is_not_taken_for_one_that_did_not_happen() {
        assert_eq!(after_others(&many(REMEMBERED + 1)), [Happened::Unknown, Happened::Unknown]);
    }

    #[test]
    fn a_value_that_was_deleted_or_created_again_tells_nothing() {
        let (base, other) = (written(None, many(2)), written(None, many(2)));
        let unconfirmed = Unconfirmed { id: Writer::new().write(), after: Some(base) };
        assert_eq!(unconfirmed.has_happened(None), Happened::Unknown);
        assert_eq!(unconfirmed.has_happened(Some(&other)), Happened::Unknown);
    }

    #[test]
    fn a_write_that_creates_a_value_is_found_too() {
        let writer = Writer::new();
        let unconfirmed = Unconfirmed { id: writer.write(), after: None };
        assert_eq!(unconfirmed.has_happened(None), Happened::NotYet);
        let created = written(Some(&History::next(None, &unconfirmed.id)), many(10));
        assert_eq!(unconfirmed.has_happened(Some(&created)), Happened::Yes);
        assert_eq!(unconfirmed.has_happened(Some(&written(None, many(10)))), Happened::Never);
        assert_eq!(unconfirmed.has_happened(Some(&written(None, many(100)))), Happened::Unknown);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let history = written(None, many(500));
        assert_eq!((history.recent.len(), history.number()), (REMEMBERED, 500));
        assert!(serde_json::to_vec(&history).expect("JSON").len() < 6000);
    }
}
