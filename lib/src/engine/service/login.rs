//! The user that logs in, and the secret.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::SecurityError;

/// The user that logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// A user that the service knows.
    pub user: String,
    /// The user's secret.
    pub secret: Secret,
}

/// A secret, or where it is. Neither this nor anything made of it shows the secret itself.
///
/// ```
/// use palisade::engine::service::Secret;
/// assert_eq!(format!("{:?}", Secret::Text("xyzzy".to_owned())), "Text(…)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The secret itself.
    Text(String),
    /// The first line of this file, read again at every login.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::Text(_) => f.write_str("Text(…)"),
            Secret::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Secret {
    /// The secret, for the service alone.
    pub(super) fn reveal(&self) -> Result<String, SecurityError> {
        let path = match self {
            Secret::Text(text) => return Ok(text.clone()),
            Secret::File(path) => path,
        };
        let unusable = |why: String| SecurityError::Unreadable { what: "the secret", path: path.clone(), why };
        let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        match text.lines().next().map(str::trim_end) {
            Some(line) if !line.is_empty() => Ok(line.to_owned()),
            _ => Err(unusable("its first line is empty".to_owned())),
        }
    }
}
