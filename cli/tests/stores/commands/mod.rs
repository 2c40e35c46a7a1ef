//! The commands that connect to stores, on real servers: `palisade fence check`, `palisade prove`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod check;
mod pages;
mod prove;
mod proxies;
mod secrets;
mod tls;

use crate::sandbox::{CommandOutput, Sandbox};
use crate::servers::Server;

/// Runs `palisade` with the environment variables that a server needs.
fn run(sandbox: &Sandbox, server: &Server, args: &[&str]) -> CommandOutput {
    let variables = server.variables.iter().map(|(name, value)| (name, value));
    sandbox.output(&sandbox.command(args).envs(variables).output().expect("palisade runs"))
}

/// Starts a service that answers everything with 200, and returns its URL.
async fn service() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(async || ());
    tokio::spawn(async { axum::serve(listener, router).await });
    url
}
