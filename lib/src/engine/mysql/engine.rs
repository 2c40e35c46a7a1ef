//! MySQL behind its procedures.

use std::rc::Rc;

use palisade_core::{Acquire, Label, LockName, Patience, RequestNo, SessionEnd, SessionId, Token, Ttl, Value};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};

use super::Config;
use super::connector::Connector;
use super::lasting::Lasting;
use super::line::Said;
use super::look;
use super::poll::{begin_watch, sweep};
use super::sql::{bytes, name, number, text};
use crate::SignedToken;
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Offers, Opened, Order, Raised,
    Released, SessionClock, Unavailable, WakeUp, Watched, host,
};

/// Locks kept in a MySQL or MariaDB.
pub struct Mysql {
    connector: Rc<Connector>,
    lasting: Rc<Lasting>,
    connecting: AbortHandle,
}

impl Drop for Mysql {
    fn drop(&mut self) {
        self.connecting.abort();
        if let Some(line) = self.connector.up() {
            line.end(super::error::Trouble::passing("the client has gone".to_owned()));
        }
    }
}

impl Mysql {
    /// Connects to a MySQL or MariaDB, and installs its tables and procedures in the database if they are missing. Must
    /// be called within a `tokio` runtime with a local set, where connections are then kept as long as this engine
    /// lives, and made anew when they break.
    ///
    /// # Errors
    ///
    /// It cannot be reached, does not let this client in, is a replica, or has nothing installed that this build can use.
    pub async fn connect(config: Config) -> Result<Mysql, Failure> {
        let lasting = Rc::new(Lasting::default());
        let connector = Rc::new(Connector::new(config, lasting.clone()));
        let connecting = spawn_local(connector.clone().run()).abort_handle();
        let mysql = Mysql { connector, lasting, connecting };
        mysql.connector.line().await?;
        Ok(mysql)
    }

    /// Whoever has the session learns that it has ended as soon as anybody does.
    fn noted(&self, session: SessionId, failure: Failure) -> Failure {
        if matches!(failure, Failure::SessionEnded) {
            self.lasting.session_ended(session, SessionEnd::Expired);
        }
        failure
    }

    async fn wait(&self, ask: Acquire) -> Result<Acquired, Failure> {
        let session = ask.caller.session;
        let Some(number) = ask.caller.number else {
            let what = "a request that waits needs a number, so that it is recognised on another line";
            return Err(Unavailable::new(what).without_effect().permanent().into());
        };
        let waiting = self.lasting.wait((session, number), ask.clone().into());
        // Without a line, the next one asks for everything that waits.
        if let Some(line) = self.connector.up() {
            match line.acquire(&ask).await {
                Ok(Said::Granted(token)) => self.lasting.settle((session, number), Ok(token)),
                Ok(Said::Queued(ahead)) => self.lasting.queued((session, number), ahead),
                Ok(Said::Busy) => self.lasting.queued((session, number), 0),
                // If the line is broken, the next one asks. If it is not, it is asked for, and asked again.
                Err(Failure::Unavailable(why)) if why.is_retryable && why.may_have_taken_effect => {
                    self.lasting.queued((session, number), 0);
                }
                Err(failure) => return Err(self.noted(session, failure)),
            }
        }
        waiting.outcome().await.map(|token| Acquired::Granted { token })
    }
}

/// Users who may only call the procedures cannot raise tokens.
fn not_a_writer(failure: Failure) -> Failure {
    match failure {
        Failure::Denied(_) => Failure::Denied(
            "only a user who may write the tables palisade_… can raise tokens; connect as the user who installed them"
                .to_owned(),
        ),
        failure => failure,
    }
}

