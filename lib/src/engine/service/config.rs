//! The configuration, and the `palisade:` and `palisades:` URLs that give it.

use crate::engine::Failure;
use crate::engine::remote::{Address, BadUrl, Login, Secret, Tls, TlsOptions, Url, UrlForm};

pub(crate) const URL: UrlForm = UrlForm {
    store: "service",
    example: "palisade://host:port, for a cluster palisade://host:port,host:port,host:port, or with TLS and a login \
              palisades://user@host:port?secret_file=FILE",
    options: "ca=FILE cert=FILE key=FILE name=NAME secret_file=FILE",
    has_users: true,
};

pub(super) const TLS: TlsOptions = TlsOptions {
    ca: "ca",
    cert: "cert",
    key: "key",
    wrong_name: "use a name in the certificate, or pass one with ?name=NAME",
    not_encrypted: "if that is intended, use palisade:// instead of palisades://",
    encrypted: "use palisades:// instead of palisade://",
};

/// The service, and how to connect to it. Its `Debug` form shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The nodes of the service: one, or those of a cluster. The client uses the one that leads.
    pub addresses: Vec<Address>,
    /// The login. Without it, the client is the user that its certificate names, if any.
    pub login: Option<Login>,
    /// The settings of an encrypted connection. The files are read for the first connection, and again after an attempt that
    /// failed permanently.
    pub tls: Option<Tls>,
}

impl Config {
    /// Parses the part of a URL after `palisade:`: `//[user[:secret]@]host:port[,host:port…][?secret_file=FILE]`. In user, secret and
    /// file any character can be percent-encoded, and `/ ? # %` must be. A user's secret that is not in
    /// the URL is taken from the file, or else from the environment variable `PALISADE_SECRET`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::remote::Secret;
    /// use palisade::engine::service::Config;
    ///
    /// let config = Config::parse("//locks.example:7420")?;
    /// assert_eq!((config.addresses[0].host.as_str(), config.addresses[0].port), ("locks.example", 7420));
    /// assert_eq!(Config::parse("//[::1]:7420")?.addresses[0].host, "::1");
    /// assert_eq!(Config::parse("//a.example:7420,b.example:7420,c.example:7420")?.addresses.len(), 3);
    /// assert!(Config::parse("//locks.example").is_err());
    ///
    /// let config = Config::parse("//ci:100%25@locks.example:7420")?;
    /// assert_eq!(config.login.map(|login| login.secret), Some(Secret::Text("100%".to_owned())));
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        URL.parse("palisade", rest, |url| Config::read(url, false))
    }

    /// Parses the part of a URL after `palisades:`, for an encrypted connection: as [`Config::parse`], and with the options
    /// `ca=FILE`, `cert=FILE` with `key=FILE`, and `name=NAME`, which are the fields of [`Tls`].
    ///
    /// # Errors
    ///
    /// As [`Config::parse`].
    ///
    /// ```
    /// use palisade::engine::service::Config;
    ///
    /// let config = Config::parse_encrypted("//10.0.0.7:7420?ca=/etc/palisade/ca.pem&name=locks.example")?;
    /// assert_eq!(config.tls.and_then(|tls| tls.name), Some("locks.example".to_owned()));
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse_encrypted(rest: &str) -> Result<Config, Failure> {
        URL.parse("palisades", rest, |url| Config::read(url, true))
    }

    fn read(url: &Url<'_>, is_encrypted: bool) -> Result<Config, BadUrl> {
        let tls = Tls::read_if(url, &TLS, is_encrypted)?;
        if !url.path.is_empty() {
            return Err(BadUrl::Unencoded { found: '/' });
        }
        Ok(Config { addresses: url.addresses(None)?, login: login(url)?, tls })
    }
}

fn login(url: &Url<'_>) -> Result<Option<Login>, BadUrl> {
    let (user, secret, file) = match (url.login()?, url.option("secret_file")?) {
        (None, None) => return Ok(None),
        (None, Some(_)) | (Some((None, _)), _) => return Err(BadUrl::NoUser),
        (Some((Some(user), secret)), file) => (user, secret, file),
    };
    let secret = match (secret, file) {
        (Some(_), Some(_)) => {
            return Err(BadUrl::Invalid("it has both a secret and a secret_file; leave one out".to_owned()));
        }
        (None, Some(file)) => Secret::File(file.into()),
        (secret, None) => Secret::Text(secret.or_else(|| Secret::in_environment(&[])).ok_or(BadUrl::NoSecret)?),
    };
    Ok(Some(Login { user, secret }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::remote::Identity;

    #[test]
    fn an_invalid_url_is_refused_with_the_accepted_form() {
        for (rest, part) in [
            ("", "host"),
            ("host:7117", "host"),
            ("//", "host"),
            ("//:7117", "host"),
            ("//host", "port"),
            ("//host:", "port"),
            ("//host:0", "port"),
            ("//host:70000", "port"),
            ("//::1:7117", "brackets"),
            ("//host:7117/locks", "'/'"),
            ("//host:7117#a", "'#'"),
            ("//one:1,two", "port"),
            ("//ho st:7117", "' '"),
            ("//h\0st:7117", "'\\0'"),
            ("//@host:7117", "user"),
            ("//:xyzzy@host:7117", "user"),
            ("//host:7117?secret_file=a", "user"),
            ("//me:xyzzy@host:7117?secret_file=a", "leave one out"),
            ("//me:xy/zzy@host:7117", "'/'"),
            ("//me:%ff@host:7117", "UTF-8"),
            ("//host:7117?a=b", "unknown"),
            ("//me@host:7117?secret=xyzzy", "unknown"),
            ("//host:7117?ca", "one value"),
            ("//host:7117?ca=a&ca=b", "one value"),
            ("//host:7117?ca=a", "encrypted"),
            ("//host:7117?cert=a", "go together"),
        ] {
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains(part) && error.what.contains("palisade://"), "{rest:?}: {}", error.what);
            assert!(!error.what.contains("zzy") && !error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn all_options_are_read() {
        let config =
            Config::parse_encrypted("//c%40i:xy%2Fzzy@host:1/?ca=/a%20b&cert=c&key=k&name=n").expect("a URL");
        let login = Login { user: "c@i".to_owned(), secret: Secret::Text("xy/zzy".to_owned()) };
        assert_eq!((config.login.as_ref(), config.addresses[0].to_string().as_str()), (Some(&login), "host:1"));
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b".into()), identity, name: Some("n".to_owned()) }));
        assert!(!format!("{config:?}").contains("zzy"));
        let config = Config::parse_encrypted("//ci@host:1?secret_file=s").expect("a URL");
        assert_eq!(config.login.map(|login| login.secret), Some(Secret::File("s".into())));
        assert_eq!(config.tls, Some(Tls::default()));
    }
}
