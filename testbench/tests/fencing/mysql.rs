//! MariaDB, a real one.

use std::sync::Arc;

use palisade_fence::mysql::{MySql, Row, Rows, Statement, Written};
use palisade_fence::{Error, Mark, Pass, Resource, Token};
use palisade_testbench::fencing::Subject;
use palisade_testbench::servers::{MariaDb, Shared};
use tempfile::TempDir;

static SERVER: Shared<MariaDb> = Shared::new(|directory| {
    let server = MariaDb::start(directory)?;
    server.run("CREATE TABLE numbers (name VARCHAR(255) PRIMARY KEY, number BIGINT)")?;
    Ok(server)
});

#[derive(Clone)]
struct Numbers(Arc<(MariaDb, TempDir)>);

impl Numbers {
    fn new() -> Numbers {
        Numbers(SERVER.get().expect("a MariaDB"))
    }
}

/// One row of the table, under a mark of its own.
#[derive(Clone)]
struct OneRow {
    rows: Rows,
    name: String,
}

impl Resource for OneRow {
    type Query = ();
    type Answer = Vec<Row>;
    type Change = u64;
    type Outcome = Written;

    fn name(&self) -> String {
        self.rows.name()
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        self.rows.raise(token).await
    }

    async fn read(&self, pass: &Pass, (): ()) -> Result<Vec<Row>, Error> {
        let select = Statement::new("SELECT number FROM numbers WHERE name = ?").bind(&self.name);
        self.rows.read(pass, select).await
    }

    async fn write(&self, pass: &Pass, change: Option<u64>) -> Result<Option<Written>, Error> {
        let replace = Statement::new("REPLACE INTO numbers VALUES (?, ?)").bind(&self.name);
        self.rows.write(pass, change.map(|number| vec![replace.bind(number)])).await
    }
}

impl Subject for Numbers {
    type Resource = OneRow;

    async fn open(&self, name: &str) -> Result<OneRow, Error> {
        let mysql = MySql::install(&self.0.0.url()).await?;
        Ok(OneRow { rows: mysql.rows(name)?, name: name.to_owned() })
    }

    fn get(&self) {}

    fn set(&self, number: u64) -> u64 {
        number
    }

    fn number(&self, answer: Vec<Row>) -> u64 {
        answer.first().map_or(0, |row| row.get(0).expect("a number"))
    }

    fn bad_names(&self) -> Vec<String> {
        ["", "a\nb", "\0"].map(str::to_owned).into_iter().chain(["x".repeat(256)]).collect()
    }
}

palisade_testbench::fencing!(mysql, Numbers::new());
