//! Replicas, Sentinels, and writes that a failover loses (fault 31).

use palisade::engine::redis::{Config, survey};
use palisade::{Loss, Palisade};
use palisade_testbench::servers::{Redis, Sentinel};
use tempfile::TempDir;

use super::fixture::{LONG_TTL, check, connect, give_back, take, taking, token, until, until_queued};

const SECRET: &str = "xyzzy";

/// A primary and a replica, and a Sentinel that watches over them.
struct Fixture {
    primary: Redis,
    replica: Redis,
    sentinel: Sentinel,
    // Removed after the processes have ended.
    _folder: TempDir,
}

impl Fixture {
    async fn new() -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        let start = |name: &str, more: &[&str]| {
            let options = [&["--requirepass", SECRET, "--masterauth", SECRET], more].concat();
            Redis::start_with(&folder.path().join(name), &options).unwrap_or_else(|absent| panic!("{absent}"))
        };
        let primary = start("primary", &[]);
        let port = primary.address.port().to_string();
        let replica = start("replica", &["--replicaof", "127.0.0.1", &port]);
        let secret = format!("sentinel auth-pass main {SECRET}");
        let sentinel = Sentinel::start(folder.path(), primary.address, &[&secret]);
        let fixture = Fixture {
            primary,
            replica,
            sentinel: sentinel.unwrap_or_else(|absent| panic!("{absent}")),
            _folder: folder,
        };
        until("the replica is connected", async || {
            ask(&fixture.replica, &["INFO", "replication"]).contains("master_link_status:up")
        })
        .await;
        until("the sentinel knows the replica", async || {
            fixture.sentinel.cli(&["SENTINEL", "replicas", "main"]).contains("slave")
        })
        .await;
        fixture
    }

    fn url(&self) -> String {
        format!("redis://:{SECRET}@{}/?sentinel=main", self.sentinel.address)
    }

    async fn client(&self) -> Palisade {
        connect(&self.url(), LONG_TTL).await
    }

    /// Waits until the replica has all that was written so far.
    async fn until_replicated(&self) {
        until("the replica has everything", async || {
            offset(&self.primary, "master_repl_offset") == offset(&self.replica, "slave_repl_offset")
        })
        .await;
    }

    /// The primary dies, and the replica takes its place.
    async fn fail_over(&mut self) {
        self.primary.kill();
        self.sentinel.hurry();
        let promoted = self.replica.address.port().to_string();
        until("the sentinel names the new primary", async || {
            self.sentinel.cli(&["SENTINEL", "get-master-addr-by-name", "main"]).contains(&promoted)
        })
        .await;
        until("the replica is promoted", async || ask(&self.replica, &["ROLE"]).starts_with("master")).await;
    }
}

fn ask(redis: &Redis, words: &[&str]) -> String {
    redis.cli(&[&["--no-auth-warning", "-a", SECRET], words].concat())
}

#[test]
#[ignore = "long: failovers"]
fn a_failover_to_a_replica_that_has_everything_loses_nothing() {
    check(async {
        let mut fixture = Fixture::new().await;
        let (alice, bob, url) = (fixture.client().await, fixture.client().await, fixture.url());
        let (_, place) = url.split_once(':').expect("a URL");
        let seen = survey(&Config::parse(place).expect("a URL")).await.expect("it can be looked at");
        assert_eq!(seen.replicas, Some(1), "this is the primary");
        let held = take(&alice, "lock").await;
        let before = token(&held);
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        fixture.until_replicated().await;
        fixture.fail_over().await;
        assert_eq!(token(&held), before);
        give_back(&held).await;
        let next = waiting.await.expect("it does not panic").expect("it is bob's turn");
        assert!(token(&next) > before);
    });
}

fn offset(redis: &Redis, which: &str) -> Option<String> {
    let info = ask(redis, &["INFO", "replication"]);
    info.lines().find_map(|line| Some(line.strip_prefix(which)?.trim_start_matches(':').trim().to_owned()))
}

/// Writes that were not replicated are lost, as declared. A client that has seen a higher token notices it and names the loss.
#[test]
#[ignore = "long: failovers"]
fn a_replica_that_is_promoted_before_it_had_caught_up_is_noticed_and_named() {
    check(async {
        let mut fixture = Fixture::new().await;
        let alice = fixture.client().await;
        drop(take(&alice, "before").await);
        fixture.until_replicated().await;
        // From here on the replica gets no more writes.
        ask(&fixture.replica, &["CONFIG", "SET", "masterauth", "wrong"]);
        ask(&fixture.primary, &["CLIENT", "KILL", "TYPE", "replica"]);
        let held = take(&alice, "lock").await;
        fixture.fail_over().await;
        let Loss::DataLost { what } = held.lost().await else { panic!("{:?}", held.lost().await) };
        assert!(what.contains("went back") && what.contains("failover"), "{what}");
        let error = alice.lock("lock").efficiency().acquire().await.expect_err("it does not go on");
        assert!(!error.is_retryable() && error.to_string().contains("failover"), "{error}");
    });
}

#[test]
#[ignore = "long: failovers"]
fn a_grant_that_replicas_do_not_have_in_time_is_not_handed_out() {
    check(async {
        let fixture = Fixture::new().await;
        let url = format!("{}&replicas=1&replica_timeout=200", fixture.url());
        let alice = connect(&url, LONG_TTL).await;
        let held = take(&alice, "lock").await;
        let waiting = taking(&alice, "lock");
        until_queued(&alice, "lock", 1).await;
        held.release().await.expect("it is held");
        // A grant that was pushed is confirmed, too.
        drop(waiting.await.expect("it does not panic").expect("it is its turn"));
        fixture.replica.stop();
        let error = alice.lock("lock").efficiency().try_acquire().await.expect_err("no replica has confirmed it");
        assert!(error.to_string().contains("0 of 1 replicas") && error.is_retryable(), "{error}");
        assert_eq!(alice.inspect("lock").await.expect("an answer"), None, "it was not given back");
        fixture.replica.go_on();
    });
}
