//! A path has one spelling: the fence judges it, and the service gets exactly these bytes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use palisade_core::LockName;
use palisade_fence::http::{FenceLayer, Fenced, Forward, Limits, Marks, MemoryMarks, Scope};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, Service};

use super::fixture::Fixture;

/// A proxy in front of a service that writes down the targets of its requests, as they arrive.
struct Chain {
    proxy: SocketAddr,
    marks: MemoryMarks,
    targets: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// An answer.
struct Reply {
    status: u16,
    text: String,
}

impl Chain {
    async fn new(prefix: &str) -> Chain {
        let targets = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}{prefix}", upstream.local_addr().expect("an address"));
        tokio::spawn(record(upstream, targets.clone()));
        let marks = MemoryMarks::default();
        let layer = FenceLayer::with_limits(Scope::per_path(), marks.clone(), Limits::default());
        let forward = Forward::to(&address, Duration::from_secs(600), 1 << 20).expect("an address");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = listener.local_addr().expect("an address");
        tokio::spawn(serve(listener, layer.layer(forward)));
        Chain { proxy, marks, targets }
    }

    /// Sends a request whose target is exactly this, and reads the answer to its end.
    async fn send(&self, method: &str, target: &[u8], header: &str) -> Reply {
        let mut stream = TcpStream::connect(self.proxy).await.expect("a connection");
        let head = format!(" HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n{header}\r\n\r\n");
        let request = [method.as_bytes(), b" ", target, head.as_bytes()].concat();
        stream.write_all(&request).await.expect("it is sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an answer");
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        Reply { status: status.unwrap_or_else(|| panic!("no status: {text:?}")), text }
    }

    /// Seals with this token and writes; what the service got, if it got anything.
    async fn seal_and_write(&self, target: &[u8], token: u64) -> Option<Vec<u8>> {
        self.send("POST", target, &format!("Fencing-Token: {token}; seal")).await;
        self.targets.lock().expect("not poisoned").clear();
        self.send("PUT", target, &format!("Fencing-Token: {token}; seq=1")).await;
        let mut targets = self.targets.lock().expect("not poisoned");
        assert!(targets.len() <= 1, "{targets:?}");
        targets.pop()
    }
}

async fn serve(listener: TcpListener, fenced: Fenced<Forward>) {
    while let Ok((stream, _)) = listener.accept().await {
        let fenced = fenced.clone();
        let service = service_fn(move |request: Request<Incoming>| fenced.clone().call(request));
        tokio::spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Reads heads, whose bodies are empty, and answers them.
async fn record(listener: TcpListener, targets: Arc<Mutex<Vec<Vec<u8>>>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let targets = targets.clone();
        tokio::spawn(async move {
            let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                head.extend_from_slice(&buffer[..length]);
                if head.ends_with(b"\r\n\r\n") {
                    let target = head.split(|byte| *byte == b' ').nth(1).expect("a request line").to_vec();
                    targets.lock().expect("not poisoned").push(target);
                    head.clear();
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                }
            }
        });
    }
}

#[tokio::test]
async fn another_spelling_of_a_path_does_not_pass_the_mark() {
    let chain = Chain::new("").await;
    assert_eq!(chain.send("POST", b"/orders/42", "Fencing-Token: 50; seal").await.status, 200);
    for target in [
        r"/x\..\orders\42",
        r"/orders\42",
        "/x/../orders/42",
        "/./orders/42",
        "/orders//42",
        "/orders/42/",
        "/orders/%34%32",
        "/orders/%2e/42",
        "/x/%2E%2e/orders/42",
        "/orders%2F42",
        "/orders%5c42",
        "/orders/42;v=1",
        "//host/../orders/42",
    ] {
        for (method, header) in [("POST", "33; seal"), ("PUT", "33; seq=1"), ("GET", "33"), ("GET", "mark")] {
            let answered = chain.send(method, target.as_bytes(), &format!("Fencing-Token: {header}")).await;
            assert_eq!(answered.status, 400, "{method} {target}: {}", answered.text);
            assert!(answered.text.contains("the path "), "{method} {target}: {}", answered.text);
        }
    }
    for (plain, encoded) in [("/\"", "/%22"), ("/{a}", "/%7Ba%7D"), ("/ü", "/%C3%BC"), ("/a b", "/a%20b")] {
        assert_eq!(chain.send("POST", encoded.as_bytes(), "Fencing-Token: 50; seal").await.status, 200, "{encoded}");
        assert_eq!(chain.send("POST", plain.as_bytes(), "Fencing-Token: 33; seal").await.status, 400, "{plain}");
        assert_eq!(chain.send("PUT", encoded.as_bytes(), "Fencing-Token: 33; seq=1").await.status, 412, "{encoded}");
    }
    assert!(chain.targets.lock().expect("not poisoned").is_empty(), "nothing reached the service");
    let written = chain.seal_and_write(b"/orders/42?b=%2f&a='[1]'", 51).await;
    assert_eq!(written.as_deref(), Some(&b"/orders/42?b=%2f&a='[1]'"[..]));
}

