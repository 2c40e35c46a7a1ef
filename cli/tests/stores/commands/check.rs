//! `palisade fence check` on every store: it shows the mark, and why a write is refused.

use std::fs;

use palisade_fence::file::{FencedFile, FencedFolder};
use palisade_fence::http::Api;
use palisade_fence::mysql::{MySql, Statement};
use palisade_fence::redis::{Command, Redis};
use palisade_fence::sqlite::{Sqlite, Work};
use palisade_fence::{Resource, Sealed, Token};
use rusqlite::types::Value;
use serde_json::json;

use super::run;
use crate::common::bounded::Bounded;
use crate::common::http_client;
use crate::sandbox::{CommandOutput, Sandbox};
use crate::servers::{Server, try_psql, try_redis};

/// Runs `palisade fence check` on one store, with these additional arguments.
type Check<'a> = dyn Fn(&[&str]) -> CommandOutput + 'a;

/// Checks the output for a resource that is not sealed yet.
fn check_unsealed(check: &Check<'_>, name: &str) {
    let output = check(&[]);
    assert_eq!((output.code, output.out), (Some(0), format!("Nothing has sealed {name} yet.\n")), "{}", output.err);
    let output = check(&["--token", "33"]);
    assert_eq!(output.code, Some(76), "{}", output.err);
    assert!(output.out.contains("Token 33 has to seal it first, then read, then write."), "{}", output.out);
}

