//! No client occupies a slot forever.

use std::io::{Read, Write};
use std::net::TcpStream;

use reqwest::Method;
use rustix::process::Signal;

use super::proxy::Proxy;
use super::upstream::Upstream;
use crate::common::bounded::TIMEOUT;
use crate::sandbox::Sandbox;

/// The proxy's connection limit.
const CONNECTION_LIMIT: usize = 1024;

#[tokio::test]
async fn requests_whose_bodies_do_not_arrive_free_their_slots() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy =
        Proxy::start(&sandbox, &upstream.url(), &["--time-out", "2s", "--open", "/log", "--store", "memory:"]);
    let heads = [
        "OPTIONS /log HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        "POST /log HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
        "PUT /log HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nFencing-Token: 1; seq=1\r\n\r\n4\r\n",
    ];
    let open = |number: usize| {
        let mut stream = TcpStream::connect(proxy.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(heads[number % heads.len()].as_bytes()).unwrap();
        stream
    };
    let mut held: Vec<TcpStream> = (0..CONNECTION_LIMIT).map(open).collect();
    assert_eq!(proxy.send(Method::GET, "/log", "", "").await.status(), 200);
    for stream in held.iter_mut().take(heads.len()) {
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 408");
    }
    assert!(upstream.log().is_empty());
}

/// A proxy that is asked to stop exits when the last client is gone or was disconnected.
#[tokio::test]
async fn clients_that_do_not_read_their_replies_are_disconnected() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let proxy =
        Proxy::start(&sandbox, &upstream.url(), &["--time-out", "5s", "--open", "/large", "--store", "memory:"]);
    let mut silent = TcpStream::connect(proxy.address).unwrap();
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    silent.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    // Its answer has begun.
    silent.peek(&mut [0; 1]).unwrap();
    proxy.signal(Signal::TERM);
    assert_eq!(tokio::task::spawn_blocking(|| proxy.end()).await.unwrap(), Some(0));
    let mut got = Vec::new();
    let _ = silent.read_to_end(&mut got);
    assert!(got.len() < 20 << 20, "it got everything: {}", got.len());
}
