//! The way to the database.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Pool, Row};
use tokio::time::timeout;

use super::answer::Failure;
use crate::{Error, ErrorKind};

/// A server that has not answered by then is given up. Longer than it waits for another's lock (50 s by default).
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct Line {
    pool: Pool,
    place: String,
}

/// What a URL says. Beside the driver's own options (`require_ssl=true` encrypts, if the driver was built with TLS), there is
/// `ssl-ca=FILE`: whose certificates the server may show.
///
/// # Errors
///
/// [`ErrorKind::Misuse`]: it is no such URL. It is not quoted: it has passwords in it.
pub fn options(url: &str) -> Result<Opts, Error> {
    let no_url = "this is no URL of a MySQL; it looks like mysql://user:password@host:3306/database";
    let misuse = |_| Error::new(ErrorKind::misuse(no_url), "mysql", "connect to");
    let (before, options) = url.split_once('?').unwrap_or((url, ""));
    let (ours, theirs): (Vec<&str>, Vec<&str>) =
        options.split('&').filter(|option| !option.is_empty()).partition(|option| option.starts_with("ssl-ca="));
    let opts = match theirs.is_empty() {
        true => Opts::from_url(before),
        false => Opts::from_url(&format!("{before}?{}", theirs.join("&"))),
    };
    let opts = opts.map_err(misuse)?;
    let authority = ours.first().and_then(|option| option.strip_prefix("ssl-ca="));
    Ok(match (authority, opts.ssl_opts().cloned()) {
        (Some(file), Some(tls)) => {
            let tls = tls.with_root_certs(vec![PathBuf::from(file).into()]).with_disable_built_in_roots(true);
            OptsBuilder::from_opts(opts).ssl_opts(tls).into()
        }
        _ => opts,
    })
}

impl Line {
    pub(super) fn to(url: &str) -> Result<Line, Error> {
        let misuse = |what: &str| Error::new(ErrorKind::misuse(what), "mysql", "connect to");
        let opts = options(url)?;
        let Some(database) = opts.db_name().filter(|name| !name.is_empty()) else {
            return Err(misuse("the URL names no database; it looks like mysql://user:password@host:3306/database"));
        };
        let place = format!("{database} on {}:{}", opts.ip_or_hostname(), opts.tcp_port());
        Ok(Line { pool: Pool::new(opts), place })
    }

    /// Where it leads, for people.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// A connection. What it leaves open is undone, and its variables forgotten, before anybody else has it.
    pub(super) async fn connection(&self) -> Result<Conn, Failure> {
        match timeout(PATIENCE, self.pool.get_conn()).await {
            Ok(connection) => connection.map_err(Failure::NotConnected),
            Err(_) => Err(Failure::NotConnected(silence())),
        }
    }

    /// Runs statements on a connection of their own; says what all of them answered.
    pub(super) async fn run(&self, statements: &str) -> Result<Vec<Row>, Failure> {
        let mut connection = self.connection().await?;
        run(&mut connection, statements).await.map_err(|cause| match cause {
            // It has come to its end, and what stands behind the one that failed was not run.
            mysql_async::Error::Server(_) => Failure::Undone(cause),
            _ => Failure::Open(cause),
        })
    }
}

/// Runs statements in one round trip; says what all of them answered.
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

/// Gives up a server that does not answer.
pub(super) async fn within<T>(
    answer: impl Future<Output = Result<T, mysql_async::Error>>,
) -> Result<T, mysql_async::Error> {
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(silence()))
}

fn silence() -> mysql_async::Error {
    mysql_async::Error::Other("no answer within 60 s".into())
}
