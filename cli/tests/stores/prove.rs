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

use crate::run;
use crate::sandbox::{CommandOutput, Sandbox};
use crate::servers::Server;

fn report(said: &CommandOutput) -> Value {
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{}", said.out);
    serde_json::from_str(&said.out).expect("JSON")
}

fn scheme<'a>(report: &'a Value, name: &str) -> &'a Value {
    let schemes = report["schemes"].as_array().expect("a list");
    schemes.iter().find(|scheme| scheme["scheme"] == name).unwrap_or_else(|| panic!("{name} was not tried"))
}

fn is_proven(prove: &dyn Fn(&[&str]) -> CommandOutput) {
    let order = report(&prove(&["order", "--json"]));
    let lost = ["none", "ratchet", "strict"].map(|name| scheme(&order, name)["lost"].as_u64());
    assert_eq!(lost, [Some(1), Some(1), Some(0)], "{order:#}");
    let pauses = report(&prove(&["pauses", "--ttl", "500ms", "--overtaken", "1", "--json"]));
    assert_eq!(pauses["shown"], true, "{pauses:#}");
    assert!(scheme(&pauses, "none")["lost"].as_u64() >= Some(1), "{pauses:#}");
    let strict = scheme(&pauses, "strict");
    assert_eq!((&strict["lost"], &strict["repeated"]), (&0.into(), &0.into()), "{pauses:#}");
    assert!(strict["refused"].as_u64() >= Some(1), "{pauses:#}");
}

fn on(server: &Server) {
    let sandbox = Sandbox::new();
    is_proven(&|args| run(&sandbox, server, &[&["prove"], args, &["--resource", &server.url]].concat()));
}

#[test]
fn on_postgres_the_fence_loses_no_update() {
    on(&Server::postgres(&[]));
}

#[test]
fn on_mariadb_the_fence_loses_no_update() {
    on(&Server::mariadb(&[]));
}

#[test]
fn on_redis_the_fence_loses_no_update() {
    on(&Server::redis(&["--appendonly", "yes", "--appendfsync", "always"]));
}

#[test]
fn on_s3() {
    on(&Server::s3());
}

#[test]
fn on_the_built_in_service() {
    let sandbox = Sandbox::new();
    is_proven(&|args| sandbox.run(&[&["prove"], args, &["--resource", "http:"]].concat()));
}

/// A service that keeps what is PUT, for GET. It ends with the process.
fn keeper() -> String {
    let kept: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    let (to_read, to_write) = (kept.clone(), kept);
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
fn on_a_service_of_the_user() {
    let (sandbox, url) = (Sandbox::new(), keeper());
    is_proven(&|args| sandbox.run(&[&["prove"], args, &["--resource", &url]].concat()));
}
