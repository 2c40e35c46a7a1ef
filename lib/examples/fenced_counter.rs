//! A counter that refuses an overtaken holder: `cargo run -p palisade --example fenced_counter`.
//!
//! The lock alone cannot prevent a paused holder from overwriting the data of its successor. The resource can: it
//! keeps the highest token that it was *sealed* with, and refuses reads and writes with older ones.
#![allow(clippy::print_stdout)]

use std::sync::Mutex;

use palisade::{Error, Token};

/// The resource. It stands for a row, a file or a service that several processes change.
#[derive(Default)]
struct Counter {
    state: Mutex<(Option<Token>, u64)>,
}

#[derive(Debug)]
struct Superseded;

impl Counter {
    /// Refuses older tokens from now on. Called before the first read.
    fn seal(&self, token: Token) -> Result<(), Superseded> {
        let mut state = self.state.lock().expect("no thread panics while counting");
        if state.0 > Some(token) {
            return Err(Superseded);
        }
        state.0 = Some(token);
        Ok(())
    }

    /// Reads and writes in one step, if the token is still the newest.
    fn add(&self, token: Token, amount: u64) -> Result<u64, Superseded> {
        let mut state = self.state.lock().expect("no thread panics while counting");
        if state.0 != Some(token) {
            return Err(Superseded);
        }
        state.1 += amount;
        Ok(state.1)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let palisade = palisade::connect_env().await?;
    let counter = Counter::default();

    let slow = palisade.lock("examples/counter").acquire().await?;
    let old = slow.token()?;
    counter.seal(old).expect("it is the first token");
    println!("token {old} counts to {}", counter.add(old, 1).expect("it is the newest"));

    // An operator believes that the slow holder is dead, and releases its lock by force.
    palisade.force_release("examples/counter", "it does not answer").await?;
    let fast = palisade.lock("examples/counter").acquire().await?;
    let new = fast.token()?;
    counter.seal(new).expect("it is newer");

    // The slow holder wakes up and still believes that it holds the lock. The counter refuses its token.
    println!("token {old} is refused: {}", counter.add(old, 1).is_err());
    println!("token {new} counts to {}", counter.add(new, 1).expect("it is the newest"));
    println!("and the slow holder was told: {}", slow.lost().await);
    fast.release().await
}
