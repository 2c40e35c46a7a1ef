//! The fence in a real MariaDB.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use palisade_fence::mysql::{MySql, Row, Rows, Scope, Statement, Written};
use palisade_fence::{Error, ErrorKind, Mark, Pass, Resource, Sealed, Token};
use palisade_testbench::bounded::until;
use palisade_testbench::faulty_disk::Rng;
use palisade_testbench::fencing::{Subject, survive};
use palisade_testbench::servers::{MariaDb, Shared};
use tempfile::TempDir;

use super::check;

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

/// One row of the table, with a separate mark.
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

/// Creates a table with a separate mark and triggers that protect it.
async fn protected(server: &MariaDb, table: &str) -> Rows {
    server.run(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, total INT)")).expect("a table");
    let mysql = MySql::install(&server.url()).await.expect("it is there");
    mysql.protect(table, &Scope::Table(table.to_owned())).await.expect("it has triggers");
    mysql.protect(table, &Scope::Table(table.to_owned())).await.expect("they may be there");
    mysql.rows(table).expect("a good name")
}

/// Runs SQL with the command-line client, and returns its output, errors included.
fn run_sql(server: &MariaDb, sql: &str) -> String {
    server.run(sql).unwrap_or_else(|error| error.to_string())
}

#[test]
fn any_client_is_fenced_by_triggers() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        let mut handle = Sealed::seal(protected(server, "plain").await, token(33)).await.expect("it is new");
        handle
            .execute(Statement::new("INSERT INTO plain VALUES (1, 10)"))
            .await
            .expect("the triggers know the token");
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
            assert!(run_sql(server, write).contains("45F02"), "without a token: {write}");
            assert!(
                run_sql(server, &format!("SET @palisade_fence_token = 34; {write}")).contains("45F03"),
                "not sealed: {write}"
            );
            assert!(
                run_sql(server, &format!("SET @palisade_fence_token = 32; {write}")).contains("45F01"),
                "stale: {write}"
            );
        }
        assert_eq!(run_sql(server, "SELECT * FROM plain"), "1\t10\n");
        assert_eq!(run_sql(server, "CALL palisade_fence_seal('plain', 34); UPDATE plain SET total = 11"), "");
        let error = handle.execute(Statement::new("UPDATE plain SET total = 0")).await.expect_err("it was overtaken");
        assert_eq!(error.overtaken_by(), Some(token(34)));
        let stale = run_sql(server, "CALL palisade_fence_seal('plain', 33)");
        assert!(stale.contains("45F04") && stale.contains("token 34 has sealed plain"), "{stale}");
        // The message names both possible causes, and the remedy for the second.
        let ways = "stale holder, or engine behind: palisade tokens raise --above 34 --url ENGINE";
        assert!(stale.contains(ways), "{stale}");
        assert_eq!(run_sql(server, "SELECT * FROM plain"), "1\t11\n");
    });
}

#[test]
fn any_client_can_number_its_writes() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        protected(server, "numbered").await;
        assert_eq!(
            run_sql(server, "CALL palisade_fence_seal('numbered', 33); INSERT INTO numbered VALUES (1, 0)"),
            ""
        );
        let write = |seq: u64| {
            format!(
                "SET @palisade_fence_token = 33; START TRANSACTION; CALL palisade_fence_number('numbered', {seq}); \
             UPDATE numbered SET total = total + 1; COMMIT"
            )
        };
        assert_eq!(run_sql(server, &write(1)), "");
        assert!(run_sql(server, &write(1)).contains("45F06"), "it was done before");
        assert!(run_sql(server, &write(3)).contains("45F07"), "it is not the next");
        assert_eq!(run_sql(server, &write(2)), "");
        assert_eq!(run_sql(server, "SELECT total FROM numbered"), "2\n");
    });
}

/// Runs these statements one by one. Returns the SQLSTATE of the last.
async fn outcome(session: &mut Conn, statements: &[&str]) -> String {
    let mut last = "done".to_owned();
    for statement in statements {
        last = match session.query_drop(*statement).await {
            Ok(()) => "done".to_owned(),
            Err(mysql_async::Error::Server(reply)) => reply.state,
            Err(other) => panic!("{statement}: {other}"),
        };
    }
    last
}

