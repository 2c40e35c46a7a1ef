//! Eight tasks change one value without a lock, and no update is lost: `cargo run -p palisade --example compare_and_set`.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::error::Error;

use palisade::recipe::store::Sqlite;
use palisade::recipe::versioned::Versioned;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = Sqlite::open(":memory:").await?;
    let stock = Versioned::<BTreeMap<String, u32>, _>::new(&store, "stock");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let stock = stock.clone();
            tokio::spawn(async move {
                let add_one = |stock: Option<BTreeMap<String, u32>>| {
                    let mut stock = stock.unwrap_or_default();
                    *stock.entry("apples".to_owned()).or_default() += 1;
                    stock
                };
                stock.update(add_one).await.map(|updated| updated.attempts)
            })
        })
        .collect();
    let mut attempts = 0;
    for task in tasks {
        attempts += task.await??;
    }
    let (value, _) = stock.load().await?.ok_or("nothing was stored")?;
    println!("8 updates took {attempts} attempts: {value:?}");
    assert_eq!(value["apples"], 8);
    Ok(())
}
