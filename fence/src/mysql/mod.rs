//! MySQL and MariaDB, one primary.
//!
//! The marks are a table in the same database as the data. From Rust every write is one transaction that checks the mark,
//! writes and records. For other clients there are stored procedures, and triggers that refuse an old or missing token;
//! `palisade fence mysql` prints and installs them.
//!
//! ```no_run
//! # async fn example(token: palisade_fence::Token) -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_fence::{Seal, mysql::{MySql, Statement}};
//! let mysql = MySql::install("mysql://app:secret@127.0.0.1:3306/shop").await?;    // or MySql::connect
//! let orders = mysql.rows("orders")?;
//! let mut orders = orders.seal(token).await?;     // or: palisade.lock("orders").seal(&orders).acquire()
//! let rows = orders.query(Statement::new("SELECT total FROM orders WHERE id = ?").bind(42)).await?;
//! orders.execute(Statement::new("UPDATE orders SET total = ? WHERE id = ?").bind(100).bind(42)).await?;
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! A primary that flushes at every commit (`innodb_flush_log_at_trx_commit = 1`, the default; another setting is refused)
//! loses no acknowledged update. A failover to a replica can, and takes marks back with the data. Tables must be InnoDB:
//! another engine does not take part in transactions.

mod answer;
mod connections;
mod rows;
mod script;
mod statement;

pub use ::mysql_async::{Row, Value};
pub use connections::options;
pub use rows::Rows;
pub use script::{INSTALL, Scope, UNINSTALL, protection};
pub use statement::{Statement, Written};

use crate::{Author, Error, ErrorKind, Problem};
use answer::Failure;
use connections::Connections;
use script::EVENTS;

/// A database with the table of marks. A pool of connections; clones share it.
#[derive(Clone)]
pub struct MySql {
    connections: Connections,
}

impl MySql {
    /// Connects to a database: `mysql://user:password@host:3306/database`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: it is no such URL; the fence is not installed there; a crash could take back what was
    /// committed. The server cannot be reached.
    pub async fn connect(url: &str) -> Result<MySql, Error> {
        let mysql = MySql { connections: Connections::to(url)? };
        mysql.check().await?;
        Ok(mysql)
    }

    /// Connects to a database, and makes the table of marks and the procedures there. Marks that are there stay; procedures of
    /// an older version are replaced.
    ///
    /// # Errors
    ///
    /// As [`connect`](MySql::connect); a newer version is installed; the user may not create tables and routines.
    pub async fn install(url: &str) -> Result<MySql, Error> {
        let mysql = MySql { connections: Connections::to(url)? };
        let versions = mysql.versions().await?;
        mysql.refuse_newer(versions)?;
        if versions.is_some_and(|(oldest, _)| oldest < script::VERSION) {
            mysql.run(UNINSTALL).await?;
        }
        mysql.run(INSTALL).await?;
        mysql.check().await?;
        Ok(mysql)
    }

    /// Creates triggers that refuse every INSERT, UPDATE and DELETE on a table under an old or missing token, from any
    /// client. Replaces triggers of another scope. TRUNCATE and DROP fire no triggers: revoke the right to them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Rejected`]: there is no such table or column; triggers could not protect it, because it is not InnoDB, a
    /// foreign key changes its rows, or the column cannot name rows. The user may not create triggers.
    pub async fn protect(&self, table: &str, scope: &Scope) -> Result<(), Error> {
        let existing = self.triggers(table).await?;
        let is_same = EVENTS.iter().all(|event| {
            let body = script::body(scope, event);
            existing.iter().filter(|trigger| trigger.event == *event && words(&trigger.body) == words(&body)).count()
                == 1
        });
        let mut statements = format!("{};\n", script::protecting(table, scope, true));
        if !(is_same && existing.len() == EVENTS.len()) {
            let made = script::triggers(table, scope, Author::unique().get()).concat();
            let replaced: String =
                existing.iter().map(|trigger| format!("DROP TRIGGER {};\n", trigger.name)).collect();
            statements += &format!("DELIMITER //\n{made}DELIMITER ;\n{replaced}");
        }
        self.run(&script::script(&statements)).await
    }

    /// Returns our triggers on a table.
    async fn triggers(&self, table: &str) -> Result<Vec<Trigger>, Error> {
        let query = format!(
            "SELECT trigger_name, event_manipulation, action_statement FROM information_schema.triggers \
             WHERE event_object_schema = DATABASE() AND BINARY event_object_table = x'{}' AND action_timing = 'BEFORE' \
             AND LOCATE('CALL palisade_fence_check(', action_statement) > 0",
            script::hex(table.as_bytes())
        );
        let rows = self
            .connections
            .run(&query)
            .await
            .map_err(|failure| self.error(failure.kind(), "read the triggers of"))?;
        let trigger = |row: Row| {
            let [name, event, body] = [0, 1, 2].map(|column| row.get::<String, _>(column).unwrap_or_default());
            Trigger { name: script::identifier(&name), event, body }
        };
        Ok(rows.into_iter().map(trigger).collect())
    }