/// Creates a table whose rows have marks by a column of this type, if that is possible.
async fn by_row(server: &MariaDb, table: &str, kind: &str) -> Result<MySql, Error> {
    server.run(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, k {kind}, total INT)")).expect("a table");
    let mysql = MySql::install(&server.url()).await.expect("it is there");
    let scope = Scope::Row { name: table.to_owned(), column: "k".to_owned() };
    mysql.protect(table, &scope).await.map(|()| mysql)
}

/// Settings in which sessions differ.
const SESSIONS: [&str; 6] = [
    "SET time_zone = '+00:00'",
    "SET time_zone = '+05:30', sql_mode = ''",
    "SET time_zone = '-08:00', sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
    "SET NAMES latin1",
    "SET NAMES utf8mb4 COLLATE utf8mb4_unicode_ci, sql_mode = 'ORACLE,EMPTY_STRING_IS_NULL'",
    "SET NAMES latin1 COLLATE latin1_german2_ci, lc_time_names = 'de_DE', div_precision_increment = 9",
];

#[test]
fn a_rows_mark_has_one_name_in_every_session() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        for (at, (kind, value, name)) in [
            ("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551615"),
            ("DECIMAL(10, 3)", "1.5", "1.500"),
            ("CHAR(10)", "'ab'", "ab"),
            ("VARCHAR(30) CHARACTER SET latin1", "_utf8mb4 x'62c3bc6368'", "büch"),
            ("DATETIME(3)", "'2026-03-29 02:30:00'", "2026-03-29 02:30:00.000"),
            ("DATE", "'2026-03-29'", "2026-03-29"),
            ("ENUM('a', 'b')", "'b'", "b"),
            ("UUID", "'0190f5a0-0000-7000-8000-00000000000A'", "0190f5a0-0000-7000-8000-00000000000a"),
        ]
        .into_iter()
        .enumerate()
        {
            let table = format!("keyed_{at}");
            let mysql = by_row(server, &table, kind).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
            let rows = mysql.rows(&format!("{table}/{name}")).expect("a name");
            let mut holder = Sealed::seal(rows.clone(), token(33)).await.expect("it is new");
            let insert = format!("INSERT INTO {table} VALUES (1, {value}, 0)");
            holder.execute(Statement::new(&insert)).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
            drop(Sealed::seal(rows, token(34)).await.expect("it is newer"));
            for session in SESSIONS {
                let mut client = Conn::from_url(server.url()).await.expect("a connection");
                let update = format!("UPDATE {table} SET total = total + 1 WHERE id = 1");
                let stale = [session, "SET @palisade_fence_token = 33", &update];
                assert_eq!(outcome(&mut client, &stale).await, "45F01", "{kind}: {session}");
                let newest = ["SET @palisade_fence_token = 34", &update];
                assert_eq!(outcome(&mut client, &newest).await, "done", "{kind}: {session}");
            }
            assert_eq!(run_sql(server, &format!("SELECT total FROM {table}")), format!("{}\n", SESSIONS.len()));
        }
    });
}

#[test]
#[ignore = "long: several seconds"]
fn a_key_column_without_a_stable_text_is_refused() {
    check(async {
        let Numbers(server) = Numbers::new();
        for (at, kind) in [
            "TIMESTAMP",
            "FLOAT",
            "DOUBLE",
            "BIT(8)",
            "BINARY(16)",
            "BLOB",
            "INT(5) ZEROFILL",
            "INT AS (id + 1) STORED",
            "GEOMETRY",
        ]
        .into_iter()
        .enumerate()
        {
            let table = format!("nameless_{at}");
            let error = by_row(&server.0, &table, kind).await.err().unwrap_or_else(|| panic!("{kind} is accepted"));
            assert!(error.to_string().contains("its column k cannot name rows"), "{kind}: {error}");
            assert_eq!(run_sql(&server.0, &format!("INSERT INTO {table} (id) VALUES (1)")), "", "nothing was made");
        }
        let mysql = MySql::install(&server.0.url()).await.expect("it is there");
        let scope = Scope::Row { name: "x".to_owned(), column: "nowhere".to_owned() };
        let error = mysql.protect("nameless_0", &scope).await.expect_err("there is no such column");
        assert!(error.to_string().contains("not there"), "{error}");
    });
}

