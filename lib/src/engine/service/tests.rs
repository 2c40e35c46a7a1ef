//! Tests of a connection over streams that fail or buffer bytes, and of a client whose service is the test.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use palisade_core::{Acquire, Caller, Event, Label, LockName, Patience, Refusal, RequestNo, SessionId, Token, Ttl};
use rustls::AlertDescription;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf, duplex, split,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::connection::{CALL_TIMEOUT, Connection, Stream};
use super::wire::{self, Command};
use super::{Config, Service, ServiceBackend};
use crate::Options;
use crate::engine::remote::{ClientState, Peer, SecurityError};
use crate::engine::{Acquired, Cancelled, Engine, Failure, Opened, Released, Watched};

fn connection() -> Connection {
    Connection::new(Peer::new("the service", "host:1".to_owned()), Rc::default())
}

fn ping() -> Command {
    Command::new(&["PING"])
}

/// A writer that sends no bytes before it is flushed.
struct Buffering<W> {
    buffered: Vec<u8>,
    inner: W,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Buffering<W> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.buffered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while !this.buffered.is_empty() {
            let sent = ready!(Pin::new(&mut this.inner).poll_write(cx, &this.buffered))?;
            this.buffered.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn an_encrypted_stream_is_flushed_after_a_write() {
    let (near, mut far) = duplex(8);
    let (reader, writer) = split(near);
    let writer = Box::new(Buffering { buffered: Vec::new(), inner: writer });
    let connection = connection();
    let answer = connection.request(&ping(), CALL_TIMEOUT);
    let service = async {
        let mut ping = [0; 14];
        far.read_exact(&mut ping).await.expect("a command");
        far.write_all(b"+PONG\r\n").await.expect("an open stream");
        std::future::pending::<()>().await;
    };
    let answer = tokio::select! {
        biased;
        answer = answer => answer.expect("a reply"),
        error = connection.drive(Stream { reader: Box::new(reader), writer, is_encrypted: true }) => panic!("{error}"),
        () = service => unreachable!("it does not end"),
    };
    assert!(wire::is_text(&answer, "PONG"));
}

/// A stream that fails every write, with a TLS alert as the reason to be read.
struct FailingStream;

impl AsyncWrite for FailingStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for FailingStream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
    }
}

#[tokio::test]
async fn the_reason_for_a_failed_write_is_read_before_the_connection_breaks() {
    let connection = connection();
    drop(connection.request(&ping(), CALL_TIMEOUT));
    let error = connection
        .drive(Stream { reader: Box::new(FailingStream), writer: Box::new(FailingStream), is_encrypted: true })
        .await;
    let Failure::Unavailable(failure) = error.failure(false) else { panic!("{error}") };
    let cause = failure.source.as_ref().and_then(|source| source.downcast_ref());
    assert_eq!(cause, Some(&SecurityError::CertificateNeeded), "{error}");
}

/// An encrypted stream may have sent a part of a failed write, a plain one has not.
#[tokio::test]
async fn a_command_that_may_have_been_sent_may_have_taken_effect() {
    for is_encrypted in [true, false] {
        let connection = connection();
        let answer = connection.request(&ping(), CALL_TIMEOUT);
        let reader = Box::new(tokio::io::empty());
        drop(connection.drive(Stream { reader, writer: Box::new(FailingStream), is_encrypted }).await);
        match answer.await {
            Err(no_reply) => assert_eq!(no_reply.may_have_taken_effect, is_encrypted),
            other => panic!("{other:?}"),
        }
    }
}