    /// Returns the problems with the protection of tables, as far as this user may see them.
    ///
    /// # Errors
    ///
    /// The server cannot be reached; the user may not execute the procedures.
    pub async fn problems(&self) -> Result<Vec<Problem>, Error> {
        let rows = self.connections.run("CALL palisade_fence_problems()").await;
        let rows = rows.map_err(|failure| self.error(failure.kind(), "check the fence of"))?;
        let problem = |row: Row| {
            let [table, resource, what, remedy] =
                [0, 1, 2, 3].map(|column| row.get::<String, _>(column).unwrap_or_default());
            Problem { table, resource: Some(resource), what, remedy }
        };
        Ok(rows.into_iter().map(problem).collect())
    }

    /// Returns the rows that one mark protects, of one table or several.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: a name that is empty, longer than 255 bytes, or has control characters.
    pub fn rows(&self, name: &str) -> Result<Rows, Error> {
        Rows::new(self.connections.clone(), name)
    }

    /// Runs a script under a lock: concurrent installations would collide.
    async fn run(&self, script: &str) -> Result<(), Error> {
        let error = |failure: Failure| self.error(failure.kind(), "install the fence in");
        let mut connection = self.connections.connection().await.map_err(error)?;
        let lock = "SELECT GET_LOCK('palisade_fence_install', 30)".to_owned();
        for statement in std::iter::once(lock).chain(script::statements(script)) {
            connections::run(&mut connection, &statement).await.map_err(|cause| error(Failure::Undone(cause)))?;
        }
        // The pool resets the connection, which releases the lock.
        Ok(())
    }

    /// Returns the versions of the oldest and the newest of the procedures, if they are visible.
    async fn versions(&self) -> Result<Option<(u64, u64)>, Error> {
        let query = "SELECT MIN(version), MAX(version) FROM (SELECT CAST(SUBSTRING_INDEX(routine_comment, ' ', -1) AS UNSIGNED) \
                   AS version FROM information_schema.routines WHERE routine_schema = DATABASE() AND routine_name LIKE \
                   'palisade_fence_%') AS found";
        let rows = self.connections.run(query).await.map_err(|failure| self.error(failure.kind(), "use"))?;
        let number = |column: usize| rows.first()?.get::<Option<u64>, _>(column)?;
        Ok(number(0).zip(number(1)))
    }

    fn refuse_newer(&self, versions: Option<(u64, u64)>) -> Result<(), Error> {
        match versions {
            Some((_, newest)) if newest > script::VERSION => {
                let what = format!(
                    "its procedures are of version {newest}, and this program knows {}: use a newer one",
                    script::VERSION
                );
                Err(self.error(ErrorKind::misuse(what), "use"))
            }
            _ => Ok(()),
        }
    }

    async fn check_version(&self) -> Result<(), Error> {
        let versions = self.versions().await?;
        self.refuse_newer(versions)?;
        match versions {
            Some((oldest, _)) if oldest < script::VERSION => {
                let what =
                    "its procedures are of an older version; replace them with `palisade fence mysql --install URL`";
                Err(self.error(ErrorKind::misuse(what), "use"))
            }
            _ => Ok(()),
        }
    }

    async fn check(&self) -> Result<(), Error> {
        let query = "SELECT (SELECT engine FROM information_schema.tables \
                   WHERE table_schema = DATABASE() AND table_name = 'palisade_fence_marks'), \
                   @@innodb_flush_log_at_trx_commit";
        let rows = self.connections.run(query).await.map_err(|failure| self.error(failure.kind(), "use"))?;
        let found = rows.first().map(|row| {
            let engine = row.get_opt::<Option<String>, _>(0).and_then(Result::ok).flatten();
            (engine, row.get_opt::<u64, _>(1).and_then(Result::ok))
        });
        let what = match found {
            Some((Some(engine), Some(1))) if engine == "InnoDB" => return self.check_version().await,
            Some((Some(engine), _)) if engine != "InnoDB" => "its table palisade_fence_marks is not InnoDB: ALTER it",
            Some((Some(_), _)) => {
                "a crash can take back what it has committed: set innodb_flush_log_at_trx_commit = 1, the default"
            }
            _ => "the fence is not installed there: `palisade fence mysql --install URL`",
        };
        Err(self.error(ErrorKind::misuse(what), "use"))
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, format!("mysql {}", self.connections.address()), operation)
    }
}

/// One of our triggers, as the server shows it.
struct Trigger {
    name: String,
    event: String,
    body: String,
}

/// Splits a statement into words, to compare it without its white space.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing/mysql.md")]
struct Page;
