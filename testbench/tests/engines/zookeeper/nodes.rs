//! The nodes: what other programs see of them, and what they can do to them.

use std::time::Duration;

use futures_util::future::join_all;
use palisade::{ErrorKind, Misuse, Options, Refusal, Token};
use zookeeper_client::{Acls, CreateMode};

use super::fixture::{
    LONG_TTL, alone, check, connect, inspect, raw, shared, take, taken, taking, token, try_take, until, until_queued,
    usual,
};

/// The sequence begins again when the server has removed the empty parent; the token does not.
#[test]
fn tokens_rise_when_the_parent_was_removed_and_the_sequence_begins_again() {
    check(async {
        let fixture = shared();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let parent = format!("{}/locks/lock/claims", fixture.root);
        let mut last = None;
        for _ in 0..3 {
            let guard = take(&alice, "lock").await;
            let nodes = client.list_children(&parent).await.expect("the lock's node");
            assert!(nodes.len() == 1 && nodes[0].ends_with("-x-0000000000"), "{nodes:?}");
            assert!(Some(token(&guard)) > last);
            last = Some(token(&guard));
            guard.release().await.expect("it is held");
            // The server may be faster.
            drop(client.delete(&parent, None).await);
        }
    });
}

/// The token is the transaction that created the claim, plus the number by which tokens were raised, also after a wait.
#[test]
fn the_token_is_the_czxid_of_the_claim_and_the_offset() {
    check(async {
        let fixture = shared();
        let (alice, bob, client) =
            (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let parent = format!("{}/locks/lock/claims", fixture.root);
        for above in [None, Token::new(1 << 50).ok()] {
            if let Some(above) = above {
                alice.raise_tokens(above).await.expect("raised");
            }
            let (offset, _) = client.get_data(&format!("{}/offset", fixture.root)).await.expect("the offset");
            let offset: u64 = String::from_utf8(offset).expect("text").parse().expect("a number");
            let guard = take(&alice, "lock").await;
            let waiting = taking(&bob, "lock");
            until_queued(&alice, "lock", 1).await;
            let mut czxids = Vec::new();
            for node in client.list_children(&parent).await.expect("the lock's node") {
                let stat = client.check_stat(&format!("{parent}/{node}")).await.expect("an answer");
                czxids.push(stat.expect("a claim").czxid as u64);
            }
            czxids.sort_unstable();
            let first = token(&guard);
            guard.release().await.expect("it is held");
            let second = taken(waiting).await;
            let tokens = [first, token(&second)].map(|token| token.get() - offset);
            assert_eq!(czxids, tokens);
            second.release().await.expect("it is held");
        }
    });
}

/// The server itself removes the parents of locks that are not in use, and a client that knew them creates them again.
#[test]
#[ignore = "long: several seconds"]
fn the_server_removes_the_nodes_of_unused_locks() {
    check(async {
        let fixture = shared();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let parent = format!("{}/locks/lock/claims", fixture.root);
        let mut last = None;
        for _ in 0..3 {
            let guard = take(&alice, "lock").await;
            assert!(Some(token(&guard)) > last);
            last = Some(token(&guard));
            guard.release().await.expect("it is held");
            until("the node is removed", async || client.check_stat(&parent).await.expect("an answer").is_none())
                .await;
        }
    });
}

/// Nodes of other programs below a lock's node neither hold the lock nor disturb it.
#[test]
fn a_foreign_node_does_not_hold_the_lock() {
    check(async {
        let fixture = shared();
        let (alice, bob, client) =
            (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let guard = take(&alice, "lock").await;
        let foreign = format!("{}/locks/lock/claims/5f3e__lock__", fixture.root);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        client.create(&foreign, b"", &options).await.expect("kazoo's node");
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        guard.release().await.expect("it is held");
        taken(waiting).await.release().await.expect("it is held");
    });
}

/// A waiter whose node was deleted gets an error, never a grant.
#[test]
fn a_waiter_whose_node_was_deleted_is_told() {
    check(async {
        let fixture = shared();
        let (alice, bob, client) =
            (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let parent = format!("{}/locks/lock/claims", fixture.root);
        // The keeper undoes the acquire, and waits for that for a moment only.
        until("the error says that nothing has changed", async || {
            let guard = take(&alice, "lock").await;
            let waiting = taking(&bob, "lock");
            until_queued(&alice, "lock", 1).await;
            let mut nodes = client.list_children(&parent).await.expect("the lock's node");
            nodes.sort_unstable_by_key(|node| node.rsplit('-').next().map(str::to_owned));
            client.delete(&format!("{parent}/{}", nodes[1]), None).await.expect("bob's node");
            guard.release().await.expect("it is held");
            let error = waiting.await.expect("it does not panic").expect_err("its node is gone");
            assert!(error.to_string().contains("deleted"), "{error}");
            assert!(try_take(&bob, "lock").await.is_some());
            !error.may_have_taken_effect()
        })
        .await;
    });
}

/// A client does not notice the deletion of its node at once, but it frees no newer grant.
#[test]
fn a_holder_whose_session_node_was_deleted_loses_its_locks() {
    check(async {
        let fixture = shared();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let guard = take(&alice, "lock").await;
        let sessions = format!("{}/sessions", fixture.root);
        let nodes = client.list_children(&sessions).await.expect("sessions");
        client.delete(&format!("{sessions}/{}", nodes[0]), None).await.expect("alice's node");
        guard.lost().await;
        until("the lock is free", async || inspect(&alice, "lock").await.is_none()).await;
    });
}

/// A server closes the connection after a request of 1 MiB. The paths of a long queue have more.
#[test]
#[ignore = "long: crowds"]
fn a_long_queue_is_read_in_parts() {
    check(async {
        let fixture = alone();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        // Each slash has three bytes in a path.
        let lock = "/".repeat(512);
        let guard = take(&alice, &lock).await;
        let claims = format!("{}/locks/{}/claims", fixture.root, "%2F".repeat(512));
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        for (prefix, waiters) in [("1f", 700), ("2f", 1400)] {
            // The second half are sets that are not granted.
            let path = |number: usize| {
                let mode = if number < 350 { "x" } else { "mx" };
                format!("{claims}/{prefix}-{}-{mode}-", number + 1)
            };
            let paths: Vec<_> = (0..700).map(path).collect();
            let created = join_all(paths.iter().map(|path| client.create(path, b"{}", &options))).await;
            assert!(created.iter().all(Result::is_ok));
            let seen = inspect(&alice, &lock).await.expect("it is held");
            assert_eq!((seen.holders.len(), seen.waiters.len()), (1, waiters));
            assert_eq!(alice.list("/").await.expect("a list")[0].waiters.len(), waiters);
        }
        let error = alice.raise_tokens(Token::new(1 << 50).expect("a token")).await.expect_err("claims are lower");
        assert!(error.to_string().contains("lower tokens"), "{error}");
        let mut watch = alice.watch("").await.expect("a watch");
        assert!(try_take(&alice, &lock).await.is_none());
        drop(guard);
        watch.next().await.expect("an event");
        until("it is released", async || inspect(&alice, &lock).await.expect("claims").holders.len() == 1).await;
        alice.force_release(&lock, "a test").await.expect("the first waiter holds it");
    });
}

/// The rights to one node of a queue are missing. The error names the node.
#[test]
fn a_node_without_rights_is_named() {
    check(async {
        let fixture = shared();
        let (alice, evil) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        evil.auth("digest", b"evil:evil").await.expect("logged in");
        let mut held = Vec::new();
        for lock in ["a", "b", "c"] {
            held.push(take(&alice, lock).await);
        }
        // ZooKeeper deletes the node of a lock that has no claims.
        let claim = format!("{}/locks/b/claims/1f-1-x-", fixture.root);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::creator_all());
        evil.create(&claim, b"{}", &options).await.expect("created");
        for guard in held {
            guard.release().await.expect("it is held");
        }
        let above = Token::new(1 << 50).expect("a token");
        for (what, error) in [
            ("ls", alice.list("").await.map(drop).expect_err("one node is closed")),
            ("show", alice.inspect("b").await.map(drop).expect_err("it is closed")),
            ("break", alice.force_release("b", "a test").await.map(drop).expect_err("it is closed")),
            ("raise", alice.raise_tokens(above).await.map(drop).expect_err("one node is closed")),
            ("watch", alice.watch("").await.map(drop).expect_err("one node is closed")),
        ] {
            let text = error.to_string();
            assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{what}: {text}");
            assert!(text.contains(&claim), "{what}: {text}");
        }
    });
}

/// With a user, nodes are that user's.
#[test]
#[ignore = "long: several seconds"]
fn a_user_has_its_nodes_alone() {
    check(async {
        let fixture = shared();
        let url = |login: &str| format!("zookeeper://{login}{}/secret", fixture.address);
        let alice = connect(&url("shop:xyzzy@"), LONG_TTL).await;
        let guard = take(&alice, "lock").await;
        for login in ["", "shop:wrong@", "other:xyzzy@"] {
            let error = Options::new().connect(&url(login)).await.map(drop).expect_err("these are not its nodes");
            assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{error}");
            assert!(!error.to_string().contains("xyzzy"), "{error}");
        }
        let bob = connect(&url("shop:xyzzy@"), LONG_TTL).await;
        assert!(try_take(&bob, "lock").await.is_none());
        guard.release().await.expect("it is held");
        assert!(try_take(&bob, "lock").await.is_some());
    });
}

/// The server bounds the timeouts of sessions: a TTL that it would shorten is refused.
#[test]
#[ignore = "long: waits of several TTLs"]
fn a_ttl_that_the_server_would_shorten_is_refused() {
    check(async {
        let fixture = usual();
        let url = format!("zk://{}", fixture.address);
        let error = Options::new().ttl(Duration::from_secs(31)).connect(&url).await.map(drop);
        let error = error.expect_err("the server has a limit of 40 s");
        let ErrorKind::Misuse(Misuse::Refused(Refusal::OverLimit { max, .. })) = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(*max, 30_000);
        drop(take(&connect(&url, Duration::from_secs(30)).await, "lock").await);
    });
}
