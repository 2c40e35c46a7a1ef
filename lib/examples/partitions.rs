//! Three members share twelve partitions, and one of them leaves: `cargo run -p palisade --example partitions`.
#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;

use palisade::recipe::{Change, Member};
use palisade::{Error, Options};

const NAME: &str = "examples/orders";
const PARTITIONS: u32 = 12;

/// A worker and the partitions that it writes. Each has its own client: in practice, its own process.
struct Worker {
    name: &'static str,
    member: Member,
    writes: BTreeSet<u32>,
}

impl Worker {
    async fn join(name: &'static str) -> Result<Worker, Error> {
        let url = std::env::var("PALISADE_URL").unwrap_or_else(|_| "embedded:".to_owned());
        let palisade = Options::new().label(name).connect(&url).await?;
        let member = palisade.partitions(NAME, PARTITIONS).join(PARTITIONS).await?;
        Ok(Worker { name, member, writes: BTreeSet::new() })
    }

    /// Follows the changes until it writes this many partitions.
    async fn settle(&mut self, share: usize) -> Result<(), Error> {
        while self.writes.len() != share {
            match self.member.next().await? {
                Change::Gained(ownership) => {
                    let (partition, token) = (ownership.partition(), ownership.token()?);
                    println!("{} writes partition {partition} with token {token}", self.name);
                    self.writes.insert(partition);
                }
                Change::Losing { partition, .. } => {
                    println!("{} finishes partition {partition}", self.name);
                    self.writes.remove(&partition);
                    self.member.release(partition).await?;
                }
                Change::Lost { partition, loss } => {
                    println!("{} stops partition {partition}: {loss}", self.name);
                    self.writes.remove(&partition);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut anna = Worker::join("anna").await?;
    anna.settle(12).await?;
    let (mut berta, mut carla) = (Worker::join("berta").await?, Worker::join("carla").await?);
    tokio::try_join!(anna.settle(4), berta.settle(4), carla.settle(4))?;
    println!("anna leaves");
    anna.member.leave().await?;
    tokio::try_join!(berta.settle(6), carla.settle(6))?;
    berta.member.leave().await?;
    carla.member.leave().await
}
