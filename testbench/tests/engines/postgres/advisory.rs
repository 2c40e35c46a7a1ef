//! `?mode=advisory`: session advisory locks, for efficiency only.

use palisade::engine::{Level, Order};
use palisade::{EfficiencyGuard, ErrorKind, Loss, Options, Palisade};
use palisade_testbench::servers;

use super::fixture::{Fixture, check, client};

async fn connect(fixture: &Fixture) -> Palisade {
    Options::new().label("advised").connect(&format!("{}?mode=advisory", fixture.url())).await.expect("a client")
}

async fn try_take(client: &Palisade, name: &str) -> Option<EfficiencyGuard> {
    client.lock(name).efficiency().try_acquire().await.expect("an answer")
}

#[test]
fn it_excludes_other_clients_other_tasks_and_psql() {
    let fixture = Fixture::new();
    check(async {
        let (alice, bob) = (connect(&fixture).await, connect(&fixture).await);
        assert_eq!((alice.guarantees().level, alice.guarantees().order), (Level::Advisory, Order::Race));
        let held = try_take(&alice, "lock").await.expect("it is free");
        assert!(try_take(&alice, "lock").await.is_none(), "PostgreSQL gives a connection what it has");
        assert!(try_take(&bob, "lock").await.is_none());
        let psql = client(&fixture.url()).await;
        let taken = psql.query_one("SELECT pg_try_advisory_lock(hashtextextended('lock', 0))", &[]).await;
        assert!(!taken.expect("an answer").get::<_, bool>(0));
        let seen = bob.inspect("lock").await.expect("an answer").expect("it is held");
        assert_eq!(seen.holders[0].label.as_deref(), Some("advised"));
        let waiting = tokio::spawn({
            let bob = bob.clone();
            async move { bob.lock("lock").efficiency().acquire().await }
        });
        held.release().await.expect("it is held");
        waiting.await.expect("no panic").expect("its turn comes").release().await.expect("it is held");
        assert!(bob.inspect("lock").await.expect("an answer").is_none());
    });
}

#[test]
fn readers_share_and_what_is_not_offered_is_refused() {
    let fixture = Fixture::new();
    check(async {
        let (alice, bob) = (connect(&fixture).await, connect(&fixture).await);
        let one = alice.rw_lock("table").read().efficiency().acquire().await.expect("it is free");
        let two = alice.rw_lock("table").read().efficiency().acquire().await.expect("it is shared");
        let three = bob.rw_lock("table").read().efficiency().acquire().await.expect("it is shared");
        assert!(bob.rw_lock("table").write().efficiency().try_acquire().await.expect("an answer").is_none());
        for guard in [one, two, three] {
            guard.release().await.expect("it is held");
        }
        assert!(bob.rw_lock("table").write().efficiency().try_acquire().await.expect("an answer").is_some());
        for error in [
            alice.lock("lock").acquire().await.map(drop).expect_err("it has no token"),
            alice.semaphore("gpu", 2).many(1).efficiency().acquire().await.map(drop).expect_err("no permits"),
            alice.lock_all(["a", "b"]).efficiency().acquire().await.map(drop).expect_err("not several"),
            alice.list("").await.map(drop).expect_err("names are not known"),
            alice.watch("a").await.map(drop).expect_err("nothing is told"),
            alice.force_release("lock", "a test").await.map(drop).expect_err("it is not offered"),
        ] {
            assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
        }
    });
}

/// Fault 33: a connection that is lost is a lost session, and its replacement holds nothing.
#[test]
#[ignore = "long: several seconds"]
fn a_lost_connection_is_a_lost_session() {
    let fixture = Fixture::new();
    check(async {
        let (alice, bob) = (connect(&fixture).await, connect(&fixture).await);
        let held = try_take(&alice, "lock").await.expect("it is free");
        let psql = client(&fixture.url()).await;
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        psql.query_one(cut, &[]).await.expect("it is cut");
        assert_eq!(held.lost().await, Loss::Expired);
        let taken = bob.lock("lock").efficiency().acquire().await.expect("it is free");
        held.release().await.expect_err("it was lost");
        assert!(try_take(&alice, "lock").await.is_none(), "its new connection holds nothing");
        taken.release().await.expect("it is held");
        try_take(&alice, "lock").await.expect("it is free").release().await.expect("it is held");
    });
}

/// Trap: through a pooler in transaction mode a lock would stay behind in another's connection.
#[test]
fn a_pooler_in_transaction_mode_is_refused() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().expect("a folder"));
    let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
    let pooler =
        servers::PgBouncer::start(folder.path(), server.address, 5).unwrap_or_else(|absent| panic!("{absent}"));
    check(async {
        let url = format!("{}?mode=advisory", fixture.url_at(pooler.address));
        let error = palisade::connect(&url).await.map(drop).expect_err("it is refused");
        assert!(error.to_string().contains("pooler in transaction mode") && !error.is_retryable(), "{error}");
        // The reason for the refusal: two clients of the pooler share one server connection, and both have the lock.
        let (one, two) =
            (client(&fixture.url_at(pooler.address)).await, client(&fixture.url_at(pooler.address)).await);
        for client in [one, two] {
            let rows = client.simple_query("SELECT pg_try_advisory_lock(1)").await.expect("an answer");
            let is_taken = rows
                .iter()
                .any(|row| matches!(row, tokio_postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some("t")));
            assert!(is_taken, "the trap is gone");
        }
    });
}
