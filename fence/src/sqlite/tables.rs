//! Protected tables: creates their triggers, and reads them back to verify them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension};

use super::SCHEMA;
use super::store::Failure;
use crate::ErrorKind;

/// The changes that are refused without a token. Each has a trigger.
const CHANGES: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// The prefix of our own objects.
const PREFIX: &str = "palisade_";

/// Returns the SQL of the triggers that protect a table for a resource, and of its record.
/// [`Sqlite::protect`](super::Sqlite::protect) runs the same, with other names if these are taken.
///
/// ```
/// let sql = palisade_fence::sqlite::protection("orders", "order lines");
/// assert!(sql.contains(r#"BEFORE DELETE ON "order lines""#));
/// ```
pub fn protection(resource: &str, table: &str) -> String {
    let mut sql = String::new();
    for change in CHANGES {
        sql += &trigger("", &name(table, change, 1), change, resource, table);
        sql += ";\n\n";
    }
    let (table, resource) = (literal(table), literal(resource));
    sql + &format!("INSERT INTO palisade_protected (name, resource) VALUES ({table}, {resource});\n")
}

/// Returns the name of a trigger. A renamed table keeps its triggers, so the first name may be in use.
fn name(table: &str, change: &str, attempt: usize) -> String {
    let name = format!("{PREFIX}on_{table}_{}", change.to_lowercase());
    if attempt == 1 { name } else { format!("{name}_{attempt}") }
}

/// Returns the SQL of a trigger: without a schema as SQLite stores it, with one to create it.
fn trigger(schema: &str, name: &str, change: &str, resource: &str, table: &str) -> String {
    let (name, table, resource) = (identifier(name), identifier(table), literal(resource));
    format!(
        "CREATE TRIGGER {schema}{name} BEFORE {change} ON {table}\n\
         WHEN NOT EXISTS (SELECT 1 FROM palisade_pass JOIN palisade_mark USING (resource, token) {WHERE}{resource})\n\
         BEGIN\n    \
         SELECT RAISE(ABORT, 'palisade: no token: this table is protected, insert the token into palisade_present first');\n\
         END"
    )
}

/// The text of the condition before the resource.
const WHERE: &str = "WHERE resource = ";

fn identifier(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A trigger of ours on a table.
struct Found {
    name: String,
    sql: String,
}

impl Found {
    /// Returns whether it refuses this change for this resource.
    fn refuses(&self, change: &str, resource: &str, table: &str) -> bool {
        self.sql == trigger("", &self.name, change, resource, table)
    }

    fn is_of(&self, resource: &str, table: &str) -> bool {
        CHANGES.into_iter().any(|change| self.refuses(change, resource, table))
    }

    /// Returns the resource that it protects the table for; `None` if [`trigger`] did not make it.
    fn resource(&self, table: &str) -> Option<String> {
        let mut parts = self.sql.match_indices(WHERE);
        parts.find_map(|(at, _)| unquoted(&self.sql[at + WHERE.len()..]).filter(|of| self.is_of(of, table)))
    }
}

/// Returns the text of the SQL literal at the beginning.
fn unquoted(sql: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = sql.strip_prefix('\'')?;
    loop {
        let (part, after) = rest.split_once('\'')?;
        text += part;
        match after.strip_prefix('\'') {
            Some(after) => (text, rest) = (text + "'", after),
            None => return Some(text),
        }
    }
}

/// Returns our triggers on a table.
fn triggers(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Found>> {
    let sql = "SELECT name, sql FROM main.sqlite_schema \
               WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE AND lower(substr(name, 1, length(?2))) = ?2";
    let mut statement = connection.prepare(sql)?;
    statement.query_map([table, PREFIX], |row| Ok(Found { name: row.get(0)?, sql: row.get(1)? }))?.collect()
}

/// Creates the missing triggers of a table, and records the table. Needs a write transaction.
pub(super) fn protect(connection: &Connection, resource: &str, table_name: &str) -> Result<(), Failure> {
    let misuse =
        |what: String| Failure::Refused(ErrorKind::misuse(format!("table '{}': {what}", table_name.escape_debug())));
    match schema_state(connection)? {
        SchemaState::Current => {}
        SchemaState::Missing => return Err(schema_changed("palisade_mark")),
        SchemaState::Changed(name) => return Err(schema_changed(&name)),
    }
    let table = find(connection, table_name)?.map_err(|what| misuse(what.to_owned()))?;
    let recorded = "SELECT resource FROM main.palisade_protected WHERE name = ?1";
    let recorded: Option<String> = connection.query_row(recorded, [&table], |row| row.get(0)).optional()?;
    let others = |of: &str, undo: String| {
        format!(
            "it is protected for the resource '{}', and a table has one resource; {undo} first",
            of.escape_debug()
        )
    };
    let found = triggers(connection, &table)?;
    if let Some(found) = found.iter().find(|found| !found.is_of(resource, &table)) {
        let undo = format!("DROP TRIGGER {}", identifier(&found.name));
        return Err(misuse(match found.resource(&table) {
            Some(of) => others(&of, undo),
            None => format!("its trigger '{}' is not as Palisade makes it; {undo} first", found.name.escape_debug()),
        }));
    }
    if let Some(of) = recorded.filter(|of| of != resource) {
        let undo = format!("DELETE FROM palisade_protected WHERE name = {}", literal(&table));
        return Err(misuse(others(&of, undo)));
    }
    for change in missing(connection, resource, &table)? {
        let name = free_name(connection, &table, change)?;
        connection.execute_batch(&trigger("main.", &name, change, resource, &table))?;
    }
    let record = "INSERT OR IGNORE INTO main.palisade_protected (name, resource) VALUES (?1, ?2)";
    connection.execute(record, [&*table, resource])?;
    match missing(connection, resource, &table)?.as_slice() {
        [] => Ok(()),
        [change, ..] => Err(misuse(format!("SQLite has accepted the trigger for {change} and does not have it"))),
    }
}

/// Returns the exact name of a table, or why it cannot be protected.
fn find(connection: &Connection, table_name: &str) -> rusqlite::Result<Result<String, &'static str>> {
    let sql = "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE";
    let found =
        connection.query_row(sql, [table_name], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let Some((name, kind)) = found.optional()? else {
        return Ok(Err("there is no table of this name in the database"));
    };
    let is_ours = OURS.as_ref().is_ok_and(|ours| ours.keys().any(|own| own.eq_ignore_ascii_case(&name)));
    let is_system = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_"));
    Ok(match kind.as_str() {
        _ if is_ours => Err("it is Palisade's own"),
        _ if is_system => Err("it is SQLite's own"),
        "table" => Ok(name),
        "view" => Err("it is a view; protect the tables that are behind it"),
        "virtual" => Err("it is a virtual table, and SQLite has no triggers on those"),
        _ => Err("it is a shadow table of a virtual one, which changes it without triggers"),
    })
}

fn missing(connection: &Connection, resource: &str, table: &str) -> rusqlite::Result<Vec<&'static str>> {
    let found = triggers(connection, table)?;
    let is_missing = |change: &&str| !found.iter().any(|found| found.refuses(change, resource, table));
    Ok(CHANGES.into_iter().filter(is_missing).collect())
}

fn free_name(connection: &Connection, table: &str, change: &str) -> rusqlite::Result<String> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'trigger' AND name = ?1 COLLATE NOCASE)";
    let mut attempt = 1;
    loop {
        let name = name(table, change, attempt);
        if !connection.query_row(sql, [&name], |row| row.get::<_, bool>(0))? {
            return Ok(name);
        }
        attempt += 1;
    }
}

