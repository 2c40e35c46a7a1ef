//! A TCP proxy that does to connections what a test says: passes, delays, holds back, cuts off.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::bounded::within;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// What a client says.
    Server,
    /// What it is answered.
    Client,
}

/// What is done to connections. They are numbered as they come, from 0.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    /// Nothing goes this way on connections below this number.
    held: [u64; 2],
    /// Connections below this number are over.
    cut: u64,
    /// Connections that come are over at once.
    is_shut: bool,
    /// How long each piece is on its way.
    delay: Duration,
    /// How many bytes may go this way, over all connections, before all of them are cut.
    cut_at: [Option<u64>; 2],
}

/// A proxy. It ends with this value.
pub struct Proxy {
    /// Where clients find it.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    plan: watch::Sender<Plan>,
    accepted: watch::Sender<u64>,
    ended: watch::Sender<u64>,
    passed: [AtomicU64; 2],
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

    /// Lets everything through again, also what was held back.
    pub fn pass(&self) {
        self.plan(|plan| *plan = Plan { cut: plan.cut, ..Plan::default() });
    }

    /// Cuts all connections that there are.
    pub fn cut(&self) {
        let accepted = *self.shared.accepted.borrow();
        self.plan(|plan| plan.cut = accepted);
    }

    /// Cuts all connections, and each that comes, until [`Proxy::pass`].
    pub fn shut(&self) {
        self.plan(|plan| plan.is_shut = true);
        self.cut();
    }

    /// Cuts all connections once so many more bytes have gone this way.
    pub fn cut_after(&self, towards: Towards, bytes: u64) {
        let at = self.passed(towards) + bytes;
        self.plan(|plan| plan.cut_at[towards as usize] = Some(at));
    }

    /// Holds back what goes this way on the connections that there are, until [`Proxy::pass`]. Others are not touched.
    pub fn hold(&self, towards: Towards) {
        let accepted = *self.shared.accepted.borrow();
        self.plan(|plan| plan.held[towards as usize] = accepted);
    }

    /// Holds back everything on all connections, also on those to come, until [`Proxy::pass`].
    pub fn black_hole(&self) {
        self.plan(|plan| plan.held = [u64::MAX; 2]);
    }

    /// Lets every piece take so long, until [`Proxy::pass`].
    pub fn delay(&self, delay: Duration) {
        self.plan(|plan| plan.delay = delay);
    }

    /// How many bytes have gone this way so far.
    pub fn passed(&self, towards: Towards) -> u64 {
        self.shared.passed[towards as usize].load(Ordering::SeqCst)
    }

    /// Waits until so many connections have come, since the beginning.
    pub async fn until_accepted(&self, connections: u64) {
        let mut accepted = self.shared.accepted.subscribe();
        // The sender is here.
        let what = format!("the proxy has accepted {connections} connections");
        drop(within(&what, accepted.wait_for(|count| *count >= connections)).await);
    }

    /// How many connections are over so far.
    pub fn ended(&self) -> u64 {
        *self.shared.ended.borrow()
    }

    /// Waits until so many connections are over, since the beginning. One whose client has gone is over when all that
    /// it had said has arrived.
    pub async fn until_ended(&self, connections: u64) {
        let mut ended = self.shared.ended.subscribe();
        // The sender is here.
        let what = format!("{connections} connections of the proxy have ended");
        drop(within(&what, ended.wait_for(|count| *count >= connections)).await);
    }

    /// How many connections have come so far.
    pub fn accepted(&self) -> u64 {
        *self.shared.accepted.borrow()
    }

    fn plan(&self, change: impl FnOnce(&mut Plan)) {
        self.shared.plan.send_modify(change);
    }
}

/// Until nobody has the proxy any more.
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

/// One connection's way through the proxy.
struct Passage {
    number: u64,
    shared: std::sync::Weak<Shared>,
}

impl Passage {
    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, towards: Towards) -> io::Result<()> {
        let Some(mut plan) = self.shared.upgrade().map(|shared| shared.plan.subscribe()) else { return Ok(()) };
        let mut buffer = [0; 4096];
        loop {
            self.open(&mut plan, towards).await;
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            let delay = plan.borrow().delay;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // It may have been closed while this was on its way.
            self.open(&mut plan, towards).await;
            let mut rest = &buffer[..read];
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

    /// Until bytes may go this way.
    async fn open(&self, plan: &mut watch::Receiver<Plan>, towards: Towards) {
        // Without a proxy there is nothing to wait for.
        drop(plan.wait_for(|plan| self.number >= plan.held[towards as usize]).await);
    }

    /// How many of these bytes can go before something is to happen.
    fn allowance(&self, towards: Towards, bytes: usize) -> usize {
        let Some(shared) = self.shared.upgrade() else { return bytes };
        let passed = shared.passed[towards as usize].load(Ordering::SeqCst);
        let left = shared.plan.borrow().cut_at[towards as usize].map(|at| at.saturating_sub(passed));
        left.and_then(|left| usize::try_from(left).ok()).map_or(bytes, |left| left.min(bytes))
    }

    /// Counts what went through; returns whether that was the end of it.
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
