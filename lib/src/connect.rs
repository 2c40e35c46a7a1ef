//! Turns a URL into an engine. No other file names all engines.

#[cfg(feature = "postgres")]
use crate::engine::advisory;
#[cfg(feature = "consul")]
use crate::engine::consul;
#[cfg(feature = "embedded")]
use crate::engine::embedded;
#[cfg(feature = "etcd")]
use crate::engine::etcd;
use crate::engine::memory;
#[cfg(feature = "mysql")]
use crate::engine::mysql;
#[cfg(feature = "postgres")]
use crate::engine::postgres;
#[cfg(feature = "redis")]
use crate::engine::redis;
#[cfg(feature = "redlock")]
use crate::engine::redlock;
#[cfg(feature = "service")]
use crate::engine::service;
#[cfg(feature = "zookeeper")]
use crate::engine::zookeeper;
use crate::engine::{Engine, Failure};
use crate::{Error, ErrorKind, Misuse};

/// The engine that a URL names, and its configuration.
#[allow(clippy::large_enum_variant, reason = "one exists per client, while it connects")]
pub(crate) enum Target {
    Memory(memory::Config),
    #[cfg(feature = "consul")]
    Consul(consul::Config),
    #[cfg(feature = "embedded")]
    Embedded(embedded::Config),
    #[cfg(feature = "etcd")]
    Etcd(etcd::Config),
    #[cfg(feature = "mysql")]
    Mysql(mysql::Config),
    #[cfg(feature = "postgres")]
    Postgres(postgres::Config),
    #[cfg(feature = "redis")]
    Redis(redis::Config),
    #[cfg(feature = "redlock")]
    Redlock(redlock::Config),
    #[cfg(feature = "service")]
    Service(service::Config),
    #[cfg(feature = "zookeeper")]
    Zookeeper(zookeeper::Config),
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Target, Error> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        match scheme {
            "memory" => Ok(Target::Memory(memory::Config::parse(rest))),
            #[cfg(feature = "consul")]
            "consul" => consul::Config::parse(rest).map(Target::Consul).map_err(bad_url("consul")),
            #[cfg(feature = "consul")]
            "consuls" => consul::Config::parse_encrypted(rest).map(Target::Consul).map_err(bad_url("consul")),
            #[cfg(feature = "embedded")]
            "embedded" => embedded::Config::parse(rest).map(Target::Embedded).map_err(bad_url("embedded")),
            #[cfg(feature = "etcd")]
            "etcd" => etcd::Config::parse(rest).map(Target::Etcd).map_err(bad_url("etcd")),
            #[cfg(feature = "etcd")]
            "etcds" => etcd::Config::parse_encrypted(rest).map(Target::Etcd).map_err(bad_url("etcd")),
            #[cfg(feature = "mysql")]
            "mysql" => mysql::Config::parse(rest).map(Target::Mysql).map_err(bad_url("mysql")),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                postgres::Config::parse(rest).map(Target::Postgres).map_err(bad_url("postgres"))
            }
            #[cfg(feature = "redis")]
            "redis" => redis::Config::parse(rest).map(Target::Redis).map_err(bad_url("redis")),
            #[cfg(feature = "redis")]
            "rediss" => redis::Config::parse_encrypted(rest).map(Target::Redis).map_err(bad_url("redis")),
            #[cfg(feature = "redlock")]
            "redlock" => redlock::Config::parse(rest).map(Target::Redlock).map_err(bad_url("redlock")),
            #[cfg(feature = "service")]
            "palisade" => service::Config::parse(rest).map(Target::Service).map_err(bad_url("palisade")),
            #[cfg(feature = "service")]
            "palisades" => service::Config::parse_encrypted(rest).map(Target::Service).map_err(bad_url("palisade")),
            #[cfg(feature = "zookeeper")]
            "zookeeper" | "zk" => zookeeper::Config::parse(rest).map(Target::Zookeeper).map_err(bad_url("zookeeper")),
            _ => {
                let what = match feature_of(scheme) {
                    Some(feature) => format!(
                        "this program was built without {scheme}: URLs; build it with the Cargo feature '{feature}' of \
                         the crate palisade (cargo add palisade --features {feature})"
                    ),
                    None => format!(
                        "'{}' names no engine of this build; there are: {}{}",
                        scheme.escape_debug(),
                        SCHEMES.join(", "),
                        hint(url)
                    ),
                };
                Err(Error::new(ErrorKind::Misuse(Misuse::Url(what)), "", "connect"))
            }
        }
    }

    /// The engine's name.
    pub(crate) fn engine(&self) -> &'static str {
        match self {
            Target::Memory(_) => "memory",
            #[cfg(feature = "consul")]
            Target::Consul(_) => "consul",
            #[cfg(feature = "embedded")]
            Target::Embedded(_) => "embedded",
            #[cfg(feature = "etcd")]
            Target::Etcd(_) => "etcd",
            #[cfg(feature = "mysql")]
            Target::Mysql(_) => "mysql",
            #[cfg(feature = "postgres")]
            Target::Postgres(_) => "postgres",
            #[cfg(feature = "redis")]
            Target::Redis(_) => "redis",
            #[cfg(feature = "redlock")]
            Target::Redlock(_) => "redlock",
            #[cfg(feature = "service")]
            Target::Service(_) => "palisade",
            #[cfg(feature = "zookeeper")]
            Target::Zookeeper(_) => "zookeeper",
        }
    }

    /// Connects the engine, on the keeper's thread.
    pub(crate) async fn connect(self) -> Result<Box<dyn Engine>, Failure> {
        Ok(match self {
            Target::Memory(config) => Box::new(memory::Memory::connect(&config)),
            #[cfg(feature = "consul")]
            Target::Consul(config) => Box::new(consul::Consul::connect(config).await?),
            #[cfg(feature = "embedded")]
            Target::Embedded(config) => Box::new(embedded::Embedded::connect(config).await?),
            #[cfg(feature = "etcd")]
            Target::Etcd(config) => Box::new(etcd::Etcd::connect(config).await?),
            #[cfg(feature = "mysql")]
            Target::Mysql(config) => Box::new(mysql::Mysql::connect(config).await?),
            #[cfg(feature = "postgres")]
            Target::Postgres(config) => match config.mode {
                postgres::Mode::Rows => Box::new(postgres::Postgres::connect(config).await?),
                postgres::Mode::Advisory => Box::new(advisory::Advisory::connect(config).await?),
            },
            #[cfg(feature = "redis")]
            Target::Redis(config) => Box::new(redis::Redis::connect(config).await?),
            #[cfg(feature = "redlock")]
            Target::Redlock(config) => Box::new(redlock::Redlock::connect(config).await?),
            #[cfg(feature = "service")]
            Target::Service(config) => Box::new(service::Service::connect(config).await?),
            #[cfg(feature = "zookeeper")]
            Target::Zookeeper(config) => Box::new(zookeeper::Zookeeper::connect(config).await?),
        })
    }
}

