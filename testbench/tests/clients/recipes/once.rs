//! An operation happens once per key, on each database that can keep its record.

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use palisade::recipe::once::{
    Attempt, Begun, Finished, KEEP, OnceError, OnceStore, POSTGRES_SCHEMA, PostgresClaim, Record, claim_in_postgres,
};
use palisade::recipe::store::{Mysql, Postgres, Redis, Sqlite};
use palisade::{ErrorKind, Misuse, Palisade, Token};
use palisade_testbench::bounded::{BOUND, check_many, check_on_threads, until};
use palisade_testbench::fixture::unused_name;
use palisade_testbench::servers;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use tokio::sync::oneshot;

/// The work's own error type.
type Never = io::Error;

/// The random histories that each store is compared with.
const CASES: u32 = 48;

async fn locks() -> Palisade {
    palisade::connect("memory:").await.expect("an engine")
}

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// The promises, for one store.
macro_rules! on_store {
    ($name:ident, $open:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn a_repeat_gets_the_outcome_of_the_first() {
                check_on_threads(BOUND, async {
                    let (store, _kept) = $open.await;
                    repeat_gets_the_outcome(&store).await;
                });
            }

            #[test]
            fn callers_that_come_meanwhile_wait() {
                check_on_threads(BOUND, async {
                    let (store, _kept) = $open.await;
                    others_wait(&store).await;
                });
            }

            #[test]
            fn a_late_result_is_refused_after_a_takeover() {
                check_on_threads(BOUND, async {
                    let (store, _kept) = $open.await;
                    late_result_is_refused(&store).await;
                });
            }

            #[test]
            fn failed_work_is_done_again() {
                check_on_threads(BOUND, async {
                    let (store, _kept) = $open.await;
                    failed_work_is_repeated(&store).await;
                });
            }

            #[test]
            fn an_outcome_is_forgotten_after_its_time() {
                check_on_threads(BOUND, async {
                    let (store, _kept) = $open.await;
                    outcome_is_forgotten(&store).await;
                });
            }

            #[test]
            fn the_store_follows_the_rules() {
                // A case writes and flushes up to two dozen times.
                check_many(CASES, Duration::from_secs(10), async {
                    let (store, _kept) = $open.await;
                    follows_the_rules(&store).await;
                });
            }
        }
    };
}

on_store!(sqlite, async {
    let folder = tempfile::tempdir().expect("a folder");
    (Sqlite::open(folder.path().join("once.db")).await.expect("a database"), folder)
});
on_store!(postgres, async { (postgres_database().await, ()) });
on_store!(mysql, async {
    let server = servers::MariaDb::shared().unwrap_or_else(|absent| panic!("{absent}"));
    let name = unused_name("once_");
    server.run(&format!("CREATE DATABASE {name}")).expect("a database");
    let url = server.url();
    let (base, _) = url.rsplit_once('/').expect("a URL with a database");
    (Mysql::connect(&format!("{base}/{name}")).await.expect("a connection"), ())
});
on_store!(redis, async {
    let folder = tempfile::tempdir().expect("a folder");
    let server = servers::Redis::start(folder.path(), "always").unwrap_or_else(|absent| panic!("{absent}"));
    (Redis::connect(&server.url()).await.expect("a connection"), (server, folder))
});

async fn postgres_url() -> String {
    let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
    let name = unused_name("once_");
    server.run(&format!("CREATE DATABASE {name}")).expect("a database");
    let url = server.url();
    let (base, _) = url.rsplit_once('/').expect("a URL with a database");
    format!("{base}/{name}")
}

async fn postgres_database() -> Postgres {
    Postgres::connect(&postgres_url().await).await.expect("a connection")
}

