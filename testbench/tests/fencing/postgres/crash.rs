//! The server is killed while writers write: every acknowledged write is there, and the mark agrees with the data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_fence::postgres::{self, Sql};
use palisade_fence::{Sealed, Settled, Token};
use palisade_testbench::bounded::{check_many, until};
use palisade_testbench::servers::Postgres;
use tokio_postgres::NoTls;

const KILLS: u32 = 4;
const WRITERS: usize = 3;

/// The acknowledged writes of one writer.
#[derive(Default)]
struct Acknowledged {
    acknowledged: AtomicU64,
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn after_a_crash_every_acknowledged_write_is_there_and_every_lost_one_is_settled() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Postgres::start(directory.path()).unwrap_or_else(|absent| panic!("{absent}"));
    check_many(KILLS, Duration::from_secs(10), async {
        prepare(&server.url()).await;
        let known: Vec<_> = (0..WRITERS).map(|_| Arc::new(Acknowledged::default())).collect();
        let (url, ended) = (server.url(), tokio::sync::watch::channel(false));
        let writers: Vec<_> = known
            .iter()
            .enumerate()
            .map(|(number, known)| tokio::spawn(writes(url.clone(), number, known.clone(), ended.1.clone())))
            .collect();
        for kill in 0..KILLS {
            let before: u64 = total(&known);
            // The first kill comes while they seal, each other one after some more writes, at a random point.
            until("twenty more writes are acknowledged", async || {
                assert!(!writers.iter().any(|writer| writer.is_finished()), "a writer has failed");
                kill == 0 || total(&known) >= before + 20
            })
            .await;
            server.kill();
            server.restart().unwrap_or_else(|absent| panic!("{absent}"));
        }
        ended.0.send(true).expect("they listen");
        for writer in writers {
            writer.await.expect("it ends");
        }
        compare(&url, &known).await;
    });
}

fn total(known: &[Arc<Acknowledged>]) -> u64 {
    known.iter().map(|known| known.acknowledged.load(Ordering::SeqCst)).sum()
}

async fn prepare(url: &str) {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    postgres::install(&mut client).await.expect("it is installed");
    for number in 0..WRITERS {
        let sql = format!("CREATE TABLE t{number} AS SELECT 0::bigint AS n");
        client.batch_execute(&sql).await.expect("a table");
        postgres::protect(&mut client, &format!("t{number}"), &format!("r{number}")).await.expect("it is protected");
    }
}

/// Adds one repeatedly, and settles each write whose reply was lost. No write is lost or applied twice.
async fn writes(url: String, number: usize, known: Arc<Acknowledged>, ended: tokio::sync::watch::Receiver<bool>) {
    let mut handle = sealed(&url, &format!("r{number}")).await;
    while !*ended.borrow() {
        let add = Sql::new(format!("UPDATE t{number} SET n = n + 1"));
        let is_applied = match handle.execute(add).await {
            Ok(rows) => rows == 1,
            Err(error) if error.may_have_taken_effect() => settled(&mut handle).await,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
                false
            }
        };
        known.acknowledged.fetch_add(u64::from(is_applied), Ordering::SeqCst);
    }
}

/// Seals a resource. The server may be killed meanwhile: sealing again under the same token is no error.
async fn sealed(url: &str, name: &str) -> Sealed<postgres::Postgres> {
    let token = Token::new(34).expect("a token");
    loop {
        let error = match postgres::Postgres::connect(url, NoTls, name).await {
            Ok(resource) => match Sealed::seal(resource, token).await {
                Ok(handle) => return handle,
                Err(error) => error,
            },
            Err(error) => error,
        };
        assert!(error.is_retryable(), "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn settled(handle: &mut Sealed<postgres::Postgres>) -> bool {
    loop {
        match handle.settle().await {
            Ok(settled) => return matches!(settled, Settled::Applied(_)),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn compare(url: &str, known: &[Arc<Acknowledged>]) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    for (number, known) in known.iter().enumerate() {
        let sql = format!("SELECT n, (SELECT token FROM palisade_fence.mark('r{number}')) FROM t{number}");
        let row = client.query_one(&sql, &[]).await.expect("a row");
        let acknowledged = i64::try_from(known.acknowledged.load(Ordering::SeqCst)).expect("a count");
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (acknowledged, 34), "writer {number}");
    }
}
