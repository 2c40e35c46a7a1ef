//! The URLs of stores: `scheme://user:secret@host:port,host:port/path?option=value`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::{env, fmt, fs};

use percent_encoding::percent_decode_str;
use thiserror::Error;

use super::SecurityError;
use crate::engine::{Failure, Unavailable};

/// The environment variable with the secret that a URL does not contain.
const SECRET_VARIABLE: &str = "PALISADE_SECRET";

/// Why a URL names no store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadUrl {
    /// It has no host, or does not begin with `//`.
    #[error("a host is missing")]
    NoHost,
    /// A port is missing, or is not valid.
    #[error("a port between 1 and 65535 is missing")]
    NoPort,
    /// An IPv6 address has no brackets.
    #[error("an IPv6 address needs brackets, as in [::1]:1234")]
    NoBrackets,
    /// It has several hosts, and the store is one server.
    #[error("it names several hosts")]
    SeveralHosts,
    /// A character must be percent-encoded.
    #[error("{found:?} must be percent-encoded")]
    Unencoded {
        /// The character.
        found: char,
    },
    /// A percent-encoded part is not UTF-8.
    #[error("a percent-encoded part is not UTF-8")]
    NotText,
    /// A secret or a file with a secret has no user.
    #[error("a user is missing for the secret")]
    NoUser,
    /// A user has no secret.
    #[error("the user's secret is missing; set the environment variable {SECRET_VARIABLE}")]
    NoSecret,
    /// An option is unknown.
    #[error("{} is unknown; the options are {known}", .name.as_ref().map_or("an option".to_owned(), |name| format!("the option '{name}'")))]
    UnknownOption {
        /// Its name; `None` if it might be part of a secret.
        name: Option<String>,
        /// The known ones.
        known: String,
    },
    /// An option lacks its value, has one that it does not take, or is given twice.
    #[error("the option {name} needs one value; a flag has none, and no option is given twice")]
    BadOption {
        /// The option's name.
        name: String,
    },
    /// A certificate has no key, or a key has no certificate.
    #[error("a certificate and its key go together")]
    HalfIdentity,
    /// Options for encryption are in a URL of a connection that is not encrypted.
    #[error("options for certificates need an encrypted connection")]
    NotEncrypted,
    /// Another part is not valid for this store.
    #[error("{0}")]
    Invalid(String),
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The host's name or address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Whether a host is this one.
pub(crate) fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// A user and its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// A user that the store knows.
    pub user: String,
    /// The user's secret.
    pub secret: Secret,
}

/// A secret, or the file that contains it. Its `Debug` form hides the secret.
///
/// ```
/// use palisade::engine::remote::Secret;
/// assert_eq!(format!("{:?}", Secret::Text("xyzzy".to_owned())), "Text(…)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The secret itself.
    Text(String),
    /// The first line of this file, read again at every login.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::Text(_) => f.write_str("Text(…)"),
            Secret::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Secret {
    /// Returns the secret in clear.
    pub(crate) fn reveal(&self) -> Result<String, SecurityError> {
        let path = match self {
            Secret::Text(text) => return Ok(text.clone()),
            Secret::File(path) => path,
        };
        let unusable = |why: String| SecurityError::Unreadable { what: "the secret", path: path.clone(), why };
        let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        match text.lines().next().map(str::trim_end) {
            Some(line) if !line.is_empty() => Ok(line.to_owned()),
            _ => Err(unusable("its first line is empty".to_owned())),
        }
    }

    /// Returns the secret in `PALISADE_SECRET`, or else in one of these environment variables.
    pub(crate) fn in_environment(others: &[&str]) -> Option<String> {
        let variables = [&[SECRET_VARIABLE], others].concat();
        variables.iter().find_map(|name| env::var(name).ok().filter(|secret| !secret.is_empty()))
    }
}

/// The URLs that an engine accepts.
pub(crate) struct UrlForm {
    /// The store's name in messages.
    pub(crate) store: &'static str,
    /// What to write instead of an invalid URL.
    pub(crate) example: &'static str,
    /// The options, with spaces in between: `name=VALUE`, or `name` for one without a value.
    pub(crate) options: &'static str,
    /// Whether the store has users. Otherwise everything before `@` is a secret.
    pub(crate) has_users: bool,
}

