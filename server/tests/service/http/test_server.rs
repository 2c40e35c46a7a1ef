//! A service that runs as long as a test does.

use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use palisade_server::access::Users;
use palisade_server::sign::Signer;
use palisade_server::{Bounds, Config, Http, HttpBounds, Listeners, serve};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::client::{Client, RespConnection, soon};

/// How long a server waits for its clients, unless a test says otherwise: a busy machine must not lose the connection of a test that
/// is slow to send or to read.
const PATIENCE: Duration = Duration::from_secs(600);

/// Raises the times that have their usual values.
fn patient(mut bounds: Bounds) -> Bounds {
    let usual = Bounds::default();
    let times = [
        (&mut bounds.greeting, usual.greeting),
        (&mut bounds.command, usual.command),
        (&mut bounds.stall, usual.stall),
    ];
    raise(times);
    bounds
}

/// Does the same for HTTP.
fn patient_http(mut bounds: HttpBounds) -> HttpBounds {
    let usual = HttpBounds::default();
    let times = [
        (&mut bounds.head, usual.head),
        (&mut bounds.body, usual.body),
        (&mut bounds.stall, usual.stall),
        (&mut bounds.answer, usual.answer),
    ];
    raise(times);
    bounds
}

fn raise<const COUNT: usize>(times: [(&mut Duration, Duration); COUNT]) {
    for (time, _) in times.into_iter().filter(|(time, usual)| **time == *usual) {
        *time = PATIENCE;
    }
}

pub(crate) struct TestServer {
    http: SocketAddr,
    resp: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    dir: Option<TempDir>,
}

impl TestServer {
    pub(crate) fn new() -> TestServer {
        TestServer::with(HttpBounds::default())
    }

    pub(crate) fn with(bounds: HttpBounds) -> TestServer {
        TestServer::on(tempfile::tempdir().expect("a folder"), bounds)
    }

    /// Starts a server with these users that signs tokens.
    pub(crate) fn of(users: Users) -> TestServer {
        let dir = tempfile::tempdir().expect("a folder");
        let signer = Some(Signer::new(dir.path()));
        TestServer::start(dir, Config { users: Some(users), signer, ..Config::default() }, HttpBounds::default())
    }

    /// Starts a server that signs tokens.
    pub(crate) fn signing() -> TestServer {
        let dir = tempfile::tempdir().expect("a folder");
        let signer = Signer::new(dir.path());
        TestServer::signing_on(dir, signer)
    }

    /// Starts a server that signs tokens, on files that may exist.
    pub(crate) fn signing_on(dir: TempDir, signer: Signer) -> TestServer {
        TestServer::start(dir, Config { signer: Some(signer), ..Config::default() }, HttpBounds::default())
    }

    /// Starts a server with this configuration, on new files.
    pub(crate) fn configured(config: Config, bounds: HttpBounds) -> TestServer {
        TestServer::start(tempfile::tempdir().expect("a folder"), config, bounds)
    }

    /// Starts a server on files that may exist.
    pub(crate) fn on(dir: TempDir, bounds: HttpBounds) -> TestServer {
        TestServer::start(dir, Config::default(), bounds)
    }

    fn start(dir: TempDir, config: Config, bounds: HttpBounds) -> TestServer {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (resp, http) = (listen(), listen());
        let (resp_at, http_at) = (resp.local_addr().expect("bound"), http.local_addr().expect("bound"));
        resp.set_nonblocking(true).expect("a socket that does not block");
        let (stop, stopped) = oneshot::channel::<()>();
        let (http_bounds, bounds) = (patient_http(bounds), patient(config.bounds.clone()));
        let config = Config { data_dir: dir.path().to_owned(), bounds, ..config };
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            tokio::task::LocalSet::new().block_on(&runtime, async move {
                let resp = tokio::net::TcpListener::from_std(resp).expect("a listener");
                let listeners =
                    Listeners { resp, http: Some(Http { bounds: http_bounds, ..Http::new(http) }), peers: None };
                tokio::select! {
                    ended = serve(config, listeners) => panic!("the service ended: {ended:?}"),
                    _ = stopped => {}
                }
            });
        });
        let server =
            TestServer { http: http_at, resp: resp_at, stop: Some(stop), thread: Some(thread), dir: Some(dir) };
        server.await_readiness();
        server
    }

    /// Waits until the server is ready. Before that, it must say that it is not.
    fn await_readiness(&self) {
        let client = self.client();
        soon("it is ready", || {
            assert!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the service ended");
            let answer = client.try_get("/readyz")?;
            if answer.status != 200 {
                assert_eq!(answer.code(), "NOTREADY");
            }
            (answer.status == 200).then_some(())
        });
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.http)
    }

    /// Opens a RESP connection.
    pub(crate) fn connect_resp(&self) -> RespConnection {
        RespConnection::new(self.resp)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.http
    }

    /// Returns the address for RESP.
    pub(crate) fn resp_address(&self) -> SocketAddr {
        self.resp
    }

    /// Waits until no RESP connection is open.
    pub(crate) fn await_no_resp_connections(&self) {
        let client = self.client();
        let is_none = || client.get("/metrics").body.contains("palisade_connections{protocol=\"resp\"} 0\n");
        soon("the last connection is closed", || is_none().then_some(()));
    }

    /// Stops the service, and returns its files.
    pub(crate) fn close(mut self) -> TempDir {
        self.end();
        self.dir.take().expect("closed once")
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the service panicked");
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end();
    }
}
