//! The stores that can keep the number, one file and one line in [`open`] each. Each supports all kinds of fencing.

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

use super::fencing::Fencing;
use crate::outcome::Failure;
use crate::stores::path;

/// The URLs of all stores, for messages.
const KNOWN: &str = "file:FOLDER, sqlite:FILE, postgres://…, mysql://…, redis://…, http:, http://…, s3://BUCKET";

/// One number in a store, under a name that nothing else there has.
pub(super) trait Store: Send + Sync {
    /// Describes the store and its address, without secrets.
    fn describe(&self) -> String;

    /// Creates the number, as 0, and prepares the store for one kind of fencing.
    fn create_data(&self, fencing: Fencing) -> StoreFuture<'_, ()>;

    /// Removes what `make` created. The fence's mark may stay.
    fn remove(&self) -> StoreFuture<'_, ()>;

    /// Reads the number without a token.
    fn read(&self) -> StoreFuture<'_, u64>;

    /// Writes the number without a token.
    fn write(&self, number: u64) -> StoreFuture<'_, ()>;

    /// Writes the number if no higher token has written. The check and the write are atomic.
    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()>;

    /// Seals the number through the fence's adapter for this store.
    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedCounter>>;
}

/// A sealed number.
pub(super) trait SealedCounter: Send {
    fn read(&self) -> StoreFuture<'_, u64>;
    fn write(&mut self, number: u64) -> StoreFuture<'_, ()>;
}

pub(super) type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Why an access failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreError {
    /// The fence refused it. Nothing has changed.
    Refused(String),
    /// It failed, and certainly changed nothing.
    Failed(String),
    /// The outcome is unknown.
    UnknownOutcome(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (StoreError::Refused(message) | StoreError::Failed(message) | StoreError::UnknownOutcome(message)) = self;
        f.write_str(message)
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> StoreError {
        let message = error.to_string();
        match (error.overtaken_by(), error.may_have_taken_effect()) {
            (Some(_), _) => StoreError::Refused(message),
            (None, true) => StoreError::UnknownOutcome(message),
            (None, false) => StoreError::Failed(message),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Unavailable(error.to_string())
    }
}

/// Opens the number of this name in the store of this URL.
pub(super) async fn open(url: &str, name: &str) -> Result<Box<dyn Store>, Failure> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Failure::Misuse(format!("a resource is one of {KNOWN}")));
    };
    match scheme {
        "file" => Ok(Box::new(file::Counter::open(path(rest), name)?)),
        "sqlite" => Ok(Box::new(sqlite::Counter::open(path(rest), name).await?)),
        "postgres" | "postgresql" => Ok(Box::new(postgres::Counter::open(url, name).await?)),
        "mysql" => Ok(Box::new(mysql::Counter::open(url, name).await?)),
        "redis" | "rediss" => Ok(Box::new(redis::Counter::open(url, name).await?)),
        "http" => Ok(Box::new(http::Counter::open(url, name)?)),
        "s3" => Ok(Box::new(s3::Counter::open(url, name)?)),
        _ => {
            let scheme = scheme.escape_debug();
            Err(Failure::Misuse(format!("'{scheme}:' is not a supported resource; use one of {KNOWN}")))
        }
    }
}

/// Translates reads and writes of the number into the queries and changes of a fenced resource.
trait CounterAdapter: Send + Sync + 'static {
    type Resource: Resource<Query: Send, Answer: Send, Change: Send> + 'static;

    fn query(&self) -> <Self::Resource as Resource>::Query;
    fn number(&self, answer: <Self::Resource as Resource>::Answer) -> Option<u64>;
    fn change(&self, number: u64) -> <Self::Resource as Resource>::Change;
}

/// A number in a fenced resource.
struct AdaptedCounter<C: CounterAdapter> {
    sealed: Sealed<C::Resource>,
    adapter: C,
}

/// Seals a number for [`Store::seal`].
async fn seal<C: CounterAdapter>(
    resource: C::Resource,
    adapter: C,
    token: Token,
) -> Result<Box<dyn SealedCounter>, StoreError> {
    Ok(Box::new(AdaptedCounter { sealed: Sealed::seal(resource, token).await?, adapter }))
}

impl<C: CounterAdapter> SealedCounter for AdaptedCounter<C> {
    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async {
            let answer = self.sealed.read(self.adapter.query()).await?;
            let not_a_number =
                || StoreError::Failed(format!("'{}' does not contain a number", self.sealed.resource().name()));
            self.adapter.number(answer).ok_or_else(not_a_number)
        })
    }

    fn write(&mut self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let Err(error) = self.sealed.write(self.adapter.change(number)).await else { return Ok(()) };
            if self.sealed.is_settled() {
                return Err(error.into());
            }
            match self.sealed.settle().await {
                Ok(Settled::Applied(_)) => Ok(()),
                Ok(Settled::NeverApplied | Settled::Nothing) => Err(StoreError::Failed(error.to_string())),
                Err(_) => Err(StoreError::UnknownOutcome(error.to_string())),
            }
        })
    }
}

/// Access to the number with one token and one kind of fencing.
pub(super) enum Access<'a> {
    Plain(&'a dyn Store),
    Ratchet(&'a dyn Store, Token),
    Sealed(Box<dyn SealedCounter>),
}

impl<'a> Access<'a> {
    /// Begins to work with a new token. Seals the number, if it is strictly fenced.
    pub(super) async fn begin(
        store: &'a dyn Store,
        fencing: Fencing,
        token: Token,
    ) -> Result<Access<'a>, StoreError> {
        Ok(match fencing {
            Fencing::None => Access::Plain(store),
            Fencing::Ratchet => Access::Ratchet(store, token),
            Fencing::Strict => Access::Sealed(store.seal(token).await?),
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

/// Returns the ratchet's refusal of a token that was overtaken.
fn ratchet_refusal(token: Token) -> StoreError {
    StoreError::Refused(format!("a token higher than {token} has written"))
}
