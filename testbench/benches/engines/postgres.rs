//! PostgreSQL: our locks beside session advisory locks, which have no token and survive nothing, and beside what people
//! write: a row that is inserted, or taken over when it has expired, and a poll where it is not free.

use std::time::Duration;

use palisade_testbench::servers;
use tokio_postgres::{Client, NoTls, Statement};

use crate::driver::{Contender, ROUNDS, Sample, WORKLOADS, sample, show};
use crate::ours::{lock, ours, ours_in_one};

struct Advisory {
    client: Client,
    lock: Statement,
    unlock: Statement,
    key: i64,
}

impl Contender for Advisory {
    async fn acquire(&mut self) {
        self.client.query(&self.lock, &[&self.key]).await.unwrap();
    }

    async fn release(&mut self) {
        self.client.query(&self.unlock, &[&self.key]).await.unwrap();
    }
}

struct Upsert {
    client: Client,
    take: Statement,
    free: Statement,
    lock: String,
    owner: i64,
    chance: u64,
}

const TAKE: &str = "INSERT INTO locks (name, owner, until) VALUES ($1, $2, now() + interval '60 s') \
     ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner, until = EXCLUDED.until WHERE locks.until < now()";
const FREE: &str = "DELETE FROM locks WHERE name = $1 AND owner = $2";

impl Contender for Upsert {
    async fn acquire(&mut self) {
        while self.client.execute(&self.take, &[&self.lock, &self.owner]).await.unwrap() == 0 {
            self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            tokio::time::sleep(Duration::from_micros(10_000 + (self.chance >> 33) % 90_000)).await;
        }
    }

    async fn release(&mut self) {
        assert_eq!(self.client.execute(&self.free, &[&self.lock, &self.owner]).await.unwrap(), 1);
    }
}

async fn raw(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    drop(tokio::spawn(connection));
    client
}

async fn advisory(url: &str, clients: usize, is_hot: bool, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..clients {
        let client = raw(url).await;
        let lock = client.prepare("SELECT pg_advisory_lock($1)").await.unwrap();
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await.unwrap();
        contenders.push(Advisory { client, lock, unlock, key: if is_hot { 0 } else { number as i64 + 1 } });
    }
    sample(contenders, is_hot, length).await
}

async fn upsert(url: &str, clients: usize, is_hot: bool, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..clients {
        let client = raw(url).await;
        let (take, free) = (client.prepare(TAKE).await.unwrap(), client.prepare(FREE).await.unwrap());
        let (lock, owner, chance) = (lock(number, is_hot), number as i64, number as u64);
        contenders.push(Upsert { client, take, free, lock, owner, chance });
    }
    sample(contenders, is_hot, length).await
}

pub(crate) async fn measure(length: Duration) -> Vec<String> {
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    let server = servers::Postgres::start(&folder.path().canonicalize().unwrap());
    let server = server.unwrap_or_else(|absent| panic!("{absent}"));
    let url = server.url();
    raw(&url)
        .await
        .batch_execute("CREATE TABLE locks (name text PRIMARY KEY, owner bigint, until timestamptz)")
        .await
        .unwrap();
    let names =
        ["palisade", "palisade, one client with 64 tasks", "pg_advisory_lock", "upsert, and a poll of 10 to 100 ms"];
    let mut missed = Vec::new();
    for (workload, wanted) in WORKLOADS.iter().zip([1.0, 1.0, 10.0]) {
        let (clients, is_hot) = (workload.clients, workload.is_hot);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(vec![
                ours(&url, clients, is_hot, length).await,
                ours_in_one(&url, clients, is_hot, length).await,
                advisory(&url, clients, is_hot, length).await,
                upsert(&url, clients, is_hot, length).await,
            ]);
        }
        missed.extend(show("PostgreSQL", workload, &names, &rounds, &[None, None, None, Some(wanted)]));
    }
    missed
}
