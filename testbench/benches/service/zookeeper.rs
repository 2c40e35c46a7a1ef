//! A lock in ZooKeeper by the recipe of its documentation: an ephemeral node with a number, and a watch on the one before
//! it.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, Error};

pub(crate) struct ZooKeeper {
    client: Client,
    folder: String,
    /// The path of one's own node.
    node: String,
}

impl ZooKeeper {
    pub(crate) async fn connect(address: &str, lock: &str) -> ZooKeeper {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(30));
        let client = connector.connect(address).await.unwrap();
        let folder = format!("/{lock}");
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create(&folder, b"", &persistent).await {
            Ok(_) | Err(Error::NodeExists) => ZooKeeper { client, folder, node: String::new() },
            Err(error) => panic!("{folder}: {error}"),
        }
    }

    pub(crate) async fn acquire(&mut self) {
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/n-", self.folder);
        let (_, sequence) = self.client.create(&prefix, b"", &ephemeral).await.unwrap();
        self.node = format!("{prefix}{sequence}");
        while let Some(before) = self.before().await {
            if let (Some(_), watcher) = self.client.check_and_watch_stat(&before).await.unwrap() {
                watcher.changed().await;
            }
        }
    }

    /// The node before one's own.
    async fn before(&self) -> Option<String> {
        let paths = self.client.list_children(&self.folder).await.unwrap().into_iter();
        paths.map(|name| format!("{}/{name}", self.folder)).filter(|path| *path < self.node).max()
    }

    pub(crate) async fn release(&mut self) {
        self.client.delete(&self.node, None).await.unwrap();
    }

    /// Returns when its session is closed, so that the next sample does not pay for it.
    pub(crate) async fn leave(self) {
        let mut state = self.client.state_watcher();
        drop(self.client);
        while !state.changed().await.is_terminated() {}
    }
}
