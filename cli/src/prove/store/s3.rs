//! An object in S3. The ratchet keeps its token in the object, and replaces the object by a conditional put.

use std::sync::Arc;

use ::object_store::path::Path;
use ::object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use bytes::Bytes;
use palisade::Token;
use palisade_fence::object_store::{Bucket, Object};
use tokio::sync::OnceCell;

use super::{CounterAdapter, SealedCounter, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;
use crate::stores;

pub(super) struct Counter {
    url: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    fenced: OnceCell<Object>,
}

impl Counter {
    pub(super) fn open(url: &str, name: &str) -> Result<Counter, Failure> {
        let (store, folder) = stores::s3::open(url)?;
        let bad = |error| Failure::Misuse(format!("this is not a path in a bucket: {error}"));
        let path = Path::parse(folder.trim_end_matches('/')).map_err(bad)?.join(name);
        Ok(Counter { url: url.to_owned(), store, path, fenced: OnceCell::new() })
    }

    async fn fenced(&self) -> Result<Object, StoreError> {
        let open = async || Bucket::open(self.store.clone()).await?.object(self.path.as_ref());
        Ok(self.fenced.get_or_try_init(open).await?.clone())
    }

    /// Reads the object's version, the token and the number. The object contains `TOKEN NUMBER`, or the number alone;
    /// then the token is 0.
    async fn load(&self) -> Result<(UpdateVersion, u64, u64), StoreError> {
        let got = self.store.get(&self.path).await.map_err(failed)?;
        let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let bytes = got.bytes().await.map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.split_whitespace().rev().map(|word| word.parse().unwrap_or(0));
        let number = words.next().unwrap_or(0);
        Ok((version, words.next().unwrap_or(0), number))
    }
}

fn failed(error: Error) -> StoreError {
    StoreError::Failed(format!("the store says: {error}"))
}

fn unknown_outcome(error: Error) -> StoreError {
    StoreError::UnknownOutcome(format!("the store says: {error}"))
}

impl Store for Counter {
    fn describe(&self) -> String {
        stores::redacted(&self.url)
    }

    fn create_data(&self, _: Fencing) -> StoreFuture<'_, ()> {
        self.write(0)
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.store.delete(&self.path).await.map_err(failed) })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { self.load().await.map(|(_, _, number)| number) })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.store
                .put(&self.path, PutPayload::from(number.to_string()))
                .await
                .map(|_| ())
                .map_err(unknown_outcome)
        })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let (version, highest, _) = self.load().await?;
                if highest > token.get() {
                    return Err(ratchet_refusal(token));
                }
                let (text, mode) = (format!("{token} {number}"), PutOptions::from(PutMode::Update(version)));
                match self.store.put_opts(&self.path, PutPayload::from(text), mode).await {
                    Ok(_) => return Ok(()),
                    // Another writer replaced the object meanwhile: compare again.
                    Err(Error::Precondition { .. }) => {}
                    Err(error) => return Err(unknown_outcome(error)),
                }
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedCounter>> {
        Box::pin(async move { seal(self.fenced().await?, Content, token).await })
    }
}

/// An object whose whole content is the number.
struct Content;

impl CounterAdapter for Content {
    type Resource = Object;

    fn query(&self) {}

    fn number(&self, answer: Bytes) -> Option<u64> {
        str::from_utf8(&answer).ok()?.parse().ok()
    }

    fn change(&self, number: u64) -> Bytes {
        number.to_string().into()
    }
}