impl UrlForm {
    /// Parses the part of a URL after the scheme, and reads a configuration from it.
    pub(crate) fn parse<T>(
        &self,
        scheme: &str,
        rest: &str,
        read: impl FnOnce(&Url<'_>) -> Result<T, BadUrl>,
    ) -> Result<T, Failure> {
        Url::parse(rest, self).and_then(|url| read(&url)).map_err(|bad| {
            let shown = self.split_secret(rest).0;
            let (shown, UrlForm { store, example, .. }) = (shown.escape_debug(), self);
            let what = format!("'{scheme}:{shown}' names no {store}: {bad}; write {example}");
            Unavailable::new(what).because(bad).without_effect().permanent().into()
        })
    }

    /// Returns the part of a URL after the scheme without its secret, and the secret. From a text that is no URL, every
    /// part that might be a secret is removed.
    pub(crate) fn split_secret(&self, rest: &str) -> (String, Option<String>) {
        let Ok(url) = Url::parse(rest, self) else { return (self.blurred(rest), None) };
        let (mut shown, mut found) = (rest.to_owned(), None);
        if let Some((user, secret)) = url.login.filter(|(_, secret)| !secret.is_empty()) {
            // A login without a user is recognised by its colon.
            let colon = 2 + user.len() + usize::from(user.is_empty());
            shown.replace_range(colon..2 + user.len() + 1 + secret.len(), "");
            found = Some(secret);
        }
        if let Some((user, _)) = url.login.filter(|(user, _)| !self.has_users && !user.is_empty()) {
            shown.replace_range(2..2 + user.len(), "…");
        }
        // An option of PostgreSQL.
        if let Some((_, secret)) = url.options.iter().find(|(name, _)| *name == "password") {
            let others = url.options.iter().filter(|(name, _)| *name != "password");
            let others: Vec<_> = others.map(|(name, value)| format!("{name}={value}")).collect();
            let place = shown.split('?').next().unwrap_or_default();
            shown = format!("{place}{}{}", if others.is_empty() { "" } else { "?" }, others.join("&"));
            found = Some(secret);
        }
        (shown, found.and_then(|secret| decoded(secret).ok()))
    }

    /// A text that is no URL, without anything that might be a secret.
    fn blurred(&self, rest: &str) -> String {
        let cut = |text: &str| match text.find([':', '?']) {
            Some(begin) => format!("{}:…", &text[..begin]),
            None => text.to_owned(),
        };
        match rest.rfind('@') {
            Some(at) if !self.has_users => {
                format!("{}…{}", if rest.starts_with("//") { "//" } else { "" }, cut(&rest[at..]))
            }
            Some(at) if rest[..at].contains([':', '?']) => format!("{}{}", cut(&rest[..at]), &rest[at..]),
            _ => cut(rest),
        }
    }

    fn options<'a>(&self, query: &'a str) -> Result<Vec<(&'a str, &'a str)>, BadUrl> {
        let mut options: Vec<(&str, &str)> = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let Some(known) = self.options.split(' ').find(|known| known.split('=').next() == Some(name)) else {
                // A secret that is not percent-encoded may contain `?` or `&`.
                let is_secret = query.contains('@') || options.iter().any(|(other, _)| *other == "password");
                let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
                let is_shown = !is_secret && name.len() <= 32 && name.chars().all(is_name);
                let known = self.options.replace(' ', ", ");
                return Err(BadUrl::UnknownOption { name: is_shown.then(|| name.to_owned()), known });
            };
            if value.is_empty() == known.contains('=') || options.iter().any(|(other, _)| *other == name) {
                return Err(BadUrl::BadOption { name: name.to_owned() });
            }
            options.push((name, value));
        }
        Ok(options)
    }
}

type UserAndSecret = (Option<String>, Option<String>);

/// The parts of a URL after its scheme, not decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    /// A user and a secret, either of which may be empty.
    login: Option<(&'a str, &'a str)>,
    /// Names, which may be empty, and ports. IPv6 addresses are without brackets.
    pub(crate) hosts: Vec<(&'a str, Option<u16>)>,
    pub(crate) path: &'a str,
    /// Each is known, and there once.
    pub(crate) options: Vec<(&'a str, &'a str)>,
}

impl<'a> Url<'a> {
    fn parse(rest: &'a str, form: &UrlForm) -> Result<Url<'a>, BadUrl> {
        let rest = rest.strip_prefix("//").ok_or(BadUrl::NoHost)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, place) = place.rsplit_once('@').map_or((None, place), |(login, place)| (Some(login), place));
        let login = login.map(|login| login.split_once(':').unwrap_or((login, "")));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let hosts = hosts.split(',').map(host).collect::<Result<_, _>>()?;
        Ok(Url { login, hosts, path, options: form.options(query)? })
    }

    /// Returns the user and the secret, decoded; each is `None` if it is empty.
    pub(crate) fn login(&self) -> Result<Option<UserAndSecret>, BadUrl> {
        let Some((user, secret)) = self.login else { return Ok(None) };
        let is_special = |c: &char| c.is_control() || c.is_whitespace() || "/#".contains(*c);
        if let Some(found) = user.chars().chain(secret.chars()).find(is_special) {
            return Err(BadUrl::Unencoded { found });
        }
        let part = |part: &str| (!part.is_empty()).then(|| decoded(part)).transpose();
        Ok(Some((part(user)?, part(secret)?)))
    }

