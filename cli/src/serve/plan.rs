//! The service's configuration, from options, environment and file. Refuses contradictions, and ports that are open to
//! other hosts without TLS and users.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{env, io};

use palisade_server::access::{BadUser, Rule, User, Users};
use palisade_server::sign::Signer;
use palisade_server::tls::{Tls, TlsFiles, UserFrom};
use palisade_server::{Bounds, Config, Limits, LockName};

use super::file::{self, ClientCertificates, File, Serve};
use super::{Options, cluster};
use crate::outcome::Failure;
use crate::settings::configuration;
use crate::text::plain;

const RESP: &str = "127.0.0.1:7420";
const HTTP: &str = "127.0.0.1:7421";

/// The checked configuration of the service.
pub(super) struct Plan {
    pub(super) config_file: Option<PathBuf>,
    pub(super) resp: SocketAddr,
    pub(super) http: Option<SocketAddr>,
    pub(super) http_hosts: Vec<String>,
    /// Where it listens for the other nodes of its cluster.
    pub(super) peers: Option<SocketAddr>,
    pub(super) tls_files: Option<TlsFiles>,
    pub(super) user_names: Vec<String>,
    pub(super) config: Config,
}

fn misuse(message: impl Into<String>) -> Failure {
    Failure::Misuse(message.into())
}

impl Plan {
    pub(super) fn make(options: &Options, named: Option<&Path>) -> Result<Plan, Failure> {
        let (config_file, File { serve, .. }) = configuration::<File>(named)?;
        let base = config_file.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
        let resp = options.resp.as_deref().or(serve.resp.as_deref()).unwrap_or(RESP);
        let http = options.http.as_deref().or(serve.http.as_deref()).unwrap_or(HTTP);
        let resp = address("resp", resp)?;
        let http = match http {
            "off" => None,
            text => Some(address("http", text)?),
        };
        let in_file = serve.data_dir.as_ref().map(|path| base.join(path));
        let data_dir = match options.data_dir.clone().or(in_file) {
            Some(path) => path,
            None => default_directory()?,
        };
        let tls_files = tls_files(options, &serve.tls, &base)?;
        let users = users(&serve)?;
        let user_names = serve.users.iter().map(|user| user.name.clone()).collect();
        let tls = tls_files.as_ref().map(Tls::load).transpose().map_err(|why| misuse(why.to_string()))?;
        let limits = limits(&serve)?;
        let bounds = bounds(&serve, &limits)?;
        let signer = (options.sign || serve.sign).then(|| Signer::new(&data_dir));
        let raise_tokens_above = options.raise_tokens_above;
        let (peers, cluster) = cluster::plan(options, &serve.cluster, &base, &data_dir)?.unzip();
        if let (Some(above), Some(_)) = (raise_tokens_above, &cluster) {
            return Err(misuse(format!(
                "--raise-tokens-above is for a service of one node, and this is a node of a cluster, whose nodes count tokens \
                 together. Start it without that option, and use `palisade tokens raise --above {above}` once a node leads"
            )));
        }
        let limits = Some(limits);
        let config =
            Config { limits, bounds, users, tls, signer, raise_tokens_above, cluster, ..Config::new(data_dir) };
        let http_hosts = serve.http_hosts.clone();
        let plan = Plan { config_file, resp, http, http_hosts, peers, tls_files, user_names, config };
        plan.check_ports()?;
        plan.check_users()?;
        if !(options.insecure || serve.insecure) {
            plan.check_exposure()?;
        }
        Ok(plan)
    }

    /// Returns the line that announces that the service is ready. Programs parse it.
    pub(super) fn ready_line(&self, resp: SocketAddr, http: Option<SocketAddr>) -> String {
        let http = http.map(|http| format!(" http={http}")).unwrap_or_default();
        format!("ready: resp={resp}{http} data_dir={}", self.config.data_dir.display())
    }

