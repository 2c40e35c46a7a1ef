//! A Redis that loses its data: clients notice it, name it, and stop (fault 30).

use std::error::Error as _;

use palisade::engine::redis::DataLost;
use palisade::{Error, ErrorKind, Loss, Palisade};

use super::fixture::{Fixture, LONG_TTL, check, connect, give_back, take, taking, token, until, until_queued};

/// Checks that the holder, the waiter and the next request of a client get the same error. Returns it.
async fn told(client: &Palisade, held: palisade::LockGuard, waiting: Result<palisade::LockGuard, Error>) -> DataLost {
    let Loss::DataLost { what } = held.lost().await else { panic!("{:?}", held.lost().await) };
    assert!(what.starts_with("Redis has lost"), "{what}");
    assert!(held.token().is_err() && held.release().await.is_err());
    let waited = waiting.expect_err("nothing is granted");
    assert!(!waited.is_retryable(), "{waited}");
    let error = client.lock("another").efficiency().acquire().await.expect_err("it does not go on");
    assert!(matches!(error.kind(), ErrorKind::Outage { is_retryable: false, .. }), "{error}");
    assert!(error.to_string().contains("connect again"), "{error}");
    let error = client.inspect("lock").await.expect_err("it does not go on");
    error.source().and_then(|source| source.downcast_ref::<DataLost>()).expect("it says what was lost").clone()
}

/// Loses data in this way while one client holds a lock and waits for another one's; returns its error.
async fn lose(mut fixture: Fixture, lose: impl AsyncFnOnce(&mut Fixture)) -> DataLost {
    let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
    let held = take(&alice, "lock").await;
    let before = token(&held);
    let _other = take(&bob, "other").await;
    let waiting = taking(&alice, "other");
    until_queued(&bob, "other", 1).await;
    lose(&mut fixture).await;
    let lost = told(&alice, held, waiting.await.expect("it does not panic")).await;
    if !matches!(lost, DataLost::WentBack { .. }) {
        // The new counter begins above the old one, since the server's clock goes forward.
        let carol = fixture.client(LONG_TTL).await;
        assert!(token(&take(&carol, "new").await) > before);
    }
    lost
}

#[test]
fn flushall_is_noticed_and_named() {
    check(async {
        let lost = lose(Fixture::new(), async |fixture| drop(fixture.redis.cli(&["FLUSHALL"]))).await;
        assert!(matches!(lost, DataLost::Gone { .. }), "{lost}");
    });
}

#[test]
fn a_key_that_is_deleted_and_made_anew_by_another_client_is_noticed_and_named() {
    check(async {
        let lost = lose(Fixture::new(), async |fixture| {
            fixture.redis.cli(&["DEL", "palisade:{palisade}:locks"]);
            drop(take(&fixture.client(LONG_TTL).await, "lock").await);
        });
        let lost = lost.await;
        assert!(matches!(lost, DataLost::Recreated { .. }), "{lost}");
    });
}

#[test]
fn an_eviction_is_noticed_and_named() {
    check(async {
        let fixture = Fixture::with(&["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-random"], &[]);
        let lost = lose(fixture, async |fixture| {
            // Fills the memory until Redis evicts the engine's key.
            until("the key of the engine is evicted", async || {
                let fill = "for i = 1, 200 do redis.call('SET', 'filler' .. i .. math.random(1e9), string.rep('x', 4000)) end";
                fixture.redis.cli(&["EVAL", fill, "0"]);
                fixture.redis.cli(&["EXISTS", "palisade:{palisade}:locks"]) != "1"
            })
            .await;
            fixture.redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        });
        let lost = lost.await;
        assert!(matches!(lost, DataLost::Gone { .. }), "{lost}");
    });
}

#[test]
#[ignore = "long: several seconds"]
fn a_server_that_begins_empty_is_noticed_and_named() {
    check(async {
        let lost = lose(Fixture::new(), async |fixture| {
            fixture.redis.kill();
            fixture.redis.restart().expect("it begins");
        });
        let lost = lost.await;
        assert!(matches!(lost, DataLost::Gone { .. }), "{lost}");
    });
}

/// As after a failover to a replica that had not caught up, or a restore.
#[test]
fn a_counter_that_went_back_is_noticed_and_named() {
    check(async {
        let lost = lose(Fixture::new(), async |fixture| {
            let back = "local token = redis.call('HGET', KEYS[1], 'token') redis.call('HSET', KEYS[1], 'token', \
                 (token:gsub('%d+', function(number) return string.format('%d', number - 2) end)))";
            fixture.redis.cli(&["EVAL", back, "1", "palisade:{palisade}:locks"]);
        });
        let lost = lost.await;
        assert!(matches!(lost, DataLost::WentBack { .. }), "{lost}");
    });
}

/// A server that keeps its data loses nothing, and the script that it forgot is sent again (NOSCRIPT).
#[test]
fn a_restart_with_data_and_a_forgotten_script_change_nothing() {
    check(async {
        let mut fixture = Fixture::with(&["--appendonly", "yes", "--appendfsync", "always"], &[]);
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        fixture.redis.kill();
        fixture.redis.restart().expect("it begins");
        give_back(&held).await;
        let next = waiting.await.expect("it does not panic").expect("it is bob's turn");
        fixture.redis.cli(&["SCRIPT", "FLUSH"]);
        next.release().await.expect("it is held");
        drop(take(&alice, "lock").await);
    });
}

/// Another program uses the key.
#[test]
fn a_key_of_another_kind_is_refused_with_what_to_do() {
    check(async {
        let fixture = Fixture::new();
        fixture.redis.cli(&["SET", "palisade:{palisade}:locks", "mine"]);
        let error = palisade::connect(&fixture.redis.url()).await.expect_err("it cannot be used");
        assert!(error.to_string().contains("?namespace=NAME"), "{error}");
        assert!(connect(&format!("{}?namespace=free", fixture.redis.url()), LONG_TTL).await.close().await.is_ok());
    });
}
