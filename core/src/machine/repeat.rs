//! Repeats: a request with a number is carried out once, and its repeats get the first answer.
//!
//! A claim that is still waiting or held is its own record. Of the other requests a session remembers the last
//! few; one that is older than those is refused rather than guessed at.

use std::hash::Hasher;

use serde::Serialize;
use siphasher::sip::SipHasher13;

use super::state::Settled;
use super::{Claim, Machine, Session, Stand};
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
        let fingerprint = fingerprint(&command);
        if let Some(first) = self.recall(session, number, fingerprint) {
            return first;
        }
        let answer = self.perform(command, fingerprint, events);
        if self.find_request(session, number).is_none() {
            self.remember(session, number, fingerprint, answer.clone());
        }
        answer
    }

    /// The first answer to this request, or the refusal of a number that cannot be used; `None` for a new request.
    fn recall(&self, session: Slot<Session>, number: RequestNo, print: u64) -> Option<Result<Answer, Refusal>> {
        if let Some(slot) = self.find_request(session, number) {
            let claim = &self.claims[slot];
            let same = claim.fingerprint == print;
            return Some(if same { Ok(self.standing(slot)) } else { Err(Refusal::NumberReused { number }) });
        }
        let answers = self.sessions[session].answers.as_ref()?;
        if number.get() > answers.highest {
            return None;
        }
        match answers.settled.iter().find(|settled| settled.number == number) {
            Some(settled) if settled.fingerprint == print || settled.fingerprint == 0 => {
                Some(settled.answer.clone().map_err(|refusal| *refusal))
            }
            Some(_) => Some(Err(Refusal::NumberReused { number })),
            None if number.get() <= answers.forgotten => Some(Err(Refusal::NumberForgotten { number })),
            None => None,
        }
    }

    /// What a repeat of a live claim's request is told.
    pub(super) fn standing(&self, slot: Slot<Claim>) -> Answer {
        match self.claims[slot].stand {
            Stand::Waiting { arrival } => Answer::Queued { ticket: Ticket { arrival, slot: slot.number() } },
            Stand::Held { token } | Stand::Withheld { token } => Answer::Granted { token },
        }
    }

    /// Keeps the answer to a request that is no live claim, or no longer one.
    pub(super) fn remember(
        &mut self,
        session: Slot<Session>,
        number: RequestNo,
        fingerprint: u64,
        answer: Result<Answer, Refusal>,
    ) {
        let most = self.limits.answers_per_session.max(1) as usize;
        let answers = self.sessions[session].answers.get_or_insert_default();
        while answers.settled.len() >= most {
            if let Some(oldest) = answers.settled.pop_front() {
                answers.forgotten = answers.forgotten.max(oldest.number.get());
            }
        }
        answers.highest = answers.highest.max(number.get());
        answers.settled.push_back(Settled { number, fingerprint, answer: answer.map_err(Box::new) });
    }

    /// What became of a request that was settled; `None` if it is not known.
    pub(super) fn settled(&self, session: Slot<Session>, number: RequestNo) -> Option<&Result<Answer, Box<Refusal>>> {
        let answers = self.sessions[session].answers.as_ref()?;
        answers.settled.iter().find(|settled| settled.number == number).map(|settled| &settled.answer)
    }

    /// Whether a request of this number may have been settled and forgotten.
    pub(super) fn is_forgotten(&self, session: Slot<Session>, number: RequestNo) -> bool {
        self.sessions[session].answers.as_ref().is_some_and(|answers| number.get() <= answers.forgotten)
    }
}

/// A number that tells two different requests apart; never 0. Kept in snapshots, so it is made of the command's
/// encoding and not of anything that another build could do differently.
fn fingerprint(command: &Command) -> u64 {
    let mut into_hash = postcard::Serializer { output: Fingerprint(SipHasher13::new()) };
    match command.serialize(&mut into_hash) {
        Ok(()) => into_hash.output.0.finish() | 1,
        Err(error) => unreachable!("hashing a command cannot fail: {error}"),
    }
}

struct Fingerprint(SipHasher13);

impl postcard::ser_flavors::Flavor for Fingerprint {
    type Output = u64;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.write_u8(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.write(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<u64> {
        Ok(self.0.finish())
    }
}
