//! A service without a fence.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::sync::{Semaphore, watch};

/// A service that appends each POST to a log. It ends with the process.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    /// How many posts have arrived.
    pub(crate) arrived: watch::Sender<usize>,
    /// Each reply to a POST to /slow takes one permit.
    pub(crate) permits: Arc<Semaphore>,
    /// The headers of the last request to /headers.
    pub(crate) headers: Arc<Mutex<HeaderMap>>,
}

impl Upstream {
    pub(crate) fn start() -> Upstream {
        Upstream::start_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    pub(crate) fn start_at(address: SocketAddr) -> Upstream {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let upstream = Upstream {
            address: listener.local_addr().unwrap(),
            log: Arc::default(),
            arrived: watch::Sender::new(0),
            permits: Arc::new(Semaphore::new(0)),
            headers: Arc::default(),
        };
        let app = upstream.app();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        upstream
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn app(&self) -> Router {
        let slow = |State(upstream): State<Upstream>, body: String| async move {
            upstream.arrived.send_modify(|arrived| *arrived += 1);
            upstream.permits.acquire().await.unwrap().forget();
            upstream.log.lock().unwrap().push(body);
            "done"
        };
        Router::new()
            .route("/log", get(list).post(add))
            .route("/slow", post(slow))
            .route("/large", get(async || Bytes::from(vec![b'x'; 20 << 20])))
            .route("/headers", get(headers))
            .with_state(self.clone())
    }
}

async fn list(State(upstream): State<Upstream>) -> String {
    upstream.log().join("\n")
}

async fn add(State(upstream): State<Upstream>, body: String) -> impl IntoResponse {
    upstream.log.lock().unwrap().push(body);
    upstream.arrived.send_modify(|arrived| *arrived += 1);
    (StatusCode::CREATED, [(header::LOCATION, "/log/last")], "added")
}

async fn headers(State(upstream): State<Upstream>, headers: HeaderMap) -> impl IntoResponse {
    *upstream.headers.lock().unwrap() = headers;
    [("connection", "x-inner"), ("x-inner", "private"), ("x-outer", "public"), ("keep-alive", "timeout=5")]
}
