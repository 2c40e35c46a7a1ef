//! The procedures in MariaDB, as the model calls them: as the library does, or as a program in another language may, on a
//! connection with its own settings.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};
use palisade_core::{Acquire, LockName, Patience, Reentry, RequestNo};

use super::fixture::{Fixture, client, until};
use super::model::{Seen, need};

pub(crate) struct Functions {
    conn: Conn,
    /// The connection that reads and changes the tables directly.
    beside: Conn,
    url: String,
    /// Whether everything that is rare happens between any two steps: the sweep, the removal of every row that is not in
    /// use, names that are used once, sessions that are abandoned, another connection.
    is_rare_forced: bool,
    /// Whether calls are made with the settings of other programs, and inside their transactions.
    is_foreign: bool,
    calls: usize,
}

/// Settings of other programs, used in turn.
const SETTINGS: [&str; 6] = [
    "sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES', time_zone = '+13:00', autocommit = 0",
    "sql_mode = 'ORACLE', tx_isolation = 'SERIALIZABLE', completion_type = 'CHAIN', autocommit = 1",
    "sql_mode = '', collation_connection = 'utf16_unicode_ci', sql_safe_updates = 1, sql_select_limit = 1",
    "sql_mode = 'HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH', character_set_client = 'latin1', \
     character_set_connection = 'gbk', tx_read_only = 1, sql_auto_is_null = 1",
    "tx_isolation = 'READ-UNCOMMITTED', autocommit = 0, completion_type = 'CHAIN', time_zone = '-12:59'",
    "sql_mode = 'TRADITIONAL', group_concat_max_len = 4, max_sp_recursion_depth = 0, auto_increment_increment = 7",
];

/// The error of a call inside a transaction.
const IN_TRANSACTION: u16 = 1568;

impl Functions {
    pub(crate) async fn of(fixture: &Fixture) -> Functions {
        let (conn, beside) = (fixture.store().await, client(&fixture.url()).await);
        Functions { conn, beside, url: fixture.url(), is_rare_forced: false, is_foreign: false, calls: 0 }
    }

    /// Forces every rare event between any two steps.
    pub(crate) fn with_rare_forced(self) -> Functions {
        Functions { is_rare_forced: true, ..self }
    }

    /// Calls with the settings of other programs, and inside their transactions.
    pub(crate) async fn with_settings_of_others(mut self) -> Functions {
        self.run("CREATE TABLE IF NOT EXISTS work (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB".to_owned())
            .await;
        Functions { is_foreign: true, ..self }
    }

    /// Opens another connection.
    pub(crate) async fn reconnect(&mut self) {
        self.conn = client(&self.url).await;
    }

    /// Opens both connections again after a restart of the server.
    pub(crate) async fn reconnect_all(&mut self) {
        self.reconnect().await;
        self.beside = client(&self.url).await;
    }

