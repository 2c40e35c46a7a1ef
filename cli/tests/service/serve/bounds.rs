//! Limits per client, so that no client slows down the others.

use std::net::TcpStream;

use super::client::{Client, Value, framed};
use super::service::Service;
use crate::common::bounded::{until, until_some};
use crate::sandbox::Sandbox;

const HASH: &str = "sha256:d23bf2e564b28f4725d82008169410ecf571956fb17d8c03fceeccc56e93e719";

/// Sends bytes again and again, and reads nothing, until it is disconnected. Returns how many bytes it sent.
fn flood(mut client: Client, bytes: &[u8]) -> usize {
    let mut sent = 0;
    while client.try_send(bytes) {
        sent += bytes.len();
        assert!(sent < 1 << 30, "the service never closes it");
    }
    sent
}

fn acquire_and_release(client: &mut Client) {
    let token = client.call_ok("LOCK ACQUIRE work TTL 60000").number("token");
    assert_eq!(client.call(&format!("LOCK RELEASE work {token}")), Value::Number(1));
}

#[test]
fn a_client_that_never_reads_is_disconnected_and_the_others_are_served() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with("[serve.bounds]\nunread_bytes = 1000000\nstall = '1s'\n");
    let mut other = service.resp3_client();
    let message = vec![b'x'; 10_000];
    let ping = framed(&[b"PING", &message]);
    let silent = service.client();
    let flooding = std::thread::spawn(move || flood(silent, &ping));
    while !flooding.is_finished() {
        acquire_and_release(&mut other);
    }
    let sent = flooding.join().unwrap();
    assert!(sent < 100_000_000, "{sent} bytes were accepted from a client that reads nothing");
    acquire_and_release(&mut other);
}

#[test]
fn a_watcher_that_never_reads_is_disconnected() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with("[serve.bounds]\nunread_bytes = 100000\nstall = '60s'\n");
    let mut watcher = service.resp3_client();
    watcher.call_ok("LOCK WATCH work");
    let mut other = service.resp3_client();
    // First the socket buffers fill, then the limit is reached.
    let session = other.session();
    let is_cut = service.log_has("a client that does not read its replies is disconnected");
    let mut rounds = 0;
    while !is_cut() {
        let token =
            other.call_ok(&format!("CAMPAIGN work SESSION {session} VALUE {}", "v".repeat(4000))).number("token");
        for _ in 0..20 {
            other.send_command(&[
                b"LOCK",
                b"PUBLISH",
                b"work",
                token.to_string().as_bytes(),
                b"SESSION",
                session.to_string().as_bytes(),
                b"VALUE",
                &[b'v'; 4000],
            ]);
        }
        for _ in 0..20 {
            assert_eq!(other.answer(), Value::Simple("OK".to_owned()));
        }
        other.call_ok(&format!("LOCK RELEASE work {token}"));
        rounds += 1;
        assert!(rounds < 5_000, "the service never closes it");
    }
    acquire_and_release(&mut other);
}

#[test]
fn a_client_that_does_not_finish_its_command_is_disconnected() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with("[serve.bounds]\ncommand = '300ms'\n");
    let mut idle = service.resp3_client();
    let mut half = service.client();
    insta::assert_snapshot!("half-a-command", half.send(b"*2\r\n$4\r\nPI").until_closed().trim_end());
    // A client that sends byte by byte is disconnected too: the time counts from the first byte.
    let mut dripping = service.client();
    let mut frame = framed(&[b"PING", &[b'x'; 200_000]]).into_iter();
    until("the service closes it", || !dripping.try_send(&[frame.next().expect("the command is not complete")]));
    // An idle client stays connected.
    assert_eq!(idle.call("PING"), Value::Simple("PONG".to_owned()));
}

#[test]
fn connections_are_limited_and_a_closed_one_frees_its_slot() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with("[serve.bounds]\nconnections = 3\n");
    let mut clients: Vec<_> = (0..3).map(|_| service.resp3_client()).collect();
    insta::assert_snapshot!("too-many-connections", service.client().until_closed().trim_end());
    acquire_and_release(&mut clients[0]);
    assert_eq!(clients.pop().unwrap().call("QUIT"), Value::Simple("OK".to_owned()));
    // The slot is free once the service has closed its side.
    until_served(&service);
}

/// Waits until a new connection is served.
fn until_served(service: &Service) {
    until("a new connection is served", || matches!(try_ping(&mut service.client()), Some(Value::Simple(_))));
}

fn try_ping(client: &mut Client) -> Option<Value> {
    client.try_send(&framed(&[b"PING"])).then(|| client.read().ok()).flatten()
}