async fn repeat_gets_the_outcome(store: &impl OnceStore) {
    let (palisade, charges) = (locks().await, AtomicU32::new(0));
    let charge = async |_| Ok::<_, Never>(format!("receipt {}", charges.fetch_add(1, SeqCst) + 1));
    let odd = "charge/4'2\"\\ %_\u{1f40e}";
    for _delivery in 1..=3 {
        let receipt: String = palisade.once(odd, store).run(charge).await.expect("an outcome");
        assert_eq!(receipt, "receipt 1");
    }
    // Without the recipe each delivery would have charged the card.
    assert_eq!(charges.load(SeqCst), 1);

    let other: String = palisade.once("charge/43", store).run(charge).await.expect("an outcome");
    assert_eq!(other, "receipt 2", "another key is another operation");

    let bytes = async |_| Ok::<_, Never>(vec![0, 255, 10]);
    let kept = palisade.once("bytes", store).run_bytes(None, bytes).await.expect("an outcome");
    assert_eq!(kept, Some(vec![0, 255, 10]));
    let never = async |_| -> Result<Vec<u8>, Never> { unreachable!("it is done") };
    assert_eq!(palisade.once("bytes", store).run_bytes(None, never).await.expect("an outcome"), kept);

    let first = palisade.once("request", store).request("5 EUR").run(async |_| Ok::<_, Never>(1)).await;
    assert_eq!(first.expect("an outcome"), 1);
    let second = palisade.once("request", store).request("7 EUR").run(async |_| Ok::<_, Never>(2)).await;
    assert!(matches!(second, Err(OnceError::OtherRequest { .. })), "{second:?}");
}

async fn others_wait(store: &impl OnceStore) {
    let (palisade, runs) = (locks().await, AtomicU32::new(0));
    let (begun, has_begun) = oneshot::channel();
    let (go, may_go) = oneshot::channel::<()>();
    let first = palisade.once("report", store).run(async |_| {
        runs.fetch_add(1, SeqCst);
        begun.send(()).expect("the test waits");
        may_go.await.expect("the test goes on");
        Ok::<_, Never>("done".to_owned())
    });
    let others = async {
        has_begun.await.expect("the first begins");
        let never = async |_| -> Result<String, Never> { unreachable!("the first does it") };
        assert!(palisade.once("report", store).try_run(never).await.expect("no error").is_none(), "it is under way");
        let wait = palisade.once("report", store).run(never);
        let release = async {
            until("another caller waits", async || {
                palisade.inspect("once/report").await.expect("a lock").is_some_and(|lock| !lock.waiters.is_empty())
            })
            .await;
            go.send(()).expect("the first waits");
        };
        tokio::join!(wait, release).0.expect("an outcome")
    };
    let (first, other) = tokio::join!(first, others);
    assert_eq!((first.expect("an outcome"), other), ("done".to_owned(), "done".to_owned()));
    assert_eq!(runs.load(SeqCst), 1);
}

/// A worker is paused until its session has ended and another worker has finished. Then it goes on.
async fn late_result_is_refused(store: &impl OnceStore) {
    let palisade = locks().await;
    let (begun, has_begun) = oneshot::channel();
    let (wake, woken) = oneshot::channel::<()>();
    let paused = palisade.once("charge/42", store).run(async |step| {
        begun.send(step.token().expect("it is held")).expect("the test waits");
        woken.await.expect("the test wakes it");
        // The news of a forced release may come after the lock was granted again.
        step.lost().await;
        assert!(step.token().is_err(), "a step notices that its lock is lost");
        Ok::<_, Never>("of the paused worker".to_owned())
    });
    let successor = async {
        let lost = has_begun.await.expect("the first begins");
        palisade.force_release("once/charge/42", "the worker is paused").await.expect("it is held");
        let outcome = palisade.once("charge/42", store).run(async |step| {
            assert_eq!(step.previous(), Some(lost), "the successor learns of the attempt that did not finish");
            assert!(step.token().expect("it is held") > lost);
            Ok::<_, Never>("of the successor".to_owned())
        });
        let outcome = outcome.await.expect("an outcome");
        wake.send(()).expect("the first is paused");
        (lost, outcome)
    };
    let (late, (lost, outcome)) = tokio::join!(paused, successor);
    match late {
        Err(OnceError::TakenOver { token, by: Some(by), .. }) => assert!(token == lost && by > lost),
        other => panic!("the late result was accepted: {other:?}"),
    }
    assert_eq!(outcome, "of the successor");
    let never = async |_| -> Result<String, Never> { unreachable!("it is done") };
    assert_eq!(palisade.once("charge/42", store).run(never).await.expect("an outcome"), outcome);
}

