//! A TCP proxy that passes, delays, holds back or cuts connections, as a test tells it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::bounded::within;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// Requests of the client.
    Server,
    /// Replies of the server.
    Client,
}

/// The faults of connections. Connections are numbered from 0, in the order in which they are accepted.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    /// Bytes in this direction are held back on connections below this number.
    held: [u64; 2],
    /// Connections below this number are cut.
    cut: u64,
    /// New connections are cut at once.
    is_shut: bool,
    /// The delay of each piece that is read.
    delay: Duration,
    /// The number of bytes in this direction, over all connections, after which all of them are cut.
    cut_at: [Option<u64>; 2],
}

/// A proxy. It ends with this value.
pub struct Proxy {
    /// Its address.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    plan: watch::Sender<Plan>,
    accepted: watch::Sender<u64>,
    ended: watch::Sender<u64>,
    passed: [AtomicU64; 2],
    /// The first lines of HTTP requests.
    requests: Mutex<Vec<String>>,
}

impl Proxy {
    /// Starts a proxy to a server that listens, or will.
    ///
    /// # Errors
    ///
    /// There is no port, or no thread.
    pub fn start(server: SocketAddr) -> io::Result<Proxy> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            plan: watch::Sender::default(),
            accepted: watch::Sender::default(),
            ended: watch::Sender::default(),
            passed: [AtomicU64::new(0), AtomicU64::new(0)],
            requests: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (there, plan) = (Arc::downgrade(&shared), shared.plan.subscribe());
        thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            let serving = async {
                let listener = TcpListener::from_std(listener)?;
                while let (stream, Some(shared)) = (listener.accept().await?.0, there.upgrade()) {
                    tokio::spawn(connect(stream, server, shared));
                }
                io::Result::Ok(())
            };
            runtime.block_on(async {
                tokio::select! {
                    _ = serving => {}
                    () = ended(plan) => {}
                }
            });
        })?;
        Ok(Proxy { address, shared })
    }

    /// Passes everything again, including what was held back.
    pub fn pass(&self) {
        self.plan(|plan| *plan = Plan { cut: plan.cut, ..Plan::default() });
    }

    /// Cuts all current connections.
    pub fn cut(&self) {
        let accepted = *self.shared.accepted.borrow();
        self.plan(|plan| plan.cut = accepted);
    }

    /// Cuts all connections, and each new one, until [`Proxy::pass`].
    pub fn shut(&self) {
        self.plan(|plan| plan.is_shut = true);
        self.cut();
    }

    /// Cuts all connections after this number of further bytes in this direction.
    pub fn cut_after(&self, towards: Towards, bytes: u64) {
        let at = self.passed(towards) + bytes;
        self.plan(|plan| plan.cut_at[towards as usize] = Some(at));
    }

    /// Holds back bytes in this direction on the current connections, until [`Proxy::pass`]. New ones are not affected.
    pub fn hold(&self, towards: Towards) {
        let accepted = *self.shared.accepted.borrow();
        self.plan(|plan| plan.held[towards as usize] = accepted);
    }

    /// Holds back bytes in this direction on all connections, including new ones, until [`Proxy::pass`].
    pub fn hold_all(&self, towards: Towards) {
        self.plan(|plan| plan.held[towards as usize] = u64::MAX);
    }

    /// Holds back everything on all connections, including new ones, until [`Proxy::pass`].
    pub fn black_hole(&self) {
        self.plan(|plan| plan.held = [u64::MAX; 2]);
    }

    /// Delays every piece that is read by this time, until [`Proxy::pass`].
    pub fn delay(&self, delay: Duration) {
        self.plan(|plan| plan.delay = delay);
    }

    /// Returns the number of bytes that have passed in this direction.
    pub fn passed(&self, towards: Towards) -> u64 {
        self.shared.passed[towards as usize].load(Ordering::SeqCst)
    }

    /// Returns the first lines of the HTTP requests that have passed: `GET /v1/kv/x?recurse HTTP/1.1`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this number of connections have been accepted since the start.
    pub async fn until_accepted(&self, connections: u64) {
        let mut accepted = self.shared.accepted.subscribe();
        // This cannot fail: `self` has the sender.
        let what = format!("the proxy has accepted {connections} connections");
        drop(within(&what, accepted.wait_for(|count| *count >= connections)).await);
    }

    /// Returns the number of connections that have ended.
    pub fn ended(&self) -> u64 {
        *self.shared.ended.borrow()
    }

    /// Waits until this number of connections have ended since the start. A connection that its client closed ends when all
    /// of the client's bytes have arrived.
    pub async fn until_ended(&self, connections: u64) {
        let mut ended = self.shared.ended.subscribe();
        // This cannot fail: `self` has the sender.
        let what = format!("{connections} connections of the proxy have ended");
        drop(within(&what, ended.wait_for(|count| *count >= connections)).await);
    }

    /// Returns the number of connections that have been accepted.
    pub fn accepted(&self) -> u64 {
        *self.shared.accepted.borrow()
    }

    fn plan(&self, change: impl FnOnce(&mut Plan)) {
        self.shared.plan.send_modify(change);
    }
}

