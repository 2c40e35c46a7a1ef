//! Two instances of one service, whose marks are in one PostgreSQL.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::{BodyExt, Full};
use palisade_core::LockName;
use palisade_fence::http::{
    Body, FENCING_TOKEN, FENCING_VERDICT, FenceLayer, Limits, MarkRecord, Marks, PostgresMarks, Scope,
};
use palisade_fence::{Mark, Seq, Token};
use palisade_testbench::bounded::until;
use palisade_testbench::servers::{PgBouncer, Postgres};
use tokio::sync::{Semaphore, watch};
use tokio_postgres::{Client, NoTls};
use tower::{Layer, ServiceExt, service_fn};

use super::check;

/// The store that all instances write to.
#[derive(Clone)]
struct Behind {
    written: Arc<Mutex<Vec<String>>>,
    /// A write waits for one of these permits.
    permits: Arc<Semaphore>,
    arrived: watch::Sender<usize>,
}

struct Instance {
    layer: FenceLayer,
    behind: Behind,
}

fn url() -> String {
    Postgres::shared().unwrap_or_else(|absent| panic!("{absent}")).url()
}

/// Starts two instances with the same store.
async fn instances(lock: &str) -> [Instance; 2] {
    instances_at(lock, [&url(), &url()], Limits::default()).await
}

/// Does the same, with connections by these URLs.
async fn instances_at(lock: &str, urls: [&str; 2], limits: Limits) -> [Instance; 2] {
    let behind =
        Behind { written: Arc::default(), permits: Arc::new(Semaphore::new(100)), arrived: watch::Sender::new(0) };
    let instance = async |url: &str| {
        let marks = PostgresMarks::connect(url, NoTls).await.expect("the marks can be kept");
        let layer = FenceLayer::with_limits(Scope::one(lock).expect("a name"), marks, limits);
        Instance { layer, behind: behind.clone() }
    };
    [instance(urls[0]).await, instance(urls[1]).await]
}

/// Ends the connection that holds the turn of a resource.
async fn cut(database: &Client, lock: &str) {
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid IN \
               (SELECT pid FROM pg_stat_activity WHERE query LIKE '%palisade_http%') \
               AND (classid::bigint << 32 | objid::bigint) = hashtextextended('palisade_http_marks ' || $1, 0)";
    assert_eq!(database.query(cut, &[&lock]).await.expect("it answers").len(), 1, "one has the turn");
}

impl Instance {
    /// Sends a request with this header, and returns the fence's reply.
    async fn send(&self, header: &str, body: &str) -> String {
        let behind = self.behind.clone();
        let service = service_fn(move |request: Request<Body>| {
            let behind = behind.clone();
            async move {
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                behind.arrived.send_modify(|arrived| *arrived += 1);
                behind.permits.acquire().await.expect("it is open").forget();
                behind.written.lock().expect("not poisoned").push(String::from_utf8(body.to_vec()).expect("UTF-8"));
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
            }
        });
        let request = Request::post("/").header(FENCING_TOKEN, header).body(Full::new(Bytes::from(body.to_owned())));
        let answer = self.layer.layer(service).oneshot(request.expect("a request")).await.expect("it answers");
        answer.headers()[FENCING_VERDICT].to_str().expect("ASCII").to_owned()
    }

    fn written(&self) -> Vec<String> {
        self.behind.written.lock().expect("not poisoned").clone()
    }
}

async fn database() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.expect("it is there");
    tokio::spawn(connection);
    client
}

/// Waits until an instance waits for its turn.
async fn until_one_waits(database: &Client) {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%palisade_http_marks%'";
    let is_waiting = async || !database.query(waits, &[]).await.expect("it answers").is_empty();
    until("an instance waits for another one's turn", is_waiting).await;
}

#[test]
fn instances_share_seals_and_answers() {
    check(async {
        let [one, other] = instances("shared/known").await;
        assert_eq!(one.send("33; seal", "").await, "sealed; token=33; seq=0");
        assert_eq!(other.send("33; seq=1", "a").await, "admitted");
        assert_eq!(one.send("33; seq=1", "a").await, "repeated", "with the answer that the other one got");
        assert_eq!(other.send("34; seal", "").await, "sealed; token=34; seq=0");
        assert_eq!(one.send("33; seq=2", "b").await, "stale; seen=34");
        assert_eq!(one.send("33; seal", "").await, "superseded; seen=34");
        assert_eq!(one.written(), ["a"]);
        // A third instance starts later.
        let marks = PostgresMarks::connect(&url(), NoTls).await.expect("the marks can be kept");
        let mark = marks.peek(&LockName::new("shared/known").expect("a name")).await.expect("it answers");
        assert_eq!(mark.expect("it is sealed").token.get(), 34);
    });
}

