//! Detects that a peer has closed or lost its connection, even while its bytes are not read.

use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;

/// How long a connection is silent before the first TCP keep-alive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// The number of probes.
const KEEPALIVE_PROBES: u32 = 3;
/// The time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// With this many unread bytes the receive buffer counts as full. Smaller than the buffer of any system.
const FULL_BYTES: u64 = 16 << 10;
/// How often the receive buffer is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Enables TCP keep-alive, which detects that a silent client's host has lost its power or its network.
pub(crate) fn enable_keepalive(stream: &TcpStream) {
    use rustix::net::sockopt;
    // Without it such a client is only detected later.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES);
}

/// Waits until the peer has closed its side, the connection was reset, or the receive buffer is full, so that a close
/// could not be detected.
pub(crate) async fn closed(stream: &TcpStream) {
    tokio::select! {
        () = read_closed(stream) => {}
        () = full(stream) => {}
    }
}

#[cfg(target_os = "linux")]
async fn read_closed(stream: &TcpStream) {
    // PRIORITY also reports that the peer has closed its side. Unlike READABLE, unread bytes do not make it ready.
    if stream.ready(Interest::PRIORITY).await.is_err() {
        std::future::pending().await
    }
}

#[cfg(not(target_os = "linux"))]
async fn read_closed(stream: &TcpStream) {
    reset(stream).await;
}

/// Waits until the receive buffer is full. The end of a connection comes after all bytes, and cannot arrive while the
/// buffer is full.
async fn full(stream: &TcpStream) {
    while rustix::io::ioctl_fionread(stream).unwrap_or(0) < FULL_BYTES {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until the connection was reset, or keep-alive has found that the peer's host is gone.
pub(crate) async fn reset(stream: &TcpStream) {
    if stream.ready(Interest::ERROR).await.is_err() {
        std::future::pending().await
    }
}
