//! Clients: a third-party library for well-formed requests, and bare sockets for others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// No answer takes longer, even on a busy machine, unless something is wrong.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// Tries until it succeeds.
pub(crate) fn soon<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(began.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the body of an answer that must be a success.
    #[track_caller]
    pub(crate) fn good(&self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Returns the code of an answer that must be a problem.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        assert!(self.status >= 400, "{self:?}");
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{self:?}");
        problem["code"].as_str().expect("a code").to_owned()
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    agent: ureq::Agent,
    authorization: Option<String>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Client {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
        Client { address, agent: config.build().into(), authorization: None }
    }

    /// Returns a client of a user.
    pub(crate) fn as_user(&self, name: &str, secret: &str) -> Client {
        let basic = BASE64_STANDARD.encode(format!("{name}:{secret}"));
        Client { authorization: Some(format!("Basic {basic}")), ..self.clone() }
    }

    pub(crate) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    /// Adds the headers of every request.
    fn with<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
        Client::try_read(answer).expect("an answer")
    }

    fn try_read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Answer, ureq::Error> {
        let mut answer = answer?;
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = header("content-type").to_owned();
        let body = answer.body_mut().read_to_string()?;
        Ok(Answer { status: answer.status().as_u16(), content_type, body })
    }

    /// Sends a GET request, and returns no answer if the server has closed the connection.
    pub(crate) fn try_get(&self, path: &str) -> Option<Answer> {
        Client::try_read(self.with(self.agent.get(self.url(path))).call()).ok()
    }

    /// Sends a GET request until it is answered: a server that does not wait long for requests may have closed the connection, because
    /// a busy machine was late to send one.
    pub(crate) fn get_again(&self, path: &str) -> Answer {
        soon(path, || self.try_get(path))
    }

    /// Does the same for a POST request that may be carried out twice.
    pub(crate) fn post_again(&self, path: &str, body: &Value) -> Answer {
        let send = || {
            let request = self.with(self.agent.post(self.url(path))).header("content-type", "application/json");
            Client::try_read(request.send(body.to_string().as_str())).ok()
        };
        soon(path, send)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        Client::read(self.with(self.agent.get(self.url(path))).call())
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        Client::read(self.with(self.agent.delete(self.url(path))).call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string())
    }

    pub(crate) fn post_text(&self, path: &str, body: &str) -> Answer {
        let request = self.with(self.agent.post(self.url(path))).header("content-type", "application/json");
        Client::read(request.send(body))
    }

    pub(crate) fn post_nothing(&self, path: &str) -> Answer {
        Client::read(self.with(self.agent.post(self.url(path))).send_empty())
    }

    pub(crate) fn open(&self, ttl_ms: u64) -> u64 {
        let opened = self.post("/v1/sessions", &json!({ "ttl_ms": ttl_ms, "label": "tester" })).good();
        opened["session"].as_u64().expect("a session")
    }

    /// Acquires a lock that must be free, for a session.
    pub(crate) fn hold(&self, lock: &str, session: u64) -> u64 {
        let granted = self.post("/v1/locks/acquire", &json!({ "locks": [lock], "session": session })).good();
        granted["token"].as_u64().expect("a token")
    }

    pub(crate) fn release(&self, lock: &str, token: u64) {
        self.post("/v1/locks/release", &json!({ "lock": lock, "token": token })).good();
    }

    pub(crate) fn show(&self, lock: &str) -> Value {
        self.get(&format!("/v1/locks/show?name={lock}")).good()
    }
}

/// A request whose answer is not awaited at once.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
}

impl Raw {
    pub(crate) fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        Raw { stream }
    }

    pub(crate) fn send(address: SocketAddr, text: &[u8]) -> Raw {
        let mut raw = Raw::connect(address);
        raw.stream.write_all(text).expect("sent");
        raw
    }

    pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Raw {
        Raw::post_with(address, path, "", body)
    }

    /// Sends a request with more headers.
    pub(crate) fn post_with(address: SocketAddr, path: &str, more: &str, body: &Value) -> Raw {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Raw::send(address, (head + &body).as_bytes())
    }

    /// Reads until the server closes the connection.
    pub(crate) fn answer(mut self) -> Answer {
        let mut text = String::new();
        match self.stream.read_to_string(&mut text) {
            // The server may have refused it before all was sent.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            read => drop(read.expect("an answer in time")),
        }
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
        Answer { status, content_type: content_type.to_owned(), body: body.to_owned() }
    }

    /// Disconnects in the middle.
    pub(crate) fn abandon(self) {
        self.stream.shutdown(Shutdown::Both).expect("shut");
    }

    /// Disconnects, and returns an answer that has already arrived.
    pub(crate) fn hang_up(self) -> Option<Answer> {
        self.stream.shutdown(Shutdown::Write).expect("shut");
        Some(self.answer()).filter(|answer| answer.status > 0)
    }

    /// Returns the lines of a streamed answer, once its head has arrived.
    pub(crate) fn lines(self) -> impl Iterator<Item = String> {
        let began = Instant::now();
        let mut lines = BufReader::new(self.stream).lines().map(move |line| {
            // A silent watch gets comments.
            assert!(began.elapsed() < TIMEOUT, "what is awaited does not come");
            line.expect("a line in time")
        });
        assert!(lines.next().expect("a status").contains("200"));
        lines.by_ref().find(String::is_empty).expect("the end of the head");
        lines
    }
}

/// Watches locks, and returns the events.
pub(crate) fn events(address: SocketAddr, prefix: &str) -> impl Iterator<Item = Value> {
    let request = format!("GET /v1/locks/watch?prefix={prefix} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    Raw::send(address, request.as_bytes())
        .lines()
        .filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data: ")?).expect("an event is JSON")))
}

/// A RESP connection.
pub(crate) struct RespConnection {
    stream: BufReader<TcpStream>,
}

impl RespConnection {
    pub(crate) fn new(address: SocketAddr) -> RespConnection {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        RespConnection { stream: BufReader::new(stream) }
    }

    /// Sends a command, and returns the answer's values without their framing.
    pub(crate) fn send(&mut self, words: &str) -> Vec<String> {
        let words: Vec<_> = words.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let command = format!("*{}\r\n{}", words.len(), words.concat());
        self.stream.get_mut().write_all(command.as_bytes()).expect("sent");
        let mut values = Vec::new();
        self.value(&mut values);
        values
    }

    fn value(&mut self, into: &mut Vec<String>) {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer in time");
        let (mark, rest) = line.trim_end().split_at(1);
        match mark {
            "*" => (0..rest.parse().expect("a length")).for_each(|_| self.value(into)),
            "$" if rest == "-1" => into.push("nil".to_owned()),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.stream.read_exact(&mut bytes).expect("a text");
                into.push(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned());
            }
            _ => into.push(rest.to_owned()),
        }
    }
}
