//! Start, restart and shutdown of the service.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::client::Value;
use super::service::Service;
use crate::common::bounded::{Bounded, TIMEOUT, until};
use crate::common::environment::{self, NO_HOME};
use crate::common::process::Process;
use crate::sandbox::Sandbox;

#[test]
fn a_client_of_redis_can_use_it() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let client = redis::Client::open(format!("redis://{}/?protocol=resp3", service.address)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let opened: Vec<(String, u64)> = redis::cmd("SESSION").arg("OPEN").arg(60_000).query(&mut connection).unwrap();
    let session = opened.iter().find(|(name, _)| name == "session").unwrap().1;
    let mut acquire = redis::cmd("LOCK");
    acquire.arg("ACQUIRE").arg("a").arg("SESSION").arg(session);
    let granted: Vec<(String, u64)> = acquire.query(&mut connection).unwrap();
    assert!(granted.contains(&("token".to_owned(), 1)));
    let mut release = redis::cmd("LOCK");
    assert_eq!(release.arg("RELEASE").arg("a").arg(1).query::<u64>(&mut connection).unwrap(), 1);
    service.stop();
}

#[test]
fn acknowledged_grants_survive_a_stop_and_a_kill() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let session = client.session();
    let first = client.call_ok(&format!("LOCK ACQUIRE a SESSION {session}")).number("token");
    service.stop();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let second = client.call_ok(&format!("LOCK ACQUIRE b SESSION {session}")).number("token");
    assert!(second > first);
    service.signal(Signal::KILL);
    assert_eq!(service.end().0, None);
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    assert_eq!(client.call_ok("LOCK SHOW b").get("holders").items()[0].number("token"), second);
    assert_eq!(client.call("LOCK ACQUIRE a TTL 1000"), Value::Nil);
}

#[test]
fn pending_requests_are_answered_before_shutdown() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let session = client.session().to_string();
    let many = 500;
    for number in 0..many {
        let name = format!("lock/{number}");
        client.send_command(&[b"LOCK", b"ACQUIRE", name.as_bytes(), b"SESSION", session.as_bytes()]);
    }
    assert!(matches!(client.answer(), Value::Map(_)), "the first is granted: the others have been read with it");
    service.signal(Signal::TERM);
    // Every reply is complete, and every grant is still there after the restart.
    let mut granted = 1;
    while let Ok(answer) = client.read() {
        assert!(matches!(answer, Value::Map(_)), "{answer}");
        granted += 1;
    }
    assert_eq!(service.end().0, Some(0));
    let service = sandbox.serve(&[]);
    let held = service.resp3_client().call_ok("LOCK LIST lock/").get("locks").items().len();
    assert_eq!(held, granted);
}

#[test]
fn a_wait_ends_with_the_service_and_leaves_nothing_behind() {
    // Idle clients are disconnected after 5 s, if the shutdown waits for them. A busy machine may delay anything, but not each time.
    let most = Duration::from_secs(4);
    assert!((0..10).any(|_| shutdown_with_a_waiter() < most), "shutdown does not wait for idle clients");
}

/// Stops a service with a client that waits and an idle one, and returns how long that takes.
fn shutdown_with_a_waiter() -> Duration {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let (mut holder, mut waiter) = (service.resp3_client(), service.resp3_client());
    holder.call_ok("LOCK WATCH a");
    holder.call_ok("LOCK ACQUIRE a TTL 60000");
    waiter.send_command(&[b"LOCK", b"ACQUIRE", b"a", b"TTL", b"60000", b"WAIT", b"60000"]);
    while !holder.answer().to_string().contains("'queued'") {}
    let began = Instant::now();
    service.signal(Signal::TERM);
    insta::assert_snapshot!("stopping", waiter.answer());
    assert_eq!(waiter.until_closed(), "");
    assert_eq!(service.end().0, Some(0));
    let time = began.elapsed();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    assert_eq!(client.call_ok("LOCK SHOW a").get("waiters"), &Value::Array(vec![]));
    time
}

#[test]
fn shutdown_accepts_no_connections_and_a_second_signal_ends_it_at_once() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    // This client does not read its replies and stays connected, so the shutdown waits for it.
    for _ in 0..40 {
        client.send_command(&[b"PING", &[b'x'; 200_000]]);
    }
    service.signal(Signal::INT);
    until("it accepts no connections", || std::net::TcpStream::connect(service.address).is_err());
    service.signal(Signal::INT);
    assert_eq!(service.end().0, Some(130));
}

#[test]
fn two_services_cannot_use_one_directory() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let (code, message) = sandbox.serve_refusal(&[]).expect("it does not start");
    assert_eq!(code, Some(69), "{message}");
    let message = sandbox.redacted(&message, crate::sandbox::Numbers::Kept);
    insta::assert_snapshot!("in-use", message.replace(&service.pid().to_string(), "[PID]"));
    service.resp3_client().session();
    service.stop();
    sandbox.serve(&[]).stop();
}

#[test]
fn a_failed_write_ends_the_service_without_an_answer() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    client.session();
    service.forbid_writing();
    client.send_command(&[b"LOCK", b"ACQUIRE", b"a", b"SESSION", b"1"]);
    assert_eq!(client.until_closed(), "");
    let (code, message) = service.end();
    assert_eq!(code, Some(74));
    let message: Vec<_> = message.into_iter().filter(|line| line.starts_with("palisade: ")).collect();
    let message = sandbox.redacted(&message.join("\n"), crate::sandbox::Numbers::Hidden);
    insta::assert_snapshot!("write-failed", message);
    let mut client = sandbox.serve(&[]).with_client();
    assert_eq!(client.1.call("LOCK SHOW a"), Value::Nil, "what was not acknowledged has not happened");
}

