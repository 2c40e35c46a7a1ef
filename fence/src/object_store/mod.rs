//! Objects in S3, GCS, Azure and similar stores, through the crate [`object_store`].
//!
//! The mark is the object's first line, and the content is what follows it:
//!
//! ```text
//! {"palisade":1,"token":34,"seq":2,"author":71,"nothing":false}
//! the content
//! ```
//!
//! Every change is a conditional put: it is refused if the object is not the one that was judged. So mark and content
//! change together, and a write that was held up finds another object and changes nothing.
//!
//! A store client may retry a put when its answer is lost; [`object_store`] does so up to ten times by default. A put whose
//! condition does not hold may therefore be one that was carried out before. The object is then read again. If its mark is
//! that of this write, the write was carried out. If other clients have changed the mark since, the error says that the
//! write may have taken effect.
//!
//! The mark is not in the object's metadata, where plain readers would not see it, because the conditions would not see
//! it either: on S3 the ETag is made from the content alone, so that a seal, which changes no content, would leave the
//! ETag as it was, and an overtaken write would be accepted. Plain readers skip one line (`tail -n +2`).

mod header;

use std::fmt;
use std::sync::Arc;

use ::object_store::path::Path;
use ::object_store::{
    Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, UpdateVersion,
};
use bytes::Bytes;
use palisade_core::Token;

use self::header::Header;
use crate::error::overtaken;
use crate::{Author, Error, ErrorKind, FenceState, Mark, Pass, Resource, Sealed, Verdict};

/// How often a change is retried because another client was faster. In each round one of them succeeds.
const ROUNDS: usize = 100;

/// A store that enforces conditional puts, as a probe has shown.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
}

impl Bucket {
    /// Checks that the store refuses a put whose condition does not hold: writes a small object, `palisade-probe-N`, and
    /// deletes it.
    ///
    /// # Errors
    ///
    /// The store does not enforce conditions (as the local file system: use [`file`](crate::file)), or cannot be
    /// reached.
    pub async fn open(store: Arc<dyn ObjectStore>) -> Result<Bucket, Error> {
        let bucket = Bucket { store };
        let path = Path::from(format!("palisade-probe-{}", Author::unique()));
        let probed = bucket.probe(&path).await;
        // It may not exist.
        let _ = bucket.store.delete(&path).await;
        probed.map_err(|kind| Error::new(kind, bucket.name(), "use"))?;
        Ok(bucket)
    }

    async fn probe(&self, path: &Path) -> Result<(), ErrorKind> {
        let unable = || {
            ErrorKind::misuse(
                "the store does not enforce conditional puts (If-Match, If-None-Match), so that nothing could keep a late \
                 write out; use another store, or switch them on",
            )
        };
        let first = self.try_put(path, "1", PutMode::Create).await?.ok_or_else(unable)?;
        if self.try_put(path, "2", PutMode::Create).await?.is_some() {
            return Err(unable());
        }
        self.try_put(path, "3", PutMode::Update(first.clone())).await?.ok_or_else(unable)?;
        match self.try_put(path, "4", PutMode::Update(first)).await? {
            Some(_) => Err(unable()),
            None => Ok(()),
        }
    }

    /// Puts an object of the probe, and returns its version; `None` if the condition does not hold. If the store client
    /// has repeated the put, the object is recognised by its text, which no other put has.
    async fn try_put(
        &self,
        path: &Path,
        text: &'static str,
        mode: PutMode,
    ) -> Result<Option<UpdateVersion>, ErrorKind> {
        let failed = |error: StoreError| match error {
            StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
                ErrorKind::misuse("the store has no conditional puts, so that nothing could keep a late write out")
            }
            error => ErrorKind::unreached("the store cannot be written", error),
        };
        let payload = PutPayload::from_static(text.as_bytes());
        match self.store.put_opts(path, payload, PutOptions::from(mode)).await {
            Ok(put) => return Ok(Some(UpdateVersion { e_tag: put.e_tag, version: put.version })),
            Err(error) if is_condition(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        let got = self.store.get(path).await.map_err(failed)?;
        let version = version(&got.meta);
        let found = got.bytes().await.map_err(failed)?;
        Ok((found == text).then_some(version))
    }

    /// Returns the object at this path, which need not exist. An object without a mark gets one at its first seal, and
    /// keeps its content.
    ///
    /// # Errors
    ///
    /// It is no path of an object.
    pub fn object(&self, path: &str) -> Result<Object, Error> {
        let misuse = |what: String| Error::new(ErrorKind::misuse(what), self.name(), "use");
        let parsed = Path::parse(path).map_err(|error| misuse(error.to_string().escape_debug().to_string()))?;
        if parsed.as_ref().is_empty() || parsed.as_ref().contains(char::is_control) {
            return Err(misuse(format!("'{}' is no path of an object", path.escape_debug())));
        }
        Ok(Object { bucket: self.clone(), path: parsed })
    }

    fn name(&self) -> String {
        self.store.to_string()
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.name()).finish()
    }
}

