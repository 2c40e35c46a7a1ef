//! Answers clients of a node that waits to become part of a cluster.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How many clients are answered at once. The others are disconnected.
const CLIENTS: usize = 64;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(2);
const WHY: &str = "this node waits to become part of a cluster; ask another one";

/// Tells clients to ask another node. Ends when it is dropped. Without encryption: a client that expects it fails at once, too.
pub(crate) async fn turn_away(resp: &TcpListener, http: Option<&std::net::TcpListener>) -> Infallible {
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
                clients.spawn_local(async move { drop(timeout(PATIENCE, answer(stream, is_http)).await) });
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

async fn answer(mut stream: TcpStream, is_http: bool) -> io::Result<()> {
    let mut read = [0; 1024];
    let length = stream.read(&mut read).await?;
    let reply = match is_http {
        false => format!("-CLOSING {WHY}\r\n"),
        true => {
            // The process is alive, and not ready.
            let is_alive = read[..length].starts_with(b"GET /healthz");
            let (status, body) = if is_alive { ("200 OK", "ok\n") } else { ("503 Service Unavailable", WHY) };
            let (length, retry) = (body.len(), if is_alive { "" } else { "retry-after: 1\r\n" });
            format!(
                "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n{retry}connection: close\r\n\r\n{body}"
            )
        }
    };
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing a socket with unread bytes would reset the connection, and the reply would be lost.
    while stream.read(&mut read).await? > 0 {}
    Ok(())
}
