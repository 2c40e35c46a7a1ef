//! The second protocol, for people, tools and `curl`: HTTP and JSON, on a thread and a runtime of its own. All it knows
//! of the service is [`Far`].

mod access;
mod elections;
mod entrance;
mod health;
mod host;
mod input;
mod locks;
mod metrics;
mod principal;
mod problem;
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

use palisade_core::Answer;
use tokio::sync::oneshot;

use crate::resp::{Holding, Reply, Request};
use crate::service::{Asker, Far, Grant, Unavailable};
use crate::sign::Signer;
pub(crate) use entrance::Entrance;
use entrance::Hall;
use principal::{Known, Visitor};
use problem::Problem;
use shapes::Granted;
use traffic::Traffic;

/// Where HTTP is spoken, and within which bounds.
#[derive(Debug)]
pub struct Http {
    /// Where clients come in.
    pub listener: TcpListener,
    /// How much they may do.
    pub bounds: Bounds,
    /// The names of this service, beside its addresses and `localhost`. Where there are neither users nor TLS, requests
    /// for other hosts are refused.
    pub hosts: Vec<String>,
}

impl Http {
    /// With the usual bounds.
    pub fn new(listener: TcpListener) -> Http {
        Http { listener, bounds: Bounds::default(), hosts: Vec::new() }
    }
}

/// How much clients may do, so that none can do it at the cost of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once; a further one takes the place of the one that has been idle for the longest. Of this and of
    /// the next three one user may have a quarter.
    pub connections: usize,
    /// Acquiring requests at once; further ones are turned away.
    pub waiting: usize,
    /// Watches at once.
    pub watching: usize,
    /// Other requests at once, which therefore get through however many wait: who holds a lock can release it.
    pub at_once: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// How long the head of a request may take, and how long a connection may be idle.
    pub head: Duration,
    /// How long the body of a request may take.
    pub body: Duration,
    /// How long a client may read nothing of what is written to it.
    pub stall: Duration,
    /// How long the service may take to answer, beside the time that was asked to wait.
    pub answer: Duration,
    /// Events that may wait to be read by one watcher; it misses further ones, and is told so.
    pub backlog: usize,
    /// How often a watcher hears that nothing has happened.
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

/// What every request needs.
#[derive(Clone)]
struct App {
    far: Far,
    bounds: Bounds,
    traffic: Arc<Traffic>,
    openapi: Arc<str>,
    signer: Option<Signer>,
}

impl App {
    /// Has something carried out.
    async fn ask(&self, asker: Asker, request: Request) -> Result<Answer, Problem> {
        Ok(self.answered(self.far.ask(asker, request)).await??)
    }

    /// Looks at something as it is now.
    async fn look(&self, asker: Asker, request: Request) -> Result<Reply, Problem> {
        Ok(self.answered(self.far.look(asker, request)).await??)
    }

    /// Has something acquired. Dropped before it is ready, it leaves nothing behind.
    async fn acquire(&self, asker: Asker, visitor: &Visitor, holding: Holding) -> Result<Granted, Problem> {
        let wait_ms = holding.wait_ms.unwrap_or(0);
        let locks = holding.wants.iter().map(|want| want.lock.clone()).collect();
        let acquired = self.answered_within(Duration::from_millis(wait_ms), self.far.acquire(asker, holding));
        let acquired = tokio::select! {
            acquired = acquired => acquired??,
            // What it has sent behind this request keeps the protocol from noticing that it has gone.
            () = visitor.gone(), if wait_ms > 0 => None,
        };
        match acquired {
            Some(Grant { token, session, ttl_ms }) => Ok(Granted { token, session, ttl_ms, locks }),
            None => Err(Problem::busy(wait_ms)),
        }
    }

    /// Awaits the service's answer, but not for ever.
    async fn answered<T>(&self, answer: impl Future<Output = Result<T, Unavailable>>) -> Result<T, Problem> {
        self.answered_within(Duration::ZERO, answer).await
    }

    async fn answered_within<T>(
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

/// HTTP being served. It ends when this is dropped.
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

/// Starts to serve.
pub(crate) fn start(http: Http, far: Far, entrance: Entrance, signer: Option<Signer>) -> io::Result<Running> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    http.listener.set_nonblocking(true)?;
    let listener = {
        let _within = runtime.enter();
        tokio::net::TcpListener::from_std(http.listener)?
    };
    let bounds = http.bounds;
    let traffic = Arc::new(Traffic::default());
    let is_open = entrance.users.is_none() && entrance.tls.is_none();
    let known = Known { users: entrance.users.clone(), hosts: is_open.then(|| http.hosts.into()) };
    let router = routes::router(far, bounds, traffic.clone(), known, signer);
    let hall = Hall { entrance, bounds, router, traffic };
    let (stop, stopped) = oneshot::channel();
    let thread = thread::Builder::new().name("palisade-http".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = entrance::accept(listener, hall) => {}
                _ = stopped => {}
            }
        });
    })?;
    Ok(Running { stop: Some(stop), thread: Some(thread) })
}
