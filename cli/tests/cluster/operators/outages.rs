//! Clusters without a majority, and nodes that cannot start or be reached: each command says what is wrong and what to do.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Nodes;
use crate::common::bounded::{Bounded, until};
use crate::common::free_address;
use crate::common::process::Process;
use crate::sandbox::{CommandOutput, Sandbox, repository};

/// Kills b and c, and waits until a does not lead any more.
fn without_majority(nodes: &mut Nodes) {
    for name in ["b", "c"] {
        nodes.kill(name);
    }
    nodes.until_leaderless();
}

#[test]
#[ignore = "long: waits without a majority"]
fn without_a_majority_every_command_says_which_nodes_answer() {
    let mut nodes = Nodes::three();
    without_majority(&mut nodes);
    let (url, a, b, c) = (nodes.url(), nodes.resp("a"), nodes.resp("b"), nodes.resp("c"));
    let file = nodes.sandbox.path().join("backup").display().to_string();
    let commands: &[&[&str]] = &[
        &["ls"],
        &["show", "x"],
        &["acquire", "x"],
        &["leader", "x"],
        &["run", "x", "--", "true"],
        &["break", "x", "--reason", "test", "--yes"],
        &["tokens", "raise", "--above", "5"],
        &["watch", "x"],
        &["cluster", "backup", &file],
    ];
    std::thread::scope(|scope| {
        for arguments in commands {
            let (sandbox, url, a, b, c) = (&nodes.sandbox, &url, &a, &b, &c);
            scope.spawn(move || {
                let CommandOutput { code, err, .. } = sandbox.run(&[&["--url", url], *arguments].concat());
                assert_eq!(code, Some(69), "{arguments:?}: {err}");
                for part in [
                    format!("1 of 3 nodes answers ({a}), and no node leads: a majority is needed"),
                    format!("{b} and {c}: Connection refused"),
                    "See `palisade cluster status`".to_owned(),
                ] {
                    assert!(err.contains(&part), "{arguments:?}: '{part}' is not in {err}");
                }
            });
        }
        // They do not wait for a change.
        for arguments in [&["remove", "b"][..], &["transfer"], &["add", "d=localhost:1"]] {
            let (sandbox, url) = (&nodes.sandbox, &url);
            scope.spawn(move || {
                let errors = sandbox.stderr(69, &[&["cluster", "--url", url], arguments].concat());
                let part = "no node leads: 1 of 3 nodes runs; start b and c, or see `palisade cluster recover`";
                assert!(errors.contains(part), "{arguments:?}: {errors}");
            });
        }
    });
    let status = nodes.sandbox.run(&["cluster", "--url", &url, "status"]);
    assert_eq!(status.code, Some(69), "{}", status.err);
    let row = |name: &str| status.out.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap().to_owned();
    assert!(row("b").contains(" ? ") && !row("b").contains("follower"), "{}", status.out);
    let doctor = nodes.sandbox.run(&["--url", &url, "doctor"]);
    assert!(doctor.out.contains(&format!("start {b} and {c}: a majority must run")), "{}", doctor.out);
    assert!(doctor.out.contains("start b and c: a majority must run"), "{}", doctor.out);
}

#[test]
#[ignore = "long: waits without a majority"]
fn a_job_that_is_ended_without_a_majority_says_why() {
    let mut nodes = Nodes::three();
    let url = nodes.url();
    let script = "trap exit TERM; while :; do sleep 0.1; done";
    let mut command =
        nodes.sandbox.command(&["--url", &url, "run", "--ttl", "20s", "held", "--", "sh", "-c", script]);
    let mut job = Process::start(&mut command);
    until("the lock is held", || nodes.sandbox.stdout(&["--url", &url, "ls"]).contains("held"));
    without_majority(&mut nodes);
    let (code, lines) = job.end();
    let said = lines.join("\n");
    assert_eq!(code, Some(76), "{said}");
    // On a busy machine the lock is lost before the attempts to release it are over.
    let says_why = ["1 of 3 nodes answers", "could not be reached"].iter().any(|part| said.contains(part));
    assert!(says_why, "{said}");
}

