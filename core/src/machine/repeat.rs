//! Repeats: a request with a number is carried out once, and its repeats get the first answer.
//!
//! A request that waits or is held is recognised by its claim. For other requests a session remembers the last few
//! answers. It refuses older numbers, because it cannot tell whether those requests were carried out.

use std::hash::{Hash, Hasher};

use super::state::AnsweredRequest;
use super::{Claim, ClaimState, Machine, Session};
use crate::slab::Slot;
use crate::{Answer, Command, Events, Refusal, RequestNo, SessionId, Ticket};

impl Machine {
    pub(super) fn answer_once(
        &mut self,
        id: SessionId,
        number: RequestNo,
        command: Command,
        events: &mut Events,
    ) -> Result<Answer, Refusal> {
        let session = self.session_slot(id)?;
        // It could not remember the answer to a command that ends it.
        if self.sessions[session].is_for_one_request {
            return Err(Refusal::ForOneRequest { session: id });
        }
        let fingerprint = fingerprint(&command);
        if let Some(first) = self.recall(session, number, fingerprint) {
            return first;
        }
        let answer = self.perform(command, fingerprint, events);
        if !matches!(answer, Ok(Answer::Granted { .. } | Answer::Queued { .. })) {
            self.remember(session, number, fingerprint, answer.clone());
        }
        answer
    }

    /// Returns the first answer to this request, or the refusal of its number; `None` for a new request.
    fn recall(&self, session: Slot<Session>, number: RequestNo, fingerprint: u64) -> Option<Result<Answer, Refusal>> {
        if let Some(slot) = self.find_request(session, number) {
            let same = self.claims[slot].fingerprint == fingerprint;
            return Some(if same { Ok(self.current_answer(slot)) } else { Err(Refusal::NumberReused { number }) });
        }
        match self.find_answered(session, number) {
            Some(answered) if answered.fingerprint == fingerprint || answered.fingerprint == 0 => {
                Some(answered.answer.clone().map_err(|refusal| *refusal))
            }
            Some(_) => Some(Err(Refusal::NumberReused { number })),
            None if self.is_forgotten(session, number) => Some(Err(Refusal::NumberForgotten { number })),
            None => None,
        }
    }

    /// Returns the answer to a repeat of a request that waits or is held.
    pub(super) fn current_answer(&self, slot: Slot<Claim>) -> Answer {
        match self.claims[slot].state() {
            ClaimState::Waiting { arrival } => Answer::Queued { ticket: Ticket { arrival, slot: slot.number() } },
            ClaimState::Held { token } | ClaimState::Withheld { token } => Answer::Granted { token },
        }
    }

    /// Stores the answer to a request that has no claim any more.
    pub(super) fn remember(
        &mut self,
        session: Slot<Session>,
        number: RequestNo,
        fingerprint: u64,
        answer: Result<Answer, Refusal>,
    ) {
        let most = self.limits.answers_per_session.max(1) as usize;
        let answers = self.sessions[session].answers.get_or_insert_default();
        while answers.requests.len() >= most {
            if let Some(oldest) = answers.requests.pop_front() {
                answers.forgotten = answers.forgotten.max(oldest.number.get());
            }
        }
        answers.highest = answers.highest.max(number.get());
        answers.requests.push_back(AnsweredRequest { number, fingerprint, answer: answer.map_err(Box::new) });
    }

    /// Finds the stored answer to a request that neither waits nor is held.
    pub(super) fn find_answered(&self, session: Slot<Session>, number: RequestNo) -> Option<&AnsweredRequest> {
        let answers = self.sessions[session].answers.as_ref().filter(|answers| number.get() <= answers.highest)?;
        answers.requests.iter().find(|answered| answered.number == number)
    }

    /// Returns whether an unknown request of this number may have been carried out and forgotten.
    pub(super) fn is_forgotten(&self, session: Slot<Session>, number: RequestNo) -> bool {
        self.sessions[session].answers.as_ref().is_some_and(|answers| number.get() <= answers.forgotten)
    }
}

/// Hashes a request; never 0. Snapshots keep it, so it must be the same on every platform and in every build: a test pins
/// it.
fn fingerprint(command: &Command) -> u64 {
    let mut mixed = Fingerprint(0x9e37_79b9_7f4a_7c15);
    command.hash(&mut mixed);
    mixed.finish() | 1
}

/// A hash that is the same on every platform. A client could make its own requests collide, which harms only itself.
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * 0xd1b5_4a32_d192_ed03_u128;
        self.0 = (product as u64 ^ (product >> 64) as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::fingerprint;
    use crate::{Acquire, Caller, Command, Delay, LockName, Mode, RequestNo, SessionId, Token, Value, Want};

    fn acquire() -> Acquire {
        let caller = Caller { session: SessionId::new(7).unwrap(), number: Some(RequestNo::new(3).unwrap()) };
        Acquire::exclusive(caller, LockName::new("orders/42").unwrap())
    }

    #[test]
    fn fingerprints_are_the_same_in_every_build() {
        assert_eq!(fingerprint(&Command::Acquire(acquire())), 400_074_210_293_738_155);
        let release = Command::Release {
            caller: Some(acquire().caller),
            lock: LockName::new("orders/42").unwrap(),
            token: Token::new(9).unwrap(),
        };
        assert_eq!(fingerprint(&release), 12_594_906_761_278_686_743);
    }

    #[test]
    fn every_part_of_a_request_counts() {
        let lock = LockName::new("orders/43").unwrap();
        let shared = Want { lock: lock.clone(), mode: Mode::Shared };
        let bodies = [
            acquire(),
            Acquire { delay: Some(Delay::from_ms(1).unwrap()), ..acquire() },
            Acquire { value: Some(Value::new(b"x")), ..acquire() },
            Acquire { patience: crate::Patience::Wait, ..acquire() },
            Acquire { reentry: crate::Reentry::Queue, ..acquire() },
            Acquire::exclusive(acquire().caller, lock),
            Acquire::many(acquire().caller, [shared]),
        ];
        let mut prints: Vec<_> = bodies.map(|acquire| fingerprint(&Command::Acquire(acquire))).into();
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), 7);
    }
}
