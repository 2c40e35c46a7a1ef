//! The configuration, and the `mysql:` URLs that give it.

use std::env;

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use rustls::crypto::{CryptoProvider, ring};

use crate::engine::Failure;
use crate::engine::remote::{
    Address, BadUrl, ConnectError, Identity, Peer, Secret, SecurityError, Tls, TlsModes, TlsOptions, Url, UrlForm,
    decoded, is_local,
};

const PORT: u16 = 3306;
/// Unless the URL says otherwise.
const CONNECTIONS: usize = 4;
const MOST_CONNECTIONS: usize = 64;
/// How many statements a connection keeps prepared: those of `fast_path.rs`.
const PREPARED: usize = 2;

pub(crate) const URL: UrlForm = UrlForm {
    store: "MySQL",
    example: "mysql://user@host:port/database",
    options: "ssl-mode=MODE ssl-ca=FILE ssl-cert=FILE ssl-key=FILE socket=PATH connections=N",
    has_users: true,
};

pub(super) const TLS: TlsOptions = TlsOptions {
    ca: "ssl-ca",
    cert: "ssl-cert",
    key: "ssl-key",
    wrong_name: "use a name in the certificate",
    not_encrypted: "switch that on there (ssl-cert and ssl-key), or add ?ssl-mode=disabled if the network is trusted",
    encrypted: "add ?ssl-mode=required",
};

const MODES: TlsModes = TlsModes {
    option: "ssl-mode",
    off: "disabled",
    on: ["required", "verify_identity"],
    opportunistic: &["preferred"],
    any_name: "verify_ca",
};

/// A MySQL and its database, and how to connect to it. Its `Debug` form shows no secret.
#[derive(Debug, Clone)]
pub struct Config {
    server: Server,
    /// The settings of encrypted connections: `ssl-mode=required` or `verify_identity`, and to other hosts unless the URL
    /// says `ssl-mode=disabled`.
    pub tls: Option<Tls>,
    /// How many connections a client has at most. There is one, and more while several calls are under way.
    pub connections: usize,
}

#[derive(Debug, Clone)]
struct Server {
    address: Address,
    socket: Option<String>,
    database: String,
    user: Option<String>,
    password: Option<Secret>,
}

impl Config {
    /// Parses the part of a URL after `mysql:`: `//user@host:port/database`, with the options `ssl-mode`, `ssl-ca`,
    /// `ssl-cert` with `ssl-key`, `socket`, and `connections`. A password that is not in the URL is taken from the
    /// environment variable `PALISADE_SECRET` or `MYSQL_PWD`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::mysql::Config;
    ///
    /// assert!(Config::parse("//app@db.example/shop")?.tls.is_some());
    /// assert_eq!(Config::parse("//app@127.0.0.1/shop")?.tls, None);
    /// assert!(Config::parse("//app@db.example/shop?ssl-mode=preferred").is_err());
    /// assert!(Config::parse("//app@db.example").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        URL.parse("mysql", rest, read)
    }

    /// The server as messages name it.
    pub(crate) fn peer(&self) -> Peer {
        let Server { address, socket, database, .. } = &self.server;
        let place = socket.clone().unwrap_or_else(|| address.to_string());
        Peer::new("MySQL", format!("{place} ({database})"))
    }

    /// Returns the driver's options, with the contents of the TLS files.
    pub(crate) fn opts(&self) -> Result<Opts, ConnectError> {
        let Server { address, socket, database, user, password } = &self.server;
        let password =
            password.as_ref().map(Secret::reveal).transpose().map_err(|error| error.connect_error(&TLS))?;
        let opts =
            OptsBuilder::default().ip_or_hostname(&address.host).tcp_port(address.port).db_name(Some(database));
        let opts = opts.user(user.clone()).pass(password).socket(socket.clone()).prefer_socket(false);
        // The server's values of these need not be queried.
        let opts = opts.max_allowed_packet(Some(16 << 20)).wait_timeout(Some(28_800)).stmt_cache_size(PREPARED);
        let tls = self.tls.as_ref().map(ssl_opts).transpose().map_err(|error| error.connect_error(&TLS))?;
        Ok(opts.ssl_opts(tls).into())
    }
}