/// With one of three down, the others serve clients, and the cluster may lose no more.
#[test]
fn doctor_counts_the_nodes_that_are_left() {
    let mut nodes = Nodes::three();
    nodes.kill("c");
    let doctor = nodes.sandbox.run(&["--url", &nodes.url(), "doctor"]);
    assert_eq!(doctor.code, Some(0), "{}", doctor.err);
    let down = nodes.resp("c");
    assert!(doctor.out.contains(&format!("1 of 3 nodes does not serve clients: {down} (")), "{}", doctor.out);
    assert!(doctor.out.contains(&format!("start {down}; the others serve clients meanwhile")), "{}", doctor.out);
    assert!(doctor.out.contains("0 more may be lost"), "{}", doctor.out);
}

/// Answers every login as a node does that knows no leader. Returns its address, and counts the connections.
fn leaderless_node() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 1024]);
                let hello =
                    "%4\r\n+server\r\n+palisade\r\n+role\r\n+replica\r\n+relayed\r\n:0\r\n+nodes\r\n:3\r\n+OK\r\n";
                let _ = stream.write_all(hello.as_bytes());
                while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
            });
        }
    });
    (address, count)
}

#[test]
fn a_client_asks_a_cluster_without_a_leader_less_and_less_often() {
    let (one, other) = (leaderless_node(), leaderless_node());
    let sandbox = Sandbox::new();
    let url = format!("palisade://{},{}", one.0, other.0);
    let output = sandbox.run(&["--url", &url, "ls"]);
    assert_eq!(output.code, Some(69), "{}", output.err);
    assert!(
        output.err.contains("all 2 nodes answer, and no node leads: an election may be under way"),
        "{}",
        output.err
    );
    // It asks for 5 s: each node more than once. Every 10 ms would be 1000 connections.
    let all = one.1.load(Ordering::Relaxed) + other.1.load(Ordering::Relaxed);
    assert!((4..160).contains(&all), "{all} connections");
}

#[test]
fn a_node_to_be_added_that_can_never_be_is_not_waited_for() {
    let mut nodes = Nodes::one();
    nodes.start("d", &["--node", "d", "--join", "--peers", "PEERS"]);
    nodes.until_said("d", "waits to be added");
    let misnamed = nodes.node("d").replace("d=", "b=");
    // The port for clients of a node is no port for nodes.
    let wrong_port = format!("b=localhost:{}", nodes.nodes["a"].resp);
    for (node, part) in [(misnamed, "is called 'd', and not 'b'"), (wrong_port, "this is a port for clients")] {
        let (code, errors) = nodes.cluster(&["add", &node]);
        assert!(code == Some(64) && errors.contains(part), "{node}: {code:?} {errors}");
    }
}

/// A node that can be asked whether it may be added, and then cannot be reached: behind a firewall, say.
#[test]
#[ignore = "long: waits without a majority"]
fn a_node_that_the_log_does_not_reach_is_named_with_the_reason() {
    let mut nodes = Nodes::one();
    nodes.start("d", &["--node", "d", "--join", "--peers", "PEERS"]);
    nodes.until_said("d", "waits to be added");
    let address = passes_one_connection(nodes.nodes["d"].peers);
    let (code, errors) = nodes.cluster(&["add", &format!("d={address}"), "--timeout", "30s"]);
    assert_eq!(code, Some(69), "{errors}");
    assert!(
        errors.contains("adding node d has begun, and goes on by itself: the log does not reach it: "),
        "{errors}"
    );
}

