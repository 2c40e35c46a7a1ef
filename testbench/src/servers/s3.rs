//! A store that speaks S3.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Absent, Process, free_port};

/// A SeaweedFS of one node, with one bucket.
pub struct S3 {
    _process: Process,
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
        let address = free_port()?;
        let bucket = "fenced";
        // It must not outlive a test that has no time to end it.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program())
            .arg("mini")
            .arg(format!("-dir={}", directory.display()))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args(["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.args([&format!("-bucket={bucket}"), &format!("-s3.port={}", address.port())]);
        for name in ["master", "filer", "volume", "admin", "s3"] {
            command.arg(format!("-{name}.port.grpc={}", free_port()?.port()));
            if name != "s3" {
                command.arg(format!("-{name}.port={}", free_port()?.port()));
            }
        }
        command.env("AWS_ACCESS_KEY_ID", S3::KEY).env("AWS_SECRET_ACCESS_KEY", S3::SECRET);
        let mut process = Process::start("weed", command, directory)?;
        process.until(|| has_bucket(address, bucket))?;
        Ok(S3 { _process: process, address, bucket })
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
