//! How the service takes part in a cluster, from options and file.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use palisade_server::storage::disk::RealDisk;
use palisade_server::storage::{Member, read_identity};
use palisade_server::{ClusterConfig, Founding, PeerTls, PeerTlsFiles};

use super::{Options, file};
use crate::outcome::Failure;
use crate::text::plain;

const EXPECTED: &str = "expected, for example, --node a --cluster a=host1:7422,b=host2:7422,c=host3:7422";

/// Returns where to listen for the other nodes, and how to become one of them; `None` for a service of one node. A directory that
/// belongs to a node needs no options for that.
pub(super) fn plan(
    options: &Options,
    cluster: &file::Cluster,
    base: &Path,
    data_dir: &Path,
) -> Result<Option<(SocketAddr, ClusterConfig)>, Failure> {
    let known = owner(data_dir)?;
    let name = options.node.clone().or_else(|| cluster.node.clone()).or(known.as_ref().map(|node| node.name.clone()));
    let listen = options.peers.as_ref().or(cluster.listen.as_ref());
    let Some(name) = name else {
        let is_part = !cluster.nodes.is_empty() || listen.is_some() || options.cluster.is_some() || options.join;
        let why = "this node has no name in its cluster (--node, or serve.cluster.node)";
        return if is_part { Err(misuse(why)) } else { Ok(None) };
    };
    check_name(&name)?;
    let founders = match &options.cluster {
        Some(text) => parse(text)?,
        None if options.join => BTreeMap::new(),
        None => cluster.nodes.clone(),
    };
    for (name, address) in &founders {
        check_name(name)?;
        Member::check_address(address).map_err(|why| misuse(format!("'{}' {why}; {EXPECTED}", plain(address))))?;
    }
    let mut addresses: Vec<_> = founders.values().collect();
    addresses.sort_unstable();
    if let Some(pair) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(misuse(format!("two nodes have the address '{}'", plain(pair[0]))));
    }
    // Once it is a member, its address is the one that the others know.
    let own = known.map(|node| node.address).or_else(|| founders.get(&name).cloned());
    let Some(listen) = listen.or(own.as_ref()) else {
        let shown = plain(&name);
        return Err(misuse(match founders.is_empty() {
            true if options.join => format!(
                "--join needs --peers ADDRESS (or serve.cluster.listen): where node '{shown}' listens for the others"
            ),
            true => format!("node '{shown}' is not told how to take part in a cluster; {EXPECTED}, or --join"),
            false => format!("the nodes of the cluster do not include '{shown}', this node; {EXPECTED}"),
        }));
    };
    if !founders.is_empty() && !founders.contains_key(&name) {
        let shown = plain(&name);
        return Err(misuse(format!("the nodes of the cluster do not include '{shown}', this node; {EXPECTED}")));
    }
    let listen = resolve(listen)?;
    let tls = tls(options, cluster, base)?;
    if tls.is_none() {
        let mut exposed = (!listen.ip().is_loopback()).then(|| listen.to_string());
        for address in founders.values().chain(own.as_ref()) {
            if exposed.is_none() && !resolve(address)?.ip().is_loopback() {
                exposed = Some(address.clone());
            }
        }
        if let Some(address) = exposed {
            return Err(misuse(format!(
                "'{}' is on another host, and the nodes of a cluster trust each other with every lock: give each a \
                 certificate (--peer-certificate, --peer-key, --peer-ca; `palisade cluster keys` makes them)",
                plain(&address)
            )));
        }
    }
    Ok(Some((listen, ClusterConfig { founding: Founding { name, founders }, tls })))
}

/// Returns the node that a directory belongs to, if it is one of a cluster.
fn owner(data_dir: &Path) -> Result<Option<Member>, Failure> {
    if !data_dir.join("identity").exists() {
        return Ok(None);
    }
    let disk = RealDisk::open(data_dir.to_owned())?;
    let identity = read_identity(&disk).map_err(|_| {
        Failure::IoMessage(format!(
            "the service does not start: {} cannot be read. It says which node of which cluster the directory belongs to. A node of a \
             cluster is replaced: palisade cluster remove NAME, then an empty directory and palisade cluster add. For a service of one \
             node, put the file back from any copy",
            data_dir.join("identity").display()
        ))
    })?;
    Ok(identity.and_then(|identity| identity.node))
}

fn check_name(name: &str) -> Result<(), Failure> {
    Member::check_name(name).map_err(|why| misuse(format!("'{}' {why}", plain(name))))
}

fn misuse(message: impl Into<String>) -> Failure {
    Failure::Misuse(message.into())
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, Failure> {
    let bad = |part: &str| misuse(format!("'{}' is not NAME=HOST:PORT; {EXPECTED}", plain(part)));
    let mut nodes = BTreeMap::new();
    for part in text.split(',') {
        let (name, address) = part.trim().split_once('=').ok_or_else(|| bad(part))?;
        if nodes.insert(name.to_owned(), address.to_owned()).is_some() {
            return Err(misuse(format!("two nodes are called '{}'", plain(name))));
        }
    }
    Ok(nodes)
}

/// Looks up a node's address. The name server may answer later, so a failure is worth another attempt.
fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    let cannot = |why: String| {
        Failure::Unavailable(format!("the address '{}' of a node cannot be looked up: {why}", plain(address)))
    };
    let mut found = address.to_socket_addrs().map_err(|error| cannot(error.to_string()))?;
    found.next().ok_or_else(|| cannot("it has no address".to_owned()))
}

fn tls(options: &Options, cluster: &file::Cluster, base: &Path) -> Result<Option<PeerTls>, Failure> {
    let either = |option: &Option<PathBuf>, in_file: &Option<PathBuf>| {
        option.clone().or_else(|| in_file.as_ref().map(|path| base.join(path)))
    };
    let certificate = either(&options.peer_certificate, &cluster.certificate);
    let (key, ca) = (either(&options.peer_key, &cluster.key), either(&options.peer_ca, &cluster.ca));
    match (certificate, key, ca) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), Some(ca)) => {
            let files = PeerTlsFiles { certificate, key, ca };
            PeerTls::load(&files).map(Some).map_err(|why| misuse(why.to_string()))
        }
        _ => Err(misuse(
            "the nodes need a certificate, its key and their authority (--peer-certificate, --peer-key, --peer-ca)",
        )),
    }
}
