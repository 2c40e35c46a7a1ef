//! `palisade serve`: runs the lock service until a signal stops it.

mod check;
mod cluster;
mod file;
mod keys;
mod notify;
mod plan;
mod reload;
mod user;

use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use palisade_server::storage::{StorageError, user_of};
use palisade_server::{Http, Listeners, ServiceError, Token, serve_until};
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use self::notify::SystemdNotifier;
use self::plan::Plan;
use self::reload::Reload;
use crate::outcome::{self, Failure};
use crate::signals::Signals;
use crate::text::{LogLevels, parse_token};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade serve                                  For this host only
  palisade serve --config palisade.toml           As a file says
  palisade serve --config palisade.toml --check   Print the settings and exit
  palisade serve --new-user ci                    Make a secret for a user
  palisade serve --sign                           Sign tokens
  palisade serve --node a --cluster a=host1:7422,b=host2:7422,c=host3:7422
                                                  One of three nodes
  palisade serve --node d --join --peers host4:7422
                                                  A node to be added

Exit codes:
  0   stopped by a signal
  64  the options cannot be used; the message says what to change
  69  an address, a node's host name or the directory cannot be used
  74  reading or writing its files failed: nothing is answered after that";

/// Refusals go to the audit log even without `-v`.
pub(crate) const LOG_LEVELS: LogLevels = LogLevels { default: "warn,palisade::audit=info", verbose: "info" };

/// The options of `palisade serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The directory of its files [default: /var/lib/palisade/service for root, ~/.local/state/palisade/service for others]
    #[arg(long, value_name = "DIR", env = "PALISADE_DATA_DIR", hide_env_values = true)]
    data_dir: Option<PathBuf>,

    /// Where to listen for clients; port 0 is any free one [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDRESS", env = "PALISADE_RESP", hide_env_values = true)]
    resp: Option<String>,

    /// Where to listen for HTTP, or `off` [default: 127.0.0.1:7421]
    #[arg(long, value_name = "ADDRESS", env = "PALISADE_HTTP", hide_env_values = true)]
    http: Option<String>,

    /// The service's certificate, in PEM form, with the chain to its authority
    #[arg(long, value_name = "FILE", env = "PALISADE_TLS_CERTIFICATE", hide_env_values = true)]
    tls_certificate: Option<PathBuf>,

    /// The certificate's private key, in PEM form
    #[arg(long, value_name = "FILE", env = "PALISADE_TLS_KEY", hide_env_values = true)]
    tls_key: Option<PathBuf>,

    /// The authority of client certificates, in PEM form: each client then needs one
    #[arg(long, value_name = "FILE", env = "PALISADE_TLS_CLIENT_CA", hide_env_values = true)]
    tls_client_ca: Option<PathBuf>,

    /// Allow other hosts to connect even without TLS and users: any client that reaches it can then take every lock
    #[arg(long)]
    insecure: bool,

    /// Sign tokens for their holders (LOCK SIGN), and publish the keys (GET /v1/keys)
    #[arg(long)]
    sign: bool,

    /// Give only tokens above N, and start even if the end of the log is missing; not for a node of a cluster
    #[arg(long, value_name = "N", value_parser = parse_token)]
    raise_tokens_above: Option<Token>,

    /// The name of this node in a cluster
    #[arg(long, value_name = "NAME", env = "PALISADE_NODE", hide_env_values = true)]
    node: Option<String>,

    /// The nodes that found a cluster, and where they listen for each other: a=host1:7422,b=host2:7422,c=host3:7422
    #[arg(long, value_name = "NODES", env = "PALISADE_CLUSTER", hide_env_values = true)]
    cluster: Option<String>,

    /// Join a cluster: start with an empty directory, and wait until `palisade cluster add` adds this node
    #[arg(long, conflicts_with = "cluster")]
    join: bool,

    /// Where to listen for the other nodes, if not on the address in --cluster
    #[arg(long, value_name = "ADDRESS", env = "PALISADE_PEERS", hide_env_values = true)]
    peers: Option<String>,

    /// This node's certificate for the other nodes, in PEM form
    #[arg(long, value_name = "FILE", env = "PALISADE_PEER_CERTIFICATE", hide_env_values = true)]
    peer_certificate: Option<PathBuf>,

    /// The private key of that certificate, in PEM form
    #[arg(long, value_name = "FILE", env = "PALISADE_PEER_KEY", hide_env_values = true)]
    peer_key: Option<PathBuf>,

    /// The authority of all nodes' certificates, in PEM form
    #[arg(long, value_name = "FILE", env = "PALISADE_PEER_CA", hide_env_values = true)]
    peer_ca: Option<PathBuf>,

    /// Check the settings and the files that they name, print them, and start nothing; the data directory is not read
    #[arg(long)]
    check: bool,

    /// Make a secret for a user, print it once, and print the lines for the configuration
    #[arg(long, value_name = "NAME", conflicts_with = "check")]
    new_user: Option<String>,

    /// Make a new key for signing, and print its name
    #[arg(long, conflicts_with_all = ["check", "new_user"])]
    new_key: bool,

    /// Remove a key: tokens that it has signed are no longer valid
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["check", "new_user", "new_key"])]
    retire_key: Option<String>,
}

