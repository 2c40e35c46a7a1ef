//! One line after the other: when one breaks, the next takes up what lasts. Behind what Redis says unasked, a poll: a
//! push can be lost together with its connection, and somebody has to look at the clock.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::SessionEnd;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::{Answer, Lost};
use super::config::Topology;
use super::dial::Dialer;
use super::error::{DataLost, Trouble};
use super::known::Known;
use super::lasting::{Lasting, WaitKey};
use super::line::{CALL, Line};
use super::push;
use super::question::Question;
use super::reply::Unexpected;
use crate::engine::Failure;
use crate::engine::lines::{Lines, Pause, patience};

/// Who waits asks again after so long at most, and at least.
const LONGEST_POLL: Duration = Duration::from_secs(1);
const SHORTEST_POLL: Duration = Duration::from_millis(5);
/// For how long watchers are told what happens, and when they ask for more.
const WATCH_LEASE: Duration = Duration::from_secs(30);
const WATCH_RENEWAL: Duration = Duration::from_secs(10);

pub(super) struct Connector {
    pub(super) dialer: Dialer,
    pub(super) known: Rc<Known>,
    lasting: Rc<Lasting>,
    lines: Lines<Line, Trouble>,
    poll_at: Cell<Instant>,
    sooner: Notify,
    watch_until: Cell<Option<Instant>>,
}

impl Connector {
    pub(super) fn new(dialer: Dialer, known: Known, lasting: Rc<Lasting>) -> Connector {
        Connector {
            dialer,
            known: Rc::new(known),
            lasting,
            lines: Lines::new(),
            poll_at: Cell::new(Instant::now() + LONGEST_POLL),
            sooner: Notify::new(),
            watch_until: Cell::new(None),
        }
    }

    /// The line, if there is one.
    pub(super) fn up(&self) -> Option<Rc<Line>> {
        self.lines.up()
    }

    /// The line, or why there is none.
    pub(super) async fn line(&self) -> Result<Rc<Line>, Failure> {
        match self.known.lost() {
            Some(lost) => Err(lost.failure()),
            None => self.lines.line(|why| why.failure(false)).await,
        }
    }

    /// Asks the rules on whatever line there is.
    pub(super) async fn ask(&self, question: &Question, patience: Duration) -> Result<Answer, Failure> {
        let line = self.line().await?;
        self.ask_on(&line, question, patience).await
    }

    pub(super) async fn ask_on(
        &self,
        line: &Rc<Line>,
        question: &Question,
        patience: Duration,
    ) -> Result<Answer, Failure> {
        if let Some(lost) = self.known.lost() {
            return Err(lost.failure());
        }
        let answer = line.ask(&self.known, question, patience).await;
        match self.known.lost() {
            Some(lost) if answer.is_err() => Err(self.end_all(&lost)),
            _ => answer,
        }
    }

    /// Redis has lost data: nothing that this client held is certain any more.
    pub(super) fn lost(&self, how: &Lost) -> Failure {
        self.end_all(&self.known.note_lost(how))
    }

    fn end_all(&self, lost: &DataLost) -> Failure {
        tracing::error!(%lost, "locks are lost");
        self.lasting.data_lost(&lost.to_string(), || lost.failure());
        lost.failure()
    }

    pub(super) fn patience(&self, ttl: Option<Duration>) -> Duration {
        patience(ttl, CALL)
    }

    /// Keeps a line, for ever.
    pub(super) async fn run(self: Rc<Self>) {
        let mut pause = Pause::new();
        loop {
            let lost = match self.keep_line().await {
                Ok(trouble) => {
                    tracing::warn!(%trouble, "the line to Redis is lost");
                    pause.after_line();
                    trouble
                }
                Err(trouble) => {
                    tracing::debug!(%trouble, "no line to Redis");
                    trouble
                }
            };
            if let Some(trouble) = self.look_elsewhere(lost) {
                if trouble.is_for_good() {
                    pause.for_good();
                    self.lasting.end_waits(|| trouble.failure(true));
                }
                self.lines.failed(trouble);
            }
            pause.pass(self.lasting.shortest_ttl()).await;
        }
    }