#[test]
fn a_seal_at_one_instance_waits_for_the_write_under_way_at_the_other() {
    check(async {
        let [one, other] = instances("shared/waits").await;
        one.send("33; seal", "").await;
        one.behind.permits.forget_permits(100);
        let mut arrived = one.behind.arrived.subscribe();
        let (permits, written) = (one.behind.permits.clone(), one.behind.written.clone());
        let write = tokio::spawn(async move { one.send("33; seq=1", "old").await });
        arrived.wait_for(|arrived| *arrived == 1).await.expect("it is there");
        let seal = tokio::spawn(async move { other.send("34; seal", "").await });
        until_one_waits(&database().await).await;
        assert!(!seal.is_finished(), "the old write could still change something");
        permits.add_permits(1);
        assert_eq!(write.await.expect("no panic"), "admitted");
        assert_eq!(seal.await.expect("no panic"), "sealed; token=34; seq=0");
        assert_eq!(*written.lock().expect("not poisoned"), ["old"]);
    });
}

#[test]
fn a_write_whose_instance_lost_its_turn_has_an_unknown_outcome() {
    check(async {
        let [one, other] = instances("shared/lost").await;
        one.send("33; seal", "").await;
        one.behind.permits.forget_permits(100);
        let mut arrived = one.behind.arrived.subscribe();
        let permits = one.behind.permits.clone();
        let write = tokio::spawn(async move { one.send("33; seq=1", "old").await });
        arrived.wait_for(|arrived| *arrived == 1).await.expect("it is there");
        let database = database().await;
        cut(&database, "shared/lost").await;
        assert_eq!(other.send("33; seq=1", "old").await, "unknown");
        assert_eq!(other.send("33; seq=2", "next").await, "unknown");
        assert_eq!(other.send("34; seal", "").await, "sealed; token=34; seq=0");
        permits.add_permits(100);
        assert_eq!(write.await.expect("no panic"), "unknown", "its answer could not be kept");
        assert_eq!(other.send("34; seq=1", "new").await, "admitted", "the mark is as it was");
    });
}

#[test]
fn a_stored_mark_changes_only_by_compare_and_set() {
    check(async {
        let marks = PostgresMarks::connect(&url(), NoTls).await.expect("the marks can be kept");
        let name = LockName::new("shared/it's \\ compared").expect("a name");
        let sealed = |token| {
            let mark = Mark { token: Token::new(token).expect("a token"), seq: Seq::NONE };
            MarkRecord { mark: Some(mark), ..MarkRecord::default() }
        };
        let mut first = marks.lock(&name).await.expect("it is free");
        first.save(sealed(33)).await.expect("there is nothing yet");
        first.save(sealed(34)).await.expect("it is as it was left");
        drop(first);
        let mut lock = marks.lock(&name).await.expect("it is free again");
        assert_eq!(*lock.record(), sealed(34));
        // As if the lock had been lost, and another instance had the turn.
        let raise = "UPDATE palisade_http.marks SET token = 36, version = version + 1 WHERE resource = $1";
        assert_eq!(database().await.execute(raise, &[&name.as_str()]).await.expect("it answers"), 1);
        let error = lock.save(sealed(35)).await.expect_err("it would undo what the other has kept");
        assert!(error.to_string().contains("another instance has had the lock since"), "{error}");
        assert_eq!(marks.peek(&name).await.expect("it answers").expect("a mark").token.get(), 36);
    });
}

/// Begins a write at this instance, and ends its turn midway.
async fn lose(instance: &Instance, database: &Client, lock: &str, header: &str) {
    instance.behind.permits.forget_permits(100);
    let mut arrived = instance.behind.arrived.subscribe();
    let before = *arrived.borrow_and_update();
    let write = instance.send(header, "lost");
    let midway = async {
        arrived.wait_for(|arrived| *arrived > before).await.expect("it is there");
        cut(database, lock).await;
        instance.behind.permits.add_permits(100);
    };
    let (said, ()) = tokio::join!(write, midway);
    assert_eq!(said, "unknown");
}

