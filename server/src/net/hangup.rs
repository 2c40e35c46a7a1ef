//! Notices that the other end of a connection has gone, whether or not there is room to read what it has sent.

use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;

/// How long a connection is silent before the first keep-alive probe.
const PROBED_AFTER: Duration = Duration::from_secs(30);
/// The number of probes.
const PROBES: u32 = 3;
/// The time between two probes.
const BETWEEN_PROBES: Duration = Duration::from_secs(10);

/// Less than any system has room for.
const MUCH: u64 = 16 << 10;
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// Has the system find out whether a silent client's host is still there: one that has lost its power says nothing.
pub(crate) fn probe(stream: &TcpStream) {
    use rustix::net::sockopt;
    // Where it cannot be set, such a client is noticed later.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, PROBED_AFTER);
    let _ = sockopt::set_tcp_keepintvl(stream, BETWEEN_PROBES);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
}

/// Waits until the other end has closed its side, or the connection was reset, or so much waits to be read that its end
/// could not arrive.
pub(crate) async fn closed(stream: &TcpStream) {
    tokio::select! {
        () = read_closed(stream) => {}
        () = full(stream) => {}
    }
}

#[cfg(target_os = "linux")]
async fn read_closed(stream: &TcpStream) {
    // Urgent bytes are not subscribed to: what is left of this interest is that nothing more will come. Unlike the
    // interest in bytes it is not fulfilled by those that wait to be read.
    if stream.ready(Interest::PRIORITY).await.is_err() {
        std::future::pending().await
    }
}

#[cfg(not(target_os = "linux"))]
async fn read_closed(stream: &TcpStream) {
    reset(stream).await;
}

/// Waits until many bytes wait to be read. The end of a connection comes behind all of them, and would wait at the other
/// host once there is no room for more.
async fn full(stream: &TcpStream) {
    while rustix::io::ioctl_fionread(stream).unwrap_or(0) < MUCH {
        tokio::time::sleep(LOOKED_AT_EVERY).await;
    }
}

/// Waits until the connection was reset, or the system has found that the other host is gone.
pub(crate) async fn reset(stream: &TcpStream) {
    if stream.ready(Interest::ERROR).await.is_err() {
        std::future::pending().await
    }
}
