//! The bench on which the promises are checked.

use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_fence::{Error, ErrorKind, Resource, Sealed, Token};

use super::wire::Wire;
use crate::bounded::{BOUND, check};

/// An adapter to be checked: how one number is kept in its resource.
pub trait Subject: Clone + Send + Sync + 'static {
    /// The adapter.
    type Resource: Resource<Query: Send, Change: Clone + Send, Outcome: Debug + PartialEq> + 'static;

    /// Opens or creates the resource of this name. The same name leads to the same data and the same mark, in every
    /// process.
    fn open(&self, name: &str) -> impl Future<Output = Result<Self::Resource, Error>> + Send;

    /// Returns the query for the number.
    fn get(&self) -> <Self::Resource as Resource>::Query;

    /// Returns the change that sets the number.
    fn set(&self, number: u64) -> <Self::Resource as Resource>::Change;

    /// Returns the number in an answer; 0 if it was never set.
    fn number(&self, answer: <Self::Resource as Resource>::Answer) -> u64;

    /// Names that must be refused as misuse.
    fn bad_names(&self) -> Vec<String>;

    /// Changes that this resource cannot make once its number was set, whatever the token; empty if it can make every
    /// change.
    fn impossible(&self) -> Vec<<Self::Resource as Resource>::Change>;
}

/// A subject, and a prefix of names that no other test uses.
#[derive(Clone)]
pub struct Bench<S> {
    pub(super) subject: S,
    prefix: String,
}

/// A handle over a wire.
pub(super) type Handle<S> = Sealed<Wire<<S as Subject>::Resource>>;

/// Checks one promise on one subject.
pub fn run<S: Subject>(subject: S, promise: impl AsyncFnOnce(&Bench<S>)) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let bench = Bench { subject, prefix: format!("fencing_{}_{number}_", std::process::id()) };
    check(BOUND, promise(&bench));
}

impl<S: Subject> Bench<S> {
    /// Opens a resource whose name no other test uses.
    pub async fn open(&self, name: &str) -> S::Resource {
        ok(self.subject.open(&format!("{}{name}", self.prefix)).await)
    }

    /// A handle, over this wire.
    pub async fn sealed(&self, wire: &Wire<S::Resource>, token: u64) -> Handle<S> {
        ok(Sealed::seal(wire.clone(), token_of(token)).await)
    }

    /// The resource, over a new wire.
    pub async fn wire(&self, name: &str) -> Wire<S::Resource> {
        Wire::to(self.open(name).await)
    }

    /// The number.
    pub async fn get<R>(&self, handle: &Sealed<R>) -> Result<u64, Error>
    where
        R: Resource<Query = <S::Resource as Resource>::Query, Answer = <S::Resource as Resource>::Answer>,
    {
        handle.read(self.subject.get()).await.map(|answer| self.subject.number(answer))
    }

    /// Sets the number.
    pub async fn set<R>(&self, handle: &mut Sealed<R>, number: u64) -> Result<R::Outcome, Error>
    where
        R: Resource<Change = <S::Resource as Resource>::Change>,
    {
        handle.write(self.subject.set(number)).await
    }

    /// Reads the number as a new holder with this token.
    pub async fn look(&self, name: &str, token: u64) -> u64 {
        let resource = self.open(name).await;
        ok(self.get(&ok(Sealed::seal(resource, token_of(token)).await)).await)
    }
}

/// A token.
pub(super) fn token_of(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// Unwraps a result that was promised to be a success.
#[track_caller]
pub(super) fn ok<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("it must succeed, but: {error} ({:?})", error.kind()))
}

/// Asserts a refusal of the wanted kind that names the resource and the token, and has changed nothing.
#[track_caller]
pub(super) fn refused<T: Debug>(result: Result<T, Error>, wanted: impl Fn(&ErrorKind) -> bool) {
    let error = result.expect_err("it must be refused");
    assert!(wanted(error.kind()), "refused for another reason: {error} ({:?})", error.kind());
    assert!(!error.may_have_taken_effect(), "a refusal changes nothing: {error}");
    assert!(!error.is_retryable(), "what is refused stays refused: {error}");
    assert!(
        !error.resource().is_empty() && error.token().is_some(),
        "it names the resource and the token: {error:?}"
    );
}

/// Returns a test for the error that this token has overtaken another.
pub(super) fn stale(by: u64) -> impl Fn(&ErrorKind) -> bool {
    move |kind| matches!(kind, ErrorKind::Stale { seen } if seen.get() == by)
}

/// Returns a test for the error that this token has sealed before.
pub(super) fn superseded(by: u64) -> impl Fn(&ErrorKind) -> bool {
    move |kind| matches!(kind, ErrorKind::Superseded { seen } if seen.get() == by)
}
