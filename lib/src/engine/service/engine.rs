//! The service behind its protocol.

use std::rc::Rc;

use palisade_core::{Acquire, Label, LockName, Patience, Refusal, RequestNo, SessionId, Token, Ttl, Value};
use redis_protocol::resp3::types::BytesFrame;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};

use super::Config;
use super::command::Command;
use super::connector::Connector;
use super::error::Denied;
use super::lasting::Lasting;
use super::line::CALL;
use super::reply::{self, Unexpected};
use crate::SignedToken;
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Offers, Opened, Order, Raised,
    Released, SessionClock, Unavailable, WakeUp, Watched, host,
};

/// Locks kept by the Palisade service.
pub struct Service {
    connector: Rc<Connector>,
    lasting: Rc<Lasting>,
    connecting: AbortHandle,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.connecting.abort();
    }
}

impl Service {
    /// Connects to a service. Must be called within a `tokio` runtime with a local set, where the line is then kept as
    /// long as this engine lives, and made anew when it breaks.
    ///
    /// # Errors
    ///
    /// The service cannot be reached, does not answer, or is none of ours.
    pub async fn connect(config: Config) -> Result<Service, Failure> {
        let lasting = Rc::new(Lasting::default());
        let connector = Rc::new(Connector::new(config, lasting.clone()));
        let connecting = spawn_local(connector.clone().run()).abort_handle();
        let service = Service { connector, lasting, connecting };
        service.connector.line().await?;
        Ok(service)
    }

    /// Asks the service; an answer of the rules is told apart from a failure.
    async fn ask(&self, command: Command) -> Result<Result<BytesFrame, Denied>, Failure> {
        let line = self.connector.line().await?;
        Ok(reply::accepted(line.ask(&command, CALL).await?))
    }

    async fn call(&self, command: Command) -> Result<BytesFrame, Failure> {
        Ok(self.ask(command).await??)
    }

    /// A lock with all of its holders and waiters, from its first page on. A queue that moves meanwhile may be seen with
    /// gaps.
    async fn whole(&self, (mut lock, mut cursor): (LockInfo, u64)) -> Result<LockInfo, Failure> {
        while cursor > 0 {
            let answer = self.call(Command::show(&lock.name, cursor)).await?;
            let Some((page, next)) = reply::optional(&answer, super::look::lock)? else { break };
            lock.holders.extend(page.holders);
            lock.waiters.extend(page.waiters);
            cursor = next;
        }
        Ok(lock)
    }

    async fn wait(&self, ask: &Acquire, command: Command) -> Result<Acquired, Failure> {
        let Some(number) = ask.caller.number else {
            let what = "a request that waits needs a number, so that it is recognised on another line";
            return Err(Unavailable::new(what).without_effect().permanent().into());
        };
        let key = (ask.caller.session, number);
        let waiting = self.lasting.wait(key, command.clone());
        // Without a line, the next one asks for everything that waits.
        if let Some(line) = self.connector.up() {
            line.wait(key, &command);
        }
        waiting.outcome().await.map(|token| Acquired::Granted { token })
    }
}

impl From<Unexpected> for Failure {
    fn from(Unexpected(what): Unexpected) -> Failure {
        Unavailable::new(format!("the service gave an answer that this build does not understand: {what}"))
            .permanent()
            .into()
    }
}

/// What the rules refuse, where a refusal says something.
fn by_rules(denied: Denied) -> Result<Refusal, Failure> {
    match denied {
        Denied::ByRules(refusal) => Ok(refusal),
        denied => Err(denied.into()),
    }
}

