//! Nodes of different versions.

use palisade::engine::service::{ClusterError, Config, cluster_remove, cluster_status};
use palisade_testbench::bounded::{check, until, until_some};

use crate::fixture::{BOUND, calm, connect, leader, take};

/// A node that knows an older log gets no entry that it cannot read. Upgraded, it does not stand in the way any more.
#[test]
fn an_older_node_keeps_the_others_from_what_it_does_not_know() {
    // The leader stays, so that neither of these nodes leads.
    calm(&[], |cluster| {
        check(BOUND, async {
            let config = Config::parse(cluster.url().strip_prefix("palisade:").unwrap()).unwrap();
            let leader = leader(cluster).await;
            let (old, removed) = ((leader + 1) % 3, (leader + 2) % 3);
            let (old_name, removed) = (format!("node{}", old + 1), format!("node{}", removed + 1));
            cluster.kill(old);
            cluster.set_variable(old, "SERVE_LOG_VERSION", Some("1"));
            cluster.restart(old).unwrap();
            let is_refused = async || match cluster_remove(&config, &removed).await {
                Err(ClusterError::Refused(why)) => why.contains(&format!("'{old_name}' runs an older build")),
                Err(_) => false,
                Ok(()) => panic!("the node that knows an older log gets an entry that it cannot read"),
            };
            // Its answer to a new entry comes after its greeting, which says its version.
            let client = connect(&cluster.url()).await;
            drop(take(&client, "orders").await);
            let status = until_some("the nodes are listed", async || cluster_status(&config).await.ok()).await;
            let written = status.last_index;
            until("the node has answered", async || has_written(&config, &old_name, written).await).await;
            until("the change is refused", is_refused).await;
            cluster.kill(old);
            cluster.set_variable(old, "SERVE_LOG_VERSION", None);
            cluster.restart(old).unwrap();
            until("the change is accepted", async || cluster_remove(&config, &removed).await.is_ok()).await;
            until("the node is gone", async || {
                cluster_status(&config).await.is_ok_and(|status| status.members.len() == 2)
            })
            .await;
        });
    });
}

async fn has_written(config: &Config, name: &str, entry: u64) -> bool {
    let Ok(status) = cluster_status(config).await else { return false };
    status.members.iter().any(|member| member.name == name && member.matched.is_some_and(|matched| matched >= entry))
}
