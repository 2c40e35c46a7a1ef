//! What is read and written.

use mysql_async::Value;

use crate::ErrorKind;

/// What a transaction can take back. Anything else would commit it midway.
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
    /// A statement without values yet.
    pub fn new(sql: &str) -> Statement {
        Statement { sql: sql.to_owned(), values: Vec::new() }
    }

    /// With a value for the next question mark.
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

/// What came of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// How many rows its statements changed.
    pub affected_rows: u64,
    /// The last AUTO_INCREMENT number that was given, if any was.
    pub last_insert_id: Option<u64>,
}

impl Written {
    /// As it is kept beside the mark.
    pub(super) fn kept(self) -> String {
        format!("{} {}", self.affected_rows, self.last_insert_id.unwrap_or(0))
    }

    /// As it was kept.
    pub(super) fn of(kept: &[u8]) -> Option<Written> {
        let (affected, last) = str::from_utf8(kept).ok()?.split_once(' ')?;
        let last = last.parse().ok()?;
        Some(Written { affected_rows: affected.parse().ok()?, last_insert_id: (last > 0).then_some(last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_understood() {
        for written in [
            Written::default(),
            Written { affected_rows: u64::MAX, last_insert_id: None },
            Written { affected_rows: 3, last_insert_id: Some(17) },
        ] {
            assert_eq!(Written::of(written.kept().as_bytes()), Some(written));
        }
        assert_eq!(Written::of(b""), None);
        assert_eq!(Written::of(b"\xff 1"), None);
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
