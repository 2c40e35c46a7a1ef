//! Nodes and programs that must not take part.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use palisade::Options;
use palisade_testbench::bounded::check;
use palisade_testbench::credentials::Credentials;

use crate::fixture::{BOUND, TTL, cluster, start, until_another_leads};

/// It may have promised what it does not know any more.
#[test]
fn a_node_that_lost_its_directory_is_not_let_back_in() {
    for at in 0..3 {
        let (mut cluster, _folder) = cluster();
        check(BOUND, async {
            let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
            let held = client.lock("orders").acquire().await.unwrap();
            cluster.kill(at);
            until_another_leads(&cluster, at).await;
            std::fs::remove_dir_all(cluster.directory(at)).unwrap();
            cluster.restart(at).unwrap();
            let said = |cluster: &palisade_testbench::servers::ServiceCluster| {
                (0..3).map(|at| cluster.log(at)).any(|log| {
                    log.contains("this node is empty and belongs to no cluster")
                        || log.contains("this node belongs to cluster")
                })
            };
            while !said(&cluster) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            held.release().await.unwrap();
            assert_ne!(cluster.leader(), Some(at));
        });
    }
}

/// Its log and its vote are gone, and its identity is not.
#[test]
fn a_node_that_lost_its_log_does_not_start() {
    let (mut cluster, _folder) = cluster();
    check(BOUND, async {
        let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
        let held = client.lock("orders").acquire().await.unwrap();
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
        held.release().await.unwrap();
    });
}

#[test]
fn garbage_on_the_port_of_the_nodes_disturbs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    drop(Credentials::new(folder.path()));
    let files = folder.path().display().to_string();
    for variables in [vec![], vec![("SERVE_PEER_TLS", files.as_str())]] {
        let folder = tempfile::tempdir().unwrap();
        let cluster = start(&variables, folder.path());
        check(BOUND, async {
            let client = Options::new().ttl(TTL).connect(&cluster.url()).await.unwrap();
            let held = client.lock("orders").acquire().await.unwrap();
            for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0xff; 64], &[0; 64], b"*1\r\n$4\r\nPING\r\n", b""] {
                for at in 0..cluster.len() {
                    let mut stream = TcpStream::connect(cluster.peer(at)).unwrap();
                    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    stream.write_all(garbage).unwrap();
                    // It is closed within the bound of a greeting, whatever it was told.
                    let mut answer = Vec::new();
                    drop(stream.read_to_end(&mut answer));
                    assert!(answer.len() < 1_000, "{answer:?}");
                }
            }
            held.release().await.unwrap();
        });
    }
}
