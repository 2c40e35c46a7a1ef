//! The parts of a `redis:` URL, and a URL without its secret.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::BadAddress;
use crate::engine::url::blurred;

/// A password. Nothing of it shows in its `Debug` form.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(super) String);

impl Secret {
    /// A password from outside.
    ///
    /// ```
    /// let secret = palisade::engine::redis::Secret::new("xyzzy");
    /// assert!(!format!("{secret:?}").contains("xyzzy"));
    /// ```
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The password itself, for who logs in with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What follows `redis:` in a URL, taken apart and nothing decoded: `//user:secret@host:port,host:port/db?option=value`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    /// Whether there is a login at all; without a secret of its own it takes the environment's.
    pub(super) login: Option<Login<'a>>,
    /// Addresses of version 6 are without their brackets.
    pub(super) nodes: Vec<(&'a str, u16)>,
    pub(super) database: &'a str,
    /// Each is known, and there once.
    pub(super) options: Vec<(&'a str, &'a str)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Login<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) secret: Option<&'a str>,
}

/// The options that there are, and whether they have a value.
const OPTIONS: [(&str, bool); 8] = [
    ("ca", true),
    ("cert", true),
    ("cluster", false),
    ("key", true),
    ("namespace", true),
    ("replica_timeout", true),
    ("replicas", true),
    ("sentinel", true),
];

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl<'a> Parts<'a> {
    pub(super) fn of(rest: &'a str) -> Result<Parts<'a>, BadAddress> {
        let rest = rest.strip_prefix("//").ok_or(BadAddress::NoHost)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let is_strange = |c: char| c.is_control() || c.is_whitespace() || "/#".contains(c);
        if let Some(found) = login.unwrap_or("").chars().find(|c| is_strange(*c)) {
            return Err(BadAddress::Unknown { found });
        }
        let login = login.map(|login| login.split_once(':').unwrap_or((login, "")));
        let some = |text: &'a str| Some(text).filter(|text| !text.is_empty());
        let login = login.map(|(user, secret)| Login { user: some(user), secret: some(secret) });
        let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
        let options = options_in(query)?;
        let port = if options.iter().any(|(name, _)| *name == "sentinel") { SENTINEL_PORT } else { PORT };
        let nodes = hosts.split(',').map(|host| node_in(host, port)).collect::<Result<_, _>>()?;
        Ok(Parts { login, nodes, database, options })
    }

    /// An option's value, decoded.
    pub(super) fn option(&self, name: &str) -> Result<Option<String>, BadAddress> {
        let found = self.options.iter().find(|(option, _)| *option == name);
        found.map(|(_, value)| decoded(value)).transpose()
    }
}

fn node_in(address: &str, default: u16) -> Result<(&str, u16), BadAddress> {
    if let Some(found) = address.chars().find(|c| c.is_control() || c.is_whitespace() || "#".contains(*c)) {
        return Err(BadAddress::Unknown { found });
    }
    let (host, port) = match address.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed.split_once(']').ok_or(BadAddress::NoBrackets)?;
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")).ok_or(BadAddress::NoBrackets)?)
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    if host.is_empty() {
        return Err(BadAddress::NoHost);
    }
    match port {
        "" => Ok((host, default)),
        port if port.contains(':') => Err(BadAddress::NoBrackets),
        port => port.parse().ok().filter(|port| *port > 0).map(|port| (host, port)).ok_or(BadAddress::NoPort),
    }
}

fn options_in(query: &str) -> Result<Vec<(&str, &str)>, BadAddress> {
    let mut options: Vec<(&str, &str)> = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let Some((_, has_value)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
            return Err(BadAddress::UnknownOption);
        };
        if value.is_empty() == *has_value || options.iter().any(|(other, _)| *other == name) {
            return Err(BadAddress::BadOption);
        }
        options.push((name, value));
    }
    Ok(options)
}

pub(super) fn decoded(text: &str) -> Result<String, BadAddress> {
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| BadAddress::NotText)
}

/// The same without the secret, and the secret. Of what is no URL, everything is left out that might be one.
pub(crate) fn split_secret(rest: &str) -> (String, Option<String>) {
    let Some(place) = rest.strip_prefix("//") else { return (rest.to_owned(), None) };
    match Parts::of(rest) {
        Ok(Parts { login: Some(Login { user, secret: Some(secret) }), .. }) => {
            let user = user.unwrap_or("");
            let end = user.len() + 1 + secret.len();
            // A login without a name is told by its colon.
            let colon = if user.is_empty() { ":" } else { "" };
            (format!("//{user}{colon}{}", &place[end..]), decoded(secret).ok())
        }
        Ok(_) => (rest.to_owned(), None),
        Err(_) => (format!("//{}", blurred(place)), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_its_secret_leads_to_the_same_place() {
        for (url, without, secret) in [
            ("//host", "//host", None),
            ("//ci@host:1/2?namespace=a", "//ci@host:1/2?namespace=a", None),
            ("//ci:xyzzy@host:1", "//ci@host:1", Some("xyzzy")),
            ("//:xyzzy@host", "//:@host", Some("xyzzy")),
            ("//:xy%2Fzzy%25@a:1,[::1]:2/?sentinel=m", "//:@a:1,[::1]:2/?sentinel=m", Some("xy/zzy%")),
            ("//ci:xy@zzy:1@host:1", "//ci@host:1", Some("xy@zzy:1")),
        ] {
            assert_eq!(split_secret(url), (without.to_owned(), secret.map(str::to_owned)), "{url}");
            let (parts, whole) = (Parts::of(without).expect("a URL"), Parts::of(url).expect("a URL"));
            let login = whole.login.map(|login| Login { secret: None, ..login });
            assert_eq!(Parts { login, ..whole }, parts, "{url}");
        }
    }

    #[test]
    fn what_might_be_a_secret_is_not_left_in_what_is_no_url() {
        for url in [
            "//ci:xyzzy@",
            "//ci:xyzzy",
            "//ci:xyzzy@host:0",
            "//ci:xy/xyzzy@host:1",
            "//ci:1#xyzzy@host:1",
            "//host:1?secret=xyzzy",
            "//ci@host:1?password=xyzzy",
            "//:xyzzy@ho st:1",
        ] {
            assert!(Parts::of(url).is_err(), "{url}");
            let (without, secret) = split_secret(url);
            assert!(!without.contains("xyzzy") && secret.is_none(), "{url} becomes {without}");
        }
    }
}
