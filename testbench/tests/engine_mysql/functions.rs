//! The procedures in MariaDB, as the model calls them.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use palisade_core::{Acquire, LockName, Mode, Patience, Reentry, RequestNo};

use crate::model::{Seen, need};
use crate::scene::Scene;

pub(crate) struct Functions(Conn);

impl Functions {
    pub(crate) async fn of(scene: &Scene) -> Functions {
        Functions(scene.store().await)
    }

    async fn row(&mut self, sql: String) -> Row {
        let row = self.0.query_first(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        row.unwrap_or_else(|| panic!("{sql} does not answer"))
    }

    async fn run(&mut self, sql: String) {
        self.0.query_drop(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    pub(crate) async fn open(&mut self) -> i64 {
        number(&self.row("CALL palisade_open(600000, 'me')".to_owned()).await, 0).expect("it opens")
    }

    pub(crate) async fn close(&mut self, session: i64) {
        self.run(format!("CALL palisade_close({session})")).await;
    }

    pub(crate) async fn make_overdue(&mut self, session: i64) {
        let overdue = "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND";
        self.run(format!("UPDATE palisade_session SET deadline = {overdue} WHERE id = {session}")).await;
    }

    /// Ends what is overdue.
    pub(crate) async fn sweep(&mut self) {
        while number(&self.row("CALL palisade_sweep()".to_owned()).await, 0) == Some(1) {}
    }

    /// What is said, and a refusal.
    pub(crate) async fn acquire(&mut self, session: i64, ask: &Acquire) -> (String, String) {
        let request = ask.caller.number.expect("it has one").get();
        let (waits, may_queue) = (ask.patience == Patience::Wait, ask.reentry == Reentry::Queue);
        let row = match &ask.wants[..] {
            [want] if want.mode == Mode::Exclusive && ask.delay.is_none() && ask.value.is_none() => {
                let lock = &want.lock;
                self.row(format!("CALL palisade_take({session}, 0, {request}, '{lock}', {waits}, {may_queue})")).await
            }
            wants => {
                let parts = wants.iter().map(|want| {
                    let (need, permits) = need(want.mode);
                    let name: String = want.lock.as_str().bytes().map(|byte| format!("{byte:02X}")).collect();
                    format!("{name}:{need}:{}", permits.map_or(String::new(), |of| of.to_string()))
                });
                let mut order: Vec<_> = (0..wants.len()).collect();
                order.sort_by_key(|part| &wants[*part].lock);
                let order: Vec<_> = order.into_iter().map(|part| (part + 1).to_string()).collect();
                let delay = ask.delay.map_or("NULL".to_owned(), |delay| delay.as_ms().to_string());
                let value = ask.value.as_ref().map_or("NULL", |_| "'a value'");
                let (parts, order) = (parts.collect::<Vec<_>>().join(","), order.join(","));
                let what = format!("'{parts}', '{order}', {waits}, {may_queue}, {delay}, {value}");
                self.row(format!("CALL palisade_request({session}, 0, {request}, {what})")).await
            }
        };
        (text(&row, 0), text(&row, 2))
    }

    pub(crate) async fn cancel(&mut self, session: i64, number: RequestNo) -> (String, String) {
        let row = self.row(format!("CALL palisade_cancel({session}, {})", number.get())).await;
        (text(&row, 0), text(&row, 2))
    }

    pub(crate) async fn give_back(&mut self, session: i64, lock: &LockName, token: i64) -> (String, String) {
        let row = self.row(format!("CALL palisade_give_back({session}, '{lock}', {token})")).await;
        (text(&row, 0), text(&row, 1))
    }

    /// A refusal, if it is one.
    pub(crate) async fn publish(&mut self, session: i64, lock: &LockName, token: i64, value: &str) -> Option<String> {
        let row = self.row(format!("CALL palisade_publish({session}, '{lock}', {token}, '{value}')")).await;
        row.get::<Option<String>, _>(0).flatten()
    }

    /// How many grants have ended, and which token was moved on to; or a refusal.
    pub(crate) async fn force(&mut self, lock: &LockName, only: Option<i64>) -> Result<(u32, i64), String> {
        let only = only.map_or("NULL".to_owned(), |only| only.to_string());
        let row = self.row(format!("CALL palisade_force('{lock}', {only}, 'me', 'me')")).await;
        match row.get::<Option<String>, _>(2).flatten() {
            Some(refusal) => Err(refusal),
            None => Ok((number(&row, 0).expect("a number") as u32, number(&row, 1).expect("a token"))),
        }
    }

    /// A refusal, if it is one.
    pub(crate) async fn resize(&mut self, lock: &LockName, limit: u32) -> Option<String> {
        self.row(format!("CALL palisade_resize('{lock}', {limit})")).await.get::<Option<String>, _>(0).flatten()
    }

    pub(crate) async fn end_delay(&mut self, lock: &LockName, token: i64) {
        for table in ["lock", "claim"] {
            let over = format!("withheld_until = UTC_TIMESTAMP(6) WHERE name = '{lock}' AND token = {token}");
            self.run(format!("UPDATE palisade_{table} SET {over} AND withheld_until IS NOT NULL")).await;
        }
    }

    pub(crate) async fn end_all_delays(&mut self) {
        for table in ["lock", "claim"] {
            let over = "withheld_until = UTC_TIMESTAMP(6) WHERE withheld_until IS NOT NULL";
            self.run(format!("UPDATE palisade_{table} SET {over}")).await;
        }
    }

    /// Holders of these locks, and then those who wait.
    pub(crate) async fn locks(&mut self, locks: &[LockName]) -> Vec<Seen> {
        let locks: Vec<_> = locks.iter().map(|lock| format!("'{lock}'")).collect();
        let sql = format!(
            "SELECT state, session, need, token, permits, value, name FROM palisade_locks WHERE name IN ({}) \
             ORDER BY state = 'waiting', token, arrival",
            locks.join(", ")
        );
        let rows: Vec<Row> = self.0.query(sql).await.expect("it answers");
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

fn text(row: &Row, column: usize) -> String {
    row.get::<Option<String>, _>(column).flatten().unwrap_or_default()
}

fn number(row: &Row, column: usize) -> Option<i64> {
    row.get::<Option<i64>, _>(column).flatten()
}

impl Functions {
    /// What happens beside the model's own steps, and what must hold after each of them.
    pub(crate) async fn between_steps(&mut self) {}
}
