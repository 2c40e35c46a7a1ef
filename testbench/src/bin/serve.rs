//! The service as a process: `serve DIRECTORY ADDRESS`. Prints the address it listens on, then serves until SIGTERM.
//! Port 0 is any free one. With `SERVE_TLS=FOLDER` connections are encrypted with `server.pem` and `server.key` of that
//! folder; if it has `clients.pem` too, clients must have certificates of that authority. With
//! `SERVE_USERS="NAME HASH VERB PREFIX;…"` there are users, each with one right; a prefix may be empty. With `SERVE_SIGN`
//! tokens are signed. With `SERVE_CLUSTER="NAME=ADDRESS;…"` and `SERVE_NODE=NAME` it is a node of a cluster, which listens at `SERVE_PEERS`; with `SERVE_PEER_TLS=FOLDER`
//! the nodes encrypt their connections with the files in that folder. `SERVE_LOG_VERSION` is the version of the log that it says it understands. `SERVE_COMPACT_AFTER` is the bytes of the log between two
//! snapshots. With `SERVE_HTTP=ADDRESS` it offers HTTP there, to at most `SERVE_HTTP_CONNECTIONS` clients at once. With `SERVE_USER_FROM=dns`
//! the first DNS name of a client's certificate is its user. With `SERVE_DISK_SWITCH=FILE` its disk fails while that file says so.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::env;
use std::error::Error;
use std::io::Write;
use std::path::Path;

use palisade_server::access::{Rule, User, Users};
use palisade_server::sign::Signer;
use palisade_server::storage::disk::RealDisk;
use palisade_server::tls::{Tls, TlsFiles, UserFrom};
use palisade_server::{
    ClusterConfig, Config, Founding, Http, Listeners, PeerTls, PeerTlsFiles, serve_on, serve_until,
};
use palisade_testbench::switched_disk::SwitchedDisk;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> Result<(), Box<dyn Error>> {
    // With the audit log, and with who leads.
    let filter: Targets = "warn,palisade::audit=info,palisade_server::node=info".parse()?;
    let log = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(log).init();
    let mut arguments = env::args().skip(1);
    let (Some(directory), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve DIRECTORY ADDRESS".into());
    };
    let tls = env::var("SERVE_TLS").ok().map(|folder| tls(Path::new(&folder))).transpose()?;
    let users = env::var("SERVE_USERS").ok().map(|users| read_users(&users)).transpose()?;
    let signer = env::var_os("SERVE_SIGN").map(|_| Signer::new(Path::new(&directory)));
    let cluster = env::var("SERVE_NODE").ok().map(cluster).transpose()?;
    let compact_after = env::var("SERVE_COMPACT_AFTER").ok().map(|bytes| bytes.parse()).transpose()?;
    let log_version = env::var("SERVE_LOG_VERSION").ok().map(|version| version.parse()).transpose()?;
    let config = Config { tls, users, signer, cluster, compact_after, log_version, ..Config::new(directory) };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let peers = match config.cluster.as_ref() {
            Some(_) => Some(TcpListener::bind(env::var("SERVE_PEERS")?).await?),
            None => None,
        };
        let resp = TcpListener::bind(address).await?;
        let http = env::var("SERVE_HTTP").ok().map(|address| http(&address)).transpose()?;
        println!("{}", resp.local_addr()?);
        std::io::stdout().flush()?;
        let listeners = Listeners { resp, http, peers };
        let mut terminated = signal(SignalKind::terminate())?;
        let stop = async { terminated.recv().await.unwrap_or_default() };
        let Some(switch) = env::var_os("SERVE_DISK_SWITCH") else {
            return Ok(serve_until(config, listeners, || (), stop).await?);
        };
        let disk = SwitchedDisk::new(RealDisk::open_alone(config.data_dir.clone(), true)?, switch.into());
        Ok(serve_on(disk, config, listeners, || (), stop).await?)
    })
}

fn http(address: &str) -> Result<Http, Box<dyn Error>> {
    let mut http = Http::new(std::net::TcpListener::bind(address)?);
    if let Ok(most) = env::var("SERVE_HTTP_CONNECTIONS") {
        http.bounds.connections = most.parse()?;
    }
    Ok(http)
}

fn tls(folder: &Path) -> Result<Tls, Box<dyn Error>> {
    let client_ca = Some(folder.join("clients.pem")).filter(|file| file.exists());
    Ok(Tls::load(&TlsFiles {
        certificate: folder.join("server.pem"),
        key: folder.join("server.key"),
        client_ca,
        client_optional: false,
        user_from: env::var_os("SERVE_USER_FROM").map(|_| UserFrom::Dns),
    })?)
}

fn cluster(name: String) -> Result<ClusterConfig, Box<dyn Error>> {
    let founders = env::var("SERVE_CLUSTER")?;
    let founders = founders.split(';').filter_map(|node| node.split_once('='));
    let founders = founders.map(|(name, address)| (name.to_owned(), address.to_owned())).collect();
    let tls = env::var("SERVE_PEER_TLS").ok().map(|folder| {
        let file = |name: &str| Path::new(&folder).join(name);
        let (certificate, key) = (file("server.pem"), file("server.key"));
        PeerTls::load(&PeerTlsFiles { certificate, key, ca: file("ca.pem") })
    });
    Ok(ClusterConfig { founding: Founding { name, founders }, tls: tls.transpose()? })
}

fn read_users(users: &str) -> Result<Users, Box<dyn Error>> {
    let read = |user: &str| -> Result<User, Box<dyn Error>> {
        let [name, hash, verb, prefix] = user.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("'{user}' is not NAME HASH VERB PREFIX").into());
        };
        let rule = Rule { verbs: vec![verb.parse()?], prefix: prefix.to_owned() };
        Ok(User::new(name, Some(hash.parse()?), vec![rule])?)
    };
    let users: Result<Vec<_>, _> = users.split(';').map(read).collect();
    Ok(Users::new(users?)?)
}
