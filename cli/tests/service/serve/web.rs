//! An HTTP client, with or without TLS and a login.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use super::client::{Stream, until_closed};
use crate::common::bounded::TIMEOUT;

#[derive(Clone)]
pub(crate) struct Web {
    address: SocketAddr,
    /// Additional header lines of every request.
    head: String,
    tls: Option<Arc<ClientConfig>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find_map(|line| line.split_once(": ").filter(|(key, _)| *key == name));
        line.map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the body of a reply that must be a success.
    #[track_caller]
    pub(crate) fn good(&self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Returns the code and the detail of a reply that must be a problem.
    #[track_caller]
    pub(crate) fn problem(&self) -> String {
        assert!(self.status >= 400, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{self:?}");
        let text = |name: &str| problem[name].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned();
        format!("{} {}", text("code"), text("detail"))
    }
}

impl Web {
    pub(crate) fn new(address: SocketAddr) -> Web {
        Web { address, head: String::new(), tls: None }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn encrypted(self, tls: ClientConfig) -> Web {
        Web { tls: Some(Arc::new(tls)), ..self }
    }

    pub(crate) fn with_header(&self, line: &str) -> Web {
        Web { head: format!("{}{line}\r\n", self.head), ..self.clone() }
    }

    pub(crate) fn as_user(&self, name: &str, secret: &str) -> Web {
        self.with_header(&format!("authorization: Basic {}", BASE64_STANDARD.encode(format!("{name}:{secret}"))))
    }

    pub(crate) fn connect(&self) -> Connection {
        let socket = TcpStream::connect(self.address).expect("it listens");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out can be set");
        socket.set_write_timeout(Some(TIMEOUT)).expect("a time-out can be set");
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(config) => {
                let name = ServerName::try_from("localhost").unwrap();
                let session = ClientConnection::new(config.clone(), name).unwrap();
                Box::new(StreamOwned::new(session, socket))
            }
        };
        Connection { stream: BufReader::new(stream) }
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> String {
        let body = body.map(Value::to_string);
        let kind = body.as_ref().map_or("", |_| "content-type: application/json\r\n");
        let body = body.unwrap_or_default();
        let head = &self.head;
        let length = body.len();
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{head}{kind}content-length: {length}\r\n\r\n{body}")
    }

    /// Sends a request on a new connection, and returns the reply.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.try_call(method, path, body).expect("an answer comes")
    }

    pub(crate) fn try_call(&self, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<Answer> {
        let mut connection = self.connect();
        connection.send(self.request(method, path, body).as_bytes())?;
        connection.answer()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, Some(body))
    }
}

pub(crate) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
}

impl Connection {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)?;
        self.stream.get_mut().flush()
    }

    fn head(&mut self) -> std::io::Result<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(head)
    }

    pub(crate) fn answer(&mut self) -> std::io::Result<Answer> {
        let head = self.head()?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut answer = Answer { status, head, body: String::new() };
        let length = answer.header("content-length").map_or(0, |length| length.parse().expect("a length"));
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        answer.body = String::from_utf8(body).expect("UTF-8");
        Ok(answer)
    }

    /// Waits for the next event of a watch.
    pub(crate) fn event(&mut self) -> Value {
        let mut line = String::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line).expect("a line in time");
            if let Some(event) = line.strip_prefix("data: ") {
                return serde_json::from_str(event).expect("an event is JSON");
            }
        }
    }

    /// Reads until the other end closes the connection.
    pub(crate) fn until_closed(&mut self) -> String {
        until_closed(&mut self.stream)
    }
}
