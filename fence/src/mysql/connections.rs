//! The connections to the database.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Pool, Row, SslOpts};
use tokio::time::timeout;

use super::answer::Failure;
use crate::{Error, ErrorKind};

/// How long to wait for an answer. Longer than the server waits for a row lock (50 s by default).
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct Connections {
    pool: Pool,
    address: String,
}

/// Parses a URL. It has the driver's options, `ssl-mode` (`disabled`, or `required` and `verify_identity`, which both
/// encrypt and verify, if the driver was built with TLS), and `ssl-ca=FILE`, the authority that must have signed the
/// server's certificate, which encrypts, too.
///
/// # Errors
///
/// [`ErrorKind::Misuse`]: the URL is invalid. The error does not quote it: it has passwords in it.
pub fn options(url: &str) -> Result<Opts, Error> {
    let misuse = |what: &str| Error::new(ErrorKind::misuse(what), "mysql", "connect to");
    let no_url = "this is no URL of a MySQL; it looks like mysql://user@host:3306/database, with the options \
         ssl-mode=disabled, required or verify_identity, ssl-ca=FILE, and those of the driver mysql_async";
    let (before, options) = url.split_once('?').unwrap_or((url, ""));
    let (mut theirs, mut mode, mut authority) = (Vec::new(), None, None);
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("ssl-mode", value)) => mode = Some(value.to_ascii_lowercase()),
            Some(("ssl-ca", file)) => authority = Some(PathBuf::from(file)),
            _ => theirs.push(option),
        }
    }
    let is_encrypted = match mode.as_deref() {
        None => authority.is_some(),
        Some("required" | "verify_identity") => true,
        Some("disabled") if authority.is_none() => false,
        Some("disabled") => return Err(misuse("ssl-mode=disabled encrypts nothing; leave ssl-ca out")),
        Some(_) => return Err(misuse("ssl-mode is disabled, required or verify_identity")),
    };
    let opts = match theirs.is_empty() {
        true => Opts::from_url(before),
        false => Opts::from_url(&format!("{before}?{}", theirs.join("&"))),
    };
    let opts = opts.map_err(|_| misuse(no_url))?;
    let tls = opts.ssl_opts().cloned().or_else(|| is_encrypted.then(SslOpts::default));
    let tls = match (tls, authority) {
        (Some(tls), Some(file)) => Some(tls.with_root_certs(vec![file.into()]).with_disable_built_in_roots(true)),
        (tls, _) => tls,
    };
    Ok(OptsBuilder::from_opts(opts).ssl_opts(tls).into())
}

impl Connections {
    pub(super) fn to(url: &str) -> Result<Connections, Error> {
        let misuse = |what: &str| Error::new(ErrorKind::misuse(what), "mysql", "connect to");
        let opts = options(url)?;
        let Some(database) = opts.db_name().filter(|name| !name.is_empty()) else {
            return Err(misuse("the URL names no database; it looks like mysql://user:password@host:3306/database"));
        };
        let address = format!("{database} on {}:{}", opts.ip_or_hostname(), opts.tcp_port());
        Ok(Connections { pool: Pool::new(opts), address })
    }

    /// Returns the address, for messages.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns a connection. The pool rolls back its transaction and resets its variables before the next use.
    pub(super) async fn connection(&self) -> Result<Conn, Failure> {
        match timeout(TIMEOUT, self.pool.get_conn()).await {
            Ok(connection) => connection.map_err(Failure::NotConnected),
            Err(_) => Err(Failure::NotConnected(no_answer())),
        }
    }

    /// Runs statements on one connection, and returns all rows.
    pub(super) async fn run(&self, statements: &str) -> Result<Vec<Row>, Failure> {
        let mut connection = self.connection().await?;
        run(&mut connection, statements).await.map_err(|cause| match cause {
            // The server has answered, and has not run the statements after the one that failed.
            mysql_async::Error::Server(_) => Failure::Undone(cause),
            _ => Failure::Open(cause),
        })
    }
}

/// Runs statements in one round trip, and returns all rows.
pub(super) async fn run(connection: &mut Conn, statements: &str) -> Result<Vec<Row>, mysql_async::Error> {
    within(async {
        let mut result = connection.query_iter(statements).await?;
        let mut rows = Vec::new();
        while !result.is_empty() {
            rows.extend(result.collect::<Row>().await?);
        }
        Ok(rows)
    })
    .await
}

/// Fails if the server does not answer in time.
pub(super) async fn within<T>(
    answer: impl Future<Output = Result<T, mysql_async::Error>>,
) -> Result<T, mysql_async::Error> {
    timeout(TIMEOUT, answer).await.unwrap_or_else(|_| Err(no_answer()))
}

fn no_answer() -> mysql_async::Error {
    mysql_async::Error::Other("no answer within 60 s".into())
}
