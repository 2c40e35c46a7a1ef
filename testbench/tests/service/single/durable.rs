//! Nothing is acknowledged before it is durable, shown on a disk that holds its flushes back.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use palisade_server::{Config, Http, Listeners, serve_on};
use palisade_testbench::bounded::BOUND;
use palisade_testbench::faulty_disk::FaultyDisk;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Longer than a write may take before the service hands writes to its writer thread.
const SLOW: Duration = Duration::from_millis(100);

/// A service in this process, on a disk of the test.
struct Running {
    disk: FaultyDisk,
    resp: SocketAddr,
    http: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start() -> Running {
        let disk = FaultyDisk::default();
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (resp, http) = (listen(), listen());
        let addresses = (resp.local_addr().expect("bound"), http.local_addr().expect("bound"));
        resp.set_nonblocking(true).expect("a socket that does not block");
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let on = disk.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            LocalSet::new()
                .block_on(&runtime, async move {
                    let resp = tokio::net::TcpListener::from_std(resp).expect("a listener");
                    let listeners = Listeners { resp, http: Some(Http::new(http)), peers: None };
                    let ready = || {
                        let _ = ready.send(());
                    };
                    serve_on(on, Config::default(), listeners, ready, async { drop(stopped.await) }).await
                })
                .expect("it serves until it is stopped");
        });
        is_ready.recv_timeout(BOUND).expect("it becomes ready");
        Running { disk, resp: addresses.0, http: addresses.1, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self, address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(BOUND)).expect("a time-out");
        stream
    }

    /// Sends a request while flushes are held back, and checks that it is not answered before they are released.
    fn is_acknowledged_late(&self, stream: &mut TcpStream, request: &[u8], meanwhile: impl FnOnce()) -> String {
        let shown = String::from_utf8_lossy(request).into_owned();
        self.disk.hold_flushes();
        stream.write_all(request).expect("sent");
        assert!(self.disk.await_held_flush(BOUND), "nothing is flushed: {shown}");
        meanwhile();
        stream.set_nonblocking(true).expect("it can be set");
        let early = stream.peek(&mut [0; 1]);
        stream.set_nonblocking(false).expect("it can be set");
        assert_eq!(early.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock), "answered too early: {shown}");
        self.disk.release_flushes();
        answer(stream)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.disk.release_flushes();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || thread::panicking(), "the service failed");
        }
    }
}

/// Waits for a reply, and returns what has arrived.
fn answer(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let count = stream.read(&mut bytes).expect("an answer in time");
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

fn command(words: &str) -> Vec<u8> {
    let words: Vec<_> = words.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Returns the number that follows this text in a reply.
fn number(answer: &str, behind: &str) -> u64 {
    let rest = answer.split_once(behind).unwrap_or_else(|| panic!("no {behind} in {answer}")).1;
    let digits: String =
        rest.trim_start_matches(['\r', '\n', ':', '"']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number behind {behind} in {answer}"))
}

/// Makes every kind of change over both protocols. `meanwhile` is called while flushes are held back.
fn change_everything(running: &Running, name: &str, meanwhile: impl Fn()) {
    let mut line = running.connect(running.resp);
    let mut ask = |words: &str| running.is_acknowledged_late(&mut line, &command(words), &meanwhile);
    let session = number(&ask("SESSION OPEN 3600000"), "session");
    let token = number(&ask(&format!("LOCK ACQUIRE {name} SESSION {session}")), "token");
    assert_eq!(ask(&format!("LOCK RELEASE {name} {token}")), ":1\r\n");
    let token = number(&ask(&format!("CAMPAIGN {name} SESSION {session} VALUE v")), "token");
    assert_eq!(ask(&format!("LOCK PUBLISH {name} {token} SESSION {session} VALUE w")), "+OK\r\n");
    number(&ask(&format!("LOCK BREAK {name} REASON test")), "moved_to");
    assert_eq!(ask(&format!("SESSION CLOSE {session}")), "+OK\r\n");
    // Opened only now: the service closes a connection that is silent for half a minute.
    let mut http = running.connect(running.http);
    let mut ask = |path: &str, body: &str| running.is_acknowledged_late(&mut http, &post(path, body), &meanwhile);
    let opened = ask("/v1/sessions", "{\"ttl_ms\":3600000}");
    let session = number(&opened, "\"session\"");
    let granted = ask("/v1/locks/acquire", &format!("{{\"locks\":[\"{name}\"],\"session\":{session}}}"));
    let token = number(&granted, "\"token\"");
    let released = ask("/v1/locks/release", &format!("{{\"lock\":\"{name}\",\"token\":{token}}}"));
    assert!(released.starts_with("HTTP/1.1 204"), "{released}");
}

#[test]
fn nothing_is_acknowledged_before_it_is_durable() {
    let running = Running::start();
    // The service's main thread writes, and blocks: it can answer nothing at all.
    change_everything(&running, "a", || ());
    // With a slow disk another thread writes. Meanwhile the service answers what needs no write, and shows only what is
    // durable.
    running.disk.hold_flushes();
    let mut line = running.connect(running.resp);
    line.write_all(&command("SESSION OPEN 3600000")).expect("sent");
    assert!(running.disk.await_held_flush(BOUND));
    // The slowness is the fault.
    thread::sleep(SLOW);
    running.disk.release_flushes();
    let session = number(&answer(&mut line), "session");
    let other = RefCell::new(running.connect(running.resp));
    let ask_other = |words: &str| {
        let mut other = other.borrow_mut();
        other.write_all(&command(words)).expect("sent");
        answer(&mut other)
    };
    change_everything(&running, "b", || assert_eq!(ask_other("PING"), "+PONG\r\n"));
    // A grant that is on its way to the disk is not shown either.
    let acquire = command(&format!("LOCK ACQUIRE c SESSION {session}"));
    let granted =
        running.is_acknowledged_late(&mut line, &acquire, || assert_eq!(ask_other("LOCK SHOW c"), "$-1\r\n"));
    number(&granted, "token");
}
