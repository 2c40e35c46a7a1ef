//! `palisade fence http`: a reverse proxy that refuses requests with overtaken tokens.

mod keys;
mod listener;
mod write_timeout;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use http::request::Parts;
use palisade_fence::http::{FenceLayer, Forward, Limits, MemoryMarks, Scope, SqliteMarks};
use palisade_server::tls::{Tls, TlsFiles};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tower_layer::Layer;

use self::listener::Listener;
use crate::outcome::{self, Failure};
use crate::signals::Signals;
use crate::stores::postgres::Connector;
use crate::text::parse_time;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence http --lock orders --store sqlite:marks.db \\
    --upstream http://127.0.0.1:8080
  curl -X POST -H 'Fencing-Token: 34; seal' localhost:7422        # seal
  curl -H 'Fencing-Token: 34' localhost:7422/orders               # read
  curl -X PUT -H 'Fencing-Token: 34; seq=1' -d rope localhost:7422/orders

Exit codes:
  0   stopped by a signal
  64  the options cannot be used; the message says what to change
  69  it cannot listen on the address, or cannot reach the store of the marks";

/// The options of `palisade fence http`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("scope").required(true).args(["lock", "per_path", "per_lock"]))]
pub(crate) struct Options {
    /// Where to listen; port 0 is any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7422")]
    listen: SocketAddr,

    /// The service to protect, as in http://127.0.0.1:8080; only this proxy should be able to reach it
    #[arg(long, value_name = "URL")]
    upstream: String,

    /// The store of the marks: sqlite:FILE; postgres://… for several proxies; or memory:, which loses them at exit
    #[arg(long, value_name = "STORE")]
    store: String,

    /// The one lock that protects the whole service
    #[arg(long, value_name = "NAME")]
    lock: Option<String>,

    /// Each path is protected by the lock of its name: /orders/42 by orders/42
    #[arg(long)]
    per_path: bool,

    /// Clients name in the header the lock that protects the resource of their request
    #[arg(long)]
    per_lock: bool,

    /// A path that needs no token, such as /healthz
    #[arg(long, value_name = "PATH")]
    open: Vec<String>,

    /// Require signed tokens, verified with these keys: what `palisade serve --sign` publishes at /v1/keys, as a URL or a
    /// file
    ///
    /// Requests carry the signed token in `Fencing-Signature`. The keys are read again every minute.
    #[arg(long, value_name = "URL|FILE")]
    keys: Option<String>,

    /// The header in which a proxy in front of this one names the user: only that user's tokens are accepted
    #[arg(long, value_name = "NAME", requires = "keys")]
    user_header: Option<HeaderName>,

    /// How long the service may take between two parts of its reply, and a client between two parts of a body
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30s")]
    time_out: Duration,

    /// How long a resource refuses requests after a write that the service did not answer
    ///
    /// Choose a time after which the service cannot still be working on that write.
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    shut_for: Duration,

    /// The longest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    max_body: usize,

    /// The proxy's TLS certificate, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,

    /// The certificate's private key, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
}

/// Proxies until a signal stops it.
pub(crate) async fn run(options: &Options) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let misuse = |error: &dyn ToString| Failure::Misuse(error.to_string());
    let forward = Forward::to(&options.upstream, options.time_out, options.max_body);
    let forward = forward.map_err(|error| Failure::Misuse(format!("--upstream: {error}")))?;
    let tls = options.tls_files().map(|files| Tls::load(&files)).transpose().map_err(|error| misuse(&error))?;
    let mut layer = options.layer().await?;
    if let Some(source) = &options.keys {
        layer = layer.signed(keys::signatures(source, options.user_header.as_ref()).await?);
    }
    let cannot = |error| Failure::Unavailable(format!("cannot listen on {}: {error}", options.listen));
    let listener = TcpListener::bind(options.listen).await.map_err(cannot)?;
    let address = listener.local_addr()?;
    if let Some(warning) = options.warning(address.ip()) {
        outcome::say(&warning);
    }
    let (service, time_out) = (layer.layer(forward), options.time_out);
    let accept_loop = Listener { listener, tls: tls.map(|tls| tls.acceptor()), service, time_out };
    outcome::say(&format!("ready: http={address} upstream={}", options.upstream));
    let (stop, stopped) = oneshot::channel::<()>();
    let served = async {
        accept_loop.serve(async { drop(stopped.await) }).await;
        layer.drain().await;
    };
    let signalled = async {
        signals.stop_requested().await;
        let _ = stop.send(());
        signals.stop_requested().await
    };
    tokio::select! {
        () = served => Ok(()),
        end = signalled => Err(Failure::Exit(end.exit_code())),
    }
}

impl Options {
    async fn layer(&self) -> Result<FenceLayer, Failure> {
        let scope = match &self.lock {
            Some(name) => Scope::one(name).map_err(|error| Failure::Misuse(error.to_string()))?,
            None if self.per_path => Scope::per_path(),
            None => Scope::per_lock(),
        };
        let open = self.open.clone();
        let scope = scope.except(move |parts: &Parts| open.iter().any(|path| path == parts.uri.path()));
        let limits = Limits {
            request_bytes: self.max_body,
            request_time: self.time_out,
            quarantine: self.shut_for,
            ..Limits::default()
        };
        match self.store.split_once(':') {
            Some(("memory", "")) => Ok(FenceLayer::with_limits(scope, MemoryMarks::default(), limits)),
            Some(("sqlite", path)) if !path.is_empty() => {
                let marks = SqliteMarks::open(path).map_err(|error| Failure::Unavailable(error.to_string()))?;
                Ok(FenceLayer::with_limits(scope, marks, limits))
            }
            Some(("postgres" | "postgresql", _)) => {
                let marks = Connector::parse(&self.store)?.marks().await?;
                Ok(FenceLayer::with_limits(scope, marks, limits))
            }
            // Not quoted: it may contain a secret.
            _ => Err(Failure::Misuse("--store is sqlite:FILE, postgres://host/database or memory:".to_owned())),
        }
    }

    /// Warns if the proxy listens on an address that other hosts reach, without TLS or without signed tokens.
    fn warning(&self, listens_on: IpAddr) -> Option<String> {
        if listens_on.is_loopback() {
            return None;
        }
        let missing = match (&self.tls_certificate, &self.keys) {
            (Some(_), Some(_)) => return None,
            (None, Some(_)) => "requests and tokens are not encrypted: add --tls-certificate and --tls-key",
            (Some(_), None) => "every client that reaches it can make tokens up: add --keys",
            (None, None) => {
                "requests are not encrypted, and every client that reaches it can make tokens up: add --tls-certificate, \
                 --tls-key and --keys"
            }
        };
        Some(format!("warning: it listens on {listens_on}, beyond this host; {missing}"))
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls_certificate.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { certificate, key, client_ca: None, client_optional: false, user_from: None })
    }
}