/// Checks the output for a resource that token 34 has sealed and written twice.
fn check_sealed(check: &Check<'_>, name: &str) {
    let sealed = format!("{name} is sealed with token 34; the last numbered write under it is 2.\n");
    assert_eq!(check(&[]), CommandOutput { code: Some(0), out: sealed.clone(), err: String::new() });
    assert_eq!(check(&["--token", "34"]).code, Some(0));
    assert_eq!(check(&["--token", "34", "--seq", "3"]).code, Some(0));
    let stale = check(&["--token", "33"]);
    let expected = "A write under token 33 is refused: token 34 has sealed it.\n\
                    Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave token 33\n\
                    counts lower than the one that gave token 34 (a new file, another engine): raise its tokens.\n  ";
    let command = "palisade tokens raise --above 34 --url";
    assert_eq!(stale.code, Some(76));
    assert!(stale.out.starts_with(&format!("{sealed}{expected}{command} embedded://")), "{}", stale.out);
    let engine = ["--token", "33", "--url", "redis://a?namespace=shop&replicas=1"];
    let named = check(&engine).out;
    assert!(named.ends_with(&format!("{command} 'redis://a?namespace=shop&replicas=1'\n")), "{named}");
    let json: serde_json::Value =
        serde_json::from_str(&check(&["--token", "33", "--url", "palisade://a:1", "--json"]).out).unwrap();
    assert_eq!(json["raise_command"], json!(format!("{command} palisade://a:1")));
    let gap = check(&["--token", "34", "--seq", "7"]);
    assert!(gap.code == Some(76) && gap.out.contains("number 3 would be the next"), "{gap:?}");
    let repeat: serde_json::Value =
        serde_json::from_str(&check(&["--token", "34", "--seq", "2", "--json"]).out).unwrap();
    assert_eq!((&repeat["schema"], &repeat["verdict"]), (&json!(1), &json!("repeat_or_gap")));
    assert_eq!((&repeat["resource"], &repeat["mark"]), (&json!(name), &json!({"token": 34, "seq": 2})));
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// Seals with 34 and writes twice.
async fn write<R: Resource>(resource: R, change: impl Fn(&str) -> R::Change) {
    let mut sealed = Sealed::seal(resource, token(34)).await.unwrap();
    for text in ["1", "2"] {
        sealed.write(change(text)).await.unwrap();
    }
}

#[tokio::test]
async fn check_explains_marks_in_mysql() {
    let (sandbox, server) = (Sandbox::new(), Server::mariadb(&[]));
    let check = |args: &[&str]| run(&sandbox, &server, &[&["fence", "check", &server.url, "orders"], args].concat());
    let output = check(&[]);
    assert!(output.code == Some(64) && output.err.contains("palisade fence mysql --install"), "{output:?}");
    let mysql = MySql::install(&server.url).await.unwrap();
    check_unsealed(&check, "orders");
    crate::servers::try_mariadb(server.port, "CREATE TABLE t (n INT) ENGINE=InnoDB").unwrap();
    let insert = |text: &str| vec![Statement::new("INSERT INTO t VALUES (?)").bind(text)];
    write(mysql.rows("orders").unwrap(), insert).await;
    check_sealed(&check, "orders");
    let unnamed = run(&sandbox, &server, &["fence", "check", &server.url]);
    assert!(unnamed.code == Some(64) && unnamed.err.contains("RESOURCE is missing"), "{unnamed:?}");
    assert!(unnamed.err.ends_with("; sealed there: orders\n"), "{unnamed:?}");
    crate::servers::try_mariadb(server.port, "CREATE TABLE jobs (id INT PRIMARY KEY) ENGINE=InnoDB").unwrap();
    let rows = palisade_fence::mysql::Scope::Row { name: "jobs".to_owned(), column: "id".to_owned() };
    mysql.protect("jobs", &rows).await.unwrap();
    let jobs = run(&sandbox, &server, &["fence", "check", &server.url, "jobs"]).out;
    assert!(jobs.contains("Each row of jobs has its own mark: palisade fence check mysql://… jobs/KEY"), "{jobs}");
    mysql.protect("t", &palisade_fence::mysql::Scope::Table("orders".to_owned())).await.unwrap();
    assert_eq!(check(&[]).code, Some(0));
    crate::servers::try_mariadb(server.port, "RENAME TABLE t TO u; CREATE TABLE t (n INT)").unwrap();
    let output = check(&[]);
    assert!(
        output.code == Some(78) && output.out.contains("The fence has a gap: t: it has triggers of the fence for 0"),
        "{output:?}"
    );
}

#[tokio::test]
async fn check_explains_marks_in_redis() {
    let (sandbox, server) = (Sandbox::new(), Server::redis(&[]));
    let check =
        |args: &[&str]| run(&sandbox, &server, &[&["fence", "check", &server.url, "orders/42"], args].concat());
    let output = check(&[]);
    assert!(output.code == Some(69) && output.err.contains("palisade fence redis --install"), "{output:?}");
    let redis = Redis::install(&server.url).await.unwrap();
    check_unsealed(&check, "orders/42");
    write(redis.keys("orders/42").unwrap(), |text| Command::new("SET").arg(text)).await;
    check_sealed(&check, "orders/42");
    let unnamed = run(&sandbox, &server, &["fence", "check", &server.url]);
    assert!(
        unnamed.code == Some(64) && unnamed.err.contains("redis-cli --scan --pattern 'palisade:{*}'"),
        "{unnamed:?}"
    );
    try_redis(server.port, &["DEL", "palisade:{orders/42}"]).unwrap();
    let output = check(&["--token", "34"]);
    assert_eq!(output.code, Some(76));
    assert!(
        output.out.starts_with("orders/42 has data and no mark: the mark was lost, or nothing"),
        "{}",
        output.out
    );
    assert!(output.out.contains("palisade tokens raise --above N --url ENGINE"), "{}", output.out);
    assert!(output.out.contains("FCALL palisade_seal 1 palisade:{orders/42} TOKEN"), "{}", output.out);
    let json: serde_json::Value = serde_json::from_str(&check(&["--json"]).out).unwrap();
    assert_eq!((&json["mark"], &json["mark_lost"]), (&json!(null), &json!(true)));
}

#[tokio::test]
async fn check_explains_marks_in_sqlite() {
    let sandbox = Sandbox::new();
    let check = |args: &[&str]| sandbox.run(&[&["fence", "check", "sqlite:shop.db", "orders"], args].concat());
    let output = check(&[]);
    assert!(output.code == Some(64) && output.err.contains("there is no such database"), "{output:?}");
    let path = sandbox.path().join("shop.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (n)").unwrap();
    let output = check(&[]);
    assert!(output.code == Some(64) && output.err.contains("there is no fence in this database"), "{output:?}");
    let orders = Sqlite::open(&path, "orders").await.unwrap();
    check_unsealed(&check, "orders");
    let unnamed = || sandbox.stderr(64, &["fence", "check", "sqlite:shop.db"]);
    let missing = "palisade: RESOURCE is missing: name the resource whose mark to check";
    assert_eq!(unnamed(), format!("{missing}; no resource is sealed there yet\n"));
    let insert = |text: &str| {
        let text = text.to_owned();
        Work::new(move |transaction| transaction.execute("INSERT INTO t VALUES (?1)", [&text]).map(|_| Value::Null))
    };
    write(orders.clone(), insert).await;
    check_sealed(&check, "orders");
    assert_eq!(unnamed(), format!("{missing}; sealed there: orders\n"));
    // A migration recreates the table, and its triggers are gone.
    orders.protect("t").await.unwrap();
    check_sealed(&check, "orders");
    rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE t; CREATE TABLE t (n, m)").unwrap();
    let output = check(&["--token", "34"]);
    assert!(output.code == Some(64) && output.err.contains("'t' was protected"), "{output:?}");
}

#[tokio::test]
async fn check_explains_marks_of_files_and_creates_nothing() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path().join("files");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("orders.json").display().to_string();
    let of_file = |args: &[&str]| sandbox.run(&[&["fence", "check", &file], args].concat());
    check_unsealed(&of_file, &file);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "a check leaves no files");
    write(FencedFile::open(&file).unwrap(), |text| Some(text.into())).await;
    check_sealed(&of_file, &file);

    let site = sandbox.path().join("site");
    fs::create_dir(&site).unwrap();
    let of_folder = |args: &[&str]| sandbox.run(&[&["fence", "check", "file:site"], args].concat());
    check_unsealed(&of_folder, "site");
    write(FencedFolder::open(&site).unwrap(), |_| Vec::new()).await;
    check_sealed(&of_folder, "site");
    let output = sandbox.run(&["fence", "check", "site/index.html"]);
    assert!(output.code == Some(64) && output.err.contains("its folder has a mark"), "{output:?}");
    let output = sandbox.run(&["fence", "check", "site", "orders"]);
    assert!(output.code == Some(64) && output.err.contains("leave RESOURCE out"), "{output:?}");
}

