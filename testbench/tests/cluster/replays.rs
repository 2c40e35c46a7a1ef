//! Bytes that one node has sent to another, sent again by a stranger.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use palisade::engine::LockInfo;
use palisade::engine::service::{Config, cluster_status};
use palisade::{LockGuard, Palisade};
use palisade_cli::harness::network::{Network, Sent};
use palisade_testbench::bounded::{check, until_some};
use palisade_testbench::credentials::Credentials;
use palisade_testbench::fixture::until_idle;
use palisade_testbench::servers::ServiceCluster;

use crate::failures::under_load;
use crate::fixture::{BOUND, connect, leader, on_network, release, take, take_again_and_again, until_another_leads};

/// Longer than an idle node waits for a greeting, after which it closes the connection of a node that it does not know.
const GREETING: Duration = Duration::from_secs(3);

/// Sends bytes on a new connection, and waits until the node has read them all, or has refused them. Returns whether it closed the
/// connection within this time, before its client did.
fn send_again(node: SocketAddr, bytes: &[u8], within: Duration) -> bool {
    let mut stream = TcpStream::connect(node).unwrap();
    let is_closed = |stream: &mut TcpStream| loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            // A reset, if the node has not read everything.
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    // A node that refuses may close the connection before it has read everything.
    drop(stream.write_all(bytes));
    stream.set_read_timeout(Some(within)).unwrap();
    if is_closed(&mut stream) {
        return true;
    }
    drop(stream.shutdown(Shutdown::Write));
    stream.set_read_timeout(Some(BOUND)).unwrap();
    assert!(is_closed(&mut stream), "the node does not close a connection that its client has closed");
    false
}

/// Sends everything again to these nodes, all at once, and returns how many connections the nodes have closed themselves within this
/// time.
async fn replay(nodes: Vec<(SocketAddr, Vec<u8>)>, within: Duration) -> usize {
    let sending: Vec<_> = nodes
        .into_iter()
        .map(|(node, bytes)| tokio::task::spawn_blocking(move || send_again(node, &bytes, within)))
        .collect();
    let mut closed = 0;
    for sent in sending {
        closed += usize::from(sent.await.unwrap());
    }
    closed
}

/// Waits until the clients of the load have left, whose sessions end meanwhile.
async fn until_left(client: &Palisade) {
    for lock in ["orders", "users"] {
        until_idle(client, lock).await;
    }
}

/// What must not change: the nodes, the holders and waiters of all locks.
async fn state(cluster: &ServiceCluster, client: &Palisade) -> String {
    let config = Config::parse(cluster.url().strip_prefix("palisade:").unwrap()).unwrap();
    let status = until_some("the nodes are listed", async || cluster_status(&config).await.ok()).await;
    let mut members: Vec<_> = status.members.iter().map(|member| (&member.name, &member.number)).collect();
    members.sort();
    let locks = until_some("the locks are listed", async || client.list("").await.ok()).await;
    let tokens = |lock: &LockInfo| lock.holders.iter().map(|holder| holder.token).collect::<Vec<_>>();
    let locks: Vec<_> = locks.iter().map(|lock| (&lock.name, tokens(lock), lock.waiters.len())).collect();
    format!("{members:?} {locks:?}")
}

/// Returns what the nodes have said: in two terms, under load, and for clients that were relayed. Those still hold the locks that are
/// returned.
async fn recorded(cluster: &mut ServiceCluster, network: &Network) -> (Vec<Sent>, Vec<LockGuard>) {
    let mut held = Vec::new();
    under_load(cluster, async |cluster| {
        let old = leader(cluster).await;
        cluster.kill(old);
        until_another_leads(cluster, old).await;
        cluster.restart(old).unwrap();
        for at in 0..cluster.len() {
            let url = format!("palisade://{}", cluster.address(at));
            let client = connect(&url).await;
            for lock in ["released", "held"] {
                held.push(take(&client, &format!("{lock}/{at}")).await);
            }
            release(&held.swap_remove(at)).await;
        }
    })
    .await;
    (network.sent().into_iter().filter(|sent| !sent.bytes.is_empty()).collect(), held)
}

#[test]
fn what_nodes_said_changes_nothing_when_it_is_said_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cluster, network) = on_network(3, &[], folder.path());
    check(BOUND, async {
        let (sent, held) = recorded(&mut cluster, &network).await;
        let client = connect(&cluster.url()).await;
        until_left(&client).await;
        let before = state(&cluster, &client).await;
        let again: Vec<_> = sent.iter().map(|sent| (cluster.peer(sent.to), sent.bytes.clone())).collect();
        let count = again.len();
        let closed = replay(again, GREETING).await;
        assert!(closed < count, "the nodes have read nothing: {closed} of {count} connections were refused");
        assert_eq!(state(&cluster, &client).await, before);
        // To the wrong node: it reads nothing.
        let wrong = sent.iter().map(|sent| (cluster.peer((sent.to + 1) % 3), sent.bytes.clone()));
        assert_eq!(replay(wrong.collect(), BOUND / 2).await, count, "a node has read what was said to another one");
        assert_eq!(state(&cluster, &client).await, before);
        take_again_and_again(&cluster, "after", 20).await;
        for guard in held {
            release(&guard).await;
        }
        (0..3).for_each(|at| assert!(!cluster.has_ended(at), "{}", cluster.log(at)));
    });
}

#[test]
#[ignore = "long: several seconds"]
fn what_nodes_said_under_load_does_no_harm_when_it_is_said_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cluster, network) = on_network(3, &[], folder.path());
    check(BOUND, async {
        let after = under_load(&mut cluster, async |cluster| {
            for _ in 0..3 {
                take_again_and_again(cluster, "said", 20).await;
                let sent = network.sent().into_iter();
                replay(sent.map(|sent| (cluster.peer(sent.to), sent.bytes)).collect(), GREETING).await;
            }
        });
        assert!(after.await >= 100);
        (0..3).for_each(|at| assert!(!cluster.has_ended(at), "{}", cluster.log(at)));
    });
}

#[test]
fn what_nodes_said_with_tls_is_refused_when_it_is_said_again() {
    let folder = tempfile::tempdir().unwrap();
    drop(Credentials::new(folder.path()));
    let files = folder.path().display().to_string();
    let (mut cluster, network) = on_network(3, &[("SERVE_PEER_TLS", &files)], folder.path());
    check(BOUND, async {
        let (sent, _held) = recorded(&mut cluster, &network).await;
        let client = connect(&cluster.url()).await;
        until_left(&client).await;
        let before = state(&cluster, &client).await;
        let again: Vec<_> = sent.iter().map(|sent| (cluster.peer(sent.to), sent.bytes.clone())).collect();
        let count = again.len();
        assert!(count > 0, "nothing was sent");
        assert_eq!(replay(again, BOUND / 2).await, count, "a node has accepted a handshake of another one");
        for at in 0..3 {
            let log = cluster.log(at);
            assert!(log.contains("cannot decrypt peer's message"), "node {at} has refused no handshake: {log}");
        }
        assert_eq!(state(&cluster, &client).await, before);
        take_again_and_again(&cluster, "after", 20).await;
        (0..3).for_each(|at| assert!(!cluster.has_ended(at), "{}", cluster.log(at)));
    });
}
