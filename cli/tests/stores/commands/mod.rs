//! The commands that connect to stores, on real servers: `palisade fence check`, `palisade prove`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod check;
mod pages;
mod prove;
mod proxies;
mod secrets;
mod tls;

use std::process::Command;

use crate::common::bounded::Bounded;
use crate::common::process::Process;
use crate::sandbox::{CommandOutput, Sandbox};
use crate::servers::Server;

/// Runs `palisade` with the environment variables that a server needs.
fn run(sandbox: &Sandbox, server: &Server, args: &[&str]) -> CommandOutput {
    let variables = server.variables.iter().map(|(name, value)| (name, value));
    sandbox.output(&sandbox.command(args).envs(variables).finish())
}

/// Runs an experiment of many steps in the same way.
fn run_long(sandbox: &Sandbox, server: &Server, args: &[&str]) -> CommandOutput {
    let variables = server.variables.iter().map(|(name, value)| (name, value));
    sandbox.output(&sandbox.command(args).envs(variables).finish_long())
}

/// Starts `palisade fence http`. Returns its first line, which says where it listens, and that address.
fn start_proxy(mut command: Command) -> (Process, String, String) {
    let process = Process::start(&mut command);
    let ready = process.next_line().expect("it is ready");
    let address = ready.split_once("http=").and_then(|(_, rest)| rest.split(' ').next());
    let address = address.unwrap_or_else(|| panic!("it is not ready: {ready}")).to_owned();
    (process, ready, address)
}

/// Starts a service that answers everything with 200, and returns its URL.
async fn service() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(async || ());
    tokio::spawn(async { axum::serve(listener, router).await });
    url
}
