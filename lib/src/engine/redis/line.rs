//! One connection, and what is asked on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::DataLost;
use super::answer::{self, Answer, Lost};
use super::error::{Trouble, refused};
use super::question::Question;
use super::scripts;
use super::usual::{Asked, Gathered, Usual};
use crate::engine::Failure;

/// No answer takes longer.
pub(super) const CALL: Duration = Duration::from_secs(10);
const NOBODY: &str = "it was given up";

/// What this client knows of the namespace, and Redis must know too.
pub(super) struct Known {
    /// The namespace's key, which holds everything.
    pub(super) key: String,
    /// The key beside it.
    due: String,
    /// This client's own channel, without what all channels begin with.
    pub(super) channel: String,
    incarnation: RefCell<String>,
    /// The highest token that was seen.
    seen: Cell<u64>,
    lost: RefCell<Option<DataLost>>,
}

impl Known {
    pub(super) fn new(key: String, channel: String) -> Known {
        let due = format!("{key}:due");
        Known { key, due, channel, incarnation: RefCell::default(), seen: Cell::new(0), lost: RefCell::default() }
    }

    pub(super) fn channel(&self) -> String {
        format!("{}:{}", self.key, self.channel)
    }

    pub(super) fn events(&self) -> String {
        format!("{}:events", self.key)
    }

    /// What was lost, if anything was.
    pub(super) fn lost(&self) -> Option<DataLost> {
        self.lost.borrow().clone()
    }

    pub(super) fn learn(&self, incarnation: &str, last: u64) {
        if !incarnation.is_empty() {
            incarnation.clone_into(&mut self.incarnation.borrow_mut());
        }
        self.see(last);
    }

    fn see(&self, token: u64) {
        self.seen.set(self.seen.get().max(token));
    }

    fn note_lost(&self, how: &Lost) -> DataLost {
        let key = self.key.clone();
        let lost = match how {
            Lost::Gone => DataLost::Gone { key },
            Lost::MadeAnew => DataLost::MadeAnew { key },
            Lost::WentBack { found } => DataLost::WentBack { seen: self.seen.get(), found: *found },
        };
        self.lost.borrow_mut().get_or_insert(lost).clone()
    }

    /// What is asked, up to what belongs to it.
    fn begin(&self, mut call: Cmd, what: &str) -> Cmd {
        call.arg(2).arg(&self.key).arg(&self.due).arg(what);
        call.arg(&*self.incarnation.borrow()).arg(self.seen.get()).arg(&self.channel);
        call
    }

    fn put(&self, question: &Question, call: Cmd) -> Cmd {
        match question {
            Question::Usual(usual) => self.put_usual(usual, call),
            Question::Other(what, args) => {
                let mut call = self.begin(call, what);
                for arg in args {
                    call.arg(&arg[..]);
                }
                call
            }
        }
    }

    fn put_usual(&self, usual: &Usual, call: Cmd) -> Cmd {
        let mut call = self.begin(call, usual.name());
        usual.put(&mut call);
        call
    }

    /// Several of one session.
    fn put_several(&self, asked: &[Asked], call: Cmd) -> Cmd {
        let mut call = self.begin(call, "several");
        let low = asked.iter().map(|one| one.usual.low).min();
        call.arg(asked[0].usual.session.get()).arg(low);
        for one in asked {
            one.usual.put_briefly(&mut call);
        }
        call
    }
}

pub(super) struct Line {
    connection: MultiplexedConnection,
    pub(super) address: String,
    broken: RefCell<Option<Trouble>>,
    breaks: Notify,
    gathered: Gathered,
}

impl Line {
    pub(super) fn new(connection: MultiplexedConnection, address: String) -> Line {
        Line { connection, address, broken: RefCell::default(), breaks: Notify::new(), gathered: Gathered::default() }
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
            question => self.call_script(|call| known.put(question, call), patience).await,
        };
        let answer = answer::read(&value.map_err(|why| self.failure(why))?)?;
        match &answer {
            Answer::Granted { token } => known.see(token.get()),
            Answer::Forced { moved_to, .. } => known.see(moved_to.get()),
            Answer::Done { last } | Answer::Polled { last, .. } => known.see(*last),
            Answer::Hello { incarnation, last, .. }
            | Answer::Opened { incarnation, last, .. }
            | Answer::Watched { incarnation, last } => known.learn(incarnation, *last),
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
                let answer = self.call_script(|call| known.put_usual(&one.usual, call), CALL).await;
                // Whoever does not wait any more asks what became of it.
                drop(one.answer.send(answer));
            }
            Err(asked) => self.ask_several(&known, asked).await,
        }
    }

    async fn ask_several(&self, known: &Known, asked: Vec<Asked>) {
        let answers = match self.call_script(|call| known.put_several(&asked, call), CALL).await {
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

    async fn call_script(&self, put: impl Fn(Cmd) -> Cmd, patience: Duration) -> Result<Value, Unanswered> {
        match self.call(&put(scripts::by_hash()), patience).await {
            // After a restart, a failover or SCRIPT FLUSH the server does not know the script: nothing has happened.
            Err(Unanswered::Refused(error)) if error.code() == Some("NOSCRIPT") => {
                self.call(&put(scripts::by_text()), patience).await
            }
            value => value,
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
        let mut connection = self.connection.clone();
        match timeout(patience, connection.send_packed_command(command)).await {
            Ok(Ok(Value::ServerError(error))) => Err(self.unanswered(error.into())),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.unanswered(error)),
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
