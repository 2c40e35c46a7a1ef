//! Requests that the proxy forwards and refuses, and its shutdown.

use std::io::{Read, Write};

use palisade_fence::{Seal, Settled, Token};
use reqwest::Method;
use rustix::process::Signal;
use tokio::time::timeout;

use super::proxy::{Proxy, verdict};
use super::upstream::Upstream;
use crate::common::bounded::TIMEOUT;
use crate::common::{free_address, http_client};
use crate::sandbox::Sandbox;

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

#[tokio::test]
async fn a_service_that_cannot_be_changed_is_fenced() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &[]);
    assert_eq!(proxy.send(Method::POST, "/log", "", "mine").await.status(), 428);
    let api = proxy.api().for_lock("orders").unwrap();
    let mut paused = api.seal(token(33)).await.unwrap();
    let added = paused.post("/log", "one").await.unwrap();
    assert_eq!((added.status.as_u16(), &*added.body), (201, &b"added"[..]));
    assert_eq!(added.headers["location"], "/log/last");
    let newer = api.seal(token(34)).await.unwrap();
    assert_eq!(&*newer.get("/log").await.unwrap().body, b"one");
    assert_eq!(paused.post("/log", "two").await.unwrap_err().overtaken_by(), Some(token(34)));
    assert_eq!(paused.get("/log").await.unwrap_err().overtaken_by(), Some(token(34)));
    assert_eq!(newer.get("/nothing").await.unwrap().status, 404, "the service's own answer");
    assert_eq!(upstream.log(), ["one"]);
}

#[tokio::test]
async fn marks_and_answers_outlive_the_proxy() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &[]);
    proxy.send(Method::POST, "/", "33; seal", "").await;
    proxy.send(Method::POST, "/log", "33; seq=1", "one").await;
    proxy.kill();
    let proxy = Proxy::start(&sandbox, &upstream.url(), &[]);
    let again = proxy.send(Method::POST, "/log", "33; seq=1", "one").await;
    assert_eq!((again.status().as_u16(), verdict(&again)), (201, "repeated"));
    assert_eq!(proxy.send(Method::POST, "/", "32; seal", "").await.status(), 412);
    assert_eq!(upstream.log(), ["one"]);
}

#[tokio::test]
async fn a_write_that_did_not_reach_the_service_can_be_sent_again() {
    let (sandbox, at) = (Sandbox::new(), free_address());
    let proxy = Proxy::start(&sandbox, &format!("http://{at}"), &[]);
    proxy.send(Method::POST, "/", "33; seal", "").await;
    for method in [Method::POST, Method::POST, Method::GET, Method::OPTIONS] {
        let header = if method == Method::POST { "33; seq=1" } else { "33" };
        let failed = proxy.send(method.clone(), "/log", header, "one").await;
        assert_eq!((failed.status().as_u16(), verdict(&failed)), (502, "not-sent"), "{method}");
    }
    let upstream = Upstream::start_at(at);
    let sent = proxy.send(Method::POST, "/log", "33; seq=1", "one").await;
    assert_eq!((sent.status().as_u16(), verdict(&sent)), (201, "admitted"));
    assert_eq!(upstream.log(), ["one"]);
}

#[tokio::test]
async fn a_client_settles_a_write_that_did_not_reach_the_service() {
    let (sandbox, at) = (Sandbox::new(), free_address());
    let proxy = Proxy::start(&sandbox, &format!("http://{at}"), &["--store", "memory:"]);
    let mut api = proxy.api().seal(token(33)).await.unwrap();
    assert!(api.get("/log").await.unwrap_err().is_retryable());
    let error = api.post("/log", "one").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(api.settle().await.unwrap(), Settled::NeverApplied, "a copy of it may be on its way");
    let upstream = Upstream::start_at(at);
    assert_eq!(api.post("/log", "two").await.unwrap().status, 201);
    assert_eq!(upstream.log(), ["two"]);
}

/// The service reads the request and closes the connection: the outcome is unknown.
#[tokio::test]
async fn a_write_is_of_unknown_outcome_if_the_service_closes_the_connection() {
    let sandbox = Sandbox::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let proxy = Proxy::start(&sandbox, &url, &["--shut-for", "0s"]);
    proxy.send(Method::POST, "/", "33; seal", "").await;
    for header in ["33; seq=1", "33; seq=1", "33; seq=2", "33; seq=1; settle"] {
        let unknown = proxy.send(Method::POST, "/log", header, "one").await;
        assert_eq!((unknown.status().as_u16(), verdict(&unknown)), (500, "unknown"), "{header}");
    }
    assert_eq!(verdict(&proxy.send(Method::POST, "/", "34; seal", "").await), "sealed; token=34; seq=0");
}

#[tokio::test]
async fn a_resource_refuses_requests_after_a_write_that_was_not_answered() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let options = ["--time-out", "2s", "--shut-for", "1h"];
    let proxy = Proxy::start(&sandbox, &upstream.url(), &options);
    let mut api = proxy.api().seal(token(33)).await.unwrap();
    let error = api.post("/slow", "one").await.unwrap_err();
    assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
    assert!(api.settle().await.unwrap_err().may_have_taken_effect());
    let shut = proxy.send(Method::POST, "/", "34; seal", "").await;
    assert_eq!((shut.status().as_u16(), verdict(&shut).split(';').next()), (503, Some("shut")));
    proxy.kill();
    let proxy = Proxy::start(&sandbox, &upstream.url(), &options);
    assert_eq!(proxy.send(Method::POST, "/", "34; seal", "").await.status(), 503, "the time begins again");
    drop(proxy);
    let proxy = Proxy::start(&sandbox, &upstream.url(), &["--shut-for", "0s"]);
    assert_eq!(proxy.send(Method::POST, "/", "34; seal", "").await.status(), 200);
}

