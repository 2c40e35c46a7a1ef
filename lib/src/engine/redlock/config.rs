//! The configuration, and how a `redlock:` URL gives it.

use std::env;
use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::error::BadUrl;
use crate::engine::Failure;

/// The variable with the secret that a URL does not contain.
const SECRET_VARIABLE: &str = "PALISADE_SECRET";
/// The default port of Redis.
const PORT: u16 = 6379;
/// The fewest nodes of which a majority survives the loss of one.
const FEWEST: usize = 3;

/// The nodes, and how they are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The servers, which are independent primaries.
    pub nodes: Vec<NodeAddress>,
    /// The user, the same at all of them.
    pub login: Option<Login>,
    /// The longest TTL of any client. A restarted node does not count for this time. All clients must have the same
    /// value.
    pub max_ttl: Duration,
    /// The time-out of a call to one node, instead of a tenth of the TTL and at most 500 ms.
    pub timeout: Option<Duration>,
    /// Whether a restarted node counts at once, which lets two clients hold a lock that it has lost.
    pub dangerous_count_restarted: bool,
}

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// The host's name or address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A user and its secret, which the `Debug` form hides.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user; `default` on a server without users.
    pub user: String,
    /// Its secret.
    pub secret: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Config {
    /// Parses the part of a URL after `redlock:`: `//[user[:secret]@]host[:port],host[:port],…[?option=value&…]`. A
    /// user's secret that is not in the URL is taken from the environment variable `PALISADE_SECRET`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::engine::Unavailable), with a [`BadUrl`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::redlock::Config;
    /// use std::time::Duration;
    ///
    /// let config = Config::parse("//a,b:7000,[::1]?max_ttl=30s")?;
    /// assert_eq!(config.nodes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:6379", "b:7000", "[::1]:6379"]);
    /// assert_eq!(config.max_ttl, Duration::from_secs(30));
    /// assert!(Config::parse("//a,b").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        Ok(Config::read(rest)?)
    }

    fn read(rest: &str) -> Result<Config, BadUrl> {
        let Parts { login, nodes, options } = Parts::of(rest);
        let mut config = Config {
            nodes: nodes.split(',').filter(|node| !node.is_empty()).map(address).collect::<Result<_, _>>()?,
            login: login.map(log_in).transpose()?,
            max_ttl: Duration::from_secs(60),
            timeout: None,
            dangerous_count_restarted: false,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            config.set(option).ok_or_else(|| BadUrl::Option(option.to_owned()))?;
        }
        if config.nodes.len() < FEWEST {
            return Err(BadUrl::TooFew { found: config.nodes.len() });
        }
        for (place, node) in config.nodes.iter().enumerate() {
            if config.nodes[..place].contains(node) {
                return Err(BadUrl::Twice(node.to_string()));
            }
        }
        Ok(config)
    }

    fn set(&mut self, option: &str) -> Option<()> {
        match option.split_once('=')? {
            ("max_ttl", value) => self.max_ttl = time(value)?,
            ("timeout", value) => self.timeout = Some(time(value)?),
            ("dangerous_count_restarted", "yes") => self.dangerous_count_restarted = true,
            _ => return None,
        }
        Some(())
    }
}

/// The parts of a URL after `redlock:`, not decoded.
struct Parts<'a> {
    login: Option<&'a str>,
    nodes: &'a str,
    options: &'a str,
}

impl<'a> Parts<'a> {
    fn of(rest: &'a str) -> Parts<'a> {
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (nodes, options) = rest.split_once('?').unwrap_or((rest, ""));
        Parts { login, nodes: nodes.strip_suffix('/').unwrap_or(nodes), options }
    }
}

fn address(text: &str) -> Result<NodeAddress, BadUrl> {
    let bad = || BadUrl::Address(text.to_owned());
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || "/#?@".contains(c)) {
        return Err(bad());
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(bracketed) => bracketed,
        None if host.contains([':', '[', ']']) => return Err(bad()),
        None => host,
    };
    let port = port.map_or(Some(PORT), |port| port.parse().ok().filter(|port| *port > 0));
    match (host, port) {
        ("", _) | (_, None) => Err(bad()),
        (host, Some(port)) => Ok(NodeAddress { host: host.to_owned(), port }),
    }
}

