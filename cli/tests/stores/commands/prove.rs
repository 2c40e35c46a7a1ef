//! `palisade prove` on every store: in the wrong order the ratchet loses an update and the seal does not; writers that are
//! stopped lose updates without a fence, and none behind the strict one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::Value;

use super::run_long;
use crate::sandbox::{CommandOutput, Sandbox};
use crate::servers::Server;

fn parse_report(output: &CommandOutput) -> Value {
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
    serde_json::from_str(&output.out).expect("JSON")
}

/// Returns the result with one kind of fencing.
fn result<'a>(report: &'a Value, fencing: &str) -> &'a Value {
    let results = report["schemes"].as_array().expect("a list");
    results.iter().find(|result| result["scheme"] == fencing).unwrap_or_else(|| panic!("{fencing} was not tried"))
}

fn assert_proven(prove: &dyn Fn(&[&str]) -> CommandOutput) {
    let order = parse_report(&prove(&["order", "--json"]));
    let lost = ["none", "ratchet", "strict"].map(|name| result(&order, name)["lost"].as_u64());
    assert_eq!(lost, [Some(1), Some(1), Some(0)], "{order:#}");
    let pauses = parse_report(&prove(&["pauses", "--ttl", "500ms", "--overtaken", "1", "--json"]));
    assert_eq!(pauses["shown"], true, "{pauses:#}");
    assert!(result(&pauses, "none")["lost"].as_u64() >= Some(1), "{pauses:#}");
    let strict = result(&pauses, "strict");
    assert_eq!((&strict["lost"], &strict["repeated"]), (&0.into(), &0.into()), "{pauses:#}");
    assert!(strict["refused"].as_u64() >= Some(1), "{pauses:#}");
}

fn assert_proven_on(server: &Server) {
    let sandbox = Sandbox::new();
    assert_proven(&|args| run_long(&sandbox, server, &[&["prove"], args, &["--resource", &server.url]].concat()));
}

#[test]
#[ignore = "long: an experiment with paused writers"]
fn on_postgres_the_fence_loses_no_update() {
    assert_proven_on(&Server::postgres(&[]));
}

#[test]
#[ignore = "long: an experiment with paused writers"]
fn on_mariadb_the_fence_loses_no_update() {
    assert_proven_on(&Server::mariadb(&[]));
}

#[test]
#[ignore = "long: an experiment with paused writers"]
fn on_redis_the_fence_loses_no_update() {
    assert_proven_on(&Server::redis(&["--appendonly", "yes", "--appendfsync", "always"]));
}

#[test]
#[ignore = "long: an experiment with paused writers"]
fn on_s3_the_fence_loses_no_update() {
    assert_proven_on(&Server::s3());
}

#[test]
fn on_the_built_in_http_service_the_fence_loses_no_update() {
    let sandbox = Sandbox::new();
    assert_proven(&|args| sandbox.run_long(&[&["prove"], args, &["--resource", "http:"]].concat()));
}

/// Starts a service that returns on GET what was PUT, and returns its URL. It ends with the process.
fn start_service() -> String {
    let bodies: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    let (to_read, to_write) = (bodies.clone(), bodies);
    let read = async move |Path(name): Path<String>| {
        to_read.lock().unwrap().get(&name).cloned().ok_or(StatusCode::NOT_FOUND)
    };
    let write = async move |Path(name): Path<String>, body: String| {
        to_write.lock().unwrap().insert(name, body);
        StatusCode::NO_CONTENT
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, Router::new().route("/numbers/{name}", get(read).put(write))).await.unwrap();
        });
    });
    format!("http://{at}/numbers")
}

#[test]
fn on_the_users_http_service_the_fence_loses_no_update() {
    let (sandbox, url) = (Sandbox::new(), start_service());
    assert_proven(&|args| sandbox.run_long(&[&["prove"], args, &["--resource", &url]].concat()));
}