impl Engine for Service {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "palisade",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Engine,
            wake_up: WakeUp::Pushed,
            offers: Offers::ALL,
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        let command = Command::open(ttl, &label)?;
        self.connector.line().await?.open(&command, ttl).await
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        let patience = self.connector.patience(self.lasting.ttl(session));
        let answer = reply::accepted(line.ask(&Command::keep_alive(session), patience).await?)?;
        match reply::items(&answer)? {
            [ttl] if reply::number(ttl)? > 0 => Ok(()),
            [_] => Err(Failure::SessionEnded),
            _ => Err(Unexpected::instead_of("one TTL", &answer).into()),
        }
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        match self.call(Command::close(session)).await {
            Ok(_) | Err(Failure::SessionEnded) => {
                self.lasting.forget(session);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn leave_session(&self, session: SessionId) -> Result<(), Failure> {
        self.keep_alive(session).await?;
        self.lasting.forget(session);
        Ok(())
    }

    async fn acquire(&self, ask: Acquire) -> Result<Acquired, Failure> {
        let command = Command::acquire(&ask)?;
        if ask.patience == Patience::Wait {
            return self.wait(&ask, command).await;
        }
        let answer = self.call(command).await?;
        if reply::is_nil(&answer) {
            return Ok(Acquired::Busy);
        }
        let token = reply::token(reply::field(&answer, "token")?)?;
        self.lasting.note_held(ask.caller.session, token, ());
        Ok(Acquired::Granted { token })
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        match self.ask(Command::cancel(session, number)).await? {
            Ok(answer) => match reply::optional(&answer, reply::token)? {
                None => Ok(Cancelled::Gone),
                Some(token) => {
                    self.lasting.note_held(session, token, ());
                    Ok(Cancelled::WasGranted { token })
                }
            },
            Err(denied) => host::cancelled(Err(by_rules(denied)?)),
        }
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        let line = self.connector.line().await?;
        // Once this is sent, that it is not held is no surprise.
        let was_held = self.lasting.note_given_back(session, token).is_some();
        match line.ask(&Command::release(session, &lock, token), CALL).await {
            Ok(answer) => match reply::accepted(answer) {
                Ok(_) => Ok(Released::Now),
                Err(denied) => host::released(Err(by_rules(denied)?)),
            },
            Err(failure) => {
                if was_held && matches!(&failure, Failure::Unavailable(why) if !why.may_have_taken_effect) {
                    self.lasting.note_held(session, token, ());
                }
                Err(failure)
            }
        }
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        self.call(Command::publish(session, &lock, token, value.as_bytes())?).await.map(drop)
    }

    async fn sign(&self, session: SessionId, lock: LockName, token: Token) -> Result<SignedToken, Failure> {
        let answer = self.call(Command::sign(session, &lock, token)).await?;
        Ok(SignedToken::new(reply::text(&answer)?))
    }

    async fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> Result<Forced, Failure> {
        let answer = self.call(Command::force_release(&lock, only, &by, &reason)?).await?;
        let grants = reply::small(reply::field(&answer, "grants")?)?;
        Ok(Forced { grants, moved_to: reply::token(reply::field(&answer, "moved_to")?)? })
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        self.call(Command::resize(&lock, limit)).await.map(drop)
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        let answer = self.call(Command::raise_tokens(above)).await?;
        Ok(if reply::number(&answer)? == 1 { Raised::Now } else { Raised::Before })
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let answer = self.call(Command::show(&lock, 0)).await?;
        match reply::optional(&answer, super::look::lock)? {
            Some(page) => self.whole(page).await.map(Some),
            None => Ok(None),
        }
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        let (mut locks, mut cursor) = (Vec::new(), 0);
        loop {
            let page = self.call(Command::list(&prefix, cursor)).await?;
            for lock in reply::items(reply::field(&page, "locks")?)? {
                locks.push(self.whole(super::look::lock(lock)?).await?);
            }
            cursor = reply::number(reply::field(&page, "cursor")?)?;
            if cursor == 0 {
                break;
            }
        }
        locks.retain(|lock| lock.name.as_str().starts_with(&prefix));
        // A lock that came into use again between two pages may be on both.
        locks.sort_by(|a, b| a.name.cmp(&b.name));
        locks.dedup_by(|a, b| a.name == b.name);
        Ok(locks)
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        let line = self.connector.line().await?;
        let watch = self.lasting.watch(&prefix);
        reply::accepted(line.ask(&Command::watch(&prefix), CALL).await?)?;
        Ok(watch)
    }
}
