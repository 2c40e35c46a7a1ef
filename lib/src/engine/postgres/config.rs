//! What a `postgres:` URL says.

use std::env;
use std::path::PathBuf;

use tokio_postgres::config::{Host, SslMode};

use super::url::{split_secret, take_option};
use crate::engine::remote::Peer;
use crate::engine::{Failure, Unavailable};

/// Where the password is that a URL does not say.
const SECRETS: [&str; 2] = ["PALISADE_SECRET", "PGPASSWORD"];

/// Which PostgreSQL, and how it is called. No secret shows in its `Debug` form.
#[derive(Debug, Clone)]
pub struct Config {
    pub(super) server: tokio_postgres::Config,
    /// How lines are encrypted.
    pub encryption: Encryption,
    /// What kind of locks.
    pub mode: Mode,
}

/// How lines to a PostgreSQL are encrypted. A server's certificate is always verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encryption {
    /// Not at all: `sslmode=disable`, and what is on this host unless the URL says otherwise.
    None,
    /// Always: `sslmode=require` or `verify-full`, and everywhere else unless the URL says otherwise.
    Verified {
        /// Whose certificates the server may show (`sslrootcert`); without it, those that the system trusts.
        ca: Option<PathBuf>,
        /// What this client shows (`sslcert`, `sslkey`).
        identity: Option<(PathBuf, PathBuf)>,
    },
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
    /// From what follows `postgres:` in a URL, as libpq takes it: `//user@host:port/database`, with the options
    /// `sslmode`, `sslrootcert`, `sslcert` with `sslkey`, `mode`, and those of
    /// [`tokio_postgres::Config`](https://docs.rs/tokio-postgres/latest/tokio_postgres/config/struct.Config.html). A
    /// password that is not in the URL is taken from the environment variable `PALISADE_SECRET` or `PGPASSWORD`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] for anything else.
    ///
    /// ```
    /// use palisade::engine::postgres::{Config, Encryption, Mode};
    ///
    /// let config = Config::parse("//app@db.example/shop?mode=advisory")?;
    /// assert!(matches!(config.encryption, Encryption::Verified { .. }));
    /// assert_eq!(config.mode, Mode::Advisory);
    /// assert_eq!(Config::parse("//app@127.0.0.1/shop")?.encryption, Encryption::None);
    /// assert!(Config::parse("//app@db.example/shop?sslmode=prefer").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        read(rest).map_err(|why| {
            let shown = split_secret(rest).0;
            let what = format!("'postgres:{}' names no PostgreSQL: {why}", shown.escape_debug());
            Unavailable::new(what).without_effect().permanent().into()
        })
    }

    /// The server as messages name it.
    pub(super) fn peer(&self) -> Peer {
        let hosts = self.server.get_hosts().iter().enumerate().map(|(at, host)| match host {
            Host::Tcp(name) => format!("{name}:{}", self.port(at)),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        });
        Peer::new("PostgreSQL", hosts.collect::<Vec<_>>().join(","))
    }

    /// The port of a host.
    pub(super) fn port(&self, at: usize) -> u16 {
        let ports = self.server.get_ports();
        ports.get(at).or(ports.first()).copied().unwrap_or(5432)
    }
}

fn read(rest: &str) -> Result<Config, String> {
    if !rest.starts_with("//") {
        return Err("write postgres://user@host:port/database".to_owned());
    }
    let mut url = format!("postgres:{rest}");
    let mode = match take_option(&mut url, "mode").as_deref() {
        None | Some("rows") => Mode::Rows,
        Some("advisory") => Mode::Advisory,
        Some(other) => return Err(format!("mode '{}' is neither rows nor advisory", other.escape_debug())),
    };
    let sslmode = take_option(&mut url, "sslmode");
    let [ca, cert, key] = ["sslrootcert", "sslcert", "sslkey"].map(|name| take_option(&mut url, name));
    let mut server: tokio_postgres::Config = url.parse().map_err(|error: tokio_postgres::Error| {
        // It never quotes more than a name.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        source.unwrap_or_else(|| error.to_string()).escape_debug().to_string()
    })?;
    if server.get_hosts().is_empty() {
        server.host("localhost");
    }
    if server.get_user().is_none() {
        server.user(env::var("USER").unwrap_or_else(|_| "postgres".to_owned()));
    }
    if server.get_password().is_none()
        && let Some(secret) = SECRETS.iter().find_map(|name| env::var(name).ok().filter(|secret| !secret.is_empty()))
    {
        server.password(secret);
    }
    if server.get_application_name().is_none() {
        server.application_name("palisade");
    }
    let identity = match (cert, key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        _ => return Err("sslcert and sslkey go together".to_owned()),
    };
    let is_here = server.get_hosts().iter().all(is_here);
    let has_papers = ca.is_some() || identity.is_some();
    let encryption = match sslmode.as_deref() {
        Some("disable") if has_papers => {
            return Err("sslmode=disable encrypts nothing; leave the certificates out".to_owned());
        }
        Some("disable") => Encryption::None,
        None if is_here && !has_papers => Encryption::None,
        None | Some("require" | "verify-full") => Encryption::Verified { ca: ca.map(Into::into), identity },
        Some("prefer" | "allow") => {
            return Err(
                "with sslmode=prefer or allow whoever is in between decides; say require, or disable".to_owned()
            );
        }
        Some("verify-ca") => return Err("sslmode=verify-ca does not say whom to trust; say verify-full".to_owned()),
        Some(_) => return Err("sslmode is disable, require or verify-full".to_owned()),
    };
    server.ssl_mode(match encryption {
        Encryption::None => SslMode::Disable,
        Encryption::Verified { .. } => SslMode::Require,
    });
    Ok(Config { server, encryption, mode })
}

fn is_here(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_postgres_is_refused_without_its_secret() {
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
            "//me:xyzzy@host?secret=xyzzy&password=xyzzy",
        ] {
            let Err(Failure::Unavailable(why)) = Config::parse(rest) else { panic!("{rest} was accepted") };
            assert!(
                !why.what.contains("me:xyzzy") && !why.is_retryable && !why.may_have_taken_effect,
                "{}",
                why.what
            );
        }
    }

    #[test]
    fn connections_to_other_hosts_are_encrypted() {
        let encryption = |rest: &str| Config::parse(rest).expect("a URL").encryption;
        let verified = Encryption::Verified { ca: None, identity: None };
        for rest in
            ["//me@db.example/x", "//me@10.0.0.1/x", "//me@localhost,db.example/x", "//localhost/x?sslmode=require"]
        {
            assert_eq!(encryption(rest), verified, "{rest}");
        }
        for rest in ["//me@localhost/x", "//me@[::1]/x", "//me@db.example/x?sslmode=disable", "//%2Fvar%2Frun/x"] {
            assert_eq!(encryption(rest), Encryption::None, "{rest}");
        }
        let with_ca = Encryption::Verified { ca: Some("/a b".into()), identity: Some(("c".into(), "k".into())) };
        assert_eq!(encryption("//127.0.0.1/x?sslrootcert=/a%20b&sslcert=c&sslkey=k"), with_ca);
    }

    #[test]
    fn no_secret_shows() {
        let config = Config::parse("//me:xyzzy@host/db").expect("a URL");
        assert!(!format!("{config:?}").contains("xyzzy"));
        assert_eq!(config.peer().to_string(), "PostgreSQL at host:5432");
    }
}
