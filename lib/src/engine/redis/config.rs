//! What a `redis:` or `rediss:` URL says.

use std::env;
use std::time::Duration;

use super::url::{Parts, Secret, decoded, split_secret};
use super::{BadAddress, Identity, Tls};
use crate::engine::{Failure, Unavailable};

/// Where the secret is that a URL does not say.
const SECRET_VARIABLE: &str = "PALISADE_SECRET";
const NAMESPACE: &str = "palisade";
/// How long replicas have to confirm a grant, unless the URL says otherwise.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(1);

/// Which Redis, and how it is used. No secret shows in its `Debug` form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The server; or some of the Sentinels, or of the nodes of a cluster.
    pub nodes: Vec<Node>,
    /// How the server is found.
    pub topology: Topology,
    /// The user; without it, the default user.
    pub user: Option<String>,
    /// The user's password.
    pub secret: Option<Secret>,
    /// The number of the database.
    pub database: u32,
    /// How lines are encrypted, if they are.
    pub tls: Option<Tls>,
    /// Whose clients meet on the same locks. All keys of one namespace begin with `palisade:{namespace}`.
    pub namespace: String,
    /// Which replicas must have a grant before it is handed out.
    pub replicas: Option<Replicas>,
}

/// A server that can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The host's name or address; one of version 6 without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Node {
    /// As people write it.
    pub(super) fn address(&self) -> String {
        let Node { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// How the server is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// Nobody: it is called as it stands there.
    Alone,
    /// Sentinels, who know the primary of this name.
    Sentinel(String),
    /// The nodes of a cluster, each of which knows where a namespace is.
    Cluster,
}

/// How many replicas must have a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// So many.
    pub count: u32,
    /// How long they have for it.
    pub timeout: Duration,
}

impl Config {
    /// From what follows `redis:` in a URL:
    /// `//[[user]:[secret]@]host[:port][,host[:port]…][/database][?option=value&…]`, with the options `namespace=NAME`,
    /// `sentinel=NAME`, `cluster`, `replicas=N` and `replica_timeout=MILLISECONDS`. In user and secret any character can
    /// stand in its percent-encoded form, and `/ ? # %` must. The secret of a login that says none is taken from the
    /// environment variable `PALISADE_SECRET`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], with a [`BadAddress`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::redis::{Config, Topology};
    ///
    /// let config = Config::parse("//localhost")?;
    /// assert_eq!((config.nodes[0].port, config.namespace.as_str()), (6379, "palisade"));
    /// let config = Config::parse("//a,b,c/?sentinel=main&namespace=shop")?;
    /// assert_eq!((config.nodes[2].port, config.topology), (26379, Topology::Sentinel("main".to_owned())));
    /// assert!(Config::parse("//a,b").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        Config::read(rest, false).map_err(|bad| no_redis("redis", rest, bad))
    }

    /// From what follows `rediss:` in a URL, for encrypted lines: as [`Config::parse`], and with the options `ca=FILE`
    /// and `cert=FILE` with `key=FILE`, which are the fields of [`Tls`].
    ///
    /// # Errors
    ///
    /// As [`Config::parse`].
    ///
    /// ```
    /// use palisade::engine::redis::Config;
    ///
    /// let config = Config::parse_encrypted("//:xyzzy@cache.example?ca=/etc/redis/ca.pem")?;
    /// assert!(config.tls.is_some() && !format!("{config:?}").contains("xyzzy"));
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse_encrypted(rest: &str) -> Result<Config, Failure> {
        Config::read(rest, true).map_err(|bad| no_redis("rediss", rest, bad))
    }

    fn read(rest: &str, is_encrypted: bool) -> Result<Config, BadAddress> {
        let parts = Parts::of(rest)?;
        let tls = tls(&parts)?;
        if !is_encrypted && tls != Tls::default() {
            return Err(BadAddress::NotEncrypted);
        }
        let topology = match (parts.option("sentinel")?, parts.option("cluster")?) {
            (None, None) => Topology::Alone,
            (Some(name), None) => Topology::Sentinel(name),
            (None, Some(_)) => Topology::Cluster,
            (Some(_), Some(_)) => return Err(BadAddress::BadOption),
        };
        if topology == Topology::Alone && parts.nodes.len() > 1 {
            return Err(BadAddress::Several);
        }
        let database = match parts.database {
            "" => 0,
            number => number.parse().map_err(|_| BadAddress::NoDatabase)?,
        };
        if topology == Topology::Cluster && database != 0 {
            return Err(BadAddress::NoDatabase);
        }
        let (user, secret) = login(&parts)?;
        let nodes = parts.nodes.iter().map(|(host, port)| Node { host: (*host).to_owned(), port: *port });
        Ok(Config {
            nodes: nodes.collect(),
            topology,
            user,
            secret,
            database,
            tls: is_encrypted.then_some(tls),
            namespace: namespace(&parts)?,
            replicas: replicas(&parts)?,
        })
    }

    /// The key of everything that is kept; in a cluster, the braces decide where it is.
    pub(super) fn key(&self) -> String {
        format!("palisade:{{{}}}:locks", self.namespace)
    }
}