#[test]
fn an_older_unknown_outcome_does_not_shorten_the_quarantine_of_a_newer_one() {
    check(async {
        let limits = Limits { quarantine: Duration::from_millis(500), ..Limits::default() };
        let [one, other] = instances_at("shared/doubts", [&url(), &url()], limits).await;
        let database = database().await;
        one.send("33; seal", "").await;
        lose(&one, &database, "shared/doubts", "33; seq=1").await;
        // The other instance ends this quarantine.
        until("the other instance seals", async || !other.send("34; seal", "").await.starts_with("shut")).await;
        lose(&other, &database, "shared/doubts", "34; seq=1").await;
        let said = one.send("35; seal", "").await;
        assert!(said.starts_with("shut"), "the write under 34 can still be under way: {said}");
        until("the first instance seals", async || !one.send("35; seal", "").await.starts_with("shut")).await;
        assert_eq!(one.send("35; seq=1", "new").await, "admitted");
    });
}

#[test]
fn instances_with_other_search_paths_have_the_same_marks() {
    check(async {
        let database = database().await;
        database.batch_execute("CREATE SCHEMA http_a; CREATE SCHEMA http_b").await.expect("they are new");
        let at = |schema: &str| format!("{}?options=-csearch_path%3D{schema}", url());
        let [one, other] = instances_at("shared/paths", [&at("http_a"), &at("http_b")], Limits::default()).await;
        assert_eq!(one.send("34; seal", "").await, "sealed; token=34; seq=0");
        assert_eq!(other.send("33; seal", "").await, "superseded; seen=34");
        assert_eq!(other.send("34; seq=1", "a").await, "admitted");
    });
}

#[test]
#[ignore = "long: crowds"]
fn a_write_that_takes_longer_than_a_connection_may_be_idle_keeps_its_turn() {
    check(async {
        // Longer than connecting takes on a busy machine, which may stand still meanwhile.
        let idle = format!("{}?options=-cidle_session_timeout%3D10000", url());
        let [one, other] = instances_at("shared/idle", [&idle, &url()], Limits::default()).await;
        one.send("33; seal", "").await;
        one.behind.permits.forget_permits(100);
        let mut arrived = one.behind.arrived.subscribe();
        let permits = one.behind.permits.clone();
        let write = tokio::spawn(async move { one.send("33; seq=1", "slow").await });
        arrived.wait_for(|arrived| *arrived == 1).await.expect("it is there");
        // The long duration is what is tested.
        tokio::time::sleep(Duration::from_secs(15)).await;
        permits.add_permits(100);
        assert_eq!(write.await.expect("no panic"), "admitted");
        assert_eq!(other.send("33; seq=1", "slow").await, "repeated");
    });
}

#[test]
fn a_pooler_in_transaction_mode_is_refused() {
    check(async {
        let place = tempfile::tempdir().expect("a directory");
        let server = Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
        let pooler = PgBouncer::start(place.path(), server.address, 5).expect("a PgBouncer");
        let Err(error) = PostgresMarks::connect(&pooler.url(), NoTls).await else { panic!("locks would be lost") };
        assert!(error.to_string().contains("pooler"), "{error}");
    });
}

#[test]
#[ignore = "long: several seconds"]
fn marks_are_durable_whatever_the_role_sets() {
    check(async {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let mut server = Postgres::start(place.path()).expect("a PostgreSQL");
        let url = format!("{}?options=-csynchronous_commit%3Doff", server.url());
        for token in 33..38 {
            let [one, _] = instances_at("shared/crash", [&url, &url], Limits::default()).await;
            assert!(one.send(&format!("{token}; seal"), "").await.starts_with("sealed"));
            assert_eq!(one.send(&format!("{token}; seq=1"), "a").await, "admitted");
            server.kill();
            server.restart().expect("it reads its files");
            let [after, _] = instances_at("shared/crash", [&url, &url], Limits::default()).await;
            assert_eq!(after.send(&format!("{token}; seq=1"), "a").await, "repeated");
            assert_eq!(after.send("32; seal", "").await, format!("superseded; seen={token}"));
        }
    });
}
