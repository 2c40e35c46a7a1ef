//! Jobs of one customer are done one at a time and in order: `cargo run -p palisade --example work_queue`.
//!
//! A worker is paused for longer than its job's visibility. Another worker gets the job, and the late worker is refused: the work is in the
//! transaction that ends the job, so it counts once.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Duration;

use palisade::recipe::queue::{Job, JobError, Queue};
use palisade::recipe::store::Sqlite;
use rusqlite::{Connection, TransactionBehavior};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    let mut shop = Connection::open(&file)?;
    shop.execute_batch(
        "CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER); INSERT INTO account VALUES ('7', 100)",
    )?;

    let payments = Queue::new(&Sqlite::open(&file).await?, "payments").visibility(Duration::from_millis(100));
    payments.push("7", "5").await?;
    payments.push("7", "20").await?;

    let paused = payments.next().await?;
    println!("the first worker has the payment of {} with token {}, and is paused", text(&paused), paused.token());
    let second = payments.next().await?;
    println!("the second worker has the same payment with token {}", second.token());
    pay(&mut shop, &second)?;
    if let Err(error) = pay(&mut shop, &paused) {
        println!("the first worker wakes: {error}");
    }
    let third = payments.next().await?;
    println!("then comes the payment of {}", text(&third));
    pay(&mut shop, &third)?;

    let balance: i64 = shop.query_row("SELECT balance FROM account", [], |row| row.get(0))?;
    println!("the balance is {balance}");
    assert_eq!(balance, 75);
    Ok(())
}

/// Pays, and ends the job, in one transaction.
fn pay(shop: &mut Connection, job: &Job<Sqlite>) -> Result<(), Box<dyn Error>> {
    let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let amount: i64 = text(job).parse()?;
    transaction.execute("UPDATE account SET balance = balance - ?1 WHERE id = ?2", (amount, job.key()))?;
    match job.done_in(&transaction) {
        Ok(()) => Ok(transaction.commit()?),
        Err(error @ JobError::Stale { .. }) => {
            transaction.rollback()?;
            Err(error.into())
        }
        Err(error) => Err(error.into()),
    }
}

fn text(job: &Job<Sqlite>) -> String {
    String::from_utf8_lossy(job.payload()).into_owned()
}