    /// Refuses one address for two purposes.
    fn check_ports(&self) -> Result<(), Failure> {
        let all = [("--resp", Some(self.resp)), ("--http", self.http), ("the other nodes (--peers)", self.peers)];
        let used: Vec<_> = all.iter().filter_map(|(name, address)| Some((name, (*address)?))).collect();
        for (at, (name, address)) in used.iter().enumerate().filter(|(_, (_, address))| address.port() != 0) {
            if let Some((other, _)) = used[..at].iter().find(|(_, other)| other == address) {
                return Err(misuse(format!(
                    "{address} is the address for both {other} and {name}; choose another port"
                )));
            }
        }
        Ok(())
    }

    fn check_users(&self) -> Result<(), Failure> {
        let Some(users) = self.config.users.as_ref() else {
            let names_users = self.tls_files.as_ref().is_some_and(|tls| tls.user_from.is_some());
            let why = "serve.tls.user_from says how certificates name users, but there are no [[serve.users]]";
            return if names_users { Err(misuse(why)) } else { Ok(()) };
        };
        let certificates_name_users = self.tls_files.as_ref().is_some_and(|tls| tls.user_from.is_some());
        for name in self.user_names.iter().filter(|_| !certificates_name_users) {
            if users.find(name).is_some_and(|user| !user.has_secret()) {
                return Err(misuse(format!(
                    "user '{name}' can never log in: it has no secret_hash, and certificates name no users \
                     (serve.tls.user_from)"
                )));
            }
        }
        Ok(())
    }

    /// Refuses a port that is open to other hosts without TLS and users, and one for other nodes that bypasses the users.
    fn check_exposure(&self) -> Result<(), Failure> {
        let takes_anybody_for_a_node = self.config.cluster.as_ref().is_some_and(|cluster| cluster.tls.is_none());
        if self.config.users.is_some() && takes_anybody_for_a_node {
            return Err(misuse(
                "there are users, but nodes have no certificates: any process on this machine could speak as a node, and do \
                 everything. Give each node a certificate (--peer-certificate, --peer-key, --peer-ca; `palisade cluster keys` makes \
                 them), or pass --insecure",
            ));
        }
        let open = [("resp", Some(self.resp)), ("http", self.http)].into_iter();
        let is_exposed = |address: &SocketAddr| !address.ip().is_loopback();
        let mut open = open.filter_map(|(name, address)| Some((name, address.filter(is_exposed)?)));
        let Some((name, address)) = open.next() else { return Ok(()) };
        let missing = match (&self.config.tls, &self.config.users) {
            (Some(_), Some(_)) => return Ok(()),
            (None, None) => "there is no TLS and there are no users",
            (None, Some(_)) => "there is no TLS: secrets could be read on the way",
            (Some(_), None) => "there are no users: any client that reaches it could take every lock",
        };
        Err(misuse(format!(
            "{name} = {address} is open to other hosts, but {missing}. Set certificate and key under [serve.tls] and at \
             least one [[serve.users]] (`palisade serve --new-user NAME` makes one), or listen on 127.0.0.1 only, or \
             pass --insecure"
        )))
    }
}

fn address(name: &str, text: &str) -> Result<SocketAddr, Failure> {
    let bad = |_| {
        let text = plain(text);
        misuse(format!("{name} = '{text}' is not an address; expected, for example, 127.0.0.1:7420 or [::1]:7420"))
    };
    text.parse().map_err(bad)
}

fn default_directory() -> Result<PathBuf, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/palisade/service"));
    }
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| {
        misuse("XDG_STATE_HOME and HOME are not set, so there is no default directory; pass --data-dir")
    })?;
    Ok(state.join("palisade/service"))
}

