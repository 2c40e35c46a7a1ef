//! MariaDB: our locks beside GET_LOCK, which has no token and ends with its connection, and beside what people write: a
//! row that is inserted, or taken over when it has expired, and a poll where it is not free.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use palisade_testbench::servers::MariaDb;

use crate::driver::{Contender, ROUNDS, Sample, WORKLOADS, sample, show};
use crate::ours::{lock, ours, ours_in_one};

struct GetLock {
    conn: Conn,
    lock: String,
}

impl Contender for GetLock {
    async fn acquire(&mut self) {
        let got = self.conn.query_first(format!("SELECT GET_LOCK('{}', 60)", self.lock)).await.unwrap();
        assert_eq!(got, Some(1));
    }

    async fn release(&mut self) {
        let freed = self.conn.query_first(format!("SELECT RELEASE_LOCK('{}')", self.lock)).await.unwrap();
        assert_eq!(freed, Some(1));
    }
}

struct Upsert {
    conn: Conn,
    lock: String,
    owner: usize,
    chance: u64,
}

impl Contender for Upsert {
    async fn acquire(&mut self) {
        let (lock, owner) = (&self.lock, self.owner);
        let take = format!(
            "INSERT INTO locks (name, owner, until) VALUES ('{lock}', {owner}, NOW(6) + INTERVAL 60 SECOND) \
             ON DUPLICATE KEY UPDATE owner = IF(until < NOW(6), VALUES(owner), owner), \
             until = IF(owner = VALUES(owner), VALUES(until), until)"
        );
        loop {
            // A deadlock is tried again, as everybody does who has seen one.
            if self.conn.query_drop(&take).await.is_ok() && self.conn.affected_rows() > 0 {
                return;
            }
            self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            tokio::time::sleep(Duration::from_micros(10_000 + (self.chance >> 33) % 90_000)).await;
        }
    }

    async fn release(&mut self) {
        let free = format!("DELETE FROM locks WHERE name = '{}' AND owner = {}", self.lock, self.owner);
        while self.conn.query_drop(&free).await.is_err() {}
        assert_eq!(self.conn.affected_rows(), 1);
    }
}

async fn raw(url: &str) -> Conn {
    Conn::new(Opts::from_url(url).unwrap()).await.unwrap()
}

async fn get_lock(url: &str, clients: usize, is_hot: bool, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..clients {
        contenders.push(GetLock { conn: raw(url).await, lock: lock(number, is_hot) });
    }
    sample(contenders, is_hot, length).await
}

async fn upsert(url: &str, clients: usize, is_hot: bool, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..clients {
        let conn = raw(url).await;
        contenders.push(Upsert { conn, lock: lock(number, is_hot), owner: number + 1, chance: number as u64 });
    }
    sample(contenders, is_hot, length).await
}

pub(crate) async fn measure(length: Duration) -> Vec<String> {
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    let server = MariaDb::start(&folder.path().canonicalize().unwrap());
    let server = server.unwrap_or_else(|absent| panic!("{absent}"));
    let url = server.url();
    let table = "CREATE TABLE locks (name VARCHAR(255) PRIMARY KEY, owner BIGINT, until DATETIME(6)) ENGINE = InnoDB";
    raw(&url).await.query_drop(table).await.unwrap();
    let names = ["palisade", "palisade, one client with all tasks", "GET_LOCK", "upsert, and a poll of 10 to 100 ms"];
    let mut missed = Vec::new();
    for (workload, wanted) in WORKLOADS.iter().zip([1.0, 1.0, 10.0]) {
        let (clients, is_hot) = (workload.clients, workload.is_hot);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(vec![
                ours(&url, clients, is_hot, length).await,
                ours_in_one(&url, clients, is_hot, length).await,
                get_lock(&url, clients, is_hot, length).await,
                upsert(&url, clients, is_hot, length).await,
            ]);
        }
        missed.extend(show("MariaDB", workload, &names, &rounds, &[None, None, None, Some(wanted)]));
    }
    missed
}