async fn failed_work_is_repeated(store: &impl OnceStore) {
    let palisade = locks().await;
    let failed = palisade.once("mail", store).run(async |_| Err::<u32, _>(io::Error::other("no network"))).await;
    assert!(matches!(&failed, Err(OnceError::Work(error)) if error.to_string() == "no network"), "{failed:?}");
    let again = palisade.once("mail", store).run(async |step| {
        assert!(step.previous().is_some(), "the failed attempt may have sent something");
        Ok::<_, Never>(7)
    });
    assert_eq!(again.await.expect("an outcome"), 7);
}

async fn outcome_is_forgotten(store: &impl OnceStore) {
    let palisade = locks().await;
    let short = Duration::from_millis(20);
    for key in ["a", "b", "c"] {
        let outcome = palisade.once(key, store).keep(short).run(async |_| Ok::<_, Never>(1)).await;
        assert_eq!(outcome.expect("an outcome"), 1);
    }
    until("the outcome is forgotten", async || store.find("c").await.expect("an answer").is_none()).await;
    let again = palisade.once("a", store).request("other").run(async |step| {
        assert_eq!(step.previous(), None, "the first attempt had finished");
        Ok::<_, Never>(2)
    });
    assert_eq!(again.await.expect("an outcome"), 2);
    let kept = palisade.once("a", store).run(async |_| Ok::<_, Never>(3)).await;
    assert_eq!(kept.expect("an outcome"), 2);
}

/// One step of the model test.
#[derive(Debug, Clone)]
enum Op {
    Begin { key: usize, token: u64, request: usize },
    Finish { key: usize, token: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let begin =
        (0..2_usize, 1..6_u64, 0..3_usize).prop_map(|(key, token, request)| Op::Begin { key, token, request });
    let finish = (0..2_usize, 1..6_u64).prop_map(|(key, token)| Op::Finish { key, token });
    proptest::collection::vec(prop_oneof![begin, finish], 1..24)
}

/// Random attempts with random tokens have the same results as in a model, and leave the same records.
async fn follows_the_rules(store: &impl OnceStore) {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let requests = [None, Some(b"x".to_vec()), Some(b"y".to_vec())];
    for case in 0..CASES {
        let ops = ops().new_tree(&mut runner).expect("a case").current();
        let mut model = [const { None::<Record> }; 2];
        for op in &ops {
            let (Op::Begin { key, token: number, .. } | Op::Finish { key, token: number }) = *op;
            let name = format!("{case}/{key}");
            let request = match *op {
                Op::Begin { request, .. } => requests[request].clone(),
                Op::Finish { .. } => None,
            };
            let attempt = Attempt { token: token(number), request: request.clone(), keep: KEEP };
            let record = &mut model[key];
            match op {
                Op::Begin { .. } => {
                    let expected = match record {
                        Some(Record { request: Some(first), .. })
                            if request.as_ref().is_some_and(|this| this != first) =>
                        {
                            Begun::OtherRequest
                        }
                        Some(Record { outcome: Some(outcome), .. }) => Begun::Done(outcome.clone()),
                        Some(Record { token: Some(by), .. }) if *by > attempt.token => Begun::Superseded { by: *by },
                        _ => {
                            let previous = record.as_ref().and_then(|record| record.token);
                            let previous = previous.filter(|previous| *previous < attempt.token);
                            let token = Some(attempt.token);
                            // The first request stays.
                            let request = record.take().and_then(|record| record.request).or(request);
                            *record = Some(Record { token, request, outcome: None, is_expired: false });
                            Begun::Run { previous }
                        }
                    };
                    assert_eq!(store.begin(&name, &attempt).await.expect("an answer"), expected, "{op:?} of {ops:?}");
                }
                Op::Finish { .. } => {
                    let outcome = format!("{case} {number}").into_bytes();
                    let expected = match record {
                        Some(record) if record.token == Some(attempt.token) => {
                            record.outcome = Some(outcome.clone());
                            Finished::Kept
                        }
                        other => Finished::Refused { by: other.as_ref().and_then(|record| record.token) },
                    };
                    let finished = store.finish(&name, &attempt, &outcome).await.expect("an answer");
                    assert_eq!(finished, expected, "{op:?} of {ops:?}");
                }
            }
            for (key, record) in model.iter().enumerate() {
                let stored = store.find(&format!("{case}/{key}")).await.expect("an answer");
                assert_eq!(&stored, record, "after {op:?} of {ops:?}");
            }
        }
    }
}

/// As with locks, the clients of one namespace share records, and others do not.
#[test]
fn each_namespace_of_redis_has_its_own_records() {
    check_on_threads(BOUND, async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = servers::Redis::start(folder.path(), "always").unwrap_or_else(|absent| panic!("{absent}"));
        let palisade = locks().await;
        for (number, namespace) in [(1, "staging"), (2, "production")] {
            let url = format!("{}/?namespace={namespace}", server.url());
            let store = Redis::connect(&url).await.expect("a connection");
            let outcome = palisade.once("charge/42", &store).run(async |_| Ok::<_, Never>(number)).await;
            assert_eq!(outcome.expect("an outcome"), number);
        }
        let error = Redis::connect(&format!("{}/?replicas=1", server.url())).await.expect_err("it would not wait");
        assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Url(_))), "{error}");
    });
}

