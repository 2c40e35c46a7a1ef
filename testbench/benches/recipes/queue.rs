//! A job of the queue, beside a plain row that is inserted, locked and deleted.

use palisade::recipe::queue::Queue;
use palisade::recipe::store::Postgres;
use tokio_postgres::NoTls;

use super::{Client, sample};

/// Pushes a job and does a job, not necessarily the same.
struct Worker {
    queue: Queue<Postgres>,
    key: String,
}

impl Client for Worker {
    async fn call(&mut self) -> u32 {
        self.queue.push(&self.key, "a payload").await.unwrap();
        self.queue.next().await.unwrap().done().await.unwrap();
        0
    }
}

/// Inserts a row, then locks and deletes one: a queue without keys, order, tokens and redelivery.
struct Plain(tokio_postgres::Client);

impl Client for Plain {
    async fn call(&mut self) -> u32 {
        self.0.execute("INSERT INTO plain_job (payload) VALUES ('a payload')", &[]).await.unwrap();
        let take =
            "DELETE FROM plain_job WHERE id = (SELECT id FROM plain_job ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)";
        let transaction = self.0.transaction().await.unwrap();
        transaction.execute(take, &[]).await.unwrap();
        transaction.commit().await.unwrap();
        0
    }
}

/// Measures both in turns, each worker with its own connection.
pub(super) async fn measure(url: &str) {
    let table = "CREATE TABLE plain_job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text)";
    plain(url).await.batch_execute(table).await.unwrap();
    println!("\n{:>10} {:>10} {:>14} {:>12} {:>8}", "workers", "keys", "jobs/s", "plain/s", "ratio");
    for (workers, keys) in [(1, 1), (8, 8), (8, 1), (32, 32)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for number in 0..workers {
            let queue = Queue::new(&Postgres::connect(url).await.unwrap(), format!("{workers} workers, {keys} keys"));
            ours.push(Worker { queue, key: format!("key {}", number % keys) });
            theirs.push(Plain(plain(url).await));
        }
        let (jobs, _) = sample(ours).await;
        let (rows, _) = sample(theirs).await;
        println!("{workers:>10} {keys:>10} {jobs:>14.0} {rows:>12.0} {:>7.2}x", jobs / rows);
    }
}

pub(super) async fn plain(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    // It ends with the client.
    drop(tokio::spawn(connection));
    client
}
