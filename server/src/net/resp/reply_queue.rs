//! The replies to one client as bytes, in the order of its requests.

use std::collections::{HashMap, VecDeque};

use super::{Form, Reply, Version};

/// The replies to one client, and the protocol that it has chosen.
#[derive(Debug, Default)]
pub(super) struct ReplyQueue {
    pub(super) version: Version,
    /// Whether refusals and events have details, for programs.
    pub(super) is_detailed: bool,
    /// The replies that are not known yet, or wait for an earlier one.
    answers: VecDeque<Option<Vec<u8>>>,
    /// Bytes of those that wait for an earlier one.
    held_back: usize,
    /// The number of the first of them.
    first: u64,
    /// The forms of replies that are not known yet, of commands of Redis.
    forms: HashMap<u64, Form>,
    /// The bytes to be sent next.
    pub(super) out: Vec<u8>,
}

impl ReplyQueue {
    /// Reserves the place of the next request's reply, and returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.answers.push_back(None);
        self.first + self.answers.len() as u64 - 1
    }

    /// Sets the form of a reply.
    pub(super) fn set_form(&mut self, number: u64, form: Form) {
        self.forms.insert(number, form);
    }

    /// Returns the form of a reply that is known now.
    pub(super) fn take_form(&mut self, number: u64) -> Option<Form> {
        if self.forms.is_empty() { None } else { self.forms.remove(&number) }
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, number: u64, reply: &Reply) {
        let ReplyQueue { version, answers, held_back, first, out, .. } = self;
        if number == *first {
            reply.encode(*version, out);
            answers.pop_front();
            *first += 1;
            while let Some(Some(_)) = answers.front() {
                if let Some(Some(bytes)) = answers.pop_front() {
                    *held_back -= bytes.len();
                    out.extend_from_slice(&bytes);
                    *first += 1;
                }
            }
        } else if let Some(slot) = answers.get_mut(number.wrapping_sub(*first) as usize) {
            let mut bytes = Vec::new();
            reply.encode(*version, &mut bytes);
            *held_back += bytes.len();
            *slot = Some(bytes);
        }
    }

    /// Adds a message to a client that has subscribed to it.
    pub(super) fn add_message(&mut self, message: &Reply) {
        message.encode(self.version, &mut self.out);
    }

    /// Adds a push, if the client understands it. Returns whether it does.
    pub(super) fn push(&mut self, reply: &Reply) -> bool {
        let understands = self.version == Version::Three;
        if understands {
            self.add_message(reply);
        }
        understands
    }

    /// Returns the number of requests whose replies cannot be sent yet.
    pub(super) fn unanswered(&self) -> usize {
        self.answers.len()
    }

    /// Returns whether the reply to this request is known.
    pub(super) fn is_answered(&self, number: u64) -> bool {
        number < self.first || self.answers.get((number - self.first) as usize).is_some_and(Option::is_some)
    }

    /// Returns the number of unsent bytes.
    pub(super) fn unread(&self) -> usize {
        self.out.len() + self.held_back
    }

    /// Drops all bytes.
    pub(super) fn clear(&mut self) {
        self.out = Vec::new();
        for answer in self.answers.iter_mut().filter(|answer| answer.is_some()) {
            *answer = Some(Vec::new());
        }
        self.held_back = 0;
    }
}
