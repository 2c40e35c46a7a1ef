//! The rules in Redis, as an engine.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use palisade_core::{Acquire, Label, LockName, Patience, Refusal, RequestNo, SessionId, Token, Ttl, Value};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};

use super::answer::{Answer, Lost};
use super::config::{Config, Replicas};
use super::connector::{Connector, unexpected};
use super::dial::Dialer;
use super::known::Known;
use super::lasting::{Asked, Held, Lasting};
use super::line::{CALL, Line};
use super::question::Question;
use super::reply;
use crate::SignedToken;
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Offers, Opened, Order, Raised,
    Released, SessionClock, Unavailable, WakeUp, Watched, host,
};

/// How many locks are looked at in one call.
const PAGE: usize = 100;

/// Locks kept in Redis.
pub struct Redis {
    connector: Rc<Connector>,
    lasting: Rc<Lasting>,
    connecting: AbortHandle,
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.connecting.abort();
    }
}

impl Redis {
    /// Connects to a Redis. Must be called within a `tokio` runtime with a local set, where the line is then kept as
    /// long as this engine lives, and made anew when it breaks.
    ///
    /// # Errors
    ///
    /// It cannot be reached, does not answer, does not let this client in, or is too old.
    pub async fn connect(config: Config) -> Result<Redis, Failure> {
        let lasting = Rc::new(Lasting::default());
        let channel = format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        let known = Known::new(config.key(), channel);
        let connector = Rc::new(Connector::new(Dialer::new(config), known, lasting.clone()));
        let connecting = spawn_local(connector.clone().run()).abort_handle();
        let redis = Redis { connector, lasting, connecting };
        redis.connector.line().await?;
        Ok(redis)
    }

    async fn ask(&self, question: &Question) -> Result<Answer, Failure> {
        self.connector.ask(question, CALL).await
    }

    async fn do_it(&self, question: &Question) -> Result<(), Failure> {
        match self.ask(question).await? {
            Answer::Done { .. } => Ok(()),
            Answer::Ended => Err(Failure::SessionEnded),
            Answer::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until it is granted, on whatever line; says whether Redis was asked by the line that brought the grant.
    async fn wait(&self, ask: &Acquire, number: RequestNo, question: Question) -> Result<(Token, bool), Failure> {
        let key = (ask.caller.session, number);
        let waiting = self.lasting.wait(key, Asked { question: question.clone(), lock: ask.wants[0].lock.clone() });
        let mut is_direct = false;
        // Without a line, the next one asks for everything that waits.
        if let Some(line) = self.connector.up() {
            let answer = self.connector.ask_on(&line, &question, CALL).await;
            is_direct = matches!(answer, Ok(Answer::Granted { .. }));
            self.connector.waited(&line, key, answer);
        } else if let Some(lost) = self.connector.known.lost() {
            return Err(lost.failure());
        }
        Ok((waiting.outcome().await?, is_direct))
    }

    /// Asks once.
    async fn try_once(
        &self,
        ask: &Acquire,
        number: RequestNo,
        question: &Question,
    ) -> Result<Option<Token>, Failure> {
        match self.ask(question).await? {
            Answer::Granted { token } => {
                self.lasting.note_granted((ask.caller.session, number), token, ask.wants[0].lock.clone());
                Ok(Some(token))
            }
            Answer::Busy => Ok(None),
            Answer::Ended => Err(Failure::SessionEnded),
            Answer::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until so many replicas have the grant as the URL asks for; if they do not, it is given back.
    async fn confirm(&self, ask: &Acquire, token: Token, is_direct: bool) -> Result<(), Failure> {
        let Some(replicas) = self.connector.dialer.config.replicas else { return Ok(()) };
        let line = self.connector.line().await?;
        if !is_direct {
            // Replicas are waited for up to the last write of this connection, and another one has made the grant.
            self.connector.ask_on(&line, &Question::keep_alive(ask.caller.session), CALL).await?;
        }
        let confirmed = replicas.confirmed(&line).await?;
        if confirmed >= replicas.count {
            return Ok(());
        }
        self.release(ask.caller.session, ask.wants[0].lock.clone(), token).await?;
        let what = format!(
            "it was granted, but only {confirmed} of {} replicas had it within {} ms, so it was given back; see to the \
             replicas",
            replicas.count,
            replicas.timeout.as_millis()
        );
        Err(Unavailable::new(what).without_effect().into())
    }

    /// The number's fate is known here, unless it may be asked about again.
    fn note_answered<T>(&self, session: SessionId, number: RequestNo, outcome: &Result<T, Failure>) {
        let is_settled = match outcome {
            Err(Failure::Unavailable(why)) => !why.may_have_taken_effect && !why.is_retryable,
            _ => true,
        };
        if is_settled {
            self.lasting.number(session, |numbers| numbers.settle(number));
        }
    }

    async fn names(&self, prefix: &str) -> Result<BTreeSet<Vec<u8>>, Failure> {
        let (mut names, mut cursor) = (BTreeSet::new(), 0);
        let line = self.connector.line().await?;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&self.connector.known.key).arg(cursor).arg("MATCH").arg(pattern(prefix)).arg("COUNT").arg(1000);
            let answer = line.command(&scan, CALL).await?;
            let [next, fields] = reply::items(&answer)? else {
                return Err(reply::Unexpected::instead_of("a page", &answer).into());
            };
            for field in reply::items(fields)?.iter().step_by(2) {
                let name = reply::bytes(field)?.strip_prefix(b"l").unwrap_or_default();
                // A lock that this build cannot name does not hide the others.
                match str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()) {
                    Some(_) => drop(names.insert(name.to_vec())),
                    None => tracing::warn!(name = %name.escape_ascii(), "a lock whose name is none is left out"),
                }
            }
            cursor = reply::number(next)?;
            if cursor == 0 {
                return Ok(names);
            }
        }
    }

    async fn look(&self, names: impl IntoIterator<Item = Vec<u8>>) -> Result<Vec<LockInfo>, Failure> {
        match self.ask(&Question::inspect(names)).await? {
            Answer::Locks(locks) => Ok(locks),
            other => Err(unexpected(&other)),
        }
    }
}

impl Replicas {
    /// Waits until the replicas have the last write of this connection, or for the time-out. Returns how many have it.
    async fn confirmed(self, line: &Rc<Line>) -> Result<u32, Failure> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.count).arg(u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX));
        Ok(reply::small(&line.command(&wait, CALL + self.timeout).await?)?)
    }
}