    async fn row(&mut self, sql: String) -> Row {
        self.calls += 1;
        if self.is_foreign {
            self.change_settings().await;
            if self.calls.is_multiple_of(3) {
                self.refused_in_transaction(&sql).await;
            }
        }
        let row = self.conn.query_first(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        row.unwrap_or_else(|| panic!("{sql} does not answer"))
    }

    async fn change_settings(&mut self) {
        if self.calls.is_multiple_of(5) {
            self.reconnect().await;
        }
        let settings = SETTINGS[self.calls / 5 % SETTINGS.len()];
        // Settings that an open transaction forbids are set before it.
        self.run(format!("SET SESSION {settings}")).await;
    }

    /// A call inside the caller's transaction changes nothing, and leaves what the caller has done.
    async fn refused_in_transaction(&mut self, sql: &str) {
        self.run("SET SESSION tx_read_only = 0".to_owned()).await;
        let rows = "SELECT COUNT(*) FROM work";
        let before: Option<u64> = self.conn.query_first(rows).await.expect("an answer");
        self.run("COMMIT AND NO CHAIN".to_owned()).await;
        self.run("START TRANSACTION".to_owned()).await;
        self.run("INSERT INTO work () VALUES ()".to_owned()).await;
        match self.conn.query_drop(sql).await {
            Err(Error::Server(error)) if error.code == IN_TRANSACTION => {}
            other => panic!("{sql} inside a transaction: {other:?}"),
        }
        self.run("COMMIT AND NO CHAIN".to_owned()).await;
        let after: Option<u64> = self.conn.query_first(rows).await.expect("an answer");
        self.run("COMMIT AND NO CHAIN".to_owned()).await;
        assert_eq!(after, before.map(|before| before + 1), "the caller's work is gone after {sql}");
    }

    async fn do_directly(&mut self, sql: String) {
        self.beside.query_drop(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    async fn run(&mut self, sql: String) {
        self.conn.query_drop(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    /// Causes the rare events between two steps, and checks the tables.
    pub(crate) async fn between_steps(&mut self) {
        if self.is_foreign {
            let variables = "SELECT COUNT(*) FROM information_schema.user_variables";
            assert_eq!(self.conn.query_first(variables).await.expect("an answer"), Some(0), "a variable was set");
            self.run("COMMIT AND NO CHAIN".to_owned()).await;
        }
        if self.is_rare_forced {
            self.reconnect().await;
            self.run("CALL palisade_open(100, 'abandoned')".to_owned()).await;
            let once = format!("once/{}", self.calls);
            let taken = self.row(format!("CALL palisade_acquire('{once}', 60000, 'once')")).await;
            let token = number(&taken, 0).expect("a token");
            self.sweep().await;
            let released = self.row(format!("CALL palisade_release('{once}', {token})")).await;
            assert_eq!(number(&released, 0), Some(1), "{once} was granted, and is not held");
            self.sweep().await;
        }
        assert_consistent(&mut self.beside).await;
    }

    pub(crate) async fn open(&mut self) -> i64 {
        number(&self.row("CALL palisade_open(600000, 'me')".to_owned()).await, 0).expect("it opens")
    }

    pub(crate) async fn close(&mut self, session: i64) {
        self.row(format!("CALL palisade_close({session})")).await;
    }

    /// Keeps a session alive and returns how often; `None` if it has ended.
    pub(crate) async fn keep_alive(&mut self, session: i64) -> Option<i64> {
        number(&self.row(format!("CALL palisade_keep_alive({session})")).await, 0)
    }

    pub(crate) async fn make_overdue(&mut self, session: i64) {
        let overdue = "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND";
        self.do_directly(format!("UPDATE palisade_session SET deadline = {overdue} WHERE id = {session}")).await;
    }

    /// Ends overdue sessions.
    pub(crate) async fn sweep(&mut self) {
        let keep = if self.is_rare_forced { 0 } else { 1000 };
        let sweep = format!("CALL palisade_sweep({keep})");
        until("nothing is left to sweep", async || number(&self.row(sweep.clone()).await, 0) != Some(1)).await;
    }

    /// Returns the reply, and a refusal.
    pub(crate) async fn acquire(&mut self, session: i64, ask: &Acquire) -> (String, String) {
        let request = ask.caller.number.expect("it has one").get();
        let (waits, may_queue) = (ask.patience == Patience::Wait, ask.reentry == Reentry::Queue);
        let parts = ask.wants.iter().map(|want| {
            let (need, permits) = need(want.mode);
            let permits = permits.map_or(String::new(), |of| of.to_string());
            format!("{}:{need}:{permits}", hex(want.lock.as_str()))
        });
        let mut order: Vec<_> = (0..ask.wants.len()).collect();
        order.sort_by_key(|part| &ask.wants[*part].lock);
        let order: Vec<_> = order.into_iter().map(|part| (part + 1).to_string()).collect();
        let delay = ask.delay.map_or("NULL".to_owned(), |delay| delay.as_ms().to_string());
        let value = ask.value.as_ref().map_or("NULL".to_owned(), |_| bytes("a value"));
        let (parts, order) = (parts.collect::<Vec<_>>().join(","), order.join(","));
        let what = format!("'{parts}', '{order}', {waits}, {may_queue}, {delay}, {value}");
        let row = self.row(format!("CALL palisade_request({session}, 0, {request}, {what})")).await;
        (text(&row, 0), text(&row, 2))
    }

    pub(crate) async fn cancel(&mut self, session: i64, number: RequestNo) -> (String, String) {
        let row = self.row(format!("CALL palisade_cancel({session}, {})", number.get())).await;
        (text(&row, 0), text(&row, 2))
    }

    pub(crate) async fn give_back(&mut self, session: i64, lock: &LockName, token: i64) -> (String, String) {
        let row = self.row(format!("CALL palisade_give_back({session}, {}, {token})", bytes(lock.as_str()))).await;
        let refusal = text(&row, 1);
        (if refusal.is_empty() { "released" } else { "refused" }.to_owned(), refusal)
    }

    /// Returns the refusal, if there is one.
    pub(crate) async fn publish(&mut self, session: i64, lock: &LockName, token: i64, value: &str) -> Option<String> {
        let (lock, value) = (bytes(lock.as_str()), bytes(value));
        let row = self.row(format!("CALL palisade_publish({session}, {lock}, {token}, {value})")).await;
        row.get::<Option<String>, _>(0).flatten()
    }

    /// Returns the number of ended grants and the new token, or a refusal.
    pub(crate) async fn force(&mut self, lock: &LockName, only: Option<i64>) -> Result<(u32, i64), String> {
        let only = only.map_or("NULL".to_owned(), |only| only.to_string());
        let row = self.row(format!("CALL palisade_force({}, {only}, 'me', 'me')", bytes(lock.as_str()))).await;
        match row.get::<Option<String>, _>(2).flatten() {
            Some(refusal) => Err(refusal),
            None => Ok((number(&row, 0).expect("a number") as u32, number(&row, 1).expect("a token"))),
        }
    }

    /// Returns the refusal, if there is one.
    pub(crate) async fn resize(&mut self, lock: &LockName, limit: u32) -> Option<String> {
        let lock = bytes(lock.as_str());
        self.row(format!("CALL palisade_resize({lock}, {limit})")).await.get::<Option<String>, _>(0).flatten()
    }

    pub(crate) async fn end_delay(&mut self, lock: &LockName, token: i64) {
        for table in ["lock", "claim"] {
            let lock = bytes(lock.as_str());
            let over = format!("withheld_until = UTC_TIMESTAMP(6) WHERE name = {lock} AND token = {token}");
            self.do_directly(format!("UPDATE palisade_{table} SET {over} AND withheld_until IS NOT NULL")).await;
        }
    }

    pub(crate) async fn end_all_delays(&mut self) {
        for table in ["lock", "claim"] {
            let over = "withheld_until = UTC_TIMESTAMP(6) WHERE withheld_until IS NOT NULL";
            self.do_directly(format!("UPDATE palisade_{table} SET {over}")).await;
        }
    }

    /// Returns the holders of these locks, and then the waiters.
    pub(crate) async fn locks(&mut self, locks: &[LockName]) -> Vec<Seen> {
        let locks: Vec<_> = locks.iter().map(|lock| format!("'{lock}'")).collect();
        let sql = format!(
            "SELECT state, session, need, token, permits, value, name FROM palisade_locks WHERE name IN ({}) \
             ORDER BY state = 'waiting', token, arrival",
            locks.join(", ")
        );
        let rows: Vec<Row> = self.beside.query(sql).await.expect("it answers");
        let seen = |row: &Row| Seen {
            lock: text(row, 6),
            state: text(row, 0),
            session: number(row, 1),
            need: number(row, 2).expect("a need"),
            token: number(row, 3),
            permits: number(row, 4),
            value: row.get::<Option<Vec<u8>>, _>(5).flatten(),
        };
        rows.iter().map(seen).collect()
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02X}")).collect()
}

/// Returns a text as a literal of bytes, which no character set changes.
fn bytes(text: &str) -> String {
    format!("x'{}'", hex(text))
}

/// Asserts that the tables are consistent.
pub(crate) async fn assert_consistent(conn: &mut Conn) {
    assert_eq!(contradictions(conn).await, Vec::<String>::new());
}

pub(crate) async fn contradictions(conn: &mut Conn) -> Vec<String> {
    let rows: Vec<Row> = conn.query("CALL palisade_check()").await.expect("an answer");
    rows.iter().map(|row| [0, 1, 2].map(|column| text(row, column)).join(" ")).collect()
}

fn text(row: &Row, column: usize) -> String {
    row.get::<Option<String>, _>(column).flatten().unwrap_or_default()
}

fn number(row: &Row, column: usize) -> Option<i64> {
    row.get::<Option<i64>, _>(column).flatten()
}
