//! The `[serve]` table of the configuration file. Unknown keys are refused: a mistyped key may have been meant to protect
//! something.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use palisade_server::Bounds;
use palisade_server::Limits;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny};

/// The whole file. Other commands check their own keys.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(rename = "url")]
    _url: Option<IgnoredAny>,
    #[serde(rename = "ttl")]
    _ttl: Option<IgnoredAny>,
    #[serde(rename = "label")]
    _label: Option<IgnoredAny>,
    #[serde(default)]
    pub(super) serve: Serve,
}

/// `[serve]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Serve {
    pub(super) data_dir: Option<PathBuf>,
    pub(super) resp: Option<String>,
    pub(super) http: Option<String>,
    pub(super) http_hosts: Vec<String>,
    pub(super) insecure: bool,
    pub(super) sign: bool,
    pub(super) tls: Tls,
    pub(super) cluster: Cluster,
    pub(super) users: Vec<User>,
    pub(super) bounds: FileBounds,
    pub(super) limits: FileLimits,
}

/// `[serve.tls]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tls {
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) client_ca: Option<PathBuf>,
    pub(super) client_certificates: ClientCertificates,
    pub(super) user_from: Option<UserFrom>,
}

/// `[serve.cluster]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cluster {
    pub(super) node: Option<String>,
    /// The founders: names, and the addresses where they listen for each other.
    pub(super) nodes: BTreeMap<String, String>,
    pub(super) listen: Option<String>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClientCertificates {
    #[default]
    Required,
    Optional,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UserFrom {
    CommonName,
    Dns,
    Email,
    Uri,
}

/// `[[serve.users]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) secret_hash: Option<String>,
    #[serde(default)]
    pub(super) rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) verbs: Vec<String>,
    pub(super) prefix: String,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    crate::text::parse_time(&text).map(Some).map_err(de::Error::custom)
}

/// Defines a table in which every key is optional, and replaces the default of the same field of another type.
macro_rules! partial {
    ($name:ident of $whole:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)? }) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct $name {
            $($(#[$attribute])* $field: Option<$type>,)*
        }

        impl $name {
            /// Returns the defaults, replaced by the keys that the file has.
            pub(super) fn over_defaults(&self) -> $whole {
                let defaults = $whole::default();
                $whole { $($field: self.$field.unwrap_or(defaults.$field),)* }
            }
        }
    };
}

partial!(FileBounds of Bounds {
    connections: usize,
    connections_per_user: usize,
    strangers: usize,
    strangers_per_address: usize,
    #[serde(deserialize_with = "time")]
    greeting: Duration,
    #[serde(deserialize_with = "time")]
    command: Duration,
    #[serde(deserialize_with = "time")]
    stall: Duration,
    #[serde(deserialize_with = "time")]
    wait: Duration,
    command_bytes: usize,
    command_words: usize,
    unanswered: usize,
    unread_bytes: usize,
    unread_total: usize,
    watches: usize,
    sessions_per_user: usize,
    waiters: usize,
    waiters_per_user: usize,
});

partial!(FileLimits of Limits {
    name_bytes: u32,
    label_bytes: u32,
    value_bytes: u32,
    sessions: u32,
    locks: u32,
    locks_per_session: u32,
    locks_per_request: u32,
    waiters_per_lock: u32,
    ttl_min_ms: u32,
    ttl_max_ms: u32,
    delay_max_ms: u32,
    history_per_lock: u32,
    answers_per_session: u32,
});
