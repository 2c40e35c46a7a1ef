//! Uses that Consul's limits and other programs make difficult.

use std::net::TcpStream;

use futures_util::future::join_all;
use palisade::Options;
use palisade_testbench::bounded::{until, until_some};
use palisade_testbench::fixture::until_lock;
use palisade_testbench::proxy::Towards;
use palisade_testbench::servers::Consul;

use super::fixture::{Fixture, LONG_TTL, check, inspect, take, taken, taking, token, until_idle, until_queued};

/// Consul accepts 200 connections of one host. A client that asks for 300 locks at once, and waits for all of them, uses few.
#[test]
fn three_hundred_waits_share_a_few_connections() {
    check(async {
        const LOCKS: usize = 300;
        let fixture = Fixture::alone();
        let (holder, client) = (fixture.client(LONG_TTL).await, fixture.through_proxy(LONG_TTL).await);
        let names: Vec<_> = (0..LOCKS).map(|number| format!("many/{number}")).collect();
        let held = join_all(names.iter().map(|name| take(&holder, name))).await;
        let waiters: Vec<_> = names.iter().map(|name| taking(&client, name)).collect();
        let all_wait = async || {
            let locks = holder.list("many/").await.expect("a list");
            locks.iter().filter(|lock| lock.waiters.len() == 1).count() == LOCKS
        };
        until("all wait", all_wait).await;
        let open = fixture.proxy.accepted() - fixture.proxy.ended();
        assert!(open <= 80, "{open} connections");
        let released = join_all(held.iter().map(|held| held.release())).await;
        assert!(released.iter().all(Result::is_ok), "{released:?}");
        for waiter in waiters {
            taken(waiter).await;
        }
    });
}

/// Consul closes a connection above its limit without an answer. The error names the limit.
#[test]
fn an_exhausted_limit_of_connections_is_reported_with_its_name() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = "limits { http_max_conns_per_client = 8 }";
        let consul = Consul::start_with(folder.path(), settings).unwrap_or_else(|absent| panic!("{absent}"));
        let url = format!("consul://{}", consul.address);
        // Consul counts a connection when it accepts it, and closes one that is too many.
        let mut others = Vec::new();
        let refused = async || {
            others.push(TcpStream::connect(consul.address).expect("a connection"));
            Options::new().connect(&url).await.map(drop).err().map(|error| error.to_string())
        };
        let text = until_some("a connection is refused", refused).await;
        assert!(text.contains("limits.http_max_conns_per_client") && text.contains("raise"), "{text}");
        drop(others);
        until("it is let in", async || Options::new().connect(&url).await.is_ok()).await;
    });
}

/// The name of a lock is any text. Names that differ, or of which one is the beginning of another, are different locks.
#[test]
fn odd_names_are_different_locks() {
    check(async {
        let fixture = Fixture::shared();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let long = "ü".repeat(256);
        let names = [
            "a",
            "A",
            "a/",
            "/a",
            "a//b",
            "a/b",
            "a%2Fb",
            "a%2fb",
            ".",
            "..",
            "../..",
            "../offset",
            "a b",
            " a",
            "a ",
            "%",
            "%00",
            "ä/ö",
            "🦀",
            "a?b&index=1",
            "a#b",
            "a\\b",
            "a:b-1",
            "0000000000001f-1",
            "lock",
            "session",
            "offset",
            "'\"",
            &long,
        ];
        let held = join_all(names.iter().map(|name| take(&client, name))).await;
        let waiters: Vec<_> = names.iter().map(|name| taking(&other, name)).collect();
        for name in names {
            until_queued(&client, name, 1).await;
            assert_eq!(inspect(&client, name).await.expect("it is held").name.as_str(), name);
        }
        let mut listed: Vec<_> = client.list("").await.expect("a list").into_iter().map(|lock| lock.name).collect();
        listed.sort_unstable();
        let mut expected = names.to_vec();
        expected.sort_unstable();
        assert_eq!(listed.iter().map(|name| name.as_str()).collect::<Vec<_>>(), expected);
        for prefix in ["a/", "a%", "ü", "a b"] {
            let listed = client.list(prefix).await.expect("a list");
            assert_eq!(listed.len(), names.iter().filter(|name| name.starts_with(prefix)).count(), "{prefix}");
        }
        for ((name, held), waiter) in names.iter().zip(held).zip(waiters) {
            assert!(!waiter.is_finished(), "{name}");
            held.release().await.expect("released");
            taken(waiter).await.release().await.expect("released");
            until_idle(&client, name).await;
        }
        assert_eq!(fixture.keys("lock/"), [""; 0]);
    });
}

