//! A lock in etcd: its own Lock API, with one lease that is used again and again.

use etcd_client::{Client, LockOptions};

pub(crate) struct Etcd {
    client: Client,
    lease: i64,
    lock: String,
    key: Vec<u8>,
}

impl Etcd {
    pub(crate) async fn connect(endpoint: &str, lock: &str) -> Etcd {
        let mut client = Client::connect([endpoint], None).await.unwrap();
        let lease = client.lease_grant(600, None).await.unwrap().id();
        Etcd { client, lease, lock: lock.to_owned(), key: Vec::new() }
    }

    pub(crate) async fn acquire(&mut self) {
        let options = LockOptions::new().with_lease(self.lease);
        self.key = self.client.lock(self.lock.as_str(), Some(options)).await.unwrap().key().to_vec();
    }

    pub(crate) async fn release(&mut self) {
        self.client.unlock(self.key.as_slice()).await.unwrap();
    }

    pub(crate) async fn leave(mut self) {
        self.client.lease_revoke(self.lease).await.unwrap();
    }
}
