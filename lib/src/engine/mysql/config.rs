//! What a `mysql:` URL says.

use std::env;
use std::path::PathBuf;

use mysql_async::{Opts, OptsBuilder};

use super::url::{split_secret, take_options};
use crate::engine::remote::Peer;
use crate::engine::{Failure, Unavailable};

/// Unless the URL says otherwise.
const CONNECTIONS: usize = 4;
const MOST_CONNECTIONS: usize = 64;
/// How many statements a connection keeps prepared: those of `fast_path.rs`.
const PREPARED: usize = 2;
/// Where the password is that a URL does not say.
const SECRETS: [&str; 2] = ["PALISADE_SECRET", "MYSQL_PWD"];

/// Which server and database, and how it is called. No secret shows in its `Debug` form.
#[derive(Clone)]
pub struct Config {
    pub(super) server: Opts,
    /// How lines are encrypted.
    pub encryption: Encryption,
    /// How many connections a client has at most. There is one, and more while several calls are under way.
    pub connections: usize,
}

/// How lines to a MySQL are encrypted. A server's certificate is always verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encryption {
    /// Not at all: `ssl-mode=disabled`, and what is on this host unless the URL says otherwise.
    None,
    /// Always: `ssl-mode=required` or `verify_identity`, and everywhere else unless the URL says otherwise.
    Verified {
        /// Whose certificates the server may show (`ssl-ca`); without it, those that the system trusts.
        ca: Option<PathBuf>,
        /// What this client shows (`ssl-cert`, `ssl-key`).
        identity: Option<(PathBuf, PathBuf)>,
    },
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Config { encryption, connections, .. } = self;
        let mut shown = f.debug_struct("Config");
        shown
            .field("server", &self.address())
            .field("encryption", encryption)
            .field("connections", connections)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// From what follows `mysql:` in a URL: `//user@host:port/database`, with the options `ssl-mode`, `ssl-ca`,
    /// `ssl-cert` with `ssl-key`, `socket`, and `connections`. A password that is not in the URL is taken from the environment variable
    /// `PALISADE_SECRET` or `MYSQL_PWD`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] for anything else.
    ///
    /// ```
    /// use palisade::engine::mysql::{Config, Encryption};
    ///
    /// let config = Config::parse("//app@db.example/shop")?;
    /// assert!(matches!(config.encryption, Encryption::Verified { .. }));
    /// assert_eq!(Config::parse("//app@127.0.0.1/shop")?.encryption, Encryption::None);
    /// assert!(Config::parse("//app@db.example/shop?ssl-mode=preferred").is_err());
    /// assert!(Config::parse("//app@db.example").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        read(rest).map_err(|why| {
            let shown = split_secret(rest).0;
            let what = format!("'mysql:{}' names no MySQL: {why}", shown.escape_debug());
            Unavailable::new(what).without_effect().permanent().into()
        })
    }

    /// The server as messages name it.
    pub(super) fn peer(&self) -> Peer {
        Peer::new("MySQL", self.address())
    }

    fn address(&self) -> String {
        let database = self.server.db_name().unwrap_or("");
        match self.server.socket() {
            Some(socket) => format!("{socket} ({database})"),
            None => format!("{}:{} ({database})", self.server.ip_or_hostname(), self.server.tcp_port()),
        }
    }
}

