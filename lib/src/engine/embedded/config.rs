//! The configuration in an `embedded:` URL.

use std::path::PathBuf;

use super::error::BadPath;
use super::paths;
use crate::engine::{Failure, Unavailable};

/// The file of the locks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The file; `None` for the default one. A relative path is relative to the working directory at the time of
    /// connecting.
    pub file: Option<PathBuf>,
    /// For tests: the boot id.
    #[doc(hidden)]
    pub boot_id: Option<String>,
    /// For tests: the number of batches after which a snapshot is written.
    #[doc(hidden)]
    pub compact_after: Option<u64>,
}

impl Config {
    /// Parses the part of a URL after `embedded:`: nothing, `///absolute/path`, or `relative/path`.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], with a [`BadPath`] as its source, for anything else.
    ///
    /// ```
    /// use std::path::Path;
    /// use palisade::engine::embedded::Config;
    ///
    /// let file = |rest| Config::parse(rest).map(|config| config.file);
    /// assert_eq!(file("")?, None);
    /// assert_eq!(file("///srv/locks.db")?.as_deref(), Some(Path::new("/srv/locks.db")));
    /// assert_eq!(file("state/locks.db")?.as_deref(), Some(Path::new("state/locks.db")));
    /// assert!(file("//host/locks.db").is_err());
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn parse(rest: &str) -> Result<Config, Failure> {
        let file = path_in(rest).map_err(|bad| {
            Unavailable::new(format!("'embedded:{}' names no file: {bad}", rest.escape_debug()))
                .because(bad)
                .without_effect()
                .permanent()
        })?;
        Ok(Config { file, ..Config::default() })
    }

    /// Returns the configuration for a file.
    ///
    /// ```
    /// use palisade::engine::embedded::Config;
    /// assert_eq!(Config::at("state/locks.db"), Config::parse("state/locks.db")?);
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn at(file: impl Into<PathBuf>) -> Config {
        Config { file: Some(file.into()), ..Config::default() }
    }

    /// Returns the file's absolute path. The default file is shared by the users of the host once root has created
    /// its directory, `/var/lib/palisade-locks`. Creates nothing.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if `HOME` is needed and not set.
    ///
    /// ```
    /// use std::path::Path;
    /// use palisade::engine::embedded::Config;
    /// assert_eq!(Config::at("/srv/locks.db").path()?, Path::new("/srv/locks.db"));
    /// # Ok::<(), palisade::engine::Failure>(())
    /// ```
    pub fn path(&self) -> Result<PathBuf, Failure> {
        Ok(paths::database(self.file.as_deref())?)
    }
}

fn path_in(rest: &str) -> Result<Option<PathBuf>, BadPath> {
    if rest.is_empty() {
        return Ok(None);
    }
    if let Some(at) = rest.find(|c: char| c.is_control()) {
        return Err(BadPath::Control { at });
    }
    if rest.contains(['?', '#']) {
        return Err(BadPath::Options);
    }
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err(BadPath::Host),
        None => rest,
    };
    let path = PathBuf::from(path);
    if rest.ends_with('/') || path.file_name().is_none() {
        return Err(BadPath::Directory);
    }
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_file_is_refused_with_the_accepted_forms() {
        let cases = [
            ("//host/a.db", BadPath::Host),
            ("//", BadPath::Host),
            ("///srv/", BadPath::Directory),
            ("..", BadPath::Directory),
            ("a.db?mode=ro", BadPath::Options),
            ("a.db#x", BadPath::Options),
            ("a\0b", BadPath::Control { at: 1 }),
        ];
        for (rest, bad) in cases {
            assert_eq!(path_in(rest), Err(bad), "{rest:?}");
            let Err(Failure::Unavailable(error)) = Config::parse(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.what.contains("embedded:///path/locks.db"), "{}", error.what);
            assert!(!error.is_retryable && !error.may_have_taken_effect);
        }
    }

    #[test]
    fn one_slash_is_an_absolute_path_too() {
        assert_eq!(path_in("/srv/a.db"), Ok(Some("/srv/a.db".into())));
    }
}
