//! PostgreSQL behind its functions.

use std::rc::Rc;

use palisade_core::{Acquire, Label, LockName, Patience, RequestNo, SessionId, Token, Ttl, Value};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio_postgres::types::Type;

use super::Config;
use super::connector::{Connector, SWEEP_STEPS};
use super::lasting::Lasting;
use super::line::{Given, Said, big};
use super::look;
use crate::SignedToken;
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Offers, Opened, Order, Raised,
    Released, SessionClock, Unavailable, WakeUp, Watched, host,
};

/// Locks kept in a PostgreSQL.
pub struct Postgres {
    connector: Rc<Connector>,
    lasting: Rc<Lasting>,
    connecting: AbortHandle,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.connecting.abort();
    }
}

impl Postgres {
    /// Connects to a PostgreSQL, and installs the schema `palisade` there if it is missing. Must be called within a
    /// `tokio` runtime with a local set, where the connection is then kept as long as this engine lives, and made anew
    /// when it breaks.
    ///
    /// # Errors
    ///
    /// It cannot be reached, does not let this client in, is a standby, or has no schema that this build can use.
    pub async fn connect(config: Config) -> Result<Postgres, Failure> {
        let lasting = Rc::new(Lasting::default());
        let connector = Rc::new(Connector::new(config, lasting.clone()));
        let connecting = spawn_local(connector.clone().run()).abort_handle();
        let postgres = Postgres { connector, lasting, connecting };
        postgres.connector.line().await?;
        Ok(postgres)
    }

    async fn wait(&self, ask: Acquire) -> Result<Acquired, Failure> {
        let session = ask.caller.session;
        let Some(number) = ask.caller.number else {
            let what = "a request that waits needs a number, so that it is recognised on another line";
            return Err(Unavailable::new(what).without_effect().for_good().into());
        };
        let waiting = self.lasting.wait((session, number), ask.clone());
        // Without a line, the next one asks for everything that waits.
        if let Some(line) = self.connector.up() {
            match line.acquire(&ask).await {
                Ok(Said::Granted(token)) => self.lasting.settle((session, number), Ok(token)),
                Ok(Said::Queued | Said::Busy) => {}
                // If the line is broken, the next one asks. If it is not, somebody should.
                Err(Failure::Unavailable(why)) if why.is_retryable && why.may_have_taken_effect => {}
                Err(failure) => return Err(failure),
            }
        }
        waiting.outcome().await.map(|token| Acquired::Granted { token })
    }
}

/// Roles that `palisade.allow` lets in cannot raise tokens.
fn not_the_owner(failure: Failure) -> Failure {
    match failure {
        Failure::Denied(_) => Failure::Denied(
            "only the role that installed the schema 'palisade', or a superuser, can raise tokens; connect as that role"
                .to_owned(),
        ),
        failure => failure,
    }
}

