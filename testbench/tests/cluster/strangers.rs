//! Nodes and programs that must not take part.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use palisade::engine::service::{Config, MemberStatus, cluster_status};
use palisade_testbench::bounded::{check, until};
use palisade_testbench::credentials::Credentials;
use palisade_testbench::servers::ServiceCluster;

use crate::fixture::{BOUND, cluster, connect, leader, release, start, take, until_another_leads};

/// It may have promised what it does not know any more.
#[test]
fn a_node_that_lost_its_directory_is_not_let_back_in() {
    for at in 0..3 {
        let (mut cluster, _folder) = cluster();
        check(BOUND, async {
            let client = connect(&cluster.url()).await;
            let held = take(&client, "orders").await;
            cluster.kill(at);
            until_another_leads(&cluster, at).await;
            std::fs::remove_dir_all(cluster.directory(at)).unwrap();
            cluster.restart(at).unwrap();
            let said = |cluster: &ServiceCluster| {
                (0..3).any(|at| cluster.log(at).contains("this node is empty and belongs to no cluster"))
            };
            while !said(&cluster) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            release(&held).await;
            assert_ne!(cluster.leader(), Some(at));
        });
    }
}

/// No running node knows the last grants, and yet no token is given again. The node that comes back with them says so and ends.
#[test]
fn an_older_copy_costs_no_token_and_is_noticed_by_the_node_that_knows_more() {
    let (mut cluster, folder) = cluster();
    check(BOUND, async {
        let ask = async |cluster: &ServiceCluster, lock: &str| {
            let client = connect(&cluster.url()).await;
            let (held, left) = (take(&client, lock).await, client.clone());
            let token = held.token().unwrap();
            std::mem::forget((held, left));
            token
        };
        ask(&cluster, "first").await;
        let knows = leader(&cluster).await;
        let (old, absent) = ((knows + 1) % 3, (knows + 2) % 3);
        // A follower learns with the next message what is committed.
        let config = Config::parse(cluster.url().strip_prefix("palisade:").unwrap()).unwrap();
        let have_all = async || {
            let Ok(status) = cluster_status(&config).await else { return false };
            let applied =
                |member: &MemberStatus| member.state.as_ref().is_some_and(|it| it.applied == status.last_index);
            status.members.iter().all(applied)
        };
        until("all nodes know the first grant", have_all).await;
        cluster.terminate(old);
        let (directory, copy) = (cluster.directory(old), folder.path().join("copy"));
        std::process::Command::new("cp").arg("-r").args([&directory, &copy]).status().unwrap();
        cluster.restart(old).unwrap();
        cluster.kill(absent);
        let mut last = ask(&cluster, "orders").await;
        for lock in ["users", "mails"] {
            last = last.max(ask(&cluster, lock).await);
        }
        cluster.kill(knows);
        cluster.kill(old);
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::rename(&copy, &directory).unwrap();
        cluster.restart(old).unwrap();
        cluster.restart(absent).unwrap();
        let token = ask(&cluster, "orders").await;
        assert!(token > last, "{token} follows {last}");
        cluster.restart(knows).unwrap();
        while !cluster.log(knows).contains("LostElsewhere") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Its log and its vote are gone, and its identity is not.
#[test]
fn a_node_that_lost_its_log_does_not_start() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let client = connect(&cluster.url()).await;
        let held = take(&client, "orders").await;
        cluster.kill(0);
        until_another_leads(&cluster, 0).await;
        for file in std::fs::read_dir(cluster.directory(0)).unwrap().map(Result::unwrap) {
            if file.file_name() != "identity" {
                std::fs::remove_file(file.path()).unwrap();
            }
        }
        cluster.restart(0).unwrap();
        while !cluster.log(0).contains("Replace") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        release(&held).await;
    });
}

#[test]
#[ignore = "long: several seconds"]
fn garbage_on_the_port_of_the_nodes_disturbs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    drop(Credentials::new(folder.path()));
    let files = folder.path().display().to_string();
    for variables in [vec![], vec![("SERVE_PEER_TLS", files.as_str())]] {
        let folder = tempfile::tempdir().unwrap();
        let cluster = start(&variables, folder.path());
        check(BOUND, async {
            let client = connect(&cluster.url()).await;
            let held = take(&client, "orders").await;
            for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0xff; 64], &[0; 64], b"*1\r\n$4\r\nPING\r\n", b""] {
                for at in 0..cluster.len() {
                    let mut stream = TcpStream::connect(cluster.peer(at)).unwrap();
                    stream.set_read_timeout(Some(BOUND)).unwrap();
                    stream.write_all(garbage).unwrap();
                    // It is closed within the bound of a greeting, whatever it was told.
                    let mut answer = Vec::new();
                    drop(stream.read_to_end(&mut answer));
                    assert!(answer.len() < 1_000, "{answer:?}");
                }
            }
            release(&held).await;
        });
    }
}
