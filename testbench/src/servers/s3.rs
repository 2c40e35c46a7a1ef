//! A store that speaks S3.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use http::{Method, StatusCode};
use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, ObjectStore};
use tokio::sync::watch;

use super::{ANSWER_TIMEOUT, Absent, Process, free_port};

use crate::bounded::within;

/// A SeaweedFS of one node, with one bucket.
pub struct S3 {
    process: Process,
    directory: PathBuf,
    args: Vec<String>,
    /// Its address.
    pub address: SocketAddr,
    /// The bucket.
    pub bucket: &'static str,
}

impl S3 {
    /// The user with all rights.
    pub const KEY: &str = "palisade";
    /// Its secret.
    pub const SECRET: &str = "palisade-secret";

    /// Starts one whose files are in this directory, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<S3, Absent> {
        let (address, bucket) = (free_port()?, BUCKET);
        let mut args: Vec<String> =
            ["mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false"]
                .map(str::to_owned)
                .into();
        args.extend(["-s3.port.iceberg=0", "-s3.port.lance=0"].map(str::to_owned));
        args.extend([format!("-dir={}", directory.display()), format!("-bucket={bucket}")]);
        args.push(format!("-s3.port={}", address.port()));
        for name in ["master", "filer", "volume", "admin", "s3"] {
            args.push(format!("-{name}.port.grpc={}", free_port()?.port()));
            if name != "s3" {
                args.push(format!("-{name}.port={}", free_port()?.port()));
            }
        }
        let process = begin(directory, &args, address)?;
        Ok(S3 { process, directory: directory.to_owned(), args, address, bucket })
    }

    /// Kills it with `SIGKILL`.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Starts it again after [`S3::kill`], on the same files and at the same address.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        self.process.end();
        self.process = begin(&self.directory, &self.args, self.address)?;
        Ok(())
    }

    /// Returns a client of the bucket, with the default retries of its crate.
    ///
    /// # Errors
    ///
    /// The address is not valid.
    pub fn client(address: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        S3::client_over(address, &Faults::default())
    }

    /// Does the same, over a transport that loses replies at the test's command.
    ///
    /// # Errors
    ///
    /// The address is not valid.
    pub fn client_over(address: &str, faults: &Faults) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        let store = AmazonS3Builder::new().with_endpoint(format!("http://{address}")).with_allow_http(true);
        let store =
            store.with_bucket_name(BUCKET).with_region("us-east-1").with_http_connector(Plain(faults.clone()));
        let store = store.with_access_key_id(S3::KEY).with_secret_access_key(S3::SECRET);
        Ok(Arc::new(store.build()?))
    }
}

/// How the answer to a put that was carried out is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The connection breaks.
    Broken,
    /// A gateway on the way says that the server failed.
    Replaced,
}

/// The faults between a client and the store. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<watch::Sender<Plan>>);

#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    next: Option<Loss>,
    is_lost: bool,
}

impl Faults {
    /// Lets the next put be carried out, loses its answer, and holds every later request back until [`Faults::pass`].
    pub fn lose_next(&self, how: Loss) {
        self.0.send_modify(|plan| *plan = Plan { next: Some(how), is_lost: false });
    }

    /// Waits until an answer was lost.
    pub async fn until_lost(&self) {
        // The sender is here.
        drop(within("a reply is lost", self.0.subscribe().wait_for(|plan| plan.is_lost)).await);
    }

    /// Lets everything through again.
    pub fn pass(&self) {
        self.0.send_modify(|plan| *plan = Plan::default());
    }

    async fn until_open(&self) {
        drop(self.0.subscribe().wait_for(|plan| !plan.is_lost).await);
    }

    /// Whether the answer that has just come is lost, and how.
    fn take(&self, method: &Method) -> Option<Loss> {
        let mut loss = None;
        self.0.send_if_modified(|plan| {
            loss = if method == Method::PUT { plan.next.take() } else { None };
            plan.is_lost |= loss.is_some();
            loss.is_some()
        });
        loss
    }
}

const BUCKET: &str = "fenced";

fn begin(directory: &Path, args: &[String], address: SocketAddr) -> Result<Process, Absent> {
    // It must not outlive a test that is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program()).args(args);
    command.env("AWS_ACCESS_KEY_ID", S3::KEY).env("AWS_SECRET_ACCESS_KEY", S3::SECRET);
    let mut process = Process::start("weed", command, directory)?;
    process.until(|| has_bucket(address, BUCKET))?;
    Ok(process)
}

/// HTTP without TLS.
#[derive(Debug)]
struct Plain(Faults);

#[derive(Debug)]
struct FaultyHttp(reqwest::Client, Faults);

impl HttpConnector for Plain {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(FaultyHttp(reqwest::Client::new(), self.0.clone())))
    }
}

/// What makes the store client try again: a connection that breaks is taken for a request that was not sent.
fn broken(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Request, error)
}

#[async_trait::async_trait]
impl HttpService for FaultyHttp {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let FaultyHttp(client, faults) = self;
        faults.until_open().await;
        let (parts, body) = request.into_parts();
        let (body, method) = (body.collect().await?.to_bytes(), parts.method.clone());
        let request = client.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
        let (mut parts, body) =
            http::Response::<reqwest::Body>::from(request.send().await.map_err(broken)?).into_parts();
        let body = body.collect().await.map_err(broken)?.to_bytes();
        match faults.take(&method) {
            Some(Loss::Broken) => return Err(broken(io::Error::from(io::ErrorKind::ConnectionReset))),
            Some(Loss::Replaced) => parts.status = StatusCode::INTERNAL_SERVER_ERROR,
            None => {}
        }
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
    }
}

/// Returns whether the bucket exists: a request without credentials is then refused, instead of not found.
fn has_bucket(address: SocketAddr, bucket: &str) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        write!(stream, "HEAD /{bucket} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(" 403 ") || answer.contains(" 200 "))
}

/// Returns the program that `scripts/setup` installs, or else the one on the `PATH`.
fn program() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin/weed");
    if ours.exists() { ours } else { "weed".into() }
}