#[tokio::test]
async fn check_does_not_suggest_a_raise_that_is_not_allowed() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("orders.json");
    drop(Sealed::seal(FencedFile::open(&file).unwrap(), token((1 << 52) + 1)).await.unwrap());
    let args = ["fence", "check", "orders.json", "--token", "33"];
    let stale = sandbox.run(&args);
    assert!(stale.code == Some(76) && !stale.out.contains("tokens raise"), "{stale:?}");
    assert!(stale.out.contains("tokens cannot be raised above a mark as high as this"), "{stale:?}");
    let json: serde_json::Value = serde_json::from_str(&sandbox.run(&[&args[..], &["--json"]].concat()).out).unwrap();
    assert_eq!(json["raise_command"], json!(null));
}

#[tokio::test]
async fn check_explains_marks_of_objects() {
    let (sandbox, server) = (Sandbox::new(), Server::s3());
    let url = format!("{}/orders.json", server.url);
    let check = |args: &[&str]| run(&sandbox, &server, &[&["fence", "check", &url], args].concat());
    check_unsealed(&check, &url);
    // As a writer without Rust would.
    let object = "{\"palisade\":1,\"token\":34,\"seq\":2,\"author\":71,\"nothing\":false}\n[1, 2]";
    fs::write(sandbox.path().join("object"), object).unwrap();
    let mut curl = sandbox.program("curl");
    curl.args(["-sf", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", "palisade:palisade-secret", "-T", "object"]);
    let put = curl.arg(format!("http://127.0.0.1:{}/fenced/orders.json", server.port)).finish();
    assert!(put.status.success(), "{put:?}");
    check_sealed(&check, &url);
}

#[tokio::test]
async fn check_explains_marks_of_an_http_service() {
    let sandbox = Sandbox::new();
    let service = super::service().await;
    let mut proxy = sandbox.command(&["fence", "http", "--upstream", &service, "--listen", "127.0.0.1:0"]);
    proxy.args(["--store", "sqlite:marks.db", "--lock", "orders"]);
    let (proxy, _, at) = super::start_proxy(proxy);
    let url = format!("http://{at}/orders");
    let by_url = |args: &[&str]| sandbox.run(&[&["fence", "check", &url], args].concat());
    let by_lock = |args: &[&str]| sandbox.run(&[&["fence", "check", &url, "orders"], args].concat());
    check_unsealed(&by_url, &url);
    check_unsealed(&by_lock, "orders");
    let api = Api::new(http_client(), &format!("http://{at}")).unwrap();
    assert_eq!(api.mark("/orders").await.unwrap(), None);
    write(api.clone(), |text| palisade_fence::http::Call::new(reqwest::Method::PUT, "/orders", text.to_owned()))
        .await;
    assert_eq!(api.mark("").await.unwrap().unwrap().token, token(34));
    check_sealed(&by_url, &url);
    check_sealed(&by_lock, "orders");
    let other = sandbox.run(&["fence", "check", &url, "other"]);
    assert!(other.code == Some(64) && other.err.contains("does not protect this"), "{other:?}");
    drop(proxy);
    let gone = sandbox.run(&["fence", "check", &url]);
    assert!(gone.code == Some(69) && gone.err.contains("cannot be reached"), "{gone:?}");
}

#[tokio::test]
async fn check_explains_marks_in_postgres() {
    let (sandbox, server) = (Sandbox::new(), Server::postgres(&[]));
    let check = |args: &[&str]| run(&sandbox, &server, &[&["fence", "check", &server.url, "orders"], args].concat());
    try_psql(&server.url, "CREATE TABLE orders (id int)").unwrap();
    try_psql(&server.url, &sandbox.stdout(&["fence", "postgres", "--protect", "orders=orders"])).unwrap();
    check_unsealed(&check, "orders");
    try_psql(&server.url, "SELECT palisade_fence.seal('orders', 34)").unwrap();
    for seq in [1, 2] {
        let write = format!(
            "BEGIN; SET LOCAL palisade_fence.token = '34'; SET LOCAL palisade_fence.seq = '{seq}'; INSERT INTO orders VALUES (1); COMMIT"
        );
        try_psql(&server.url, &write).unwrap();
    }
    check_sealed(&check, "orders");
    let unnamed = run(&sandbox, &server, &["fence", "check", &server.url]);
    assert!(unnamed.code == Some(64) && unnamed.err.ends_with("; sealed there: orders\n"), "{unnamed:?}");

    // Gaps of the fence are reported with every verdict.
    try_psql(&server.url, "ALTER TABLE orders DISABLE TRIGGER palisade_fence").unwrap();
    let output = check(&["--token", "34"]);
    let gap = "The fence has a gap: public.orders: its trigger palisade_fence is disabled.\n  \
               ALTER TABLE public.orders ENABLE TRIGGER palisade_fence\n";
    assert!(output.code == Some(78) && output.out.ends_with(gap), "{output:?}");
    let output: serde_json::Value = serde_json::from_str(&check(&["--json"]).out).unwrap();
    assert_eq!(output["problems"][0]["problem"], json!("its trigger palisade_fence is disabled"));
    // A role that may not read the catalog gets a warning instead of silence.
    let role = "CREATE ROLE onlooker LOGIN; GRANT USAGE ON SCHEMA palisade_fence TO onlooker; \
                GRANT EXECUTE ON FUNCTION palisade_fence.mark TO onlooker";
    try_psql(&server.url, role).unwrap();
    let url = server.url.replace("postgres@", "onlooker@");
    let output = run(&sandbox, &server, &["fence", "check", &url, "orders"]);
    assert!(
        output.code == Some(78) && output.out.contains("cannot find out whether tables are protected"),
        "{output:?}"
    );
}
