//! The tower layer for `Idempotency-Key`.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use http_body_util::BodyExt;
use palisade::recipe::once::Step;
use palisade::recipe::once::http::IdempotencyLayer;
use palisade::recipe::store::Sqlite;
use palisade_testbench::bounded::{BOUND, check_on_threads, until};
use tempfile::TempDir;
use tokio::sync::Notify;
use tower::ServiceExt;

const DATABASE: &str = "once.db";

struct Fixture {
    app: Router,
    /// With the database.
    folder: TempDir,
    calls: Arc<AtomicU32>,
    /// Lets a call to `/slow` go on.
    go: Arc<Notify>,
}

impl Fixture {
    async fn new(adapt: impl FnOnce(IdempotencyLayer<Sqlite>) -> IdempotencyLayer<Sqlite>) -> Fixture {
        let palisade = palisade::connect("memory:").await.expect("an engine");
        let folder = tempfile::tempdir().expect("a folder");
        let store = Sqlite::open(folder.path().join(DATABASE)).await.expect("a database");
        let caller = |parts: &Parts| {
            let user = parts.headers.get("x-user").map(|user| user.as_bytes().to_vec());
            String::from_utf8(user.unwrap_or_default()).expect("text")
        };
        let layer = adapt(IdempotencyLayer::new(palisade, store, caller));
        let (calls, go) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let count = calls.clone();
        let charge = move |request: Request| async move {
            let call = count.fetch_add(1, SeqCst) + 1;
            assert!(
                request.headers().get("idempotency-key").is_none()
                    || request.extensions().get::<Arc<Step>>().is_some()
            );
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let text = format!("charge {call}: {}", String::from_utf8_lossy(&body));
            Response::builder()
                .status(201)
                .header("location", format!("/charges/{call}"))
                .body(Body::from(text))
                .expect("a response")
        };
        let count = calls.clone();
        let fail = move || async move {
            count.fetch_add(1, SeqCst);
            StatusCode::BAD_GATEWAY
        };
        let (count, may_go) = (calls.clone(), go.clone());
        let slow = move || async move {
            count.fetch_add(1, SeqCst);
            may_go.notified().await;
            "slow"
        };
        let count = calls.clone();
        let long = move |length: String| async move {
            count.fetch_add(1, SeqCst);
            "x".repeat(length.parse().expect("a number"))
        };
        let routes =
            Router::new().route("/charges", post(charge)).route("/fail", post(fail)).route("/slow", post(slow));
        Fixture { app: routes.route("/long", post(long)).layer(layer), folder, calls, go }
    }

    /// Sends a request, and returns the status, whether it was replayed, the location and the body.
    async fn post(&self, path: &str, key: Option<&str>, user: &str, body: &str) -> (u16, bool, String, String) {
        let mut request = Request::post(path).header("x-user", user);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let response = self.app.clone().oneshot(request).await.expect("a response");
        let (parts, body) = response.into_parts();
        let header = |name| parts.headers.get(name).map_or("", |value| value.to_str().expect("text")).to_owned();
        let (is_replayed, location) = (header("idempotent-replayed") == "true", header("location"));
        let status = parts.status.as_u16();
        let body = body.collect().await.expect("a body").to_bytes();
        (status, is_replayed, location, String::from_utf8_lossy(&body).into_owned())
    }

    /// Removes all records.
    fn forget_everything(&self) {
        let database = rusqlite::Connection::open(self.folder.path().join(DATABASE)).expect("the database");
        assert_eq!(database.execute("DELETE FROM palisade_once", []).expect("records"), 1);
    }

    fn calls(&self) -> u32 {
        self.calls.load(SeqCst)
    }
}

#[test]
fn a_repeat_gets_status_headers_and_body_of_the_first() {
    check_on_threads(BOUND, async {
        let fixture = Fixture::new(|layer| layer).await;
        let expected = |is_replayed| (201, is_replayed, "/charges/1".to_owned(), "charge 1: 5 EUR".to_owned());
        assert_eq!(fixture.post("/charges", Some("k1"), "anna", "5 EUR").await, expected(false));
        assert_eq!(fixture.post("/charges", Some("k1"), "anna", "5 EUR").await, expected(true));
        // The quotes of a structured field are not part of the key.
        assert_eq!(fixture.post("/charges", Some("\"k1\""), "anna", "5 EUR").await, expected(true));
        assert_eq!(fixture.calls(), 1);
        // Without a key each request is an operation.
        assert_eq!(fixture.post("/charges", None, "anna", "5 EUR").await.3, "charge 2: 5 EUR");
    });
}

#[test]
fn another_request_under_the_key_is_refused() {
    check_on_threads(BOUND, async {
        let fixture = Fixture::new(|layer| layer).await;
        assert_eq!(fixture.post("/charges", Some("k1"), "anna", "5 EUR").await.0, 201);
        assert_eq!(fixture.post("/charges", Some("k1"), "anna", "7 EUR").await.0, 422);
        assert_eq!(fixture.post("/charges?x=1", Some("k1"), "anna", "5 EUR").await.0, 422);
        assert_eq!(fixture.calls(), 1);
    });
}

/// A key that another user has guessed gives it nothing.
#[test]
fn each_caller_has_its_own_keys() {
    check_on_threads(BOUND, async {
        let fixture = Fixture::new(|layer| layer).await;
        assert_eq!(fixture.post("/charges", Some("k1"), "anna", "5 EUR").await.3, "charge 1: 5 EUR");
        let other = fixture.post("/charges", Some("k1"), "bert", "5 EUR").await;
        assert_eq!((other.1, other.3.as_str()), (false, "charge 2: 5 EUR"));
    });
}

