//! The fence in PostgreSQL: each name has a separate schema, with a protected table of one row.

use palisade_fence::postgres::{self, Change, Sql};
use palisade_fence::{Error, ErrorKind};
use palisade_testbench::fencing::Subject;
use palisade_testbench::servers::Postgres;
use tokio_postgres::{NoTls, Row};

#[derive(Clone)]
struct Tables(&'static Postgres);

impl Tables {
    fn new() -> Tables {
        Tables(Postgres::shared().unwrap_or_else(|absent| panic!("{absent}")))
    }

    /// Creates the table of this name, unless it exists.
    async fn make(&self, name: &str) -> Result<(), Error> {
        let failed = |error: tokio_postgres::Error| Error::new(ErrorKind::unknown("no table", error), name, "open");
        let (mut client, connection) = tokio_postgres::connect(&self.0.url(), NoTls).await.map_err(failed)?;
        tokio::spawn(connection);
        postgres::install(&mut client).await?;
        let table = format!("\"{name}\".numbers");
        let sql = format!("CREATE SCHEMA \"{name}\"; CREATE TABLE {table} AS SELECT 0::bigint AS number");
        match client.batch_execute(&sql).await {
            Ok(()) => postgres::protect(&mut client, &table, name).await,
            // It exists.
            Err(error) if error.code().is_some_and(|code| code.code() == "42P06") => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Subject for Tables {
    type Resource = postgres::Postgres;

    async fn open(&self, name: &str) -> Result<postgres::Postgres, Error> {
        let place = format!("{}?options=-csearch_path%3D%22{}%22", self.0.url(), name.trim());
        if !self.bad_names().contains(&name.to_owned()) {
            self.make(name).await?;
        }
        postgres::Postgres::connect(&place, NoTls, name).await
    }

    fn get(&self) -> Sql {
        Sql::new("SELECT number FROM numbers")
    }

    fn set(&self, number: u64) -> Change {
        Sql::new("UPDATE numbers SET number = $1").bind(i64::try_from(number).expect("a small number")).into()
    }

    fn number(&self, answer: Vec<Row>) -> u64 {
        answer[0].get::<_, i64>(0).try_into().expect("a number")
    }

    fn bad_names(&self) -> Vec<String> {
        vec![String::new(), "a\nb".to_owned(), "\u{7}".to_owned(), "x".repeat(513)]
    }

    fn impossible(&self) -> Vec<Change> {
        ["UPDATE numbers SET number = 1 / 0", "UPDATE absent SET number = 7"].map(|sql| Sql::new(sql).into()).into()
    }
}

palisade_testbench::fencing!(tables, Tables::new());