#[test]
fn a_connection_without_a_login_is_closed() {
    let config = format!(
        "[serve.bounds]\nstrangers = 2\ngreeting = '5s'\n[[serve.users]]\nname = 'ci'\nsecret_hash = '{HASH}'\n"
    );
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&config);
    // Two seconds after they have connected, strangers make room for others: a busy machine may need several attempts.
    let [mut first, mut second] = until_some("a third connection is refused", || {
        let mut two = [(); 2].map(|()| service.client());
        let are_served = two.iter_mut().all(|client| matches!(try_ping(client), Some(Value::Simple(_))));
        (are_served && service.client().until_closed().starts_with("-LIMIT ")).then_some(two)
    });
    insta::assert_snapshot!("stranger-too-late", first.until_closed().trim_end());
    second.until_closed();
    assert_eq!(service.client().call("PING"), Value::Simple("PONG".to_owned()), "there is room again");
}

#[test]
fn a_connection_without_a_login_gets_small_buffers() {
    let config = format!("[[serve.users]]\nname = 'ci'\nsecret_hash = '{HASH}'\n");
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with(&config);
    let mut client = service.client();
    assert!(
        client
            .send_command(&[b"PING", &[b'x'; 5000]])
            .until_closed()
            .starts_with("-PROTOCOL a command has at most 4096")
    );
}

#[test]
fn configured_limits_are_applied_after_a_restart() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let old = client.session();
    assert!(client.refusal("LOCK ACQUIRE a b c SESSION 99").starts_with("NOSESSION"));
    service.stop();
    let limits = "[serve.limits]\nsessions = 2\nwaiters_per_lock = 1\nname_bytes = 10\nlocks_per_request = 2\n";
    let service = sandbox.serve_with(limits);
    let mut client = service.resp3_client();
    let mut output = vec![client.refusal(&format!("LOCK ACQUIRE a b c SESSION {old}"))];
    output.push(client.refusal(&format!("LOCK ACQUIRE eleven-long SESSION {old}")));
    let new = client.session();
    output.push(client.refusal("SESSION OPEN 1000"));
    client.call_ok(&format!("LOCK ACQUIRE a SESSION {old}"));
    assert_eq!(client.call(&format!("LOCK ACQUIRE a SESSION {new} ASYNC REQ 1")), Value::Simple("QUEUED".to_owned()));
    output.push(client.refusal(&format!("LOCK ACQUIRE a SESSION {new} ASYNC REQ 2")));
    insta::assert_snapshot!("limits", output.join("\n"));
    service.stop();
    let service = sandbox.serve(&[]);
    service.resp3_client().session();
}

#[test]
fn watches_per_connection_are_limited() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with("[serve.bounds]\nwatches = 2\n");
    let mut client = service.resp3_client();
    for prefix in ["a", "b", "a"] {
        client.call_ok(&format!("LOCK WATCH {prefix}"));
    }
    insta::assert_snapshot!("too-many-watches", client.refusal("LOCK WATCH c"));
    client.call_ok("LOCK UNWATCH a");
    client.call_ok("LOCK WATCH c");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with("[serve.bounds]\nunanswered = 2\n");
    let mut client = service.resp3_client();
    let session = client.session();
    let mut sent = Vec::new();
    for number in 0..200 {
        let lock = format!("lock/{number}");
        sent.extend(framed(&[b"LOCK", b"ACQUIRE", lock.as_bytes(), b"SESSION", session.to_string().as_bytes()]));
        sent.extend(framed(&[b"PING", lock.as_bytes()]));
    }
    client.send(&sent);
    for number in 0..200 {
        assert_eq!(client.answer().number("token"), number + 1);
        assert_eq!(client.answer(), Value::Text(format!("lock/{number}")));
    }
}

#[test]
fn a_flood_of_lists_does_not_stop_the_others() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let session = client.session().to_string();
    for chunk in 0..20 {
        let many: Vec<u8> = (0..500)
            .flat_map(|at| {
                framed(&[b"LOCK", b"ACQUIRE", format!("{chunk}/{at}").as_bytes(), b"SESSION", session.as_bytes()])
            })
            .collect();
        client.send(&many);
        (0..500).for_each(|_| drop(client.answer()));
    }
    let mut flooding = service.resp3_client();
    let lists: Vec<u8> = (0..500).flat_map(|_| framed(&[b"LOCK", b"LIST", b"none/"])).collect();
    flooding.send(&lists);
    acquire_and_release(&mut client);
    (0..500).for_each(|_| assert_eq!(flooding.answer().get("locks").items().len(), 0));
}

#[test]
fn a_thousand_connections_that_come_and_go_leave_nothing_behind() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_with("[serve.bounds]\nconnections = 50\n");
    for _ in 0..1000 {
        until("it accepts a connection", || TcpStream::connect(service.address).is_ok());
    }
    until_served(&service);
}
