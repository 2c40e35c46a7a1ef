//! HTTP services over real sockets: behind the layer, and behind the proxy's parts.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use palisade_fence::Error;
use palisade_fence::http::{Api, Call, FenceLayer, Forward, MemoryMarks, PostgresMarks, Reply, Scope, SqliteMarks};
use palisade_testbench::fencing::Subject;
use palisade_testbench::servers::Postgres;
use reqwest::{Client, Method};
use tokio_postgres::NoTls;
use tower::Layer;

type Numbers = Arc<Mutex<BTreeMap<String, String>>>;

/// A service that stores texts, without a fence.
fn service() -> Router {
    async fn look(State(numbers): State<Numbers>, Path(name): Path<String>) -> String {
        numbers.lock().expect("not poisoned").get(&name).cloned().unwrap_or_default()
    }
    async fn set(State(numbers): State<Numbers>, Path(name): Path<String>, body: String) -> String {
        numbers.lock().expect("not poisoned").insert(name, body).unwrap_or_default()
    }
    Router::new().route("/{name}", get(look).put(set)).with_state(Numbers::default())
}

/// Serves it on a free port until the process ends.
fn serve<F: Future<Output = Router>>(app: impl FnOnce() -> F + Send + 'static) -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.set_nonblocking(true).expect("it can be");
    let address = listener.local_addr().expect("it has one");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is non-blocking");
            axum::serve(listener, app().await).await.expect("it serves");
        });
    });
    address
}

/// One number per path.
#[derive(Clone)]
struct Paths(SocketAddr);

impl Subject for Paths {
    type Resource = Api;

    async fn open(&self, name: &str) -> Result<Api, Error> {
        Api::new(Client::new(), &format!("http://{}/", self.0))?.for_lock(name)?;
        Api::new(Client::new(), &format!("http://{}/{name}", self.0))?.for_lock(name)
    }

    fn get(&self) -> Call {
        Call::new(Method::GET, "", "")
    }

    fn set(&self, number: u64) -> Call {
        Call::new(Method::PUT, "", number.to_string())
    }

    fn number(&self, answer: Reply) -> u64 {
        assert!(answer.status.is_success(), "{answer:?}");
        let text = String::from_utf8(answer.body.to_vec()).expect("a number");
        if text.is_empty() { 0 } else { text.parse().expect("a number") }
    }

    fn bad_names(&self) -> Vec<String> {
        ["", "a\nb", "$mine", "a\u{202e}b"].map(str::to_owned).into_iter().chain([("x").repeat(1025)]).collect()
    }

    fn impossible(&self) -> Vec<Call> {
        Vec::new()
    }
}

fn layered() -> Paths {
    static AT: LazyLock<SocketAddr> =
        LazyLock::new(|| serve(async || service().layer(FenceLayer::new(Scope::per_path(), MemoryMarks::default()))));
    Paths(*AT)
}

fn proxied() -> Paths {
    static AT: LazyLock<SocketAddr> = LazyLock::new(|| {
        let upstream = serve(async || service());
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory").keep();
        let marks = SqliteMarks::open(directory.join("marks.db")).expect("the marks can be kept");
        let forward = Forward::to(&format!("http://{upstream}"), Duration::from_secs(30), 1 << 20);
        let fenced = FenceLayer::new(Scope::per_path(), marks).layer(forward.expect("an address"));
        serve(async move || Router::new().fallback_service(fenced))
    });
    Paths(*AT)
}

/// Two instances, whose marks are in one database.
#[derive(Clone)]
struct Instances([SocketAddr; 2]);

impl Subject for Instances {
    type Resource = Api;

    async fn open(&self, name: &str) -> Result<Api, Error> {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        Paths(self.0[TURN.fetch_add(1, Ordering::Relaxed) % 2]).open(name).await
    }

    fn get(&self) -> Call {
        Paths(self.0[0]).get()
    }

    fn set(&self, number: u64) -> Call {
        Paths(self.0[0]).set(number)
    }

    fn number(&self, answer: Reply) -> u64 {
        Paths(self.0[0]).number(answer)
    }

    fn bad_names(&self) -> Vec<String> {
        Paths(self.0[0]).bad_names()
    }

    fn impossible(&self) -> Vec<Call> {
        Paths(self.0[0]).impossible()
    }
}

fn instances() -> Instances {
    static AT: LazyLock<[SocketAddr; 2]> = LazyLock::new(|| {
        let service = service();
        [(); 2].map(|()| {
            let service = service.clone();
            serve(async move || {
                let url = Postgres::shared().unwrap_or_else(|absent| panic!("{absent}")).url();
                let marks = PostgresMarks::connect(&url, NoTls).await.expect("the marks can be kept");
                service.layer(FenceLayer::new(Scope::per_path(), marks))
            })
        })
    });
    Instances(*AT)
}

palisade_testbench::fencing!(http_instances, instances());
palisade_testbench::fencing!(http_layer, layered());
palisade_testbench::fencing!(http_proxy, proxied());
