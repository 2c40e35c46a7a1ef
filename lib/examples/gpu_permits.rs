//! Five jobs, two graphics cards: `cargo run -p palisade --example gpu_permits`.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use palisade::{Error, Palisade};

async fn job(palisade: Palisade, number: usize, running: Arc<AtomicUsize>) -> Result<(), Error> {
    let permit = palisade.semaphore("examples/gpu", 2).acquire().await?;
    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
    println!("job {number} runs with token {}; {now} at once", permit.token()?);
    assert!(now <= 2, "there are only two cards");
    tokio::task::yield_now().await;
    running.fetch_sub(1, Ordering::SeqCst);
    permit.release().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let palisade = palisade::connect_env().await?;
    let running = Arc::new(AtomicUsize::new(0));
    let jobs: Vec<_> = (1..=5).map(|number| tokio::spawn(job(palisade.clone(), number, running.clone()))).collect();
    for job in jobs {
        job.await.expect("a job does not panic")?;
    }
    Ok(())
}
