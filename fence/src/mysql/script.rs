//! What is installed in a database, as SQL that any client runs.

/// The table of marks and the procedures, for the client's command line.
pub const INSTALL: &str = include_str!("install.sql");

/// Takes the procedures away, for the client's command line: before [`INSTALL`], to replace them by those of another version.
/// Until they are there again, triggers refuse everything. Marks stay. MySQL, other than MariaDB, forgets who may execute them.
pub const UNINSTALL: &str = "\
DROP PROCEDURE IF EXISTS palisade_fence_seal;
DROP PROCEDURE IF EXISTS palisade_fence_check;
DROP PROCEDURE IF EXISTS palisade_fence_number;
";

/// What the procedures of [`INSTALL`] call themselves.
pub(super) const VERSION: u64 = 1;

/// What a table's triggers protect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The whole table has one mark, under this name.
    Table(String),
    /// Each row has a mark, named by this column: `orders/42`, where the name is `orders` and the column holds 42. A
    /// column that the database fills in has no value yet when a row is inserted.
    Row {
        /// What comes before the slash.
        name: String,
        /// The column.
        column: String,
    },
}

/// Triggers that refuse every INSERT, UPDATE and DELETE on a table under an old or missing token, as SQL for the
/// client's command line. Those that are there stay as they are.
///
/// ```
/// use palisade_fence::mysql::{Scope, protection};
/// let sql = protection("orders", &Scope::Table("orders".to_owned()));
/// assert!(sql.contains("BEFORE DELETE ON `orders` FOR EACH ROW"));
/// ```
pub fn protection(table: &str, scope: &Scope) -> String {
    let trigger = |event: &str, rows: &[&str]| {
        let checks: Vec<String> =
            rows.iter().map(|row| format!("  CALL palisade_fence_check({});\n", of(scope, row))).collect();
        let name = identifier(&format!("palisade_fence_{table}_{}", event.to_lowercase()));
        let checks = match checks.as_slice() {
            // A table has one mark: one check is enough.
            [first, _] if matches!(scope, Scope::Table(_)) => first.clone(),
            _ => checks.concat(),
        };
        let table = identifier(table);
        format!(
            "CREATE TRIGGER IF NOT EXISTS {name}\nBEFORE {event} ON {table} FOR EACH ROW\nBEGIN\n{checks}END //\n"
        )
    };
    let triggers = [trigger("INSERT", &["NEW"]), trigger("UPDATE", &["OLD", "NEW"]), trigger("DELETE", &["OLD"])];
    format!("DELIMITER //\n\n{}\nDELIMITER ;\n", triggers.join("\n"))
}

/// What a row's mark is called.
fn of(scope: &Scope, row: &str) -> String {
    match scope {
        Scope::Table(name) => text(name),
        Scope::Row { name, column } => format!("CONCAT({}, '/', {row}.{})", text(name), identifier(column)),
    }
}

fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A literal, whatever the server thinks of backslashes.
fn text(text: &str) -> String {
    match text.contains(['\'', '\\']) || text.contains(char::is_control) {
        true => format!("x'{}'", hex(text.as_bytes())),
        false => format!("'{text}'"),
    }
}

/// Bytes as a literal takes them.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The statements of a script that was written for the client's command line, where `DELIMITER` is for the client: each
/// ends with a line.
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
    fn a_script_is_taken_apart_where_its_statements_end() {
        let script =
            "CREATE TABLE a (b INT COMMENT 'c; d');\nDELIMITER //\nBEGIN\n  x;\nEND //\nDELIMITER ;\nSELECT 1;\n";
        let expected = ["CREATE TABLE a (b INT COMMENT 'c; d')", "BEGIN\n  x;\nEND ", "SELECT 1"];
        assert_eq!(statements(script), expected);
        assert_eq!(statements(UNINSTALL).len(), 3);
        assert_eq!(INSTALL.matches(&format!("COMMENT 'palisade {VERSION}'")).count(), 3);
        assert_eq!(statements(INSTALL).len(), 4, "{:#?}", statements(INSTALL));
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let row = Scope::Row { name: "it's\\".to_owned(), column: "i`d".to_owned() };
        insta::assert_snapshot!(protection("or`ders", &row));
    }
}
