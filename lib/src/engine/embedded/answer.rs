//! After a commit: callers are answered, listeners told, and other processes woken.

use std::collections::BTreeSet;

use palisade_core::{Answer, Command, Ending, Event, Refusal, SessionId};
use tokio::sync::{mpsc, oneshot};

use super::bell::Bells;
use super::commit::{NotCommitted, Work, fail};
use super::draft::{Drafted, Outcome, What};
use super::state::State;
use crate::engine::host::Waited;
use crate::engine::{Failure, Notice};

/// What a caller is told, and where he learns the rest.
pub(super) struct Answered {
    pub(super) answer: Result<Answer, Refusal>,
    /// How the wait ends, if one began.
    pub(super) wait: Option<oneshot::Receiver<Waited>>,
    /// What ends of the session, if one was opened.
    pub(super) notices: Option<mpsc::UnboundedReceiver<Notice>>,
}

impl State {
    /// Everybody hears of everything in the order of the log. The log's lock has been given back.
    pub(super) fn answer(&mut self, bells: &Bells, works: Vec<Work>, written: Result<Drafted, NotCommitted>) {
        self.tell_heard();
        let Drafted { events, outcomes, .. } = match written {
            Ok(drafted) => drafted,
            Err(why) => {
                self.heed(&why.trouble);
                return fail(works, &why);
            }
        };
        // Who waits must be known before the events are told that end the wait.
        let answers: Vec<_> = works
            .into_iter()
            .zip(outcomes)
            .map(|(work, outcome)| (work.reply, self.begin(work.what, outcome)))
            .collect();
        self.wake_others(bells, &events);
        self.tell(&events);
        self.clean_up(bells, &events);
        for (reply, answer) in answers {
            drop(reply.send(answer));
        }
    }

    /// Notes what a caller waits and listens for from now on.
    fn begin(&mut self, what: What, outcome: Outcome) -> Result<Answered, Failure> {
        let mut answered = Answered { answer: outcome?, wait: None, notices: None };
        match (&answered.answer, what) {
            (Ok(Answer::Queued { ticket }), What::Command(Command::Acquire(ask))) => {
                answered.wait = Some(self.listeners.wait(*ticket));
                self.waits.insert(*ticket, ask);
            }
            (Ok(Answer::Opened { session }), _) => answered.notices = Some(self.listeners.listen(*session)),
            _ => {}
        }
        Ok(answered)
    }

    /// Rings the bells of the sessions of other processes that something has happened to.
    pub(super) fn wake_others(&self, bells: &Bells, events: &[Event]) {
        let concerned: BTreeSet<_> = events.iter().filter_map(concerned).collect();
        for session in concerned.into_iter().filter(|session| !self.alive.is_own(*session)) {
            bells.ring(session);
        }
        if !events.is_empty() {
            bells.ring_for_everything();
        }
    }

    /// Removes the files of sessions that this process has ended.
    pub(super) fn clean_up(&mut self, bells: &Bells, events: &[Event]) {
        for event in events {
            if let Event::SessionEnded { session, .. } = event {
                self.alive.remove(*session);
                bells.remove(*session);
            }
        }
    }
}

/// The session that must hear of an event and did not cause it.
fn concerned(event: &Event) -> Option<SessionId> {
    match event {
        Event::Granted { session, ticket: Some(_), .. }
        | Event::LeftQueue { session, .. }
        | Event::SessionEnded { session, .. } => Some(*session),
        Event::GrantEnded { session, how, .. } if *how != Ending::Released => Some(*session),
        _ => None,
    }
}