impl Service {
    /// Returns the service together with a client.
    fn with_client(self) -> (Service, super::client::Client) {
        let client = self.resp3_client();
        (self, client)
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let message = sandbox.stderr(69, &["serve", "--data-dir", "data", "--resp", &at, "--http", "off"]);
    insta::assert_snapshot!("port-taken", message.replace(&at, "[ADDRESS]"));
}

#[test]
fn systemd_is_notified() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = sandbox.serve_command(&[]);
    command.env("NOTIFY_SOCKET", &path);
    let service = Service::start(command);
    let notification = || {
        let mut bytes = [0; 64];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    assert_eq!(notification(), "READY=1");
    service.signal(Signal::TERM);
    assert_eq!(notification(), "STOPPING=1");
    assert_eq!(service.end().0, Some(0));
}

#[test]
fn data_files_are_private_to_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    assert_eq!(fs::metadata(sandbox.data_dir()).unwrap().permissions().mode() & 0o777, 0o700);
    service.stop();
    // The files are also private in a directory that was readable by all before.
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.data_dir()).unwrap();
    fs::set_permissions(sandbox.data_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let _service = sandbox.serve(&[]);
    let mut names = Vec::new();
    for file in fs::read_dir(sandbox.data_dir()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", file.path());
        names.push(file.file_name());
    }
    assert!(names.len() > 1, "{names:?}");
}

#[test]
fn commands_of_redis_that_do_not_lock_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let commands = [
        "SET a 1",
        "SETNX a 1",
        "MGET a",
        "FLUSHALL",
        "HSET a b c",
        "SELECT 2",
        "MULTI",
        "EXEC",
        "CONFIG GET x",
        "KEYS x",
        "EVAL x 0",
        "PUBLISH x y",
        "INCRBY x 1",
        "CLIENT KILL x",
        "CLIENT LIST",
        "CLIENT TRACKING ON",
        "CLIENT",
    ];
    let message: Vec<_> = commands.map(|command| format!("{command} => {}", client.refusal(command))).into();
    insta::assert_snapshot!("habits", message.join("\n"));
    let help = client.call_ok("LOCK HELP");
    assert!(help.items().iter().all(|usage| usage.text().starts_with("LOCK ")), "{help}");
    assert!(help.to_string().contains("LOCK ACQUIRE name"), "{help}");
    let Value::Number(id) = client.call_ok("CLIENT ID") else { panic!("an id is a number") };
    assert_ne!(service.resp3_client().call_ok("CLIENT ID"), Value::Number(id));
    for ignored in ["CLIENT SETNAME x", "CLIENT SETINFO LIB-NAME x"] {
        assert_eq!(client.call_ok(ignored), Value::Simple("OK".to_owned()));
    }
    assert_eq!(client.call_ok("CLIENT GETNAME"), Value::Nil);
}

#[test]
fn an_acquire_without_session_allows_no_request_number_and_no_push() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    for command in [
        "LOCK ACQUIRE a TTL 1000 REQ 1",
        "LOCK ACQUIRE a TTL 1000 ASYNC",
        "LOCK ALL 1 a SHARED TTL 1000 REQ 1",
        "CAMPAIGN a TTL 1000 VALUE v ASYNC",
    ] {
        let message = client.refusal(command);
        assert!(message.starts_with("BADARG option '") && message.contains("needs SESSION"), "{command}: {message}");
    }
    assert_eq!(client.call("LOCK SHOW a"), Value::Nil);
    client.call_ok("LOCK ACQUIRE a TTL 60000");
    assert!(client.refusal("LOCK RELEASE a 99").starts_with("NOTHELD token 99 was never given"));
}

#[test]
fn redis_cli_stat_works() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    client.call_ok("LOCK ACQUIRE a TTL 60000");
    client.call_ok("LOCK ACQUIRE b TTL 60000");
    let port = service.address.port().to_string();
    let mut command = sandbox.program("redis-cli");
    let (_stat, mut lines) = Process::start_reading(command.args(["-p", &port, "-i", "0.01", "--stat"]));
    let shown: Vec<_> = (0..4).map(|_| lines.next_line("redis-cli --stat").unwrap()).collect();
    // Locks, memory, clients, blocked, requests (+more), connections.
    let columns: Vec<_> = shown[3].split_whitespace().collect();
    assert_eq!((columns[0], columns[2], columns[3]), ("2", "2", "0"), "{shown:#?}");
    assert!(columns[4].parse::<u64>().unwrap() > 3, "{shown:#?}");
}

/// Without the handling of ignored signals the test never ends.
#[test]
fn these_tests_pass_where_signals_are_ignored() {
    let (_, module) = module_path!().split_once("::").expect("it is not the root");
    let test = format!("{module}::shutdown_accepts_no_connections_and_a_second_signal_ends_it_at_once");
    let mut shell = environment::command("sh", NO_HOME);
    shell.args(["-c", "trap '' HUP INT QUIT TERM; exec \"$0\" --exact \"$1\""]);
    let output = shell.arg(std::env::current_exe().unwrap()).arg(test).finish();
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && message.contains("1 passed"), "{message}");
}
