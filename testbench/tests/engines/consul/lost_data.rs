//! Keys that other programs delete or write, and data that is taken back.

use palisade::Loss;
use palisade_testbench::bounded::{until_some, within};
use palisade_testbench::coordination::{
    a_lower_offset_is_noticed_behind_a_claim_that_has_it, a_lower_offset_is_noticed_by_a_connected_client,
    an_unusable_offset_is_reported_with_advice,
};

use super::fixture::{Fixture, LONG_TTL, check, take, taken, taking, token, until_idle, until_queued};

#[test]
fn a_deleted_or_lowered_offset_is_noticed_by_a_connected_client() {
    for change in [&["delete"][..], &["put", "7"]] {
        check(async {
            let fixture = Fixture::shared();
            let lower = || fixture.change_offset(change);
            a_lower_offset_is_noticed_by_a_connected_client(&fixture, lower).await;
        });
    }
}

#[test]
fn a_deleted_or_lowered_offset_is_noticed_behind_a_claim_that_has_it() {
    for change in [&["delete"][..], &["put", "7"]] {
        check(async {
            let fixture = Fixture::shared();
            let lower = || fixture.change_offset(change);
            a_lower_offset_is_noticed_behind_a_claim_that_has_it(&fixture, lower).await;
        });
    }
}

#[test]
fn an_offset_that_is_no_number_is_reported_with_advice() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let write = |value: &str| fixture.change_offset(&["put", value]);
        an_unusable_offset_is_reported_with_advice(&fixture, &client, write).await;
    });
}

/// A claim has one spelling: a waiter waits for the key that this build would write, and a forced release deletes that one.
#[test]
fn a_claim_in_another_spelling_is_reported_with_its_key() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        for claim in ["lock/1f-1", "lock/0000000000001F-1", "lock/000000000000001f-1", "lock/0000000000001f-01"] {
            let key = format!("{}/lock/{claim}", fixture.prefix);
            fixture.consul().ctl(&["kv", "put", &key, r#"{"label":"a copy","mode":"exclusive"}"#]);
            let error = client.force_release("lock", "a test").await.expect_err("a claim cannot be read");
            assert!(error.to_string().contains(&key), "{error}");
            let acquired = client.lock("lock").acquire_within(LONG_TTL).await.map(drop);
            let text = acquired.expect_err("a claim cannot be read").to_string();
            assert!(text.contains(&key) && text.contains("consul kv delete"), "{text}");
            fixture.consul().ctl(&["kv", "delete", &key]);
        }
        take(&client, "lock").await.release().await.expect("it is held");
    });
}

/// A value that another program wrote blocks its lock only, and the error names the key. The holder can still release.
#[test]
fn a_claim_of_another_form_is_reported_with_its_key() {
    check(async {
        let fixture = Fixture::shared();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&client, "lock").await;
        let claim = fixture.keys("lock/lock/").pop().expect("a claim");
        let waiter = taking(&other, "lock");
        until_queued(&client, "lock", 1).await;
        fixture.consul().ctl(&["kv", "put", &claim, "{{{"]);
        let error = within("the wait ends", waiter).await.expect("no panic").expect_err("a claim cannot be read");
        for error in [error, other.lock("lock").acquire().await.expect_err("a claim cannot be read")] {
            let text = error.to_string();
            assert!(text.contains(&claim) && text.contains("consul kv delete"), "{text}");
            assert!(!error.is_retryable(), "{text}");
        }
        take(&other, "another").await.release().await.expect("released");
        held.release().await.expect("it is held");
        // The claims that the other client could not read its place from are gone too.
        until_idle(&client, "lock").await;
        take(&other, "lock").await.release().await.expect("released");

        let stray = &format!("{}/lock/lock/ffff-1", fixture.prefix);
        fixture.consul().ctl(&["kv", "put", stray, "{{{"]);
        let error = other.lock("lock").acquire().await.expect_err("a claim cannot be read");
        assert!(error.to_string().contains(stray), "{error}");
        fixture.consul().ctl(&["kv", "delete", stray]);
        take(&other, "lock").await.release().await.expect("released");
    });
}

/// A claim that another program has copied back without its session blocks nothing: the next acquire deletes it.
#[test]
fn a_claim_without_a_session_is_removed_by_the_next_acquire() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        let claim = fixture.keys("lock/lock/").pop().expect("a claim");
        let body = fixture.consul().ctl(&["kv", "get", &claim]);
        held.release().await.expect("released");
        fixture.consul().ctl(&["kv", "put", &claim, &body]);
        assert!(client.lock("lock").try_acquire().await.expect("an answer").is_some());
        until_idle(&client, "lock").await;
    });
}

/// A holder's claim is deleted by another program: the next holder has a higher token, and the late release frees nothing.
#[test]
fn a_deleted_claim_gives_way_to_a_higher_token() {
    check(async {
        let fixture = Fixture::shared();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&client, "lock").await;
        let waiter = taking(&other, "lock");
        until_queued(&client, "lock", 1).await;
        let claims = fixture.keys("lock/lock/");
        let index = token(&held).get();
        let own = claims.iter().find(|key| fixture.create_index_of(key) == index).expect("its claim");
        fixture.consul().ctl(&["kv", "delete", own]);
        let newer = taken(waiter).await;
        assert!(token(&newer) > token(&held));
        drop(held.release().await);
        drop(held);
        take(&client, "another").await.release().await.expect("released");
        assert!(client.lock("lock").try_acquire().await.expect("an answer").is_none());
        assert_eq!(fixture.create_index("lock"), token(&newer).get());
    });
}

/// The same while its client is cut off: it is told when it is connected again.
#[test]
fn a_claim_that_is_deleted_while_its_client_is_cut_off_is_noticed() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.through_proxy(LONG_TTL).await;
        let (held, kept) = (take(&client, "lock").await, take(&client, "kept").await);
        fixture.proxy.shut();
        let claim = fixture.keys("lock/lock/").pop().expect("a claim");
        fixture.consul().ctl(&["kv", "delete", &claim]);
        fixture.proxy.pass();
        let loss = within("the holder is told", held.lost()).await;
        assert!(matches!(loss, Loss::ForcedBy { .. }), "{loss:?}");
        assert!(kept.token().is_ok());
    });
}

/// A snapshot is restored while clients are connected. Consul's index does not go back, so tokens rise, but the claims are gone.
#[test]
fn a_snapshot_that_is_restored_under_a_client_is_noticed() {
    check(async {
        let fixture = Fixture::alone();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        take(&client, "first").await.release().await.expect("released");
        let file = tempfile::tempdir().expect("a folder");
        let file = file.path().join("snapshot").display().to_string();
        fixture.consul().ctl(&["snapshot", "save", &file]);
        let held = take(&client, "lock").await;
        let given = token(&held);
        fixture.consul().ctl(&["snapshot", "restore", &file]);
        let loss = within("the holder is told", held.lost()).await;
        assert!(matches!(loss, Loss::DataLost { .. } | Loss::ForcedBy { .. }), "{loss:?}");
        drop(other);
        let other = until_some("a client", async || palisade::connect(&fixture.url()).await.ok()).await;
        assert!(token(&take(&other, "lock").await) > given);
    });
}
