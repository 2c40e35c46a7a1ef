use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a free port, below the ephemeral range, so that no outgoing connection takes it before it is used, nor while its
/// server restarts.
///
/// # Errors
///
/// None is free.
pub fn free_port() -> io::Result<SocketAddr> {
    const PORTS: std::ops::Range<u32> = 10_000..30_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(31);
    let mut ports = PORTS.map(|_| {
        let step = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32;
        SocketAddr::from((Ipv4Addr::LOCALHOST, (PORTS.start + step) as u16))
    });
    // Consul and its like listen to UDP too.
    let free = ports.find(|port| TcpListener::bind(port).is_ok() && UdpSocket::bind(port).is_ok());
    free.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}
