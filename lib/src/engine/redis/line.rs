//! One connection, and what is asked on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::answer::{self, Answer};
use super::error::{Trouble, refused};
use super::known::Known;
use super::question::Question;
use super::reply;
use super::scripts;
use super::usual::{Asked, Gathered, Usual};
use crate::engine::Failure;

/// No answer takes longer.
pub(super) const CALL: Duration = Duration::from_secs(10);
const NOBODY: &str = "it was given up";

pub(super) struct Line {
    connection: MultiplexedConnection,
    pub(super) address: String,
    broken: RefCell<Option<Trouble>>,
    breaks: Notify,
    gathered: Gathered,
    /// Whether this server takes functions from this user, as far as is known.
    takes_functions: Cell<bool>,
}

impl Line {
    pub(super) fn new(connection: MultiplexedConnection, address: String) -> Line {
        let (breaks, takes_functions) = (Notify::new(), Cell::new(true));
        let (broken, gathered) = (RefCell::default(), Gathered::default());
        Line { connection, address, broken, breaks, gathered, takes_functions }
    }

    /// Whether it is of no use any more: the next one takes its place.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }

    /// Why it is of no use any more.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.broken.borrow().clone()
    }

    /// Until it is of no use any more, and why.
    pub(super) async fn broken(&self) -> Trouble {
        loop {
            let breaks = self.breaks.notified();
            if let Some(trouble) = &*self.broken.borrow() {
                return trouble.clone();
            }
            breaks.await;
        }
    }

    pub(super) fn give_up(&self, trouble: Trouble) {
        self.broken.borrow_mut().get_or_insert(trouble);
        self.breaks.notify_waiters();
    }

    /// Asks the rules. That data are lost is an answer here.
    pub(super) async fn ask(
        self: &Rc<Self>,
        known: &Rc<Known>,
        question: &Question,
        patience: Duration,
    ) -> Result<Answer, Failure> {
        let value = match question {
            Question::Usual(usual) => self.gather(known, usual.clone()).await,
            question => self.call_rules(|call| known.put(question, call), patience).await,
        };
        let answer = answer::read(&value.map_err(|why| self.failure(why))?)?;
        match &answer {
            Answer::Granted { token } => known.see(token.get()),
            Answer::Forced { moved_to, .. } => known.see(moved_to.get()),
            Answer::Done { last } | Answer::Polled { last, .. } => known.see(*last),
            Answer::Hello { incarnation, last, run, .. } | Answer::Opened { incarnation, last, run, .. } => {
                known.learn(incarnation, *last);
                known.learn_run(run);
            }
            Answer::Watched { incarnation, last } | Answer::Raised { incarnation, last, .. } => {
                known.learn(incarnation, *last)
            }
            Answer::Lost(how) => return Err(known.note_lost(how).failure()),
            _ => {}
        }
        Ok(answer)
    }

    /// Asks together with whoever else asks now: before anybody else has a turn, all of them are gathered.
    async fn gather(self: &Rc<Self>, known: &Rc<Known>, usual: Usual) -> Result<Value, Unanswered> {
        let (is_first, answered) = self.gathered.add(usual);
        if is_first {
            spawn_local(self.clone().ask_gathered(known.clone()));
        }
        let nobody = |_| Unanswered::Lost(Trouble::Broken { address: self.address.clone(), why: NOBODY.to_owned() });
        answered.await.unwrap_or_else(|gone| Err(nobody(gone)))
    }

    async fn ask_gathered(self: Rc<Self>, known: Rc<Known>) {
        let asked = self.gathered.take();
        if !self.gathered.is_empty() {
            spawn_local(self.clone().ask_gathered(known.clone()));
        }
        match <[Asked; 1]>::try_from(asked) {
            Ok([one]) => {
                let answer = self.call_rules(|call| known.put_usual(&one.usual, call), CALL).await;
                // Whoever does not wait any more asks what became of it.
                drop(one.answer.send(answer));
            }
            Err(asked) => self.ask_several(&known, asked).await,
        }
    }

    async fn ask_several(&self, known: &Known, asked: Vec<Asked>) {
        let answers = match self.call_rules(|call| known.put_several(&asked, call), CALL).await {
            Ok(Value::Array(answers)) if answers.len() == asked.len() => answers.into_iter().map(Ok).collect(),
            Ok(other) => vec![Ok(other); asked.len()],
            Err(why) => vec![Err(why); asked.len()],
        };
        for (one, answer) in asked.into_iter().zip(answers) {
            drop(one.answer.send(match answer {
                Ok(Value::ServerError(error)) => Err(self.unanswered(error.into())),
                answer => answer,
            }));
        }
    }

    /// By their function, which Redis makes once. Where it refuses that nothing has happened, and the script, which it makes
    /// anew at each call, may do what a function may not: older servers and some users have no functions, a full server
    /// and a replica refuse them even if they write nothing.
    async fn call_rules(&self, put: impl Fn(Cmd) -> Cmd, patience: Duration) -> Result<Value, Unanswered> {
        if self.takes_functions.get()
            && let Ok(value) = self.call_function(&put, patience).await?
        {
            return Ok(value);
        }
        match self.call(&put(scripts::by_hash()), patience).await {
            // After a restart, a failover or SCRIPT FLUSH the server does not know the script: nothing has happened.
            Err(Unanswered::Refused(error)) if error.code() == Some("NOSCRIPT") => {
                self.call(&put(scripts::by_text()), patience).await
            }
            value => value,
        }
    }

    async fn call_function(
        &self,
        put: &impl Fn(Cmd) -> Cmd,
        patience: Duration,
    ) -> Result<Result<Value, RedisError>, Unanswered> {
        let mut answer = self.answer(&put(scripts::by_function()), patience).await?;
        if answer.as_ref().is_err_and(|error| error.detail() == Some("Function not found")) {
            // If it is refused because another client was faster, it is there all the same.
            drop(self.answer(&scripts::load_function(), patience).await?);
            answer = self.answer(&put(scripts::by_function()), patience).await?;
        }
        if let Err(error) = &answer
            && matches!(error.code(), Some("ERR" | "NOPERM"))
        {
            tracing::debug!(%error, "no functions, so scripts are used");
            self.takes_functions.set(false);
        }
        Ok(answer)
    }

    /// The server's run id, which is another one after each start; empty if this user may not see it.
    pub(super) async fn run(&self) -> Result<String, Failure> {
        match self.call(redis::cmd("INFO").arg("server"), CALL).await {
            Ok(info) => Ok(reply::info(&info, "run_id").unwrap_or_default().to_owned()),
            Err(Unanswered::Refused(error)) => {
                tracing::debug!(%error, "the server does not say its run id");
                Ok(String::new())
            }
            Err(why) => Err(self.failure(why)),
        }
    }

    /// A command of Redis itself.
    pub(super) async fn command(&self, command: &Cmd, patience: Duration) -> Result<Value, Failure> {
        self.call(command, patience).await.map_err(|why| self.failure(why))
    }

    pub(super) async fn subscribe(&self, channel: &str) -> Result<(), Failure> {
        let mut connection = self.connection.clone();
        let subscribed = timeout(CALL, connection.subscribe(channel)).await;
        match subscribed {
            Ok(subscribed) => subscribed.map_err(|error| self.failure(self.unanswered(error))),
            Err(_) => Err(self.failure(self.silent(CALL))),
        }
    }

    async fn call(&self, command: &Cmd, patience: Duration) -> Result<Value, Unanswered> {
        self.answer(command, patience).await?.map_err(|error| self.unanswered(error))
    }

    /// What the server says, be it a refusal.
    async fn answer(&self, command: &Cmd, patience: Duration) -> Result<Result<Value, RedisError>, Unanswered> {
        let mut connection = self.connection.clone();
        match timeout(patience, connection.send_packed_command(command)).await {
            Ok(Ok(Value::ServerError(error))) => Ok(Err(error.into())),
            Ok(Err(error)) if error.code().is_none() => Err(self.unanswered(error)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(self.silent(patience)),
        }
    }

    fn silent(&self, waited: Duration) -> Unanswered {
        let trouble = Trouble::Silent { address: self.address.clone(), waited };
        self.give_up(trouble.clone());
        Unanswered::Lost(trouble)
    }

    fn unanswered(&self, error: RedisError) -> Unanswered {
        let address = self.address.clone();
        let trouble = match error.code() {
            None => {
                let trouble = Trouble::Broken { address, why: error.to_string() };
                self.give_up(trouble.clone());
                return Unanswered::Lost(trouble);
            }
            Some("READONLY" | "MASTERDOWN") => Trouble::NotPrimary { address },
            Some("MOVED") => match error.redirect_node() {
                Some((to, _)) => Trouble::Moved { address, to: to.to_owned() },
                None => return Unanswered::Refused(error),
            },
            Some(_) => return Unanswered::Refused(error),
        };
        self.give_up(trouble.clone());
        Unanswered::Elsewhere(trouble)
    }

    fn failure(&self, why: Unanswered) -> Failure {
        match why {
            Unanswered::Refused(error) => refused(&self.address, error),
            Unanswered::Elsewhere(trouble) => trouble.failure(false),
            Unanswered::Lost(trouble) => trouble.failure(true),
        }
    }
}

/// Why there is no answer.
#[derive(Clone)]
pub(super) enum Unanswered {
    /// The server says no, and nothing has changed.
    Refused(RedisError),
    /// It is the wrong server, and nothing has changed.
    Elsewhere(Trouble),
    /// Nobody knows what became of it.
    Lost(Trouble),
}
