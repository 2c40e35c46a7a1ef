//! The functions in PostgreSQL, as the model calls them: as the library does, or as a program in another language may, in
//! transactions of any kind and with its own settings.

use std::cell::Cell;

use palisade_core::{Acquire, LockName, Mode, Patience, Reentry, RequestNo, Value};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::fixture::{Fixture, client, until};
use super::model::{Seen, need};

pub(crate) struct Functions {
    client: Client,
    /// Whether everything that is rare happens between any two steps: clean-up, the sweep, names that are used once,
    /// sessions that are abandoned.
    is_rare_forced: bool,
    /// Whether each call is made in another kind of transaction.
    is_in_transactions: bool,
    calls: Cell<usize>,
}

/// Settings of other programs, used in turn.
const SETTINGS: [&str; 4] = [
    "RESET ALL",
    "SET TimeZone = 'Pacific/Auckland'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'; \
     SET search_path = pg_temp; SET client_encoding = 'LATIN1'; SET bytea_output = 'escape'",
    "SET TimeZone = 'America/St_Johns'; SET standard_conforming_strings = off; SET escape_string_warning = off; \
     SET array_nulls = off; SET transform_null_equals = on; SET plan_cache_mode = force_custom_plan",
    "SET synchronous_commit = off; SET plan_cache_mode = force_generic_plan; SET quote_all_identifiers = on; \
     SET lc_messages = 'C'; SET default_transaction_isolation = 'read uncommitted'",
];

impl Functions {
    pub(crate) async fn of(fixture: &Fixture) -> Functions {
        Functions::over(fixture.store().await)
    }

    fn over(client: Client) -> Functions {
        Functions { client, is_rare_forced: false, is_in_transactions: false, calls: Cell::new(0) }
    }

    /// Forces every rare event between any two steps.
    pub(crate) fn with_rare_forced(self) -> Functions {
        Functions { is_rare_forced: true, ..self }
    }

    /// Calls in every kind of transaction, with other settings every few calls.
    pub(crate) fn in_transactions(self) -> Functions {
        Functions { is_in_transactions: true, ..self }
    }