/// Returns an address from which one connection is passed on to this port, and no other one.
fn passes_one_connection(port: u16) -> SocketAddr {
    let address = free_address();
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        drop(listener);
        let server = TcpStream::connect(("localhost", port)).unwrap();
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                // Either side may close it.
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

#[test]
fn options_that_a_node_cannot_use_are_refused() {
    let sandbox = Sandbox::new();
    let config = sandbox.path().join("palisade.toml");
    std::fs::write(&config, "[serve.cluster]\nnode = \"a\"\n").unwrap();
    let config = config.display().to_string();
    let peers = free_address().to_string();
    let own = format!("a={peers}");
    for (arguments, code, part) in [
        (vec!["--node", "a", "--cluster", &own, "--raise-tokens-above", "5"], 64, "palisade tokens raise --above 5"),
        (vec!["--cluster", &own], 64, "this node has no name"),
        (vec!["--cluster", &own, "--config", &config, "--check"], 0, ""),
        (vec!["--join", "--config", &config], 64, "--join needs --peers ADDRESS"),
        (vec!["--join", "--peers", &peers, "--config", &config, "--check"], 0, ""),
        (vec!["--node", "a", "--cluster", &own, "--resp", &peers], 64, "is the address for both --resp and"),
        (vec!["--node", "a", "--cluster", "a=nowhere.invalid:7422"], 69, "cannot be looked up"),
    ] {
        let mut command = sandbox.command(&["serve", "--data-dir", "data", "--http", "off"]);
        let output = sandbox.output(&command.args(&arguments).env("PALISADE_RESP", "127.0.0.1:0").finish());
        assert!(output.code == Some(code) && output.err.contains(part), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_certificate_is_for_a_host_without_a_port() {
    let sandbox = Sandbox::new();
    for (node, part) in [("f=host1:7422", "write f=host1"), ("f=[::1]:7422", "write f=::1"), ("f=[::1]", "write f=")]
    {
        let error = sandbox.stderr(64, &["cluster", "keys", "keys", node]);
        assert!(error.contains(part), "{node}: {error}");
    }
    let made = sandbox.run(&["cluster", "keys", "keys", "f=host1", "g=::1", "h=10.0.0.1"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
}

#[test]
fn a_port_that_is_not_for_clients_or_is_taken_is_explained() {
    let nodes = Nodes::one();
    let address = format!("127.0.0.1:{}", nodes.nodes["a"].peers);
    let listed = nodes.sandbox.run(&["--url", &format!("palisade://{address}"), "ls"]);
    assert_eq!(listed.code, Some(69), "{}", listed.err);
    assert!(listed.err.contains("Is this the port for clients?"), "{}", listed.err);
    assert_eq!(listed.err.matches("the service at").count(), 1, "{}", listed.err);
    let resp = nodes.resp("a");
    let directory = nodes.sandbox.path().join("a").display().to_string();
    for (directory, part) in [(directory.as_str(), "uses the directory"), ("other", "Another process listens there")]
    {
        let again = nodes.sandbox.run(&["serve", "--data-dir", directory, "--http", "off", "--resp", &resp]);
        assert_eq!(again.code, Some(69), "{}", again.err);
        assert!(again.err.contains("(--resp)") && again.err.contains(part), "{}", again.err);
    }
}

/// The configuration of docs/cluster.md can be used, with other hosts.
#[test]
fn the_configuration_of_the_page_can_be_used() {
    let page = std::fs::read_to_string(repository().join("docs/cluster.md")).unwrap();
    let toml = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let toml = toml.replace("host1", "localhost");
    let sandbox = Sandbox::new();
    sandbox.run(&["cluster", "keys", ".", "a=localhost", "server=localhost"]);
    std::fs::write(sandbox.path().join("palisade.toml"), toml).unwrap();
    let checked = sandbox.stdout(&["serve", "--check", "--config", "palisade.toml", "--data-dir", "data"]);
    assert!(checked.contains("founded by a=localhost:7422,b=host2:7422,c=host3:7422"), "{checked}");
    assert!(checked.contains("0.0.0.0:7420 (encrypted, users only)"), "{checked}");
}