fn read(rest: &str) -> Result<Config, String> {
    const FORM: &str = "write mysql://user@host:port/database";
    if !rest.starts_with("//") {
        return Err(FORM.to_owned());
    }
    let mut url = format!("mysql:{rest}");
    let (mut mode, mut ca, mut cert, mut key, mut socket, mut connections) = (None, None, None, None, None, None);
    for (name, value) in take_options(&mut url) {
        let place = match name.as_str() {
            "ssl-mode" => &mut mode,
            "ssl-ca" => &mut ca,
            "ssl-cert" => &mut cert,
            "ssl-key" => &mut key,
            "socket" => &mut socket,
            "connections" => &mut connections,
            _ => return Err(format!("there is no option '{}'", name.escape_debug())),
        };
        *place = Some(value);
    }
    // What the driver says of a bad URL may quote it.
    let opts = Opts::from_url(&url).map_err(|_| FORM.to_owned())?;
    if opts.db_name().is_none_or(str::is_empty) {
        return Err("it does not say in which database; write mysql://user@host:port/database".to_owned());
    }
    let identity = match (cert, key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        _ => return Err("ssl-cert and ssl-key go together".to_owned()),
    };
    let encryption = encryption(mode, ca.map(Into::into), identity, socket.is_some() || is_here(&opts))?;
    let connections = match connections.map(|connections| connections.parse()) {
        None => CONNECTIONS,
        Some(Ok(connections @ 1..=MOST_CONNECTIONS)) => connections,
        Some(_) => return Err(format!("connections is a number from 1 to {MOST_CONNECTIONS}")),
    };
    let secret = || SECRETS.iter().find_map(|name| env::var(name).ok().filter(|secret| !secret.is_empty()));
    let user = opts.user().map(str::to_owned).or_else(|| env::var("USER").ok());
    let pass = opts.pass().map(str::to_owned).or_else(secret);
    let server = OptsBuilder::from_opts(opts).user(user).pass(pass).socket(socket).prefer_socket(false);
    // What the server says anyway need not be asked.
    let server = server.max_allowed_packet(Some(16 << 20)).wait_timeout(Some(28_800)).stmt_cache_size(PREPARED);
    Ok(Config { server: server.into(), encryption, connections })
}

fn encryption(
    mode: Option<String>,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    is_here: bool,
) -> Result<Encryption, String> {
    let has_papers = ca.is_some() || identity.is_some();
    let mode = mode.map(|mode| mode.to_ascii_lowercase());
    Ok(match mode.as_deref() {
        Some("disabled") if has_papers => {
            return Err("ssl-mode=disabled encrypts nothing; leave the certificates out".to_owned());
        }
        Some("disabled") => Encryption::None,
        None if is_here && !has_papers => Encryption::None,
        None | Some("required" | "verify_identity") => Encryption::Verified { ca, identity },
        Some("preferred") => {
            return Err("with ssl-mode=preferred whoever is in between decides; say required, or disabled".to_owned());
        }
        Some("verify_ca") => {
            return Err("ssl-mode=verify_ca does not say whom to trust; say verify_identity".to_owned());
        }
        Some(_) => return Err("ssl-mode is disabled, required or verify_identity".to_owned()),
    })
}

fn is_here(opts: &Opts) -> bool {
    let name = opts.ip_or_hostname();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || bare.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_mysql_is_refused_without_its_secret() {
        for rest in [
            "",
            "host",
            "//me:xyzzy@host",
            "//me:xyzzy@host/",
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
            assert!(!why.what.contains("xyzzy") && !why.is_retryable && !why.may_have_taken_effect, "{}", why.what);
        }
    }

    #[test]
    fn connections_to_other_hosts_are_encrypted() {
        let encryption = |rest: &str| Config::parse(rest).expect("a URL").encryption;
        let verified = Encryption::Verified { ca: None, identity: None };
        for rest in ["//me@db.example/x", "//me@10.0.0.1/x", "//localhost/x?ssl-mode=REQUIRED"] {
            assert_eq!(encryption(rest), verified, "{rest}");
        }
        for rest in ["//me@localhost/x", "//me@[::1]/x", "//me@db.example/x?ssl-mode=DISABLED", "//a/x?socket=/s"] {
            assert_eq!(encryption(rest), Encryption::None, "{rest}");
        }
        let with_ca = Encryption::Verified { ca: Some("/a b".into()), identity: Some(("c".into(), "k".into())) };
        assert_eq!(encryption("//127.0.0.1/x?ssl-ca=/a%20b&ssl-cert=c&ssl-key=k"), with_ca);
    }

    #[test]
    fn no_secret_shows() {
        let config = Config::parse("//me:xyzzy@host/db").expect("a URL");
        assert!(!format!("{config:?}").contains("xyzzy"));
        assert_eq!(config.address(), "host:3306 (db)");
    }
}