/// Returns a function that wraps the parser's message about an invalid URL.
#[allow(dead_code, reason = "a build with the memory engine alone has no other URLs")]
fn bad_url(engine: &'static str) -> impl Fn(Failure) -> Error {
    move |failure| Error::new(ErrorKind::Misuse(Misuse::Url(failure.to_string())), engine, "connect")
}

/// Returns what to write instead of a URL that names no engine, if that can be told.
fn hint(url: &str) -> String {
    let path = url.escape_debug();
    if url.starts_with("mariadb:") {
        "; for a MariaDB write mysql://".to_owned()
    } else if url.contains(':') {
        // It may contain a secret.
        String::new()
    } else if url.starts_with('/') {
        format!("; for a file write embedded://{path}")
    } else if url.starts_with('.') || url.ends_with(".db") {
        format!("; for a file write embedded:{path}")
    } else {
        String::new()
    }
}

/// The Cargo feature that enables the engine of this URL scheme.
fn feature_of(scheme: &str) -> Option<&'static str> {
    Some(match scheme {
        "consul" | "consuls" => "consul",
        "embedded" => "embedded",
        "etcd" | "etcds" => "etcd",
        "mysql" => "mysql",
        "palisade" | "palisades" => "service",
        "postgres" | "postgresql" => "postgres",
        "redis" | "rediss" => "redis",
        "redlock" => "redlock",
        "zookeeper" | "zk" => "zookeeper",
        _ => return None,
    })
}

