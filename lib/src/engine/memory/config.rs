//! The configuration in a `memory:` URL.

/// The namespace of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The name, which clients of this process share; `None` for a separate namespace.
    pub name: Option<String>,
}

impl Config {
    /// Parses the part of a URL after `memory:`.
    ///
    /// ```
    /// use palisade::engine::memory::Config;
    /// assert_eq!(Config::parse("").name, None);
    /// assert_eq!(Config::parse("shop").name.as_deref(), Some("shop"));
    /// ```
    pub fn parse(rest: &str) -> Config {
        let name = rest.trim_start_matches('/');
        Config { name: (!name.is_empty()).then(|| name.to_owned()) }
    }
}