    /// Returns an option's value, decoded.
    pub(crate) fn option(&self, name: &str) -> Result<Option<String>, BadUrl> {
        let found = self.options.iter().find(|(option, _)| *option == name);
        found.map(|(_, value)| decoded(value)).transpose()
    }

    /// Returns all hosts. Without a default, each needs a port.
    pub(crate) fn addresses(&self, port: Option<u16>) -> Result<Vec<Address>, BadUrl> {
        let address = |(host, own): &(&str, Option<u16>)| match (*host, own.or(port)) {
            ("", _) => Err(BadUrl::NoHost),
            (_, None) => Err(BadUrl::NoPort),
            (host, Some(port)) => Ok(Address { host: host.to_owned(), port }),
        };
        self.hosts.iter().map(address).collect()
    }
}

fn host(text: &str) -> Result<(&str, Option<u16>), BadUrl> {
    if let Some(found) = text.chars().find(|c| c.is_control() || c.is_whitespace() || *c == '#') {
        return Err(BadUrl::Unencoded { found });
    }
    let (host, port) = match text.strip_prefix('[').map(|text| text.split_once(']')) {
        Some(Some((host, ""))) => (host, ""),
        Some(Some((host, port))) => (host, port.strip_prefix(':').ok_or(BadUrl::NoBrackets)?),
        None if text.matches(':').count() < 2 && !text.contains(['[', ']']) => {
            text.split_once(':').unwrap_or((text, ""))
        }
        _ => return Err(BadUrl::NoBrackets),
    };
    match port {
        "" => Ok((host, None)),
        port => port.parse().ok().filter(|port| *port > 0).map(|port| (host, Some(port))).ok_or(BadUrl::NoPort),
    }
}