fn no_redis(scheme: &str, rest: &str, bad: BadAddress) -> Failure {
    let shown = split_secret(rest).0;
    Unavailable::new(format!("'{scheme}:{}' names no Redis: {bad}", shown.escape_debug()))
        .because(bad)
        .without_effect()
        .permanent()
        .into()
}

fn tls(parts: &Parts<'_>) -> Result<Tls, BadAddress> {
    let identity = match (parts.option("cert")?, parts.option("key")?) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(Identity { certificate: certificate.into(), key: key.into() }),
        _ => return Err(BadAddress::HalfIdentity),
    };
    Ok(Tls { ca: parts.option("ca")?.map(Into::into), identity })
}

fn login(parts: &Parts<'_>) -> Result<(Option<String>, Option<Secret>), BadAddress> {
    let Some(login) = parts.login else { return Ok((None, None)) };
    let user = login.user.map(decoded).transpose()?;
    let secret = match login.secret.map(decoded).transpose()? {
        Some(secret) => Some(secret),
        None => env::var(SECRET_VARIABLE).ok().filter(|secret| !secret.is_empty()),
    };
    Ok((user, secret.map(Secret)))
}

fn namespace(parts: &Parts<'_>) -> Result<String, BadAddress> {
    let name = parts.option("namespace")?.unwrap_or_else(|| NAMESPACE.to_owned());
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.len() > 100 || !name.chars().all(is_fit) { Err(BadAddress::BadNamespace) } else { Ok(name) }
}

fn replicas(parts: &Parts<'_>) -> Result<Option<Replicas>, BadAddress> {
    let number = |name| -> Result<Option<u32>, BadAddress> {
        let text = parts.option(name)?;
        text.map(|text| text.parse().ok().filter(|n| *n > 0).ok_or(BadAddress::BadOption)).transpose()
    };
    match (number("replicas")?, number("replica_timeout")?) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(BadAddress::BadOption),
        (Some(count), timeout) => {
            let timeout = timeout.map_or(REPLICA_TIMEOUT, |ms| Duration::from_millis(ms.into()));
            Ok(Some(Replicas { count, timeout }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_is_not_an_address_is_refused_with_what_is_accepted() {
        let cases = [
            ("", BadAddress::NoHost),
            ("host:6379", BadAddress::NoHost),
            ("//", BadAddress::NoHost),
            ("//:6379", BadAddress::NoHost),
            ("//host:0", BadAddress::NoPort),
            ("//host:70000", BadAddress::NoPort),
            ("//::1:6379", BadAddress::NoHost),
            ("//1::1:6379", BadAddress::NoBrackets),
            ("//[::1:6379", BadAddress::NoBrackets),
            ("//one:1,two:2", BadAddress::Several),
            ("//one:1,/?cluster", BadAddress::NoHost),
            ("//host/one", BadAddress::NoDatabase),
            ("//host/1?cluster", BadAddress::NoDatabase),
            ("//host?cluster&sentinel=a", BadAddress::BadOption),
            ("//host?cluster=yes", BadAddress::BadOption),
            ("//ho st", BadAddress::Unknown { found: ' ' }),
            ("//me:xy/zzy@host", BadAddress::Unknown { found: '/' }),
            ("//me:%ff@host", BadAddress::NotText),
            ("//host?password=xyzzy", BadAddress::UnknownOption),
            ("//host?namespace", BadAddress::BadOption),
            ("//host?namespace={a}", BadAddress::BadNamespace),
            ("//host?namespace=a&namespace=b", BadAddress::BadOption),
            ("//host?replicas=0", BadAddress::BadOption),
            ("//host?replica_timeout=5", BadAddress::BadOption),
            ("//host?ca=a", BadAddress::NotEncrypted),
            ("//host?cert=a", BadAddress::HalfIdentity),
        ];
        for (rest, bad) in cases {
            assert_eq!(Config::read(rest, false), Err(bad), "{rest:?}");
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains("redis://") && !error.what.contains("xyzzy"), "{}", error.what);
            assert!(!error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn all_that_a_url_can_say_is_understood() {
        let url = "//c%40i:xy%2Fzzy@host:1/3?ca=/a%20b&cert=c&key=k&namespace=shop&replicas=2&replica_timeout=50";
        let config = Config::read(url, true).expect("a URL");
        assert_eq!((config.user.as_deref(), config.database), (Some("c@i"), 3));
        assert_eq!(config.secret, Some(Secret::new("xy/zzy")));
        assert!(!format!("{config:?}").contains("zzy"));
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b".into()), identity }));
        assert_eq!(config.replicas, Some(Replicas { count: 2, timeout: Duration::from_millis(50) }));
        assert_eq!(config.key(), "palisade:{shop}:locks");
        let nodes = Config::read("//a,[::1]:2/?cluster", false).expect("a URL").nodes;
        assert_eq!(nodes.iter().map(Node::address).collect::<Vec<_>>(), ["a:6379", "[::1]:2"]);
    }
}