#[test]
fn a_row_without_a_key_is_refused_as_such() {
    check(async {
        let Numbers(server) = Numbers::new();
        by_row(&server.0, "keyless", "INT").await.expect("it has triggers");
        let refused = run_sql(&server.0, "SET @palisade_fence_token = 1; INSERT INTO keyless VALUES (1, NULL, 0)");
        assert!(
            refused.contains("45F05") && refused.contains("a row whose key is NULL cannot be fenced"),
            "{refused}"
        );
        assert!(run_sql(&server.0, "CALL palisade_fence_seal(NULL, 1)").contains("45F05"));
        assert!(run_sql(&server.0, "CALL palisade_fence_number(NULL, 1)").contains("45F05"));
    });
}

#[test]
fn a_name_is_the_same_in_every_character_set() {
    check(async {
        let Numbers(server) = Numbers::new();
        let mysql = MySql::install(&server.0.url()).await.expect("it is there");
        drop(Sealed::seal(mysql.rows("straße").expect("a name"), token(34)).await.expect("it is new"));
        let mut client = Conn::from_url(server.0.url()).await.expect("a connection");
        // The client sends UTF-8, and tells the server so.
        for name in ["_utf8mb4 x'73747261c39f65'", "CONVERT(_utf8mb4 x'73747261c39f65' USING latin1)"] {
            let stale = ["SET @palisade_fence_token = 33", &format!("CALL palisade_fence_check({name})")];
            assert_eq!(outcome(&mut client, &stale).await, "45F01", "{name}");
            assert_eq!(
                outcome(&mut client, &[&format!("CALL palisade_fence_seal({name}, 33)")]).await,
                "45F04",
                "{name}"
            );
            assert_eq!(
                outcome(&mut client, &[&format!("CALL palisade_fence_seal({name}, 34)")]).await,
                "done",
                "{name}"
            );
        }
        for name in ["''", "x'61C3'", "REPEAT('é', 128)", "'a\nb'", "CHAR(0)"] {
            let state = outcome(&mut client, &[&format!("CALL palisade_fence_seal({name}, 1)")]).await;
            assert_ne!(state, "done", "{name}");
        }
    });
}

#[test]
fn an_invalid_token_is_refused() {
    check(async {
        let Numbers(server) = Numbers::new();
        protected(&server.0, "tokens").await;
        assert_eq!(
            run_sql(&server.0, "CALL palisade_fence_seal('tokens', 34); INSERT INTO tokens VALUES (1, 0)"),
            ""
        );
        for shown in ["'34x'", "'34 '", "34.0", "3.4e1 + 0.5", "-34", "''", "'0x22'", "99999999999999999999"] {
            let refused =
                run_sql(&server.0, &format!("SET @palisade_fence_token = {shown}; UPDATE tokens SET total = 1"));
            assert!(refused.contains("45F05"), "{shown}: {refused}");
        }
        assert_eq!(run_sql(&server.0, "SET @palisade_fence_token = '34'; UPDATE tokens SET total = 1"), "");
    });
}

#[test]
fn a_seal_inside_a_transaction_is_refused_and_leaves_the_transaction_as_it_was() {
    check(async {
        let Numbers(server) = Numbers::new();
        protected(&server.0, "inside").await;
        server.0.run("CREATE TABLE diary (line INT)").expect("a table");
        let mut client = Conn::from_url(server.0.url()).await.expect("a connection");
        let isolations = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
        for (line, isolation) in isolations.into_iter().enumerate() {
            let isolation = format!("SET TRANSACTION ISOLATION LEVEL {isolation}");
            let write = format!("INSERT INTO diary VALUES ({line})");
            for begin in ["START TRANSACTION", "SET autocommit = 0"] {
                let refused = [&*isolation, begin, &write, "CALL palisade_fence_seal('inside', 33)"];
                assert_eq!(outcome(&mut client, &refused).await, "45F08", "{isolation}");
                for bad in [
                    "CALL palisade_fence_seal('', 33)",
                    "CALL palisade_fence_seal('inside', 0)",
                    "CALL palisade_fence_check('inside')",
                ] {
                    assert_ne!(outcome(&mut client, &[bad]).await, "done", "{bad}");
                }
                assert_eq!(outcome(&mut client, &["COMMIT", "SET autocommit = 1"]).await, "done");
            }
        }
        assert_eq!(run_sql(&server.0, "SELECT COUNT(*) FROM diary"), "8\n", "what was written before is there");
        assert_eq!(run_sql(&server.0, "SELECT COUNT(*) FROM palisade_fence_marks WHERE resource = 'inside'"), "0\n");
        // Without autocommit, a seal commits its own transaction, and no rollback undoes it.
        let off = ["SET autocommit = 0", "CALL palisade_fence_seal('inside', 34)", "ROLLBACK"];
        assert_eq!(outcome(&mut client, &off).await, "done");
        assert_eq!(run_sql(&server.0, "SELECT token FROM palisade_fence_marks WHERE resource = 'inside'"), "34\n");
        // A refused seal leaves the connection's token as it was.
        let superseded = ["SET autocommit = 1", "CALL palisade_fence_seal('inside', 33)"];
        assert_eq!(outcome(&mut client, &superseded).await, "45F04");
        assert_eq!(outcome(&mut client, &["INSERT INTO inside VALUES (1, 1)"]).await, "done");
    });
}