pub(crate) fn decoded(text: &str) -> Result<String, BadUrl> {
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| BadUrl::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: UrlForm = UrlForm {
        store: "store",
        example: "store://host",
        options: "ca=FILE cluster namespace=NAME password=TEXT sentinel=NAME timeout=TIME",
        has_users: true,
    };

    fn parse(rest: &str) -> Result<Url<'_>, BadUrl> {
        Url::parse(rest, &FORM)
    }

    #[test]
    fn an_invalid_part_is_refused() {
        let bad_option = |name: &str| BadUrl::BadOption { name: name.to_owned() };
        let unknown = |name: Option<&str>| BadUrl::UnknownOption {
            name: name.map(str::to_owned),
            known: FORM.options.replace(' ', ", "),
        };
        for (rest, bad) in [
            ("", BadUrl::NoHost),
            ("host:7117", BadUrl::NoHost),
            ("//host:0", BadUrl::NoPort),
            ("//host:70000", BadUrl::NoPort),
            ("//host:0x1/db", BadUrl::NoPort),
            ("//::1:7117", BadUrl::NoBrackets),
            ("//1::1:6379", BadUrl::NoBrackets),
            ("//[::1:6379", BadUrl::NoBrackets),
            ("//[::1]6379", BadUrl::NoBrackets),
            ("//a]:6379", BadUrl::NoBrackets),
            ("//host:7117#a", BadUrl::Unencoded { found: '#' }),
            ("//ho st:7117", BadUrl::Unencoded { found: ' ' }),
            ("//h\0st:7117", BadUrl::Unencoded { found: '\0' }),
            ("//host?a=b", unknown(Some("a"))),
            ("//me@host?secret=xyzzy", unknown(Some("secret"))),
            ("//host?ca=a&sslmode=require", unknown(Some("sslmode"))),
            ("//me?xyzzy@host", unknown(None)),
            ("//me?b=c&xyzzy@host", unknown(None)),
            ("//host?XYZZY=1", unknown(None)),
            ("//host?password=a&xyzzy", unknown(None)),
            ("//host?a23456789012345678901234567890123", unknown(None)),
            ("//host?ca", bad_option("ca")),
            ("//host?ca=a&ca=b", bad_option("ca")),
            ("//host?cluster=yes", bad_option("cluster")),
        ] {
            assert_eq!(parse(rest), Err(bad), "{rest:?}");
        }
        let login = |rest| parse(rest).expect("a URL").login();
        assert_eq!(login("//me:xy/zzy@host"), Err(BadUrl::Unencoded { found: '/' }));
        assert_eq!(login("//me:%ff@host"), Err(BadUrl::NotText));
        let addresses = |rest, port| parse(rest).expect("a URL").addresses(port).map(drop);
        for rest in ["//", "//:6379", "//one:1,/?cluster"] {
            assert_eq!(addresses(rest, Some(1)), Err(BadUrl::NoHost), "{rest}");
        }
        for rest in ["//host", "//host:"] {
            assert_eq!(addresses(rest, None), Err(BadUrl::NoPort), "{rest}");
        }
    }

    #[test]
    fn an_address_is_written_as_it_was_read() {
        for address in ["host:1", "127.0.0.1:7117", "[::1]:7117"] {
            let rest = format!("//{address}/");
            let read = parse(&rest).expect("a URL").addresses(None).expect("addresses");
            assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>(), [address]);
        }
    }

    #[test]
    fn a_url_without_its_secret_leads_to_the_same_place() {
        for (url, without, secret) in [
            ("//host:1", "//host:1", None),
            ("//host:1?ca=/a@b:c", "//host:1?ca=/a@b:c", None),
            ("//ci@host:1/2?namespace=a", "//ci@host:1/2?namespace=a", None),
            ("//ci:@host:1", "//ci:@host:1", None),
            ("//ci:xyzzy@host:1", "//ci@host:1", Some("xyzzy")),
            ("//ci:xy%2Fzzy%25@[::1]:1?ca=/a@b", "//ci@[::1]:1?ca=/a@b", Some("xy/zzy%")),
            ("//ci:xy@zzy:1@host:1", "//ci@host:1", Some("xy@zzy:1")),
            ("//ci:xy/zzy@host", "//ci@host", Some("xy/zzy")),
            ("//:xyzzy@host", "//:@host", Some("xyzzy")),
            ("//:xy%2Fzzy%25@a:1,[::1]:2/?sentinel=m", "//:@a:1,[::1]:2/?sentinel=m", Some("xy/zzy%")),
            ("//me:xyzzy@host:5432/db?ca=a", "//me@host:5432/db?ca=a", Some("xyzzy")),
            ("//me@host/db?password=xyzzy", "//me@host/db", Some("xyzzy")),
            ("//me@host/db?ca=b&password=xyzzy&timeout=1s", "//me@host/db?ca=b&timeout=1s", Some("xyzzy")),
            ("//ci:xy%40zzy@a,b,c?timeout=1s", "//ci@a,b,c?timeout=1s", Some("xy@zzy")),
        ] {
            assert_eq!(FORM.split_secret(url), (without.to_owned(), secret.map(str::to_owned)), "{url}");
            let (parts, whole) = (parse(without).expect("a URL"), parse(url).expect("a URL"));
            let login = whole.login.map(|(user, _)| (user, ""));
            assert_eq!((login, &whole.hosts, whole.path), (parts.login, &parts.hosts, parts.path), "{url}");
        }
    }

    #[test]
    fn a_text_that_is_no_url_is_shown_without_what_might_be_a_secret() {
        for url in [
            "me:xyzzy@host",
            "//ci:xyzzy",
            "//ci:xyzzy@host:0",
            "//ci:xyzzy@host:1:2",
            "//ci:a@b?xyzzy@host:1",
            "//ci:a@b:1?xyzzy@host:1",
            "//ci:1#xyzzy",
            "//ci:xyzzy host:1",
            "//host:1?secret=xyzzy",
            "//ci@host:1?secret=xyzzy",
            "//host?secret=xyzzy",
            "//:xyzzy@ho st:1",
            "//host?password=xyzzy&password=xyzzy",
        ] {
            assert!(parse(url).is_err(), "{url}");
            let (without, secret) = FORM.split_secret(url);
            assert!(!without.contains("xyzzy") && secret.is_none(), "{url} becomes {without}");
        }
        let without_users = UrlForm { has_users: false, ..FORM };
        for url in [
            "//xyzzy@ho st",
            "//xyzzy@host:0",
            "//xyzzy@host?secret=xyzzy",
            "xyzzy@host",
            "//a:xyzzy@ho st",
            "//xyzzy@host",
            "//xyzzy:xyzzy@host",
            "//xy/xyzzy@host?ca=/a",
        ] {
            let shown = without_users.split_secret(url).0;
            assert!(!shown.contains("xyzzy") && shown.contains("@ho"), "{url} becomes {shown}");
        }
        // These are refused later.
        for url in [
            "//ci:xyzzy@",
            "//ci:xyzzy@host",
            "//ci:xyzzy@host:1/path",
            "//ci:xy/xyzzy@host:1",
            "//ci:1/xyzzy@host:1",
            "//ci:a@b/xyzzy@host:1",
            "//ci:1#xyzzy@host:1",
        ] {
            assert!(!FORM.split_secret(url).0.contains("xyzzy"), "{url}");
        }
    }
}
