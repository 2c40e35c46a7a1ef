//! The engine's URL, the TTL and the label: from options, the environment and the configuration file, in this order.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use palisade::engine::embedded::Config;
use palisade::{Options, Palisade};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::args::Global;
use crate::outcome::{Failure, say};

/// The settings that all commands share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The engine's URL. It may contain a secret, so messages use [`Settings::redacted_url`].
    pub(crate) url: String,
    /// Whether an option, the environment or the configuration file names the URL.
    pub(crate) has_url: bool,
    /// The session's TTL; `None` for the library's default.
    pub(crate) ttl: Option<Duration>,
    /// The holder's name that other clients see, before host and pid.
    pub(crate) label: Option<String>,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: Option<String>,
    ttl: Option<String>,
    label: Option<String>,
    /// The table of `palisade serve`, which reads it itself. Named here because unknown keys are refused.
    #[serde(rename = "serve")]
    _serve: Option<IgnoredAny>,
}

/// Without any setting, locks are kept in one file on this host.
const DEFAULT_URL: &str = "embedded:";

impl Settings {
    /// Takes each setting from the options, else the environment, else the configuration file, else the default.
    pub(crate) fn find(global: &Global) -> Result<Settings, Failure> {
        let (_, file) = configuration::<File>(global.config.as_deref())?;
        let ttl = file.ttl.as_deref().map(crate::text::parse_ttl).transpose();
        let ttl = ttl.map_err(|bad| Failure::Misuse(format!("the configuration file's ttl: {bad}")))?;
        // clap has already read the environment.
        let url = global.url.clone().or(file.url);
        let has_url = url.is_some();
        let url = url.unwrap_or_else(|| DEFAULT_URL.to_owned());
        let settings = Settings { url, has_url, ttl, label: file.label };
        if let Some(file) = settings.default_file().filter(|file| is_private(file) && !file.exists()) {
            say(&format!(
                "the locks are in {}, which other users of this host do not share; {SHARE}",
                file.display()
            ));
        }
        Ok(settings)
    }

    /// Returns the engine's URL without its secret, if an option, the environment or the configuration file names one.
    pub(crate) fn configured_url(global: &Global) -> Result<Option<String>, Failure> {
        let (_, file) = configuration::<File>(global.config.as_deref())?;
        Ok(global.url.clone().or(file.url).map(|url| palisade::split_secret(&url).0))
    }

    /// Returns the engine's URL without its secret. It names the same locks for every user and every directory.
    pub(crate) fn redacted_url(&self) -> String {
        match self.embedded_file() {
            Some(file) => format!("embedded://{}", file.display()),
            None => palisade::split_secret(&self.url).0,
        }
    }

    /// Returns the lock file of the embedded engine.
    pub(crate) fn embedded_file(&self) -> Option<PathBuf> {
        let config = Config::parse(self.url.strip_prefix("embedded:")?).ok()?;
        config.path().ok()
    }

    /// Returns the default lock file, if no setting names an engine.
    pub(crate) fn default_file(&self) -> Option<PathBuf> {
        match self.url == DEFAULT_URL {
            true => Config::default().path().ok(),
            false => None,
        }
    }

    /// Connects for a command that holds no locks.
    pub(crate) async fn connect(&self) -> Result<Palisade, Failure> {
        self.connect_as(self.label.clone().unwrap_or_else(|| "palisade".to_owned())).await
    }

    /// Connects under this name for a command that holds no locks.
    pub(crate) async fn connect_as(&self, name: String) -> Result<Palisade, Failure> {
        let label = crate::text::label(name);
        Ok(Options::new().observer().label(label).connect(&self.url).await?)
    }
}

/// The steps after which all users of a host share the default file.
pub(crate) const SHARE: &str = "to share them, as root: groupadd palisade-locks, add the users to it, palisade ls";

/// Whether a default file belongs to one user instead of the whole host.
pub(crate) fn is_private(file: &Path) -> bool {
    !file.starts_with("/var/lib/palisade-locks")
}

/// Reads the named file, or else the first default file that exists. Returns its path and content.
pub(crate) fn configuration<T: DeserializeOwned + Default>(
    named: Option<&Path>,
) -> Result<(Option<PathBuf>, T), Failure> {
    if let Some(path) = named {
        let absent = || Failure::Misuse(format!("the configuration file {} does not exist", path.display()));
        return Ok((Some(path.to_owned()), read(path)?.ok_or_else(absent)?));
    }
    for path in default_paths() {
        if let Some(file) = read(&path)? {
            return Ok((Some(path), file));
        }
    }
    Ok((None, T::default()))
}

/// Reads and parses a file; `None` if it does not exist.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::Misuse(format!("cannot read the configuration file {}: {error}", path.display())));
        }
    };
    let bad = |error: toml::de::Error| {
        // The error quotes the line, which may contain a secret.
        let quoted = error.to_string();
        let what = if quoted.contains("://") { error.message() } else { &quoted };
        Failure::Misuse(format!("the configuration file {} is not understood: {what}", path.display()))
    };
    toml::from_str(&text).map(Some).map_err(bad)
}

fn default_paths() -> impl Iterator<Item = PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let user = home.map(|home| home.join("palisade/config.toml"));
    user.into_iter().chain([PathBuf::from("/etc/palisade/config.toml")])
}