fn log_in(login: &str) -> Result<Login, BadUrl> {
    let decoded = |text| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| BadUrl::Login);
    let (user, secret) = login.split_once(':').unwrap_or((login, ""));
    let secret = match secret {
        "" => env::var(SECRET_VARIABLE).map_err(|_| BadUrl::Login)?,
        secret => decoded(secret)?,
    };
    if user.is_empty() {
        return Err(BadUrl::Login);
    }
    Ok(Login { user: decoded(user)?, secret })
}

/// `500ms`, `30s`, `5m`.
fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    (1..=u64::from(u32::MAX)).contains(&ms).then(|| Duration::from_millis(ms))
}

/// Returns the URL without its secret, and the secret.
pub(crate) fn split_secret(rest: &str) -> (String, Option<String>) {
    let Some(login) = Parts::of(rest).login else { return (rest.to_owned(), None) };
    let Some((user, secret)) = login.split_once(':') else { return (rest.to_owned(), None) };
    let begin = rest.len() - rest.strip_prefix("//").unwrap_or(rest).len();
    let place = &rest[begin + login.len()..];
    let decoded = percent_decode_str(secret).decode_utf8().ok().map(String::from);
    (format!("{}{user}{place}", &rest[..begin]), decoded.filter(|secret| !secret.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(rest: &str) -> String {
        Config::read(rest).expect_err(rest).to_string()
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_accepted_form() {
        for (rest, part) in [
            ("", "there are 0"),
            ("//", "there are 0"),
            ("//a,b", "there are 2"),
            ("//a,b,a", "'a:6379' is named twice"),
            ("//a,b,c:0", "'c:0' is no address"),
            ("//a,b,c:x", "'c:x' is no address"),
            ("//a,b,::1", "'::1' is no address"),
            ("//a,b,c d", "'c d' is no address"),
            ("//a,b,c/1", "'c/1' is no address"),
            ("//:xyzzy@a,b,c", "no user"),
            ("//a,b,c?ttl=5s", "'ttl=5s' is no option"),
            ("//a,b,c?max_ttl=5", "'max_ttl=5' is no option"),
            ("//a,b,c?max_ttl=0s", "'max_ttl=0s' is no option"),
            ("//a,b,c?timeout=99999999999999999999s", "is no option"),
            ("//a,b,c?dangerous_count_restarted=no", "is no option"),
        ] {
            let text = bad(rest);
            assert!(text.contains(part) && text.contains("redlock://"), "{rest}: {text}");
            assert!(!text.contains("xyzzy"), "{text}");
        }
    }

    #[test]
    fn all_options_are_read() {
        let config = Config::read("//ci:100%25@a,b,c,d,e/?max_ttl=5m&timeout=50ms").expect("a URL");
        assert_eq!(config.login, Some(Login { user: "ci".to_owned(), secret: "100%".to_owned() }));
        assert_eq!((config.max_ttl, config.timeout), (Duration::from_secs(300), Some(Duration::from_millis(50))));
        assert!(!config.dangerous_count_restarted);
        assert!(!format!("{config:?}").contains("100%"));
        let config = Config::read("//a,b,c?dangerous_count_restarted=yes").expect("a URL");
        assert!(config.dangerous_count_restarted);
    }

    #[test]
    fn a_secret_is_removed_from_the_url() {
        for (rest, seen, secret) in [
            ("//a,b,c", "//a,b,c", None),
            ("//ci@a,b,c", "//ci@a,b,c", None),
            ("//ci:xy%40zzy@a,b,c?timeout=1s", "//ci@a,b,c?timeout=1s", Some("xy@zzy")),
            ("//ci:xy@zzy@a,b,c", "//ci@a,b,c", Some("xy@zzy")),
            ("//:xyzzy@a,b,c", "//@a,b,c", Some("xyzzy")),
            ("ci:xyzzy@a", "ci@a", Some("xyzzy")),
        ] {
            assert_eq!(split_secret(rest), (seen.to_owned(), secret.map(str::to_owned)), "{rest}");
        }
    }
}
