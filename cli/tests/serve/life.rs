//! How it begins and how it ends.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;

use crate::client::Value;
use crate::sandbox::{Sandbox, within};
use crate::service::Service;

#[test]
fn a_client_of_redis_can_use_it() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let client = redis::Client::open(format!("redis://{}/?protocol=resp3", service.at)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let opened: Vec<(String, u64)> = redis::cmd("SESSION").arg("OPEN").arg(30_000).query(&mut connection).unwrap();
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
    let mut client = service.modern();
    let session = client.session();
    let first = client.done(&format!("LOCK ACQUIRE a SESSION {session}")).number("token");
    service.stop();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    let second = client.done(&format!("LOCK ACQUIRE b SESSION {session}")).number("token");
    assert!(second > first);
    service.signal(Signal::KILL);
    assert_eq!(service.end().0, None);
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    assert_eq!(client.done("LOCK SHOW b").get("holders").items()[0].number("token"), second);
    assert_eq!(client.ask("LOCK ACQUIRE a TTL 1000"), Value::Nil);
}

#[test]
fn pending_requests_are_answered_before_shutdown() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    client.session();
    let many = 500;
    for number in 0..many {
        client.say(&[b"LOCK", b"ACQUIRE", format!("lock/{number}").as_bytes(), b"SESSION", b"1"]);
    }
    assert!(matches!(client.answer(), Value::Map(_)), "the first is granted: the others have been read with it");
    service.signal(Signal::TERM);
    // Every answer that comes is whole, and what was granted is there after the restart.
    let mut granted = 1;
    while let Ok(answer) = client.read() {
        assert!(matches!(answer, Value::Map(_)), "{answer}");
        granted += 1;
    }
    assert_eq!(service.end().0, Some(0));
    let service = sandbox.serve(&[]);
    let held = service.modern().done("LOCK LIST lock/").get("locks").items().len();
    assert_eq!(held, granted);
}

#[test]
fn a_wait_ends_with_the_service_and_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let (mut holder, mut waiter) = (service.modern(), service.modern());
    holder.done("LOCK WATCH a");
    holder.done("LOCK ACQUIRE a TTL 60000");
    waiter.say(&[b"LOCK", b"ACQUIRE", b"a", b"TTL", b"60000", b"WAIT", b"60000"]);
    while !holder.answer().to_string().contains("'queued'") {}
    let began = Instant::now();
    service.signal(Signal::TERM);
    insta::assert_snapshot!("stopping", waiter.answer());
    assert_eq!(waiter.until_closed(), "");
    assert_eq!(service.end().0, Some(0));
    assert!(began.elapsed().as_secs() < 4, "shutdown does not wait for idle clients");
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    assert_eq!(client.done("LOCK SHOW a").get("waiters"), &Value::Array(vec![]));
}

#[test]
fn shutdown_accepts_no_connections_and_a_second_signal_ends_it_at_once() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    // One that does not take its answers and does not go: it would be waited for.
    for _ in 0..40 {
        client.say(&[b"PING", &[b'x'; 200_000]]);
    }
    service.signal(Signal::INT);
    while std::net::TcpStream::connect(service.at).is_ok() {}
    service.signal(Signal::INT);
    assert_eq!(service.end().0, Some(130));
}

#[test]
fn two_services_cannot_use_one_directory() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let (code, said) = sandbox.serve_refusal(&[]).expect("it does not start");
    assert_eq!(code, Some(69), "{said}");
    let said = sandbox.redacted(&said, crate::sandbox::Numbers::Kept);
    insta::assert_snapshot!("in-use", said.replace(&service.pid().to_string(), "[PID]"));
    service.modern().session();
    service.stop();
    sandbox.serve(&[]).stop();
}

#[test]
fn a_write_that_fails_ends_it_and_nothing_is_answered_any_more() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    client.session();
    service.forbid_writing();
    client.say(&[b"LOCK", b"ACQUIRE", b"a", b"SESSION", b"1"]);
    assert_eq!(client.until_closed(), "");
    let (code, said) = service.end();
    assert_eq!(code, Some(74));
    let said: Vec<_> = said.into_iter().filter(|line| line.starts_with("palisade: ")).collect();
    let said = sandbox.redacted(&said.join("\n"), crate::sandbox::Numbers::Hidden);
    insta::assert_snapshot!("write-failed", said);
    let mut client = sandbox.serve(&[]).modern_of_its_own();
    assert_eq!(client.1.ask("LOCK SHOW a"), Value::Nil, "what was not acknowledged has not happened");
}