/// What the fields of locks look like whose names begin so.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::from("l");
    for character in prefix.chars() {
        if "*?[]\\^-".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

impl Engine for Redis {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "redis",
            level: Level::HealthyOnly,
            order: Order::Fair,
            session_clock: SessionClock::Store,
            wake_up: WakeUp::Pushed,
            offers: Offers { signed: false, ..Offers::ALL },
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        match self.ask(&Question::open(ttl, &label, &self.connector.known.run())?).await? {
            Answer::Opened { session, .. } => Ok(self.lasting.opened(session, ttl)),
            other => Err(unexpected(&other)),
        }
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let patience = self.connector.patience(self.lasting.ttl(session));
        match self.connector.ask(&Question::keep_alive(session), patience).await? {
            Answer::Done { .. } => Ok(()),
            Answer::Ended => Err(Failure::SessionEnded),
            other => Err(unexpected(&other)),
        }
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        match self.do_it(&Question::close(session, &self.lasting.locks(session))).await {
            Ok(()) | Err(Failure::SessionEnded) => {
                self.lasting.forget(session);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn leave_session(&self, session: SessionId) -> Result<(), Failure> {
        self.do_it(&Question::leave(session, &self.lasting.locks(session))).await?;
        self.lasting.forget(session);
        Ok(())
    }

    async fn acquire(&self, ask: Acquire) -> Result<Acquired, Failure> {
        let session = ask.caller.session;
        let Some(number) = ask.caller.number else {
            let what = "a request needs a number here, so that it is recognised on another line";
            return Err(Unavailable::new(what).without_effect().permanent().into());
        };
        let lock = ask.wants.first().map(|want| want.lock.clone()).ok_or(Refusal::NoLocks)?;
        let low = self.lasting.number(session, |numbers| {
            numbers.begin(number, lock);
            numbers.low()
        });
        let asked = match Question::acquire(&ask, number, low.max(1)) {
            Err(refusal) => Err(refusal.into()),
            Ok(question) if ask.patience == Patience::Wait => self.wait(&ask, number, question).await.map(Some),
            Ok(question) => {
                self.try_once(&ask, number, &question).await.map(|token| token.map(|token| (token, true)))
            }
        };
        self.note_answered(session, number, &asked);
        match asked? {
            None => Ok(Acquired::Busy),
            Some((token, is_direct)) => {
                self.confirm(&ask, token, is_direct).await?;
                Ok(Acquired::Granted { token })
            }
        }
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        let lock = self.lasting.number(session, |numbers| numbers.lock(number));
        let cancelled = match self.ask(&Question::cancel(session, number, lock.as_ref())).await? {
            Answer::Gone | Answer::Ended => Cancelled::Gone,
            Answer::Granted { token } => {
                if let Some(lock) = lock {
                    self.lasting.note_granted((session, number), token, lock);
                }
                Cancelled::WasGranted { token }
            }
            other => return Err(unexpected(&other)),
        };
        self.lasting.number(session, |numbers| numbers.settle(number));
        Ok(cancelled)
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        let line = self.connector.line().await?;
        let low = self.lasting.number(session, |numbers| numbers.low());
        // Once this is sent, that it is not held is no surprise.
        let was_held = self.lasting.note_given_back(session, token);
        let question =
            Question::release(session, low, &lock, token, was_held.as_ref().is_some_and(|held| held.is_once));
        match self.connector.ask_on(&line, &question, CALL).await {
            Ok(Answer::Done { .. }) => Ok(Released::Now),
            Ok(Answer::Ended | Answer::Refused(Refusal::NotHeld { .. })) => Ok(Released::Before),
            Ok(Answer::Refused(Refusal::OtherSession { .. })) if was_held.is_some() => {
                Err(self.connector.lost(&Lost::Taken { token: token.get() }))
            }
            Ok(Answer::Refused(refusal)) => Err(refusal.into()),
            Ok(other) => Err(unexpected(&other)),
            Err(failure) => {
                if was_held.is_some() && matches!(&failure, Failure::Unavailable(why) if !why.may_have_taken_effect) {
                    self.lasting.note_held(session, token, Held { lock, is_once: false });
                }
                Err(failure)
            }
        }
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        self.do_it(&Question::publish(session, &lock, token, &value)?).await
    }

    async fn sign(&self, _: SessionId, _: LockName, _: Token) -> Result<SignedToken, Failure> {
        Err(host::not_signing())
    }

    async fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> Result<Forced, Failure> {
        match self.ask(&Question::force(&lock, only, &by, &reason)?).await? {
            Answer::Forced { grants, moved_to } => Ok(Forced { grants, moved_to }),
            Answer::Refused(refusal) => Err(refusal.into()),
            other => Err(unexpected(&other)),
        }
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        self.do_it(&Question::resize(&lock, limit)?).await
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        let line = self.connector.line().await?;
        let question = Question::raise_tokens(above, &self.connector.known.run());
        let is_new = match self.connector.ask_on(&line, &question, CALL).await? {
            Answer::Raised { is_new, .. } => is_new,
            other => return Err(unexpected(&other)),
        };
        if let Some(replicas) = self.connector.dialer.config.replicas {
            let confirmed = replicas.confirmed(&line).await?;
            if confirmed < replicas.count {
                let what = format!(
                    "the primary has raised them, but only {confirmed} of {} replicas had that within {} ms; see to the \
                     replicas, then raise them again",
                    replicas.count,
                    replicas.timeout.as_millis()
                );
                return Err(Unavailable::new(what).into());
            }
        }
        Ok(if is_new { Raised::Now } else { Raised::Before })
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        Ok(self.look([lock.as_str().as_bytes().to_vec()]).await?.pop())
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        let (names, mut locks) = (self.names(&prefix).await?, Vec::new());
        let names: Vec<_> = names.into_iter().collect();
        for page in names.chunks(PAGE) {
            locks.extend(self.look(page.iter().cloned()).await?);
        }
        Ok(locks)
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        let line = self.connector.line().await?;
        let watch = self.lasting.watch(&prefix);
        self.connector.watch_on(&line).await?;
        Ok(watch)
    }
}