/// Waits until the proxy is dropped.
async fn ended(mut plan: watch::Receiver<Plan>) {
    while plan.changed().await.is_ok() {}
}

async fn connect(client: TcpStream, server: SocketAddr, shared: Arc<Shared>) -> io::Result<()> {
    let mut plan = shared.plan.subscribe();
    let passed = {
        let mut number = 0;
        shared.accepted.send_modify(|accepted| {
            number = *accepted;
            *accepted += 1;
        });
        Passage { number, shared: Arc::downgrade(&shared) }
    };
    drop(shared);
    let work = async {
        client.set_nodelay(true)?;
        let server = TcpStream::connect(server).await?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            over = passed.pump(from_client, to_server, Towards::Server) => over,
            over = passed.pump(from_server, to_client, Towards::Client) => over,
        }
    };
    let over = tokio::select! {
        over = work => over,
        _ = plan.wait_for(|plan| plan.is_shut || passed.number < plan.cut) => Ok(()),
    };
    if let Some(shared) = passed.shared.upgrade() {
        shared.ended.send_modify(|ended| *ended += 1);
    }
    over
}

/// How long a server has for requests that were held back, and whose client has closed the connection meanwhile.
const LINGER: Duration = Duration::from_millis(500);

/// One connection through the proxy.
struct Passage {
    number: u64,
    shared: std::sync::Weak<Shared>,
}

impl Passage {
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, towards: Towards) -> io::Result<()> {
        let Some(mut plan) = self.shared.upgrade().map(|shared| shared.plan.subscribe()) else { return Ok(()) };
        let (mut buffer, mut was_held) = ([0; 4096], false);
        loop {
            was_held |= self.is_held(&plan.borrow(), towards);
            self.open(&mut plan, towards).await;
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                if was_held && towards == Towards::Server {
                    // The server would drop a request whose connection has ended.
                    tokio::time::sleep(LINGER).await;
                }
                return Ok(());
            }
            let delay = plan.borrow().delay;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // The direction may have been held back meanwhile.
            was_held |= self.is_held(&plan.borrow(), towards);
            self.open(&mut plan, towards).await;
            let mut rest = &buffer[..read];
            if towards == Towards::Server {
                self.note_request(rest);
            }
            while !rest.is_empty() {
                let may_pass = self.allowance(towards, rest.len());
                to.write_all(&rest[..may_pass]).await?;
                rest = &rest[may_pass..];
                if self.count(towards, may_pass) {
                    return Ok(());
                }
            }
        }
    }

    /// A client writes a request at once, and the next one after the answer.
    fn note_request(&self, piece: &[u8]) {
        let line = piece.split(|byte| *byte == b'\r').next().unwrap_or_default();
        if let (true, Some(shared)) = (line.ends_with(b" HTTP/1.1"), self.shared.upgrade()) {
            let line = String::from_utf8_lossy(line).into_owned();
            shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    /// Waits until bytes may pass in this direction.
    async fn open(&self, plan: &mut watch::Receiver<Plan>, towards: Towards) {
        // The wait fails only if the proxy was dropped.
        drop(plan.wait_for(|plan| !self.is_held(plan, towards)).await);
    }

    fn is_held(&self, plan: &Plan, towards: Towards) -> bool {
        self.number < plan.held[towards as usize]
    }

    /// Returns how many of these bytes may pass before the connections are cut.
    fn allowance(&self, towards: Towards, bytes: usize) -> usize {
        let Some(shared) = self.shared.upgrade() else { return bytes };
        let passed = shared.passed[towards as usize].load(Ordering::SeqCst);
        let left = shared.plan.borrow().cut_at[towards as usize].map(|at| at.saturating_sub(passed));
        left.and_then(|left| usize::try_from(left).ok()).map_or(bytes, |left| left.min(bytes))
    }

    /// Counts bytes that passed. Returns whether that cuts the connections.
    fn count(&self, towards: Towards, bytes: usize) -> bool {
        let Some(shared) = self.shared.upgrade() else { return true };
        let passed = shared.passed[towards as usize].fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        let is_over = shared.plan.borrow().cut_at[towards as usize].is_some_and(|at| passed >= at);
        if is_over {
            let accepted = *shared.accepted.borrow();
            shared.plan.send_modify(|plan| {
                plan.cut_at[towards as usize] = None;
                plan.cut = accepted;
            });
        }
        is_over
    }
}