fn ssl_opts(tls: &Tls) -> Result<SslOpts, SecurityError> {
    if CryptoProvider::get_default().is_none() {
        // The driver uses the default provider. Another thread may have just set one, which is as good.
        drop(ring::default_provider().install_default());
    }
    let roots = tls.authorities()?.into_iter().map(|root| root.to_vec().into()).collect();
    let ssl = SslOpts::default().with_disable_built_in_roots(true).with_root_certs(roots);
    let Some(identity @ Identity { certificate, key }) = &tls.identity else { return Ok(ssl) };
    // The driver's error would not name the file.
    drop(identity.load()?);
    Ok(ssl.with_client_identity(Some(ClientIdentity::new(certificate.clone().into(), key.clone().into()))))
}

fn read(url: &Url<'_>) -> Result<Config, BadUrl> {
    let (host, port) = match url.hosts[..] {
        [("", port)] => ("127.0.0.1", port),
        [host] => host,
        _ => return Err(BadUrl::SeveralHosts),
    };
    let database = decoded(url.path.split('/').next().unwrap_or_default())?;
    if database.is_empty() {
        return Err(BadUrl::Invalid("the database is missing".to_owned()));
    }
    let connections = match url.option("connections")?.map(|connections| connections.parse()) {
        None => CONNECTIONS,
        Some(Ok(connections @ 1..=MOST_CONNECTIONS)) => connections,
        Some(_) => return Err(BadUrl::Invalid(format!("connections is a number from 1 to {MOST_CONNECTIONS}"))),
    };
    let (user, password) = url.login()?.unwrap_or_default();
    let user = user.or_else(|| env::var("USER").ok());
    let password = password.or_else(|| Secret::in_environment(&["MYSQL_PWD"])).map(Secret::Text);
    let address = Address { host: host.to_owned(), port: port.unwrap_or(PORT) };
    let socket = url.option("socket")?;
    let mode = url.option(MODES.option)?.map(|mode| mode.to_ascii_lowercase());
    let tls = Tls::read_by_mode(url, &TLS, mode.as_deref(), &MODES, socket.is_some() || is_local(host))?;
    Ok(Config { server: Server { address, socket, database, user, password }, tls, connections })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_refused_without_its_secret() {
        for rest in [
            "",
            "host",
            "//me:xyzzy@host",
            "//me:xyzzy@host/",
            "//me:xyzzy@a,b/db",
            "//me:xy/zzy@host/db",
            "//me:xyzzy@host/db?mode=fast",
            "//me:xyzzy@host/db?ssl-mode=preferred",
            "//me:xyzzy@host/db?ssl-mode=verify_ca",
            "//me:xyzzy@host/db?ssl-mode=yes",
            "//me:xyzzy@host/db?ssl-cert=a",
            "//me:xyzzy@host/db?ssl-mode=disabled&ssl-ca=a",
            "//me:xyzzy@host:0x1/db",
            "//me:xyzzy@host/db?connections=0",
        ] {
            let Err(Failure::Unavailable(why)) = Config::parse(rest) else { panic!("{rest} was accepted") };
            assert!(!why.what.contains("zzy") && why.what.contains("mysql://user@"), "{}", why.what);
            assert!(!why.is_retryable && !why.may_have_taken_effect);
        }
    }

    #[test]
    fn connections_to_other_hosts_are_encrypted() {
        let tls = |rest: &str| Config::parse(rest).expect("a URL").tls;
        for rest in ["//me@db.example/x", "//me@10.0.0.1/x", "//localhost/x?ssl-mode=REQUIRED"] {
            assert_eq!(tls(rest), Some(Tls::default()), "{rest}");
        }
        for rest in ["//me@localhost/x", "//me@[::1]/x", "//me@db.example/x?ssl-mode=DISABLED", "//a/x?socket=/s"] {
            assert_eq!(tls(rest), None, "{rest}");
        }
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        let with_ca = Some(Tls { ca: Some("/a b".into()), identity, name: None });
        assert_eq!(tls("//127.0.0.1/x?ssl-ca=/a%20b&ssl-cert=c&ssl-key=k"), with_ca);
    }

    #[test]
    fn no_secret_shows() {
        let config = Config::parse("//me:xyzzy@host/db").expect("a URL");
        assert!(!format!("{config:?}").contains("xyzzy"));
        assert_eq!(config.peer().to_string(), "MySQL at host:3306 (db)");
    }
}