/// Records whose time has passed do not pile up.
#[test]
fn old_records_are_removed() {
    check_on_threads(BOUND, async {
        let url = postgres_url().await;
        let (store, palisade) = (Postgres::connect(&url).await.expect("a connection"), locks().await);
        for key in 0..12 {
            let once = palisade.once(format!("old/{key}"), &store).keep(Duration::from_millis(1));
            once.run(async |_| Ok::<_, Never>(key)).await.expect("an outcome");
        }
        let client = client(&url).await;
        let count = async || {
            client.query_one("SELECT count(*) FROM palisade_once", &[]).await.expect("a row").get::<_, i64>(0)
        };
        let mut attempts = 0;
        until("the old records are removed", async || {
            attempts += 1;
            let once = palisade.once(format!("new/{attempts}"), &store);
            once.run(async |_| Ok::<_, Never>(attempts)).await.expect("an outcome");
            count().await == i64::from(attempts)
        })
        .await;
    });
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// Work in the same database needs no lock: the second transaction waits for the first.
#[test]
fn two_transactions_do_the_work_exactly_once() {
    check_on_threads(BOUND, async {
        let url = postgres_url().await;
        let (mut one, mut two) = (client(&url).await, client(&url).await);
        one.batch_execute(&format!(
            "{POSTGRES_SCHEMA}; CREATE TABLE account (balance int); INSERT INTO account VALUES (100)"
        ))
        .await
        .expect("tables");
        // The first transaction to claim the key rolls back, so the second one does the work, and the third gets its outcome.
        let rolled_back = one.transaction().await.expect("a transaction");
        let claimed = claim_in_postgres(&rolled_back, "payment/42").await.expect("a claim");
        assert!(matches!(claimed, PostgresClaim::First(_)));
        let second = tokio::spawn(async move {
            let transaction = two.transaction().await.expect("a transaction");
            let claimed = claim_in_postgres(&transaction, "payment/42").await.expect("a claim");
            let PostgresClaim::First(claim) = claimed else { panic!("it is not done: {claimed:?}") };
            transaction.execute("UPDATE account SET balance = balance - 5", &[]).await.expect("an update");
            claim.keep(&transaction, b"paid", KEEP).await.expect("an outcome");
            transaction.commit().await.expect("a commit");
        });
        let observer = client(&url).await;
        let waits =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        until("the second transaction waits", async || {
            observer.query_one(waits, &[]).await.expect("a row").get::<_, i64>(0) == 1
        })
        .await;
        rolled_back.rollback().await.expect("a rollback");
        second.await.expect("no panic");
        let third = one.transaction().await.expect("a transaction");
        let claimed = claim_in_postgres(&third, "payment/42").await.expect("a claim");
        assert!(matches!(claimed, PostgresClaim::Done(outcome) if outcome == b"paid"));
        let balance: i32 = third.query_one("SELECT balance FROM account", &[]).await.expect("a row").get(0);
        assert_eq!(balance, 95);

        // An attempt with a lock is not mistaken for one in a transaction.
        let (store, palisade) = (Postgres::connect(&url).await.expect("a connection"), locks().await);
        let failed = palisade.once("payment/43", &store).run(async |_| Err::<u32, _>(io::Error::other("no"))).await;
        assert!(failed.is_err());
        let claimed = claim_in_postgres(&third, "payment/43").await.expect("a claim");
        assert!(matches!(claimed, PostgresClaim::Unfinished), "{claimed:?}");
        third.commit().await.expect("a commit");

        // A transaction that commits without an outcome leaves the work to the next one.
        for _ in 0..2 {
            let transaction = one.transaction().await.expect("a transaction");
            let claimed = claim_in_postgres(&transaction, "payment/44").await.expect("a claim");
            assert!(matches!(claimed, PostgresClaim::First(_)), "{claimed:?}");
            transaction.commit().await.expect("a commit");
        }
    });
}

/// The record survives a crash of the database, and a client that lost its connection goes on.
#[test]
fn a_killed_database_keeps_the_outcome() {
    check_on_threads(BOUND, async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = servers::Postgres::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        let store = Postgres::connect(&server.url()).await.expect("a connection");
        let palisade = locks().await;
        let first = palisade.once("charge/42", &store).run(async |_| Ok::<_, Never>(1)).await;
        assert_eq!(first.expect("an outcome"), 1);
        server.kill();
        let error =
            palisade.once("charge/42", &store).run(async |_| Ok::<_, Never>(2)).await.expect_err("no database");
        assert!(matches!(&error, OnceError::Failed(error) if !error.may_have_taken_effect()), "{error}");
        server.restart().expect("it starts again");
        let again = palisade.once("charge/42", &store).run(async |_| Ok::<_, Never>(3)).await;
        assert_eq!(again.expect("an outcome"), 1);
    });
}