    /// Opens another connection, as after a restart of the server.
    pub(crate) async fn reconnect(&mut self, url: &str) {
        self.client = client(url).await;
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    async fn row(&self, sql: &str, given: &[&(dyn ToSql + Sync)]) -> Row {
        let ask = async || self.client.query_one(sql, given).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        self.calls.set(self.calls.get() + 1);
        if !self.is_in_transactions {
            return ask().await;
        }
        let calls = self.calls.get();
        if calls.is_multiple_of(16) {
            self.batch(SETTINGS[calls / 16 % SETTINGS.len()]).await;
        }
        match calls % 5 {
            0 => self.batch("BEGIN").await,
            1 => self.batch("BEGIN ISOLATION LEVEL READ UNCOMMITTED; SAVEPOINT mine").await,
            2 | 3 => {
                // It is refused, and nothing has changed.
                let level = ["REPEATABLE READ", "SERIALIZABLE"][calls % 2];
                self.batch(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM palisade.state")).await;
                let refused = self.client.query_one(sql, given).await.map(drop);
                // The release of an unwanted grant is the same in any transaction.
                if let Err(error) = refused {
                    assert_eq!(error.code().map(|code| code.code()), Some("PL002"), "{sql}: {error}");
                }
                self.batch("ROLLBACK").await;
                return ask().await;
            }
            _ => return ask().await,
        }
        let row = ask().await;
        self.batch("COMMIT").await;
        row
    }

    async fn batch(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    async fn run(&self, sql: &str, given: &[&(dyn ToSql + Sync)]) {
        self.client.execute(sql, given).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    /// Causes the rare events between two steps, and checks the tables.
    pub(crate) async fn between_steps(&mut self) {
        if self.is_rare_forced {
            let name = format!("once/{}", self.calls.get());
            self.run("SELECT palisade.release($1, token) FROM palisade.acquire($1)", &[&name]).await;
            self.run("SELECT palisade.acquire($1 || '/abandoned')", &[&name]).await;
            self.run("UPDATE palisade.session SET deadline = palisade.now() WHERE is_lease", &[]).await;
            self.sweep().await;
            self.run("SELECT palisade.clean(0, 100000)", &[]).await;
        }
        let wrong = self.client.query("SELECT palisade.check()", &[]).await.expect("an answer");
        let wrong: Vec<String> = wrong.iter().map(|row| row.get(0)).collect();
        assert_eq!(wrong, [""; 0]);
    }

    /// Moves the server's clock, for everything in this database.
    pub(crate) async fn set_clock(&self, ahead: &str) {
        self.batch(&clock(ahead)).await;
    }

    pub(crate) async fn open(&mut self) -> i64 {
        self.row("SELECT session FROM palisade.open(600000, 'me', NULL)", &[]).await.get(0)
    }

    pub(crate) async fn close(&mut self, session: i64) {
        let close = "SELECT palisade.close($1)";
        until("the session is closed", async || self.row(close, &[&session]).await.get(0)).await;
    }

    pub(crate) async fn make_overdue(&mut self, session: i64) {
        let sql = "UPDATE palisade.session SET deadline = palisade.now() - interval '1 s' WHERE id = $1";
        self.run(sql, &[&session]).await;
    }

    /// Ends overdue sessions.
    pub(crate) async fn sweep(&mut self) {
        let sweep = "SELECT palisade.sweep()";
        until("nothing is left to sweep", async || self.row(sweep, &[]).await.get::<_, i32>(0) == 0).await;
    }

    /// Returns the reply, and a refusal.
    pub(crate) async fn acquire(&mut self, session: i64, ask: &Acquire) -> (String, String) {
        let number = ask.caller.number.map(|number| number.get() as i64);
        let (waits, may_queue) = (ask.patience == Patience::Wait, ask.reentry == Reentry::Queue);
        match &ask.wants[..] {
            // Alternates between the fast path and the general one.
            [want]
                if want.mode == Mode::Exclusive
                    && ask.delay.is_none()
                    && ask.value.is_none()
                    && number.is_some_and(|number| number % 4 != 0) =>
            {
                let sql = "SELECT palisade.take($1, 0, $2, $3, $4, $5)";
                fast_path_reply(
                    self.row(sql, &[&session, &number, &want.lock.as_str(), &waits, &may_queue]).await.get(0),
                )
            }
            wants => {
                let locks: Vec<_> = wants.iter().map(|want| want.lock.as_str()).collect();
                let (needs, permits): (Vec<_>, Vec<_>) = wants.iter().map(|want| need(want.mode)).unzip();
                let delay = ask.delay.map(|delay| delay.as_ms() as i64);
                let value = ask.value.as_ref().map(Value::as_bytes);
                let sql = "SELECT said, detail FROM palisade.request($1, 0, $2, $3, $4, $5, $6, $7, $8, $9)";
                let given: [&(dyn ToSql + Sync); 9] =
                    [&session, &number, &locks, &needs, &permits, &waits, &may_queue, &delay, &value];
                reply_of(&self.row(sql, &given).await)
            }
        }
    }

    pub(crate) async fn cancel(&mut self, session: i64, number: RequestNo) -> (String, String) {
        let sql = "SELECT said, detail FROM palisade.cancel($1, $2)";
        reply_of(&self.row(sql, &[&session, &(number.get() as i64)]).await)
    }

    pub(crate) async fn give_back(&mut self, session: i64, lock: &LockName, token: i64) -> (String, String) {
        let call = if token % 4 == 0 { "hand_over" } else { "give_back" };
        let sql = &format!("SELECT palisade.{call}($1, $2, $3)");
        match self.row(sql, &[&session, &lock.as_str(), &token]).await.get(0) {
            Some(refusal) => ("refused".to_owned(), refusal),
            None => ("released".to_owned(), String::new()),
        }
    }

    /// Returns the refusal, if there is one.
    pub(crate) async fn publish(&mut self, session: i64, lock: &LockName, token: i64, value: &str) -> Option<String> {
        let sql = "SELECT palisade.publish($1, $2, $3, $4)";
        self.row(sql, &[&session, &lock.as_str(), &token, &value.as_bytes()]).await.get(0)
    }

    /// Returns the number of ended grants and the new token, or a refusal.
    pub(crate) async fn force(&mut self, lock: &LockName, only: Option<i64>) -> Result<(u32, i64), String> {
        let sql = "SELECT grants, moved_to, refusal FROM palisade.force($1, $2, 'me', 'me')";
        let row = self.row(sql, &[&lock.as_str(), &only]).await;
        match row.get(2) {
            Some(refusal) => Err(refusal),
            None => Ok((row.get::<_, i32>(0) as u32, row.get(1))),
        }
    }

    /// Returns the refusal, if there is one.
    pub(crate) async fn resize(&mut self, lock: &LockName, limit: u32) -> Option<String> {
        self.row("SELECT palisade.resize($1, $2)", &[&lock.as_str(), &i64::from(limit)]).await.get(0)
    }

    pub(crate) async fn end_delay(&mut self, lock: &LockName, token: i64) {
        let sql = "UPDATE palisade.claim SET withheld_until = palisade.now() WHERE lock = $1 AND token = $2 \
             AND withheld_until IS NOT NULL";
        self.run(sql, &[&lock.as_str(), &token]).await;
    }

    pub(crate) async fn end_all_delays(&mut self) {
        let sql = "UPDATE palisade.claim SET withheld_until = palisade.now() WHERE withheld_until IS NOT NULL";
        self.run(sql, &[]).await;
    }

    /// Returns the holders of these locks, and then the waiters.
    pub(crate) async fn locks(&mut self, locks: &[LockName]) -> Vec<Seen> {
        let locks: Vec<_> = locks.iter().map(LockName::as_str).collect();
        let sql = "SELECT state, session, CASE need WHEN 'all' THEN 4294967295 ELSE need::bigint END, token, permits, value, \
             lock FROM palisade.locks WHERE lock = ANY ($1) \
             ORDER BY state = 'waiting', token, arrival";
        let rows = self.client.query(sql, &[&locks]).await.expect("it answers");
        let seen = |row: &Row| Seen {
            lock: row.get(6),
            state: row.get(0),
            session: row.get(1),
            need: row.get(2),
            token: row.get(3),
            permits: row.get(4),
            value: row.get(5),
        };
        rows.iter().map(seen).collect()
    }
}

/// Returns the SQL that moves the server's clock for one database.
pub(crate) fn clock(ahead: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION palisade.now() RETURNS timestamptz LANGUAGE sql AS \
         $$ SELECT pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '{ahead}'::pg_catalog.interval $$"
    )
}

/// Converts a reply of the fast path: a token, a word, or a refusal.
fn fast_path_reply(said: String) -> (String, String) {
    if said.parse::<u64>().is_ok() {
        ("granted".to_owned(), String::new())
    } else if said.starts_with(['{', '"']) {
        ("refused".to_owned(), said)
    } else {
        (said, String::new())
    }
}

fn reply_of(row: &Row) -> (String, String) {
    (row.get(0), row.get::<_, Option<String>>(1).unwrap_or_default())
}
