//! Two instances of one service, whose marks are in one PostgreSQL.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::{BodyExt, Full};
use palisade_core::LockName;
use palisade_fence::http::{Body, FENCING_TOKEN, FENCING_VERDICT, FenceLayer, Kept, Marks, PostgresMarks, Scope};
use palisade_fence::{Mark, Seq, Token};
use palisade_testbench::servers::Postgres;
use tokio::sync::{Semaphore, watch};
use tokio_postgres::{Client, NoTls};
use tower::{Layer, ServiceExt, service_fn};

/// What all instances write to.
#[derive(Clone)]
struct Behind {
    written: Arc<Mutex<Vec<String>>>,
    /// A write needs one of these to go on.
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

/// Two instances in front of the same.
async fn instances(lock: &str) -> [Instance; 2] {
    let behind =
        Behind { written: Arc::default(), permits: Arc::new(Semaphore::new(100)), arrived: watch::Sender::new(0) };
    let instance = async || {
        let marks = PostgresMarks::connect(&url(), NoTls).await.expect("the marks can be kept");
        Instance { layer: FenceLayer::new(Scope::one(lock).expect("a name"), marks), behind: behind.clone() }
    };
    [instance().await, instance().await]
}

impl Instance {
    /// What the fence says to this header.
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

/// Until somebody waits for another's turn.
async fn until_one_waits(database: &Client) {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%palisade_http_marks%'";
    while database.query(waits, &[]).await.expect("it answers").is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_one_instance_has_sealed_and_answered_is_known_to_the_other() {
    let [one, other] = instances("shared/known").await;
    assert_eq!(one.send("33; seal", "").await, "sealed; token=33; seq=0");
    assert_eq!(other.send("33; seq=1", "a").await, "admitted");
    assert_eq!(one.send("33; seq=1", "a").await, "repeated", "with the answer that the other one got");
    assert_eq!(other.send("34; seal", "").await, "sealed; token=34; seq=0");
    assert_eq!(one.send("33; seq=2", "b").await, "stale; seen=34");
    assert_eq!(one.send("33; seal", "").await, "superseded; seen=34");
    assert_eq!(one.written(), ["a"]);
    // A third one begins later.
    let marks = PostgresMarks::connect(&url(), NoTls).await.expect("the marks can be kept");
    let mark = marks.peek(&LockName::new("shared/known").expect("a name")).await.expect("it answers");
    assert_eq!(mark.expect("it is sealed").token.get(), 34);
}

#[tokio::test]
async fn a_seal_at_one_instance_waits_for_the_write_under_way_at_the_other() {
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
}

#[tokio::test]
async fn an_instance_that_lost_its_turn_midway_leaves_doubt_and_undoes_nothing() {
    let [one, other] = instances("shared/lost").await;
    one.send("33; seal", "").await;
    one.behind.permits.forget_permits(100);
    let mut arrived = one.behind.arrived.subscribe();
    let permits = one.behind.permits.clone();
    let write = tokio::spawn(async move { one.send("33; seq=1", "old").await });
    arrived.wait_for(|arrived| *arrived == 1).await.expect("it is there");
    let database = database().await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid IN \
               (SELECT pid FROM pg_stat_activity WHERE query LIKE '%palisade_http_marks%') \
               AND (classid::bigint << 32 | objid::bigint) = hashtextextended('palisade_http_marks shared/lost', 0)";
    assert_eq!(database.query(cut, &[]).await.expect("it answers").len(), 1, "one has the turn");
    assert_eq!(other.send("33; seq=1", "old").await, "unknown");
    assert_eq!(other.send("33; seq=2", "next").await, "unknown");
    assert_eq!(other.send("34; seal", "").await, "sealed; token=34; seq=0");
    permits.add_permits(100);
    assert_eq!(write.await.expect("no panic"), "unknown", "its answer could not be kept");
    assert_eq!(other.send("34; seq=1", "new").await, "admitted", "the mark is as it was");
}

#[tokio::test]
async fn what_is_kept_changes_only_if_it_is_as_it_was_found() {
    let marks = PostgresMarks::connect(&url(), NoTls).await.expect("the marks can be kept");
    let name = LockName::new("shared/it's \\ compared").expect("a name");
    let sealed = |token| {
        let mark = Mark { token: Token::new(token).expect("a token"), seq: Seq::NONE };
        Kept { mark: Some(mark), ..Kept::default() }
    };
    let mut first = marks.turn(&name).await.expect("nobody has it");
    first.keep(sealed(33)).await.expect("there is nothing yet");
    first.keep(sealed(34)).await.expect("it is as it was left");
    drop(first);
    let mut turn = marks.turn(&name).await.expect("nobody has it any more");
    assert_eq!(*turn.kept(), sealed(34));
    // As if the lock had been lost, and another had the turn.
    let raise = "UPDATE palisade_http_marks SET token = 36, version = version + 1 WHERE resource = $1";
    assert_eq!(database().await.execute(raise, &[&name.as_str()]).await.expect("it answers"), 1);
    let error = turn.keep(sealed(35)).await.expect_err("it would undo what the other has kept");
    assert!(error.to_string().contains("another instance had the turn meanwhile"), "{error}");
    assert_eq!(marks.peek(&name).await.expect("it answers").expect("a mark").token.get(), 36);
}