/// The URL schemes that this build supports.
const SCHEMES: &[&str] = &[
    #[cfg(feature = "consul")]
    "consul:",
    #[cfg(feature = "consul")]
    "consuls:",
    #[cfg(feature = "embedded")]
    "embedded:",
    #[cfg(feature = "etcd")]
    "etcd:",
    #[cfg(feature = "etcd")]
    "etcds:",
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
    #[cfg(feature = "redis")]
    "redis:",
    #[cfg(feature = "redis")]
    "rediss:",
    #[cfg(feature = "redlock")]
    "redlock:",
    #[cfg(feature = "zookeeper")]
    "zk:",
    #[cfg(feature = "zookeeper")]
    "zookeeper:",
];

/// Splits a URL into a form that is safe to print, and the secret that was removed from it. A client that has the secret in
/// the environment variable `PALISADE_SECRET` can connect with the printable form. If the text is not a valid URL, every
/// part that might be a secret is removed.
///
/// ```
/// use palisade::split_secret;
///
/// let (url, secret) = split_secret("palisades://ci:xyzzy@locks.example:7420");
/// assert_eq!((url.as_str(), secret.as_deref()), ("palisades://ci@locks.example:7420", Some("xyzzy")));
/// assert_eq!(split_secret("embedded:"), ("embedded:".to_owned(), None));
/// ```
pub fn split_secret(url: &str) -> (String, Option<String>) {
    let Some((scheme, rest)) = url.split_once(':') else { return (url.to_owned(), None) };
    let (rest, secret) = match scheme {
        #[cfg(feature = "consul")]
        "consul" | "consuls" => consul::URL.split_secret(rest),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => etcd::URL.split_secret(rest),
        #[cfg(feature = "mysql")]
        "mysql" => mysql::URL.split_secret(rest),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres::URL.split_secret(rest),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => redis::URL.split_secret(rest),
        #[cfg(feature = "redlock")]
        "redlock" => redlock::URL.split_secret(rest),
        #[cfg(feature = "service")]
        "palisade" | "palisades" => service::URL.split_secret(rest),
        #[cfg(feature = "zookeeper")]
        "zookeeper" | "zk" => zookeeper::URL.split_secret(rest),
        _ => (rest.to_owned(), None),
    };
    (format!("{scheme}:{rest}"), secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_was_not_built_is_named_with_its_cargo_feature() {
        for scheme in SCHEMES.iter().filter(|scheme| **scheme != "memory:") {
            assert!(feature_of(scheme.trim_end_matches(':')).is_some(), "{scheme}");
        }
        let schemes = [
            "consul",
            "consuls",
            "embedded",
            "etcd",
            "etcds",
            "mysql",
            "palisade",
            "palisades",
            "postgres",
            "postgresql",
            "redis",
            "rediss",
            "redlock",
            "zk",
            "zookeeper",
        ];
        for scheme in schemes.into_iter().filter(|scheme| !SCHEMES.contains(&format!("{scheme}:").as_str())) {
            let Err(error) = Target::parse(&format!("{scheme}://host")) else { panic!("{scheme} was not built") };
            let feature = feature_of(scheme).expect("it has one");
            assert!(error.to_string().contains(&format!("Cargo feature '{feature}'")), "{error}");
        }
        for (url, hint) in [
            ("/tmp/foo.db", "; for a file write embedded:///tmp/foo.db"),
            ("foo.db", "; for a file write embedded:foo.db"),
            ("mariadb://me@host/db", "; for a MariaDB write mysql://"),
            ("/me:xyzzy@host", ""),
        ] {
            let error = Target::parse(url).err().expect("no engine").to_string();
            assert!(error.ends_with(hint) && !error.contains("xyzzy"), "{error}");
        }
        assert!(Target::parse("gopher://host").err().expect("none").to_string().contains("names no engine"));
    }
}
