//! The mistakes of other libraries for Consul, and the faults that they do not survive.

use std::time::Duration;

use palisade::{ErrorKind, Loss, Misuse, Options, Refusal};
use palisade_core::Limit;
use palisade_testbench::servers::Consul;

use super::fixture::{Fixture, LONG_TTL, check, inspect, lost, take, taken, taking, token, until_idle, until_queued};

/// The token is the index that created the holder's own key: neither the index of a later write nor the count of its locks.
#[test]
fn a_token_is_the_create_index_of_the_claim() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let first = take(&client, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        fixture.consul().ctl(&["kv", "put", "another", "key"]);
        first.release().await.expect("released");
        let second = taken(waiter).await;
        assert_eq!(fixture.create_index("lock"), token(&second).get());
    });
}

/// Publishing a value and marking a set rewrite the key, and change neither its place nor its token.
#[test]
fn a_claim_that_is_rewritten_keeps_its_place_and_its_token() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let leader = client.election("boss").campaign("one").await.expect("a leader");
        let waiter = taking(&client, "boss");
        until_queued(&client, "boss", 1).await;
        leader.publish("two").await.expect("published");
        let claims = fixture.keys("lock/boss/");
        let shown =
            claims.iter().map(|key| fixture.consul().ctl(&["kv", "get", "-detailed", key])).collect::<String>();
        let index = format!("CreateIndex      {}\n", leader.token().expect("it is held").get());
        assert!(shown.contains(&index) && claims.len() == 2, "{shown}");
        leader.release().await.expect("released");
        taken(waiter).await;
    });
}

/// A waiter whose session dies in the queue is told, and never gets the lock.
#[test]
fn a_waiter_whose_session_is_destroyed_is_told_at_once_and_not_granted() {
    check(async {
        let fixture = Fixture::shared();
        let (holder, client) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&holder, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&holder, "lock", 1).await;
        let session = inspect(&holder, "lock").await.expect("it is held").waiters[0].session;
        fixture.destroy(session);
        assert_eq!(lost(waiter).await, Loss::Expired);
        held.release().await.expect("released");
        until_idle(&holder, "lock").await;
    });
}

/// The claim of a waiter is deleted at the moment at which it becomes the first: the read after the wait notices it.
#[test]
fn a_waiter_whose_claim_is_gone_queues_again() {
    check(async {
        let fixture = Fixture::shared();
        let (holder, client) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&holder, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&holder, "lock", 1).await;
        let session = inspect(&holder, "lock").await.expect("it is held").waiters[0].session;
        let waits = |key: &&String| key.contains(&format!("/{:014x}-", session.get()));
        let claims = fixture.keys("lock/lock/");
        let claim = claims.iter().find(waits).expect("its claim");
        let shown = fixture.consul().ctl(&["kv", "get", "-detailed", claim]);
        fixture.consul().ctl(&["kv", "delete", claim]);
        held.release().await.expect("released");
        let granted = taken(waiter).await;
        assert_eq!(fixture.create_index("lock"), token(&granted).get());
        assert!(
            !shown.contains(&format!("CreateIndex      {}\n", token(&granted))),
            "the token of the deleted claim"
        );
    });
}

/// The end of a holder's session is reported at once, not only at the next keep-alive.
#[test]
fn a_holder_whose_session_is_destroyed_is_told_at_once() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        let session = inspect(&client, "lock").await.expect("it is held").holders[0].session.expect("a session");
        fixture.destroy(session);
        assert_eq!(held.lost().await, Loss::Expired);
    });
}

/// Other data at the address, as after a restored backup: every guard is lost, and the client does not go on.
#[test]
fn a_server_that_starts_empty_is_noticed() {
    check(async {
        let mut fixture = Fixture::alone();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        fixture.consul_mut().restart_empty().expect("it starts again");
        let loss = held.lost().await;
        assert!(matches!(loss, Loss::DataLost { .. }), "{loss:?}");
        let error = client.lock("lock").acquire().await.expect_err("it has lost data");
        assert!(error.to_string().contains("went back"), "{error}");
    });
}

/// `consul lock` of the same name uses other keys: the two do not exclude each other, and do not disturb each other.
#[test]
fn consul_lock_uses_other_keys() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        assert!(fixture.consul().ctl(&["lock", "lock", "echo", "locked"]).contains("locked"));
        assert!(
            fixture
                .consul()
                .ctl(&["lock", &format!("{}/lock/lock", fixture.prefix), "echo", "locked"])
                .contains("locked")
        );
        held.token().expect("it is held");
        assert!(fixture.client(LONG_TTL).await.lock("lock").try_acquire().await.expect("an answer").is_none());
    });
}