#[test]
fn a_transaction_from_before_the_seal_may_not_read() {
    check(async {
        let Numbers(server) = Numbers::new();
        protected(&server.0, "snapshots").await;
        assert_eq!(
            run_sql(&server.0, "CALL palisade_fence_seal('snapshots', 33); INSERT INTO snapshots VALUES (1, 1)"),
            ""
        );
        let mut client = Conn::from_url(server.0.url()).await.expect("a connection");
        let begun =
            ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION", "SELECT * FROM snapshots"];
        assert_eq!(outcome(&mut client, &begun).await, "done");
        assert_eq!(
            run_sql(&server.0, "CALL palisade_fence_seal('snapshots', 33); UPDATE snapshots SET total = 2"),
            ""
        );
        assert_eq!(run_sql(&server.0, "CALL palisade_fence_seal('snapshots', 34)"), "");
        let check = ["SET @palisade_fence_token = 34", "CALL palisade_fence_check('snapshots')"];
        assert_eq!(outcome(&mut client, &check).await, "45F08", "it would read what was before");
        let again = ["ROLLBACK", "START TRANSACTION", "CALL palisade_fence_check('snapshots')"];
        assert_eq!(outcome(&mut client, &again).await, "done");
        let found: Option<i64> = client.query_first("SELECT total FROM snapshots").await.expect("it reads");
        assert_eq!(found, Some(2));
    });
}

#[test]
#[ignore = "long: several seconds"]
fn protecting_again_replaces_the_protection() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        protected(server, "first_name").await;
        let mysql = MySql::connect(&server.url()).await.expect("it is there");
        assert_eq!(
            run_sql(server, "CALL palisade_fence_seal('first_name', 34); CALL palisade_fence_seal('another', 50)"),
            ""
        );
        // Another mark.
        mysql.protect("first_name", &Scope::Table("another".to_owned())).await.expect("it is replaced");
        let under = |token: u64, sql: &str| run_sql(server, &format!("SET @palisade_fence_token = {token}; {sql}"));
        assert!(under(34, "INSERT INTO first_name VALUES (1, 1)").contains("45F01"));
        assert_eq!(under(50, "INSERT INTO first_name VALUES (1, 1)"), "");
        // A table that was renamed, and another of its name.
        assert_eq!(
            run_sql(server, "RENAME TABLE first_name TO second_name; CREATE TABLE first_name (id INT, total INT)"),
            ""
        );
        let problems = mysql.problems().await.expect("it may look");
        assert!(
            problems
                .iter()
                .any(|one| one.table == "first_name" && one.what.contains("triggers of the fence for 0 of"))
        );
        mysql.protect("first_name", &Scope::Table("another".to_owned())).await.expect("it has triggers");
        for table in ["first_name", "second_name"] {
            assert!(under(34, &format!("INSERT INTO {table} VALUES (2, 2)")).contains("45F01"), "{table}");
            assert_eq!(under(50, &format!("INSERT INTO {table} VALUES (2, 2)")), "", "{table}");
        }
        let problems = mysql.problems().await.expect("it may look");
        assert!(!problems.iter().any(|one| one.table == "first_name"), "{problems:?}");
        // The longest name that a table can have.
        let long = "x".repeat(64);
        server.run(&format!("CREATE TABLE {long} (id INT)")).expect("a table");
        mysql.protect(&long, &Scope::Table("another".to_owned())).await.expect("it has triggers");
        assert!(run_sql(server, &format!("INSERT INTO {long} VALUES (1)")).contains("45F02"));
        // Printing the SQL changes nothing.
        let printed = palisade_fence::mysql::protection("first_name", &Scope::Table("third".to_owned()));
        let call = printed.lines().find(|line| line.starts_with("CALL")).expect("it asks");
        assert!(run_sql(server, call).contains("has triggers of the fence already"));
        assert_eq!(under(50, "DELETE FROM first_name"), "");
    });
}