impl Engine for Postgres {
    fn guarantees(&self) -> Guarantees {
        let wake_up = self.connector.wake_up();
        // Without LISTEN nothing can be watched.
        let watch = wake_up == WakeUp::Pushed;
        Guarantees {
            engine: "postgres",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Store,
            wake_up,
            offers: Offers { watch, signed: false, ..Offers::ALL },
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        let line = self.connector.line().await?;
        let (ms, label) = (big(ttl.as_ms()), label.as_str().as_bytes());
        let channel = (self.connector.wake_up() == WakeUp::Pushed).then_some(self.connector.channel.as_str());
        let given: [Given<'_>; 3] = [(&ms, Type::INT8), (&label, Type::BYTEA), (&channel, Type::TEXT)];
        let row = line.row("SELECT session, refusal FROM palisade.open($1, $2, $3)", &given).await?;
        if let Some(refusal) = line.cell::<Option<&str>>(&row, 1)? {
            return Err(line.refused(refusal));
        }
        let session = line.cell::<Option<i64>>(&row, 0)?.and_then(|id| SessionId::new(u64::try_from(id).ok()?).ok());
        let session = session.ok_or_else(|| line.unexpected("a session without a number"))?;
        Ok(self.lasting.opened(session, ttl))
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        let (lives, flushed) = line.keep_alive(session, self.connector.patience(self.lasting.ttl(session))).await?;
        self.connector.note_flushed(flushed);
        if lives { Ok(()) } else { Err(Failure::SessionEnded) }
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        // A session that has much is ended in several steps.
        loop {
            let row = line.row("SELECT palisade.close($1)", &[(&big(session.get()), Type::INT8)]).await?;
            if line.cell(&row, 0)? {
                break;
            }
        }
        self.lasting.forget(session);
        Ok(())
    }

    async fn leave_session(&self, session: SessionId) -> Result<(), Failure> {
        self.keep_alive(session).await?;
        self.lasting.forget(session);
        Ok(())
    }

    async fn acquire(&self, ask: Acquire) -> Result<Acquired, Failure> {
        if ask.patience == Patience::Wait {
            return self.wait(ask).await;
        }
        let line = self.connector.line().await?;
        match line.acquire(&ask).await? {
            Said::Granted(token) => {
                self.lasting.note_held(ask.caller.session, token, ask.wants[0].lock.clone());
                Ok(Acquired::Granted { token })
            }
            Said::Queued | Said::Busy => Ok(Acquired::Busy),
        }
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        let line = self.connector.line().await?;
        let (id, request) = (big(session.get()), big(number.get()));
        let given: [Given<'_>; 2] = [(&id, Type::INT8), (&request, Type::INT8)];
        let row = line.row("SELECT said, token, detail, lock FROM palisade.cancel($1, $2)", &given).await?;
        match line.cell::<Option<&str>>(&row, 0)? {
            Some("granted") => {
                let token = line.token(line.cell(&row, 1)?)?;
                if let Ok(lock) = LockName::new(line.cell::<Option<&str>>(&row, 3)?.unwrap_or("")) {
                    self.lasting.note_held(session, token, lock);
                }
                Ok(Cancelled::WasGranted { token })
            }
            Some("gone") => Ok(Cancelled::Gone),
            _ => match line.refused(line.cell::<Option<&str>>(&row, 2)?.unwrap_or("")) {
                Failure::SessionEnded => Ok(Cancelled::Gone),
                failure => Err(failure),
            },
        }
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        let line = self.connector.line().await?;
        // Once this is sent, that it is not held is no surprise.
        let was_held = self.lasting.note_given_back(session, token).is_some();
        match line.give_back(session, &lock, token).await {
            Ok(Ok(())) => Ok(Released::Now),
            Ok(Err(refusal)) => host::released(Err(refusal)),
            Err(Failure::SessionEnded) => Ok(Released::Before),
            Err(failure) => {
                if was_held && matches!(&failure, Failure::Unavailable(why) if !why.may_have_taken_effect) {
                    self.lasting.note_held(session, token, lock);
                }
                Err(failure)
            }
        }
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        let (session, lock, token, value) = (big(session.get()), lock.as_str(), big(token.get()), value.as_bytes());
        let given: [Given<'_>; 4] =
            [(&session, Type::INT8), (&lock, Type::TEXT), (&token, Type::INT8), (&value, Type::BYTEA)];
        line.unless_refused("SELECT palisade.publish($1, $2, $3, $4)", &given).await
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
        let line = self.connector.line().await?;
        let (lock, only) = (lock.as_str(), only.map(|token| big(token.get())));
        let (by, reason) = (by.as_str().as_bytes(), reason.as_str().as_bytes());
        let given: [Given<'_>; 4] =
            [(&lock, Type::TEXT), (&only, Type::INT8), (&by, Type::BYTEA), (&reason, Type::BYTEA)];
        let row = line.row("SELECT grants, moved_to, refusal FROM palisade.force($1, $2, $3, $4)", &given).await?;
        if let Some(refusal) = line.cell::<Option<&str>>(&row, 2)? {
            return Err(line.refused(refusal));
        }
        let grants = line.cell::<Option<i32>>(&row, 0)?.unwrap_or(0).max(0) as u32;
        Ok(Forced { grants, moved_to: line.token(line.cell(&row, 1)?)? })
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        let given: [Given<'_>; 2] = [(&lock.as_str(), Type::TEXT), (&i64::from(limit), Type::INT8)];
        line.unless_refused("SELECT palisade.resize($1, $2)", &given).await
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        let line = self.connector.line().await?;
        let given: [Given<'_>; 1] = [(&big(above.get()), Type::INT8)];
        // A lock whose holder has expired is held until it is swept.
        for _ in 0..SWEEP_STEPS {
            let swept = line.row("SELECT palisade.sweep()", &[]).await?;
            if line.cell::<i32>(&swept, 0)? == 0 {
                break;
            }
        }
        let is_above = "SELECT t.last_value >= $1 FROM palisade.tokens t";
        let is_above = line.row(is_above, &given).await.map_err(not_the_owner)?;
        line.rows("SELECT palisade.raise_tokens($1)", &given).await.map_err(not_the_owner)?;
        Ok(if line.cell::<Option<bool>>(&is_above, 0)? == Some(true) { Raised::Before } else { Raised::Now })
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let line = self.connector.line().await?;
        let sql = "SELECT palisade.show($1, NULL)::text";
        let Some(row) = line.rows(sql, &[(&lock.as_str(), Type::TEXT)]).await?.pop() else { return Ok(None) };
        look::lock(line.cell(&row, 0)?).map(Some).ok_or_else(|| line.unexpected("a lock"))
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        let line = self.connector.line().await?;
        let rows = line.rows("SELECT palisade.show(NULL, $1)::text", &[(&prefix, Type::TEXT)]).await?;
        let mut locks = Vec::new();
        for row in &rows {
            let json = line.cell(row, 0)?;
            // One that this build cannot read must not hide the others.
            match look::lock(json) {
                Some(lock) => locks.push(lock),
                None => tracing::warn!(json, "a lock in PostgreSQL cannot be read and is left out of the list"),
            }
        }
        Ok(locks)
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        let line = self.connector.line().await?;
        let watch = self.lasting.watch(&prefix);
        self.connector.watch(&line, &prefix).await?;
        line.rows("SELECT palisade.watch_begun()", &[]).await?;
        Ok(watch)
    }
}