/// Returns whether a put was refused because its condition does not hold.
fn is_condition(error: &StoreError) -> bool {
    matches!(error, StoreError::Precondition { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. })
}

/// Reads the mark of the object at this path; `None` if it was never sealed. Writes nothing, so the store need not be
/// writable.
///
/// # Errors
///
/// It is no path of an object; the store cannot be reached.
pub async fn mark(store: Arc<dyn ObjectStore>, path: &str) -> Result<Option<Mark>, Error> {
    let object = Bucket { store }.object(path)?;
    let found = object.find(Some(GetRange::Bounded(0..header::LONGEST))).await;
    let found = found.map_err(|kind| Error::new(kind, object.name(), "read the mark of"))?;
    Ok(found.state().mark())
}

/// One object: read and replaced as a whole.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use palisade_fence::{Seal, Token, object_store::Bucket};
/// let bucket = Bucket::open(Arc::new(object_store::memory::InMemory::new())).await?;
/// let orders = bucket.object("orders.json")?;
/// let mut paused = orders.seal(Token::new(33)?).await?;
/// paused.put("[]").await?;
///
/// let newer = orders.seal(Token::new(34)?).await?;
/// assert!(paused.put("[1]").await.is_err());
/// assert_eq!(newer.get().await?, "[]");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Object {
    bucket: Bucket,
    path: Path,
}

/// An object as it was read.
struct Found {
    /// Its version, for the condition; `None` if it does not exist.
    version: Option<UpdateVersion>,
    header: Option<Header>,
    content: Bytes,
}

impl Found {
    /// Returns a missing object, or an empty one without a mark.
    fn empty(meta: Option<ObjectMeta>) -> Found {
        Found { version: meta.as_ref().map(version), header: None, content: Bytes::new() }
    }

    fn state(&self) -> FenceState<()> {
        match &self.header {
            Some(header) => FenceState::of(header.mark, header.author, (!header.is_nothing).then_some(())),
            None => FenceState::default(),
        }
    }
}

fn version(meta: &ObjectMeta) -> UpdateVersion {
    UpdateVersion { e_tag: meta.e_tag.clone(), version: meta.version.clone() }
}

impl Object {
    /// Reads the object, or only as much as holds the mark.
    async fn find(&self, range: Option<GetRange>) -> Result<Found, ErrorKind> {
        let failed = |error| ErrorKind::unreached("the object cannot be read", error);
        let options = GetOptions { range, ..GetOptions::default() };
        let is_part = options.range.is_some();
        let got = match self.bucket.store.get_opts(&self.path, options).await {
            Ok(got) => got,
            Err(StoreError::NotFound { .. }) => return Ok(Found::empty(None)),
            // Stores say in different ways that an empty object has no first bytes.
            Err(error) if is_part => match self.bucket.store.head(&self.path).await {
                Ok(meta) if meta.size == 0 => return Ok(Found::empty(Some(meta))),
                _ => return Err(failed(error)),
            },
            Err(error) => return Err(failed(error)),
        };
        let version = version(&got.meta);
        let bytes = got.bytes().await.map_err(failed)?;
        let (header, content) = Header::split(bytes).map_err(ErrorKind::misuse)?;
        Ok(Found { version: Some(version), header, content })
    }

    /// Replaces the object that was found, and returns whether it was unchanged. If it was not, an earlier try of this
    /// put by the store client may have changed it.
    async fn replace(&self, found: &Found, header: Header, content: &[u8]) -> Result<bool, ErrorKind> {
        let mode = found.version.clone().map_or(PutMode::Create, PutMode::Update);
        let payload = PutPayload::from(header.before(content));
        match self.bucket.store.put_opts(&self.path, payload, PutOptions::from(mode)).await {
            Ok(_) => Ok(true),
            Err(error) if is_condition(&error) => Ok(false),
            Err(error) => Err(ErrorKind::unknown("the object could not be written", error)),
        }
    }

