//! Nodes whose disk is full, or does not flush: they stop before they confirm anything, and the others go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_testbench::bounded::{check, until};
use palisade_testbench::servers::ServiceCluster;

use crate::failures::under_load;
use crate::fixture::{BOUND, connect, leader, release, start, until_another_leads};

/// Starts a cluster, with a switch on the disk of each node.
fn with_switches(folder: &Path) -> (ServiceCluster, Vec<PathBuf>) {
    let mut cluster = start(&[], folder);
    let switches: Vec<_> = (0..cluster.len()).map(|at| folder.join(format!("switch{at}"))).collect();
    for (at, switch) in switches.iter().enumerate() {
        cluster.set_variable(at, "SERVE_DISK_SWITCH", switch.to_str());
        cluster.restart(at).unwrap();
        check(BOUND, leader(&cluster));
    }
    (cluster, switches)
}

async fn until_ended(cluster: &mut ServiceCluster, at: usize) {
    until("the node stops", async || cluster.has_ended(at)).await;
    let log = cluster.log(at);
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
#[ignore = "long: disks that fail"]
fn a_disk_that_fails_on_one_node_costs_no_grant() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cluster, switches) = with_switches(folder.path());
    check(BOUND, async {
        let after = under_load(&mut cluster, async |cluster| {
            for fault in ["full", "flush"] {
                for distance in [0, 1] {
                    let leader = leader(cluster).await;
                    let failing = (leader + distance) % 3;
                    fs::write(&switches[failing], fault).unwrap();
                    until_ended(cluster, failing).await;
                    if failing == leader {
                        until_another_leads(cluster, leader).await;
                    }
                    fs::remove_file(&switches[failing]).unwrap();
                    cluster.restart(failing).unwrap();
                    let url = format!("palisade://{}", cluster.address(failing));
                    until("the node is back", async || palisade::connect(&url).await.is_ok()).await;
                }
            }
        });
        assert!(after.await >= 100);
    });
}

/// Two nodes of three run, so each of them is needed. The one whose disk fails may have sent nothing that counts on its disk.
#[test]
#[ignore = "long: disks that fail"]
fn a_node_whose_disk_fails_has_confirmed_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cluster, switches) = with_switches(folder.path());
    check(BOUND, async {
        let client = connect(&cluster.url()).await;
        for (fault, distance) in [("full", 0), ("full", 1), ("flush", 0), ("flush", 1)] {
            let leader = leader(&cluster).await;
            let (failing, absent) = ((leader + distance) % 3, (leader + 2) % 3);
            cluster.kill(absent);
            fs::write(&switches[failing], fault).unwrap();
            let (client, lock) = (client.clone(), format!("{fault}/{distance}"));
            let asking = tokio::spawn(async move {
                loop {
                    match client.lock(&lock).acquire().await {
                        Ok(guard) => return guard,
                        // No node leads.
                        Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            });
            until_ended(&mut cluster, failing).await;
            // The answer of the failing node would have arrived by now.
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(!asking.is_finished(), "{fault}: one of three nodes has written the grant, and it is confirmed");
            fs::remove_file(&switches[failing]).unwrap();
            [failing, absent].iter().for_each(|at| cluster.restart(*at).unwrap());
            release(&asking.await.unwrap()).await;
        }
    });
}
