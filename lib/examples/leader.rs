//! Three workers that lead in turn: `cargo run -p palisade --example leader`.
#![allow(clippy::print_stdout)]

use palisade::{Error, Palisade};

/// Waits to be elected, leads for a while, and steps down.
async fn work(palisade: Palisade, name: &'static str) -> Result<(), Error> {
    let leadership = palisade.election("examples/scheduler").campaign(name).await?;
    println!("{name} leads with token {}", leadership.token()?);
    leadership.release().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let palisade = palisade::connect_env().await?;
    let mut observer = palisade.election("examples/scheduler").observe().await?;
    println!("before: {}", if observer.next().await?.is_some() { "there is a leader" } else { "there is no leader" });
    let workers = ["anna", "berta", "carla"].map(|name| tokio::spawn(work(palisade.clone(), name)));
    for worker in workers {
        worker.await.expect("a worker does not panic")?;
    }
    match palisade.election("examples/scheduler").leader().await? {
        Some(leader) => println!("after: {} leads", String::from_utf8_lossy(&leader.value)),
        None => println!("after: there is no leader"),
    }
    Ok(())
}
