//! The configuration, and the `zookeeper:` and `zk:` URLs that give it.

use crate::engine::Failure;
use crate::engine::remote::{Address, BadUrl, Login, Secret, Url, UrlForm, decoded};

const PORT: u16 = 2181;
const ROOT: &str = "/palisade";

pub(crate) const URL: UrlForm = UrlForm {
    store: "ZooKeeper",
    example: "zookeeper://user@a:2181,b:2181,c:2181/path",
    options: "access=own|open",
    has_users: true,
};

/// A ZooKeeper, and how it is used. Its `Debug` form shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Some or all servers of the ensemble.
    pub servers: Vec<Address>,
    /// The node under which all data are. The clients of one node share locks.
    pub root: String,
    /// The user and its secret, for digest authentication.
    pub login: Option<Login>,
    /// The clients that may use the nodes.
    pub access: Access,
}

/// The clients that may use the nodes that a client creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Those that log in as the same user.
    Own,
    /// All clients of the ensemble.
    Open,
}

impl Config {
    /// Parses the part of a URL after `zookeeper:`: `//[user[:secret]@]host[:port][,host[:port]…][/path][?access=own|open]`. In
    /// user, secret and path any character can be percent-encoded, and `/ ? # %` must be in user and secret. The secret of a
    /// user without one is taken from the environment variable `PALISADE_SECRET`. A client with a user gives access to that
    /// user only, unless the URL says `access=open`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::zookeeper::Config;
    ///
    /// let config = Config::parse("//a,b:2182,c/teams/shop")?;
    /// assert_eq!((config.servers[1].port, config.root.as_str()), (2182, "/teams/shop"));
    /// assert_eq!(Config::parse("//localhost")?.root, "/palisade");
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        URL.parse("zookeeper", rest, Config::read)
    }

    fn read(url: &Url<'_>) -> Result<Config, BadUrl> {
        let servers = url.addresses(Some(PORT))?;
        let root = root(&decoded(url.path)?)?;
        let login = match url.login()? {
            None => None,
            Some((None, _)) => return Err(BadUrl::NoUser),
            Some((Some(user), secret)) => {
                let secret = secret.or_else(|| Secret::in_environment(&[])).ok_or(BadUrl::NoSecret)?;
                if user.contains(':') {
                    return Err(invalid("the name of a user has no ':'"));
                }
                Some(Login { user, secret: Secret::Text(secret) })
            }
        };
        let access = match (url.option("access")?.as_deref(), &login) {
            (None | Some("own"), Some(_)) => Access::Own,
            (None, None) | (Some("open"), _) => Access::Open,
            (Some("own"), None) => return Err(invalid("access=own needs a user")),
            (Some(_), _) => return Err(invalid("access is 'own' or 'open'")),
        };
        Ok(Config { servers, root, login, access })
    }

    /// The servers in the form that the driver takes.
    pub(super) fn cluster(&self) -> String {
        self.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

fn invalid(why: &str) -> BadUrl {
    BadUrl::Invalid(why.to_owned())
}

/// Returns the path of the root node. ZooKeeper refuses some characters in paths, and has a node `/zookeeper`.
fn root(path: &str) -> Result<String, BadUrl> {
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(ROOT.to_owned());
    }
    let is_node = |node: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !matches!(node, "" | "." | "..") && node.chars().all(is_allowed)
    };
    if path.len() > 200 || !path.split('/').all(is_node) || path.split('/').next() == Some("zookeeper") {
        return Err(invalid(
            "its path has at most 200 letters, digits, '-', '_', '.' and '/', and does not begin with /zookeeper",
        ));
    }
    Ok(format!("/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_refused_with_the_accepted_form() {
        for (rest, part) in [
            ("", "host"),
            ("//", "host"),
            ("//a,,b", "host"),
            ("//host:0", "port"),
            ("//::1:2181", "brackets"),
            ("//host/a//b", "path"),
            ("//host/../a", "path"),
            ("//host/zookeeper/quota", "path"),
            ("//host/a%00", "path"),
            ("//:xyzzy@host", "user"),
            ("//a%3ab:xyzzy@host", "':'"),
            ("//host?access=own", "needs a user"),
            ("//host?access=all", "'own' or 'open'"),
            ("//host?password=xyzzy", "unknown"),
        ] {
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains(part) && error.what.contains("zookeeper://"), "{rest:?}: {}", error.what);
            assert!(!error.what.contains("zzy") && !error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn a_user_has_its_nodes_alone_unless_the_url_opens_them() {
        let config = Config::parse("//ci:xy%2Fzzy@a,[::1]:2182/shop/").expect("a URL");
        assert_eq!((config.root.as_str(), config.access), ("/shop", Access::Own));
        assert_eq!(config.cluster(), "a:2181,[::1]:2182");
        assert_eq!(config.login.as_ref().map(|login| login.user.as_str()), Some("ci"));
        assert!(!format!("{config:?}").contains("zzy"));
        assert_eq!(Config::parse("//ci:xyzzy@a?access=open").expect("a URL").access, Access::Open);
        assert_eq!(Config::parse("//a").expect("a URL").access, Access::Open);
    }
}
