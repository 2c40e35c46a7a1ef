//! Values in an object store, one object each. The id of the write is in the content: on S3 the ETag depends on the content alone, so
//! that otherwise a value that is written back would have its old version again.

use ::object_store::path::Path;
use ::object_store::{PutMode, UpdateVersion};

use super::{Condition, LOAD, STORE, VersionedStore};
use crate::recipe::store::Objects;
use crate::{Error, ErrorKind, Misuse};

impl VersionedStore for Objects {
    const NAME: &'static str = "object store";
    const REFUSAL_IS_CERTAIN: bool = false;

    async fn get(&self, name: &str) -> Result<Option<(Vec<u8>, Condition)>, Error> {
        let found = self.find(&path(name, LOAD)?, super::MAX_VALUE_BYTES, (LOAD, name)).await?;
        Ok(found.map(|(bytes, version)| (bytes, condition(version))))
    }

    async fn put(
        &self,
        name: &str,
        bytes: &[u8],
        _: &str,
        expected: Option<&Condition>,
    ) -> Result<Option<Condition>, Error> {
        let mode = match expected {
            // The version of a write that was replaced before its own condition was known.
            Some(Condition { tag: None, object_version: None }) => return Ok(None),
            Some(Condition { tag, object_version }) => {
                PutMode::Update(UpdateVersion { e_tag: tag.clone(), version: object_version.clone() })
            }
            None => PutMode::Create,
        };
        let stored = self.put_if(&path(name, STORE)?, bytes, mode, (STORE, name)).await?;
        Ok(stored.map(condition))
    }
}

fn condition(UpdateVersion { e_tag, version }: UpdateVersion) -> Condition {
    Condition { tag: e_tag, object_version: version }
}

fn path(name: &str, operation: &'static str) -> Result<Path, Error> {
    Path::parse(name).map_err(|error| {
        let why = format!("the name is no path of an object: {}", error.to_string().escape_debug());
        Error::new(ErrorKind::Misuse(Misuse::Invalid(why)), Objects::NAME, operation).on(name)
    })
}
