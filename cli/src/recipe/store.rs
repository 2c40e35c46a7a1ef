//! `--store`: the database in which a recipe keeps its records.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use crate::outcome::Failure;
use crate::settings::Settings;
use crate::stores::{path, redacted};

/// The URLs of all stores, for messages.
const KNOWN: &str = "sqlite:///path/file.db, postgres://user@host/database, mysql://user@host/database, redis://host";

/// The store of a recipe.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where the records are: sqlite:///path/file.db, postgres://user@host/database, and for `once` also mysql: and redis: [default: a file of this user]
    ///
    /// The file is ~/.local/state/palisade/recipes.db, or palisade/recipes.db in XDG_STATE_HOME. Processes of several users or
    /// hosts must name a store that all of them reach. Pass secrets in PALISADE_SECRET; other users can read command lines.
    #[arg(long, value_name = "URL", env = "PALISADE_STORE", hide_env_values = true)]
    store: Option<String>,
}

/// Where a store is.
#[derive(Debug)]
pub(crate) enum StoreUrl<'a> {
    Mysql(&'a str),
    Postgres(&'a str),
    Redis(&'a str),
    Sqlite(PathBuf),
}

impl StoreArgs {
    /// Returns where the store is. Creates the folder of the default file if it is missing.
    pub(crate) fn url(&self) -> Result<StoreUrl<'_>, Failure> {
        let Some(url) = self.store.as_deref() else { return Ok(StoreUrl::Sqlite(default_file()?)) };
        let Some((scheme, rest)) = url.split_once(':') else { return Err(unknown(url)) };
        if scheme == "sqlite" && rest.starts_with("//") && !rest.starts_with("///") {
            return Err(Failure::Misuse(
                "sqlite://NAME names a host, not a file; use sqlite:NAME for a file in this folder, or sqlite:///path/file.db".to_owned(),
            ));
        }
        if scheme == "sqlite" && [":", "file:"].iter().any(|special| rest.starts_with(special)) {
            return Err(Failure::Misuse("the records must be in a file: sqlite:///path/file.db".to_owned()));
        }
        Ok(match scheme {
            "sqlite" if !path(rest).is_empty() => StoreUrl::Sqlite(path(rest).into()),
            "postgres" | "postgresql" => StoreUrl::Postgres(url),
            "mysql" => StoreUrl::Mysql(url),
            "redis" | "rediss" => StoreUrl::Redis(url),
            _ => return Err(unknown(url)),
        })
    }

    /// Whether it is the file of this user, because none is named.
    pub(crate) fn is_default(&self) -> bool {
        self.store.is_none()
    }

    /// Returns the store and the settings with which all callers that share the one share the other too. With a database that has
    /// both, one of them is enough.
    ///
    /// # Errors
    ///
    /// Other hosts reach only one of them. Each host would then do the work for itself.
    pub(crate) fn with_locks(&self, settings: &Settings) -> Result<(StoreArgs, Settings), Failure> {
        let scheme = |url: &str| url.split(':').next().unwrap_or_default().to_owned();
        let has_both = |url: &str| ["postgres", "postgresql", "mysql"].contains(&scheme(url).as_str());
        let refuse = |what: &str| Err(Failure::Misuse(what.to_owned()));
        match (&self.store, settings.has_url) {
            (Some(store), false) if has_both(store) => {
                Ok((self.clone(), Settings { url: store.clone(), has_url: true, ..settings.clone() }))
            }
            (Some(store), false) if scheme(store).starts_with("redis") => refuse(
                "other hosts reach the records in redis:, but not the locks, which are in a file of this host; name an engine that all \
                 callers share with --url, such as palisade://host (redis: needs --dangerous-accept-failover), or --url embedded: if all \
                 of them are on this host",
            ),
            (None, true) if has_both(&settings.url) => {
                Ok((StoreArgs { store: Some(settings.url.clone()) }, settings.clone()))
            }
            (None, true) if scheme(&settings.url) != "embedded" => refuse(
                "other hosts reach the locks, but not the records, which are in a file of this user; name a database that all callers \
                 share with --store, or a file with --store sqlite:///path/file.db if all of them are on this host",
            ),
            _ => Ok((self.clone(), settings.clone())),
        }
    }
}

/// Returns the file for those who name no store, in a folder that only this user can read.
fn default_file() -> Result<PathBuf, Failure> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let Some(state) = state.or_else(|| Some(variable("HOME")?.join(".local/state"))) else {
        let what = "neither HOME nor XDG_STATE_HOME is set; name the store: --store sqlite:///path/file.db";
        return Err(Failure::Misuse(what.to_owned()));
    };
    let folder = state.join("palisade");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
        Failure::IoMessage(format!("cannot create '{}': {error}; name a store with --store", folder.display()))
    })?;
    Ok(folder.join("recipes.db"))
}

fn unknown(url: &str) -> Failure {
    // A malformed URL may have a password anywhere.
    let url = match (url.contains("://"), url.contains('@')) {
        (true, _) => redacted(url),
        (false, true) => "…".to_owned(),
        (false, false) => url.to_owned(),
    };
    Failure::Misuse(format!("'{}' is no store; a store is one of {KNOWN}", url.escape_debug()))
}
