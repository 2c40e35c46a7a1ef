//! What a `palisade:` or `palisades:` URL says.

use std::env;

use super::url::{Parts, decoded, split_secret};
use super::{BadAddress, Identity, Login, Secret, Tls};
use crate::engine::{Failure, Unavailable};

/// Where the secret is that a URL does not say.
const SECRET_VARIABLE: &str = "PALISADE_SECRET";

/// Which service, and how it is called. No secret shows in its `Debug` form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The host's name or address; one of version 6 without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The login. Without it, the client is the user that its certificate names, if any.
    pub login: Option<Login>,
    /// How the line is encrypted, if it is.
    pub tls: Option<Tls>,
}

impl Config {
    /// From what follows `palisade:` in a URL: `//[user[:secret]@]host:port[?secret_file=FILE]`. In user, secret and
    /// file any character can stand in its percent-encoded form, and `/ ? # %` must. A user's secret that is not in
    /// the URL is taken from the file, or else from the environment variable `PALISADE_SECRET`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], with a [`BadAddress`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::service::{Config, Secret};
    ///
    /// let config = Config::parse("//locks.example:7420")?;
    /// assert_eq!((config.host.as_str(), config.port), ("locks.example", 7420));
    /// assert_eq!(Config::parse("//[::1]:7420")?.host, "::1");
    /// assert!(Config::parse("//locks.example").is_err());
    ///
    /// let config = Config::parse("//ci:100%25@locks.example:7420")?;
    /// assert_eq!(config.login.map(|login| login.secret), Some(Secret::Text("100%".to_owned())));
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        Config::read(rest, false).map_err(|bad| no_service("palisade", rest, bad))
    }

    /// From what follows `palisades:` in a URL, for an encrypted line: as [`Config::parse`], and with the options
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
        Config::read(rest, true).map_err(|bad| no_service("palisades", rest, bad))
    }

    fn read(rest: &str, is_encrypted: bool) -> Result<Config, BadAddress> {
        let parts = Parts::of(rest)?;
        let tls = tls(&parts)?;
        if !is_encrypted && tls != Tls::default() {
            return Err(BadAddress::NotEncrypted);
        }
        let login = login(&parts)?;
        let tls = is_encrypted.then_some(tls);
        Ok(Config { host: parts.host.to_owned(), port: parts.port, login, tls })
    }

    /// As people write it.
    pub(super) fn address(&self) -> String {
        let Config { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

fn no_service(scheme: &str, rest: &str, bad: BadAddress) -> Failure {
    let shown = split_secret(rest).0;
    Unavailable::new(format!("'{scheme}:{}' names no service: {bad}", shown.escape_debug()))
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
    Ok(Tls { ca: parts.option("ca")?.map(Into::into), identity, name: parts.option("name")? })
}

fn login(parts: &Parts<'_>) -> Result<Option<Login>, BadAddress> {
    let file = parts.option("secret_file")?;
    let Some(user) = parts.user.map(decoded).transpose()? else {
        return if file.is_some() { Err(BadAddress::NoUser) } else { Ok(None) };
    };
    let secret = match (parts.secret.map(decoded).transpose()?, file) {
        (Some(_), Some(_)) => return Err(BadAddress::TwoSecrets),
        (Some(secret), None) => Secret::Text(secret),
        (None, Some(file)) => Secret::File(file.into()),
        (None, None) => match env::var(SECRET_VARIABLE) {
            Ok(secret) if !secret.is_empty() => Secret::Text(secret),
            _ => return Err(BadAddress::NoSecret),
        },
    };
    Ok(Some(Login { user, secret }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_is_not_an_address_is_refused_with_what_is_accepted() {
        let cases = [
            ("", BadAddress::NoHost),
            ("host:7117", BadAddress::NoHost),
            ("//", BadAddress::NoPort),
            ("//:7117", BadAddress::NoHost),
            ("//host", BadAddress::NoPort),
            ("//host:", BadAddress::NoPort),
            ("//host:0", BadAddress::NoPort),
            ("//host:70000", BadAddress::NoPort),
            ("//::1:7117", BadAddress::NoBrackets),
            ("//host:7117/locks", BadAddress::Unknown { found: '/' }),
            ("//host:7117#a", BadAddress::Unknown { found: '#' }),
            ("//one:1,two:2", BadAddress::Unknown { found: ',' }),
            ("//ho st:7117", BadAddress::Unknown { found: ' ' }),
            ("//h\0st:7117", BadAddress::Unknown { found: '\0' }),
            ("//@host:7117", BadAddress::NoUser),
            ("//:xyzzy@host:7117", BadAddress::NoUser),
            ("//host:7117?secret_file=a", BadAddress::NoUser),
            ("//me:xyzzy@host:7117?secret_file=a", BadAddress::TwoSecrets),
            ("//me:xy/zzy@host:7117", BadAddress::Unknown { found: '/' }),
            ("//me:%ff@host:7117", BadAddress::NotText),
            ("//host:7117?a=b", BadAddress::UnknownOption),
            ("//me@host:7117?secret=xyzzy", BadAddress::UnknownOption),
            ("//host:7117?ca", BadAddress::BadOption),
            ("//host:7117?ca=a&ca=b", BadAddress::BadOption),
            ("//host:7117?ca=a", BadAddress::NotEncrypted),
            ("//host:7117?cert=a", BadAddress::HalfIdentity),
        ];
        for (rest, bad) in cases {
            assert_eq!(Config::read(rest, false), Err(bad), "{rest:?}");
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains("palisade://") && !error.what.contains("xyzzy"), "{}", error.what);
            assert!(!error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn an_address_is_written_as_it_was_read() {
        let read = |rest: &str| Config::read(rest, false);
        for address in ["host:1", "127.0.0.1:7117", "[::1]:7117"] {
            assert_eq!(read(&format!("//{address}")).map(|config| config.address()), Ok(address.to_owned()));
        }
        assert_eq!(read("//host:1/"), read("//host:1"));
    }

    #[test]
    fn all_that_a_url_can_say_is_understood() {
        let url = "//c%40i:xy%2Fzzy@host:1?ca=/a%20b&cert=c&key=k&name=n";
        let config = Config::read(url, true).expect("a URL");
        let login = Login { user: "c@i".to_owned(), secret: Secret::Text("xy/zzy".to_owned()) };
        assert_eq!(config.login, Some(login));
        let identity = Some(Identity { certificate: "c".into(), key: "k".into() });
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b".into()), identity, name: Some("n".to_owned()) }));
        assert!(!format!("{config:?}").contains("zzy"));
        let config = Config::read("//ci@host:1?secret_file=s", true).expect("a URL");
        assert_eq!(config.login.map(|login| login.secret), Some(Secret::File("s".into())));
        assert_eq!(config.tls, Some(Tls::default()));
    }
}
