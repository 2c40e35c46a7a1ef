//! Publish and subscribe, as far as lock libraries use it: the script that releases a lock announces it on a channel.

use std::collections::BTreeMap;

use palisade_core::LockName;

use super::Reply;
use crate::node::ConnectionId;

/// How many channels and patterns one connection may subscribe to, and how long each may be.
const SUBSCRIPTIONS: usize = 64;
const CHANNEL_BYTES: usize = 1024;

/// A release that a script announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The channel.
    pub channel: Vec<u8>,
    /// The lock, which is the message.
    pub lock: LockName,
}

/// A channel, or a pattern of channels in which `*` stands for any text and `?` for any byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its name.
    pub name: Vec<u8>,
    /// Whether it is a pattern.
    pub is_pattern: bool,
}

/// The subscriptions of all connections.
#[derive(Default)]
pub(in crate::net) struct Channels(BTreeMap<ConnectionId, Vec<Subscription>>);

impl Channels {
    /// Adds a subscription, and returns the confirmation.
    pub(super) fn subscribe(&mut self, connection: ConnectionId, subscription: Subscription) -> Reply {
        let subscriptions = self.0.entry(connection).or_default();
        let Subscription { name, is_pattern } = subscription.clone();
        if name.len() > CHANNEL_BYTES || subscriptions.len() >= SUBSCRIPTIONS {
            let why = format!("a connection has at most {SUBSCRIPTIONS} channels, of {CHANNEL_BYTES} bytes each");
            return Reply::Error("LIMIT", why);
        }
        if !subscriptions.contains(&subscription) {
            subscriptions.push(subscription);
        }
        confirmation(if is_pattern { "psubscribe" } else { "subscribe" }, Reply::Bytes(name), subscriptions.len())
    }

    /// Removes subscriptions of one kind: this one, or all. Returns the confirmations.
    pub(super) fn unsubscribe(
        &mut self,
        connection: ConnectionId,
        is_pattern: bool,
        names: Vec<Vec<u8>>,
    ) -> Vec<Reply> {
        let kind = if is_pattern { "punsubscribe" } else { "unsubscribe" };
        let mut subscriptions = self.0.remove(&connection).unwrap_or_default();
        let names = match names.is_empty() {
            true => {
                subscriptions.iter().filter(|one| one.is_pattern == is_pattern).map(|one| one.name.clone()).collect()
            }
            false => names,
        };
        let mut replies = Vec::new();
        for name in names {
            subscriptions.retain(|one| one.is_pattern != is_pattern || one.name != name);
            replies.push(confirmation(kind, Reply::Bytes(name), subscriptions.len()));
        }
        if replies.is_empty() {
            replies.push(confirmation(kind, Reply::Nil, subscriptions.len()));
        }
        if !subscriptions.is_empty() {
            self.0.insert(connection, subscriptions);
        }
        replies
    }

    pub(in crate::net) fn disconnected(&mut self, connection: ConnectionId) {
        self.0.remove(&connection);
    }

    /// Returns the messages of an announcement, and the connections that get them.
    pub(in crate::net) fn messages(&self, announcement: &Announcement) -> Vec<(ConnectionId, Reply)> {
        let Announcement { channel, lock } = announcement;
        let mut messages = Vec::new();
        for (connection, subscriptions) in &self.0 {
            for subscription in subscriptions.iter().filter(|one| one.matches(channel)) {
                let mut fields = match subscription.is_pattern {
                    true => vec![Reply::Text("pmessage"), Reply::Bytes(subscription.name.clone())],
                    false => vec![Reply::Text("message")],
                };
                fields.push(Reply::Bytes(channel.clone()));
                fields.push(Reply::text(lock.as_str()));
                messages.push((*connection, Reply::Push(fields)));
            }
        }
        messages
    }
}

impl Subscription {
    fn matches(&self, channel: &[u8]) -> bool {
        if self.is_pattern { is_match(&self.name, channel) } else { self.name == channel }
    }
}

/// Matches without recursion: after a mismatch, the last `*` takes one byte more.
fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[from] => (at, from) = (at + 1, from + 1),
            _ => match &mut star {
                Some((after, taken)) => {
                    *taken += 1;
                    (at, from) = (*after + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

fn confirmation(kind: &'static str, name: Reply, count: usize) -> Reply {
    Reply::Push(vec![Reply::Text(kind), name, Reply::Number(count as u64)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_what_its_stars_leave_over() {
        for (pattern, text, expected) in [
            ("locks-channel:*", "locks-channel:locks:a", true),
            ("locks-channel:*", "locks-channel", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("", "a", false),
        ] {
            assert_eq!(is_match(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
