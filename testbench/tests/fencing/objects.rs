//! Objects: in the reference store, and in a real one.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;

use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ClientOptions, ObjectStore};
use palisade_fence::object_store::{Bucket, Object};
use palisade_fence::{Error, ErrorKind};
use palisade_testbench::fencing::Subject;
use palisade_testbench::servers::S3;

#[derive(Clone)]
struct Objects(Arc<dyn ObjectStore>);

impl Subject for Objects {
    type Resource = Object;

    async fn open(&self, name: &str) -> Result<Object, Error> {
        Bucket::open(self.0.clone()).await?.object(name)
    }

    fn get(&self) {}

    fn set(&self, number: u64) -> Bytes {
        number.to_string().into()
    }

    fn number(&self, answer: Bytes) -> u64 {
        let text = String::from_utf8(answer.to_vec()).expect("a number");
        if text.is_empty() { 0 } else { text.parse().expect("a number") }
    }

    fn bad_names(&self) -> Vec<String> {
        ["", "/", "a//b", "a/../b", "a\nb"].map(str::to_owned).into()
    }
}

fn in_memory() -> Objects {
    static STORE: LazyLock<Arc<InMemory>> = LazyLock::new(Arc::default);
    Objects(STORE.clone())
}

/// One for all tests; it ends with the thread that has started it, and that with the process.
fn in_s3() -> Objects {
    static SERVER: LazyLock<(SocketAddr, &str)> = LazyLock::new(|| {
        let (sender, started) = mpsc::channel();
        thread::spawn(move || {
            let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
            let server = S3::start(directory.path()).unwrap_or_else(|absent| panic!("{absent}"));
            sender.send((server.address, server.bucket)).expect("somebody waits");
            loop {
                thread::park();
            }
        });
        started.recv().expect("it starts")
    });
    let (address, bucket) = *SERVER;
    let store = AmazonS3Builder::new().with_endpoint(format!("http://{address}")).with_allow_http(true);
    let store = store.with_bucket_name(bucket).with_region("us-east-1").with_http_connector(Plain);
    let store = store.with_access_key_id(S3::KEY).with_secret_access_key(S3::SECRET).build();
    Objects(Arc::new(store.expect("a store")))
}

/// HTTP without TLS.
#[derive(Debug)]
struct Plain;

#[derive(Debug)]
struct Line(reqwest::Client);

impl HttpConnector for Plain {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Line(reqwest::Client::new())))
    }
}

#[async_trait::async_trait]
impl HttpService for Line {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let failed = |error| HttpError::new(HttpErrorKind::Unknown, error);
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request = self.0.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
        let (parts, body) =
            axum::http::Response::<reqwest::Body>::from(request.send().await.map_err(failed)?).into_parts();
        let body = body.collect().await.map_err(failed)?.to_bytes();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
    }
}

palisade_testbench::fencing!(object_in_memory, in_memory());
palisade_testbench::fencing!(object_in_s3, in_s3());

#[tokio::test]
async fn a_store_without_conditions_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = LocalFileSystem::new_with_prefix(directory.path()).expect("a store");
    let error = Bucket::open(Arc::new(files)).await.expect_err("it has no conditional update");
    assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0, "the probe is gone");
}
