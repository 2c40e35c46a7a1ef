//! The connection to a resource. It loses, delays and repeats messages at the test's command.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_fence::{Error, ErrorKind, Mark, Pass, Resource, Seal, SealError, Sealed, Seq, Token};

/// A fault of the next seal or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It is delivered twice.
    Repeat,
    /// It is delivered, and its reply is lost.
    LoseAnswer,
    /// It is held up until [`Wire::deliver`], and its sender gives up.
    HoldUp,
    /// A seal that never arrives, though its sender gets a reply.
    Pretend,
    /// A seal whose reply counts one write too many.
    Skip,
    /// It is delivered, and its reply never comes.
    Hang,
}

/// A resource behind a wire. Clones have the same wire.
#[derive(Clone)]
pub struct Wire<R: Resource> {
    resource: R,
    state: Arc<Mutex<State<R>>>,
}

struct State<R: Resource> {
    acts: VecDeque<Act>,
    /// What is held up, and a copy of everything that was ever delivered.
    late: VecDeque<(Pass, Option<R::Change>)>,
    sent: Vec<(Pass, Option<R::Change>)>,
}

impl<R: Resource<Change: Clone>> Wire<R> {
    /// Creates a wire without faults.
    pub fn to(resource: R) -> Wire<R> {
        Wire { resource, state: Arc::new(Mutex::new(State { acts: [].into(), late: [].into(), sent: Vec::new() })) }
    }

    /// Sets the fault of the next seal or write.
    pub fn next(&self, act: Act) {
        self.state().acts.push_back(act);
    }

    /// Returns whether no fault is left of those set with [`next`](Wire::next).
    pub fn is_done(&self) -> bool {
        self.state().acts.is_empty()
    }

    /// Delivers what was held up; returns the reply.
    pub async fn deliver(&self) -> Result<Option<R::Outcome>, Error> {
        let (pass, change) = self.state().late.pop_front().expect("something is held up");
        self.resource.write(&pass, change).await
    }

    /// Delivers an earlier write once more, counted from 0; returns the reply.
    pub async fn deliver_again(&self, which: usize) -> Result<Option<R::Outcome>, Error> {
        let (pass, change) = self.state().sent[which].clone();
        self.resource.write(&pass, change).await
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self, operation: &'static str, token: Token) -> Error {
        let kind = ErrorKind::unknown("the connection broke", std::io::Error::other("the wire"));
        Error::new(kind, self.resource.name(), operation).under(token)
    }
}

impl<R: Resource<Change: Clone>> Resource for Wire<R> {
    type Query = R::Query;
    type Answer = R::Answer;
    type Change = R::Change;
    type Outcome = R::Outcome;

    fn name(&self) -> String {
        self.resource.name()
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let act = self.state().acts.pop_front();
        if act == Some(Act::Pretend) {
            return Ok(Mark { token, seq: Seq::NONE });
        }
        let mark = self.resource.raise(token).await?;
        match act {
            Some(Act::Repeat) => self.resource.raise(token).await,
            Some(Act::Skip) => Ok(Mark { seq: mark.seq.next(), ..mark }),
            Some(Act::LoseAnswer) => Err(self.lost("seal", token)),
            Some(Act::Hang) => std::future::pending().await,
            _ => Ok(mark),
        }
    }

    async fn read(&self, pass: &Pass, query: R::Query) -> Result<R::Answer, Error> {
        self.resource.read(pass, query).await
    }

    async fn write(&self, pass: &Pass, change: Option<R::Change>) -> Result<Option<R::Outcome>, Error> {
        let act = self.state().acts.pop_front();
        if act == Some(Act::HoldUp) {
            self.state().late.push_back((pass.clone(), change));
            return Err(self.lost("write", pass.token));
        }
        self.state().sent.push((pass.clone(), change.clone()));
        let answer = self.resource.write(pass, change.clone()).await;
        match act {
            Some(Act::Repeat) => self.resource.write(pass, change).await,
            Some(Act::LoseAnswer) => Err(self.lost("write", pass.token)),
            Some(Act::Hang) => std::future::pending().await,
            _ => answer,
        }
    }
}

impl<R: Resource<Change: Clone>> Seal for Wire<R> {
    type Sealed = Sealed<Wire<R>>;

    async fn seal(&self, token: Token) -> Result<Sealed<Wire<R>>, SealError> {
        Ok(Sealed::seal(self.clone(), token).await?)
    }
}