impl Service {
    /// A client together with the service that it needs.
    fn modern_of_its_own(self) -> (Service, crate::client::Client) {
        let client = self.modern();
        (self, client)
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let said = sandbox.stderr(69, &["serve", "--data-dir", "data", "--resp", &at]);
    insta::assert_snapshot!("port-taken", said.replace(&at, "[ADDRESS]"));
}

#[test]
fn systemd_is_notified() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(crate::client::PATIENCE)).unwrap();
    let mut command = sandbox.serve_command(&[]);
    command.env("NOTIFY_SOCKET", &path);
    let service = Service::start(command);
    let told = || {
        let mut bytes = [0; 64];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    service.signal(Signal::TERM);
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(service.end().0, Some(0));
}

#[test]
fn data_files_are_private_to_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    assert_eq!(fs::metadata(sandbox.data_dir()).unwrap().permissions().mode() & 0o777, 0o700);
    service.stop();
    // Nor do others read them in a directory that was open to all before.
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
fn redis_lock_idioms_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    let habits = [
        "SET a 1 NX",
        "GET a",
        "DEL a",
        "SELECT 2",
        "MULTI",
        "EXEC",
        "CONFIG GET x",
        "KEYS x",
        "EVAL x 0",
        "SUBSCRIBE x",
        "CLIENT KILL x",
        "CLIENT LIST",
        "CLIENT TRACKING ON",
        "CLIENT",
    ];
    let said: Vec<_> = habits.map(|habit| format!("{habit} => {}", client.refusal(habit))).into();
    insta::assert_snapshot!("habits", said.join("\n"));
    let help = client.done("LOCK HELP");
    assert!(help.items().iter().all(|usage| usage.text().starts_with("LOCK ")), "{help}");
    assert!(help.to_string().contains("LOCK ACQUIRE name"), "{help}");
    let Value::Number(id) = client.done("CLIENT ID") else { panic!("an id is a number") };
    assert_ne!(service.modern().done("CLIENT ID"), Value::Number(id));
    for ignored in ["CLIENT SETNAME x", "CLIENT SETINFO LIB-NAME x"] {
        assert_eq!(client.done(ignored), Value::Simple("OK".to_owned()));
    }
    assert_eq!(client.done("CLIENT GETNAME"), Value::Nil);
}

#[test]
fn a_session_that_is_made_for_a_grant_has_no_numbers_and_no_pushes() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    for command in [
        "LOCK ACQUIRE a TTL 1000 REQ 1",
        "LOCK ACQUIRE a TTL 1000 ASYNC",
        "LOCK ALL 1 a SHARED TTL 1000 REQ 1",
        "CAMPAIGN a TTL 1000 VALUE v ASYNC",
    ] {
        let said = client.refusal(command);
        assert!(said.starts_with("BADARG option '") && said.contains("needs SESSION"), "{command}: {said}");
    }
    assert_eq!(client.ask("LOCK SHOW a"), Value::Nil);
    client.done("LOCK ACQUIRE a TTL 60000");
    assert!(client.refusal("LOCK RELEASE a 99").starts_with("NOTHELD token 99 was never given"));
}

#[test]
fn redis_cli_can_show_its_load() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    client.done("LOCK ACQUIRE a TTL 60000");
    client.done("LOCK ACQUIRE b TTL 60000");
    let port = service.at.port().to_string();
    let mut command = std::process::Command::new("redis-cli");
    let stat = command.args(["-p", &port, "-i", "0.01", "--stat"]).stdout(Stdio::piped()).spawn();
    let mut stat = match stat {
        Ok(stat) => stat,
        Err(error) => panic!("redis-cli is needed, run scripts/setup: {error}"),
    };
    let lines = std::io::BufRead::lines(std::io::BufReader::new(stat.stdout.take().unwrap()));
    let shown: Vec<_> = within("four lines", move || lines.take(4).map(Result::unwrap).collect());
    let _ = stat.kill();
    let _ = stat.wait();
    // Locks, memory, clients, blocked, requests (+more), connections.
    let columns: Vec<_> = shown[3].split_whitespace().collect();
    assert_eq!((columns[0], columns[2], columns[3]), ("2", "2", "0"), "{shown:#?}");
    assert!(columns[4].parse::<u64>().unwrap() > 3, "{shown:#?}");
}

#[test]
fn these_tests_do_not_depend_on_signals_that_are_ignored_where_they_run() {
    let tests = std::env::current_exe().unwrap();
    // Without what is tested here it never ends.
    let mut shell = std::process::Command::new("timeout");
    shell
        .args(["--signal=KILL", "60", "sh", "-c", "trap '' HUP INT QUIT TERM; exec \"$0\" --exact \"life::$1\""])
        .arg(tests);
    let output = shell.arg("shutdown_accepts_no_connections_and_a_second_signal_ends_it_at_once").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
