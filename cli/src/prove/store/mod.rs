//! The stores of the number, one file each and a line in [`open`]. Each supports the three schemes.

mod file;
mod http;
mod mysql;
mod postgres;
mod redis;
mod s3;
pub(super) mod service;
mod sqlite;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use palisade::Token;
use palisade_fence::{Error, Resource, Sealed, Settled};

use super::scheme::Scheme;
use crate::outcome::Failure;
use crate::stores::path;

/// The stores that there are, for messages.
const KNOWN: &str = "file:FOLDER, sqlite:FILE, postgres://…, mysql://…, redis://…, http:, http://…, s3://BUCKET";

/// One number in a store, under a name that nothing else there has.
pub(super) trait Store: Send + Sync {
    /// What it is and where, without secrets.
    fn describe(&self) -> String;

    /// Makes the number, as 0, for one scheme.
    fn make(&self, scheme: Scheme) -> StoreFuture<'_, ()>;

    /// Takes away what was made. A mark may stay.
    fn remove(&self) -> StoreFuture<'_, ()>;

    /// Reads it without a token.
    fn read(&self) -> StoreFuture<'_, u64>;

    /// Writes it without a token.
    fn write(&self, number: u64) -> StoreFuture<'_, ()>;

    /// Writes it if no higher token has written, in one step of the store.
    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()>;

    /// Seals it, by the adapter for this store.
    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedNumber>>;
}

/// What can be done with the number once it is sealed.
pub(super) trait SealedNumber: Send {
    fn read(&self) -> StoreFuture<'_, u64>;
    fn write(&mut self, number: u64) -> StoreFuture<'_, ()>;
}

pub(super) type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Why an access did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreError {
    /// The fence has refused it: nothing has changed.
    Refused(String),
    /// It certainly was not done.
    Failed(String),
    /// The outcome is unknown.
    Unsure(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (StoreError::Refused(what) | StoreError::Failed(what) | StoreError::Unsure(what)) = self;
        f.write_str(what)
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> StoreError {
        let what = error.to_string();
        match (error.overtaken_by(), error.may_have_taken_effect()) {
            (Some(_), _) => StoreError::Refused(what),
            (None, true) => StoreError::Unsure(what),
            (None, false) => StoreError::Failed(what),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(trouble: StoreError) -> Failure {
        Failure::Unavailable(trouble.to_string())
    }
}

/// The number of this name in the store that a URL says.
pub(super) async fn open(url: &str, name: &str) -> Result<Box<dyn Store>, Failure> {
    let Some((scheme, place)) = url.split_once(':') else {
        return Err(Failure::Misuse(format!("a resource is one of {KNOWN}")));
    };
    match scheme {
        "file" => Ok(Box::new(file::Numbers::open(path(place), name)?)),
        "sqlite" => Ok(Box::new(sqlite::Numbers::open(path(place), name).await?)),
        "postgres" | "postgresql" => Ok(Box::new(postgres::Numbers::open(url, name).await?)),
        "mysql" => Ok(Box::new(mysql::Numbers::open(url, name).await?)),
        "redis" | "rediss" => Ok(Box::new(redis::Numbers::open(url, name).await?)),
        "http" => Ok(Box::new(http::Numbers::open(url, name)?)),
        "s3" => Ok(Box::new(s3::Numbers::open(url, name)?)),
        _ => {
            let scheme = scheme.escape_debug();
            Err(Failure::Misuse(format!("'{scheme}:' is no kind of resource; there are {KNOWN}")))
        }
    }
}

/// How a number is read and written through an adapter.
trait NumberAdapter: Send + Sync + 'static {
    type Resource: Resource<Query: Send, Answer: Send, Change: Send> + 'static;

    fn query(&self) -> <Self::Resource as Resource>::Query;
    fn number(&self, answer: <Self::Resource as Resource>::Answer) -> Option<u64>;
    fn change(&self, number: u64) -> <Self::Resource as Resource>::Change;
}

/// A number behind an adapter.
struct AdaptedNumber<C: NumberAdapter> {
    sealed: Sealed<C::Resource>,
    how: C,
}

/// Seals a number for [`Store::seal`].
async fn seal<C: NumberAdapter>(
    resource: C::Resource,
    how: C,
    token: Token,
) -> Result<Box<dyn SealedNumber>, StoreError> {
    Ok(Box::new(AdaptedNumber { sealed: Sealed::seal(resource, token).await?, how }))
}

impl<C: NumberAdapter> SealedNumber for AdaptedNumber<C> {
    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async {
            let answer = self.sealed.read(self.how.query()).await?;
            let strange =
                || StoreError::Failed(format!("what is in '{}' is no number", self.sealed.resource().name()));
            self.how.number(answer).ok_or_else(strange)
        })
    }

    fn write(&mut self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let Err(error) = self.sealed.write(self.how.change(number)).await else { return Ok(()) };
            if self.sealed.is_settled() {
                return Err(error.into());
            }
            match self.sealed.settle().await {
                Ok(Settled::Applied(_)) => Ok(()),
                Ok(Settled::NeverApplied | Settled::Nothing) => Err(StoreError::Failed(error.to_string())),
                Err(_) => Err(StoreError::Unsure(error.to_string())),
            }
        })
    }
}

/// The number, as a scheme lets the holder of a token have it.
pub(super) enum Access<'a> {
    Plain(&'a dyn Store),
    Ratchet(&'a dyn Store, Token),
    Sealed(Box<dyn SealedNumber>),
}

impl<'a> Access<'a> {
    /// What is done first under a new token: sealing, where the scheme has it.
    pub(super) async fn begin(store: &'a dyn Store, scheme: Scheme, token: Token) -> Result<Access<'a>, StoreError> {
        Ok(match scheme {
            Scheme::None => Access::Plain(store),
            Scheme::Ratchet => Access::Ratchet(store, token),
            Scheme::Strict => Access::Sealed(store.seal(token).await?),
        })
    }

    pub(super) async fn read(&self) -> Result<u64, StoreError> {
        match self {
            Access::Plain(store) | Access::Ratchet(store, _) => store.read().await,
            Access::Sealed(sealed) => sealed.read().await,
        }
    }

    pub(super) async fn write(&mut self, number: u64) -> Result<(), StoreError> {
        match self {
            Access::Plain(store) => store.write(number).await,
            Access::Ratchet(store, token) => store.ratchet(*token, number).await,
            Access::Sealed(sealed) => sealed.write(number).await,
        }
    }
}

/// What a ratchet says to a token that was overtaken.
fn ratchet_refusal(token: Token) -> StoreError {
    StoreError::Refused(format!("a token higher than {token} has written"))
}
