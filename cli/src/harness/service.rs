//! Nodes of the Palisade service.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::Leadership;

const TIMEOUT: Duration = Duration::from_millis(200);

/// Asks the node at this address, which has no users and no TLS, whether it leads.
///
/// # Errors
///
/// It does not answer in time, or knows no leader.
pub fn leadership(address: SocketAddr) -> io::Result<Leadership> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n")?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let text = String::from_utf8_lossy(&answer);
        // A node that does not lead relays the question, and the leader answers.
        if let Some(relayed) = number(&text, "relayed") {
            return Ok(Leadership {
                is_leader: text.contains("master") && relayed == 0,
                term: number(&text, "term").unwrap_or_default(),
            });
        }
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buffer[..read]);
    }
}

/// Returns the number in the complete field of this name.
fn number(answer: &str, name: &str) -> Option<u64> {
    let (_, rest) = answer.split_once(&format!("\r\n{name}\r\n:"))?;
    rest.split_once("\r\n")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_numbers_are_read() {
        let answer = "$4\r\nterm\r\n:12\r\n$7\r\nrelayed\r\n:0\r";
        assert_eq!((number(answer, "term"), number(answer, "relayed")), (Some(12), None));
        assert_eq!(number(&format!("{answer}\n"), "relayed"), Some(0));
    }
}
