//! The service's own client: one session, and a wait that blocks the line.

use std::time::Instant;

use crate::resp::{Client, Reply};

pub(crate) struct Palisade {
    client: Client,
    session: String,
    lock: String,
    token: String,
    waits: bool,
    /// When the request that was granted last had been sent.
    pub(crate) asked_at: Instant,
}

impl Palisade {
    pub(crate) async fn connect(address: &str, lock: &str, waits: bool) -> Palisade {
        let mut client = Client::connect(address).await;
        let opened = client.ask(&["SESSION", "OPEN", "600000"]).await;
        let session = opened.get("session").unwrap().to_string();
        let asked_at = client.sent_at;
        Palisade { client, session, lock: lock.to_owned(), token: String::new(), waits, asked_at }
    }

    pub(crate) async fn acquire(&mut self) {
        let words = ["LOCK", "ACQUIRE", &self.lock, "SESSION", &self.session, "WAIT", "600000"];
        let granted = self.client.ask(&words[..if self.waits { 7 } else { 5 }]).await;
        assert_ne!(granted, Reply::Nil, "{} is not free", self.lock);
        self.asked_at = self.client.sent_at;
        self.token = granted.get("token").unwrap().to_string();
    }

    pub(crate) async fn release(&mut self) {
        self.client.ask(&["LOCK", "RELEASE", &self.lock, &self.token]).await;
    }

    pub(crate) async fn leave(mut self) {
        self.client.ask(&["SESSION", "CLOSE", &self.session]).await;
    }
}
