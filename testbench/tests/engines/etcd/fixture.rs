//! An etcd, and how other programs see it.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Deref;

use palisade::{Error, ErrorKind, LockGuard, Loss};

use palisade_testbench::bounded::{self, BOUND, within};
use palisade_testbench::coordination;
pub(crate) use palisade_testbench::fixture::{
    LONG_TTL, inspect, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::servers::{Etcd, EtcdCluster};
use tokio::task::JoinHandle;

use super::suite::STORES;

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check(BOUND, promise);
}

/// A namespace in an etcd, and how other programs see it.
pub(crate) struct Fixture(coordination::Fixture<EtcdCluster>);

impl Deref for Fixture {
    type Target = coordination::Fixture<EtcdCluster>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// A namespace in the shared etcd.
pub(crate) fn shared() -> Fixture {
    Fixture(STORES.shared())
}

/// An etcd that no other test uses.
pub(crate) fn alone() -> Fixture {
    Fixture(coordination::Fixture::start(EtcdCluster::start_one))
}

impl Fixture {
    pub(crate) fn etcd(&self) -> &Etcd {
        &self.store().members[0]
    }

    pub(crate) fn restart_empty(&mut self) {
        self.0.store_mut().members[0].restart_empty().expect("it starts again");
    }

    fn field(&self, words: &[&str], name: &str) -> u64 {
        let shown = self.etcd().ctl(&[words, &["--write-out", "fields"]].concat());
        let line = shown.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\" : ")));
        line.unwrap_or_else(|| panic!("no {name}: {shown}")).parse().expect("a number")
    }

    /// Returns the revision that created the only claim of a lock.
    pub(crate) fn create_revision(&self, lock: &str) -> u64 {
        self.field(&["get", "--prefix", &format!("{}/lock/{lock}\t", self.prefix)], "CreateRevision")
    }

    /// Returns the lines of etcd's metrics that begin with this text.
    pub(crate) fn metrics(&self, begin: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("text");
        reply.lines().filter(|line| line.starts_with(begin)).collect::<Vec<_>>().join("\n")
    }

    /// Returns the revision of the store.
    pub(crate) fn revision(&self) -> u64 {
        self.field(&["get", "none"], "Revision")
    }
}

/// Waits until a wait ends with the loss of its session.
pub(crate) async fn lost(waiter: JoinHandle<Result<LockGuard, Error>>) -> Loss {
    let ended = within("the wait ends", waiter).await.expect("no panic");
    match ended.expect_err("its session is over").kind() {
        ErrorKind::Lost(loss) => loss.clone(),
        other => panic!("{other:?}"),
    }
}
