//! A client of the protocol that Redis and the service speak. What goes wrong ends the benchmark.

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Number(u64),
    Text(String),
    Array(Vec<Reply>),
}

impl Reply {
    /// The number in it, if it is one or says one.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Reply::Number(number) => Some(*number),
            Reply::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The value under a key of a map, which is a flat array here.
    pub(crate) fn get(&self, key: &str) -> Option<u64> {
        let Reply::Array(pairs) = self else { return None };
        let pair = pairs.chunks_exact(2).find(|pair| matches!(&pair[0], Reply::Text(text) if text == key))?;
        pair[1].number()
    }
}

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    /// How much of the inbox has been taken out.
    taken: usize,
    /// When the system took what was said last.
    pub(crate) sent_at: Instant,
}

impl Client {
    pub(crate) async fn connect(address: &str) -> Client {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, outbox: Vec::new(), inbox: Vec::new(), taken: 0, sent_at: Instant::now() }
    }

    /// Says something and waits for the answer.
    pub(crate) async fn ask(&mut self, words: &[&str]) -> Reply {
        self.say(words);
        self.send().await;
        self.answer().await
    }

    /// Puts something behind what is sent next.
    pub(crate) fn say(&mut self, words: &[&str]) {
        put(&mut self.outbox, words);
    }

    /// Sends all that was said.
    pub(crate) async fn send(&mut self) {
        self.stream.write_all(&self.outbox).await.unwrap();
        self.sent_at = Instant::now();
        self.outbox.clear();
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> Reply {
        loop {
            if let Some((reply, length)) = parse(&self.inbox[self.taken..]) {
                self.taken += length;
                if self.taken == self.inbox.len() {
                    self.inbox.clear();
                    self.taken = 0;
                }
                return reply;
            }
            assert!(self.stream.read_buf(&mut self.inbox).await.unwrap() > 0, "the server has closed the line");
        }
    }
}

/// Puts a command behind what is there.
pub(crate) fn put(outbox: &mut Vec<u8>, words: &[&str]) {
    use std::io::Write;
    write!(outbox, "*{}\r\n", words.len()).unwrap();
    for word in words {
        write!(outbox, "${}\r\n{word}\r\n", word.len()).unwrap();
    }
}

/// The first answer in these bytes, and its length, if all of it is there.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, mut at) = (std::str::from_utf8(&bytes[1..end]).unwrap(), end + 2);
    let reply = match bytes[0] {
        b'+' => Reply::Text(line.to_owned()),
        b':' => Reply::Number(line.parse().unwrap()),
        b'$' | b'*' if line == "-1" => Reply::Nil,
        b'$' => {
            let length: usize = line.parse().unwrap();
            let text = bytes.get(at..at + length + 2)?;
            at += length + 2;
            Reply::Text(String::from_utf8_lossy(&text[..length]).into_owned())
        }
        b'*' => {
            let mut items = Vec::new();
            for _ in 0..line.parse().unwrap() {
                let (item, length) = parse(&bytes[at..])?;
                items.push(item);
                at += length;
            }
            Reply::Array(items)
        }
        _ => panic!("the server has answered {line:?}"),
    };
    Some((reply, at))
}
