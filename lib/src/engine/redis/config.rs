//! The configuration, and the `redis:` and `rediss:` URLs that give it.

use std::time::Duration;

use crate::engine::Failure;
use crate::engine::remote::{Address, BadUrl, Secret, Tls, TlsOptions, Url, UrlForm};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const NAMESPACE: &str = "palisade";
/// How long replicas have to confirm a grant, unless the URL says otherwise.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) const URL: UrlForm = UrlForm {
    store: "Redis",
    example: "redis://user@host:6379/0?namespace=NAME, or with TLS rediss://user@host:6379",
    options: "namespace=NAME sentinel=NAME cluster replicas=N replica_timeout=MILLISECONDS ca=FILE cert=FILE key=FILE",
    has_users: true,
};

pub(super) const TLS: TlsOptions = TlsOptions {
    ca: "ca",
    cert: "cert",
    key: "key",
    wrong_name: "use a name in the certificate",
    not_encrypted: "if that is intended, use redis:// instead of rediss://",
    encrypted: "use rediss:// instead of redis://",
};

/// A Redis, and how it is used. Its `Debug` form shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The server; or some of the Sentinels, or of the nodes of a cluster.
    pub nodes: Vec<Address>,
    /// How the server is found.
    pub topology: Topology,
    /// The user; without it, the default user.
    pub user: Option<String>,
    /// The user's password.
    pub secret: Option<Secret>,
    /// The number of the database.
    pub database: u32,
    /// The settings of encrypted connections. The files are read for every connection.
    pub tls: Option<Tls>,
    /// The clients of one namespace share locks. All its keys begin with `palisade:{namespace}`.
    pub namespace: String,
    /// Which replicas must have a grant before it is handed out.
    pub replicas: Option<Replicas>,
}

/// How the server is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// It is the one in the URL.
    Alone,
    /// Sentinels know the primary of this name.
    Sentinel(String),
    /// Each node of a cluster knows which one has the namespace.
    Cluster,
}

/// How many replicas must have a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// Their number.
    pub count: u32,
    /// How long they have to confirm it.
    pub timeout: Duration,
}

impl Config {
    /// Parses the part of a URL after `redis:`:
    /// `//[[user]:[secret]@]host[:port][,host[:port]…][/database][?option=value&…]`, with the options `namespace=NAME`,
    /// `sentinel=NAME`, `cluster`, `replicas=N` and `replica_timeout=MILLISECONDS`. In user and secret any character can be
    /// percent-encoded, and `/ ? # %` must be. The secret of a login without one is taken from the
    /// environment variable `PALISADE_SECRET`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
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
        URL.parse("redis", rest, |url| Config::read(url, false))
    }

    /// Parses the part of a URL after `rediss:`, for encrypted connections: as [`Config::parse`], and with the options
    /// `ca=FILE` and `cert=FILE` with `key=FILE`, which are fields of [`Tls`].
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
        URL.parse("rediss", rest, |url| Config::read(url, true))
    }

    fn read(url: &Url<'_>, is_encrypted: bool) -> Result<Config, BadUrl> {
        let tls = Tls::read_if(url, &TLS, is_encrypted)?;
        let (topology, port) = match (url.option("sentinel")?, url.option("cluster")?) {
            (None, None) => (Topology::Alone, PORT),
            (Some(name), None) => (Topology::Sentinel(name), SENTINEL_PORT),
            (None, Some(_)) => (Topology::Cluster, PORT),
            (Some(_), Some(_)) => return Err(invalid("sentinel and cluster exclude each other")),
        };
        let nodes = url.addresses(Some(port))?;
        if topology == Topology::Alone && nodes.len() > 1 {
            return Err(invalid(
                "several hosts are Sentinels or nodes of a cluster: redis://a,b,c/?sentinel=NAME or \
                 redis://a,b,c/?cluster; independent servers are redlock://a,b,c",
            ));
        }
        let database = match url.path {
            "" => Some(0),
            number => number.parse().ok().filter(|number| topology != Topology::Cluster || *number == 0),
        };
        let database =
            database.ok_or_else(|| invalid("its path is the number of a database, which is 0 in a cluster"))?;
        let (user, secret) = match url.login()? {
            Some((user, secret)) => (user, secret.or_else(|| Secret::in_environment(&[])).map(Secret::Text)),
            None => (None, None),
        };
        let (namespace, replicas) = (namespace(url)?, replicas(url)?);
        Ok(Config { nodes, topology, user, secret, database, tls, namespace, replicas })
    }

    /// The key of all data. In a cluster, the part in braces decides which node has it.
    pub(super) fn key(&self) -> String {
        format!("palisade:{{{}}}:locks", self.namespace)
    }
}