#[test]
#[ignore = "long: several seconds"]
fn changes_that_no_trigger_sees_are_refused_or_found() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        protected(server, "parent").await;
        let mysql = MySql::connect(&server.url()).await.expect("it is there");
        server.run("CREATE TABLE cascading (id INT PRIMARY KEY, p INT)").expect("a table");
        for (rule, name) in [("DELETE CASCADE", "a"), ("DELETE SET NULL", "b"), ("UPDATE CASCADE", "c")] {
            let key = format!("ADD CONSTRAINT {name} FOREIGN KEY (p) REFERENCES parent (id) ON {rule}");
            server.run(&format!("ALTER TABLE cascading {key}")).expect("a key");
            let error =
                mysql.protect("cascading", &Scope::Table("cascading".to_owned())).await.expect_err("it cascades");
            assert!(error.to_string().contains("no trigger sees what its foreign key"), "{error}");
            server.run(&format!("ALTER TABLE cascading DROP FOREIGN KEY {name}")).expect("it is dropped");
        }
        server.run("ALTER TABLE cascading ADD FOREIGN KEY (p) REFERENCES parent (id)").expect("a key that restricts");
        mysql.protect("cascading", &Scope::Table("cascading".to_owned())).await.expect("it does not cascade");
        server.run("CREATE TABLE isam (id INT) ENGINE = MyISAM; CREATE VIEW a_view AS SELECT 1").expect("a table");
        for (table, why) in [("isam", "MyISAM"), ("a_view", "no such table"), ("nowhere", "no such table")] {
            let error = mysql.protect(table, &Scope::Table("x".to_owned())).await.expect_err("it cannot be");
            assert!(error.to_string().contains(why), "{error}");
        }
        let about = async |table: &str| {
            let problems = mysql.problems().await.expect("it may look").into_iter();
            problems.filter(|one| one.table == table).map(|one| one.what).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(about("cascading").await, "");
        server
            .run(
                "ALTER TABLE cascading ADD CONSTRAINT later FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE",
            )
            .expect("a key");
        assert!(
            about("cascading").await.contains("no trigger sees what its foreign key later does ON DELETE CASCADE")
        );
        server.run("ALTER TABLE cascading DROP FOREIGN KEY later; GRANT DROP ON test.cascading TO truncater@localhost IDENTIFIED BY 'x'").expect("granted");
        assert_eq!(
            about("cascading").await,
            "'truncater'@'localhost' may DROP it, and so TRUNCATE it, which no trigger sees"
        );
        assert_eq!(about("parent").await, "");

        by_row(server, "ordered", "INT").await.expect("it has triggers");
        server.run("CREATE TRIGGER meddling BEFORE INSERT ON ordered FOR EACH ROW SET NEW.k = 7").expect("a trigger");
        assert!(about("ordered").await.contains("trigger meddling runs after those of the fence"));
        server.run("DROP TRIGGER meddling; ALTER TABLE ordered MODIFY k TIMESTAMP").expect("changed");
        assert!(about("ordered").await.contains("its column k cannot name rows: it is timestamp"));
        server.run("DROP TABLE ordered").expect("dropped");
        assert_eq!(about("ordered").await, "there is no such table: it was renamed or dropped");
    });
}

