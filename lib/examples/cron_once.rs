//! A job that cron starts on every machine, and that must run once: `cargo run -p palisade --example cron_once`.
//!
//! A second process does not wait: the job is being done. Set `PALISADE_URL` to share the lock between machines.
#![allow(clippy::print_stdout)]

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), palisade::Error> {
    let palisade = palisade::connect_env().await?;
    let Some(guard) = palisade.lock("examples/nightly-report").try_acquire().await? else {
        println!("the report is already being written");
        return Ok(());
    };
    println!("writing the report with token {}", guard.token()?);
    for page in 1..=3 {
        // Stop before anything is done that somebody else may be doing by now.
        guard.ensure(Duration::from_secs(1))?;
        println!("page {page}");
    }
    guard.release().await
}
