//! Connections to PostgreSQL from a libpq URL.

use std::path::PathBuf;

use palisade_fence::http::PostgresMarks;
use palisade_fence::postgres::Postgres;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{percent_encode, secret_in, tls, variable};
use crate::outcome::Failure;

/// A parsed URL, and its TLS settings.
pub(crate) struct Connector {
    config: Config,
    url: String,
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    /// Parses a URL. `sslmode=require`, `verify-ca` and `verify-full` all encrypt, and verify the server's certificate and
    /// its name. `sslrootcert=FILE` names the authority. Without them the connection is not encrypted. A password, user or
    /// database that is not in the URL is taken from the environment, as the engine does.
    pub(crate) fn parse(url: &str) -> Result<Connector, Failure> {
        let (plain, authority) = without_authority(url);
        // The driver does not know these modes; its `require` verifies too, through our TLS configuration.
        let url = ["verify-full", "verify-ca"]
            .iter()
            .fold(plain, |url, mode| url.replace(&format!("sslmode={mode}"), "sslmode=require"));
        // The driver's message may quote the URL and its secret.
        let parse = |url: &str| -> Result<Config, Failure> {
            let misuse = "this is not a PostgreSQL URL; expected postgres://user@host:5432/database, with the password in \
                 PGPASSWORD or PALISADE_SECRET";
            url.parse().map_err(|_| Failure::Misuse(misuse.to_owned()))
        };
        let url = with_defaults(&parse(&url)?, url);
        let config = parse(&url)?;
        let tls = match config.get_ssl_mode() {
            SslMode::Require => Some(MakeRustlsConnect::new(tls::config(authority.as_deref())?)),
            _ => None,
        };
        Ok(Connector { config, url, tls })
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let unreachable = |error| Failure::Unavailable(describe(&error));
        match self.tls.clone() {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls).await.map_err(unreachable)?;
                tokio::spawn(connection);
                Ok(client)
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await.map_err(unreachable)?;
                tokio::spawn(connection);
                Ok(client)
            }
        }
    }

    /// Connects to the fenced resource of this name.
    pub(crate) async fn resource(&self, name: &str) -> Result<Postgres, palisade_fence::Error> {
        match self.tls.clone() {
            Some(tls) => Postgres::connect(&self.url, tls, name).await,
            None => Postgres::connect(&self.url, NoTls, name).await,
        }
    }
}

impl Connector {
    /// Connects to the marks of HTTP services that are stored there.
    pub(crate) async fn marks(&self) -> Result<PostgresMarks, Failure> {
        let marks = match self.tls.clone() {
            Some(tls) => PostgresMarks::connect(&self.url, tls).await,
            None => PostgresMarks::connect(&self.url, NoTls).await,
        };
        marks.map_err(|error| Failure::Unavailable(error.to_string()))
    }
}

/// Adds the options for which there are environment variables, and which the URL lacks.
fn with_defaults(config: &Config, mut url: String) -> String {
    let defaults = [
        ("password", config.get_password().is_none().then(|| secret_in(&["PGPASSWORD"]))),
        ("user", config.get_user().is_none().then(|| variable("PGUSER"))),
        ("dbname", config.get_dbname().is_none().then(|| variable("PGDATABASE"))),
    ];
    // The other form of libpq, `host=db user=me`, is not extended.
    let is_url = url.contains("://");
    for (name, value) in defaults.into_iter().filter(|_| is_url) {
        if let Some(value) = value.flatten() {
            let separator = if url.contains('?') { '&' } else { '?' };
            url = format!("{url}{separator}{name}={}", percent_encode(&value));
        }
    }
    url
}

/// Splits off `sslrootcert`, which the driver does not know.
fn without_authority(url: &str) -> (String, Option<PathBuf>) {
    let Some((before, options)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (mut kept, mut authority) = (Vec::new(), None);
    for option in options.split('&') {
        match option.strip_prefix("sslrootcert=") {
            Some(file) => authority = Some(super::percent_decode(file).into()),
            None => kept.push(option),
        }
    }
    match kept.is_empty() {
        true => (before.to_owned(), authority),
        false => (format!("{before}?{}", kept.join("&")), authority),
    }
}

/// Describes an error with its cause.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(refusal), _) => format!("PostgreSQL: {}", refusal.message()),
        (None, Some(source)) if source.to_string() == "password missing" => {
            "PostgreSQL requires a password; set the environment variable PGPASSWORD or PALISADE_SECRET".to_owned()
        }
        (None, Some(source)) => format!("PostgreSQL: {error}: {source}"),
        (None, None) => format!("PostgreSQL: {error}"),
    }
}
