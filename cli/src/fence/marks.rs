//! Reads the mark of a resource in any store, without changing anything.

use std::fmt::Display;
use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue};
use palisade::LockName;
use palisade_fence::file::{FencedFile, FencedFolder};
use palisade_fence::http::{FENCING_TOKEN, FencingVerdict, SqliteMarks, mark_header};
use palisade_fence::mysql::MySql;
use palisade_fence::postgres::{self, Fence};
use palisade_fence::redis::Redis;
use palisade_fence::{Error, ErrorKind, Mark, Problem, object_store, sqlite};

use super::{failed, resources};
use crate::outcome::Failure;
use crate::stores::postgres::Connector;
use crate::stores::{path, redacted, s3, web, with_secret};
use crate::text::plain;

/// The stores, for messages.
const KNOWN: &str =
    "postgres://…, mysql://…, redis://…, sqlite:FILE, http://…, s3://BUCKET/PATH, or the path of a file or folder";

/// A resource's mark and the gaps in its fence.
pub(super) struct Found {
    /// The resource's name.
    pub(super) name: String,
    /// `None` if no token has sealed it yet, or its mark was lost.
    pub(super) mark: Option<Mark>,
    /// Whether there is data without a mark. Only Redis can tell.
    pub(super) is_mark_lost: bool,
    /// Tables whose rows have their own marks: in MySQL those under this name, in PostgreSQL all of the database.
    pub(super) row_marked: Vec<RowMarked>,
    /// The gaps of the fence in all tables of the database.
    pub(super) problems: Vec<Problem>,
}

/// A table whose rows have their own marks.
pub(super) struct RowMarked {
    pub(super) table: String,
    /// The command that shows the mark of a row.
    pub(super) command: String,
}

/// Finds a resource's mark, and the gaps of its fence.
pub(super) async fn find(store: &str, resource: Option<&str>) -> Result<Found, Failure> {
    let (scheme, rest) = match store.split_once(':') {
        Some((scheme, rest)) if !Path::new(store).exists() => (scheme, rest),
        _ => ("file", store),
    };
    let (name, store) = (resource.unwrap_or_default(), &with_secret(store));
    match scheme {
        "postgres" | "postgresql" | "mysql" | "redis" | "rediss" | "redis+unix" | "sqlite" if resource.is_none() => {
            Err(resources::missing(scheme, store).await)
        }
        "postgres" | "postgresql" => in_postgres(store, name).await,
        "mysql" => in_mysql(store, name).await.map_err(failed),
        "redis" | "rediss" | "redis+unix" => in_redis(store, name).await.map_err(failed),
        "sqlite" => with_mark(name, in_sqlite(path(rest), name).await),
        "http" | "https" => at_service(store, resource).await,
        "s3" => unnamed(store, resource, in_s3(store).await),
        "file" => unnamed(path(rest), resource, in_files(Path::new(path(rest))).await.map_err(failed)),
        // The store is not quoted: it may contain a secret.
        _ => Err(Failure::Misuse(format!("this store is not supported; use one of {KNOWN}"))),
    }
}

fn with_mark(name: &str, mark: Result<Option<Mark>, Failure>) -> Result<Found, Failure> {
    Ok(Found {
        name: name.to_owned(),
        mark: mark?,
        is_mark_lost: false,
        row_marked: Vec::new(),
        problems: Vec::new(),
    })
}

/// Returns the mark of a resource that needs no name in its store, such as a file.
fn unnamed(name: &str, resource: Option<&str>, mark: Result<Option<Mark>, Failure>) -> Result<Found, Failure> {
    match resource {
        Some(_) => Err(Failure::Misuse(format!("{name} is one resource: leave RESOURCE out"))),
        None => with_mark(name, mark),
    }
}

async fn in_postgres(url: &str, name: &str) -> Result<Found, Failure> {
    let fence = Fence::new(name).map_err(failed)?;
    let client = Connector::parse(url)?.connect().await?;
    let mark = fence.mark(&client).await.map_err(failed)?;
    // A role that may not list them may not list problems either, and that is reported below.
    let tables = postgres::tables_with_row_marks(&client).await.unwrap_or_default();
    let rows_of = |table: String| {
        let command = format!("SELECT palisade_token FROM {table} WHERE …");
        RowMarked { table, command }
    };
    let row_marked = tables.into_iter().map(rows_of).collect();
    let problems = or_not_listed(postgres::problems(&client).await);
    Ok(Found { name: name.to_owned(), mark, is_mark_lost: false, row_marked, problems })
}