fn invalid(why: &str) -> BadUrl {
    BadUrl::Invalid(why.to_owned())
}

fn namespace(url: &Url<'_>) -> Result<String, BadUrl> {
    let name = url.option("namespace")?.unwrap_or_else(|| NAMESPACE.to_owned());
    match name.len() <= 100 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        true => Ok(name),
        false => Err(invalid("a namespace has at most 100 letters, digits, '-', '_' and '.'")),
    }
}

fn replicas(url: &Url<'_>) -> Result<Option<Replicas>, BadUrl> {
    let number = |name| -> Result<Option<u32>, BadUrl> {
        let bad = || invalid(&format!("{name} is a number from 1 on"));
        url.option(name)?.map(|text| text.parse().ok().filter(|n| *n > 0).ok_or_else(bad)).transpose()
    };
    match (number("replicas")?, number("replica_timeout")?) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(invalid("replica_timeout needs replicas")),
        (Some(count), timeout) => {
            let timeout = timeout.map_or(REPLICA_TIMEOUT, |ms| Duration::from_millis(ms.into()));
            Ok(Some(Replicas { count, timeout }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::remote::Identity;

    #[test]
    fn an_invalid_url_is_refused_with_the_accepted_form() {
        for (rest, part) in [
            ("", "host"),
            ("host:6379", "host"),
            ("//", "host"),
            ("//:6379", "host"),
            ("//host:0", "port"),
            ("//host:70000", "port"),
            ("//::1:6379", "brackets"),
            ("//1::1:6379", "brackets"),
            ("//[::1:6379", "brackets"),
            ("//one:1,two:2", "several hosts"),
            ("//one:1,/?cluster", "host"),
            ("//host/one", "database"),
            ("//host/1?cluster", "database"),
            ("//host?cluster&sentinel=a", "exclude"),
            ("//host?cluster=yes", "cluster"),
            ("//ho st", "' '"),
            ("//me:xy/zzy@host", "'/'"),
            ("//me:%ff@host", "UTF-8"),
            ("//host?password=xyzzy", "unknown"),
            ("//host?namespace", "one value"),
            ("//host?namespace={a}", "at most 100 letters"),
            ("//host?namespace=a&namespace=b", "namespace"),
            ("//host?replicas=0", "replicas"),
            ("//host?replica_timeout=5", "replica_timeout"),
            ("//host?ca=a", "encrypted"),
            ("//host?cert=a", "go together"),
        ] {
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains(part) && error.what.contains("redis://"), "{rest:?}: {}", error.what);
            assert!(!error.what.contains("zzy") && !error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn all_options_are_read() {
        let rest = "//c%40i:xy%2Fzzy@host:1/3?ca=/a%20b&cert=c&key=k&namespace=shop&replicas=2&replica_timeout=50";
        let config = Config::parse_encrypted(rest).expect("a URL");
        assert_eq!((config.user.as_deref(), config.database), (Some("c@i"), 3));
        assert_eq!(config.secret, Some(Secret::Text("xy/zzy".to_owned())));
        assert!(!format!("{config:?}").contains("zzy"));
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b".into()), identity, name: None }));
        assert_eq!(config.replicas, Some(Replicas { count: 2, timeout: Duration::from_millis(50) }));
        assert_eq!(config.key(), "palisade:{shop}:locks");
        let nodes = Config::parse("//a,[::1]:2/?cluster").expect("a URL").nodes;
        assert_eq!(nodes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:6379", "[::1]:2"]);
    }
}
