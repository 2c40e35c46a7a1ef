//! An UPDATE on PostgreSQL: one statement, one transaction, many writers at once.

use std::future::Future;
use std::time::{Duration, Instant};

use palisade_fence::postgres::{self, Fence, Sql};
use palisade_fence::{Sealed, Token};
use palisade_testbench::servers::Postgres;
use tokio_postgres::{Client, NoTls, Statement};

use crate::Pair;

/// A fenced UPDATE may take so many times as long as the plain one.
const TARGET: f64 = 1.25;
const ROUNDS: usize = 40;
const TURN: usize = 50;
const UPDATE: &str = "SET total = total + $1 WHERE id = $2";

struct Bench {
    url: String,
    client: Client,
    plain: Statement,
    fenced: Statement,
    token: Token,
}

pub(crate) async fn measure() -> Vec<Pair> {
    let directory = tempfile::tempdir_in(".").unwrap();
    let server = Postgres::start(&directory.path().canonicalize().unwrap()).unwrap();
    let mut bench = Bench::new(server.url()).await;
    let mut pairs = vec![bench.one_statement().await, bench.by_session().await, bench.one_transaction().await];
    pairs.push(bench.many_rows().await);
    pairs
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn timed<T>(work: impl Future<Output = T>) -> Duration {
    let began = Instant::now();
    work.await;
    began.elapsed()
}

impl Bench {
    async fn new(url: String) -> Bench {
        let mut client = connect(&url).await;
        postgres::install(&mut client).await.unwrap();
        let token = Token::new(34).unwrap();
        for table in ["plain", "fenced"] {
            let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, total bigint NOT NULL)");
            client.batch_execute(&sql).await.unwrap();
            let sql = format!("INSERT INTO {table} SELECT id, 0 FROM generate_series(1, 10000) id");
            client.batch_execute(&sql).await.unwrap();
        }
        postgres::protect(&mut client, "fenced", "orders").await.unwrap();
        Fence::new("orders").unwrap().seal(&mut client, token).await.unwrap();
        client.batch_execute("VACUUM ANALYZE").await.unwrap();
        client.batch_execute("CHECKPOINT").await.unwrap();
        let plain = client.prepare(&format!("UPDATE plain {UPDATE}")).await.unwrap();
        let fenced = client.prepare(&format!("UPDATE fenced {UPDATE}")).await.unwrap();
        Bench { url, client, plain, fenced, token }
    }

    /// A prepared UPDATE that is its own transaction, in one round trip.
    async fn one_statement(&mut self) -> Pair {
        let fence = Fence::new("orders").unwrap();
        let mut pair = Pair { what: "PostgreSQL: an UPDATE", plain: vec![], fenced: vec![], target: Some(TARGET) };
        for id in (0..ROUNDS as i32 * 2).flat_map(|round| std::iter::repeat_n(round, TURN)) {
            let (one, id, turn) = (1_i64, id % 10_000 + 1, id % 2);
            match turn {
                0 => pair
                    .plain
                    .push(timed(async { self.client.execute(&self.plain, &[&one, &id]).await.unwrap() }).await),
                _ => {
                    let (client, statement) = (&mut self.client, &self.fenced);
                    let fenced = async { fence.execute(client, self.token, statement, &[&one, &id]).await.unwrap() };
                    pair.fenced.push(timed(fenced).await);
                }
            }
        }
        pair
    }

    /// The same, on a connection that shows its token once.
    async fn by_session(&mut self) -> Pair {
        let what = "PostgreSQL: an UPDATE, its token shown once";
        let mut pair = Pair { what, plain: vec![], fenced: vec![], target: Some(TARGET) };
        let under = Fence::new("orders").unwrap().under(&mut self.client, self.token).await.unwrap();
        for id in (0..ROUNDS as i32 * 2).flat_map(|round| std::iter::repeat_n(round, TURN)) {
            let (one, id, turn) = (1_i64, id % 10_000 + 1, id % 2);
            match turn {
                0 => pair
                    .plain
                    .push(timed(async { Client::execute(&under, &self.plain, &[&one, &id]).await.unwrap() }).await),
                _ => {
                    pair.fenced.push(timed(async { under.execute(&self.fenced, &[&one, &id]).await.unwrap() }).await)
                }
            }
        }
        under.end().await.unwrap();
        pair
    }

    /// BEGIN, UPDATE, COMMIT, beside a numbered write, which is prepared in the round trip that begins it.
    async fn one_transaction(&mut self) -> Pair {
        let what = "PostgreSQL: a transaction, numbered";
        let mut pair = Pair { what, plain: vec![], fenced: vec![], target: Some(TARGET) };
        let resource = postgres::Postgres::connect(&self.url, NoTls, "orders").await.unwrap();
        let mut sealed = Sealed::seal(resource, self.token).await.unwrap();
        for round in 0..ROUNDS {
            let id = (round % 10_000) as i32 + 1;
            for _ in 0..TURN {
                let plain = async {
                    let transaction = self.client.transaction().await.unwrap();
                    transaction
                        .execute("UPDATE plain SET total = total + $1 WHERE id = $2", &[&1_i64, &id])
                        .await
                        .unwrap();
                    transaction.commit().await.unwrap();
                };
                pair.plain.push(timed(plain).await);
            }
            for _ in 0..TURN {
                let sql = Sql::new("UPDATE fenced SET total = total + $1 WHERE id = $2").bind(1_i64).bind(id);
                pair.fenced.push(timed(async { sealed.execute(sql).await.unwrap() }).await);
            }
        }
        pair
    }

    /// One UPDATE of ten thousand rows.
    async fn many_rows(&mut self) -> Pair {
        let what = "PostgreSQL: an UPDATE of 10,000 rows";
        let mut pair = Pair { what, plain: vec![], fenced: vec![], target: Some(TARGET) };
        let update = self.client.prepare("UPDATE fenced SET total = total + 1").await.unwrap();
        let fence = Fence::new("orders").unwrap();
        for _ in 0..10 {
            let plain = async { self.client.execute("UPDATE plain SET total = total + 1", &[]).await.unwrap() };
            pair.plain.push(timed(plain).await);
            let fenced = fence.execute(&mut self.client, self.token, &update, &[]);
            pair.fenced.push(timed(async { fenced.await.unwrap() }).await);
            self.client.batch_execute("VACUUM").await.unwrap();
        }
        pair
    }
}
