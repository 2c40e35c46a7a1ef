//! Answers clients of a node that waits to become part of a cluster.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::http;

/// How many clients are answered at once. The others are disconnected.
const CLIENTS: usize = 64;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tells clients to ask another node, and what this one waits for. Ends when it is dropped. Without encryption: a client that expects it fails at once, too.
pub(crate) async fn turn_away(
    resp: &TcpListener,
    http: Option<&std::net::TcpListener>,
    waiting: &RefCell<String>,
) -> Infallible {
    let http = http.and_then(|http| http.try_clone().and_then(listen).ok());
    let mut clients = JoinSet::new();
    loop {
        let (accepted, is_http) = tokio::select! {
            accepted = resp.accept() => (accepted, false),
            accepted = accept(http.as_ref()) => (accepted, true),
            Some(_) = clients.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) if clients.len() < CLIENTS => {
                // It may quote another node.
                let what = waiting.borrow().replace(char::is_control, " ");
                let why = format!("this node serves no clients yet, ask another one: it {what}");
                clients.spawn_local(async move { drop(timeout(PATIENCE, answer(stream, is_http, why)).await) });
            }
            Ok(_) => {}
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

fn listen(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, std::net::SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn answer(mut stream: TcpStream, is_http: bool, why: String) -> io::Result<()> {
    let mut read = [0; 1024];
    let length = stream.read(&mut read).await?;
    let reply = match is_http {
        false => format!("-CLOSING {why}\r\n"),
        true => {
            // The process is alive, and not ready.
            let is_alive = read[..length].starts_with(b"GET /healthz");
            let (head, body) = match is_alive {
                true => ("200 OK\r\ncontent-type: text/plain", "ok\n".to_owned()),
                false => (
                    "503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1",
                    http::not_a_member_yet(&why),
                ),
            };
            format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        }
    };
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing a socket with unread bytes would reset the connection, and the reply would be lost.
    while stream.read(&mut read).await? > 0 {}
    Ok(())
}
