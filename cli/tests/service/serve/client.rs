//! A RESP client that sends exactly the given bytes.

use std::fmt;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::common::bounded::TIMEOUT;

/// A RESP value that the service sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Number(u64),
    Text(String),
    Nil,
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Push(Vec<Value>),
}

impl Value {
    /// Returns the value of a map under this name.
    pub(crate) fn get(&self, name: &str) -> &Value {
        let Value::Map(fields) = self else { panic!("{self} is no map") };
        let found = fields.iter().find(|(key, _)| *key == Value::Text(name.to_owned()));
        &found.unwrap_or_else(|| panic!("{self} has no {name}")).1
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        match self.get(name) {
            Value::Number(number) => *number,
            other => panic!("{name} is {other}"),
        }
    }

    pub(crate) fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) | Value::Push(items) => items,
            other => panic!("{other} is no array"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Value::Text(text) | Value::Simple(text) | Value::Error(text) => text,
            other => panic!("{other} is no text"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |items: &[Value]| items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Value::Simple(text) => write!(f, "+{text}"),
            Value::Error(text) => write!(f, "-{text}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "'{}'", text.escape_debug()),
            Value::Nil => f.write_str("nil"),
            Value::Array(items) => write!(f, "[{}]", list(items)),
            Value::Push(items) => write!(f, ">[{}]", list(items)),
            Value::Map(fields) => {
                let fields: Vec<_> = fields.iter().map(|(key, value)| format!("{key}: {value}")).collect();
                write!(f, "{{{}}}", fields.join(", "))
            }
        }
    }
}

/// A stream in both directions, with or without TLS.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

pub(crate) struct Client {
    stream: BufReader<Box<dyn Stream>>,
    socket: TcpStream,
}

impl Client {
    pub(crate) fn connect(at: SocketAddr) -> Client {
        let socket = TcpStream::connect(at).expect("it listens");
        let stream = socket.try_clone().expect("a second handle");
        Client::over(Box::new(stream), socket)
    }

    /// Wraps a stream, possibly TLS, and the socket that it uses.
    pub(crate) fn over(stream: Box<dyn Stream>, socket: TcpStream) -> Client {
        socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out can be set");
        socket.set_write_timeout(Some(TIMEOUT)).expect("a time-out can be set");
        Client { stream: BufReader::new(stream), socket }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> &mut Client {
        self.stream.get_mut().write_all(bytes).expect("it can be sent");
        self.stream.get_mut().flush().expect("it can be sent");
        self
    }

    /// Sends words as a command.
    pub(crate) fn send_command(&mut self, words: &[&[u8]]) -> &mut Client {
        self.send(&framed(words))
    }

    /// Sends a command whose words have no spaces, and returns the reply.
    pub(crate) fn call(&mut self, command: &str) -> Value {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        self.send_command(&words).answer()
    }

    /// Sends a command that must be refused, and returns the error.
    pub(crate) fn refusal(&mut self, command: &str) -> String {
        match self.call(command) {
            Value::Error(text) => text,
            other => panic!("{command}: {other}"),
        }
    }

    /// Sends a command that must succeed, and returns the reply.
    pub(crate) fn call_ok(&mut self, command: &str) -> Value {
        match self.call(command) {
            Value::Error(text) => panic!("{command}: {text}"),
            other => other,
        }
    }

    pub(crate) fn hello(&mut self) -> &mut Client {
        self.call_ok("HELLO 3");
        self
    }

    /// Opens a session that outlives the test.
    pub(crate) fn session(&mut self) -> u64 {
        self.call_ok("SESSION OPEN 3600000").number("session")
    }

    pub(crate) fn answer(&mut self) -> Value {
        self.read().expect("an answer comes")
    }

    pub(crate) fn read(&mut self) -> std::io::Result<Value> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(1);
        let count = || rest.parse::<usize>().expect("a number");
        Ok(match kind {
            "+" => Value::Simple(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Number(rest.parse().expect("a number")),
            "_" => Value::Nil,
            "$" if rest == "-1" => Value::Nil,
            "$" => Value::Text(self.bytes(count())?),
            "*" => Value::Array(self.several(count())?),
            ">" => Value::Push(self.several(count())?),
            "%" => {
                let mut items = self.several(2 * count())?.into_iter();
                let mut fields = Vec::new();
                while let (Some(key), Some(value)) = (items.next(), items.next()) {
                    fields.push((key, value));
                }
                Value::Map(fields)
            }
            other => panic!("{other} is not a RESP type"),
        })
    }

    fn several(&mut self, count: usize) -> std::io::Result<Vec<Value>> {
        (0..count).map(|_| self.read()).collect()
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8(line).expect("UTF-8"))
    }

    fn bytes(&mut self, count: usize) -> std::io::Result<String> {
        let mut bytes = vec![0; count + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(count);
        Ok(String::from_utf8(bytes).expect("UTF-8"))
    }

    /// Waits until the service closes the connection, and returns the bytes before that.
    pub(crate) fn until_closed(&mut self) -> String {
        until_closed(&mut self.stream)
    }

    /// Closes the sending half of the connection.
    pub(crate) fn close_write(&self) {
        self.socket.shutdown(Shutdown::Write).expect("it is open");
    }
}

/// Encodes a command in RESP.
pub(crate) fn framed(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    /// Sends bytes. Returns whether that succeeded.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        let stream = self.stream.get_mut();
        stream.write_all(bytes).and_then(|()| stream.flush()).is_ok()
    }
}

/// Reads until the other end closes the connection.
pub(crate) fn until_closed(stream: &mut impl Read) -> String {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => panic!("the connection was not closed: {error}"),
    }
    String::from_utf8_lossy(&rest).into_owned()
}
