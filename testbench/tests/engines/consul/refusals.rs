//! Requests that an agent refuses while it answers others: a rate limit, or rights that an operator takes away.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use palisade::{ErrorKind, Options, Palisade};
use palisade_testbench::bounded::{until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{Fixture, LONG_TTL, check, take, taking, until_idle, until_queued};

const LIMITED: &str = "429 Too Many Requests";
const FORBIDDEN: &str = "403 Forbidden";
const DELETES: &str = r#""Verb":"delete""#;
const READS: &str = r#""Verb":"get-tree""#;

/// Requests that are refused.
#[derive(Clone, Copy)]
struct Refused {
    /// What their bodies contain.
    part: &'static str,
    status: &'static str,
    /// How many of them.
    count: usize,
}

/// An agent that refuses some requests, and passes the others on to a Consul.
#[derive(Clone)]
struct Agent {
    address: SocketAddr,
    refused: Arc<Mutex<Option<Refused>>>,
}

impl Agent {
    async fn start(consul: SocketAddr) -> Agent {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let agent = Agent { address: listener.local_addr().expect("an address"), refused: Arc::default() };
        let serving = agent.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (agent, server) = (serving.clone(), TcpStream::connect(consul).await.expect("a connection"));
                tokio::spawn(async move { agent.serve(client, server).await });
            }
        });
        agent
    }

    fn refuse(&self, part: &'static str, status: &'static str, count: usize) {
        *self.refused.lock().expect("no panic") = Some(Refused { part, status, count });
    }

    fn pass(&self) {
        *self.refused.lock().expect("no panic") = None;
    }

    /// Returns the status with which a request is refused.
    fn refusal(&self, request: &[u8]) -> Option<&'static str> {
        let mut refused = self.refused.lock().expect("no panic");
        let refused = refused.as_mut().filter(|refused| refused.count > 0)?;
        if !String::from_utf8_lossy(request).contains(refused.part) {
            return None;
        }
        refused.count -= 1;
        Some(refused.status)
    }

    /// Serves one connection. A client sends a request after the answer to the one before it.
    async fn serve(&self, client: TcpStream, server: TcpStream) {
        let ((mut from_client, to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        // The answers of the server and the refusals go to the client over one pipe.
        let (answers, mut all_answers) = tokio::io::duplex(1 << 20);
        let (_, answers) = tokio::io::split(answers);
        let answers = Arc::new(tokio::sync::Mutex::new(answers));
        let mut to_client = to_client;
        tokio::spawn(async move { copy(&mut all_answers, &mut to_client).await });
        let passing = answers.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                passing.lock().await.write_all(&buffer[..read]).await.expect("an open pipe");
            }
        });
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..read]);
            while let Some(length) = request_length(&bytes) {
                let request: Vec<_> = bytes.drain(..length).collect();
                match self.refusal(&request) {
                    None => to_server.write_all(&request).await.expect("an open connection"),
                    Some(status) => {
                        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\n\r\nrefused");
                        answers.lock().await.write_all(answer.as_bytes()).await.expect("an open pipe");
                    }
                }
            }
        }
    }
}

/// Returns the length of the first request, once it has arrived whole.
fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let body = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    Some(head + body.unwrap_or(0)).filter(|length| *length <= bytes.len())
}

async fn refused_client(fixture: &Fixture) -> (Palisade, Agent) {
    let agent = Agent::start(fixture.address).await;
    let client = Options::new().label("refused").ttl(LONG_TTL).connect(&fixture.url_at(agent.address)).await;
    (client.expect("a client"), agent)
}

/// The claim of an acquire that does not wait cannot be deleted at once.
#[test]
fn an_acquire_that_fails_while_its_claim_stands_is_undone_later() {
    check(async {
        let fixture = Fixture::shared();
        let ((alice, agent), bob) = (refused_client(&fixture).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        for (status, is_retryable) in [(LIMITED, true), (FORBIDDEN, false)] {
            agent.refuse(DELETES, status, usize::MAX);
            let error = alice.lock("lock").try_acquire().await.expect_err("its claim cannot be deleted");
            assert!(error.may_have_taken_effect() && error.is_retryable() == is_retryable, "{error}");
            until_queued(&bob, "lock", 1).await;
            agent.pass();
            until_queued(&bob, "lock", 0).await;
        }
        held.release().await.expect("it is held");
    });
}

/// Otherwise its claim would be granted later, although no caller waits for it.
#[test]
fn a_waiter_that_is_denied_leaves_the_queue() {
    check(async {
        let fixture = Fixture::shared();
        let ((alice, agent), bob) = (refused_client(&fixture).await, fixture.client(LONG_TTL).await);
        let is_denied = async |count: usize| {
            let held = take(&bob, "lock").await;
            let waiting = taking(&alice, "lock");
            until_queued(&bob, "lock", 1).await;
            agent.refuse(READS, FORBIDDEN, count);
            held.release().await.expect("it is held");
            let error = within("the wait ends", waiting).await.expect("no panic").expect_err("it is denied");
            assert!(!error.is_retryable(), "{error}");
            assert!(error.to_string().contains("does not let this client in"), "{error}");
            agent.pass();
            until_idle(&bob, "lock").await;
            assert!(bob.lock("lock").try_acquire().await.expect("an answer").is_some());
            matches!(error.kind(), ErrorKind::Denied { .. })
        };
        assert!(!is_denied(usize::MAX).await, "the cancel is denied too, so it may have taken effect");
        // The cancel is not denied. The keeper waits for it for a moment only.
        until("the error says that nothing has changed", async || is_denied(1).await).await;
    });
}
