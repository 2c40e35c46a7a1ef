//! The network between the nodes of a cluster, which loses what one node sends to another as it is told.
//!
//! A proxy stands before the port on which a node listens for the others. It finds out which node has connected from the owner of the
//! connection's socket, so it does not depend on what nodes say to each other.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// A node sends to another one: their numbers, from 0.
pub type Way = (usize, usize);

/// The network. It ends with this value.
pub struct Network {
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
    nodes: usize,
    shared: Arc<Shared>,
}

struct Shared {
    /// The environment variable by which a process is known as a node: `node1` is node 0.
    variable: &'static str,
    /// Bytes on these ways are held back, on all connections.
    lost: watch::Sender<BTreeSet<Way>>,
    /// `None` if nothing is recorded.
    sent: Option<Mutex<Vec<Sent>>>,
    /// For which node, the address on which another one listens, and where the first one reaches it.
    proxies: Mutex<Vec<(usize, SocketAddr, SocketAddr)>>,
    translates: AtomicBool,
}

/// The bytes that a node has sent on a connection that it has opened.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The node that has opened the connection.
    pub from: usize,
    /// The node that it has connected to.
    pub to: usize,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Network {
    /// Starts a network without nodes. This environment variable of a node's process names it: `node1`, `node2`, and so on.
    ///
    /// # Errors
    ///
    /// There is no thread.
    pub fn start(variable: &'static str) -> io::Result<Network> {
        Network::start_with(variable, None)
    }

    /// Starts a network that records what is sent on it, for [`Network::sent`].
    ///
    /// # Errors
    ///
    /// There is no thread.
    pub fn start_recording(variable: &'static str) -> io::Result<Network> {
        Network::start_with(variable, Some(Mutex::default()))
    }

    fn start_with(variable: &'static str, sent: Option<Mutex<Vec<Sent>>>) -> io::Result<Network> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let shared = Shared {
            variable,
            lost: watch::Sender::default(),
            sent,
            proxies: Mutex::default(),
            translates: AtomicBool::new(false),
        };
        Ok(Network { runtime: Some(runtime), nodes: 0, shared: Arc::new(shared) })
    }

    /// Adds the next node, which listens for the others at `peer`, or will. Returns where the others reach it.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub fn add(&mut self, peer: SocketAddr) -> io::Result<SocketAddr> {
        self.nodes += 1;
        self.listen(None, self.nodes - 1, peer)
    }

    /// Adds an address on which a node listens, for one other node. Returns where that one reaches it. A node of ZooKeeper needs this: it
    /// closes some connections at once, before their owner is found.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub fn add_way(&mut self, (from, to): Way, peer: SocketAddr) -> io::Result<SocketAddr> {
        self.nodes = self.nodes.max(from.max(to) + 1);
        let proxy = self.listen(Some(from), to, peer)?;
        lock(&self.shared.proxies).push((from, peer, proxy));
        Ok(proxy)
    }

    /// Replaces, at the begin of each connection to a node, the addresses on which others listen by those where it reaches them, added
    /// with [`Network::add_way`]. A server of ZooKeeper tells others where it listens for elections, and they connect to it there.
    pub fn translate_addresses(&self) {
        self.shared.translates.store(true, Ordering::Relaxed);
    }

    /// Starts the proxy before an address of a node. Without `from`, it finds out which node has connected.
    fn listen(&self, from: Option<usize>, to: usize, peer: SocketAddr) -> io::Result<SocketAddr> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (address, shared) = (listener.local_addr()?, self.shared.clone());
        let Some(runtime) = &self.runtime else { return Ok(address) };
        let _context = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        runtime.spawn(async move {
            loop {
                let Ok((stream, client)) = listener.accept().await else { continue };
                // A connection that has ended meanwhile has no owner.
                if let Some(from) = from.or_else(|| owner(client, address, shared.variable)) {
                    tokio::spawn(connect(stream, peer, (from, to), shared.clone()));
                }
            }
        });
        Ok(address)
    }

    /// Loses everything on these ways, and passes everything else. What is lost arrives late, after this is called again: nodes
    /// send bytes on connections, which lose none before they end.
    pub fn lose(&self, ways: impl IntoIterator<Item = Way>) {
        self.shared.lost.send_replace(ways.into_iter().collect());
    }

    /// Separates these nodes from the others, both ways.
    pub fn separate(&self, nodes: &[usize]) {
        let is_apart = |(from, to): &Way| nodes.contains(from) != nodes.contains(to);
        self.lose(self.ways().filter(is_apart));
    }

    /// Passes everything.
    pub fn heal(&self) {
        self.lose([]);
    }

    /// Returns every way from one node to another.
    pub fn ways(&self) -> impl Iterator<Item = Way> + use<> {
        let nodes = self.nodes;
        (0..nodes).flat_map(move |from| (0..nodes).filter(move |to| *to != from).map(move |to| (from, to)))
    }

    /// Returns what was sent on each connection so far, if that is recorded.
    pub fn sent(&self) -> Vec<Sent> {
        self.shared.sent.as_ref().map_or_else(Vec::new, |sent| lock(sent).clone())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Within another runtime, an ordinary end of this one would panic.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Replaces addresses in what is sent to a node, see [`Network::translate_addresses`]. All ports have five digits, so the length
    /// stays the same.
    fn translate(&self, to: usize, bytes: &mut [u8]) {
        if !self.translates.load(Ordering::Relaxed) {
            return;
        }
        for (_, listens, proxy) in lock(&self.proxies).iter().filter(|(from, ..)| *from == to) {
            let (from, to) = (listens.to_string().into_bytes(), proxy.to_string().into_bytes());
            if from.len() != to.len() {
                continue;
            }
            let found = bytes.windows(from.len()).position(|window| window == from);
            if let Some(at) = found {
                bytes[at..at + to.len()].copy_from_slice(&to);
            }
        }
    }
}

