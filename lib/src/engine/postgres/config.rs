//! The configuration, and the `postgres:` URLs that give it.

use std::env;

use tokio_postgres::config::{Host, SslMode};

use crate::engine::Failure;
use crate::engine::remote::{BadUrl, Peer, Secret, Tls, TlsModes, TlsOptions, Url, UrlForm, is_local};

/// The options of this engine. The driver reads the others.
const OWN: [&str; 5] = ["mode", "sslmode", "sslrootcert", "sslcert", "sslkey"];

pub(crate) const URL: UrlForm = UrlForm {
    store: "PostgreSQL",
    example: "postgres://user@host:port/database",
    options: "mode=MODE sslmode=MODE sslrootcert=FILE sslcert=FILE sslkey=FILE application_name=NAME channel_binding=MODE \
         connect_timeout=SECONDS dbname=NAME host=HOST hostaddr=ADDRESS keepalives=0 keepalives_idle=SECONDS \
         keepalives_interval=SECONDS keepalives_retries=N load_balance_hosts=MODE options=TEXT password=TEXT port=N \
         sslnegotiation=MODE target_session_attrs=MODE tcp_user_timeout=SECONDS user=NAME",
    has_users: true,
};

pub(crate) const TLS: TlsOptions = TlsOptions {
    ca: "sslrootcert",
    cert: "sslcert",
    key: "sslkey",
    wrong_name: "use a name in the certificate",
    not_encrypted: "switch that on there (ssl = on), or add ?sslmode=disable if the network is trusted",
    encrypted: "add ?sslmode=require",
};

const MODES: TlsModes = TlsModes {
    option: "sslmode",
    off: "disable",
    on: ["require", "verify-full"],
    opportunistic: &["prefer", "allow"],
    any_name: "verify-ca",
};

/// A PostgreSQL, and how to connect to it. Its `Debug` form shows no secret.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) server: tokio_postgres::Config,
    /// The settings of encrypted connections: `sslmode=require` or `verify-full`, and to other hosts unless the URL says
    /// `sslmode=disable`.
    pub tls: Option<Tls>,
    /// What kind of locks.
    pub mode: Mode,
}

/// What kind of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Rows, with tokens.
    Rows,
    /// Session advisory locks: `mode=advisory`. For efficiency only.
    Advisory,
}

impl Config {
    /// Parses the part of a URL after `postgres:`, like libpq: `//user@host:port/database`, with the options
    /// `sslmode`, `sslrootcert`, `sslcert` with `sslkey`, `mode`, and those of
    /// [`tokio_postgres::Config`](https://docs.rs/tokio-postgres/latest/tokio_postgres/config/struct.Config.html). A
    /// password that is not in the URL is taken from the environment variable `PALISADE_SECRET` or `PGPASSWORD`,
    /// a user from `PGUSER` or else from the operating system, a database from `PGDATABASE` or else from the user's name.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::postgres::{Config, Mode};
    ///
    /// let config = Config::parse("//app@db.example/shop?mode=advisory")?;
    /// assert!(config.tls.is_some() && config.mode == Mode::Advisory);
    /// assert_eq!(Config::parse("//app@127.0.0.1/shop")?.tls, None);
    /// assert!(Config::parse("//app@db.example/shop?sslmode=prefer").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        URL.parse("postgres", rest, |url| read(rest, url))
    }

    /// The server as messages name it.
    pub(crate) fn peer(&self) -> Peer {
        let address = match self.host() {
            Some(Host::Tcp(name)) => format!("{name}:{}", self.port()),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::new(),
        };
        Peer::new("PostgreSQL", address)
    }

    /// The server's host. A URL names one, or it is `localhost`.
    pub(super) fn host(&self) -> Option<&Host> {
        self.server.get_hosts().first()
    }

    pub(super) fn port(&self) -> u16 {
        self.server.get_ports().first().copied().unwrap_or(5432)
    }
}