#[tokio::test]
async fn the_folder_of_the_service_is_never_left() {
    let chain = Chain::new("/app").await;
    for method in ["GET", "OPTIONS", "PUT"] {
        for target in [
            "/../admin",
            r"/..\admin",
            "/%2e%2e/admin",
            "/.%2E/admin",
            "/a/../../admin",
            "/..;x/admin",
            "/..%2fadmin",
            "/%252e%252e/admin",
            r"\..\admin",
            "*",
        ] {
            let answered = chain.send(method, target.as_bytes(), "Fencing-Token: 1").await;
            assert_eq!(answered.status, 400, "{method} {target}: {}", answered.text);
        }
    }
    assert!(chain.targets.lock().expect("not poisoned").is_empty(), "nothing reached the service");
    for (target, expected) in [
        ("/", "/app/"),
        ("/a", "/app/a"),
        ("/a?x=../..", "/app/a?x=../.."),
        ("/a#b", "/app/a"),
        ("http://elsewhere/a", "/app/a"),
        ("http://elsewhere?x=1", "/app/?x=1"),
    ] {
        assert_eq!(chain.send("OPTIONS", target.as_bytes(), "X: y").await.status, 200, "{target}");
        let arrived = chain.targets.lock().expect("not poisoned").pop();
        assert_eq!(arrived.as_deref(), Some(expected.as_bytes()), "{target}");
    }
}

#[tokio::test]
async fn nothing_is_tunnelled() {
    let chain = Chain::new("").await;
    let answered = chain.send("CONNECT", b"127.0.0.1:22", "Fencing-Token: 1; seq=1").await;
    assert_eq!(answered.status, 400, "{}", answered.text);
    assert!(answered.text.contains("tunnel"), "{}", answered.text);
}

/// Any path that passes arrives unchanged, and its name is the one whose mark was raised.
#[test]
fn the_service_gets_the_path_that_was_checked() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let chains = runtime.block_on(async { [("", Chain::new("").await), ("/app", Chain::new("/app").await)] });
    let bytes = || proptest::sample::select(&b"ab/.%\\;?#2eEfF5cC0:@,\"{\xc3\xbc "[..]);
    let targets = proptest::collection::vec(bytes(), 0..10).prop_map(|rest| [&b"/"[..], &rest].concat());
    let (last_token, arrived) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 4 * ProptestConfig::default().cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&targets, |target| {
            let token = last_token.get() + 1;
            last_token.set(token);
            for (prefix, chain) in &chains {
                let Some(got) = runtime.block_on(chain.seal_and_write(&target, token)) else { continue };
                arrived.set(arrived.get() + 1);
                let sent = target.split(|byte| *byte == b'#').next().unwrap_or_default();
                prop_assert_eq!(&got, &[prefix.as_bytes(), sent].concat());
                let path = String::from_utf8(sent.split(|byte| *byte == b'?').next().unwrap_or_default().to_vec());
                let path = path.expect("ASCII");
                let name = path.strip_prefix('/').filter(|name| !name.is_empty()).unwrap_or("/");
                let name = LockName::new(name).expect("a name");
                let mark = runtime.block_on(chain.marks.peek(&name)).expect("marks").map(|mark| mark.token.get());
                prop_assert_eq!(mark, Some(token), "{}", name);
            }
            Ok(())
        })
        .expect("every target");
    assert!(arrived.get() > 100, "hardly anything passed: {}", arrived.get());
}

#[tokio::test]
async fn the_layer_refuses_the_same_paths() {
    let fixture = Fixture::new(Scope::per_path(), MemoryMarks::default(), Limits::default());
    assert_eq!(fixture.send(Method::POST, "/orders/42", "50; seal", "").await.status, 200);
    let seen = fixture.send(Method::POST, r"/x\..\orders\42", "33; seal", "").await;
    assert_eq!((seen.status.as_u16(), seen.verdict.as_str()), (400, "malformed"), "{}", seen.body);
    assert!(seen.body.contains("backslash"), "{}", seen.body);
}
