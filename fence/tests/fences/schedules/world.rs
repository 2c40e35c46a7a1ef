//! Three clients that add one to a number under a lock, the network between them and the resource, and the resource.
//!
//! Clients are interchangeable, so they are granted the lock in the order of their letters, and each has it once. A
//! client that is paused simply does not act; a lock expires by being granted to the next. A message is delivered at any
//! later time, or never, or again. Waiting for an answer ends with it, or without.

use palisade_fence::{Author, FenceState, Ratchet, Seq, Stamp, Token, Verdict};

/// The protocol of the resource and its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Everything is accepted.
    Unfenced,
    /// What is not lower than the highest token seen.
    RatchetAtLeast,
    /// What is higher than the highest token seen.
    RatchetAbove,
    /// The resource asks the lock service whether the token is the newest, and then applies the write.
    AskService,
    /// Sealed before the first read; writes have no numbers.
    SealOnly,
    /// Sealed before the first read, writes numbered: the rules of [`FenceState`].
    SealedAndNumbered,
    /// The same, but after a time-out the number is used for another write.
    SealedReusingNumbers,
    /// Token check, read and write are one transaction of the resource.
    SameTransaction,
}

/// The updates that a number contains: a bit for each, so that it is seen which one is missing.
pub(crate) type Updates = u8;

pub(crate) const CLIENTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    NotGranted,
    Granted,
    Ready,
    HasRead(Updates),
    /// Waits for the answer to its last message.
    Waiting,
    /// Has given up waiting.
    OutcomeUnknown,
    /// Has done all that it wanted, or was refused.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// How many of its updates are behind it.
    pub(crate) done: u8,
    /// The last number that is used up.
    last: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Transit {
    InFlight,
    /// The lock service has confirmed that its token is the newest.
    Checked,
    Delivered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) client: usize,
    pub(crate) update: Updates,
    pub(crate) body: Updates,
    pub(crate) seq: u8,
    pub(crate) transit: Transit,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) granted: usize,
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) messages: Vec<Message>,
    pub(crate) number: Updates,
    state: FenceState<()>,
    ratchet: Ratchet,
    /// Updates that were acknowledged.
    pub(crate) acknowledged: Updates,
    /// Updates that were applied at some time, and those that were twice.
    applied: Updates,
    pub(crate) twice: Updates,
    /// How often something may still be delivered again, or an answer be given up: without a bound there would be no
    /// end to the states.
    faults_left: u8,
}

/// One step of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Grant(usize),
    Seal(usize),
    SealAgain(usize),
    Read(usize),
    Send(usize),
    Check(Message),
    Deliver(Message),
    GiveUp(usize),
    Resend(usize),
    Settle(usize),
    StartOver(usize),
    Transact(usize),
}

fn token(client: usize) -> Token {
    Token::new(client as u64 + 1).expect("a token")
}

impl World {
    pub(crate) fn new(faults: u8) -> World {
        World {
            granted: 0,
            clients: [Client { phase: Phase::NotGranted, done: 0, last: 0 }; CLIENTS],
            messages: Vec::new(),
            number: 0,
            state: FenceState::default(),
            ratchet: Ratchet::default(),
            acknowledged: 0,
            applied: 0,
            twice: 0,
            faults_left: faults,
        }
    }

    /// Updates that were acknowledged and are gone.
    pub(crate) fn lost(&self) -> Updates {
        self.acknowledged & !self.number
    }