fn read(rest: &str, url: &Url<'_>) -> Result<Config, BadUrl> {
    let mode = match url.option("mode")?.as_deref() {
        None | Some("rows") => Mode::Rows,
        Some("advisory") => Mode::Advisory,
        Some(_) => return Err(BadUrl::Invalid("mode is rows or advisory".to_owned())),
    };
    let others = url.options.iter().filter(|(name, _)| !OWN.contains(name));
    let others: Vec<_> = others.map(|(name, value)| format!("{name}={value}")).collect();
    let place = rest.split('?').next().unwrap_or_default();
    let server = format!("postgres:{place}?{}", others.join("&")).parse();
    let mut server: tokio_postgres::Config = server.map_err(|error: tokio_postgres::Error| {
        // The driver quotes no more than a name.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        BadUrl::Invalid(source.unwrap_or_else(|| error.to_string()).escape_debug().to_string())
    })?;
    // Clients that reach different servers would each get the lock.
    if server.get_hosts().len() > 1 || server.get_hostaddrs().len() > 1 {
        return Err(BadUrl::SeveralHosts);
    }
    if server.get_hosts().is_empty() {
        server.host("localhost");
    }
    // Without a user, the driver uses the name of the operating system's. Without a database, the server uses the user's name.
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    if let (None, Some(user)) = (server.get_user(), variable("PGUSER")) {
        server.user(user);
    }
    if let (None, Some(database)) = (server.get_dbname(), variable("PGDATABASE")) {
        server.dbname(database);
    }
    if server.get_password().is_none()
        && let Some(secret) = Secret::in_environment(&["PGPASSWORD"])
    {
        server.password(secret);
    }
    if server.get_application_name().is_none() {
        server.application_name("palisade");
    }
    let is_local = server.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => is_local(name),
        #[cfg(unix)]
        Host::Unix(_) => true,
    });
    let tls = Tls::read_by_mode(url, &TLS, url.option(MODES.option)?.as_deref(), &MODES, is_local)?;
    server.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
    Ok(Config { server, tls, mode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::remote::Identity;

    #[test]
    fn an_invalid_url_is_refused_without_its_secret() {
        for rest in [
            "",
            "host",
            "//me:xyzzy@host?mode=fast",
            "//me:xyzzy@host?sslmode=prefer",
            "//me:xyzzy@host?sslmode=allow",
            "//me:xyzzy@host?sslmode=verify-ca",
            "//me:xyzzy@host?sslmode=yes",
            "//me:xyzzy@host?sslcert=a",
            "//me:xyzzy@host?sslmode=disable&sslrootcert=a",
            "//me:xyzzy@host:0x1/db",
            "//me:xyzzy@host,other/db",
            "//me:xyzzy@host:1,other:2/db?target_session_attrs=read-write",
            "//me:xyzzy@host?connect_timeout=xyzzy",
            "//me:xyzzy@host?secret=xyzzy&password=xyzzy",
        ] {
            let Err(Failure::Unavailable(why)) = Config::parse(rest) else { panic!("{rest} was accepted") };
            assert!(!why.what.contains("me:xyzzy") && why.what.contains("postgres://user@"), "{}", why.what);
            assert!(!why.is_retryable && !why.may_have_taken_effect);
        }
    }

    #[test]
    fn connections_to_other_hosts_are_encrypted() {
        let tls = |rest: &str| Config::parse(rest).expect("a URL").tls;
        for rest in ["//me@db.example/x", "//me@10.0.0.1/x", "//localhost/x?sslmode=require"] {
            assert_eq!(tls(rest), Some(Tls::default()), "{rest}");
        }
        for rest in ["//me@localhost/x", "//me@[::1]/x", "//me@db.example/x?sslmode=disable", "//%2Fvar%2Frun/x"] {
            assert_eq!(tls(rest), None, "{rest}");
        }
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        let with_ca = Some(Tls { ca: Some("/a b".into()), identity, name: None });
        assert_eq!(tls("//127.0.0.1/x?sslrootcert=/a%20b&sslcert=c&sslkey=k"), with_ca);
    }

    #[test]
    fn the_driver_reads_the_other_options() {
        let config = Config::parse("//me:xy/zzy@host/db?mode=advisory&connect_timeout=3").expect("a URL");
        assert_eq!(config.server.get_connect_timeout(), Some(&std::time::Duration::from_secs(3)));
        assert_eq!(config.server.get_password(), Some(&b"xy/zzy"[..]));
        assert!(!format!("{config:?}").contains("zzy"));
        assert_eq!(config.peer().to_string(), "PostgreSQL at host:5432");
    }
}
