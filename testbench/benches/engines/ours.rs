//! Our locks, by the same API wherever they are kept.

use std::time::Duration;

use palisade::{LockGuard, Options, Palisade};

use crate::driver::{Contender, Sample, sample};

/// A client of ours with a session of its own.
pub(crate) struct Ours {
    client: Palisade,
    lock: String,
    pub(crate) guard: Option<LockGuard>,
}

impl Ours {
    pub(crate) async fn connect(url: &str, lock: String) -> Ours {
        let client = Options::new().ttl(Duration::from_secs(30)).connect(url).await.unwrap();
        Ours { client, lock, guard: None }
    }
}

impl Contender for Ours {
    async fn acquire(&mut self) {
        self.guard = Some(self.client.lock(&self.lock).acquire().await.unwrap());
    }

    async fn release(&mut self) {
        self.guard.take().unwrap().release().await.unwrap();
    }
}

/// The lock of one of them: its own, or everybody's.
pub(crate) fn lock(number: usize, is_hot: bool) -> String {
    if is_hot { "hot".to_owned() } else { format!("lock-{number}") }
}

/// A client for each.
pub(crate) async fn ours(url: &str, clients: usize, is_hot: bool, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..clients {
        contenders.push(Ours::connect(url, lock(number, is_hot)).await);
    }
    sample(contenders, is_hot, length).await
}

/// One client for all.
pub(crate) async fn ours_in_one(url: &str, clients: usize, is_hot: bool, length: Duration) -> Sample {
    let client = Options::new().ttl(Duration::from_secs(30)).connect(url).await.unwrap();
    let contender = |number| Ours { client: client.clone(), lock: lock(number, is_hot), guard: None };
    sample((0..clients).map(contender).collect(), is_hot, length).await
}