#[test]
fn an_unfenced_engine_and_bad_input_are_refused() {
    check_on_threads(BOUND, async {
        let store = Sqlite::open(":memory:").await.expect("a database");
        let palisade = locks().await;
        let never = async |_| -> Result<u32, Never> { unreachable!("it is refused") };
        let too_long = "x".repeat(2000);
        for key in ["", "two\nlines", &too_long] {
            // The lock's name has a prefix, so that an empty key would not be refused as a lock.
            let refused = palisade.once(key, &store).run(never).await;
            assert!(matches!(refused, Err(OnceError::Failed(_))), "{key:?}: {refused:?}");
        }
        let zero = palisade.once("key", &store).keep(Duration::ZERO).run(never).await;
        assert!(matches!(zero, Err(OnceError::Failed(_))), "{zero:?}");
        let long = palisade.once("key", &store).request(vec![0; 2000]).run(never).await;
        assert!(matches!(long, Err(OnceError::Failed(_))), "{long:?}");
        let url = Postgres::connect("mysql://root@localhost/x").await.expect_err("it is no such URL");
        assert!(url.to_string().contains("postgres:"), "{url}");

        let folder = tempfile::tempdir().expect("a folder");
        let server = servers::Redis::start(folder.path(), "always").unwrap_or_else(|absent| panic!("{absent}"));
        let redis = palisade::connect(&server.url()).await.expect("an engine");
        let refused = redis.once("key", &store).run(never).await.expect_err("its tokens can go back");
        assert!(refused.to_string().contains("healthy-only"), "{refused}");
        let accepted = redis.once("key", &store).dangerous_accept_failover().run(async |_| Ok::<_, Never>(1)).await;
        assert_eq!(accepted.expect("an outcome"), 1);
    });
}

/// There is no operation for efficiency only, so the message must not offer it.
#[test]
fn an_engine_that_cannot_fence_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = servers::Redis::start(folder.path(), "always").unwrap_or_else(|absent| panic!("{absent}"));
    check_on_threads(BOUND, async {
        let palisade = palisade::connect(&server.url()).await.expect("an engine");
        let store = Sqlite::open(":memory:").await.expect("a database");
        let work = async |_| Ok::<_, Never>(1);
        let refused = palisade.once("charge/42", &store).run(work).await.expect_err("it cannot fence").to_string();
        assert!(refused.contains("dangerous_accept_failover") && !refused.contains("efficiency"), "{refused}");
        let accepted = palisade.once("charge/42", &store).dangerous_accept_failover().run(work).await;
        assert_eq!(accepted.expect("an outcome"), 1);
    });
}
