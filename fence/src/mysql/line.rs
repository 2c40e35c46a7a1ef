//! The way to the database.

use std::future::Future;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Pool, Row};
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

impl Line {
    pub(super) fn to(url: &str) -> Result<Line, Error> {
        let misuse = |what: &str| Error::new(ErrorKind::misuse(what), "mysql", "connect to");
        // What the driver says of a bad URL may quote it, and a URL has passwords in it.
        let no_url = "this is no URL of a MySQL; it looks like mysql://user:password@host:3306/database";
        let opts = Opts::from_url(url).map_err(|_| misuse(no_url))?;
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
