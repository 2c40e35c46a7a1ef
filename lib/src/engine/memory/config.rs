//! What a `memory:` URL says.

/// Which namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Shared by everything in this process that gives the same name; `None` for one of its own.
    pub name: Option<String>,
}

impl Config {
    /// From what follows `memory:` in a URL.
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