    async fn try_raise(&self, token: Token) -> Result<Mark, ErrorKind> {
        let mut may_be_raised = false;
        for _ in 0..ROUNDS {
            let found =
                self.find(None).await.map_err(|kind| if may_be_raised { with_unknown_effect(kind) } else { kind })?;
            let mut state = found.state();
            let before = state.mark();
            // The newer token refuses every older one, so it does not matter whether an earlier try has raised the
            // mark.
            let mark = state.seal(token).map_err(|by| ErrorKind::Superseded { seen: by.seen })?;
            let header = Header { mark, author: Author::default(), is_nothing: true };
            if before == Some(mark) || self.replace(&found, header, &found.content).await? {
                return Ok(mark);
            }
            may_be_raised = true;
        }
        Err(with_unknown_effect(too_contended()))
    }

    async fn try_write(&self, pass: &Pass, content: Option<&Bytes>) -> Result<Option<()>, ErrorKind> {
        let mut may_be_written = false;
        for _ in 0..ROUNDS {
            // Without a new content the old one is written again.
            let range = content.is_some().then_some(GetRange::Bounded(0..header::LONGEST));
            let found = self
                .find(range)
                .await
                .map_err(|kind| if may_be_written { with_unknown_effect(kind) } else { kind })?;
            let verdict = found.state().admit(pass.stamp());
            // Another handle has used up this number, so this write was not applied.
            let is_taken = matches!(verdict, Verdict::Gap { expected } if expected == pass.seq.next());
            if let Some(kind) = ErrorKind::refused(&verdict) {
                return Err(if may_be_written && !is_taken { with_unknown_effect(kind) } else { kind });
            }
            if let Verdict::Duplicate(outcome) = verdict {
                return Ok(outcome);
            }
            let mark = Mark { token: pass.token, seq: pass.seq };
            let header = Header { mark, author: pass.author, is_nothing: content.is_none() };
            if self.replace(&found, header, content.unwrap_or(&found.content)).await? {
                return Ok(content.map(|_| ()));
            }
            may_be_written = true;
        }
        Err(with_unknown_effect(too_contended()))
    }
}

fn too_contended() -> ErrorKind {
    let what = format!("other clients have changed the object during each of {ROUNDS} tries");
    ErrorKind::Unavailable { what, may_have_taken_effect: false, is_retryable: true, source: None }
}

/// Returns the error after a put whose condition did not hold: an earlier try of the store client may have been carried
/// out.
fn with_unknown_effect(kind: ErrorKind) -> ErrorKind {
    let (what, is_retryable, source) = match kind {
        ErrorKind::Stale { seen } => (format!("token {seen} has sealed it. {}", overtaken(seen)), false, None),
        ErrorKind::NotSealed => ("the object has lost its mark: it was replaced or deleted".to_owned(), false, None),
        ErrorKind::Gap { .. } => ("another handle under this token has written".to_owned(), false, None),
        ErrorKind::Unavailable { what, is_retryable, source, .. } => (what, is_retryable, source),
        ErrorKind::Misuse { what } => (what, false, None),
        other => return other,
    };
    let what =
        format!("{what}; the store client may have carried the put out before, in a try whose answer was lost");
    ErrorKind::Unavailable { what, may_have_taken_effect: true, is_retryable, source }
}

impl Resource for Object {
    type Query = ();
    type Answer = Bytes;
    type Change = Bytes;
    type Outcome = ();

    fn name(&self) -> String {
        format!("object {} in {}", self.path, self.bucket.name())
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        self.try_raise(token).await.map_err(|kind| Error::new(kind, self.name(), "seal").under(token))
    }

    async fn read(&self, pass: &Pass, (): ()) -> Result<Bytes, Error> {
        let error = |kind| Error::new(kind, self.name(), "read").under(pass.token);
        let found = self.find(None).await.map_err(error)?;
        match found.state().admit_read(pass.token).err().as_ref().and_then(ErrorKind::refused) {
            Some(kind) => Err(error(kind)),
            None => Ok(found.content),
        }
    }

    async fn write(&self, pass: &Pass, change: Option<Bytes>) -> Result<Option<()>, Error> {
        let written = self.try_write(pass, change.as_ref()).await;
        written.map_err(|kind| Error::new(kind, self.name(), "write").under(pass.token))
    }
}

crate::sealable!(Object);

impl Sealed<Object> {
    /// Returns the content; empty if nothing was ever written.
    ///
    /// # Errors
    ///
    /// As [`Sealed::read`].
    pub async fn get(&self) -> Result<Bytes, Error> {
        self.read(()).await
    }

    /// Replaces the content.
    ///
    /// # Errors
    ///
    /// As [`Sealed::write`].
    pub async fn put(&mut self, content: impl Into<Bytes>) -> Result<(), Error> {
        self.write(content.into()).await
    }
}

/// The examples of its page are doc tests too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing/object-store.md")]
struct Page;
