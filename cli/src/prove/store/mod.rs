//! Where the number is kept, in each of the three ways that are compared. A store is a file of its own here, and a line
//! in [`open`].

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
use crate::reach::path;

/// The stores that there are, for messages.
const KNOWN: &str = "file:FOLDER, sqlite:FILE, postgres://…, mysql://…, redis://…, http:, http://…, s3://BUCKET";

/// One number in a store, under a name that nothing else there has.
pub(super) trait Store: Send + Sync {
    /// What it is and where, without secrets.
    fn shown(&self) -> String;

    /// Makes the number, as 0, for one scheme.
    fn make(&self, scheme: Scheme) -> Later<'_, ()>;

    /// Takes away what was made. A mark may stay.
    fn remove(&self) -> Later<'_, ()>;

    /// Reads it as anybody does.
    fn read(&self) -> Later<'_, u64>;

    /// Writes it as anybody does.
    fn write(&self, number: u64) -> Later<'_, ()>;

    /// Writes it if no higher token has written, in one step of the store.
    fn ratchet(&self, token: Token, number: u64) -> Later<'_, ()>;

    /// Seals it, by the adapter for this store.
    fn seal(&self, token: Token) -> Later<'_, Box<dyn SealedNumber>>;
}

/// What can be done with the number once it is sealed.
pub(super) trait SealedNumber: Send {
    fn read(&self) -> Later<'_, u64>;
    fn write(&mut self, number: u64) -> Later<'_, ()>;
}

pub(super) type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + Send + 'a>>;

/// Why an access did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The fence has refused it: nothing has changed.
    Refused(String),
    /// It certainly was not done.
    Failed(String),
    /// Nobody knows whether it was done.
    Unsure(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Trouble::Refused(what) | Trouble::Failed(what) | Trouble::Unsure(what)) = self;
        f.write_str(what)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let what = error.to_string();
        match (error.overtaken_by(), error.may_have_taken_effect()) {
            (Some(_), _) => Trouble::Refused(what),
            (None, true) => Trouble::Unsure(what),
            (None, false) => Trouble::Failed(what),
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        Failure::Unreachable(trouble.to_string())
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
trait Counting: Send + Sync + 'static {
    type Resource: Resource<Query: Send, Answer: Send, Change: Send> + 'static;

    fn query(&self) -> <Self::Resource as Resource>::Query;
    fn number(&self, answer: <Self::Resource as Resource>::Answer) -> Option<u64>;
    fn change(&self, number: u64) -> <Self::Resource as Resource>::Change;
}

/// A number behind an adapter.
struct Counted<C: Counting> {
    sealed: Sealed<C::Resource>,
    how: C,
}

/// Seals a number for [`Store::seal`].
async fn seal<C: Counting>(resource: C::Resource, how: C, token: Token) -> Result<Box<dyn SealedNumber>, Trouble> {
    Ok(Box::new(Counted { sealed: Sealed::seal(resource, token).await?, how }))
}

impl<C: Counting> SealedNumber for Counted<C> {
    fn read(&self) -> Later<'_, u64> {
        Box::pin(async {
            let answer = self.sealed.read(self.how.query()).await?;
            let strange = || Trouble::Failed(format!("what is in '{}' is no number", self.sealed.resource().name()));
            self.how.number(answer).ok_or_else(strange)
        })
    }

    fn write(&mut self, number: u64) -> Later<'_, ()> {
        Box::pin(async move {
            let Err(error) = self.sealed.write(self.how.change(number)).await else { return Ok(()) };
            if self.sealed.is_settled() {
                return Err(error.into());
            }
            match self.sealed.settle().await {
                Ok(Settled::Applied(_)) => Ok(()),
                Ok(Settled::NeverApplied | Settled::Nothing) => Err(Trouble::Failed(error.to_string())),
                Err(_) => Err(Trouble::Unsure(error.to_string())),
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
    pub(super) async fn begin(store: &'a dyn Store, scheme: Scheme, token: Token) -> Result<Access<'a>, Trouble> {
        Ok(match scheme {
            Scheme::None => Access::Plain(store),
            Scheme::Ratchet => Access::Ratchet(store, token),
            Scheme::Strict => Access::Sealed(store.seal(token).await?),
        })
    }

    pub(super) async fn read(&self) -> Result<u64, Trouble> {
        match self {
            Access::Plain(store) | Access::Ratchet(store, _) => store.read().await,
            Access::Sealed(sealed) => sealed.read().await,
        }
    }

    pub(super) async fn write(&mut self, number: u64) -> Result<(), Trouble> {
        match self {
            Access::Plain(store) => store.write(number).await,
            Access::Ratchet(store, token) => store.ratchet(*token, number).await,
            Access::Sealed(sealed) => sealed.write(number).await,
        }
    }
}

/// What a ratchet says to a token that was overtaken.
fn ratcheted(token: Token) -> Trouble {
    Trouble::Refused(format!("a token higher than {token} has written"))
}
