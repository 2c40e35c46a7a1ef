//! Keys that other programs delete or write.

use palisade::Token;
use palisade_testbench::coordination::{
    a_lower_offset_is_noticed_behind_a_claim_that_has_it, a_lower_offset_is_noticed_by_a_connected_client,
    an_unusable_offset_is_reported_with_advice,
};

use super::fixture::{
    Fixture, LONG_TTL, alone, check, inspect, shared, take, taken, taking, token, until_idle, until_queued,
};

#[test]
fn a_deleted_offset_is_noticed_by_a_connected_client() {
    check(async {
        let fixture = alone();
        let delete = || drop(fixture.etcd().ctl(&["del", &format!("{}/offset", fixture.prefix)]));
        a_lower_offset_is_noticed_by_a_connected_client(&fixture, delete).await;
    });
}

#[test]
fn a_deleted_offset_is_noticed_behind_a_claim_that_has_it() {
    check(async {
        let fixture = alone();
        let delete = || drop(fixture.etcd().ctl(&["del", &format!("{}/offset", fixture.prefix)]));
        a_lower_offset_is_noticed_behind_a_claim_that_has_it(&fixture, delete).await;
    });
}

/// A value that another program wrote blocks its lock only, and the error names the key.
#[test]
fn a_claim_of_another_form_is_reported_with_its_key() {
    check(async {
        let fixture = alone();
        let client = fixture.client(LONG_TTL).await;
        fixture.etcd().ctl(&["put", &format!("{}/lock/lock\tffff-1", fixture.prefix), "{{{"]);
        let error = client.lock("lock").acquire().await.expect_err("a claim cannot be read");
        let text = error.to_string();
        assert!(text.contains("/lock/lock\\tffff-1") && text.contains("delete that key"), "{text}");
        take(&client, "another").await.release().await.expect("released");
        fixture.etcd().ctl(&["del", &format!("{}/lock/lock\tffff-1", fixture.prefix)]);
        take(&client, "lock").await.release().await.expect("released");
    });
}

/// Writes a claim without a lease, as `etcdctl make-mirror` copies it. Its session does not exist.
fn write_dead_claim(fixture: &Fixture, lock: &str, body: &str) {
    let key = format!("{}/lock/{lock}\t0000000000001f-0", fixture.prefix);
    fixture.etcd().ctl(&["put", &key, body]);
}

const EXCLUSIVE: &str = r#"{"number":7,"label":"a copy","mode":"exclusive"}"#;
const IN_SET: &str = r#"{"number":7,"label":"a copy","mode":"exclusive","locks":["another","lock"]}"#;

/// No session keeps a claim without a lease alive, so it would hold its lock as long as the store exists.
#[test]
fn a_claim_without_a_lease_holds_no_lock() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        for body in [EXCLUSIVE, IN_SET, r#"{"number":7,"label":"a copy","mode":"1/2"}"#] {
            write_dead_claim(&fixture, "lock", body);
            let granted = client.lock("lock").try_acquire().await.expect("an answer").expect("it is free");
            granted.release().await.expect("it is held");
            write_dead_claim(&fixture, "lock", body);
            taken(taking(&client, "lock")).await.release().await.expect("it is held");
            write_dead_claim(&fixture, "lock", body);
            let set = client.lock_all(["lock", "other"]).acquire().await.expect("its turn comes");
            set.release().await.expect("they are held");
            until_idle(&client, "lock").await;
        }
    });
}

/// The claim of a holder is rewritten without its lease while others wait for it.
#[test]
fn a_claim_that_loses_its_lease_wakes_its_waiter() {
    check(async {
        let fixture = shared();
        let (holder, client) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&holder, "lock").await;
        let first = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        let second = taking(&client, "lock");
        until_queued(&client, "lock", 2).await;
        let session = inspect(&client, "lock").await.expect("it is held").holders[0].session.expect("a session");
        let key = format!("{}/lock/lock\t{:014x}-0", fixture.prefix, session.get());
        fixture.etcd().ctl(&["put", &key, EXCLUSIVE]);
        let mut last = token(&held);
        for waiter in [first, second] {
            let granted = taken(waiter).await;
            assert!(token(&granted) > last);
            last = token(&granted);
            granted.release().await.expect("it is held");
        }
    });
}

/// An operator can end claims that no session has, and raise tokens then.
#[test]
fn a_claim_without_a_lease_is_released_by_force() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        let above = Token::new(1 << 40).expect("a token");
        for body in [EXCLUSIVE, IN_SET] {
            write_dead_claim(&fixture, "lock", body);
            // The key of the session is a copy, too.
            fixture.etcd().ctl(&["put", &format!("{}/session/0000000000001f", fixture.prefix), "{}"]);
            client.raise_tokens(above).await.expect_err("there is a claim with a lower token");
            client.force_release("lock", "a test").await.expect("it is ended");
            until_idle(&client, "lock").await;
        }
        client.raise_tokens(above).await.expect("there are no claims");
        assert!(token(&take(&client, "lock").await) > above);
    });
}

/// A claim has one spelling: a waiter watches the key that this build would write.
#[test]
fn a_claim_in_another_spelling_is_reported_with_its_key() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        for claim in ["1f-0", "0000000000001F-0", "000000000000001f-0", "0000000000001f-00", "0000000000001f-+1"] {
            let key = format!("{}/lock/lock\t{claim}", fixture.prefix);
            fixture.etcd().ctl(&["put", &key, EXCLUSIVE]);
            let error = client.lock("lock").acquire_within(LONG_TTL).await.map(drop);
            let text = error.expect_err("a claim cannot be read").to_string();
            assert!(text.contains(&format!("\\t{claim}'")) && text.contains("delete that key"), "{text}");
            let error = client.force_release("lock", "a test").await.expect_err("a claim cannot be read");
            assert!(error.to_string().contains(claim), "{error}");
            fixture.etcd().ctl(&["del", &key]);
        }
        take(&client, "lock").await.release().await.expect("it is held");
    });
}

#[test]
fn an_offset_that_is_no_number_is_reported_with_advice() {
    check(async {
        let fixture = shared();
        let client = fixture.client(LONG_TTL).await;
        let write = |value: &str| drop(fixture.etcd().ctl(&["put", &format!("{}/offset", fixture.prefix), value]));
        an_unusable_offset_is_reported_with_advice(&fixture, &client, write).await;
    });
}

/// A claim that waits has its token already: tokens that are high enough for new claims are not enough for it.
#[test]
fn tokens_are_not_raised_past_a_waiting_claim() {
    check(async {
        let fixture = alone();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        for number in 0..5 {
            take(&client, &format!("other/{number}")).await.release().await.expect("released");
        }
        let above = Token::new(token(&held).get() + 2).expect("a token");
        let error = client.raise_tokens(above).await.expect_err("the waiter would get a lower token");
        assert!(error.to_string().contains("waited for, such as 'lock'"), "{error}");
        held.release().await.expect("released");
        taken(waiter).await.release().await.expect("released");
        client.raise_tokens(above).await.expect("they are higher");
    });
}
