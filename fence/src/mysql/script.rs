//! The SQL that is installed in a database.

use crate::Author;

/// The table of marks and the procedures, for the client's command line.
pub const INSTALL: &str = include_str!("install.sql");

/// Drops the procedures, for the client's command line: before [`INSTALL`], to replace them by those of another version.
/// Until they exist again, triggers refuse everything. Marks stay. MySQL, unlike MariaDB, drops the grants on them too.
pub const UNINSTALL: &str = "\
DROP PROCEDURE IF EXISTS palisade_fence_name;
DROP PROCEDURE IF EXISTS palisade_fence_overtaken;
DROP PROCEDURE IF EXISTS palisade_fence_seal;
DROP PROCEDURE IF EXISTS palisade_fence_check;
DROP PROCEDURE IF EXISTS palisade_fence_number;
DROP PROCEDURE IF EXISTS palisade_fence_problems;
DROP PROCEDURE IF EXISTS palisade_fence_protecting;
";

/// The version of the procedures of [`INSTALL`].
pub(super) const VERSION: u64 = 3;

/// The unit that has a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The whole table has one mark, under this name.
    Table(String),
    /// Each row has a mark, named by this column: `orders/42`, where the name is `orders` and the column holds 42. A
    /// column that the database fills in has no value yet when a row is inserted: the mark is then `orders/0`. The column
    /// is of integers, DECIMAL, text, DATE, DATETIME or UUID: the text of others depends on the session, or there is none.
    Row {
        /// The part before the slash.
        name: String,
        /// The column.
        column: String,
    },
}

/// Triggers that refuse every INSERT, UPDATE and DELETE on a table under an old or missing token, as SQL for the
/// client's command line. It is refused if the table has such triggers already, or if they could not protect it.
///
/// ```
/// use palisade_fence::mysql::{Scope, protection};
/// let sql = protection("orders", &Scope::Table("orders".to_owned()));
/// assert!(sql.contains("BEFORE DELETE ON `orders` FOR EACH ROW"));
/// ```
pub fn protection(table: &str, scope: &Scope) -> String {
    let triggers = triggers(table, scope, Author::unique().get());
    script(&format!("{};\n\nDELIMITER //\n\n{}\nDELIMITER ;", protecting(table, scope, false), triggers.join("\n")))
}

/// Wraps statements so that they run under the `sql_mode` and the character set that they were written for.
pub(super) fn script(statements: &str) -> String {
    format!(
        "SET NAMES utf8mb4;\nSET @palisade_fence_sql_mode = @@SESSION.sql_mode, SESSION sql_mode = 'STRICT_ALL_TABLES';\n\
         {statements}\nSET SESSION sql_mode = @palisade_fence_sql_mode;\n"
    )
}

/// Returns the call that checks that triggers can protect a table, and records the table.
pub(super) fn protecting(table: &str, scope: &Scope, is_again: bool) -> String {
    let (name, column) = match scope {
        Scope::Table(name) => (name, "NULL".to_owned()),
        Scope::Row { name, column } => (name, text(column)),
    };
    format!("CALL palisade_fence_protecting({}, {}, {column}, {is_again})", text(table), text(name))
}

/// Returns the statements that create the triggers. Each name has a unique number: names are per database, and a renamed
/// table keeps its triggers with their names.
pub(super) fn triggers(table: &str, scope: &Scope, number: u64) -> [String; 3] {
    EVENTS.map(|event| {
        let name = format!("palisade_fence_{}_{number}", event.to_lowercase());
        let (table, body) = (identifier(table), body(scope, event));
        format!("CREATE TRIGGER {name}\nBEFORE {event} ON {table} FOR EACH ROW\n{body} //\n")
    })
}

/// The events that have a trigger.
pub(super) const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// Returns the body of a trigger.
pub(super) fn body(scope: &Scope, event: &str) -> String {
    let rows: &[&str] = match (scope, event) {
        // A table has one mark: one check is enough.
        (Scope::Row { .. }, "UPDATE") => &["OLD", "NEW"],
        (_, "DELETE") => &["OLD"],
        _ => &["NEW"],
    };
    let checks: String =
        rows.iter().map(|row| format!("  CALL palisade_fence_check({});\n", resource(scope, row))).collect();
    format!("BEGIN\n{checks}END")
}

/// Returns the SQL expression of a row's resource.
fn resource(scope: &Scope, row: &str) -> String {
    match scope {
        Scope::Table(name) => text(name),
        Scope::Row { name, column } => {
            format!("CONCAT({}, '/', CONVERT({row}.{} USING utf8mb4))", text(name), identifier(column))
        }
    }
}

pub(super) fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// Quotes a text, independent of the server's treatment of backslashes and of the client's character set.
fn text(text: &str) -> String {
    match text.chars().any(|letter| matches!(letter, '\'' | '\\') || !letter.is_ascii() || letter.is_control()) {
        true => format!("_utf8mb4 x'{}'", hex(text.as_bytes())),
        false => format!("'{text}'"),
    }
}

/// Encodes bytes for a hexadecimal literal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Splits a script for the client's command line into statements. Each ends at the end of a line. `DELIMITER` is a command
/// of the client.
pub(super) fn statements(script: &str) -> Vec<String> {
    let (mut delimiter, mut statement, mut found) = (";", String::new(), Vec::new());
    for line in script.lines() {
        if let Some(word) = line.strip_prefix("DELIMITER ") {
            delimiter = word.trim();
        } else if let Some(last) = line.trim_end().strip_suffix(delimiter) {
            found.push(std::mem::take(&mut statement) + last);
        } else {
            statement.extend([line, "\n"]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_split_into_its_statements() {
        let script =
            "CREATE TABLE a (b INT COMMENT 'c; d');\nDELIMITER //\nBEGIN\n  x;\nEND //\nDELIMITER ;\nSELECT 1;\n";
        let expected = ["CREATE TABLE a (b INT COMMENT 'c; d')", "BEGIN\n  x;\nEND ", "SELECT 1"];
        assert_eq!(statements(script), expected);
        assert_eq!(statements(UNINSTALL).len(), 7);
        assert_eq!(INSTALL.matches(&format!("COMMENT 'palisade {VERSION}'")).count(), 7);
        assert_eq!(statements(INSTALL).len(), 12, "{:#?}", statements(INSTALL));
    }

    #[test]
    fn names_are_quoted() {
        let row = Scope::Row { name: "it's\\".to_owned(), column: "i`d".to_owned() };
        let protecting = protecting("or`ders", &row, false);
        insta::assert_snapshot!(format!("{protecting};\n{}", triggers("or`ders", &row, 7).join("")));
        let texts = protection("bücher", &Scope::Table("bücher".to_owned()));
        assert!(
            texts.contains("protecting(_utf8mb4 x'62c3bc63686572', _utf8mb4 x'62c3bc63686572', NULL, false)"),
            "{texts}"
        );
    }
}