    /// Where to look next; what is in the way if nobody has said that.
    fn look_elsewhere(&self, trouble: Trouble) -> Option<Trouble> {
        match trouble {
            Trouble::Moved { to, .. } if self.dialer.config.topology == Topology::Cluster => {
                self.dialer.follow(&to);
                None
            }
            Trouble::Moved { address, .. } => Some(Trouble::IsCluster { address }),
            trouble => Some(trouble),
        }
    }

    /// Makes a line and keeps it until it breaks; an error says why there was none.
    async fn keep_line(self: &Rc<Self>) -> Result<Trouble, Trouble> {
        let patience = self.patience(self.lasting.shortest_ttl());
        let (pushes, mut pushed) = mpsc::unbounded_channel();
        let address = self.dialer.config.nodes[0].address();
        let silent = |_| Trouble::Silent { address: address.clone(), waited: patience };
        let dialled = timeout(patience, self.dialer.dial(pushes)).await.map_err(silent)??;
        let broken = Trouble::Broken { address: dialled.address.clone(), why: "it was closed".to_owned() };
        let line = Rc::new(Line::new(dialled.connection, dialled.address));
        let mut driving = pin!(dialled.driver);
        tokio::select! {
            () = &mut driving => return Err(broken),
            resumed = timeout(patience, self.resume(&line)) => resumed.map_err(silent)??,
        }
        self.take_up(&line);
        let trouble = loop {
            tokio::select! {
                biased;
                () = &mut driving => break broken,
                trouble = line.broken() => break trouble,
                Some(push) = pushed.recv() => self.heed(push),
                () = self.poll_is_due() => drop(spawn_local(self.clone().poll(line.clone()))),
            }
        };
        self.lines.unset();
        Ok(trouble)
    }

    /// Takes up this client's channel, sessions and watches.
    async fn resume(&self, line: &Rc<Line>) -> Result<(), Trouble> {
        let trouble = |failure: Failure| match self.known.lost() {
            Some(lost) => Trouble::DataLost(lost),
            None => match line.trouble() {
                Some(trouble) => trouble,
                None => match failure {
                    Failure::Denied(why) => Trouble::NotLetIn { address: line.address.clone(), why },
                    Failure::Unavailable(why) if !why.is_retryable => Trouble::Unfit { why: why.what },
                    failure => Trouble::Broken { address: line.address.clone(), why: failure.to_string() },
                },
            },
        };
        line.subscribe(&self.known.channel()).await.map_err(trouble)?;
        let sessions = self.lasting.sessions().into_iter().map(|session| (session, self.lasting.holdings(session)));
        let sessions: Vec<_> = sessions.collect();
        self.known.note_run(line.run().await.map_err(trouble)?);
        let hello = Question::hello(&self.known.run(), &self.known.known_run(), &sessions);
        let hello = self.ask_on(line, &hello, CALL).await.map_err(trouble)?;
        let Answer::Hello { sessions: found, .. } = hello else {
            return Err(trouble(unexpected(&hello)));
        };
        for ((session, _), held) in sessions.iter().zip(found) {
            match held {
                Some(held) => self.lasting.end_missing(*session, |token| held.contains(&token)),
                None => self.lasting.session_ended(*session, SessionEnd::Expired),
            }
        }
        self.watch_until.set(None);
        if self.lasting.is_watching() {
            self.watch_on(line).await.map_err(trouble)?;
            self.lasting.note_missed();
        }
        Ok(())
    }

    /// From now on, everything is asked on this line.
    fn take_up(self: &Rc<Self>, line: &Rc<Line>) {
        self.lines.set(line.clone());
        for (key, question) in self.lasting.waits(|asked| asked.question.clone()) {
            self.lasting.number(key.0, |numbers| numbers.repeat(key.1));
            spawn_local(self.clone().ask_again(line.clone(), key, question));
        }
    }

