//! SQL statements on fenced rows.

use mysql_async::Value;

use crate::ErrorKind;

/// Statements that can be rolled back. Others would commit the transaction midway.
const WRITES: [&str; 4] = ["INSERT", "UPDATE", "DELETE", "REPLACE"];

/// One statement, with values for its question marks.
///
/// ```
/// use palisade_fence::mysql::Statement;
/// let raise = Statement::new("UPDATE orders SET total = ? WHERE id = ?").bind(100).bind(42);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
}

impl Statement {
    /// Returns a statement without values.
    pub fn new(sql: &str) -> Statement {
        Statement { sql: sql.to_owned(), values: Vec::new() }
    }

    /// Adds the value of the next question mark.
    #[must_use]
    pub fn bind(mut self, value: impl Into<Value>) -> Statement {
        self.values.push(value.into());
        self
    }

    /// Refuses a write that would end its transaction.
    pub(super) fn check(&self) -> Result<(), ErrorKind> {
        let first = self.sql.split_whitespace().next().unwrap_or_default();
        match WRITES.iter().any(|word| word.eq_ignore_ascii_case(first)) {
            true => Ok(()),
            false => Err(ErrorKind::misuse("a write begins with INSERT, UPDATE, DELETE or REPLACE")),
        }
    }
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// How many rows its statements changed.
    pub affected_rows: u64,
    /// The last AUTO_INCREMENT number that was given, if any was.
    pub last_insert_id: Option<u64>,
}

impl Written {
    /// Returns the form that is stored with the mark.
    pub(super) fn encode(self) -> String {
        format!("{} {}", self.affected_rows, self.last_insert_id.unwrap_or(0))
    }

    /// Reads the stored form.
    pub(super) fn decode(stored: &[u8]) -> Option<Written> {
        let (affected, last) = str::from_utf8(stored).ok()?.split_once(' ')?;
        let last = last.parse().ok()?;
        Some(Written { affected_rows: affected.parse().ok()?, last_insert_id: (last > 0).then_some(last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_survives_encoding() {
        for written in [
            Written::default(),
            Written { affected_rows: u64::MAX, last_insert_id: None },
            Written { affected_rows: 3, last_insert_id: Some(17) },
        ] {
            assert_eq!(Written::decode(written.encode().as_bytes()), Some(written));
        }
        assert_eq!(Written::decode(b""), None);
        assert_eq!(Written::decode(b"\xff 1"), None);
    }

    #[test]
    fn a_write_that_would_commit_midway_is_refused() {
        for sql in
            ["", "TRUNCATE orders", "CREATE TABLE a (b INT)", "COMMIT", "/* */ UPDATE a", "CALL a()", "LOCK TABLES a"]
        {
            assert!(Statement::new(sql).check().is_err(), "{sql}");
        }
        for sql in
            ["update orders set a = 1", "  INSERT INTO a VALUES (1)", "\nDelete from a", "REPLACE INTO a VALUES (1)"]
        {
            assert!(Statement::new(sql).check().is_ok(), "{sql}");
        }
    }
}
