//! The configuration, and the `consul:` and `consuls:` URLs that give it.

use crate::engine::Failure;
use crate::engine::remote::{Address, BadUrl, Secret, Tls, TlsOptions, Url, UrlForm, decoded};

const PORT: u16 = 8500;
const PREFIX: &str = "palisade";
/// The environment variable of Consul's own client.
const TOKEN_VARIABLE: &str = "CONSUL_HTTP_TOKEN";
/// The port of encrypted connections.
const TLS_PORT: u16 = 8501;

pub(crate) const URL: UrlForm = UrlForm {
    store: "Consul",
    example: "consul://host:8500,host:8500/prefix, or with TLS consuls://host:8501",
    options: "ca=FILE cert=FILE key=FILE",
    has_users: false,
};

pub(super) const TLS: TlsOptions = TlsOptions {
    ca: "ca",
    cert: "cert",
    key: "key",
    wrong_name: "use a name in the certificate",
    not_encrypted: "if that is intended, use consul:// instead of consuls://",
    encrypted: "use consuls:// instead of consul://",
};

/// A Consul, and how it is used. Its `Debug` form shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Agents of the cluster, servers or clients. One of them is used at a time.
    pub nodes: Vec<Address>,
    /// The ACL token.
    pub secret: Option<Secret>,
    /// The settings of encrypted connections. The files are read for every connection.
    pub tls: Option<Tls>,
    /// The clients of one prefix share locks. All keys begin with the prefix and a slash.
    pub prefix: String,
}

impl Config {
    /// Parses the part of a URL after `consul:`: `//[:token@]host[:port][,host[:port]…][/prefix]`. In the token any character
    /// can be percent-encoded, and `/ ? # %` must be. Without one in the URL, the ACL token is taken from the environment
    /// variable `PALISADE_SECRET`, or `CONSUL_HTTP_TOKEN`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::consul::Config;
    ///
    /// let config = Config::parse("//a,b:8600/locks/shop")?;
    /// assert_eq!((config.nodes[0].port, config.nodes[1].port, config.prefix.as_str()), (8500, 8600, "locks/shop"));
    /// assert_eq!(Config::parse("//localhost")?.prefix, "palisade");
    /// assert!(Config::parse("//localhost?ca=ca.pem").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        URL.parse("consul", rest, |url| Config::read(url, false))
    }

    /// Parses the part of a URL after `consuls:`, for encrypted connections: as [`Config::parse`], and with the options
    /// `ca=FILE` and `cert=FILE` with `key=FILE`, which are fields of [`Tls`].
    ///
    /// # Errors
    ///
    /// As [`Config::parse`].
    ///
    /// ```
    /// use palisade::engine::consul::Config;
    ///
    /// let config = Config::parse_encrypted("//:xyzzy@a.example?ca=/etc/consul/ca.pem")?;
    /// assert!(config.tls.is_some() && !format!("{config:?}").contains("xyzzy"));
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse_encrypted(rest: &str) -> Result<Config, Failure> {
        URL.parse("consuls", rest, |url| Config::read(url, true))
    }

    fn read(url: &Url<'_>, is_encrypted: bool) -> Result<Config, BadUrl> {
        let tls = Tls::read_if(url, &TLS, is_encrypted)?;
        let secret = match url.login()? {
            Some((Some(_), _)) => {
                return Err(invalid(
                    "it has no users: write its ACL token after a colon, as in consul://:TOKEN@host, or set it in PALISADE_SECRET",
                ));
            }
            Some((None, secret)) => secret,
            None => None,
        };
        let secret = secret.or_else(|| Secret::in_environment(&[TOKEN_VARIABLE])).map(Secret::Text);
        let port = if is_encrypted { TLS_PORT } else { PORT };
        Ok(Config { nodes: url.addresses(Some(port))?, secret, tls, prefix: prefix(url)? })
    }
}

fn invalid(why: &str) -> BadUrl {
    BadUrl::Invalid(why.to_owned())
}

/// A prefix is part of the path of requests, which Consul's server normalizes.
fn prefix(url: &Url<'_>) -> Result<String, BadUrl> {
    let path = decoded(url.path)?;
    let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.chars().any(char::is_control);
    match path.trim_matches('/') {
        "" => Ok(PREFIX.to_owned()),
        prefix if prefix.len() <= 200 && prefix.is_ascii() && prefix.split('/').all(is_part) => Ok(prefix.to_owned()),
        _ => Err(invalid("a prefix has at most 200 ASCII characters, and no parts that are empty, '.' or '..'")),
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
            ("host:8500", "host"),
            ("//one:1,/", "host"),
            ("//host:0", "port"),
            ("//::1:8500", "brackets"),
            ("//ho st", "' '"),
            ("//me:xyzzy@host", "no users"),
            ("//xyzzy@host", "consul://:TOKEN@host"),
            ("//xyzzy@host:0", "port"),
            ("//xyzzy@ho st", "' '"),
            ("//:xy/zzy@host", "'/'"),
            ("//host?password=xyzzy", "unknown"),
            ("//host/a%0ab", "ASCII"),
            ("//host/a//b", "empty"),
            ("//host/a/../b", "empty"),
            ("//host?ca=a", "encrypted"),
            ("//host?cert=a", "go together"),
        ] {
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains(part) && error.what.contains("consul://"), "{rest:?}: {}", error.what);
            assert!(!error.what.contains("zzy") && !error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn all_options_are_read() {
        let config = Config::parse_encrypted("//:xy%2Fzzy@host:1/a/b/?ca=/a%20b&cert=c&key=k").expect("a URL");
        assert_eq!(config.prefix, "a/b");
        assert_eq!(config.secret, Some(Secret::Text("xy/zzy".to_owned())));
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b".into()), identity, name: None }));
    }
}
