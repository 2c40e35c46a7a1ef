//! HTTP and JSON, for people, tools and `curl`, on a separate thread and runtime. It reaches the node through
//! [`ServiceHandle`].

mod client;
mod elections;
mod health;
mod host;
mod input;
mod listener;
mod locks;
mod metrics;
mod openapi;
pub(crate) mod page;
mod problem;
mod relay;
mod routes;
mod sessions;
mod shapes;
mod sign;
mod socket;
mod traffic;
mod watch;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::handle::{ServiceHandle, Unavailable};
use super::server::Server;
use crate::node::{GrantReply, RequestContext, Response};
use crate::request::{AcquireRequest, Request};
use crate::sign::Signer;
use client::{Authenticator, Client};
use listener::Shared;
use problem::Problem;
use shapes::Granted;
use traffic::Traffic;

/// Returns the body of the reply of a node that waits to become part of a cluster.
pub(super) fn not_a_member_yet(why: &str) -> String {
    Problem::not_a_member_yet(why).to_json()
}

/// The HTTP server: its socket and its limits.
#[derive(Debug)]
pub struct Http {
    /// The socket.
    pub listener: TcpListener,
    /// The limits on its clients.
    pub bounds: Bounds,
    /// The names of this service, in addition to its addresses and `localhost`. Without users and TLS, requests
    /// for other hosts are refused.
    pub hosts: Vec<String>,
}

impl Http {
    /// Returns a server with the default limits.
    pub fn new(listener: TcpListener) -> Http {
        Http { listener, bounds: Bounds::default(), hosts: Vec::new() }
    }
}

/// Limits on clients, so that none can harm the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once. A further one displaces the one that has been idle for the longest. One user may have a
    /// quarter of this and of each of the next three limits.
    pub connections: usize,
    /// Acquiring requests at once; further ones are turned away.
    pub waiting: usize,
    /// Watches at once.
    pub watching: usize,
    /// Other requests at once. They have their own limit, so that a holder can release its lock however many others wait.
    pub at_once: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// How long the head of a request may take, and how long a connection may be idle.
    pub head: Duration,
    /// How long the body of a request may take.
    pub body: Duration,
    /// How long a client may read nothing of what is written to it.
    pub stall: Duration,
    /// How long the service may take to answer, in addition to the requested wait.
    pub answer: Duration,
    /// Unread events of one watcher. It misses further ones, and gets their number.
    pub backlog: usize,
    /// How often a watcher gets a comment while nothing happens.
    pub silence: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 8192,
            waiting: 4096,
            watching: 1024,
            at_once: 512,
            body_bytes: 64 << 10,
            head: Duration::from_secs(30),
            body: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            answer: Duration::from_secs(10),
            backlog: 1024,
            silence: Duration::from_secs(15),
        }
    }
}

/// How many connections of relayed clients wait for the HTTP thread at most.
const RELAYED_BACKLOG: usize = 1024;

/// What every handler needs.
#[derive(Clone)]
struct App {
    service: ServiceHandle,
    bounds: Bounds,
    traffic: Arc<Traffic>,
    signer: Option<Signer>,
}

impl App {
    /// Sends a request to the node. A refusal is a problem.
    async fn request(&self, context: RequestContext, request: Request) -> Result<Response, Problem> {
        match self.within(Duration::ZERO, self.service.request(context, request)).await? {
            Response::Refused(refused) => Err(refused.into()),
            response => Ok(response),
        }
    }

    /// Acquires locks. Dropped before it is ready, it leaves nothing queued or held.
    async fn acquire(
        &self,
        context: RequestContext,
        client: &Client,
        request: AcquireRequest,
    ) -> Result<Granted, Problem> {
        let wait_ms = request.wait_ms.unwrap_or(0);
        let locks = request.wants.iter().map(|want| want.lock.clone()).collect();
        let acquired = self.service.request(context, Request::Acquire(request));
        let acquired = self.within(Duration::from_millis(wait_ms), acquired);
        let response = tokio::select! {
            response = acquired => response?,
            // hyper does not notice a disconnect while bytes after this request are unread.
            () = client.closed(), if wait_ms > 0 => Response::NotGranted,
        };
        match response {
            Response::Granted(GrantReply { token, session, ttl_ms }) => Ok(Granted { token, session, ttl_ms, locks }),
            Response::Refused(refused) => Err(refused.into()),
            _ => Err(Problem::busy(wait_ms)),
        }
    }

    /// Waits for the service, with `more` added to the usual time limit.
    async fn within<T>(
        &self,
        more: Duration,
        answer: impl Future<Output = Result<T, Unavailable>>,
    ) -> Result<T, Problem> {
        match tokio::time::timeout(self.bounds.answer.saturating_add(more), answer).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(Problem::no_answer()),
        }
    }
}

/// A running HTTP server. It stops when this is dropped.
pub(crate) struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Starts the HTTP server.
pub(crate) fn start(http: Http, service: ServiceHandle, server: &Server, resp_port: u16) -> io::Result<Running> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    http.listener.set_nonblocking(true)?;
    let listener = {
        let _within = runtime.enter();
        tokio::net::TcpListener::from_std(http.listener)?
    };
    let bounds = http.bounds;
    let traffic = Arc::new(Traffic::default());
    let (users, tls) = (server.users.clone(), server.tls.clone());
    let is_open = users.is_none() && tls.is_none();
    let authenticator = Authenticator { users: users.clone(), hosts: is_open.then(|| http.hosts.into()) };
    let dialer = server.relay().map(|relay| relay.leader_dialer());
    let page = page::begin(service.clone(), authenticator.clone(), tls.is_some(), resp_port);
    let signer = server.signer.clone();
    let router = routes::router(service, bounds, traffic.clone(), authenticator, signer, dialer, &page);
    let (sender, relayed) = mpsc::channel(RELAYED_BACKLOG);
    server.set_relayed_http(sender);
    let (service_bounds, limiters) = (server.bounds.clone(), server.limiters.clone());
    let shared = Shared { users, tls, service_bounds, bounds, router, traffic, limiters };
    let (stop, stopped) = oneshot::channel();
    let thread = thread::Builder::new().name("palisade-http".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = listener::accept(listener, relayed, shared) => {}
                () = page.board.run() => {}
                _ = stopped => {}
            }
        });
    })?;
    Ok(Running { stop: Some(stop), thread: Some(thread) })
}