/// The service answers in the order of the commands, and pushes at once: an event may come before the reply to the watch.
#[tokio::test]
async fn watchers_learn_that_they_missed_events_before_the_first_event_of_a_new_connection() {
    let event = Event::Resized { lock: LockName::new("a").expect("a name"), limit: 3 };
    let json = serde_json::to_string(&event).expect("an event");
    let push = format!(">3\r\n$5\r\nevent\r\n%0\r\n${}\r\n{json}\r\n", json.len());
    for is_attached in [false, true] {
        let client: Rc<ClientState<ServiceBackend>> = Rc::default();
        let mut watch = client.watch("");
        let connection = Connection::new(Peer::new("the service", "host:1".to_owned()), client);
        if is_attached {
            connection.attached();
        }
        let (near, mut far) = duplex(4096);
        far.write_all(push.as_bytes()).await.expect("an open stream");
        drop(far);
        let (reader, writer) = split(near);
        let stream = Stream { reader: Box::new(reader), writer: Box::new(writer), is_encrypted: false };
        drop(connection.drive(stream).await);
        let expected = [Watched::Missed, Watched::Event(event.clone())];
        for expected in &expected[usize::from(is_attached)..] {
            assert_eq!(watch.recv().await.as_ref(), Some(expected));
        }
    }
}

/// A node of the service. The test sends its replies.
struct Node {
    listener: TcpListener,
}

impl Node {
    async fn new() -> Node {
        Node { listener: TcpListener::bind("127.0.0.1:0").await.expect("a port") }
    }

    /// Accepts the next connection.
    async fn accept(&self) -> NodeConnection {
        let (stream, _) = self.listener.accept().await.expect("a connection");
        NodeConnection { stream: BufReader::new(stream) }
    }

    /// Accepts the next connection, and its login as the leader of three nodes.
    async fn log_in(&self) -> NodeConnection {
        let mut connection = self.accept().await;
        connection.answer("HELLO", "%3\r\n+server\r\n+palisade\r\n+role\r\n+master\r\n+nodes\r\n:3\r\n").await;
        connection.answer("CLIENT DETAIL", "+OK\r\n").await;
        connection
    }

    /// Accepts the next connection, its login, and its session, which holds nothing.
    async fn attach(&self) -> NodeConnection {
        let mut connection = self.log_in().await;
        connection.answer("SESSION ATTACH 7", "%1\r\n+held\r\n*0\r\n").await;
        connection
    }
}

/// The node's end of a connection. Dropping it closes the connection.
struct NodeConnection {
    stream: BufReader<TcpStream>,
}

impl NodeConnection {
    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.expect("an open stream");
        line.trim_end().to_owned()
    }

    /// Receives the next command, which must begin with these words.
    async fn receive(&mut self, expected: &str) {
        let count = self.line().await;
        let count: usize = count.strip_prefix('*').and_then(|count| count.parse().ok()).expect("a command");
        let mut words = Vec::new();
        for _ in 0..count {
            // The length of the word comes first. No word here contains the end of a line.
            self.line().await;
            words.push(self.line().await);
        }
        let command = words.join(" ");
        assert!(command.starts_with(expected), "{command} instead of {expected}");
    }

    async fn answer(&mut self, expected: &str, reply: &str) {
        self.receive(expected).await;
        self.send(reply).await;
    }

    async fn send(&mut self, reply: &str) {
        self.stream.write_all(reply.as_bytes()).await.expect("an open stream");
    }

    async fn open_session(&mut self) {
        self.answer("SESSION OPEN", "%1\r\n+session\r\n:7\r\n").await;
    }
}

/// Returns the addresses of nodes, as in a URL.
fn addresses(nodes: &[&Node]) -> String {
    let address = |node: &&Node| node.listener.local_addr().expect("an address").to_string();
    format!("//{}", nodes.iter().map(address).collect::<Vec<_>>().join(","))
}

/// Connects a client to these nodes, the first of which serves it, and opens session 7, which the client uses until it is
/// dropped.
async fn open_session(nodes: &[&Node]) -> (Service, Opened, NodeConnection) {
    let config = Config::parse(&addresses(nodes)).expect("a URL");
    let (service, mut connection) = tokio::join!(Service::connect(config), nodes[0].log_in());
    let service = service.expect("it is served");
    let opened = service.open_session(Ttl::from_ms(60_000).expect("a TTL"), Label::new("a test"));
    let (opened, ()) = tokio::join!(opened, connection.open_session());
    let opened = opened.expect("it is opened");
    assert_eq!(opened.session, session());
    (service, opened, connection)
}

fn session() -> SessionId {
    SessionId::new(7).expect("not 0")
}

