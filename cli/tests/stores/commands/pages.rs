//! The pages on PostgreSQL and HTTP in `docs/fencing`: runs every command of a page on a real server, block by block.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};
use std::thread;

use axum::Router;
use axum::routing::get;

use crate::common::bounded::Bounded;
use crate::sandbox::{Sandbox, repository};
use crate::servers::{Server, try_psql};

/// Returns the blocks of a page that are for a shell, or for the prompt of a database.
fn blocks(page: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join("docs/fencing").join(page)).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((matches!(language, "console" | "sh"), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take().filter(|(is_ours, _)| *is_ours).map(|(_, block)| block)),
            (None, Some((_, block))) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// An input, and the output that the page shows.
#[derive(Default)]
struct Step {
    input: Vec<String>,
    is_sql: bool,
    expected: Vec<String>,
}

/// Splits a block into steps. Statements that follow each other form one session, until the page shows an output.
fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let is_script = !block.starts_with("$ ") && !block.contains("=> ");
    for line in block.lines() {
        let sql = line.split_once("=> ").filter(|(name, _)| *name == "shop").map(|(_, sql)| sql);
        let command = line.strip_prefix("$ ").or(is_script.then_some(line));
        match (sql, command, steps.last_mut()) {
            (Some(sql), _, Some(last)) if last.is_sql && last.expected.is_empty() => last.input.push(sql.to_owned()),
            (Some(sql), ..) => steps.push(Step { input: vec![sql.to_owned()], is_sql: true, ..Step::default() }),
            (_, Some(command), _) => steps.push(Step { input: vec![command.to_owned()], ..Step::default() }),
            (None, None, Some(last)) => last.expected.push(line.to_owned()),
            (None, None, None) => panic!("a block begins with a command: {line}"),
        }
    }
    steps
}

/// Whether all expected lines were printed, in this order. White space is ignored, since pages break long lines.
fn agrees(expected: &[String], printed: &str) -> bool {
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let printed = bare(printed);
    let mut rest = printed.as_str();
    expected.iter().all(|line| match rest.find(&bare(line)) {
        Some(at) => {
            rest = &rest[at + bare(line).len()..];
            true
        }
        None => false,
    })
}

/// Runs the steps. `addresses` maps the addresses on the page to those of this test.
fn check(
    page: &str,
    sandbox: &Sandbox,
    variables: &[(&str, String)],
    addresses: &[(&str, String)],
    blocks: &[String],
) {
    let bin = sandbox.path().join("bin");
    if !bin.exists() {
        fs::create_dir(&bin).unwrap();
        symlink(env!("CARGO_BIN_EXE_palisade"), bin.join("palisade")).unwrap();
    }
    for step in blocks.iter().flat_map(|block| steps(block)) {
        let localized =
            |text: &str| addresses.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let script = match step.is_sql {
            true => format!("psql -X -q -t -A -v ON_ERROR_STOP=1 shop <<'SQL'\n{}\nSQL", step.input.join("\n")),
            false => localized(&step.input.join("\n")),
        };
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = sandbox.program("bash");
        command.args(["-c", &format!("exec 2>&1; set -o pipefail\n{script}")]).env("PATH", path);
        let output = command.envs(variables.iter().cloned()).finish();
        let printed = String::from_utf8(output.stdout).unwrap();
        let is_refusal = step.expected.iter().any(|line| line.contains("ERROR") || line.contains("refused"));
        assert_eq!(output.status.success(), !is_refusal, "{page}: {script}\n{printed}");
        assert!(agrees(&step.expected, &printed), "{page}: {script}\n{printed}\nexpected: {:#?}", step.expected);
    }
}

#[test]
fn the_postgres_page_works_as_written() {
    let (sandbox, server) = (Sandbox::new(), Server::postgres(&[]));
    try_psql(&server.url, "CREATE DATABASE shop").unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/shop", server.port);
    let setup = "CREATE TABLE orders (id int PRIMARY KEY, total int); INSERT INTO orders VALUES (42, 1); CREATE ROLE app; \
                CREATE TABLE jobs (id int PRIMARY KEY, state text); INSERT INTO jobs VALUES (7, 'new')";
    try_psql(&url, setup).unwrap();
    let variables =
        [("PGHOST", "127.0.0.1".to_owned()), ("PGPORT", server.port.to_string()), ("PGUSER", "postgres".to_owned())];
    let blocks = blocks("postgres.md");
    assert!(blocks.len() >= 4, "it shows something");
    check("postgres.md", &sandbox, &variables, &[("postgres://localhost/shop", url.clone())], &blocks);
    assert_eq!(try_psql(&url, "SELECT total FROM orders").unwrap(), "6", "the write that is shown was done, once");
    assert_eq!(try_psql(&url, "SELECT state FROM jobs").unwrap(), "done");
}

#[test]
fn the_http_page_works_as_written() {
    let sandbox = Sandbox::new();
    let orders: Arc<Mutex<Vec<String>>> = Arc::default();
    let (to_read, to_write) = (orders.clone(), orders.clone());
    let read = async move || to_read.lock().unwrap().join(",");
    let write = async move |body: String| to_write.lock().unwrap().push(body);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, Router::new().route("/orders", get(read).put(write))).await.unwrap();
        });
    });
    // The first block starts the proxy, which runs until the end of the test.
    let mut blocks = blocks("http.md");
    let first = blocks.remove(0);
    let (command, ready) = first.split_once('\n').unwrap();
    let command = command.strip_prefix("$ palisade ").unwrap().replace("http://127.0.0.1:8080", &upstream);
    let args: Vec<&str> = command.split_whitespace().chain(["--listen", "127.0.0.1:0"]).collect();
    let (_proxy, line, at) = super::start_proxy(sandbox.command(&args));
    assert_eq!(line.replace(&upstream, "http://127.0.0.1:8080").replace(&at, "127.0.0.1:7422"), ready.trim());
    check("http.md", &sandbox, &[], &[("localhost:7422", at)], &blocks);
    assert_eq!(*orders.lock().unwrap(), ["rope"], "written once, and not by the overtaken client");
}
