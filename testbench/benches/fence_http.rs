//! What the HTTP layer costs: `scripts/bench fence_http`.
//!
//! An axum service with and without the layer, asked by turns in the same run and without a network, so that nothing but
//! the layer differs.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request};
use axum::routing::get;
use palisade_fence::http::{FENCING_TOKEN, FenceLayer, Marks, MemoryMarks, Scope, SqliteMarks};
use tower::ServiceExt;

const ROUNDS: u64 = 20_000;

fn service() -> Router {
    Router::new().route("/orders", get(async || "an order").put(async |body: String| body))
}

/// Asks once; how long the answer took.
async fn ask(app: &Router, method: Method, header: String) -> Duration {
    let request = Request::builder().method(method).uri("/orders").header(FENCING_TOKEN, header);
    let request = request.body(Body::from("rope")).unwrap();
    let began = Instant::now();
    let response = app.clone().oneshot(request).await.unwrap();
    let took = began.elapsed();
    assert!(response.status().is_success(), "{response:?}");
    took
}

fn median(mut samples: Vec<Duration>) -> f64 {
    samples.sort();
    samples[samples.len() / 2].as_nanos() as f64 / 1000.0
}

async fn compare(name: &str, marks: impl Marks, rounds: u64) {
    let fenced = service().layer(FenceLayer::new(Scope::one("orders").unwrap(), marks));
    let plain = service();
    ask(&fenced, Method::POST, "34; seal".to_owned()).await;
    let mut samples = [const { Vec::new() }; 4];
    for seq in 1..=rounds {
        for (samples, app) in samples.iter_mut().zip([&plain, &fenced]) {
            samples.push(ask(app, Method::GET, "34".to_owned()).await);
        }
        for (samples, app) in samples[2..].iter_mut().zip([&plain, &fenced]) {
            samples.push(ask(app, Method::PUT, format!("34; seq={seq}")).await);
        }
    }
    let [read, fenced_read, write, fenced_write] = samples.map(median);
    println!("{name:<8} read   {read:>8.1} µs  fenced {fenced_read:>8.1} µs  adds {:>8.1} µs", fenced_read - read);
    println!(
        "{name:<8} write  {write:>8.1} µs  fenced {fenced_write:>8.1} µs  adds {:>8.1} µs",
        fenced_write - write
    );
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        compare("memory", MemoryMarks::default(), ROUNDS).await;
        let marks = SqliteMarks::open(directory.path().join("marks.db")).unwrap();
        compare("sqlite", marks, ROUNDS / 10).await;
    });
}