fn lock() -> LockName {
    LockName::new("lock").expect("a name")
}

/// The first acquire of the session.
fn acquire(patience: Patience) -> Acquire {
    let caller = Caller { session: session(), number: RequestNo::new(1).ok() };
    Acquire { patience, ..Acquire::exclusive(caller, lock()) }
}

/// Runs a test as the keeper's thread would.
async fn on_the_keepers_thread(test: impl Future<Output = ()>) {
    let tasks = LocalSet::new();
    let bounded = tokio::time::timeout(Duration::from_secs(300), tasks.run_until(test));
    bounded.await.expect("the client sends what the node waits for, and the node what the client waits for");
}

/// The service has queued it, and grants it later unless the keeper cancels it.
#[tokio::test]
async fn a_waiting_acquire_that_a_permanent_error_ends_may_have_taken_effect() {
    for refusal in ["-WRONGPASS the secret was changed\r\n", "-ERR unknown command\r\n"] {
        on_the_keepers_thread(async {
            let node = Node::new().await;
            let (service, _session, mut connection) = open_session(&[&node]).await;
            let (outcome, ()) = tokio::join!(service.acquire(acquire(Patience::Wait)), async {
                connection.answer("LOCK ACQUIRE lock", "+QUEUED\r\n").await;
                drop(connection);
                node.accept().await.answer("HELLO", refusal).await;
            });
            let failure = outcome.expect_err("no service lets the client in");
            assert!(failure.may_have_taken_effect() && !failure.is_retryable(), "{refusal}{failure:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn the_keeper_cancels_a_waiting_acquire_that_a_permanent_error_ends() {
    on_the_keepers_thread(async {
        let node = Node::new().await;
        // Long enough that the session needs no keep-alive here.
        let options = Options::new().ttl(Duration::from_secs(600));
        let url = format!("palisade:{}", addresses(&[&node]));
        let (client, mut connection) = tokio::join!(options.connect(&url), async {
            let mut connection = node.log_in().await;
            connection.open_session().await;
            connection
        });
        let client = client.expect("it is served");
        let (acquired, ()) = tokio::join!(client.lock("lock").acquire(), async {
            connection.answer("LOCK ACQUIRE lock", "+QUEUED\r\n").await;
            drop(connection);
            node.accept().await.answer("HELLO", "-WRONGPASS the secret was changed\r\n").await;
        });
        let error = acquired.map(drop).expect_err("the service does not let the client in");
        assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
        let mut connection = node.attach().await;
        connection.answer("LOCK CANCEL SESSION 7 REQ", "_\r\n").await;
        let (closed, ()) = tokio::join!(client.close(), connection.answer("SESSION CLOSE 7", "+OK\r\n"));
        closed.expect("it is closed");
    })
    .await;
}

#[tokio::test]
async fn an_acquire_whose_repeat_is_denied_may_have_taken_effect() {
    on_the_keepers_thread(async {
        let (node, other) = (Node::new().await, Node::new().await);
        let (service, _session, mut connection) = open_session(&[&node, &other]).await;
        let (outcome, ()) = tokio::join!(service.acquire(acquire(Patience::Try)), async {
            connection.receive("LOCK ACQUIRE lock").await;
            drop(connection);
            node.attach().await.answer("LOCK ACQUIRE lock", "-DENIED the right was withdrawn\r\n").await;
        });
        let failure = outcome.expect_err("the repeat is denied");
        assert!(failure.may_have_taken_effect() && !failure.is_retryable(), "{failure:?}");
    })
    .await;
}

/// The session is over, so nothing is left to be undone.
#[tokio::test]
async fn an_acquire_whose_repeat_finds_its_session_ended_has_no_effect() {
    on_the_keepers_thread(async {
        let (node, other) = (Node::new().await, Node::new().await);
        let (service, _session, mut connection) = open_session(&[&node, &other]).await;
        let (outcome, ()) = tokio::join!(service.acquire(acquire(Patience::Try)), async {
            connection.receive("LOCK ACQUIRE lock").await;
            drop(connection);
            let refusal = Refusal::NoSuchSession { session: session() };
            let detail = serde_json::to_string(&refusal).expect("it can be written");
            let mut connection = node.attach().await;
            connection.answer("LOCK ACQUIRE lock", &format!("-NOSESSION it has ended\t{detail}\r\n")).await;
        });
        let failure = outcome.expect_err("the session has ended");
        assert!(matches!(failure, Failure::SessionEnded), "{failure:?}");
    })
    .await;
}

/// The first copy was granted unseen, and the reply to the cancel says so.
#[tokio::test]
async fn a_grant_that_the_cancel_of_a_failed_acquire_finds_is_delivered() {
    on_the_keepers_thread(async {
        let node = Node::new().await;
        let (service, _session, mut connection) = open_session(&[&node]).await;
        let (outcome, mut connection) = tokio::join!(service.acquire(acquire(Patience::Wait)), async {
            connection.receive("LOCK ACQUIRE lock").await;
            drop(connection);
            let mut connection = node.attach().await;
            connection.answer("LOCK ACQUIRE lock", "-DENIED the right was withdrawn\r\n").await;
            connection.answer("LOCK CANCEL SESSION 7 REQ 1", ":5\r\n").await;
            connection
        });
        let token = Token::new(5).expect("not 0");
        assert_eq!(outcome.expect("it was granted"), Acquired::Granted { token });
        let (released, ()) = tokio::join!(
            service.release(session(), lock(), token),
            connection.answer("LOCK RELEASE lock 5", "+OK\r\n")
        );
        assert_eq!(released.expect("it is held"), Released::Now);
    })
    .await;
}

#[tokio::test]
async fn a_node_that_refuses_the_client_does_not_keep_it_from_the_others() {
    for refusal in ["-WRONGPASS no such user\r\n", "-ERR unknown command\r\n"] {
        on_the_keepers_thread(async {
            let (node, refusing) = (Node::new().await, Node::new().await);
            let config = Config::parse(&addresses(&[&refusing, &node])).expect("a URL");
            let serving = async {
                refusing.accept().await.answer("HELLO", refusal).await;
                let _connection = node.log_in().await;
                std::future::pending::<()>().await;
            };
            let service = tokio::select! {
                service = Service::connect(config) => service,
                () = serving => unreachable!("it does not end"),
            };
            service.map(drop).expect("the second node serves it");
        })
        .await;
    }
}

/// The node that led may lead again, or another one soon.
#[tokio::test]
async fn a_wait_outlasts_a_node_that_refuses_the_client_while_the_others_are_away() {
    on_the_keepers_thread(async {
        let (node, refusing, killed) = (Node::new().await, Node::new().await, Node::new().await);
        let (service, _session, mut connection) = open_session(&[&node, &refusing, &killed]).await;
        drop(killed);
        let (outcome, _connection) = tokio::join!(service.acquire(acquire(Patience::Wait)), async {
            connection.answer("LOCK ACQUIRE lock", "+QUEUED\r\n").await;
            drop(connection);
            // As the one that leads, and as one that relays.
            drop(node.accept().await);
            refusing.accept().await.answer("HELLO", "-WRONGPASS no such user\r\n").await;
            drop(node.accept().await);
            let mut connection = node.attach().await;
            connection.answer("LOCK ACQUIRE lock", "%1\r\n+token\r\n:5\r\n").await;
            connection
        });
        let token = Token::new(5).expect("not 0");
        assert_eq!(outcome.expect("it still waits"), Acquired::Granted { token });
    })
    .await;
}

/// A push has granted it while the reply to the cancel was on its way.
#[tokio::test]
async fn a_grant_that_a_push_has_delivered_is_not_released_when_a_cancel_finds_it_too() {
    on_the_keepers_thread(async {
        let node = Node::new().await;
        let (service, _session, mut connection) = open_session(&[&node]).await;
        let (outcome, mut connection) = tokio::join!(service.acquire(acquire(Patience::Wait)), async {
            connection.receive("LOCK ACQUIRE lock").await;
            drop(connection);
            let mut connection = node.attach().await;
            connection.answer("LOCK ACQUIRE lock", "-DENIED the right was withdrawn\r\n").await;
            connection.answer("LOCK CANCEL SESSION 7 REQ 1", ">4\r\n+granted\r\n:7\r\n:1\r\n:5\r\n:5\r\n").await;
            connection
        });
        let token = Token::new(5).expect("not 0");
        assert_eq!(outcome.expect("it was granted"), Acquired::Granted { token });
        // No release comes first.
        let (kept, ()) =
            tokio::join!(service.keep_alive(session()), connection.answer("SESSION KEEPALIVE 7", "*1\r\n:60000\r\n"));
        kept.expect("the session is open");
    })
    .await;
}

/// The caller is gone, and the keeper's cancel came before the grant. The store has forgotten the request.
#[tokio::test]
async fn a_grant_without_a_caller_is_released_until_the_service_has_done_so() {
    on_the_keepers_thread(async {
        let node = Node::new().await;
        let (service, _session, mut connection) = open_session(&[&node]).await;
        let mut acquiring = Box::pin(service.acquire(acquire(Patience::Wait)));
        let received = async { connection.receive("LOCK ACQUIRE lock").await };
        tokio::select! {
            outcome = &mut acquiring => panic!("{outcome:?}"),
            () = received => {}
        }
        drop(connection);
        let mut connection = node.attach().await;
        connection.receive("LOCK ACQUIRE lock").await;
        drop(acquiring);
        connection.send("-DENIED the right was withdrawn\r\n").await;
        connection.answer("LOCK CANCEL SESSION 7 REQ 1", ":5\r\n").await;
        connection.answer("LOCK RELEASE lock 5", "-LIMIT too many requests\r\n").await;
        connection.receive("LOCK RELEASE lock 5").await;
        drop(connection);
        let mut connection = node.attach().await;
        connection.answer("LOCK RELEASE lock 5", "+OK\r\n").await;
        let (kept, ()) =
            tokio::join!(service.keep_alive(session()), connection.answer("SESSION KEEPALIVE 7", "*1\r\n:60000\r\n"));
        kept.expect("the session is open");
    })
    .await;
}

/// A store that answers a second cancel as if nothing were held would keep the lock until the session ends.
#[tokio::test]
async fn a_grant_that_a_cancel_has_found_is_found_again_when_its_caller_goes_away_before_it_has_the_grant() {
    on_the_keepers_thread(async {
        let node = Node::new().await;
        let (service, _session, mut connection) = open_session(&[&node]).await;
        let mut acquiring = Box::pin(service.acquire(acquire(Patience::Wait)));
        let received = async { connection.receive("LOCK ACQUIRE lock").await };
        tokio::select! {
            outcome = &mut acquiring => panic!("{outcome:?}"),
            () = received => {}
        }
        drop(connection);
        let mut connection = node.attach().await;
        connection.answer("LOCK ACQUIRE lock", "-DENIED the right was withdrawn\r\n").await;
        connection.answer("LOCK CANCEL SESSION 7 REQ 1", ":5\r\n").await;
        // The caller is not polled any more. The reply to a keep-alive comes after that to the cancel.
        let (kept, ()) =
            tokio::join!(service.keep_alive(session()), connection.answer("SESSION KEEPALIVE 7", "*1\r\n:60000\r\n"));
        kept.expect("the session is open");
        tokio::task::yield_now().await;
        drop(acquiring);
        let token = Token::new(5).expect("not 0");
        let number = RequestNo::new(1).expect("not 0");
        let answering = async {
            connection.answer("LOCK CANCEL SESSION 7 REQ 1", "_\r\n").await;
            std::future::pending::<()>().await;
        };
        let cancelled = tokio::select! {
            cancelled = service.cancel(session(), number) => cancelled,
            () = answering => unreachable!("it does not end"),
        };
        assert_eq!(cancelled.expect("an answer"), Cancelled::WasGranted { token });
        let (released, ()) = tokio::join!(
            service.release(session(), lock(), token),
            connection.answer("LOCK RELEASE lock 5", "+OK\r\n")
        );
        assert_eq!(released.expect("it is held"), Released::Now);
    })
    .await;
}
