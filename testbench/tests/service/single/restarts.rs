//! A service that is killed and restarted.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt;
use palisade::Loss;
use palisade::engine::Watched;
use palisade_testbench::order::assert_order_over_a_cut;

use super::fixture::{
    Fixture, LONG_TTL, SHORT_TTL, check, holder, inspect, is_not_kept_alive, jeopardy, take, taken, taking, token,
    until_idle, until_queued,
};

const TTL: Duration = Duration::from_secs(60);

#[test]
fn grants_and_queue_positions_survive_a_restart() {
    check(async {
        let mut fixture = Fixture::new();
        let (alice, bob, carol) = (fixture.client(TTL).await, fixture.client(TTL).await, fixture.client(TTL).await);
        let guard = take(&alice, "lock").await;
        let (first, session) = (token(&guard), holder(&alice, "lock").await);
        let second = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        let third = taking(&carol, "lock");
        until_queued(&alice, "lock", 2).await;
        for _ in 0..3 {
            fixture.service.kill();
            fixture.service.restart().expect("it starts again");
            // New requests wait for the connection; holders and waiters notice nothing.
            until_queued(&alice, "lock", 2).await;
            assert_eq!(token(&guard), first);
            assert_eq!(holder(&alice, "lock").await, session);
        }
        assert_eq!(guard.lost().now_or_never(), None);
        guard.release().await.expect("it is held");
        let guard = taken(second).await;
        let second = token(&guard);
        assert!(second > first);
        fixture.service.kill();
        fixture.service.restart().expect("it starts again");
        if let Err(error) = guard.release().await {
            assert!(error.is_retryable(), "{error}");
        }
        let guard = taken(third).await;
        assert!(token(&guard) > second);
        guard.release().await.expect("it is held");
        until_idle(&alice, "lock").await;
    });
}

/// The release that hands the lock over is sent; the kill may come before or after its commit.
#[test]
fn a_handover_that_is_interrupted_by_the_end_of_the_service_is_made_once() {
    check(async {
        let mut fixture = Fixture::new();
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let mut last = 0;
        for round in 0..15 {
            let guard = take(&alice, "lock").await;
            let first = token(&guard);
            assert!(first.get() > last, "tokens went back");
            let waiting = taking(&bob, "lock");
            until_queued(&alice, "lock", 1).await;
            let releasing = async { guard.release().await };
            let killing = async {
                for _ in 0..round {
                    tokio::task::yield_now().await;
                }
                tokio::time::sleep(Duration::from_micros(150 * round)).await;
                fixture.service.kill();
                fixture.service.restart().expect("it starts again");
            };
            let (released, ()) = tokio::join!(releasing, killing);
            if let Err(error) = released {
                assert!(error.is_retryable(), "{error}");
            }
            let next = taken(waiting).await;
            let lock = inspect(&alice, "lock").await.expect("bob holds it");
            assert_eq!(lock.holders.len(), 1);
            assert_eq!(lock.holders[0].token, token(&next));
            last = token(&next).get();
            assert!(last > first.get());
            drop(next);
            until_idle(&alice, "lock").await;
        }
    });
}

/// Another client has opened its session and acquired the same lock before the first client is back. The tokens repeat, since
/// nothing is left of them: only the session tells the two apart.
#[test]
fn a_client_of_a_service_that_lost_its_data_never_gets_the_session_of_another() {
    check(async {
        for is_restored in [false, true] {
            let mut fixture = Fixture::new();
            fixture.service.kill();
            let (folder, copy) = (fixture.folder().join("service"), tempfile::tempdir().expect("a folder"));
            copy_files(&folder, copy.path());
            fixture.service.restart().expect("it starts again");
            let alice = fixture.through_proxy(LONG_TTL).await;
            let guard = take(&alice, "lock").await;
            fixture.proxy.shut();
            fixture.service.kill();
            remove_files(&folder);
            if is_restored {
                copy_files(copy.path(), &folder);
            }
            fixture.service.restart().expect("it starts with an older state");
            let bob = fixture.client(LONG_TTL).await;
            let held = take(&bob, "lock").await;
            let session = holder(&bob, "lock").await;
            fixture.proxy.pass();
            assert_eq!(guard.lost().await, Loss::Expired);
            alice.close().await.expect("it is closed");
            assert_eq!(holder(&bob, "lock").await, session);
            held.release().await.expect("it is held");
        }
    });
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("it can be listed") {
        let path = entry.expect("a file").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("it is copied");
    }
}

fn remove_files(folder: &Path) {
    for entry in fs::read_dir(folder).expect("it can be listed") {
        fs::remove_file(entry.expect("a file").path()).expect("it is removed");
    }
}

#[test]
fn without_a_service_calls_fail_at_once_and_guards_are_lost_at_their_time() {
    check(async {
        let mut fixture = Fixture::new();
        let alice = fixture.client(SHORT_TTL).await;
        let mut watch = alice.watch("").await.expect("a watch");
        let guard = take(&alice, "lock").await;
        assert!(matches!(watch.next().await, Some(Watched::Event(_))));
        fixture.service.kill();
        let error = alice.inspect("other").await.expect_err("no server is there");
        assert!(error.is_retryable(), "{error}");
        assert!(error.to_string().contains(&fixture.service.address.to_string()), "{error}");
        let safe_until = jeopardy(&guard).await;
        assert!(is_not_kept_alive(&guard.lost().await) && safe_until.has_passed());
        fixture.service.restart().expect("it starts again");
        // Its old session has its whole TTL again, unless the client closes it first.
        let again = take(&alice, "lock").await;
        assert!(guard.token().is_err() && again.token().is_ok());
        assert_eq!(watch.next().await, Some(Watched::Missed));
    });
}

#[test]
fn a_service_that_is_not_there_is_named() {
    check(async {
        let mut fixture = Fixture::new();
        fixture.service.kill();
        let error = palisade::connect(&fixture.service.url()).await.map(drop).expect_err("no server is there");
        assert!(error.is_retryable() && !error.may_have_taken_effect(), "{error}");
        assert!(error.to_string().contains(&fixture.service.address.to_string()), "{error}");
    });
}

#[test]
fn another_kind_of_server_is_refused() {
    check(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("palisade://{}", listener.local_addr().expect("an address"));
        let answer = async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut hello = [0; 64];
            assert!(stream.read(&mut hello).await.expect("it says something") > 0);
            let redis = b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n+OK\r\n";
            stream.write_all(redis).await.expect("it listens");
            std::future::pending::<()>().await;
        };
        let error = tokio::select! {
            connected = palisade::connect(&url) => connected.map(drop).expect_err("it is none of ours"),
            () = answer => unreachable!("it does not end"),
        };
        assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
        assert!(error.to_string().contains("redis"), "{error}");
    });
}

#[test]
fn acquires_of_one_client_are_granted_in_their_order_over_a_cut() {
    check(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        assert_order_over_a_cut(&alice, &bob, &fixture.proxy).await;
    });
}