impl Engine for Mysql {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "mysql",
            level: Level::Fenced,
            order: Order::Fair,
            session_clock: SessionClock::Store,
            wake_up: WakeUp::Polled,
            offers: Offers { signed: false, ..Offers::ALL },
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        let line = self.connector.line().await?;
        let sql = format!("CALL palisade_open({}, {})", ttl.as_ms(), bytes(label.as_str().as_bytes()));
        let row = line.row(sql).await?;
        if let Some(refusal) = text(&row, 1) {
            return Err(line.refused(Some(&refusal)));
        }
        let session = number(&row, 0).and_then(|id| SessionId::new(id).ok());
        let session = session.ok_or_else(|| line.unexpected("a session without a number"))?;
        Ok(self.lasting.opened(session, ttl))
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        let patience = self.connector.patience(self.lasting.ttl(session));
        let row = line.row_within(patience, format!("CALL palisade_keep_alive({})", session.get())).await?;
        let kept = number(&row, 0).ok_or(Failure::SessionEnded)?;
        self.lasting.note_kept(session, kept);
        Ok(())
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        loop {
            let row = line.row(format!("CALL palisade_close({})", session.get())).await?;
            self.lasting.forget(session);
            self.lasting.settle_granted(&text(&row, 1).unwrap_or_default());
            // A session that holds very much ends in several transactions.
            if number(&row, 2) != Some(1) {
                return Ok(());
            }
        }
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
        match line.acquire(&ask).await {
            Ok(Said::Granted(token)) => {
                self.lasting.note_held(ask.caller.session, token, ask.wants[0].lock.clone());
                Ok(Acquired::Granted { token })
            }
            Ok(Said::Queued(_) | Said::Busy) => Ok(Acquired::Busy),
            Err(failure) => Err(self.noted(ask.caller.session, failure)),
        }
    }

    async fn cancel(&self, session: SessionId, request: RequestNo) -> Result<Cancelled, Failure> {
        let line = self.connector.line().await?;
        let row = line.row(format!("CALL palisade_cancel({}, {})", session.get(), request.get())).await?;
        self.lasting.settle_granted(&text(&row, 4).unwrap_or_default());
        match text(&row, 0).as_deref() {
            Some("granted") => {
                let token = line.token(number(&row, 1))?;
                if let Ok(lock) = LockName::new(&text(&row, 3).unwrap_or_default()) {
                    self.lasting.note_held(session, token, lock);
                }
                Ok(Cancelled::WasGranted { token })
            }
            Some("gone") => Ok(Cancelled::Gone),
            _ => match line.refused(text(&row, 2).as_deref()) {
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
            Ok(Ok(granted)) => {
                self.lasting.settle_granted(&granted);
                Ok(Released::Now)
            }
            Ok(Err(refusal)) => {
                // Why it is not held any more, it says itself, if it can.
                self.lasting.hear(&line, session).await;
                host::released(Err(refusal))
            }
            Err(Failure::SessionEnded) => {
                self.noted(session, Failure::SessionEnded);
                Ok(Released::Before)
            }
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
        let (session, lock, token, value) = (session.get(), name(&lock), token.get(), bytes(value.as_bytes()));
        line.unless_refused(format!("CALL palisade_publish({session}, {lock}, {token}, {value})")).await
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
        let only = only.map_or("NULL".to_owned(), |token| token.get().to_string());
        let (by, reason) = (bytes(by.as_str().as_bytes()), bytes(reason.as_str().as_bytes()));
        let row = line.row(format!("CALL palisade_force({}, {only}, {by}, {reason})", name(&lock))).await?;
        if let Some(refusal) = text(&row, 2) {
            return Err(line.refused(Some(&refusal)));
        }
        // Whoever was here learns it like everybody else; sooner than by chance.
        self.lasting.of_all.look.notify_one();
        let grants = number(&row, 0).and_then(|grants| u32::try_from(grants).ok()).unwrap_or(0);
        Ok(Forced { grants, moved_to: line.token(number(&row, 1))? })
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        let line = self.connector.line().await?;
        line.unless_refused(format!("CALL palisade_resize({}, {limit})", name(&lock))).await
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        let line = self.connector.line().await?;
        // A lock whose holder has expired is held until it is swept.
        sweep(&line).await;
        let is_above = line.row(format!(
            "SELECT s.token >= {above} AND NOT EXISTS (SELECT 1 FROM palisade_lock l WHERE l.token < {above}) \
             FROM palisade_state s"
        ));
        let is_above = number(&is_above.await?, 0) == Some(1);
        line.rows(format!("CALL palisade_raise_tokens({above})")).await.map_err(not_a_writer)?;
        Ok(if is_above { Raised::Before } else { Raised::Now })
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let line = self.connector.line().await?;
        Ok(look::locks(&line.rows(look::one(&lock)).await?).pop())
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        let line = self.connector.line().await?;
        Ok(look::locks(&line.rows(look::all(&prefix)).await?))
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        let line = self.connector.line().await?;
        let last = begin_watch(&line).await?;
        Ok(self.lasting.watch_from(&line, &prefix, last).await)
    }
}
