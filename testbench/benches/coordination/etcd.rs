//! etcd: our locks beside its own Lock API, with one lease for each client. That API returns a revision as well, and waits for
//! its turn in the server.

use std::time::Duration;

use palisade_testbench::servers;

use crate::driver::{Contender, ROUNDS, Sample, WORKLOADS, Workload, sample, show};
use crate::lock_api::Etcd;
use crate::ours::{lock, ours, ours_in_one};

impl Contender for Etcd {
    async fn acquire(&mut self) {
        self.acquire().await;
    }

    async fn release(&mut self) {
        self.release().await;
    }

    async fn leave(self) {
        self.leave().await;
    }
}

async fn lock_api(endpoint: &str, workload: &Workload, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..workload.clients {
        contenders.push(Etcd::connect(endpoint, &lock(number, workload.is_hot)).await);
    }
    sample(contenders, workload.is_hot, length).await
}

pub(crate) async fn measure(length: Duration) -> Vec<String> {
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    let server = servers::Etcd::start(&folder.path().canonicalize().unwrap());
    let server = server.unwrap_or_else(|absent| panic!("{absent}"));
    let (url, endpoint) = (format!("etcd://{}", server.address), server.endpoint.clone());
    let names = ["palisade", "palisade, one client with all tasks", "etcd's Lock API"];
    let mut missed = Vec::new();
    for (workload, wanted) in WORKLOADS.iter().zip([1.0, 1.0, 2.0]) {
        let mut rounds = Vec::new();
        for _ in 0..=ROUNDS {
            rounds.push(vec![
                ours(&url, workload.clients, workload.is_hot, length).await,
                ours_in_one(&url, workload.clients, workload.is_hot, length).await,
                lock_api(&endpoint, workload, length).await,
            ]);
        }
        missed.extend(show("etcd", workload, &names, &rounds[1..], &[None, None, Some(wanted)]));
    }
    missed
}