/// A set of 30 locks fits into the transactions of Consul. A larger one is refused with the limit.
#[test]
fn the_largest_set_fits_into_a_transaction() {
    check(async {
        let fixture = Fixture::shared();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let names: Vec<_> = (0..31).map(|number| format!("set/{number}")).collect();
        let error = client.lock_all(&names).acquire().await.expect_err("a transaction has 64 operations");
        let most = Refusal::OverLimit { limit: Limit::LocksPerRequest, max: 30, value: 31 };
        assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Refused(refusal)) if *refusal == most), "{error}");
        let names = names[..30].to_vec();
        let all = client.lock_all(&names).acquire().await.expect("they are free");
        let waiting = {
            let (other, names) = (other.clone(), names.clone());
            tokio::spawn(async move { other.lock_all(&names).acquire().await })
        };
        until_queued(&client, "set/29", 1).await;
        all.release().await.expect("released");
        let all = waiting.await.expect("no panic").expect("its turn comes");
        other.force_release("set/5", "a test").await.expect("it is held");
        assert!(matches!(all.lost().await, Loss::ForcedBy { .. }));
        until_idle(&client, "set/29").await;
    });
}

/// Consul refuses TTLs below ten seconds unless its operator has lowered the limit.
#[test]
#[ignore = "long: waits of several TTLs"]
fn a_ttl_below_the_limit_of_the_server_is_refused_with_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let consul = Consul::start_with(folder.path(), "").unwrap_or_else(|absent| panic!("{absent}"));
    check(async {
        let url = format!("consul://{}", consul.address);
        let connect = async |seconds| Options::new().ttl(Duration::from_secs(seconds)).connect(&url).await;
        let error = connect(9).await.expect_err("it is too short");
        let least = Refusal::UnderLimit { limit: Limit::TtlMinMs, min: 10_000, value: 9000 };
        assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Refused(refusal)) if *refusal == least), "{error}");
        let error = connect(24 * 3600 + 1).await.expect_err("it is too long");
        assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Refused(Refusal::OverLimit { .. }))), "{error}");
        connect(10).await.expect("a client");
    });
}

/// A claim that waits keeps its token, so tokens are not above a number while one waits with a lower one.
#[test]
fn tokens_are_not_raised_past_a_waiter() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let held = take(&client, "lock").await;
        let waiter = taking(&client, "lock");
        until_queued(&client, "lock", 1).await;
        for _ in 0..5 {
            take(&client, "another").await.release().await.expect("released");
        }
        let above = token(&take(&client, "another").await);
        let error = client.raise_tokens(above).await.expect_err("a waiter has a lower token");
        assert!(error.to_string().contains("such as 'lock'") && !error.may_have_taken_effect(), "{error}");
        held.release().await.expect("released");
        taken(waiter).await.release().await.expect("released");
        client.raise_tokens(above).await.expect("raised");
    });
}

/// Tokens are raised for clients that are connected already, too.
#[test]
fn raised_tokens_hold_for_clients_that_do_not_know_yet() {
    check(async {
        let fixture = Fixture::shared();
        let (client, other) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&other, "lock").await;
        let above = palisade::Token::new(1 << 40).expect("a token");
        let error = client.raise_tokens(above).await.expect_err("a lock is held with a lower token");
        assert!(error.to_string().contains("such as 'lock'") && !error.may_have_taken_effect(), "{error}");
        held.release().await.expect("released");
        client.raise_tokens(above).await.expect("raised");
        assert!(token(&take(&other, "lock").await) > above);
        assert!(token(&take(&other, "another").await) > above);
    });
}

/// A semaphore in use is not resized, and the refusal says so.
#[test]
fn a_resize_is_refused() {
    check(async {
        let fixture = Fixture::shared();
        let client = fixture.client(LONG_TTL).await;
        let held = client.semaphore("gpu", 2).acquire().await.expect("a permit");
        let error = client.resize("gpu", 3).await.expect_err("it is not offered");
        assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
        let error = client.semaphore("gpu", 3).acquire().await.expect_err("another number of permits");
        assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Refused(_))), "{error}");
        held.release().await.expect("released");
        client.semaphore("gpu", 3).acquire().await.expect("it is idle, so any number will do");
    });
}
