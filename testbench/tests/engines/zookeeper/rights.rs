//! Nodes of a lock, and rights to them, that an operator takes away while a client uses the lock.

use palisade::ErrorKind;
use zookeeper_client::{Acl, AuthId, Client, Permission};

use super::fixture::{LONG_TTL, check, raw, shared, take, taking, try_take, until, until_idle, until_queued};

const CLAIMS: &str = "locks/lock/claims";

/// Lets every client do this with the node, and change its rights. The server may have removed the node while it was empty: a new one
/// has all rights.
async fn allow(client: &Client, path: &str, permission: Permission) {
    let acl = Acl::new(permission | Permission::ADMIN, AuthId::anyone());
    match client.set_acl(path, &[acl], None).await {
        Ok(_) | Err(zookeeper_client::Error::NoNode) => {}
        Err(error) => panic!("the rights of {path} cannot be changed: {error}"),
    }
}

/// The claim of an acquire that does not wait cannot be deleted at once.
#[test]
fn an_acquire_that_fails_while_its_claim_stands_is_undone_later() {
    check(async {
        let fixture = shared();
        let (alice, bob, client) =
            (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let path = format!("{}/{CLAIMS}", fixture.root);
        let held = take(&bob, "lock").await;
        allow(&client, &path, Permission::READ | Permission::WRITE | Permission::CREATE).await;
        let error = alice.lock("lock").try_acquire().await.expect_err("its claim cannot be deleted");
        assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
        until_queued(&bob, "lock", 1).await;
        allow(&client, &path, Permission::ALL).await;
        until_queued(&bob, "lock", 0).await;
        held.release().await.expect("it is held");
    });
}

/// Otherwise its claim would be granted later, although no caller waits for it.
#[test]
fn a_waiter_that_is_denied_leaves_the_queue() {
    check(async {
        let fixture = shared();
        let (alice, bob, client) =
            (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let path = format!("{}/{CLAIMS}", fixture.root);
        // The claim is deleted at once, so that nothing has changed. The keeper waits for that for a moment only.
        until("the error says that the acquire was denied", async || {
            let held = take(&bob, "lock").await;
            let waiting = taking(&alice, "lock");
            until_queued(&bob, "lock", 1).await;
            allow(&client, &path, Permission::WRITE | Permission::CREATE | Permission::DELETE).await;
            held.release().await.expect("it is held");
            let error = waiting.await.expect("no panic").expect_err("it may not read the queue");
            allow(&client, &path, Permission::ALL).await;
            until_idle(&bob, "lock").await;
            assert!(try_take(&bob, "lock").await.is_some());
            assert!(!error.is_retryable(), "{error}");
            matches!(error.kind(), ErrorKind::Denied { .. })
        })
        .await;
    });
}

/// Another program has deleted the claim at one of several locks. The claims at the others would be granted later, although
/// no caller waits for them.
#[test]
fn a_waiter_for_several_locks_that_has_lost_one_claim_leaves_all_queues() {
    check(async {
        let fixture = shared();
        let (alice, bob, client) =
            (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let held = take(&bob, "lock").await;
        let waiting = tokio::spawn(alice.lock_all(["lock", "other"]).acquire());
        until_queued(&bob, "lock", 1).await;
        let claims = format!("{}/locks/other/claims", fixture.root);
        let nodes = client.list_children(&claims).await.expect("the lock's node");
        client.delete(&format!("{claims}/{}", nodes[0]), None).await.expect("deleted");
        held.release().await.expect("it is held");
        let error = waiting.await.expect("no panic").expect_err("one claim is gone");
        assert!(error.to_string().contains("request the lock again"), "{error}");
        until_idle(&bob, "lock").await;
        assert!(try_take(&bob, "lock").await.is_some());
    });
}