/// Returns the node whose process has opened this connection.
fn owner(client: SocketAddr, proxy: SocketAddr, variable: &str) -> Option<usize> {
    let socket = format!("socket:[{}]", inode(client, proxy).ok().flatten()?);
    let has_socket = |process: &fs::DirEntry| {
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().filter_map(Result::ok);
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| target.as_os_str() == socket.as_str())
    };
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut nodes = processes.filter_map(|process| Some((node(&process, variable)?, process)));
    nodes.find(|(_, process)| has_socket(process)).map(|(node, _)| node)
}

/// Returns the inode of the client's socket, as `ss` does: `/proc/net/tcp` is slow when thousands of connections have ended lately.
fn inode(client: SocketAddr, proxy: SocketAddr) -> io::Result<Option<u32>> {
    const BY_FAMILY: u16 = 20;
    const REQUEST: u16 = 1;
    const TCP: u8 = 6;
    let address = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => [&ip.octets()[..], &[0; 12]].concat(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    // `struct nlmsghdr`, then `struct inet_diag_req_v2`: in any state, of exactly these two ends, on any interface.
    let mut request = 72_u32.to_ne_bytes().to_vec();
    request.extend([BY_FAMILY, REQUEST].map(u16::to_ne_bytes).concat());
    request.extend([0; 8]);
    request.extend([AddressFamily::INET.as_raw() as u8, TCP, 0, 0]);
    request.extend([0xff; 4]);
    request.extend([client.port(), proxy.port()].map(u16::to_be_bytes).concat());
    request.extend([address(client), address(proxy)].concat());
    request.extend([0; 4]);
    request.extend([0xff; 8]);
    let kernel = socket(AddressFamily::NETLINK, SocketType::DGRAM, Some(netlink::SOCK_DIAG))?;
    send(&kernel, &request, SendFlags::empty())?;
    let mut reply = [0; 1024];
    let (read, _) = recv(&kernel, &mut reply[..], RecvFlags::empty())?;
    // The last field of `struct inet_diag_msg`. An error is shorter.
    let inode = reply[..read].get(84..88).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    Ok(inode)
}

/// Returns the number of the node that this process is, if it is one.
fn node(process: &fs::DirEntry, variable: &str) -> Option<usize> {
    let (variables, prefix) = (fs::read(process.path().join("environ")).ok()?, format!("{variable}=node"));
    let name = variables.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(prefix.as_bytes()))?;
    std::str::from_utf8(name).ok()?.parse::<usize>().ok()?.checked_sub(1)
}

async fn connect(client: TcpStream, peer: SocketAddr, (from, to): Way, shared: Arc<Shared>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = TcpStream::connect(peer).await?;
    server.set_nodelay(true)?;
    let number = shared.sent.as_ref().map(|sent| {
        let mut sent = lock(sent);
        sent.push(Sent { from, to, bytes: Vec::new() });
        sent.len() - 1
    });
    let mut is_first = true;
    let record = |bytes: &mut [u8]| {
        if let (Some(sent), Some(number)) = (&shared.sent, number) {
            lock(sent)[number].bytes.extend_from_slice(bytes);
        }
        if std::mem::take(&mut is_first) {
            shared.translate(to, bytes);
        }
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        over = pump(from_client, to_server, (from, to), &shared, record) => over,
        over = pump(from_server, to_client, (to, from), &shared, |_| ()) => over,
    }
}

async fn pump(
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
    way: Way,
    shared: &Shared,
    mut record: impl FnMut(&mut [u8]),
) -> io::Result<()> {
    let mut lost = shared.lost.subscribe();
    let mut buffer = [0; 16 << 10];
    loop {
        let read = reader.read(&mut buffer).await?;
        // Nor does the end of a connection arrive. The wait fails only if the network was dropped.
        drop(lost.wait_for(|lost| !lost.contains(&way)).await);
        if read == 0 {
            return Ok(());
        }
        record(&mut buffer[..read]);
        writer.write_all(&buffer[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_a_node_tells_is_replaced_by_its_proxy() {
        let mut network = Network::start("NODE").unwrap();
        let listens = "127.0.0.1:10001".parse().unwrap();
        let [from_1, from_2] = [1, 2].map(|from| network.add_way((from, 0), listens).unwrap());
        assert!(from_1 != from_2 && network.ways().count() == 6);
        let translated = |to| {
            let mut bytes = *b"at 127.0.0.1:10001 and 127.0.0.1:10002";
            network.shared.translate(to, &mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        assert_eq!(translated(1), "at 127.0.0.1:10001 and 127.0.0.1:10002");
        network.translate_addresses();
        assert_eq!(translated(1), format!("at {from_1} and 127.0.0.1:10002"));
        assert_eq!(translated(2), format!("at {from_2} and 127.0.0.1:10002"));
        assert_eq!(translated(0), "at 127.0.0.1:10001 and 127.0.0.1:10002");
    }
}
