//! Round trips of a call.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{Fixture, LONG_TTL, check, take};

/// A relay that counts how often the client sends after a reply.
#[derive(Default)]
struct Turns {
    is_clients: AtomicBool,
    turns: AtomicU64,
}

impl Turns {
    async fn relay(self: Arc<Turns>, server: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.expect("it listens");
                for stream in [&client, &server] {
                    stream.set_nodelay(true).expect("no delay");
                }
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                tokio::spawn(self.clone().pass(from_client, to_server, true));
                tokio::spawn(self.clone().pass(from_server, to_client, false));
            }
        });
        address
    }

    async fn pass(
        self: Arc<Turns>,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
        is_clients: bool,
    ) {
        let mut bytes = [0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes).await {
            if self.is_clients.swap(is_clients, Ordering::SeqCst) != is_clients && is_clients {
                self.turns.fetch_add(1, Ordering::SeqCst);
            }
            if to.write_all(&bytes[..read]).await.is_err() {
                return;
            }
        }
    }
}

#[test]
fn an_acquire_is_one_round_trip_and_so_is_a_release() {
    let fixture = Fixture::new();
    check(async {
        let turns = Arc::new(Turns::default());
        let server = fixture.url().split(['@', '/']).nth(3).expect("an address").parse().expect("an address");
        let relay = turns.clone().relay(server).await;
        let alice = palisade::Options::new().ttl(LONG_TTL).connect(&fixture.url_at(relay)).await.expect("a client");
        // Background work of the client may come in between, so the minimum is taken.
        let (mut to_acquire, mut to_release) = (u64::MAX, u64::MAX);
        for round in 0..20 {
            let before = turns.turns.load(Ordering::SeqCst);
            let guard = take(&alice, &format!("lock/{}", round % 3)).await;
            let between = turns.turns.load(Ordering::SeqCst);
            guard.release().await.expect("it is held");
            let after = turns.turns.load(Ordering::SeqCst);
            (to_acquire, to_release) = (to_acquire.min(between - before), to_release.min(after - between));
        }
        assert_eq!((to_acquire, to_release), (1, 1));
    });
}
