//! An update by compare and set, beside one under a lock: contention against retries.

use palisade::Palisade;
use palisade::recipe::store::Postgres;
use palisade::recipe::versioned::{Stored, Versioned};

use super::{Client, sample};

const CONTENDERS: [usize; 4] = [1, 4, 16, 64];

/// Adds one by compare and set.
struct Updater(Versioned<u64, Postgres>);

impl Client for Updater {
    async fn call(&mut self) -> u32 {
        self.0.update(|value| value.unwrap_or_default() + 1).await.unwrap().attempts - 1
    }
}

/// Adds one while it holds a lock of the same database.
struct Holder {
    palisade: Palisade,
    value: Versioned<u64, Postgres>,
}

impl Client for Holder {
    async fn call(&mut self) -> u32 {
        let guard = self.palisade.lock("value").acquire().await.unwrap();
        let (value, version) = match self.value.load().await.unwrap() {
            Some((value, version)) => (value, Some(version)),
            None => (0, None),
        };
        let stored = self.value.store_if(version.as_ref(), &(value + 1)).await.unwrap();
        assert_ne!(stored, Stored::Changed, "two clients have the lock");
        guard.release().await.unwrap();
        0
    }
}

/// Measures both in turns, each contender with its own connection.
pub(super) async fn measure(url: &str) {
    println!(
        "{:>10} {:>14} {:>18} {:>16} {:>8}",
        "contenders", "updates/s", "retries per update", "under a lock/s", "ratio"
    );
    for contenders in CONTENDERS {
        let (mut updaters, mut holders) = (Vec::new(), Vec::new());
        for _ in 0..contenders {
            let store = Postgres::connect(url).await.unwrap();
            updaters.push(Updater(Versioned::new(&store, format!("updated by {contenders}")).attempts(10_000)));
            let palisade = palisade::connect(url).await.unwrap();
            holders.push(Holder { palisade, value: Versioned::new(&store, format!("locked by {contenders}")) });
        }
        let (updates, retries) = sample(updaters).await;
        let (locked, _) = sample(holders).await;
        println!("{contenders:>10} {updates:>14.0} {retries:>18.2} {locked:>16.0} {:>7.2}x", updates / locked);
    }
}