    /// Returns all possible next steps.
    pub(crate) fn steps(&self, scheme: Scheme) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            match client.phase {
                Phase::NotGranted if at == self.granted => steps.push(Step::Grant(at)),
                Phase::Granted => steps.push(Step::Seal(at)),
                Phase::Ready if scheme == Scheme::SameTransaction => steps.push(Step::Transact(at)),
                Phase::Ready => steps.push(Step::Read(at)),
                Phase::HasRead(_) => steps.push(Step::Send(at)),
                Phase::Waiting if self.faults_left > 0 => steps.push(Step::GiveUp(at)),
                Phase::OutcomeUnknown => steps.extend(self.after_a_time_out(scheme, at)),
                Phase::NotGranted | Phase::Waiting | Phase::Over => {}
            }
            let has_sealed = seals(scheme) && !matches!(client.phase, Phase::NotGranted | Phase::Granted);
            if has_sealed && self.faults_left > 0 {
                steps.push(Step::SealAgain(at));
            }
        }
        for message in &self.messages {
            steps.extend(match (message.transit, scheme) {
                (Transit::Delivered, _) if self.faults_left == 0 => None,
                (Transit::InFlight | Transit::Delivered, Scheme::AskService) => Some(Step::Check(*message)),
                _ => Some(Step::Deliver(*message)),
            });
        }
        steps
    }

    fn after_a_time_out(&self, scheme: Scheme, at: usize) -> Option<Step> {
        match scheme {
            Scheme::SealedAndNumbered => Some(Step::Settle(at)),
            Scheme::SealedReusingNumbers => Some(Step::StartOver(at)),
            _ if self.faults_left > 0 => Some(Step::Resend(at)),
            _ => None,
        }
    }

    /// Returns the world after a step.
    pub(crate) fn after(&self, scheme: Scheme, updates: u8, step: Step) -> World {
        let mut next = self.clone();
        match step {
            Step::Grant(at) => {
                next.granted += 1;
                next.clients[at].phase = if seals(scheme) { Phase::Granted } else { Phase::Ready };
            }
            Step::Seal(at) => {
                let is_sealed = next.state.seal(token(at)).is_ok();
                next.clients[at].phase = if is_sealed { Phase::Ready } else { Phase::Over };
            }
            Step::SealAgain(at) => {
                next.faults_left -= 1;
                // Its answer is dropped.
                let _ = next.state.seal(token(at));
            }
            Step::Read(at) => {
                let is_refused = seals(scheme) && next.state.admit_read(token(at)).is_err();
                next.clients[at].phase = if is_refused { Phase::Over } else { Phase::HasRead(next.number) };
            }
            Step::Send(at) => next.send(at),
            Step::Check(message) => next.check(message),
            Step::Deliver(message) => next.deliver(scheme, updates, message),
            Step::GiveUp(at) => {
                next.faults_left -= 1;
                next.clients[at].phase = Phase::OutcomeUnknown;
            }
            Step::Resend(at) => next.resend(at),
            Step::Settle(at) => next.settle(at, updates),
            Step::StartOver(at) => next.clients[at].skip(updates),
            Step::Transact(at) => next.transact(at, updates),
        }
        next.messages.sort_unstable();
        next
    }

    fn send(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let Phase::HasRead(read) = client.phase else { unreachable!("only what was read is written") };
        client.phase = Phase::Waiting;
        let update = update_of(at, client.done);
        let message =
            Message { client: at, update, body: read | update, seq: client.last + 1, transit: Transit::InFlight };
        self.messages.push(message);
    }

    fn resend(&mut self, at: usize) {
        self.faults_left -= 1;
        self.clients[at].phase = Phase::Waiting;
        let last = self.messages.iter().filter(|message| message.client == at).max_by_key(|message| message.seq);
        let copy = Message { transit: Transit::InFlight, ..*last.expect("it has sent one") };
        self.messages.push(copy);
    }

    fn check(&mut self, message: Message) {
        let is_newest = message.client + 1 == self.granted;
        let stored = self.take(message);
        if is_newest {
            self.messages.push(Message { transit: Transit::Checked, ..stored });
        } else {
            self.messages.push(Message { transit: Transit::Delivered, ..stored });
            self.tell(message, |client| client.phase = Phase::Over);
        }
    }

    /// Takes a message out of the network; one that has arrived before counts as a fault.
    fn take(&mut self, message: Message) -> Message {
        let at = self.messages.iter().position(|other| *other == message).expect("it is there");
        if message.transit == Transit::Delivered {
            self.faults_left -= 1;
        }
        self.messages.remove(at)
    }

    fn deliver(&mut self, scheme: Scheme, updates: u8, message: Message) {
        self.take(message);
        self.messages.push(Message { transit: Transit::Delivered, ..message });
        let token = token(message.client);
        let stamp = stamp(message.client, message.seq);
        let verdict = match scheme {
            Scheme::Unfenced | Scheme::AskService | Scheme::SameTransaction => Verdict::Admitted,
            Scheme::RatchetAbove if self.ratchet.seen() == Some(token) => Verdict::Stale { seen: token },
            Scheme::RatchetAtLeast | Scheme::RatchetAbove => match self.ratchet.admit(token) {
                Ok(()) => Verdict::Admitted,
                Err(seen) => Verdict::Stale { seen },
            },
            Scheme::SealOnly => self.state.admit_read(token).err().unwrap_or(Verdict::Admitted),
            Scheme::SealedAndNumbered | Scheme::SealedReusingNumbers => self.state.admit(stamp),
        };
        match verdict {
            Verdict::Admitted => {
                self.apply(message.update, message.body);
                if matches!(scheme, Scheme::SealedAndNumbered | Scheme::SealedReusingNumbers) {
                    self.state.record(stamp, Some(()));
                }
                self.acknowledge(message, updates);
            }
            Verdict::Duplicate(Some(())) => self.acknowledge(message, updates),
            _ => self.tell(message, |client| client.phase = Phase::Over),
        }
    }

    fn apply(&mut self, update: Updates, number: Updates) {
        self.twice |= self.applied & update;
        self.applied |= update;
        self.number = number;
    }

    /// Tells the sender of a message, if it still waits for this one's answer. A repeat is not what it waits for.
    fn tell(&mut self, message: Message, then: impl FnOnce(&mut Client)) {
        let client = &mut self.clients[message.client];
        let update = update_of(message.client, client.done);
        if client.phase == Phase::Waiting && update == message.update && message.transit != Transit::Delivered {
            then(client);
        }
    }

    fn acknowledge(&mut self, message: Message, updates: u8) {
        let before = self.clients[message.client];
        self.tell(message, |client| client.finish(updates));
        if self.clients[message.client] != before {
            self.acknowledged |= message.update;
        }
    }

    fn settle(&mut self, at: usize, updates: u8) {
        let stamp = stamp(at, self.clients[at].last + 1);
        match self.state.admit(stamp) {
            Verdict::Admitted => {
                self.state.record(stamp, None);
                self.clients[at].last += 1;
                self.clients[at].phase = Phase::Ready;
            }
            Verdict::Duplicate(Some(())) => {
                self.acknowledged |= update_of(at, self.clients[at].done);
                self.clients[at].finish(updates);
            }
            _ => self.clients[at].phase = Phase::Over,
        }
    }

    fn transact(&mut self, at: usize, updates: u8) {
        if self.ratchet.admit(token(at)).is_err() {
            self.clients[at].phase = Phase::Over;
            return;
        }
        let update = update_of(at, self.clients[at].done);
        self.apply(update, self.number | update);
        self.acknowledged |= update;
        self.clients[at].finish(updates);
    }
}

impl Client {
    /// Leaves an update that may or may not have arrived, and turns to the next one.
    fn skip(&mut self, updates: u8) {
        self.done += 1;
        self.phase = if self.done < updates { Phase::Ready } else { Phase::Over };
    }

    fn finish(&mut self, updates: u8) {
        self.done += 1;
        self.last += 1;
        self.phase = if self.done < updates { Phase::Ready } else { Phase::Over };
    }
}

/// Returns a client's first or second update.
fn update_of(client: usize, done: u8) -> Updates {
    1 << (client as u8 * 2 + done)
}

fn seals(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::SealOnly | Scheme::SealedAndNumbered | Scheme::SealedReusingNumbers)
}

fn stamp(client: usize, seq: u8) -> Stamp {
    let author = Author::new(client as u64 + 1).expect("an author");
    Stamp { token: token(client), seq: Seq::new(u64::from(seq)).expect("a number"), author }
}
