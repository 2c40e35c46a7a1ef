//! The configuration, and the `redlock:` URLs that give it.

use std::time::Duration;

use crate::engine::Failure;
use crate::engine::remote::{Address, BadUrl, Login, Secret, Url, UrlForm};

/// The default port of Redis.
const PORT: u16 = 6379;
/// The fewest nodes of which a majority survives the loss of one.
const FEWEST: usize = 3;

pub(crate) const URL: UrlForm = UrlForm {
    store: "nodes",
    example: "redlock://[user[:secret]@]host[:port],host[:port],host[:port][?option=value&…]",
    options: "max_ttl=TIME timeout=TIME dangerous_count_restarted=yes",
    has_users: true,
};

/// The nodes, and how they are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The servers, which are independent primaries.
    pub nodes: Vec<Address>,
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
        URL.parse("redlock", rest, Config::read)
    }

    fn read(url: &Url<'_>) -> Result<Config, BadUrl> {
        if !url.path.is_empty() {
            return Err(BadUrl::Unencoded { found: '/' });
        }
        let hosts = url.hosts.iter().filter(|(host, _)| !host.is_empty());
        let nodes = hosts.map(|(host, port)| Address { host: (*host).to_owned(), port: port.unwrap_or(PORT) });
        let nodes: Vec<_> = nodes.collect();
        if nodes.len() < FEWEST {
            return Err(BadUrl::Invalid(format!(
                "a majority that survives the loss of a node needs at least three nodes, and there are {}",
                nodes.len()
            )));
        }
        if let Some((_, node)) = nodes.iter().enumerate().find(|(place, node)| nodes[..*place].contains(node)) {
            return Err(BadUrl::Invalid(format!("'{node}' is named twice")));
        }
        let login = match url.login()? {
            None => None,
            Some((None, _)) => return Err(BadUrl::NoUser),
            Some((Some(user), secret)) => {
                let secret = secret.or_else(|| Secret::in_environment(&[])).ok_or(BadUrl::NoSecret)?;
                Some(Login { user, secret: Secret::Text(secret) })
            }
        };
        let dangerous_count_restarted = match url.option("dangerous_count_restarted")?.as_deref() {
            None => false,
            Some("yes") => true,
            Some(_) => return Err(BadUrl::Invalid("dangerous_count_restarted is yes, or left out".to_owned())),
        };
        let max_ttl = time(url, "max_ttl")?.unwrap_or(Duration::from_secs(60));
        Ok(Config { nodes, login, max_ttl, timeout: time(url, "timeout")?, dangerous_count_restarted })
    }
}

/// Reads `500ms`, `30s` or `5m`.
fn time(url: &Url<'_>, name: &str) -> Result<Option<Duration>, BadUrl> {
    let bad = || BadUrl::Invalid(format!("{name} is a time like 500ms, 30s or 5m"));
    url.option(name)?.map(|text| duration(&text).ok_or_else(bad)).transpose()
}

fn duration(text: &str) -> Option<Duration> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_refused_with_the_accepted_form() {
        for (rest, part) in [
            ("", "host"),
            ("//", "there are 0"),
            ("//a,b", "there are 2"),
            ("//a,b,a", "'a:6379' is named twice"),
            ("//a,b,c:0", "port"),
            ("//a,b,c:x", "port"),
            ("//a,b,::1", "brackets"),
            ("//a,b,c d", "' '"),
            ("//a,b,c/1", "'/'"),
            ("//:xyzzy@a,b,c", "user"),
            ("//a,b,c?ttl=5s", "max_ttl=TIME"),
            ("//a,b,c?max_ttl=5", "max_ttl is a time"),
            ("//a,b,c?max_ttl=0s", "max_ttl is a time"),
            ("//a,b,c?timeout=99999999999999999999s", "timeout is a time"),
            ("//a,b,c?dangerous_count_restarted=no", "dangerous_count_restarted is yes"),
        ] {
            let text = Config::parse(rest).expect_err(rest).to_string();
            assert!(text.contains(part) && text.contains("redlock://"), "{rest}: {text}");
            assert!(!text.contains("xyzzy"), "{text}");
        }
    }

    #[test]
    fn all_options_are_read() {
        let config = Config::parse("//ci:100%25@a,b,c,d,e/?max_ttl=5m&timeout=50ms").expect("a URL");
        let login = Login { user: "ci".to_owned(), secret: Secret::Text("100%".to_owned()) };
        assert_eq!(config.login, Some(login));
        assert_eq!((config.max_ttl, config.timeout), (Duration::from_secs(300), Some(Duration::from_millis(50))));
        assert!(!config.dangerous_count_restarted);
        assert!(!format!("{config:?}").contains("100%"));
        let config = Config::parse("//a,b,c?dangerous_count_restarted=yes").expect("a URL");
        assert!(config.dangerous_count_restarted);
    }
}