fn tls_files(options: &Options, tls: &file::Tls, base: &Path) -> Result<Option<TlsFiles>, Failure> {
    let either = |option: &Option<PathBuf>, in_file: &Option<PathBuf>| {
        option.clone().or_else(|| in_file.as_ref().map(|path| base.join(path)))
    };
    let client_ca = either(&options.tls_client_ca, &tls.client_ca);
    let (certificate, key) = (either(&options.tls_certificate, &tls.certificate), either(&options.tls_key, &tls.key));
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if client_ca.is_none() && tls.user_from.is_none() => return Ok(None),
        _ => return Err(misuse("TLS needs both a certificate and its key (serve.tls.certificate, serve.tls.key)")),
    };
    if client_ca.is_none() && tls.user_from.is_some() {
        return Err(misuse(
            "serve.tls.user_from needs serve.tls.client_ca, the authority that signs client certificates",
        ));
    }
    let user_from = tls.user_from.map(|from| match from {
        file::UserFrom::CommonName => UserFrom::CommonName,
        file::UserFrom::Dns => UserFrom::Dns,
        file::UserFrom::Email => UserFrom::Email,
        file::UserFrom::Uri => UserFrom::Uri,
    });
    let client_optional = tls.client_certificates == ClientCertificates::Optional;
    Ok(Some(TlsFiles { certificate, key, client_ca, client_optional, user_from }))
}

fn users(serve: &Serve) -> Result<Option<Users>, Failure> {
    if serve.users.is_empty() {
        return Ok(None);
    }
    let users: Result<Vec<_>, BadUser> = serve.users.iter().map(user).collect();
    let users = users.and_then(Users::new).map_err(|why| misuse(why.to_string()))?;
    Ok(Some(users))
}

fn user(user: &file::User) -> Result<User, BadUser> {
    let secret = user.secret_hash.as_deref().map(str::parse).transpose();
    let secret = secret.map_err(|why| BadUser::Hash { name: plain(&user.name), why })?;
    let rule = |rule: &file::Rule| {
        let verbs: Result<_, BadUser> = rule.verbs.iter().map(|verb| verb.parse()).collect();
        Ok(Rule { verbs: verbs?, prefix: rule.prefix.clone() })
    };
    let rules: Result<Vec<Rule>, BadUser> = user.rules.iter().map(rule).collect();
    User::new(&user.name, secret, rules?)
}

fn limits(serve: &Serve) -> Result<Limits, Failure> {
    let limits = serve.limits.over_defaults();
    if limits.name_bytes as usize > LockName::MAX_BYTES {
        return Err(misuse(format!("serve.limits.name_bytes must be at most {}", LockName::MAX_BYTES)));
    }
    if limits.ttl_min_ms == 0 || limits.ttl_min_ms > limits.ttl_max_ms {
        return Err(misuse("serve.limits.ttl_min_ms must be at least 1 and at most ttl_max_ms"));
    }
    if limits.answers_per_session == 0 {
        return Err(misuse("serve.limits.answers_per_session must be at least 1"));
    }
    Ok(limits)
}

fn bounds(serve: &Serve, limits: &Limits) -> Result<Bounds, Failure> {
    let bounds = serve.bounds.over_defaults();
    for (name, value, least) in [
        ("connections", bounds.connections, 1),
        ("connections_per_user", bounds.connections_per_user, 1),
        ("strangers", bounds.strangers, 1),
        ("strangers_per_address", bounds.strangers_per_address, 1),
        ("command_words", bounds.command_words, 16),
        ("command_bytes", bounds.command_bytes, limits.value_bytes as usize + 4096),
        ("unanswered", bounds.unanswered, 1),
        ("unread_bytes", bounds.unread_bytes, 4096),
        ("unread_total", bounds.unread_total, 4096),
    ] {
        if value < least {
            return Err(misuse(format!("serve.bounds.{name} must be at least {least}")));
        }
    }
    for (name, time) in [("greeting", bounds.greeting), ("command", bounds.command), ("stall", bounds.stall)] {
        if time.is_zero() {
            return Err(misuse(format!("serve.bounds.{name} must be longer than 0")));
        }
    }
    Ok(bounds)
}

/// Checks that a directory can be used, or can be made, without changing anything. Returns whether it exists.
pub(super) fn check_directory(directory: &Path) -> Result<bool, io::Error> {
    let exists = directory.try_exists()?;
    let mut nearest = directory;
    while !nearest.try_exists()? {
        nearest = match nearest.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => break,
        };
    }
    if !nearest.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(nearest, access)?;
    Ok(exists)
}
