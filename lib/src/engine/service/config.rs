//! What a `palisade:` URL says.

use super::BadAddress;
use crate::engine::{Failure, Unavailable};

/// Which service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The host's name or address; one of version 6 without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Config {
    /// From what follows `palisade:` in a URL: `//host:port`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], with a [`BadAddress`] as its source, for anything else.
    ///
    /// ```
    /// use palisade::engine::service::Config;
    ///
    /// let config = Config::parse("//locks.example:7117")?;
    /// assert_eq!((config.host.as_str(), config.port), ("locks.example", 7117));
    /// assert_eq!(Config::parse("//[::1]:7117")?.host, "::1");
    /// assert!(Config::parse("//locks.example").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        address_in(rest).map_err(|bad| {
            Unavailable::new(format!("'palisade:{}' names no service: {bad}", rest.escape_debug()))
                .because(bad)
                .without_effect()
                .for_good()
                .into()
        })
    }

    /// As people write it.
    pub(super) fn address(&self) -> String {
        let Config { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

fn address_in(rest: &str) -> Result<Config, BadAddress> {
    let address = rest.strip_prefix("//").ok_or(BadAddress::NoHost)?;
    let address = address.strip_suffix('/').unwrap_or(address);
    if let Some(unknown) = address.chars().find(|c| c.is_control() || c.is_whitespace() || "/?#@,".contains(*c)) {
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
        Ok(port) if port > 0 => Ok(Config { host: host.to_owned(), port }),
        _ => Err(BadAddress::NoPort),
    }
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
            ("//host:7117?a=b", BadAddress::Unknown { found: '?' }),
            ("//me@host:7117", BadAddress::Unknown { found: '@' }),
            ("//one:1,two:2", BadAddress::Unknown { found: ',' }),
            ("//ho st:7117", BadAddress::Unknown { found: ' ' }),
            ("//h\0st:7117", BadAddress::Unknown { found: '\0' }),
        ];
        for (rest, bad) in cases {
            assert_eq!(address_in(rest), Err(bad), "{rest:?}");
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains("palisade://host:port"), "{}", error.what);
            assert!(!error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn an_address_is_written_as_it_was_read() {
        for address in ["host:1", "127.0.0.1:7117", "[::1]:7117"] {
            assert_eq!(address_in(&format!("//{address}")).map(|config| config.address()), Ok(address.to_owned()));
        }
        assert_eq!(address_in("//host:1/"), address_in("//host:1"));
    }
}