/// Sets of locks under different prefixes have nothing in common, also if one prefix is the beginning of the other.
#[test]
fn two_prefixes_are_two_sets_of_locks() {
    check(async {
        let fixture = Fixture::shared();
        let connect = async |prefix: &str| {
            let url = format!("consul://{}/{prefix}", fixture.address);
            Options::new().connect(&url).await.expect("a client")
        };
        let prefixes = ["", "2", "/a%20b%3Fc%25d", "-"].map(|end| format!("{}{end}", fixture.prefix));
        let clients = join_all(prefixes.iter().map(|prefix| connect(prefix))).await;
        let mut held = Vec::new();
        for client in &clients {
            held.push(take(client, "lock").await);
            let waiter = taking(client, "lock");
            until_queued(client, "lock", 1).await;
            waiter.abort();
            until_queued(client, "lock", 0).await;
        }
        for (client, held) in clients.iter().zip(&held) {
            let listed = client.list("").await.expect("a list");
            assert_eq!(listed.len(), 1);
            assert_eq!(listed[0].holders[0].token, token(held));
        }
        clients[0].clone().close().await.expect("closed");
        assert!(held[1].token().is_ok() && held[2].token().is_ok());
        take(&clients[1], "another").await;
    });
}

/// Acquires are given up, one after it was granted and one that waits. Copies of them arrive after that: they create no claims.
#[test]
fn a_late_copy_of_an_acquire_creates_no_claim() {
    check(async {
        let fixture = Fixture::shared();
        let (client, other) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&other, "held").await;
        // There are idle connections for both requests.
        let [first, second] = [taking(&client, "first"), taking(&client, "second")];
        drop((taken(first).await, taken(second).await));
        until_idle(&other, "second").await;
        let before = fixture.proxy.accepted();
        fixture.proxy.hold(Towards::Server);
        let acquiring = [taking(&client, "free"), taking(&client, "held")];
        // The requests are not answered in time, and the client sends them again on other connections.
        until_queued(&other, "held", 1).await;
        until_lock(&other, "free", "is held", |lock| lock.is_some()).await;
        for acquiring in acquiring {
            acquiring.abort();
        }
        until_idle(&other, "free").await;
        until_queued(&other, "held", 0).await;
        fixture.proxy.pass();
        fixture.proxy.until_ended(before).await;
        take(&client, "another").await.release().await.expect("released");
        assert_eq!(fixture.keys("lock/").len(), 1, "only the lock that the other client holds");
        held.release().await.expect("released");
        client.close().await.expect("closed");
        other.close().await.expect("closed");
        assert_eq!(fixture.keys(""), [""; 0]);
    });
}

/// The leader is gone while an acquire and a release are under way, and comes back: neither is lost nor done twice.
#[test]
fn a_server_that_dies_during_an_acquire_and_a_release_loses_neither() {
    check(async {
        let mut fixture = Fixture::alone();
        let client = fixture.through_proxy(LONG_TTL).await;
        let first = take(&client, "released").await;
        let before = token(&first);
        for round in 0..2 {
            fixture.proxy.hold(Towards::Client);
            let acquiring = taking(&client, "lock");
            let sent = fixture.requests().len();
            until("it is sent", async || fixture.requests().len() > sent || round == 1).await;
            fixture.consul_mut().kill();
            fixture.proxy.cut();
            fixture.consul_mut().restart().expect("it starts again");
            fixture.proxy.pass();
            let held = taken(acquiring).await;
            assert_eq!(fixture.create_index("lock"), token(&held).get());
            let releasing = tokio::spawn(async move { held.release().await });
            if round == 0 {
                fixture.consul_mut().kill();
                fixture.consul_mut().restart().expect("it starts again");
            }
            drop(releasing.await.expect("no panic"));
            until_idle(&client, "lock").await;
        }
        assert_eq!(token(&first), before, "the session survives");
    });
}
