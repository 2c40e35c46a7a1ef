//! An object in S3. The ratchet keeps its token in the object, and puts it on the condition that it is still the same.

use std::sync::Arc;

use ::object_store::path::Path;
use ::object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use bytes::Bytes;
use palisade::Token;
use palisade_fence::object_store::{Bucket, Object};
use tokio::sync::OnceCell;

use super::{NumberAdapter, SealedNumber, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::scheme::Scheme;
use crate::stores;

pub(super) struct Numbers {
    url: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    fenced: OnceCell<Object>,
}

impl Numbers {
    pub(super) fn open(url: &str, name: &str) -> Result<Numbers, Failure> {
        let (store, folder) = stores::s3::open(url)?;
        let bad = |error| Failure::Misuse(format!("this is no path in a bucket: {error}"));
        let path = Path::parse(folder.trim_end_matches('/')).map_err(bad)?.join(name);
        Ok(Numbers { url: url.to_owned(), store, path, fenced: OnceCell::new() })
    }

    async fn fenced(&self) -> Result<Object, StoreError> {
        let open = async || Bucket::open(self.store.clone()).await?.object(self.path.as_ref());
        Ok(self.fenced.get_or_try_init(open).await?.clone())
    }

    /// The version of the object and its content: `TOKEN NUMBER`, or the number alone.
    async fn look(&self) -> Result<(UpdateVersion, u64, u64), StoreError> {
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

fn unsure(error: Error) -> StoreError {
    StoreError::Unsure(format!("the store says: {error}"))
}

impl Store for Numbers {
    fn describe(&self) -> String {
        stores::redacted(&self.url)
    }

    fn make(&self, _: Scheme) -> StoreFuture<'_, ()> {
        self.write(0)
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.store.delete(&self.path).await.map_err(failed) })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { self.look().await.map(|(_, _, number)| number) })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.store.put(&self.path, PutPayload::from(number.to_string())).await.map(|_| ()).map_err(unsure)
        })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let (version, seen, _) = self.look().await?;
                if seen > token.get() {
                    return Err(ratchet_refusal(token));
                }
                let (text, mode) = (format!("{token} {number}"), PutOptions::from(PutMode::Update(version)));
                match self.store.put_opts(&self.path, PutPayload::from(text), mode).await {
                    Ok(_) => return Ok(()),
                    // Another writer was faster.
                    Err(Error::Precondition { .. }) => {}
                    Err(error) => return Err(unsure(error)),
                }
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedNumber>> {
        Box::pin(async move { seal(self.fenced().await?, Content, token).await })
    }
}

/// The number is all of the content.
struct Content;

impl NumberAdapter for Content {
    type Resource = Object;

    fn query(&self) {}

    fn number(&self, answer: Bytes) -> Option<u64> {
        str::from_utf8(&answer).ok()?.parse().ok()
    }

    fn change(&self, number: u64) -> Bytes {
        number.to_string().into()
    }
}
