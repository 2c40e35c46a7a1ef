//! Compare and set, on every store.

use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use palisade::ErrorKind;
use palisade::recipe::store::{Objects, Postgres, Redis, Sqlite};
use palisade::recipe::versioned::{MAX_VALUE_BYTES, Stored, Versioned, VersionedStore};
use palisade_testbench::bounded::{self, BOUND};
use palisade_testbench::servers::{Faults, Loss, Postgres as Server, Redis as RedisServer, S3};

use super::queue::{client, database_on};

/// Checks a promise on a store.
fn check<S: VersionedStore + 'static>(open: impl Future<Output = Result<S, palisade::Error>>) {
    bounded::check_on_threads(BOUND, async {
        let store = open.await.unwrap_or_else(|error| panic!("{error:?}"));
        a_late_writer_is_refused(&store).await;
        no_update_is_lost(&store).await;
        a_value_of_another_type_is_refused(&store).await;
        the_longest_value_is_kept(&store).await;
    });
}

#[test]
fn values_in_sqlite_lose_no_update() {
    let folder = tempfile::tempdir().expect("a folder");
    check(Sqlite::open(folder.path().join("values.db")));
}

#[test]
fn values_in_postgresql_lose_no_update() {
    let database = database_on(Server::shared().unwrap_or_else(|absent| panic!("{absent}")));
    check(Postgres::connect(&database.url));
}

#[test]
fn values_in_redis_lose_no_update() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::start(folder.path(), "always").unwrap_or_else(|absent| panic!("{absent}"));
    check(Redis::connect(&server.url()));
}

#[test]
fn values_in_an_object_store_lose_no_update() {
    check(Objects::open(Arc::new(InMemory::new())));
}

#[test]
fn values_in_s3_lose_no_update() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = S3::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
    check(Objects::open(S3::client(&server.address.to_string()).expect("a client")));
}

async fn a_late_writer_is_refused<S: VersionedStore>(store: &S) {
    let value = Versioned::<String, S>::new(store, "plan/late");
    let text = |text: &str| text.to_owned();
    let Stored::Stored(first) = value.store_if(None, &text("first")).await.expect("an answer") else {
        panic!("nothing was stored before")
    };
    assert_eq!(value.store_if(None, &text("again")).await.expect("an answer"), Stored::Changed);
    let (paused, version) = value.load().await.expect("an answer").expect("a value");
    assert_eq!(paused, "first");
    let Stored::Stored(second) = value.store_if(Some(&first), &text("second")).await.expect("an answer") else {
        panic!("the version is the last one")
    };
    // The value is the first one again, and the version is not.
    assert!(matches!(value.store_if(Some(&second), &paused).await.expect("an answer"), Stored::Stored(_)));
    assert_eq!(value.store_if(Some(&version), &text("late")).await.expect("an answer"), Stored::Changed);
    assert_eq!(value.load().await.expect("an answer").expect("a value").0, "first");
}

async fn no_update_is_lost<S: VersionedStore + 'static>(store: &S) {
    const TASKS: u64 = 6;
    const UPDATES: u64 = 8;
    let counter = Versioned::<u64, S>::new(store, "counters/1").attempts(1000);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let counter = counter.clone();
            tokio::spawn(async move {
                for _ in 0..UPDATES {
                    counter.update(|count| count.unwrap_or_default() + 1).await.expect("it is updated");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("it has updated");
    }
    assert_eq!(counter.load().await.expect("an answer").expect("a value").0, TASKS * UPDATES);
}

async fn a_value_of_another_type_is_refused<S: VersionedStore>(store: &S) {
    let error = Versioned::<Vec<u8>, S>::new(store, "counters/1").load().await.expect_err("it is a number");
    assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
}

async fn the_longest_value_is_kept<S: VersionedStore>(store: &S) {
    let value = Versioned::<String, S>::new(store, "long");
    let longest = "v".repeat(MAX_VALUE_BYTES - 1024);
    value.update(|_| longest.clone()).await.expect("it is short enough");
    assert_eq!(value.load().await.expect("an answer").expect("a value").0, longest);
}

/// Two clients read the balance, and both write. With plain statements the first deposit is lost.
#[test]
fn plain_writes_lose_an_update_that_compare_and_set_keeps() {
    let database = database_on(Server::shared().unwrap_or_else(|absent| panic!("{absent}")));
    bounded::check_on_threads(BOUND, async {
        let plain = client(&database.url).await;
        let table = "CREATE TABLE account (balance int); INSERT INTO account VALUES (100)";
        plain.batch_execute(table).await.expect("a table");
        let read =
            async || plain.query_one("SELECT balance FROM account", &[]).await.expect("a row").get::<_, i32>(0);
        let (first, second) = (read().await, read().await);
        for balance in [first + 5, second + 20] {
            plain.execute("UPDATE account SET balance = $1", &[&balance]).await.expect("it is written");
        }
        assert_eq!(read().await, 120, "a deposit is lost");

        let store = Postgres::connect(&database.url).await.expect("a database");
        let account = Versioned::<i32, _>::new(&store, "account");
        account.update(|_| 100).await.expect("it is stored");
        let (first, version) = account.load().await.expect("an answer").expect("a value");
        account.update(|balance| balance.unwrap_or_default() + 20).await.expect("it is stored");
        assert_eq!(account.store_if(Some(&version), &(first + 5)).await.expect("an answer"), Stored::Changed);
        account.update(|balance| balance.unwrap_or_default() + 5).await.expect("it is stored");
        assert_eq!(account.load().await.expect("an answer").expect("a value").0, 125);
    });
}

/// The client of the store repeats a put whose reply was lost, and is refused because of its own put.
#[test]
fn an_update_whose_reply_s3_loses_is_applied_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = S3::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
    bounded::check_on_threads(BOUND, async {
        let address = server.address.to_string();
        let faults = Faults::default();
        let store = Objects::open(S3::client_over(&address, &faults).expect("a client")).await.expect("a bucket");
        let counter = Versioned::<u64, _>::new(&store, "counter");
        let other = Objects::open(S3::client(&address).expect("a client")).await.expect("a bucket");
        let others = Versioned::<u64, _>::new(&other, "counter");
        let mut expected = 0;
        for loss in [Loss::Broken, Loss::Replaced] {
            for writes_of_others in [0, 1, 5] {
                faults.lose_next(loss);
                let updating = tokio::spawn({
                    let counter = counter.clone();
                    async move { counter.update(|count| count.unwrap_or_default() + 1).await }
                });
                faults.until_lost().await;
                for _ in 0..writes_of_others {
                    others.update(|count| count.unwrap_or_default() + 1000).await.expect("it is updated");
                }
                faults.pass();
                updating.await.expect("it ends").expect("it is updated");
                expected += 1 + 1000 * writes_of_others;
                assert_eq!(others.load().await.expect("an answer").expect("a value").0, expected, "{loss:?}");
            }
        }
    });
}

#[test]
fn a_store_without_conditions_is_refused() {
    bounded::check_on_threads(BOUND, async {
        let folder = tempfile::tempdir().expect("a folder");
        let local = LocalFileSystem::new_with_prefix(folder.path()).expect("a folder");
        let error = Objects::open(Arc::new(local)).await.expect_err("it cannot replace on a condition");
        assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "the probe is removed");
    });
}
