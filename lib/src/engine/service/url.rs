//! The parts of a `palisade:` URL, and a URL without its secret.

use percent_encoding::percent_decode_str;

use super::BadAddress;
use crate::engine::url::blurred;

/// What follows `palisade:` in a URL, taken apart and nothing decoded: `//user:secret@host:port?option=value`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) secret: Option<&'a str>,
    /// An address of version 6 is without its brackets.
    pub(super) host: &'a str,
    pub(super) port: u16,
    /// Each is known, and there once.
    pub(super) options: Vec<(&'a str, &'a str)>,
}

/// The options that there are.
const OPTIONS: [&str; 5] = ["ca", "cert", "key", "name", "secret_file"];

impl<'a> Parts<'a> {
    pub(super) fn of(rest: &'a str) -> Result<Parts<'a>, BadAddress> {
        let rest = rest.strip_prefix("//").ok_or(BadAddress::NoHost)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, address) = match place.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, place),
        };
        let (host, port) = address_in(address)?;
        let (user, secret) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some(("", _)) => return Err(BadAddress::NoUser),
            Some((user, secret)) => (Some(user), Some(secret).filter(|secret| !secret.is_empty())),
            None => (None, None),
        };
        let is_strange = |c: char| c.is_control() || c.is_whitespace() || "/#".contains(c);
        if let Some(found) = login.unwrap_or("").chars().find(|c| is_strange(*c)) {
            return Err(BadAddress::Unknown { found });
        }
        Ok(Parts { user, secret, host, port, options: options_in(query)? })
    }

    /// An option's value, decoded.
    pub(super) fn option(&self, name: &str) -> Result<Option<String>, BadAddress> {
        let found = self.options.iter().find(|(option, _)| *option == name);
        found.map(|(_, value)| decoded(value)).transpose()
    }
}

fn address_in(address: &str) -> Result<(&str, u16), BadAddress> {
    let address = address.strip_suffix('/').unwrap_or(address);
    if let Some(unknown) = address.chars().find(|c| c.is_control() || c.is_whitespace() || "/#,".contains(*c)) {
        return Err(BadAddress::Unknown { found: unknown });
    }
    let (host, port) = address.rsplit_once(':').ok_or(BadAddress::NoPort)?;
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(bracketed) => bracketed,
        None if host.contains([':', '[', ']']) => return Err(BadAddress::NoBrackets),
        None => host,
    };
    if host.is_empty() {
        return Err(BadAddress::NoHost);
    }
    match port.parse() {
        Ok(port) if port > 0 => Ok((host, port)),
        _ => Err(BadAddress::NoPort),
    }
}

fn options_in(query: &str) -> Result<Vec<(&str, &str)>, BadAddress> {
    let mut options: Vec<(&str, &str)> = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if !OPTIONS.contains(&name) {
            return Err(BadAddress::UnknownOption);
        }
        if value.is_empty() || options.iter().any(|(other, _)| *other == name) {
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
    let (user, end, secret) = match Parts::of(rest) {
        Ok(Parts { user: Some(user), secret: Some(secret), .. }) => {
            (user, user.len() + 1 + secret.len(), decoded(secret).ok())
        }
        Ok(_) => return (rest.to_owned(), None),
        Err(_) => return (format!("//{}", blurred(place)), None),
    };
    (format!("//{user}{}", &place[end..]), secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_its_secret_leads_to_the_same_place() {
        for (url, without, secret) in [
            ("//host:1", "//host:1", None),
            ("//host:1?ca=/a@b:c", "//host:1?ca=/a@b:c", None),
            ("//ci@host:1", "//ci@host:1", None),
            ("//ci:@host:1", "//ci:@host:1", None),
            ("//ci:xyzzy@host:1", "//ci@host:1", Some("xyzzy")),
            ("//ci:xy%2Fzzy%25@[::1]:1?ca=/a@b", "//ci@[::1]:1?ca=/a@b", Some("xy/zzy%")),
            ("//ci:xy@zzy:1@host:1", "//ci@host:1", Some("xy@zzy:1")),
        ] {
            assert_eq!(split_secret(url), (without.to_owned(), secret.map(str::to_owned)), "{url}");
            let (parts, whole) = (Parts::of(without).expect("a URL"), Parts::of(url).expect("a URL"));
            assert_eq!(Parts { secret: None, ..whole }, parts, "{url}");
        }
    }

    #[test]
    fn what_might_be_a_secret_is_not_left_in_what_is_no_url() {
        for url in [
            "//ci:xyzzy",
            "//ci:xyzzy@",
            "//ci:xyzzy@host",
            "//ci:xyzzy@host:0",
            "//ci:xyzzy@host:1/path",
            "//ci:xy/xyzzy@host:1",
            "//ci:1/xyzzy@host:1",
            "//ci:a@b/xyzzy@host:1",
            "//ci:a@b?xyzzy@host:1",
            "//ci:a@b:1?xyzzy@host:1",
            "//ci:1#xyzzy@host:1",
            "//ci:xyzzy host:1",
            "//:xyzzy@host:1",
            "//host:1?secret=xyzzy",
            "//ci@host:1?secret=xyzzy",
            "//host?secret=xyzzy",
        ] {
            assert!(Parts::of(url).is_err(), "{url}");
            let (without, secret) = split_secret(url);
            assert!(!without.contains("xyzzy") && secret.is_none(), "{url} becomes {without}");
        }
    }
}
