//! A store that speaks S3.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::{Absent, Process, free_port};

/// A SeaweedFS of one node, with one bucket.
pub struct S3 {
    process: Process,
    directory: PathBuf,
    args: Vec<String>,
    /// Where clients find it.
    pub address: SocketAddr,
    /// The bucket.
    pub bucket: &'static str,
}

impl S3 {
    /// Who may do everything there.
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

    /// Kills it, as a power cut would: it has no time for anything.
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

    /// A client of the bucket at such a store.
    ///
    /// # Errors
    ///
    /// It is no address.
    pub fn client(address: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        let store = AmazonS3Builder::new().with_endpoint(format!("http://{address}")).with_allow_http(true);
        let store = store.with_bucket_name(BUCKET).with_region("us-east-1").with_http_connector(Plain);
        // Whoever uses it tries again.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let store = store.with_access_key_id(S3::KEY).with_secret_access_key(S3::SECRET).with_retry(retry);
        Ok(Arc::new(store.build()?))
    }
}

const BUCKET: &str = "fenced";

fn begin(directory: &Path, args: &[String], address: SocketAddr) -> Result<Process, Absent> {
    // It must not outlive a test that has no time to end it.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program()).args(args);
    command.env("AWS_ACCESS_KEY_ID", S3::KEY).env("AWS_SECRET_ACCESS_KEY", S3::SECRET);
    let mut process = Process::start("weed", command, directory)?;
    process.until(|| has_bucket(address, BUCKET))?;
    Ok(process)
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
        let (parts, body) = http::Response::<reqwest::Body>::from(request.send().await.map_err(failed)?).into_parts();
        let body = body.collect().await.map_err(failed)?.to_bytes();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)))
    }
}

/// Whether the bucket is there: it then refuses a stranger, instead of not knowing it.
fn has_bucket(address: SocketAddr, bucket: &str) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        write!(stream, "HEAD /{bucket} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(" 403 ") || answer.contains(" 200 "))
}

/// Where `scripts/setup` puts it, or else wherever it is.
fn program() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin/weed");
    if ours.exists() { ours } else { "weed".into() }
}
