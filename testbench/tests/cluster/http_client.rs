//! A client of HTTP on one connection, with TLS or without.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::fixture::BOUND;

/// No answer takes longer, unless something is wrong.
const TIMEOUT: Duration = BOUND;

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

pub(crate) struct HttpClient {
    stream: BufReader<Box<dyn Stream>>,
    /// The client's own address.
    pub(crate) address: SocketAddr,
    /// A header that every request has, with its line end.
    pub(crate) header: String,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the body of a success.
    #[track_caller]
    pub(crate) fn good(&self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// Returns the code of a problem.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        assert!(self.status >= 400 && self.head.contains("application/problem+json"), "{self:?}");
        let problem: Value = serde_json::from_str(&self.body).expect("a problem");
        problem["code"].as_str().expect("a code").to_owned()
    }
}

impl HttpClient {
    pub(crate) fn connect(to: SocketAddr) -> HttpClient {
        HttpClient::over(connect(to).unwrap())
    }

    fn over(stream: TcpStream) -> HttpClient {
        HttpClient {
            address: stream.local_addr().unwrap(),
            header: String::new(),
            stream: BufReader::new(Box::new(stream)),
        }
    }

    /// Sends a request on a new connection. Returns no answer if the node has just ended, or has not started yet.
    pub(crate) fn attempt(to: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Option<Answer> {
        let mut client = HttpClient::over(connect(to).ok()?);
        client.send(method, path, body);
        client.answer().ok()
    }

    /// Connects with TLS, and with the client's certificate in this folder.
    pub(crate) fn encrypted(to: SocketAddr, folder: &Path) -> HttpClient {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().unwrap();
        let certificate = CertificateDer::from_pem_file(folder.join("client.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(folder.join("client.key")).unwrap();
        let config = config.with_root_certificates(roots).with_client_auth_cert(vec![certificate], key).unwrap();
        let session = ClientConnection::new(Arc::new(config), ServerName::from(to.ip())).unwrap();
        let stream = connect(to).unwrap();
        let address = stream.local_addr().unwrap();
        let stream = StreamOwned::new(session, stream);
        HttpClient { address, header: String::new(), stream: BufReader::new(Box::new(stream)) }
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, None)
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, Some(body))
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.send(method, path, body);
        self.answer().unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a request, and does not wait for the answer.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: Option<&Value>) {
        let (kind, body) =
            body.map_or(("", String::new()), |body| ("content-type: application/json\r\n", body.to_string()));
        let (header, length) = (&self.header, body.len());
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{header}{kind}content-length: {length}\r\n\r\n");
        // The answer says what went wrong.
        drop(self.stream.get_mut().write_all((head + &body).as_bytes()));
    }

    /// Reads the next answer.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let (status, head) = self.head()?;
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let mut body = Vec::new();
        if header("transfer-encoding:") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(self.line()?.trim(), 16).map_err(io::Error::other)?;
                let mut chunk = vec![0; size];
                self.stream.read_exact(&mut chunk)?;
                self.line()?;
                body.extend(chunk);
                if size == 0 {
                    break;
                }
            }
        } else {
            body = vec![0; header("content-length:").map_or(0, |length| length.parse().unwrap())];
            self.stream.read_exact(&mut body)?;
        }
        Ok(Answer { status, head, body: String::from_utf8(body).unwrap() })
    }

    /// Reads the head of the next answer.
    pub(crate) fn head(&mut self) -> io::Result<(u16, String)> {
        let mut head = String::new();
        loop {
            let line = self.line()?;
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, head))
    }

    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    }

    /// Reads the next event of a watch.
    pub(crate) fn event(&mut self) -> Value {
        let began = Instant::now();
        loop {
            // A silent watch gets comments.
            assert!(began.elapsed() < TIMEOUT, "no event comes");
            let line = self.line().unwrap();
            if let Some(event) = line.strip_prefix("data: ") {
                return serde_json::from_str(event).unwrap();
            }
        }
    }
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}
