//! Restored copies, and nodes that other programs delete or write.

use std::time::Duration;

use palisade::{LockGuard, Loss, Token};
use palisade_testbench::bounded::{until_some, within};
use palisade_testbench::fixture::retryable;
use zookeeper_client::{Acls, CreateMode};

use super::fixture::{LONG_TTL, alone, check, inspect, raw, shared, take, until};

fn high() -> Token {
    Token::new(1 << 50).expect("a token")
}

/// An older copy of the data would give tokens again: a client that was connected before gets none of them.
#[test]
#[ignore = "long: several seconds"]
fn a_restored_copy_is_noticed() {
    check(async {
        let mut fixture = alone();
        let client = fixture.client(Duration::from_secs(5)).await;
        let copy = tempfile::tempdir().expect("a folder");
        fixture.server_mut().save(copy.path()).expect("it starts again");
        // The session ends while the server is down for long or the machine stands still, and an acquire of that session fails with it.
        let take_again = async || retryable(client.lock("lock").acquire().await);
        for _ in 0..20 {
            give_up(&until_some("it grants", &take_again).await).await;
        }
        let held = until_some("it grants", &take_again).await;
        fixture.server_mut().restore(copy.path()).expect("it starts again");
        within("the session is lost", held.lost()).await;
        let again = until_permanent(&client).await;
        assert!(again.contains("went back from"), "{again}");
    });
}

/// Releases a lock, or finds it lost.
async fn give_up(guard: &LockGuard) {
    until("the lock is released or lost", async || match guard.release().await {
        Ok(()) => true,
        Err(error) => error.loss().is_some(),
    })
    .await;
}

/// Acquires until an error says that repeating is useless.
async fn until_permanent(client: &palisade::Palisade) -> String {
    loop {
        match client.lock("lock").acquire().await {
            Ok(granted) => panic!("it is granted with {:?}", granted.token()),
            Err(error) if !error.is_retryable() => return error.to_string(),
            Err(_) => {}
        }
    }
}

/// The offset of raised tokens is lowered: a client that knew it reports lost data instead of lower tokens.
#[test]
fn a_lowered_offset_is_noticed() {
    check(async {
        let fixture = shared();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        alice.raise_tokens(high()).await.expect("raised");
        let held = take(&alice, "held").await;
        let offset = format!("{}/offset", fixture.root);
        client.delete(&offset, None).await.expect("deleted");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&offset, b"0", &options).await.expect("created");
        // The version of the first one was higher.
        client.set_data(&offset, b"0", None).await.expect("written");
        client.set_data(&offset, b"0", None).await.expect("written");
        client.set_data(&offset, b"0", None).await.expect("written");
        let error = alice.lock("lock").acquire().await.expect_err("its token would be lower");
        assert!(error.to_string().contains("went back from"), "{error}");
        let loss = held.lost().await;
        assert!(matches!(loss, Loss::DataLost { .. }), "{loss:?}");
    });
}

/// Without the offset a new client refuses to create it again while locks are in use.
#[test]
fn a_deleted_offset_is_noticed_by_a_new_client() {
    check(async {
        let fixture = shared();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let _held = take(&alice, "lock").await;
        client.delete(&format!("{}/offset", fixture.root), None).await.expect("deleted");
        let error = palisade::connect(&fixture.url()).await.map(drop).expect_err("the offset is unknown");
        assert!(error.to_string().contains("'offset' was deleted"), "{error}");
    });
}

/// A claim that no session of ours created can be broken.
#[test]
fn a_claim_without_a_session_can_be_broken() {
    check(async {
        let fixture = shared();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        take(&alice, "lock").await.release().await.expect("released");
        let claim = format!("{}/locks/lock/claims/0123456789abcdef-1-x-0000000000", fixture.root);
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&claim, b"{{{", &options).await.expect("created");
        assert!(inspect(&alice, "lock").await.is_some());
        alice.force_release("lock", "a test").await.expect("it can be broken");
        take(&alice, "lock").await.release().await.expect("released");
    });
}

/// Without its number the offset is unknown. The advice does not let tokens fall.
#[test]
fn an_offset_that_is_no_number_is_reported_with_advice() {
    check(async {
        let fixture = shared();
        let (alice, client) = (fixture.client(LONG_TTL).await, raw(fixture.address).await);
        let offset = format!("{}/offset", fixture.root);
        client.set_data(&offset, b"many", None).await.expect("written");
        let connected = palisade::connect(&fixture.url()).await.map(drop);
        let acquired = alice.lock("lock").acquire().await.map(drop);
        for error in [connected, acquired] {
            let text = error.expect_err("the offset is unknown").to_string();
            assert!(text.contains("'offset'") && text.contains("tokens raise --above HIGHEST"), "{text}");
        }
        client.set_data(&offset, b"0", None).await.expect("written");
        take(&alice, "lock").await.release().await.expect("released");
    });
}