async fn in_mysql(url: &str, name: &str) -> Result<Found, Error> {
    let mysql = MySql::connect(url).await?;
    let mark = mysql.rows(name)?.mark().await?;
    let tables = if mark.is_none() { resources::row_marked_in_mysql(url, name).await } else { Vec::new() };
    let rows_of = |table| RowMarked { table, command: format!("palisade fence check mysql://… {name}/KEY") };
    let row_marked = tables.into_iter().map(rows_of).collect();
    let problems = or_not_listed(mysql.problems().await);
    Ok(Found { name: name.to_owned(), mark, is_mark_lost: false, row_marked, problems })
}

/// Returns the problems, or one that says that they cannot be listed: a mark alone does not prove that writes are checked.
fn or_not_listed(problems: Result<Vec<Problem>, Error>) -> Vec<Problem> {
    problems.unwrap_or_else(|error| {
        let what = format!("cannot find out whether tables are protected: {error}");
        let remedy = "check as a database user with the right to read the catalog".to_owned();
        vec![Problem { table: "the database".to_owned(), resource: None, what, remedy }]
    })
}

async fn in_redis(url: &str, name: &str) -> Result<Found, Error> {
    let keys = Redis::connect(url).await?.keys(name)?;
    let mark = keys.mark().await?;
    let is_mark_lost = mark.is_none() && keys.has_data().await?;
    Ok(Found { name: name.to_owned(), mark, is_mark_lost, row_marked: Vec::new(), problems: Vec::new() })
}

/// Reads the mark in a database with a fence, or in the file in which `palisade fence http` keeps its marks.
async fn in_sqlite(file: &str, name: &str) -> Result<Option<Mark>, Failure> {
    let error = match sqlite::mark(file, name).await {
        Ok(mark) => return Ok(mark),
        Err(error) => error,
    };
    if let (ErrorKind::Misuse { .. }, true, Ok(name)) = (error.kind(), Path::new(file).is_file(), LockName::new(name))
        && let Ok(mark) = SqliteMarks::look(file, &name).await
    {
        return Ok(mark);
    }
    match failed(error) {
        Failure::Unavailable(message) => Err(Failure::Unavailable(format!(
            "{message}; if `palisade fence http` uses this file, ask the proxy: palisade fence check http://ADDRESS"
        ))),
        other => Err(other),
    }
}

async fn in_s3(url: &str) -> Result<Option<Mark>, Failure> {
    let (store, path) = s3::open(url)?;
    object_store::mark(store, &path).await.map_err(failed)
}

async fn in_files(path: &Path) -> Result<Option<Mark>, Error> {
    match path.is_dir() {
        true => FencedFolder::open(path)?.peek().await,
        false => FencedFile::open(path)?.peek().await,
    }
}

async fn at_service(url: &str, lock: Option<&str>) -> Result<Found, Failure> {
    let misuse = |error: &dyn Display| Failure::Misuse(error.to_string());
    let name = lock.map(LockName::new).transpose().map_err(|error| misuse(&error))?;
    let header = HeaderValue::from_str(&mark_header(name.as_ref())).map_err(|error| misuse(&error))?;
    let headers = HeaderMap::from_iter([(HeaderName::from_static(FENCING_TOKEN), header)]);
    let answer = web::get_with_headers(url, headers).await?;
    match FencingVerdict::find(answer.headers()) {
        Some(FencingVerdict::Marked(mark)) => with_mark(&lock.map_or_else(|| redacted(url), str::to_owned), Ok(mark)),
        Some(verdict) => {
            let problem: serde_json::Value = serde_json::from_str(answer.body()).unwrap_or_default();
            let detail = problem["detail"].as_str().map_or_else(|| verdict.to_string(), plain);
            match answer.status().is_client_error() {
                true => Err(Failure::Misuse(format!("{}: {detail}", redacted(url)))),
                false => Err(Failure::Unavailable(format!("{}: {detail}", redacted(url)))),
            }
        }
        None => Err(Failure::Misuse(format!(
            "{}: the answer ({}) does not come from a fence: is there one in front of the service?",
            redacted(url),
            answer.status()
        ))),
    }
}
