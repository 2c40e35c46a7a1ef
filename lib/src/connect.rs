//! From a URL to an engine: the one file that names them all.

#[cfg(feature = "embedded")]
use crate::engine::embedded;
use crate::engine::memory;
#[cfg(feature = "mysql")]
use crate::engine::mysql;
#[cfg(feature = "postgres")]
use crate::engine::postgres;
#[cfg(feature = "service")]
use crate::engine::service;
use crate::keeper::Start;
use crate::{Error, ErrorKind, Misuse, Options};

/// An engine that can be connected to.
pub(crate) enum Target {
    Memory(memory::Config),
    #[cfg(feature = "embedded")]
    Embedded(embedded::Config),
    #[cfg(feature = "mysql")]
    Mysql(mysql::Config),
    #[cfg(feature = "postgres")]
    Postgres(postgres::Config),
    #[cfg(feature = "service")]
    Service(service::Config),
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Target, Error> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        match scheme {
            "memory" => Ok(Target::Memory(memory::Config::parse(rest))),
            #[cfg(feature = "embedded")]
            "embedded" => match embedded::Config::parse(rest) {
                Ok(config) => Ok(Target::Embedded(config)),
                Err(failure) => Err(Error::new(failure.into(), "embedded", "connect")),
            },
            #[cfg(feature = "mysql")]
            "mysql" => match mysql::Config::parse(rest) {
                Ok(config) => Ok(Target::Mysql(config)),
                Err(failure) => Err(Error::new(failure.into(), "mysql", "connect")),
            },
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => match postgres::Config::parse(rest) {
                Ok(config) => Ok(Target::Postgres(config)),
                Err(failure) => Err(Error::new(failure.into(), "postgres", "connect")),
            },
            #[cfg(feature = "service")]
            "palisade" | "palisades" => {
                let parse =
                    if scheme == "palisade" { service::Config::parse } else { service::Config::parse_encrypted };
                match parse(rest) {
                    Ok(config) => Ok(Target::Service(config)),
                    Err(failure) => Err(Error::new(failure.into(), "palisade", "connect")),
                }
            }
            _ => {
                let what = format!(
                    "'{}' names no engine of this build; there are: {}",
                    scheme.escape_debug(),
                    SCHEMES.join(", ")
                );
                Err(Error::new(ErrorKind::Misuse(Misuse::Url(what)), "", "connect"))
            }
        }
    }

    /// The engine's name.
    pub(crate) fn engine(&self) -> &'static str {
        match self {
            Target::Memory(_) => "memory",
            #[cfg(feature = "embedded")]
            Target::Embedded(_) => "embedded",
            #[cfg(feature = "mysql")]
            Target::Mysql(_) => "mysql",
            #[cfg(feature = "postgres")]
            Target::Postgres(_) => "postgres",
            #[cfg(feature = "service")]
            Target::Service(_) => "palisade",
        }
    }

    /// Connects the engine, on the keeper's thread, and keeps a session on it.
    pub(crate) async fn connect(self, options: Options, start: Start) {
        match self {
            Target::Memory(config) => start.keep(memory::Memory::connect(&config), options).await,
            #[cfg(feature = "embedded")]
            Target::Embedded(config) => match embedded::Embedded::connect(config).await {
                Ok(engine) => start.keep(engine, options).await,
                Err(failure) => start.fail(Error::new(failure.into(), "embedded", "connect")),
            },
            #[cfg(feature = "mysql")]
            Target::Mysql(config) => match mysql::Mysql::connect(config).await {
                Ok(engine) => start.keep(engine, options).await,
                Err(failure) => start.fail(Error::new(failure.into(), "mysql", "connect")),
            },
            #[cfg(feature = "postgres")]
            Target::Postgres(config) => match config.mode {
                postgres::Mode::Rows => match postgres::Postgres::connect(config).await {
                    Ok(engine) => start.keep(engine, options).await,
                    Err(failure) => start.fail(Error::new(failure.into(), "postgres", "connect")),
                },
                postgres::Mode::Advisory => match postgres::Advisory::connect(config).await {
                    Ok(engine) => start.keep(engine, options).await,
                    Err(failure) => start.fail(Error::new(failure.into(), "postgres", "connect")),
                },
            },
            #[cfg(feature = "service")]
            Target::Service(config) => match service::Service::connect(config).await {
                Ok(engine) => start.keep(engine, options).await,
                Err(failure) => start.fail(Error::new(failure.into(), "palisade", "connect")),
            },
        }
    }
}

/// How the URLs of this build begin.
const SCHEMES: &[&str] = &[
    #[cfg(feature = "embedded")]
    "embedded:",
    "memory:",
    #[cfg(feature = "mysql")]
    "mysql:",
    #[cfg(feature = "service")]
    "palisade:",
    #[cfg(feature = "service")]
    "palisades:",
    #[cfg(feature = "postgres")]
    "postgres:",
    #[cfg(feature = "postgres")]
    "postgresql:",
];

/// A URL without the secret in it, fit to be shown, and the secret. Without its secret a URL leads to the same place,
/// for whoever has the secret in the environment variable `PALISADE_SECRET`. Of what is no URL, whatever might be a
/// secret is left out.
///
/// ```
/// use palisade::split_secret;
///
/// let (url, secret) = split_secret("palisades://ci:xyzzy@locks.example:7420");
/// assert_eq!((url.as_str(), secret.as_deref()), ("palisades://ci@locks.example:7420", Some("xyzzy")));
/// assert_eq!(split_secret("embedded:"), ("embedded:".to_owned(), None));
/// ```
pub fn split_secret(url: &str) -> (String, Option<String>) {
    match url.split_once(':') {
        #[cfg(feature = "service")]
        Some((scheme @ ("palisade" | "palisades"), rest)) => {
            let (rest, secret) = service::split_secret(rest);
            (format!("{scheme}:{rest}"), secret)
        }
        #[cfg(feature = "mysql")]
        Some((scheme @ "mysql", rest)) => {
            let (rest, secret) = mysql::split_secret(rest);
            (format!("{scheme}:{rest}"), secret)
        }
        #[cfg(feature = "postgres")]
        Some((scheme @ ("postgres" | "postgresql"), rest)) => {
            let (rest, secret) = postgres::split_secret(rest);
            (format!("{scheme}:{rest}"), secret)
        }
        _ => (url.to_owned(), None),
    }
}
