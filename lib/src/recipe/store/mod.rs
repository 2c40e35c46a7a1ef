//! The databases in which recipes keep their records.
//!
//! A recipe creates its table when it first needs it, if it is missing. All handles are cheap to clone, and clones share their
//! connections. They need a Tokio runtime. [`Sqlite`] needs it for retries only.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "object-store")]
mod objects;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "embedded")]
mod sqlite;

#[cfg(feature = "mysql")]
pub use mysql::Mysql;
#[cfg(feature = "mysql")]
pub(crate) use mysql::{is_contention, is_missing as is_missing_in_mysql};
#[cfg(feature = "object-store")]
pub use objects::Objects;
#[cfg(feature = "postgres")]
pub use postgres::Postgres;
#[cfg(feature = "postgres")]
pub(crate) use postgres::{big, bytes, float, is_missing, milliseconds, text};
#[cfg(feature = "redis")]
pub use redis::Redis;
#[cfg(feature = "embedded")]
pub use sqlite::Sqlite;

/// Seals the traits of the recipes' stores: a recipe relies on more than their signatures say.
#[cfg(any(
    feature = "embedded",
    feature = "mysql",
    feature = "object-store",
    feature = "postgres",
    feature = "redis"
))]
pub(crate) trait Sealed {}
#[cfg(feature = "mysql")]
impl Sealed for Mysql {}
#[cfg(feature = "object-store")]
impl Sealed for Objects {}
#[cfg(feature = "postgres")]
impl Sealed for Postgres {}
#[cfg(feature = "redis")]
impl Sealed for Redis {}
#[cfg(feature = "embedded")]
impl Sealed for Sqlite {}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
use crate::engine::remote::ConnectError;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
use crate::{Error, ErrorKind, Misuse};

/// The operation of connecting, in messages.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
const CONNECT: &str = "connect";

/// Checks the scheme of a URL, and parses the rest.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn parse_url<T>(
    url: &str,
    store: &'static str,
    schemes: &[&str],
    parse: impl FnOnce(&str, &str) -> Result<T, crate::engine::Failure>,
) -> Result<T, Error> {
    match url.split_once(':') {
        Some((scheme, rest)) if schemes.contains(&scheme) => {
            parse(scheme, rest).map_err(|failure| Error::new(failure.into(), store, CONNECT))
        }
        _ => {
            let what = format!("this is no {store} URL; it begins with {}:", schemes.join(": or "));
            Err(Error::new(ErrorKind::Misuse(Misuse::Url(what)), store, CONNECT))
        }
    }
}

/// Fails an attempt to connect that takes longer. Recipes run in the application's runtime, and are not simulated.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
async fn within<T>(
    limit: std::time::Duration,
    attempt: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| Err(ConnectError::no_answer(limit)))
}

/// A call of a database that takes longer fails. Longer than a statement may take by the limits that the database itself observes:
/// this is for one that is gone or stopped.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// A call of a database, for the error if there is no answer.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) struct Call<'a> {
    pub(crate) operation: &'static str,
    pub(crate) key: &'a str,
    /// Whether it changes something.
    pub(crate) writes: bool,
}

/// Fails a call that takes too long. The connection that it uses is dropped with it.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn bounded<T>(
    (store, peer): (&'static str, &crate::engine::remote::Peer),
    Call { operation, key, writes }: Call<'_>,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answered = tokio::time::timeout(CALL_TIMEOUT, call).await;
    answered.unwrap_or_else(|_| {
        let failure = ConnectError::no_answer(CALL_TIMEOUT).at(peer).failure(writes);
        Err(named(Error::new(failure.into(), store, operation), key))
    })
}

/// Adds the key of the record to an error, if the operation has one.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn named(error: Error, key: &str) -> Error {
    if key.is_empty() { error } else { error.on(key) }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_of_a_database_that_is_gone_fails_and_says_what_is_known() {
        let config = crate::engine::postgres::Config::parse("//db.example/shop").expect("a URL");
        for writes in [true, false] {
            let call = Call { operation: "begin", key: "charge/42", writes };
            let gone = std::future::pending::<Result<(), Error>>();
            let error = bounded(("postgres", &config.peer()), call, gone).await.expect_err("no answer");
            assert!(error.is_retryable(), "{error}");
            assert_eq!(error.may_have_taken_effect(), writes, "{error}");
            let text = error.to_string();
            assert!(text.contains("db.example") && text.contains("charge/42"), "{text}");
        }
    }
}
