//! What is asked of the rules in Redis.

use palisade_core::{
    Acquire, Label, Limit, Limits, LockName, Mode, Patience, Reentry, Refusal, RequestNo, SessionId, Token, Ttl,
    Value,
};

use super::answer::ALL;
use super::usual::{Usual, What};

/// A question.
#[derive(Debug, Clone)]
pub(super) enum Question {
    Usual(Usual),
    /// Its name, and what belongs to it.
    Other(&'static str, Vec<Vec<u8>>),
}

fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn at_most(limit: Limit, value: usize) -> Result<(), Refusal> {
    let (max, value) = (Limits::default().of(limit), value as u64);
    if value > max { Err(Refusal::OverLimit { limit, max, value }) } else { Ok(()) }
}

fn label(label: &Label) -> Result<Vec<u8>, Refusal> {
    at_most(Limit::LabelBytes, label.as_str().len())?;
    Ok(label.as_str().as_bytes().to_vec())
}

fn name(lock: &LockName) -> Vec<u8> {
    lock.as_str().as_bytes().to_vec()
}

impl Question {
    fn new(what: &'static str, args: impl IntoIterator<Item = Vec<u8>>) -> Question {
        Question::Other(what, args.into_iter().collect())
    }

    /// With what each session holds. `run` is the server's run id, `known_run` that of the run that the client knows.
    pub(super) fn hello(run: &str, known_run: &str, sessions: &[(SessionId, Vec<(LockName, Token)>)]) -> Question {
        let mut args = vec![run.as_bytes().to_vec(), known_run.as_bytes().to_vec()];
        for (session, held) in sessions {
            args.extend([digits(session.get()), digits(held.len() as u64)]);
            args.extend(held.iter().flat_map(|(lock, token)| [name(lock), digits(token.get())]));
        }
        Question::Other("hello", args)
    }

    pub(super) fn open(ttl: Ttl, called: &Label, run: &str) -> Result<Question, Refusal> {
        let limits = Limits::default();
        let min = limits.of(Limit::TtlMinMs);
        if ttl.as_ms() < min {
            return Err(Refusal::UnderLimit { limit: Limit::TtlMinMs, min, value: ttl.as_ms() });
        }
        let max = limits.of(Limit::TtlMaxMs);
        if ttl.as_ms() > max {
            return Err(Refusal::OverLimit { limit: Limit::TtlMaxMs, max, value: ttl.as_ms() });
        }
        Ok(Question::new("open", [digits(ttl.as_ms()), label(called)?, run.as_bytes().to_vec()]))
    }

    pub(super) fn keep_alive(session: SessionId) -> Question {
        Question::new("alive", [digits(session.get())])
    }

    /// Keeps the session alive and names its locks, since a later client does not know them.
    pub(super) fn leave(session: SessionId, locks: &[LockName]) -> Question {
        Question::with_locks("alive", session, locks)
    }

    pub(super) fn close(session: SessionId, locks: &[LockName]) -> Question {
        Question::with_locks("close", session, locks)
    }

    fn with_locks(what: &'static str, session: SessionId, locks: &[LockName]) -> Question {
        Question::new(what, [digits(session.get())].into_iter().chain(locks.iter().map(name)))
    }

    /// Whatever is wrong with it whatever the state of the locks is said here.
    pub(super) fn acquire(ask: &Acquire, number: RequestNo, low: u64) -> Result<Question, Refusal> {
        check(ask)?;
        if let ([want], None, None, Reentry::Queue) = (&ask.wants[..], ask.delay, &ask.value, ask.reentry)
            && want.mode == Mode::Exclusive
        {
            let (session, lock) = (ask.caller.session, want.lock.clone());
            let what = What::Acquire(number, ask.patience);
            return Ok(Question::Usual(Usual { session, low, lock, what }));
        }
        let patience = if ask.patience == Patience::Try { "try" } else { "wait" };
        let reentry = if ask.reentry == Reentry::Refuse { "refuse" } else { "queue" };
        let mut args = Vec::with_capacity(6 + ask.wants.len() * 3);
        args.push(digits(ask.caller.session.get()));
        args.push(digits(number.get()));
        args.push(format!("{patience}.{low}").into_bytes());
        args.push(reentry.as_bytes().to_vec());
        args.push(ask.delay.map(|delay| digits(delay.as_ms())).unwrap_or_default());
        args.push(ask.value.as_ref().map(|value| [b"=", value.as_bytes()].concat()).unwrap_or_default());
        for want in &ask.wants {
            let (need, limit) = match want.mode {
                Mode::Exclusive => (ALL, ALL),
                Mode::Shared => (1, ALL),
                Mode::Permits { count, of } => (count, of),
            };
            args.extend([name(&want.lock), digits(need.into()), digits(limit.into())]);
        }
        Ok(Question::Other("acquire", args))
    }

