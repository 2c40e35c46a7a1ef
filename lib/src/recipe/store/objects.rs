//! Object stores: S3, Google Cloud Storage, Azure.

use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};

use super::super::random::random;
use crate::{Error, ErrorKind};

const ENGINE: &str = "object store";
const OPEN: &str = "use";

/// A bucket that enforces conditional puts, as a probe has shown.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
/// use palisade::recipe::store::Objects;
/// use std::sync::Arc;
/// let bucket = Objects::open(Arc::new(object_store::memory::InMemory::new())).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Objects(Arc<dyn ObjectStore>);

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects({})", self.0)
    }
}

impl Objects {
    /// Checks that the store refuses a put whose condition does not hold: writes a small object, `palisade-probe-N`, and deletes it.
    ///
    /// # Cancellation
    ///
    /// When the future is dropped, that object may stay.
    ///
    /// # Errors
    ///
    /// The store does not enforce conditions, as the local file system; it cannot be reached.
    pub async fn open(store: Arc<dyn ObjectStore>) -> Result<Objects, Error> {
        let objects = Objects(store);
        let name = format!("palisade-probe-{:016x}", random());
        let path = Path::from(name.as_str());
        let probed = objects.probe(&path, &name).await;
        // It may not exist.
        let _ = objects.0.delete(&path).await;
        probed.map(|()| objects)
    }

    async fn probe(&self, path: &Path, name: &str) -> Result<(), Error> {
        let at = (OPEN, name);
        let put = async |text: &str, mode| match self.put_if(path, text.as_bytes(), mode, at).await? {
            Some(version) => Ok(Some(version)),
            // If the client has repeated the put, the object has its text, which no other put has.
            None => {
                let found = self.find(path, text.len(), at).await?;
                Ok::<_, Error>(found.filter(|(bytes, _)| bytes == text.as_bytes()).map(|(_, version)| version))
            }
        };
        let Some(first) = put("1", PutMode::Create).await? else { return Err(not_enforced(name)) };
        if put("2", PutMode::Create).await?.is_some()
            || put("3", PutMode::Update(first.clone())).await?.is_none()
            || put("4", PutMode::Update(first)).await?.is_some()
        {
            return Err(not_enforced(name));
        }
        Ok(())
    }

    /// Returns an object of at most this size, and its version.
    pub(crate) async fn find(
        &self,
        path: &Path,
        max_bytes: usize,
        (operation, name): (&'static str, &str),
    ) -> Result<Option<(Vec<u8>, UpdateVersion)>, Error> {
        let failed = |error| outage("cannot be read", error, false, operation, name);
        let found = match self.0.get(path).await {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let (mut bytes, mut parts) = (Vec::new(), found.into_stream());
        while let Some(part) = parts.next().await {
            bytes.extend_from_slice(&part.map_err(failed)?);
            if bytes.len() > max_bytes {
                let what = format!("the object has more than {max_bytes} bytes, so another program has written it");
                let kind =
                    ErrorKind::Outage { what, may_have_taken_effect: false, is_retryable: false, source: None };
                return Err(Error::new(kind, ENGINE, operation).on(name));
            }
        }
        Ok(Some((bytes, version)))
    }

    /// Puts an object, and returns its version; `None` if the condition does not hold. Clients repeat a put whose reply was lost, so then
    /// an earlier try of this put may have been carried out.
    pub(crate) async fn put_if(
        &self,
        path: &Path,
        bytes: &[u8],
        mode: PutMode,
        (operation, name): (&'static str, &str),
    ) -> Result<Option<UpdateVersion>, Error> {
        let payload = PutPayload::from(bytes.to_vec());
        match self.0.put_opts(path, payload, PutOptions::from(mode)).await {
            Ok(put) => Ok(Some(UpdateVersion { e_tag: put.e_tag, version: put.version })),
            Err(StoreError::Precondition { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. }) => {
                Ok(None)
            }
            Err(StoreError::NotImplemented { .. } | StoreError::NotSupported { .. }) => Err(not_enforced(name)),
            Err(error) => Err(outage("could not be written", error, true, operation, name)),
        }
    }
}

fn not_enforced(name: &str) -> Error {
    let what = "the store does not enforce conditional puts (If-Match, If-None-Match), so that updates would be lost; use another \
         store, or switch them on"
        .to_owned();
    Error::new(ErrorKind::Unsupported { what }, ENGINE, OPEN).on(name)
}

fn outage(what: &str, error: StoreError, may_have_taken_effect: bool, operation: &'static str, name: &str) -> Error {
    let kind = match error {
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            ErrorKind::Denied { what: format!("the object {what}: {error}") }
        }
        error => ErrorKind::Outage {
            what: format!("the object {what}: {error}"),
            may_have_taken_effect,
            is_retryable: true,
            source: Some(Box::new(error)),
        },
    };
    Error::new(kind, ENGINE, operation).on(name)
}