#[test]
fn every_statement_that_writes_rows_is_fenced_by_row() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        by_row(server, "all_ways", "INT UNIQUE").await.expect("it has triggers");
        let sealed = "CALL palisade_fence_seal('all_ways/1', 34); CALL palisade_fence_seal('all_ways/2', 34)";
        assert_eq!(run_sql(server, &format!("{sealed}; INSERT INTO all_ways VALUES (1, 1, 0), (2, 2, 0)")), "");
        assert_eq!(run_sql(server, "CALL palisade_fence_seal('all_ways/1', 35)"), "");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "1\t1\t9\n").expect("it is ours");
        let load = format!("LOAD DATA LOCAL INFILE '{}' REPLACE INTO TABLE all_ways", file.path().display());
        for write in [
            "REPLACE INTO all_ways VALUES (9, 1, 9)",
            "INSERT INTO all_ways VALUES (2, 2, 9) ON DUPLICATE KEY UPDATE k = 1",
            "INSERT INTO all_ways VALUES (1, 2, 9) ON DUPLICATE KEY UPDATE total = 9",
            "UPDATE all_ways SET total = 9",
            "UPDATE all_ways a JOIN all_ways b ON a.k = b.k SET a.total = 9",
            "DELETE a FROM all_ways a JOIN all_ways b ON a.k = b.k",
            "UPDATE all_ways SET k = 1 WHERE k = 2",
            &load,
        ] {
            let stale = run_sql(server, &format!("SET @palisade_fence_token = 34; {write}"));
            assert!(stale.contains("45F01"), "{write}: {stale}");
        }
        assert_eq!(run_sql(server, "SELECT * FROM all_ways"), "1\t1\t0\n2\t2\t0\n");
    });
}

#[test]
fn rows_can_have_separate_marks() {
    check(async {
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
        assert_eq!(run_sql(server, "SELECT * FROM each_row"), "1\t1\n2\t0\n");
    });
}

/// Lets one test poll at a time: the server renews its list of transactions only after no client has read it for 100 ms.
static POLLING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Polls `work` until the server shows that a statement with this text waits for a row.
async fn until_it_waits<T>(server: &MariaDb, sql: &str, mut work: Pin<&mut impl Future<Output = T>>) {
    let waiting = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{sql}%'"
    );
    let _turn = POLLING.lock().await;
    until("the work waits for a row", async || {
        if run_sql(server, &waiting) != "0\n" {
            return true;
        }
        let is_done = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
        assert!(!is_done, "it must wait");
        tokio::time::sleep(Duration::from_millis(150)).await;
        false
    })
    .await;
}

/// Returns a resource's name as the adapter's SQL has it.
fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_seal_waits_for_a_transaction_with_an_older_token_and_then_refuses_it() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        let rows = protected(server, "waiting").await;
        let mut running = Conn::from_url(server.url()).await.expect("a connection");
        running.query_drop("CALL palisade_fence_seal('waiting', 33); START TRANSACTION").await.expect("it is new");
        running.query_drop("INSERT INTO waiting VALUES (1, 1)").await.expect("it is the newest");
        let mut seal = pin!(Sealed::seal(rows, token(34)));
        until_it_waits(server, &hex("waiting"), seal.as_mut()).await;
        running
            .query_drop("INSERT INTO waiting VALUES (2, 2); COMMIT")
            .await
            .expect("no other token was accepted before");
        let sealed = seal.await.expect("it is newer");
        let found = sealed.query(Statement::new("SELECT id FROM waiting")).await.expect("read");
        assert_eq!(found.len(), 2, "what was committed before the seal is seen after it");
        let error = running.query_drop("INSERT INTO waiting VALUES (3, 3)").await.expect_err("it was overtaken");
        assert!(error.to_string().contains("token 34 has sealed waiting"), "{error}");
    });
}