#[test]
fn parallel_repeats_wait_or_are_told_to_come_back() {
    check_on_threads(BOUND, async {
        let fixture = Arc::new(Fixture::new(|layer| layer.wait(Duration::from_millis(1))).await);
        let first = tokio::spawn({
            let fixture = fixture.clone();
            async move { fixture.post("/slow", Some("k1"), "anna", "").await }
        });
        until("the service is called", async || fixture.calls() == 1).await;
        assert_eq!(fixture.post("/slow", Some("k1"), "anna", "").await.0, 409);
        fixture.go.notify_one();
        assert_eq!(first.await.expect("no panic").3, "slow");
        assert_eq!(fixture.post("/slow", Some("k1"), "anna", "").await.3, "slow");
        assert_eq!(fixture.calls(), 1);

        let patient = Arc::new(Fixture::new(|layer| layer).await);
        let both = [(); 2].map(|()| {
            let fixture = patient.clone();
            tokio::spawn(async move { fixture.post("/slow", Some("k1"), "anna", "").await })
        });
        until("the service is called", async || patient.calls() == 1).await;
        patient.go.notify_one();
        for reply in both {
            assert_eq!(reply.await.expect("no panic").3, "slow");
        }
        assert_eq!(patient.calls(), 1);
    });
}

/// The service finishes although its client is gone, and the repeat gets the response.
#[test]
fn a_client_that_disconnects_gets_the_response_later() {
    check_on_threads(BOUND, async {
        let fixture = Arc::new(Fixture::new(|layer| layer).await);
        let gone = tokio::spawn({
            let fixture = fixture.clone();
            async move { fixture.post("/slow", Some("k1"), "anna", "").await }
        });
        until("the service is called", async || fixture.calls() == 1).await;
        gone.abort();
        assert!(gone.await.expect_err("it is gone").is_cancelled());
        fixture.go.notify_one();
        assert_eq!(fixture.post("/slow", Some("k1"), "anna", "").await.3, "slow");
        assert_eq!(fixture.calls(), 1);
    });
}

#[test]
fn a_failed_response_is_not_kept() {
    check_on_threads(BOUND, async {
        let fixture = Fixture::new(|layer| layer).await;
        for call in 1..=2 {
            assert_eq!(fixture.post("/fail", Some("k1"), "anna", "").await.0, 502);
            assert_eq!(fixture.calls(), call);
        }
    });
}

#[test]
fn bad_keys_and_long_bodies_change_nothing() {
    check_on_threads(BOUND, async {
        let fixture = Fixture::new(|layer| layer.required().max_body_bytes(1024)).await;
        let too_long = "k".repeat(256);
        for key in [None, Some(""), Some("\"\""), Some(&*too_long)] {
            assert_eq!(fixture.post("/charges", key, "anna", "5 EUR").await.0, 400, "{key:?}");
        }
        assert_eq!(fixture.post("/charges", Some("k1"), "anna", &"x".repeat(1025)).await.0, 413);
        assert_eq!(fixture.calls(), 0);
        assert_eq!(fixture.post("/charges", Some("k1"), "anna", "5 EUR").await.0, 201, "the key is still unused");
    });
}

/// A response that is too long to keep is not performed again.
#[test]
fn a_long_response_is_not_performed_twice() {
    check_on_threads(BOUND, async {
        // Longer than allowed, and longer than any record.
        for (max_bytes, length) in [(1024, "1025"), (8 << 20, "5000000")] {
            let fixture = Fixture::new(|layer| layer.max_body_bytes(max_bytes)).await;
            for _ in 0..2 {
                let (status, _, _, body) = fixture.post("/long", Some("k1"), "anna", length).await;
                assert_eq!(status, 500);
                assert!(body.contains("was performed"), "{body}");
                assert_eq!(fixture.calls(), 1);
            }
        }
    });
}

/// No repeat is under way, so the client is not told to come back for the response.
#[test]
fn a_response_whose_record_is_gone_invites_no_repeat() {
    check_on_threads(BOUND, async {
        let fixture = Arc::new(Fixture::new(|layer| layer).await);
        let first = tokio::spawn({
            let fixture = fixture.clone();
            async move { fixture.post("/slow", Some("k1"), "anna", "").await }
        });
        until("the service is called", async || fixture.calls() == 1).await;
        fixture.forget_everything();
        fixture.go.notify_one();
        let (status, _, _, body) = first.await.expect("no panic");
        assert_eq!(status, 500, "{body}");
        assert!(body.contains("could not be kept"), "{body}");
    });
}

/// A router that strips a prefix hides it from the layers inside.
#[test]
fn the_whole_path_counts_if_the_layer_is_told_so() {
    check_on_threads(BOUND, async {
        let whole = |parts: &Parts| parts.extensions.get::<OriginalUri>().expect("a router").0.to_string();
        let mut fixture = Fixture::new(|layer| layer.target(whole)).await;
        fixture.app = Router::new().nest("/accounts/{id}", fixture.app);
        assert_eq!(fixture.post("/accounts/1/charges", Some("k1"), "anna", "5 EUR").await.0, 201);
        assert_eq!(fixture.post("/accounts/2/charges", Some("k1"), "anna", "5 EUR").await.0, 422);
        assert!(fixture.post("/accounts/1/charges", Some("k1"), "anna", "5 EUR").await.1, "it is a repeat");
    });
}