    async fn ask_again(self: Rc<Self>, line: Rc<Line>, key: WaitKey, question: Question) {
        let answer = self.ask_on(&line, &question, CALL).await;
        self.waited(&line, key, answer);
    }

    /// What is said of a request that waits. If it is nothing, the next line asks again.
    pub(super) fn waited(&self, line: &Line, key: WaitKey, answer: Result<Answer, Failure>) {
        let outcome = match answer {
            Ok(Answer::Queued { due_ms }) => return self.poll_in(due_ms),
            Ok(Answer::Granted { token }) => Ok(token),
            Ok(Answer::Ended) => return self.lasting.session_ended(key.0, SessionEnd::Expired),
            Ok(Answer::Refused(refusal)) => Err(refusal.into()),
            Ok(other) => Err(unexpected(&other)),
            Err(_) if line.is_broken() => return,
            Err(failure) => Err(failure),
        };
        self.lasting.settle(key, outcome);
    }

    fn heed(&self, push: PushInfo) {
        let (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) =
            (push.kind, &push.data[..])
        else {
            return;
        };
        let heeded = if channel.ends_with(b":events") {
            push::events(message).map(|events| self.lasting.watched(&events))
        } else {
            push::read(&String::from_utf8_lossy(message)).map(|push| self.lasting.heed(push))
        };
        if let Err(Unexpected(what)) = heeded {
            tracing::warn!(what, "Redis says something that this build does not understand");
        }
    }

    /// Begins to watch, or goes on with it.
    pub(super) async fn watch_on(&self, line: &Rc<Line>) -> Result<(), Failure> {
        let until = Instant::now() + WATCH_RENEWAL;
        if self.watch_until.get().is_none() {
            line.subscribe(&self.known.events()).await?;
        }
        let lease_ms = u64::try_from(WATCH_LEASE.as_millis()).unwrap_or(u64::MAX);
        self.ask_on(line, &Question::watch(lease_ms), CALL).await?;
        self.watch_until.set(Some(until));
        self.poll_in(Some(0));
        Ok(())
    }

    /// So many milliseconds from now there may be something to see.
    fn poll_in(&self, due_ms: Option<u64>) {
        let due = due_ms.map_or(LONGEST_POLL, |ms| Duration::from_millis(ms.saturating_add(1)));
        let at = Instant::now() + due.clamp(SHORTEST_POLL, LONGEST_POLL);
        if at < self.poll_at.get() {
            self.poll_at.set(at);
            self.sooner.notify_one();
        }
    }

    async fn poll_is_due(&self) {
        loop {
            tokio::select! {
                () = sleep_until(self.poll_at.get()) => break,
                () = self.sooner.notified() => {}
            }
        }
        self.poll_at.set(Instant::now() + LONGEST_POLL);
    }

    /// Asks what became of everything that waits here, and looks at the clock for everybody.
    async fn poll(self: Rc<Self>, line: Rc<Line>) {
        let (waits, is_watching) = (self.lasting.waiting(), self.lasting.is_watching());
        if waits.is_empty() && !is_watching {
            return;
        }
        if is_watching && self.watch_until.get().is_some_and(|until| until <= Instant::now()) {
            // If it fails, the next poll tries again.
            drop(self.watch_on(&line).await);
        }
        let answer = self.ask_on(&line, &Question::poll(&waits), CALL).await;
        let Ok(Answer::Polled { due_ms, states, .. }) = answer else { return };
        for (key, state) in waits.into_iter().zip(states) {
            match state {
                Answer::Queued { .. } | Answer::Unknown => {}
                state => self.waited(&line, key, Ok(state)),
            }
        }
        self.poll_in(due_ms);
    }
}

pub(super) fn unexpected(answer: &Answer) -> Failure {
    Unexpected(format!("{answer:?}")).into()
}
