//! A service of one's own, clients that reach it directly, and clients that reach it through a proxy.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use palisade::{Options, Palisade};
pub(crate) use palisade_testbench::asking::{
    grants_until_end_of, holder, jeopardy, look, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::proxy::Proxy;
use palisade_testbench::servers::Service;
use tempfile::TempDir;

/// Longer than anything takes that works.
const BOUND: Duration = Duration::from_secs(120);

/// Long enough that nothing ends by it in a test.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let bounded = async { tokio::time::timeout(BOUND, promise).await };
    runtime.block_on(bounded).expect("it takes too long: something that should happen does not");
}

pub(crate) struct Fixture {
    pub(crate) service: Service,
    pub(crate) proxy: Proxy,
    // Removed after the process has ended.
    folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::with_variables(tempfile::tempdir().expect("a folder"), &[])
    }

    /// With more variables in the service's environment.
    pub(crate) fn with_variables(folder: TempDir, variables: &[(&str, &str)]) -> Fixture {
        let service = Service::start_with(env!("CARGO_BIN_EXE_serve"), folder.path(), variables);
        let service = service.unwrap_or_else(|absent| panic!("{absent}"));
        let proxy = Proxy::start(service.address).expect("a proxy");
        Fixture { service, proxy, folder }
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client that reaches the service directly.
    pub(crate) async fn client(&self, ttl: Duration) -> Palisade {
        Options::new().label("direct").ttl(ttl).connect(&self.service.url()).await.expect("a client")
    }

    /// A client that reaches the service through the proxy.
    pub(crate) async fn through_proxy(&self, ttl: Duration) -> Palisade {
        let url = format!("palisade://{}", self.proxy.address);
        Options::new().label("through the proxy").ttl(ttl).connect(&url).await.expect("a client")
    }
}
