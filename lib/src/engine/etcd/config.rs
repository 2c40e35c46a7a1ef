//! The configuration, and the `etcd:` and `etcds:` URLs that give it.

use crate::engine::Failure;
use crate::engine::remote::{Address, BadUrl, Secret, Tls, TlsOptions, Url, UrlForm, decoded};

const PORT: u16 = 2379;
const PREFIX: &str = "palisade";
/// The environment variable of etcd's own client. Its value is a password, or a user and a password.
const PASSWORD_VARIABLE: &str = "ETCDCTL_PASSWORD";

pub(crate) const URL: UrlForm = UrlForm {
    store: "etcd",
    example: "etcd://user@host:2379,host:2379/prefix, or with TLS etcds://user@host:2379",
    options: "ca=FILE cert=FILE key=FILE",
    has_users: true,
};

pub(super) const TLS: TlsOptions = TlsOptions {
    ca: "ca",
    cert: "cert",
    key: "key",
    wrong_name: "use a name in the certificate",
    not_encrypted: "if that is intended, use etcd:// instead of etcds://",
    encrypted: "use etcds:// instead of etcd://",
};

/// An etcd, and how it is used. Its `Debug` form shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Members of the cluster. One connection is open at a time, to one of them.
    pub nodes: Vec<Address>,
    /// The user.
    pub user: Option<String>,
    /// The user's password.
    pub secret: Option<Secret>,
    /// The settings of encrypted connections. The files are read for every connection.
    pub tls: Option<Tls>,
    /// The clients of one prefix share locks. All keys begin with the prefix and a slash.
    pub prefix: String,
}

impl Config {
    /// Parses the part of a URL after `etcd:`: `//[user[:secret]@]host[:port][,host[:port]…][/prefix]`. In user and
    /// secret any character can be percent-encoded, and `/ ? # %` must be. The secret of a user without one is taken from the
    /// environment variable `PALISADE_SECRET`, or `ETCDCTL_PASSWORD`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::etcd::Config;
    ///
    /// let config = Config::parse("//a,b:2479/locks/shop")?;
    /// assert_eq!((config.nodes[0].port, config.nodes[1].port, config.prefix.as_str()), (2379, 2479, "locks/shop"));
    /// assert_eq!(Config::parse("//localhost")?.prefix, "palisade");
    /// assert!(Config::parse("//localhost?ca=ca.pem").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        URL.parse("etcd", rest, |url| Config::read(url, false))
    }

    /// Parses the part of a URL after `etcds:`, for encrypted connections: as [`Config::parse`], and with the options
    /// `ca=FILE` and `cert=FILE` with `key=FILE`, which are fields of [`Tls`].
    ///
    /// # Errors
    ///
    /// As [`Config::parse`].
    ///
    /// ```
    /// use palisade::engine::etcd::Config;
    ///
    /// let config = Config::parse_encrypted("//me:xyzzy@a.example?ca=/etc/etcd/ca.pem")?;
    /// assert!(config.tls.is_some() && !format!("{config:?}").contains("xyzzy"));
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse_encrypted(rest: &str) -> Result<Config, Failure> {
        URL.parse("etcds", rest, |url| Config::read(url, true))
    }

    fn read(url: &Url<'_>, is_encrypted: bool) -> Result<Config, BadUrl> {
        let tls = Tls::read_if(url, &TLS, is_encrypted)?;
        let (user, secret) = match url.login()? {
            Some((None, _)) => return Err(invalid("a secret needs a user")),
            Some((user, secret)) => (user, secret.or_else(|| Secret::in_environment(&[PASSWORD_VARIABLE]))),
            None => (None, None),
        };
        if user.is_some() && secret.is_none() {
            return Err(invalid("its user needs a secret: set PALISADE_SECRET"));
        }
        Ok(Config {
            nodes: url.addresses(Some(PORT))?,
            user,
            secret: secret.map(Secret::Text),
            tls,
            prefix: prefix(url)?,
        })
    }
}

fn invalid(why: &str) -> BadUrl {
    BadUrl::Invalid(why.to_owned())
}

fn prefix(url: &Url<'_>) -> Result<String, BadUrl> {
    let path = decoded(url.path)?;
    match path.trim_matches('/') {
        "" => Ok(PREFIX.to_owned()),
        prefix if prefix.len() <= 200 && !prefix.chars().any(char::is_control) => Ok(prefix.to_owned()),
        _ => Err(invalid("a prefix has at most 200 bytes, and no control characters")),
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
            ("host:2379", "host"),
            ("//one:1,/", "host"),
            ("//host:0", "port"),
            ("//::1:2379", "brackets"),
            ("//ho st", "' '"),
            ("//:xyzzy@host", "user"),
            ("//me:xy/zzy@host", "'/'"),
            ("//host?password=xyzzy", "unknown"),
            ("//host/a%0ab", "control characters"),
            ("//host?ca=a", "encrypted"),
            ("//host?cert=a", "go together"),
        ] {
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains(part) && error.what.contains("etcd://"), "{rest:?}: {}", error.what);
            assert!(!error.what.contains("zzy") && !error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn all_options_are_read() {
        let config = Config::parse_encrypted("//c%40i:xy%2Fzzy@host:1/a/b/?ca=/a%20b&cert=c&key=k").expect("a URL");
        assert_eq!((config.user.as_deref(), config.prefix.as_str()), (Some("c@i"), "a/b"));
        assert_eq!(config.secret, Some(Secret::Text("xy/zzy".to_owned())));
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b".into()), identity, name: None }));
    }
}
