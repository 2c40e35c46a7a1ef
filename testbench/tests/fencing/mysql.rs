//! MariaDB, a real one.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use palisade_fence::mysql::{MySql, Row, Rows, Scope, Statement, Written};
use palisade_fence::{Error, ErrorKind, Mark, Pass, Resource, Sealed, Token};
use palisade_testbench::faulty_disk::Dice;
use palisade_testbench::fencing::{Subject, survive};
use palisade_testbench::servers::{MariaDb, Shared};
use tempfile::TempDir;

const TABLE: &str =
    "CREATE TABLE numbers (name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, number BIGINT)";

static SERVER: Shared<MariaDb> = Shared::new(|directory| {
    let server = MariaDb::start(directory)?;
    server.run(TABLE)?;
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

    fn impossible(&self) -> Vec<u64> {
        vec![u64::MAX]
    }
}

palisade_testbench::fencing!(mysql, Numbers::new());

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// A table of its own, under a mark of its own, with triggers that protect it.
async fn protected(server: &MariaDb, table: &str) -> Rows {
    server.run(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, total INT)")).expect("a table");
    let mysql = MySql::install(&server.url()).await.expect("it is there");
    mysql.protect(table, &Scope::Table(table.to_owned())).await.expect("it has triggers");
    mysql.protect(table, &Scope::Table(table.to_owned())).await.expect("they may be there");
    mysql.rows(table).expect("a good name")
}

/// What the client of the command line says, errors included.
fn said(server: &MariaDb, sql: &str) -> String {
    server.run(sql).unwrap_or_else(|error| error.to_string())
}

#[tokio::test]
async fn any_client_is_fenced_by_triggers() {
    let Numbers(server) = Numbers::new();
    let server = &server.0;
    let mut handle = Sealed::seal(protected(server, "plain").await, token(33)).await.expect("it is new");
    handle.execute(Statement::new("INSERT INTO plain VALUES (1, 10)")).await.expect("the triggers know the token");
    for write in [
        "UPDATE plain SET total = 0",
        "UPDATE IGNORE plain SET total = 0",
        "DELETE FROM plain",
        "INSERT INTO plain VALUES (2, 0)",
        "INSERT IGNORE INTO plain VALUES (2, 0)",
        "REPLACE INTO plain VALUES (1, 0)",
        "INSERT INTO plain VALUES (1, 0) ON DUPLICATE KEY UPDATE total = 0",
        "CALL palisade_fence_check('plain')",
    ] {
        assert!(said(server, write).contains("45F02"), "without a token: {write}");
        assert!(said(server, &format!("SET @palisade_token = 34; {write}")).contains("45F03"), "not sealed: {write}");
        assert!(said(server, &format!("SET @palisade_token = 32; {write}")).contains("45F01"), "stale: {write}");
    }
    assert_eq!(said(server, "SELECT * FROM plain"), "1\t10\n");
    assert_eq!(said(server, "CALL palisade_fence_seal('plain', 34); UPDATE plain SET total = 11"), "");
    let error = handle.execute(Statement::new("UPDATE plain SET total = 0")).await.expect_err("it was overtaken");
    assert_eq!(error.overtaken_by(), Some(token(34)));
    let stale = said(server, "CALL palisade_fence_seal('plain', 33)");
    assert!(stale.contains("45F04") && stale.contains("token 34 has sealed plain"), "{stale}");
    assert_eq!(said(server, "SELECT * FROM plain"), "1\t11\n");
}

#[tokio::test]
async fn any_client_can_number_its_writes() {
    let Numbers(server) = Numbers::new();
    let server = &server.0;
    protected(server, "numbered").await;
    assert_eq!(said(server, "CALL palisade_fence_seal('numbered', 33); INSERT INTO numbered VALUES (1, 0)"), "");
    let write = |seq: u64| {
        format!(
            "SET @palisade_token = 33; START TRANSACTION; CALL palisade_fence_number('numbered', {seq}); \
             UPDATE numbered SET total = total + 1; COMMIT"
        )
    };
    assert_eq!(said(server, &write(1)), "");
    assert!(said(server, &write(1)).contains("45F06"), "it was done before");
    assert!(said(server, &write(3)).contains("45F07"), "it is not the next");
    assert_eq!(said(server, &write(2)), "");
    assert_eq!(said(server, "SELECT total FROM numbered"), "2\n");
}

#[tokio::test]
async fn rows_can_have_marks_of_their_own() {
    let Numbers(server) = Numbers::new();
    let server = &server.0;
    server.run("CREATE TABLE each_row (id INT PRIMARY KEY, total INT)").expect("a table");
    let mysql = MySql::install(&server.url()).await.expect("it is there");
    let scope = Scope::Row { name: "each_row".to_owned(), column: "id".to_owned() };
    mysql.protect("each_row", &scope).await.expect("it has triggers");
    let mut one = Sealed::seal(mysql.rows("each_row/1").expect("a name"), token(33)).await.expect("it is new");
    one.execute(Statement::new("INSERT INTO each_row VALUES (1, 0)")).await.expect("it is its row");
    let insert = Statement::new("INSERT INTO each_row VALUES (2, 0)");
    let error = one.execute(insert.clone()).await.expect_err("it is another's row");
    assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
    let error =
        one.execute(Statement::new("UPDATE each_row SET id = 2")).await.expect_err("it would become another's");
    assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
    let mut two = Sealed::seal(mysql.rows("each_row/2").expect("a name"), token(34)).await.expect("it is new");
    two.execute(insert).await.expect("it is its row");
    one.execute(Statement::new("UPDATE each_row SET total = 1 WHERE id = 1")).await.expect("the handle goes on");
    assert_eq!(said(server, "SELECT * FROM each_row"), "1\t1\n2\t0\n");
}

/// One looks at a time: the server makes its list of transactions anew only when nobody has read it for 100 ms.
static LOOKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Goes on with something until the server says that it waits for a lock. Its SQL has this in it.
async fn until_it_waits<T>(server: &MariaDb, sql: &str, mut work: Pin<&mut impl Future<Output = T>>) {
    let waiting = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{sql}%'"
    );
    let _turn = LOOKING.lock().await;
    while said(server, &waiting) == "0\n" {
        let is_done = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
        assert!(!is_done, "it must wait");
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// How a resource's name stands in the adapter's SQL.
fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_seal_waits_for_a_transaction_under_an_older_token_and_then_shuts_it_out() {
    let Numbers(server) = Numbers::new();
    let server = &server.0;
    let rows = protected(server, "waiting").await;
    let mut running = Conn::from_url(server.url()).await.expect("a connection");
    running.query_drop("CALL palisade_fence_seal('waiting', 33); START TRANSACTION").await.expect("it is new");
    running.query_drop("INSERT INTO waiting VALUES (1, 1)").await.expect("it is the newest");
    let mut seal = pin!(Sealed::seal(rows, token(34)));
    until_it_waits(server, &hex("waiting"), seal.as_mut()).await;
    running.query_drop("INSERT INTO waiting VALUES (2, 2); COMMIT").await.expect("nobody was let in before");
    let sealed = seal.await.expect("it is newer");
    let found = sealed.query(Statement::new("SELECT id FROM waiting")).await.expect("read");
    assert_eq!(found.len(), 2, "what was committed before the seal is seen after it");
    let error = running.query_drop("INSERT INTO waiting VALUES (3, 3)").await.expect_err("it was overtaken");
    assert!(error.to_string().contains("token 34 has sealed waiting"), "{error}");
}

#[tokio::test]
async fn nobody_seals_between_the_check_and_the_write() {
    let Numbers(server) = Numbers::new();
    let server = &server.0;
    server
        .run("CREATE TABLE between_them (id INT PRIMARY KEY, total INT); INSERT INTO between_them VALUES (1, 0)")
        .expect("a table");
    let rows = MySql::install(&server.url()).await.expect("it is there").rows("between_them").expect("a good name");
    let mut older = Sealed::seal(rows.clone(), token(33)).await.expect("it is new");
    let mut in_the_way = Conn::from_url(server.url()).await.expect("a connection");
    in_the_way
        .query_drop("START TRANSACTION; SELECT * FROM between_them FOR UPDATE")
        .await
        .expect("the row is locked");
    let mut write = pin!(older.execute(Statement::new("UPDATE between_them SET total = 1")));
    until_it_waits(server, "SET total = 1", write.as_mut()).await;
    let mut seal = pin!(Sealed::seal(rows, token(34)));
    until_it_waits(server, &hex("between_them"), seal.as_mut()).await;
    in_the_way.query_drop("ROLLBACK").await.expect("the row is free");
    let (written, sealed) = tokio::join!(write, seal);
    assert_eq!(written.expect("it was the newest when it began").affected_rows, 1);
    let found =
        sealed.expect("it is newer").query(Statement::new("SELECT total FROM between_them")).await.expect("read");
    assert_eq!(found[0].get::<u64, _>(0), Some(1), "the new holder sees what was acknowledged");
}

#[tokio::test]
async fn a_change_that_is_rejected_changes_nothing_and_ends_nothing() {
    let Numbers(server) = Numbers::new();
    let mut rows = Sealed::seal(protected(&server.0, "rejecting").await, token(1)).await.expect("it is new");
    let insert = |id: u32| Statement::new("INSERT INTO rejecting VALUES (?, 0)").bind(id);
    let written = rows.write(vec![insert(1), insert(2)]).await.expect("both");
    assert_eq!(written.affected_rows, 2);
    let error = rows.write(vec![insert(3), insert(1)]).await.expect_err("the second is there");
    assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
    let error = rows.execute(Statement::new("TRUNCATE rejecting")).await.expect_err("it would commit midway");
    assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    for senseless in
        ["DELETE FROM nothing_there", "UPDATE", "DELETE FROM rejecting; COMMIT", "UPDATE rejecting SET total = ?"]
    {
        rows.execute(Statement::new(senseless)).await.expect_err("it makes no sense");
    }
    let error = rows.query(Statement::new("DELETE FROM rejecting")).await.expect_err("it is no read");
    assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    let found = rows.query(Statement::new("SELECT id FROM rejecting")).await.expect("the handle goes on");
    assert_eq!(found.len(), 2);
    rows.execute(insert(3)).await.expect("the handle goes on");
}

#[tokio::test]
async fn a_place_that_cannot_be_fenced_is_refused() {
    let Numbers(server) = Numbers::new();
    server.0.run("CREATE DATABASE empty").expect("a database");
    let url = server.0.url();
    let empty = url.replace("/test", "/empty");
    let error = MySql::connect(&empty).await.err().expect("it is not installed");
    assert!(error.to_string().contains("palisade fence mysql --install"), "{error}");
    for url in ["", "http://secret", "mysql://secret", "mysql://:secret@/", &url.replace("/test", "")] {
        let error = MySql::connect(url).await.err().expect("it is no URL of a database");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    }
    let error = MySql::connect(&url.replace("root@", "nobody:secret@")).await.err().expect("there is no such user");
    assert!(!error.is_retryable() && !error.to_string().contains("secret"), "{error}");
}

/// Like [`Numbers`], at a server that comes and goes.
#[derive(Clone)]
struct Anywhere(String);

impl Subject for Anywhere {
    type Resource = OneRow;

    async fn open(&self, name: &str) -> Result<OneRow, Error> {
        let mysql = MySql::connect(&self.0).await?;
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
        Vec::new()
    }

    fn impossible(&self) -> Vec<u64> {
        Vec::new()
    }
}

#[test]
fn a_server_that_is_killed_at_any_moment_keeps_its_word() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut server = MariaDb::start(place.path()).expect("a MariaDB");
    server.run(TABLE).expect("a table");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(MySql::install(&server.url())).expect("it is there");
    let mut dice = Dice::new(7);
    survive(&Anywhere(server.url()), super::kills(4), || {
        // The moment of a kill is the matter.
        std::thread::sleep(Duration::from_micros(dice.roll(400_000) as u64));
        server.kill();
        server.restart().expect("it reads its files");
    });
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").expect("set");
    let error = runtime.block_on(MySql::connect(&server.url())).err().expect("a crash could lose what it says");
    assert!(error.to_string().contains("innodb_flush_log_at_trx_commit"), "{error}");
}

#[tokio::test]
async fn procedures_of_another_version_are_found_and_older_ones_are_replaced() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let server = MariaDb::start(place.path()).expect("a MariaDB");
    let orders = protected(&server, "orders").await;
    drop(Sealed::seal(orders, token(34)).await.expect("it is new"));
    let put = |comment: &str| {
        let other = format!("CREATE PROCEDURE palisade_fence_check(IN of VARBINARY(255)) COMMENT '{comment}' DO 0");
        for sql in ["DROP PROCEDURE palisade_fence_check", &other] {
            server.run(sql).expect("it is made");
        }
    };
    // One that checks nothing, from before there were versions.
    put("");
    let error = MySql::connect(&server.url()).await.err().expect("it is older");
    assert!(
        error.to_string().contains("older version; replace them with `palisade fence mysql --install"),
        "{error}"
    );
    MySql::install(&server.url()).await.expect("it is replaced");
    let orders = MySql::connect(&server.url()).await.expect("it is the same version").rows("orders").expect("a name");
    assert_eq!(orders.mark().await.expect("it is read").expect("it stays").token, token(34));
    assert!(
        said(&server, "SET @palisade_token = 33; INSERT INTO orders VALUES (1, 1)").contains("token 34 has sealed")
    );
    put("palisade 99");
    for error in [MySql::connect(&server.url()).await.err(), MySql::install(&server.url()).await.err()] {
        let error = error.expect("it is newer").to_string();
        assert!(error.contains("of version 99, and this program knows 1: use a newer one"), "{error}");
    }
}
