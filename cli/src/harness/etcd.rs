//! Members of etcd.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::Leadership;

const TIMEOUT: Duration = Duration::from_secs(1);

/// The addresses of a member for the others.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress {
    /// Where it listens for them.
    pub listens: SocketAddr,
    /// Where they reach it.
    pub reached: SocketAddr,
}

/// Returns the options of a member, except those for clients. `cluster` names all members: `one=http://127.0.0.1:1,two=…`.
pub fn member_options(name: &str, data: &Path, peer: PeerAddress, cluster: &str) -> Vec<String> {
    let (data, listens, reached) =
        (data.to_string_lossy(), format!("http://{}", peer.listens), format!("http://{}", peer.reached));
    let options = [
        ["--data-dir", &data],
        ["--name", name],
        ["--listen-peer-urls", &listens],
        ["--initial-advertise-peer-urls", &reached],
        ["--initial-cluster", cluster],
    ];
    options.concat().into_iter().map(str::to_owned).collect()
}

/// Returns the options of a member that serves clients at this address, without TLS.
pub fn client_options(address: SocketAddr) -> [String; 4] {
    let endpoint = format!("http://{address}");
    ["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint].map(str::to_owned)
}

/// Asks the member that serves clients at this address whether it leads.
///
/// # Errors
///
/// It does not answer in time, or knows no leader.
pub fn leadership(address: SocketAddr) -> io::Result<Leadership> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = "POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    read_status(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_status(answer: &str) -> Option<Leadership> {
    let field = |name: &str| Some(answer.split_once(&format!("\"{name}\":\""))?.1.split_once('"')?.0);
    let (member, leader) = (field("member_id")?, field("leader")?);
    Some(Leadership { is_leader: member == leader, term: field("raftTerm")?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_leads_if_it_is_the_leader_that_it_names() {
        let status = |leader: &str| {
            format!(
                "HTTP/1.0 200 OK\r\n\r\n{{\"header\":{{\"cluster_id\":\"1\",\"member_id\":\"23\",\"raft_term\":\"4\"}},\
                 \"leader\":\"{leader}\",\"raftIndex\":\"8\",\"raftTerm\":\"4\"}}"
            )
        };
        assert_eq!(read_status(&status("23")), Some(Leadership { is_leader: true, term: 4 }));
        assert_eq!(read_status(&status("2")), Some(Leadership { is_leader: false, term: 4 }));
        assert_eq!(read_status("HTTP/1.0 503 Service Unavailable\r\n\r\n"), None);
    }
}