/// InnoDB drops shared locks at XA PREPARE and keeps exclusive ones. Without one on the mark, the seal would return before the
/// prepared write is committed.
#[test]
#[ignore = "long: several seconds"]
fn a_seal_waits_for_a_prepared_transaction_under_an_older_token() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        protected(server, "prepared").await;
        let mut other = Conn::from_url(server.url()).await.expect("a connection");
        other.query_drop("SET innodb_lock_wait_timeout = 1").await.expect("it is set");
        let levels = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
        for (round, (level, number)) in levels.iter().flat_map(|level| [(level, ""), (level, "number")]).enumerate() {
            let mut writer = Conn::from_url(server.url()).await.expect("a connection");
            let (xid, mine, newer) = (format!("'{round}'"), 100 + round * 2, 101 + round * 2);
            let numbered = if number.is_empty() { "DO 1" } else { "CALL palisade_fence_number('prepared', 1)" };
            for sql in [
                &format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"),
                &format!("CALL palisade_fence_seal('prepared', {mine})"),
                &format!("XA START {xid}"),
                numbered,
                &format!("INSERT INTO prepared VALUES ({round}, {mine})"),
                &format!("XA END {xid}"),
                &format!("XA PREPARE {xid}"),
            ] {
                writer.query_drop(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
            }
            let seal = format!("CALL palisade_fence_seal('prepared', {newer})");
            let early = outcome(&mut other, &[&seal]).await;
            writer.query_drop(format!("XA COMMIT {xid}")).await.expect("it was prepared");
            assert_ne!(early, "done", "{level} {number}: a write under {mine} came after the seal with {newer}");
            assert_eq!(outcome(&mut other, &[&seal]).await, "done", "{level} {number}");
        }
    });
}

#[test]
fn a_seal_cannot_come_between_the_check_and_the_write() {
    check(async {
        let Numbers(server) = Numbers::new();
        let server = &server.0;
        server
            .run("CREATE TABLE between_them (id INT PRIMARY KEY, total INT); INSERT INTO between_them VALUES (1, 0)")
            .expect("a table");
        let rows =
            MySql::install(&server.url()).await.expect("it is there").rows("between_them").expect("a good name");
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
    });
}

#[test]
fn a_rejected_change_changes_nothing_and_leaves_the_handle_usable() {
    check(async {
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
    });
}

#[test]
fn a_table_that_cannot_be_fenced_is_refused() {
    check(async {
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
        let error =
            MySql::connect(&url.replace("root@", "nobody:secret@")).await.err().expect("there is no such user");
        assert!(!error.is_retryable() && !error.to_string().contains("secret"), "{error}");
    });
}

/// Like [`Numbers`], at a server that is restarted.
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
fn a_server_that_is_killed_at_any_moment_loses_no_acknowledged_write() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut server = MariaDb::start(place.path()).expect("a MariaDB");
    server.run(TABLE).expect("a table");
    check(MySql::install(&server.url())).expect("it is there");
    let mut rng = Rng::new(7);
    survive(&Anywhere(server.url()), super::kills(4), || {
        // The random moment of the kill is what is tested.
        std::thread::sleep(Duration::from_micros(rng.below(400_000) as u64));
        server.kill();
        server.restart().expect("it reads its files");
    });
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").expect("set");
    let error = check(MySql::connect(&server.url())).err().expect("a crash could lose what it says");
    assert!(error.to_string().contains("innodb_flush_log_at_trx_commit"), "{error}");
}

#[test]
#[ignore = "long: several seconds"]
fn procedures_of_another_version_are_found_and_older_ones_are_replaced() {
    check(async {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let server = MariaDb::start(place.path()).expect("a MariaDB");
        let orders = protected(&server, "orders").await;
        drop(Sealed::seal(orders, token(34)).await.expect("it is new"));
        let put = |comment: &str| {
            let other =
                format!("CREATE PROCEDURE palisade_fence_check(IN of VARBINARY(255)) COMMENT '{comment}' DO 0");
            for sql in ["DROP PROCEDURE palisade_fence_check", &other] {
                server.run(sql).expect("it is made");
            }
        };
        // A procedure without checks, from before there were versions.
        put("");
        let error = MySql::connect(&server.url()).await.err().expect("it is older");
        assert!(
            error.to_string().contains("older version; replace them with `palisade fence mysql --install"),
            "{error}"
        );
        MySql::install(&server.url()).await.expect("it is replaced");
        let orders =
            MySql::connect(&server.url()).await.expect("it is the same version").rows("orders").expect("a name");
        assert_eq!(orders.mark().await.expect("it is read").expect("it stays").token, token(34));
        assert!(
            run_sql(&server, "SET @palisade_fence_token = 33; INSERT INTO orders VALUES (1, 1)")
                .contains("token 34 has sealed")
        );
        put("palisade 99");
        for error in [MySql::connect(&server.url()).await.err(), MySql::install(&server.url()).await.err()] {
            let error = error.expect("it is newer").to_string();
            assert!(error.contains("of version 99, and this program knows 3: use a newer one"), "{error}");
        }
    });
}
