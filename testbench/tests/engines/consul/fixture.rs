//! A Consul, and how other programs see it.

use std::future::Future;
use std::ops::Deref;

use palisade::{Error, ErrorKind, LockGuard, Loss};

use palisade_testbench::bounded::{self, BOUND, within};
use palisade_testbench::coordination;
pub(crate) use palisade_testbench::fixture::{
    LONG_TTL, inspect, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::servers::{Consul, ConsulCluster};
use tokio::task::JoinHandle;

use super::suite::STORES;

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check(BOUND, promise);
}

/// A namespace in a Consul, and how other programs see it.
pub(crate) struct Fixture(coordination::Fixture<ConsulCluster>);

impl Deref for Fixture {
    type Target = coordination::Fixture<ConsulCluster>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Fixture {
    /// A namespace in the shared Consul.
    pub(crate) fn shared() -> Fixture {
        Fixture(STORES.shared())
    }

    /// A Consul that no other test uses.
    pub(crate) fn alone() -> Fixture {
        Fixture(coordination::Fixture::start(ConsulCluster::start_one))
    }

    pub(crate) fn consul(&self) -> &Consul {
        &self.store().members[0]
    }

    pub(crate) fn consul_mut(&mut self) -> &mut Consul {
        &mut self.0.store_mut().members[0]
    }

    fn field(&self, key: &str, name: &str) -> String {
        let shown = self.consul().ctl(&["kv", "get", "-detailed", key]);
        let line = shown.lines().find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("no {name}: {shown}")).trim().to_owned()
    }

    /// Returns the keys of the namespace that begin with this.
    pub(crate) fn keys(&self, begin: &str) -> Vec<String> {
        let begin = format!("{}/{begin}", self.prefix);
        let shown = self.consul().ctl(&["kv", "get", "-keys", "-separator=", &begin]);
        shown.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    fn only_claim(&self, lock: &str) -> String {
        let keys = self.keys(&format!("lock/{lock}/"));
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys[0].clone()
    }

    /// Returns the index that created the only claim of a lock.
    pub(crate) fn create_index(&self, lock: &str) -> u64 {
        self.create_index_of(&self.only_claim(lock))
    }

    /// Returns the index that created a key.
    pub(crate) fn create_index_of(&self, key: &str) -> u64 {
        self.field(key, "CreateIndex").parse().expect("a number")
    }

    /// Changes the offset of raised tokens: `delete`, or `put` with a number.
    pub(crate) fn change_offset(&self, change: &[&str]) {
        let (verb, value) = change.split_first().expect("a verb");
        self.consul().ctl(&[&["kv", verb, &format!("{}/offset", self.prefix)], value].concat());
    }

    /// Ends the session of Palisade with this number, as an operator can.
    pub(crate) fn destroy(&self, session: palisade::SessionId) {
        let uuid = self.field(&format!("{}/session/{:014x}", self.prefix, session.get()), "Session");
        self.destroy_uuid(&uuid);
    }

    /// Ends the sessions of Consul that hold the locks of a guard's session, as an expiry does.
    pub(crate) fn expire(&self, held: &LockGuard) {
        let session = self.session_of(held);
        let delayed = self.delayed(&session);
        self.destroy_uuid(&self.field(&session, "Session"));
        delayed.iter().for_each(|uuid| self.destroy_uuid(uuid));
    }

    /// Ends only the sessions of Consul that hold claims with a delay.
    pub(crate) fn destroy_delayed(&self, held: &LockGuard) {
        self.delayed(&self.session_of(held)).iter().for_each(|uuid| self.destroy_uuid(uuid));
    }

    /// Returns the key of the session that holds a lock.
    fn session_of(&self, held: &LockGuard) -> String {
        let claims = self.keys("lock/");
        let created = token(held).get().to_string();
        let claim = claims.iter().find(|claim| self.field(claim, "CreateIndex") == created).expect("its claim");
        let session = claim.rsplit('/').next().and_then(|claim| claim.split('-').next()).expect("a session");
        format!("{}/session/{session}", self.prefix)
    }

    /// Returns Consul's ids of the sessions that hold claims with a delay.
    fn delayed(&self, session: &str) -> Vec<String> {
        let keys = self.keys("session/");
        let keys = keys.iter().filter(|key| key.starts_with(&format!("{session}/delay/")));
        keys.map(|key| self.consul().ctl(&["kv", "get", key])).collect()
    }

    fn destroy_uuid(&self, uuid: &str) {
        let reply = self.consul().http(&format!("PUT /v1/session/destroy/{uuid}"));
        assert!(reply.contains(" 200 "), "{reply}");
    }

    /// Returns the requests through the proxy that do not wait for a change.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.proxy.requests().into_iter().filter(|line| !line.contains("&index=")).collect()
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