/// Runs the service, or checks its settings, or makes a user or a key.
pub(crate) fn run(options: &Options, config: Option<&Path>) -> Result<(), Failure> {
    if let Some(name) = &options.new_user {
        return user::make(name);
    }
    let plan = Plan::make(options, config)?;
    if options.new_key {
        return keys::make(&plan);
    }
    if let Some(kid) = &options.retire_key {
        return keys::retire(&plan, kid);
    }
    if options.check {
        return check::check(&plan);
    }
    let tasks = LocalSet::new();
    super::block_on(tasks.run_until(serve(plan, options, config)))
}

async fn serve(plan: Plan, options: &Options, config: Option<&Path>) -> Result<(), Failure> {
    let mut signals = Signals::listen()?.except(Signal::HUP);
    // Without a handler, SIGXFSZ (file size limit) would kill the process. With one, the write fails and is reported.
    let _file_too_large = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
    let data_dir = &plan.config.data_dir;
    let resp = listen(plan.resp, "--resp", data_dir).await?;
    let peers = match plan.peers {
        Some(address) => Some(listen(address, "--peers, or the node's own address in --cluster", data_dir).await?),
        None => None,
    };
    let http = match plan.http {
        Some(address) => {
            let http = Http::new(listen(address, "--http", data_dir).await?.into_std()?);
            Some(Http { hosts: plan.http_hosts.clone(), ..http })
        }
        None => None,
    };
    raise_file_limit(plan.config.bounds.connections + http.as_ref().map_or(0, |http| http.bounds.connections));
    let reload = Reload::new(options, config, &plan.config)?;
    let notifier = SystemdNotifier::from_environment();
    let http_address = http.as_ref().map(|http| http.listener.local_addr()).transpose()?;
    let ready_line = plan.ready_line(resp.local_addr()?, http_address);
    let (stop, stopped) = oneshot::channel::<()>();
    let has_started = Cell::new(false);
    let ready = || {
        has_started.set(true);
        outcome::say(&ready_line);
        notifier.ready();
    };
    let service = serve_until(plan.config, Listeners { resp, http, peers }, ready, async { drop(stopped.await) });
    let signalled = async {
        signals.stop_requested().await;
        notifier.stopping();
        let _ = stop.send(());
        signals.stop_requested().await
    };
    tokio::select! {
        served = service => served.map_err(|error| failure(error, has_started.get())),
        () = reload.run() => Ok(()),
        end = signalled => Err(Failure::Exit(end.exit_code())),
    }
}

async fn listen(address: SocketAddr, option: &str, data_dir: &Path) -> Result<TcpListener, Failure> {
    let cannot = |error: io::Error| {
        let user = match error.kind() {
            io::ErrorKind::AddrInUse => user_of(data_dir).map_or_else(
                || ". Another process listens there; stop it, or choose another port".to_owned(),
                |pid| {
                    let directory = data_dir.display();
                    format!(". Process {pid} uses the directory {directory} already: this service may be running")
                },
            ),
            _ => String::new(),
        };
        Failure::Unavailable(format!("cannot listen on {address} ({option}): {error}{user}"))
    };
    TcpListener::bind(address).await.map_err(cannot)
}

fn failure(error: ServiceError, has_started: bool) -> Failure {
    match error {
        ServiceError::Directory(error @ StorageError::FilesRemoved { .. }) => Failure::IoMessage(not_started(&error)),
        ServiceError::Directory(error @ StorageError::UsedByEmbedded { .. }) => Failure::Misuse(not_started(&error)),
        ServiceError::Directory(error) => Failure::Unavailable(error.to_string()),
        ServiceError::Keys(error) => Failure::Unavailable(format!("it cannot sign: {error}")),
        ServiceError::Refused(refusal) => Failure::Misuse(not_started(&refusal)),
        ServiceError::OtherNode(why) => Failure::Misuse(not_started(&why)),
        ServiceError::Removed => Failure::Misuse(format!("the service has stopped: {error}")),
        other if !has_started => Failure::IoMessage(not_started(&other)),
        other => Failure::IoMessage(format!("the service has stopped, and answers nothing more: {other}")),
    }
}

fn not_started(why: &dyn Display) -> String {
    format!("the service does not start: {why}")
}

/// Raises the limit on open files, because each connection needs a file descriptor.
fn raise_file_limit(connections: usize) {
    // 64 for the listeners, the log and its snapshots.
    let wanted = connections as u64 + 64;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        let raised = setrlimit(Resource::Nofile, limit);
        if raised.is_err() || limit.current < Some(wanted) {
            let open = limit.current.unwrap_or(wanted);
            tracing::warn!(open, connections, "this process may not open a file for each connection");
        }
    }
}
