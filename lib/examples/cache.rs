//! Ten callers miss a value, and one builds it: `cargo run -p palisade --example cache`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Duration;

use palisade::recipe::cache::{Cache, Memory};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let palisade = palisade::connect_env().await?;
    let cache = Cache::new(palisade, Memory::default()).fresh(Duration::from_secs(60));
    let callers = (1..=10).map(|caller| {
        let cache = cache.clone();
        tokio::spawn(async move {
            let build = move || async move {
                println!("caller {caller} builds the value");
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok::<_, std::io::Error>("<html>".to_owned())
            };
            cache.get("examples/home", build).await
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert_eq!(caller.await??, "<html>");
    }
    println!("all have it");
    Ok(())
}
