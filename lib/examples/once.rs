//! Orders that are delivered three times and charged once: `cargo run -p palisade --example once`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};

use palisade::recipe::store::Sqlite;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let palisade = palisade::connect_env().await?;
    // A real program names a file or a database that all its processes reach.
    let store = Sqlite::open(":memory:").await?;
    let charges = AtomicU32::new(0);
    for order in [41, 42, 41, 42, 42, 41] {
        let once = palisade.once(format!("examples/charge/{order}"), &store);
        let receipt: String = once
            .run(async |step| {
                if let Some(token) = step.previous() {
                    println!("the attempt with token {token} did not finish: asking the bank first");
                }
                let charge = charges.fetch_add(1, Ordering::Relaxed) + 1;
                println!("charging order {order} with the key {}", step.key());
                Ok::<_, std::io::Error>(format!("receipt {charge}"))
            })
            .await?;
        println!("order {order}: {receipt}");
    }
    assert_eq!(charges.into_inner(), 2);
    Ok(())
}
