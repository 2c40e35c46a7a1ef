//! The functions in PostgreSQL, as the model calls them.

use palisade_core::{Acquire, LockName, Mode, Patience, Reentry, RequestNo, Value};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::model::{Seen, need};
use crate::scene::Scene;

pub(crate) struct Functions(Client);

impl Functions {
    pub(crate) async fn of(scene: &Scene) -> Functions {
        Functions(scene.store().await)
    }

    async fn row(&self, sql: &str, given: &[&(dyn ToSql + Sync)]) -> Row {
        self.0.query_one(sql, given).await.unwrap_or_else(|error| panic!("{error}: {sql}"))
    }

    async fn run(&self, sql: &str, given: &[&(dyn ToSql + Sync)]) {
        self.0.execute(sql, given).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    pub(crate) async fn open(&mut self) -> i64 {
        self.row("SELECT session FROM palisade.open(600000, 'me', NULL)", &[]).await.get(0)
    }

    pub(crate) async fn close(&mut self, session: i64) {
        self.run("SELECT palisade.close($1)", &[&session]).await;
    }

    pub(crate) async fn make_overdue(&mut self, session: i64) {
        let sql = "UPDATE palisade.session SET deadline = clock_timestamp() - interval '1 s' WHERE id = $1";
        self.run(sql, &[&session]).await;
    }

    /// Ends what is overdue.
    pub(crate) async fn sweep(&mut self) {
        while self.row("SELECT palisade.sweep(16)", &[]).await.get::<_, i32>(0) > 0 {}
    }

    /// What is said, and a refusal.
    pub(crate) async fn acquire(&mut self, session: i64, ask: &Acquire) -> (String, String) {
        let number = ask.caller.number.map(|number| number.get() as i64);
        let (waits, may_queue) = (ask.patience == Patience::Wait, ask.reentry == Reentry::Queue);
        let row = match &ask.wants[..] {
            [want] if want.mode == Mode::Exclusive && ask.delay.is_none() && ask.value.is_none() => {
                // By turns as today's clients do, and as older ones and `request` do.
                let is_quick = number.is_some_and(|number| number % 4 != 0);
                let sql = match is_quick {
                    true => "SELECT palisade.take_quickly($1, 0, $2, $3, $4, $5)",
                    false => "SELECT said, detail FROM palisade.take($1, 0, $2, $3, $4, $5)",
                };
                let row = self.row(sql, &[&session, &number, &want.lock.as_str(), &waits, &may_queue]).await;
                if is_quick {
                    return quickly_said(row.get(0));
                }
                row
            }
            wants => {
                let locks: Vec<_> = wants.iter().map(|want| want.lock.as_str()).collect();
                let (needs, permits): (Vec<_>, Vec<_>) = wants.iter().map(|want| need(want.mode)).unzip();
                let delay = ask.delay.map(|delay| delay.as_ms() as i64);
                let value = ask.value.as_ref().map(Value::as_bytes);
                let sql = "SELECT said, detail FROM palisade.request($1, 0, $2, $3, $4, $5, $6, $7, $8, $9)";
                self.row(sql, &[&session, &number, &locks, &needs, &permits, &waits, &may_queue, &delay, &value])
                    .await
            }
        };
        said(&row)
    }

    pub(crate) async fn cancel(&mut self, session: i64, number: RequestNo) -> (String, String) {
        let sql = "SELECT said, detail FROM palisade.cancel($1, $2)";
        said(&self.row(sql, &[&session, &(number.get() as i64)]).await)
    }

    pub(crate) async fn give_back(&mut self, session: i64, lock: &LockName, token: i64) -> (String, String) {
        if token % 4 == 0 {
            let sql = "SELECT said, detail FROM palisade.give_back($1, $2, $3)";
            return said(&self.row(sql, &[&session, &lock.as_str(), &token]).await);
        }
        let sql = "SELECT palisade.give_back_quickly($1, $2, $3)";
        match self.row(sql, &[&session, &lock.as_str(), &token]).await.get(0) {
            Some(refusal) => ("refused".to_owned(), refusal),
            None => ("released".to_owned(), String::new()),
        }
    }

    /// A refusal, if it is one.
    pub(crate) async fn publish(&mut self, session: i64, lock: &LockName, token: i64, value: &str) -> Option<String> {
        let sql = "SELECT palisade.publish($1, $2, $3, $4)";
        self.row(sql, &[&session, &lock.as_str(), &token, &value.as_bytes()]).await.get(0)
    }

    /// How many grants have ended, and which token was moved on to; or a refusal.
    pub(crate) async fn force(&mut self, lock: &LockName, only: Option<i64>) -> Result<(u32, i64), String> {
        let sql = "SELECT grants, moved_to, refusal FROM palisade.force($1, $2, 'me', 'me')";
        let row = self.row(sql, &[&lock.as_str(), &only]).await;
        match row.get(2) {
            Some(refusal) => Err(refusal),
            None => Ok((row.get::<_, i32>(0) as u32, row.get(1))),
        }
    }

    /// A refusal, if it is one.
    pub(crate) async fn resize(&mut self, lock: &LockName, limit: u32) -> Option<String> {
        self.row("SELECT palisade.resize($1, $2)", &[&lock.as_str(), &i64::from(limit)]).await.get(0)
    }

    pub(crate) async fn end_delay(&mut self, lock: &LockName, token: i64) {
        for table in ["lock SET withheld_until = now() WHERE name", "claim SET withheld_until = now() WHERE lock"] {
            let sql = format!("UPDATE palisade.{table} = $1 AND token = $2 AND withheld_until IS NOT NULL");
            self.run(&sql, &[&lock.as_str(), &token]).await;
        }
    }

    pub(crate) async fn end_all_delays(&mut self) {
        for table in ["lock", "claim"] {
            let over = "withheld_until = now() WHERE withheld_until IS NOT NULL";
            self.run(&format!("UPDATE palisade.{table} SET {over}"), &[]).await;
        }
    }

    /// Holders of these locks, and then those who wait.
    pub(crate) async fn locks(&mut self, locks: &[LockName]) -> Vec<Seen> {
        let locks: Vec<_> = locks.iter().map(LockName::as_str).collect();
        let sql = "SELECT state, session, need, token, permits, value, lock FROM palisade.locks WHERE lock = ANY ($1) \
             ORDER BY state = 'waiting', token, arrival";
        let rows = self.0.query(sql, &[&locks]).await.expect("it answers");
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

/// A token, a word, or a refusal, as the others say it.
fn quickly_said(said: String) -> (String, String) {
    if said.parse::<u64>().is_ok() {
        ("granted".to_owned(), String::new())
    } else if said.starts_with(['{', '"']) {
        ("refused".to_owned(), said)
    } else {
        (said, String::new())
    }
}

fn said(row: &Row) -> (String, String) {
    (row.get(0), row.get::<_, Option<String>>(1).unwrap_or_default())
}