#[tokio::test]
async fn hop_by_hop_headers_are_not_forwarded() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &["--open", "/headers", "--store", "memory:"]);
    let request = http_client().get(format!("http://{}/headers", proxy.address));
    let request = request.header("connection", "x-user, authorization, close").header("x-user", "alice");
    let request = request.header("authorization", "Bearer 1").header("te", "trailers").header("keep-alive", "1");
    let response = request.header("upgrade", "websocket").header("x-yours", "2").send().await.unwrap();
    let (received, answered) = (upstream.headers.lock().unwrap().clone(), response.headers());
    for name in ["te", "upgrade", "keep-alive", "connection"] {
        assert!(!received.contains_key(name), "{name}: {received:?}");
    }
    let host = proxy.address.to_string();
    let expected = [
        // `Connection` cannot remove end-to-end headers, which a proxy in front of this one may have set.
        ("x-user", "alice"),
        ("authorization", "Bearer 1"),
        ("x-yours", "2"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", &host),
        ("via", "1.1 palisade"),
    ];
    for (name, value) in expected {
        assert_eq!(received[name], *value, "{name}");
    }
    assert_eq!(received["host"], upstream.address.to_string());
    assert_eq!(answered["x-outer"], "public");
    assert!(!answered.contains_key("x-inner") && !answered.contains_key("keep-alive"), "{answered:?}");
}

#[tokio::test]
async fn large_answers_stream_and_large_requests_are_refused() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &["--max-body", "1000", "--store", "memory:"]);
    proxy.send(Method::POST, "/", "33; seal", "").await;
    let large = proxy.send(Method::GET, "/large", "33", "").await;
    assert_eq!(large.bytes().await.unwrap().len(), 20 << 20);
    let refused = proxy.send(Method::POST, "/log", "33; seq=1", &"x".repeat(1001)).await;
    assert_eq!((refused.status().as_u16(), verdict(&refused)), (413, "too-large"));
    assert_eq!(proxy.send(Method::POST, "/log", "33; seq=1", &"x".repeat(1000)).await.status(), 201);
}

#[tokio::test]
async fn shutdown_finishes_requests_that_are_under_way() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &[]);
    let mut api = proxy.api().seal(token(33)).await.unwrap();
    let write = tokio::spawn(async move { api.post("/slow", "one").await });
    let mut arrived = upstream.arrived.subscribe();
    let arrival = timeout(TIMEOUT, arrived.wait_for(|arrived| *arrived == 1));
    arrival.await.expect("the write arrives").unwrap();
    proxy.signal(Signal::TERM);
    // When connections are refused, the shutdown has begun.
    let refusal = async {
        while tokio::net::TcpStream::connect(proxy.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, refusal).await.expect("connections are refused");
    upstream.permits.add_permits(1);
    assert_eq!(&*write.await.unwrap().unwrap().body, b"done");
    assert_eq!(tokio::task::spawn_blocking(|| proxy.end()).await.unwrap(), Some(0));
    let proxy = Proxy::start(&sandbox, &upstream.url(), &[]);
    assert_eq!(verdict(&proxy.send(Method::POST, "/", "33; seq=1; settle", "").await), "gap; expected=2");
}

#[tokio::test]
async fn each_path_can_have_its_own_lock() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &["--per-path", "--store", "memory:"]);
    assert_eq!(proxy.send(Method::POST, "/log", "33; seal", "").await.status(), 200);
    assert_eq!(proxy.send(Method::POST, "/log", "33; seq=1; lock=\"log\"", "x").await.status(), 201);
    assert_eq!(proxy.send(Method::GET, "/large", "33", "").await.status(), 409);
    assert_eq!(proxy.send(Method::POST, "/./log", "33; seq=2", "x").await.status(), 201, "as reqwest writes it");
}

#[tokio::test]
async fn check_reads_the_marks_of_a_proxy() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &[]);
    proxy.send(Method::POST, "/", "34; seal", "").await;
    proxy.send(Method::POST, "/log", "34; seq=1", "one").await;
    let check = |resource| ["fence", "check", "sqlite:marks.db", resource];
    let busy = sandbox.run(&check("orders"));
    assert_eq!(busy.code, Some(69), "{busy:?}");
    assert!(busy.err.contains("palisade fence check http://ADDRESS"), "{busy:?}");
    proxy.kill();
    let expected = "orders is sealed with token 34; the last numbered write under it is 1.\n";
    assert_eq!(sandbox.stdout(&check("orders")), expected);
    assert_eq!(sandbox.stdout(&check("others")), "Nothing has sealed others yet.\n");
    let refused = sandbox.run(&[&check("orders")[..], &["--token", "33"]].concat());
    assert!(refused.code == Some(76) && refused.out.contains("token 34 has sealed it"), "{refused:?}");
}

#[tokio::test]
async fn an_http_1_0_service_can_be_fenced() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nold").unwrap();
    });
    let sandbox = Sandbox::new();
    let proxy = Proxy::start(&sandbox, &url, &["--open", "/", "--store", "memory:"]);
    let response = proxy.send(Method::GET, "/", "", "").await;
    assert_eq!(response.version(), reqwest::Version::HTTP_11);
    assert_eq!(response.text().await.unwrap(), "old");
}
