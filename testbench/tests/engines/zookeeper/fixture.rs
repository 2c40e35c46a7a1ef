//! A ZooKeeper, and how other programs see it.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use palisade::{LockGuard, Options, Palisade};
pub(crate) use palisade_testbench::bounded::until;
use palisade_testbench::bounded::{self, BOUND, block_until};
use palisade_testbench::coordination;
pub(crate) use palisade_testbench::fixture::{
    LONG_TTL, inspect, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::servers::{ZooKeeper, ZooKeeperEnsemble};
use zookeeper_client::Client;

use super::suite::STORES;

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check(BOUND, promise);
}

/// A namespace in a ZooKeeper, and how other programs see it.
pub(crate) struct Fixture {
    on: coordination::Fixture<ZooKeeperEnsemble>,
    /// The node of the namespace.
    pub(crate) root: String,
}

impl Deref for Fixture {
    type Target = coordination::Fixture<ZooKeeperEnsemble>;

    fn deref(&self) -> &Self::Target {
        &self.on
    }
}

impl Fixture {
    fn new(on: coordination::Fixture<ZooKeeperEnsemble>) -> Fixture {
        Fixture { root: format!("/{}", on.prefix), on }
    }

    pub(crate) fn server(&self) -> &ZooKeeper {
        &self.store().servers[0]
    }

    pub(crate) fn server_mut(&mut self) -> &mut ZooKeeper {
        &mut self.on.store_mut().servers[0]
    }
}

/// A namespace on the shared server.
pub(crate) fn shared() -> Fixture {
    Fixture::new(STORES.shared())
}

/// A server that no other test uses.
pub(crate) fn alone() -> Fixture {
    Fixture::new(coordination::Fixture::start(<ZooKeeperEnsemble as coordination::Store>::start))
}

/// A server with ZooKeeper's own settings.
pub(crate) fn usual() -> Fixture {
    Fixture::new(coordination::Fixture::start(|folder| {
        Ok(ZooKeeperEnsemble { servers: vec![ZooKeeper::start(folder)?] })
    }))
}

/// Connects a client of ZooKeeper itself, whose nodes live as long as it does.
pub(crate) async fn raw(address: SocketAddr) -> Client {
    let connector = Client::connector().with_session_timeout(LONG_TTL);
    connector.connect(&address.to_string()).await.expect("a client")
}

/// Returns a line of what the server says of itself, without its beginning.
pub(crate) fn said(server: &ZooKeeper, begin: &str) -> String {
    let mut said = String::new();
    // It may need longer for an answer than the question waits.
    block_until("the server answers", || {
        said = server.ask("srvr").unwrap_or_default();
        !said.is_empty()
    });
    said.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or_else(|| panic!("no {begin}: {said}")).to_owned()
}

pub(crate) async fn connect(url: &str, ttl: Duration) -> Palisade {
    Options::new().label("a client").ttl(ttl).connect(url).await.expect("a client")
}

pub(crate) async fn try_take(client: &Palisade, name: &str) -> Option<LockGuard> {
    client.lock(name).try_acquire().await.expect("an answer")
}
