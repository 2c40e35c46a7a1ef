//! A lock in Redis, as its clients have it: `SET NX PX`, a script that compares before it deletes, and a poll with chance
//! in it where the lock is not free. The pause is redis-py's 0.1 s at most, and half of it on average.

use std::time::{Duration, Instant};

use crate::resp::{Client, Reply};

const RELEASE: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";
const PAUSE_US: u64 = 100_000;

pub(crate) struct Redis {
    client: Client,
    lock: String,
    owner: String,
    script: String,
    chance: u64,
    /// When it had asked first for what was granted last.
    pub(crate) asked_at: Instant,
}

impl Redis {
    pub(crate) async fn connect(address: &str, lock: &str, number: usize) -> Redis {
        let mut client = Client::connect(address).await;
        let Reply::Text(script) = client.ask(&["SCRIPT", "LOAD", RELEASE]).await else { panic!("no script") };
        let (owner, chance, asked_at) = (number.to_string(), number as u64, client.sent_at);
        Redis { client, lock: lock.to_owned(), owner, script, chance, asked_at }
    }

    pub(crate) async fn acquire(&mut self) {
        let mut asked_at = None;
        while self.client.ask(&["SET", &self.lock, &self.owner, "NX", "PX", "60000"]).await == Reply::Nil {
            asked_at = asked_at.or(Some(self.client.sent_at));
            self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            tokio::time::sleep(Duration::from_micros((self.chance >> 33) % PAUSE_US)).await;
        }
        self.asked_at = asked_at.unwrap_or(self.client.sent_at);
    }

    pub(crate) async fn release(&mut self) {
        let released = self.client.ask(&["EVALSHA", &self.script, "1", &self.lock, &self.owner]).await;
        assert_eq!(released, Reply::Number(1), "{} was somebody else's", self.lock);
    }
}
