//! Ports for servers of tests and experiments, of which several processes start some at a time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};

/// Below the ephemeral range, so that no outgoing connection takes a port before it is used, nor while its server restarts.
const PORTS: std::ops::Range<u16> = 10_000..30_000;
/// The number of ports that a process takes at a time. It listens to the first one, so that no other process takes the others.
const BLOCK: u16 = 250;

static TAKEN: Mutex<Blocks> = Mutex::new(Blocks::NONE);

/// The blocks of this process.
struct Blocks {
    /// Listens to the first port of each.
    first: Vec<TcpListener>,
    /// The number of ports that were handed out or were not free, with the first of each block.
    used: usize,
}

impl Blocks {
    const NONE: Blocks = Blocks { first: Vec::new(), used: 0 };

    fn free_port(&mut self) -> io::Result<SocketAddr> {
        for _ in PORTS {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.next()?));
            // Consul and its like listen to UDP too.
            if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
                return Ok(address);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Returns the next port of a block of this process. It may not be free.
    fn next(&mut self) -> io::Result<u16> {
        if self.used == self.first.len() * usize::from(BLOCK) {
            match free_block() {
                Some(first) => self.first.push(first),
                // There are no more. What was used first is most likely free again.
                None => self.used = 0,
            }
        }
        let (block, offset) = (self.used / usize::from(BLOCK), self.used % usize::from(BLOCK));
        self.used += 1;
        let first = self.first.get(block).ok_or(io::ErrorKind::AddrInUse)?;
        Ok(first.local_addr()?.port() + offset as u16)
    }
}

/// Listens to the first port of a block that no other process has. Begins at another block in each process, so that a port is not used
/// again at once.
fn free_block() -> Option<TcpListener> {
    let blocks = PORTS.len() / usize::from(BLOCK);
    let begin = std::process::id() as usize * 31 % blocks;
    (0..blocks).find_map(|step| {
        let first = PORTS.start + BLOCK * ((begin + step) % blocks) as u16;
        TcpListener::bind((Ipv4Addr::LOCALHOST, first)).ok()
    })
}

/// Returns a free port, which no other process gets from this function before this one ends.
///
/// # Errors
///
/// None is free.
pub fn free_port() -> io::Result<SocketAddr> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner).free_port()
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Blocks};

    #[test]
    fn processes_that_start_servers_at_once_get_different_ports() {
        let mut processes = [Blocks::NONE, Blocks::NONE, Blocks::NONE];
        let mut ports = Vec::new();
        for _ in 0..BLOCK * 2 {
            ports.extend(processes.iter_mut().map(|process| process.free_port().unwrap().port()));
        }
        let all = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), all);
    }
}