    pub(super) fn cancel(session: SessionId, number: RequestNo, lock: Option<&LockName>) -> Question {
        let args = [Some(digits(session.get())), Some(digits(number.get())), lock.map(name)];
        Question::new("cancel", args.into_iter().flatten())
    }

    pub(super) fn release(session: SessionId, low: u64, lock: &LockName, token: Token, is_once: bool) -> Question {
        if is_once {
            return Question::Usual(Usual { session, low, lock: lock.clone(), what: What::Release(token) });
        }
        Question::new("release", [digits(session.get()), digits(low), name(lock), digits(token.get())])
    }

    pub(super) fn publish(
        session: SessionId,
        lock: &LockName,
        token: Token,
        value: &Value,
    ) -> Result<Question, Refusal> {
        at_most(Limit::ValueBytes, value.as_bytes().len())?;
        let args = [digits(session.get()), name(lock), digits(token.get()), value.as_bytes().to_vec()];
        Ok(Question::new("publish", args))
    }

    pub(super) fn force(
        lock: &LockName,
        only: Option<Token>,
        by: &Label,
        reason: &Label,
    ) -> Result<Question, Refusal> {
        let only = only.map(|token| digits(token.get())).unwrap_or_default();
        Ok(Question::new("force", [name(lock), only, label(by)?, label(reason)?]))
    }

    pub(super) fn resize(lock: &LockName, limit: u32) -> Result<Question, Refusal> {
        if limit == 0 || limit == ALL {
            return Err(Refusal::BadLimit { limit });
        }
        Ok(Question::new("resize", [name(lock), digits(limit.into())]))
    }

    pub(super) fn raise_tokens(above: Token, run: &str) -> Question {
        Question::new("raise", [digits(above.get()), run.as_bytes().to_vec()])
    }

    pub(super) fn inspect(locks: impl IntoIterator<Item = Vec<u8>>) -> Question {
        Question::new("inspect", locks)
    }

    pub(super) fn poll(waits: &[(SessionId, RequestNo)]) -> Question {
        let pairs = waits.iter().flat_map(|(session, number)| [digits(session.get()), digits(number.get())]);
        Question::new("poll", pairs)
    }

    pub(super) fn watch(lease_ms: u64) -> Question {
        Question::new("watch", [digits(lease_ms)])
    }
}

fn check(ask: &Acquire) -> Result<(), Refusal> {
    if ask.wants.is_empty() {
        return Err(Refusal::NoLocks);
    }
    at_most(Limit::LocksPerRequest, ask.wants.len())?;
    for (position, want) in ask.wants.iter().enumerate() {
        at_most(Limit::NameBytes, want.lock.as_str().len())?;
        match want.mode {
            Mode::Permits { of, .. } if of == 0 || of == ALL => return Err(Refusal::BadLimit { limit: of }),
            Mode::Permits { count, of } if count == 0 || count > of => return Err(Refusal::BadPermits { count, of }),
            _ => {}
        }
        if ask.wants[..position].iter().any(|other| other.lock == want.lock) {
            return Err(Refusal::NamedTwice { lock: want.lock.clone() });
        }
    }
    if let Some(delay) = ask.delay {
        at_most(Limit::DelayMaxMs, usize::try_from(delay.as_ms()).unwrap_or(usize::MAX))?;
    }
    if let Some(value) = &ask.value {
        at_most(Limit::ValueBytes, value.as_bytes().len())?;
        if ask.wants.len() != 1 || ask.wants[0].mode != Mode::Exclusive {
            return Err(Refusal::ValueNotPossible);
        }
    }
    Ok(())
}