/// Verifies that the schema is that of this version, and that the tables of this resource still have their triggers.
///
/// # Errors
///
/// The difference that was found.
pub(super) fn verify(connection: &Connection, resource: &str) -> Result<(), Failure> {
    match schema_state(connection)? {
        SchemaState::Current => {}
        SchemaState::Missing => {
            let what = "there is no fence in this database: Sqlite::open makes it";
            return Err(Failure::Refused(ErrorKind::misuse(what)));
        }
        SchemaState::Changed(name) => return Err(schema_changed(&name)),
    }
    // A dropped table cannot be changed, and a renamed table keeps its triggers.
    let sql = "SELECT t.name FROM main.palisade_protected p JOIN main.sqlite_schema t ON t.name = p.name COLLATE NOCASE \
               WHERE p.resource = ?1 AND t.type = 'table'";
    let mut statement = connection.prepare(sql)?;
    let tables: Vec<String> = statement.query_map([resource], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for table in tables {
        if let [change, ..] = missing(connection, resource, &table)?[..] {
            return Err(Failure::Refused(ErrorKind::misuse(format!(
                "table '{}' was protected, and its trigger for {change} is gone or changed (a migration that recreates a \
                 table loses its triggers); call Sqlite::protect for it again",
                table.escape_debug()
            ))));
        }
    }
    Ok(())
}

/// The state of [`SCHEMA`] in a database.
pub(super) enum SchemaState {
    Missing,
    Current,
    /// This part is missing, or it is not as this version makes it.
    Changed(String),
}

pub(super) fn schema_changed(name: &str) -> Failure {
    Failure::Refused(ErrorKind::misuse(format!(
        "what Palisade keeps in this database was changed or is of another version: '{name}' is missing or not as this \
         version makes it; restore the database, or, if no holder is left, drop everything named {PREFIX}* and open it again"
    )))
}

/// The names of what [`SCHEMA`] makes, and what SQLite then keeps of each.
static OURS: LazyLock<rusqlite::Result<BTreeMap<String, String>>> = LazyLock::new(|| {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(SCHEMA)?;
    read_ours(&connection)
});

fn read_ours(connection: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    let sql =
        "SELECT name, sql FROM main.sqlite_schema WHERE lower(substr(name, 1, length(?1))) = ?1 AND sql IS NOT NULL";
    let mut statement = connection.prepare(sql)?;
    statement.query_map([PREFIX], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

pub(super) fn schema_state(connection: &Connection) -> rusqlite::Result<SchemaState> {
    let found = read_ours(connection)?;
    // The schema is part of this program, so this cannot fail.
    let Ok(ours) = &*OURS else { return Ok(SchemaState::Changed(PREFIX.to_owned())) };
    if !ours.keys().any(|name| found.contains_key(name)) {
        return Ok(SchemaState::Missing);
    }
    let other = ours.iter().find(|(name, sql)| found.get(*name) != Some(*sql));
    Ok(other.map_or(SchemaState::Current, |(name, _)| SchemaState::Changed(name.clone())))
}
