//! A fenced counter behind the simulated network, and its own record of what it has accepted.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::Token;
use palisade_fence::{Author, Error, ErrorKind, FenceState, Mark, Pass, Resource, Seq, Stamp, Verdict, sealable};
use tokio::sync::oneshot;

/// A counter. Clones are the same counter.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    number: usize,
    /// The requests that the world has not taken yet.
    requests: Arc<Mutex<Vec<Call>>>,
}

/// A request to a counter, and its caller.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) counter: usize,
    pub(super) request: Request,
    pub(super) caller: oneshot::Sender<Reply>,
}

/// A request to a counter, as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Raise(Token),
    Read(Stamp),
    Write(Stamp, Option<u64>),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Raise(token) => write!(f, "seal with token {token}"),
            Request::Read(stamp) => write!(f, "read with token {}", stamp.token),
            Request::Write(stamp, Some(value)) => {
                write!(f, "write {} with token {}: {value}", stamp.seq, stamp.token)
            }
            Request::Write(stamp, None) => write!(f, "void write {} with token {}", stamp.seq, stamp.token),
        }
    }
}

/// The reply to a request; `None` if there is none in time.
pub(super) type Reply = Option<Answer>;

/// What the counter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Raised(Mark),
    Value(u64),
    /// The value before a write; `None` for a number that was used up without a write.
    Written(Option<u64>),
    Refused(Verdict<u64>),
    /// A seal that a newer one has superseded.
    Superseded {
        seen: Token,
    },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Raised(mark) => write!(f, "sealed, last write {}", mark.seq),
            Answer::Value(value) => write!(f, "{value}"),
            Answer::Written(Some(before)) => write!(f, "written over {before}"),
            Answer::Written(None) => f.write_str("void"),
            Answer::Refused(verdict) => write!(f, "refused: {verdict:?}"),
            Answer::Superseded { seen } => write!(f, "refused: token {seen} was seen"),
        }
    }
}

impl Counter {
    pub(super) fn new(number: usize) -> Counter {
        Counter { number, requests: Arc::default() }
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Call>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the requests that were made since the last call.
    pub(super) fn take_requests(&self) -> Vec<Call> {
        std::mem::take(&mut self.requests())
    }

    async fn call(&self, request: Request, operation: &'static str, token: Token) -> Result<Answer, Error> {
        let (caller, reply) = oneshot::channel();
        self.requests().push(Call { counter: self.number, request, caller });
        let error = |kind| Error::new(kind, self.name(), operation).under(token);
        match reply.await {
            Ok(Some(Answer::Superseded { seen })) => Err(error(ErrorKind::Superseded { seen })),
            Ok(Some(Answer::Refused(verdict))) => match ErrorKind::refused(&verdict) {
                Some(kind) => Err(error(kind)),
                None => unreachable!("{verdict:?} is no refusal"),
            },
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(_) => Err(error(ErrorKind::Unavailable {
                what: "there was no answer in time".to_owned(),
                may_have_taken_effect: true,
                is_retryable: true,
                source: None,
            })),
        }
    }
}

impl Resource for Counter {
    type Query = ();
    type Answer = u64;
    type Change = u64;
    type Outcome = u64;

    fn name(&self) -> String {
        format!("counter {}", self.number)
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        match self.call(Request::Raise(token), "seal", token).await? {
            Answer::Raised(mark) => Ok(mark),
            other => unreachable!("the answer to a seal is {other:?}"),
        }
    }

    async fn read(&self, pass: &Pass, (): ()) -> Result<u64, Error> {
        match self.call(Request::Read(pass.stamp()), "read", pass.token).await? {
            Answer::Value(value) => Ok(value),
            other => unreachable!("the answer to a read is {other:?}"),
        }
    }

    async fn write(&self, pass: &Pass, change: Option<u64>) -> Result<Option<u64>, Error> {
        match self.call(Request::Write(pass.stamp(), change), "write", pass.token).await? {
            Answer::Written(before) => Ok(before),
            other => unreachable!("the answer to a write is {other:?}"),
        }
    }
}

sealable!(Counter);

/// The state that a counter stores: the fence's state and the value, in one step.
#[derive(Debug, Clone, Default)]
struct Stored {
    fence: FenceState<u64>,
    value: u64,
}

/// The counter itself, with the state that is durable and the state in memory.
#[derive(Debug, Default)]
pub(super) struct CounterState {
    durable: Stored,
    now: Stored,
    /// The highest token that a seal was acknowledged for.
    sealed: u64,
    /// The writes that were carried out.
    written: Vec<(Token, Seq, Author)>,
}

impl CounterState {
    pub(super) fn value(&self) -> u64 {
        self.now.value
    }

    /// Loses everything that is not durable.
    pub(super) fn restart(&mut self) {
        self.now = self.durable.clone();
    }

    fn flush(&mut self) {
        self.durable = self.now.clone();
    }

    /// Answers a request. Fails if the fence's rules have let something through that they must refuse.
    pub(super) fn handle(&mut self, request: Request) -> Result<Answer, String> {
        match request {
            Request::Raise(token) => {
                let sealed = self.now.fence.seal(token);
                self.flush();
                match sealed {
                    Ok(mark) if token.get() < self.sealed => {
                        Err(format!("E: sealed with {mark:?} below the acknowledged seal {}", self.sealed))
                    }
                    Ok(mark) => {
                        self.sealed = token.get();
                        Ok(Answer::Raised(mark))
                    }
                    Err(by) if by.seen == token => Err(format!("D: a repeated seal of {token} was refused")),
                    Err(by) => Ok(Answer::Superseded { seen: by.seen }),
                }
            }
            Request::Read(stamp) => match self.now.fence.admit_read(stamp.token) {
                Ok(()) if stamp.token.get() < self.sealed => {
                    Err(format!("E: read with {} after the acknowledged seal {}", stamp.token, self.sealed))
                }
                Ok(()) => Ok(Answer::Value(self.now.value)),
                Err(verdict) => Ok(Answer::Refused(verdict)),
            },
            Request::Write(stamp, change) => match self.now.fence.admit(stamp) {
                Verdict::Admitted => self.write(stamp, change),
                Verdict::Duplicate(outcome) => Ok(Answer::Written(outcome)),
                verdict => Ok(Answer::Refused(verdict)),
            },
        }
    }

    fn write(&mut self, stamp: Stamp, change: Option<u64>) -> Result<Answer, String> {
        let write = (stamp.token, stamp.seq, stamp.author);
        if stamp.token.get() < self.sealed {
            return Err(format!("E: write with {} after the acknowledged seal {}", stamp.token, self.sealed));
        }
        if self.written.contains(&write) {
            return Err(format!("D: write {} of {} was carried out twice", stamp.seq, stamp.token));
        }
        self.written.push(write);
        let before = change.map(|value| std::mem::replace(&mut self.now.value, value));
        self.now.fence.record(stamp, before);
        self.flush();
        Ok(Answer::Written(before))
    }
}
