//! A connection without a socket, for simulations: bytes in, inputs of the node and bytes out.

use super::connection::hello_reply;
use super::frame::{self, Bounds};
use super::reply_queue::ReplyQueue;
use super::{Command, Reply, Version, render};
use crate::node::{ConnectionId, Input, Node, Push, RequestId, Response};

/// The longest command.
const BOUNDS: Bounds = Bounds { words: 1024, bytes: 1 << 20 };

/// A connection of a client that need not log in.
#[derive(Debug)]
pub struct SimulatedConnection {
    id: ConnectionId,
    is_relayed: bool,
    read: Vec<u8>,
    replies: ReplyQueue,
}

impl SimulatedConnection {
    /// Begins a connection, perhaps one that another node relays.
    pub fn new(id: ConnectionId, is_relayed: bool) -> SimulatedConnection {
        SimulatedConnection { id, is_relayed, read: Vec::new(), replies: ReplyQueue::default() }
    }

    /// Reads bytes of the client. Returns its requests to the node, and answers what needs no request.
    pub fn receive(&mut self, bytes: &[u8], node: &Node) -> Vec<Input> {
        self.read.extend_from_slice(bytes);
        let (mut inputs, mut at) = (Vec::new(), 0);
        while let Ok(Some(words)) = frame::words(&self.read[at..], BOUNDS) {
            let parts: Vec<&[u8]> = words.at.iter().map(|word| &self.read[at + word.start..at + word.end]).collect();
            at += words.end;
            let number = self.replies.begin();
            let reply = match Command::parse(&parts) {
                Ok(Command::Request(request)) => {
                    let id = RequestId { connection: self.id, number };
                    inputs.push(Input::Request { id, request });
                    continue;
                }
                Ok(Command::Hello { version, .. }) => {
                    self.replies.version = if version == Some(3) { Version::Three } else { Version::Two };
                    hello_reply(node, self.replies.version, self.is_relayed)
                }
                Ok(Command::Detail { is_on }) => {
                    self.replies.is_detailed = is_on;
                    Reply::Simple("OK")
                }
                Ok(Command::Ping { .. }) => Reply::Simple("PONG"),
                Ok(other) => Reply::Error("REFUSED", format!("{other:?} is not simulated")),
                Err(bad) => Reply::Error("BADARG", bad.to_string()),
            };
            self.replies.answer(number, &reply);
        }
        self.read.drain(..at);
        inputs
    }

    /// Answers a request.
    pub fn reply(&mut self, number: u64, response: Response) {
        let reply = render::response(response, self.replies.is_detailed);
        self.replies.answer(number, &reply);
    }

    /// Adds a push.
    pub fn push(&mut self, push: &Push) {
        if let Some(reply) = render::push(push, self.replies.is_detailed) {
            self.replies.push(&reply);
        }
    }

    /// Takes the bytes for the client.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies.out)
    }
}
