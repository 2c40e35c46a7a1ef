//! One line after the other: when one breaks, the next takes up what lasts.

use std::collections::HashSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Refusal, SessionEnd, SessionId};
use redis_protocol::resp3::types::BytesFrame;
use tokio::time::{sleep, timeout};

use super::command::Command;
use super::dial::Dialer;
use super::error::{Denied, Trouble, shown};
use super::lasting::Lasting;
use super::line::{CALL, Line};
use super::reply::{self, Unexpected};
use super::{Config, Login};
use crate::engine::Failure;
use crate::engine::lines::{InTheWay, Lines, SHORTEST_PAUSE, patience};

pub(super) struct Connector {
    dialer: Dialer,
    lasting: Rc<Lasting>,
    lines: Lines<Line, Trouble>,
}

impl Connector {
    pub(super) fn new(config: Config, lasting: Rc<Lasting>) -> Connector {
        Connector { dialer: Dialer::new(config), lasting, lines: Lines::new() }
    }

    fn address(&self) -> String {
        self.dialer.config.address()
    }

    /// The line, if there is one.
    pub(super) fn up(&self) -> Option<Rc<Line>> {
        self.lines.up()
    }

    /// The line, or why there is none.
    pub(super) async fn line(&self) -> Result<Rc<Line>, Failure> {
        self.lines.line(|why| why.failure(false)).await
    }

    pub(super) fn patience(&self, ttl: Option<Duration>) -> Duration {
        patience(ttl, CALL)
    }

    /// Keeps a line, for ever.
    pub(super) async fn run(self: Rc<Self>) {
        let attempt = async || {
            let ended = self.keep_line().await;
            if ended.as_ref().is_err_and(Trouble::is_for_good) {
                self.dialer.forget_files();
            }
            ended
        };
        self.lines.keep("the service", &self.lasting, attempt, |why| why.failure(true)).await;
    }

    /// Makes a line and keeps it until it breaks; an error says why there was none.
    async fn keep_line(&self) -> Result<Trouble, Trouble> {
        let patience = self.patience(self.lasting.shortest_ttl());
        let silent = |_| Trouble::Silent { address: self.address(), waited: patience };
        let stream = timeout(patience, self.dialer.dial()).await.map_err(silent)??;
        let line = Rc::new(Line::new(self.address(), self.lasting.clone()));
        let mut driving = pin!(line.drive(stream));
        tokio::select! {
            trouble = &mut driving => return Err(trouble),
            resumed = timeout(patience, self.resume(&line)) => resumed.map_err(silent)??,
        }
        self.take_up(&line);
        let trouble = driving.await;
        self.lines.unset();
        Ok(trouble)
    }

    /// Introduces this client and takes up its sessions and watches.
    async fn resume(&self, line: &Line) -> Result<(), Trouble> {
        self.greet(line).await?;
        let attach = |session| (session, line.ask(&Command::attach(session), CALL));
        let attached: Vec<_> = self.lasting.sessions().into_iter().map(attach).collect();
        let watch = |prefix: String| (line.ask(&Command::watch(&prefix), CALL), prefix);
        let watched: Vec<_> = self.lasting.watched().into_iter().map(watch).collect();
        for (session, answer) in attached {
            let answer = self.insist(line, &Command::attach(session), answer).await?;
            self.attached(session, answer)?;
        }
        for (answer, prefix) in watched {
            match self.insist(line, &Command::watch(&prefix), answer).await? {
                Ok(_) => {}
                Err(denied @ Denied::NotAllowed(_)) => {
                    tracing::warn!(%denied, "a watch ends");
                    self.lasting.end_watch(&prefix);
                }
                Err(denied) => return Err(self.garbled(denied.to_string())),
            }
        }
        Ok(())
    }

    /// The answer of a service that leads: one that has just been started leads in a moment.
    async fn insist(
        &self,
        line: &Line,
        command: &Command,
        answer: impl Future<Output = Result<BytesFrame, Failure>>,
    ) -> Result<Result<BytesFrame, Denied>, Trouble> {
        let mut answer = reply::accepted(self.heard(answer.await)?);
        while let Err(Denied::NotLeading(_)) = answer {
            sleep(SHORTEST_PAUSE).await;
            answer = reply::accepted(self.heard(line.ask(command, CALL).await)?);
        }
        Ok(answer)
    }

    async fn greet(&self, line: &Line) -> Result<(), Trouble> {
        let login = self.dialer.config.login.as_ref();
        let secret = login.map(|login| login.secret.reveal()).transpose();
        let secret = secret.map_err(|obstacle| self.dialer.barred(obstacle))?;
        let login_as = login.zip(secret.as_deref()).map(|(login, secret)| (login.user.as_str(), secret));
        let hello = line.ask(&Command::hello(login_as), CALL);
        let detail = line.ask(&Command::detail(), CALL);
        let not_ours = |what: String| Trouble::NotOurs { address: self.address(), what };
        let hello = match reply::accepted(self.heard(hello.await)?) {
            Ok(hello) => hello,
            Err(denied) => return Err(self.turned_away(denied, login)),
        };
        let server = reply::field(&hello, "server").and_then(reply::text);
        match server {
            Ok("palisade") => {}
            Ok(other) => return Err(not_ours(format!("it calls itself '{}'", other.escape_debug()))),
            Err(Unexpected(what)) => return Err(not_ours(what)),
        }
        reply::accepted(self.heard(detail.await)?).map(drop).map_err(|denied| self.garbled(denied.to_string()))
    }

    /// Why the service does not greet.
    fn turned_away(&self, denied: Denied, login: Option<&Login>) -> Trouble {
        let address = self.address();
        let what = match (denied, login) {
            (Denied::NotNow(what), _) => return Trouble::NotNow { address, what },
            (Denied::NotLetIn(_), None) => {
                "it wants to know who asks; say who in the URL, as in palisade://user@host:port, with the user's secret \
                 in the environment variable PALISADE_SECRET or in a file that ?secret_file=FILE names"
                    .to_owned()
            }
            (Denied::NotLetIn(_), Some(Login { user, .. })) => format!(
                "it knows no user '{}' with this secret; look at the user's name, and at the secret in the URL, in \
                 PALISADE_SECRET or in the secret_file",
                shown(user)
            ),
            (Denied::NotAllowed(said), _) => shown(&said),
            (Denied::Misunderstood(said), Some(_)) if said.starts_with("BADARG no users") => {
                "it has no users; leave the user out of the URL".to_owned()
            }
            (denied, _) => return Trouble::NotOurs { address, what: format!("it refuses HELLO: {denied}") },
        };
        Trouble::NotLetIn { address, what }
    }

    /// What was heard. Why nothing was, the line itself says.
    fn heard(&self, answer: Result<BytesFrame, Failure>) -> Result<BytesFrame, Trouble> {
        answer.map_err(|_| Trouble::Closed { address: self.address() })
    }

    fn garbled(&self, what: String) -> Trouble {
        Trouble::Garbled { address: self.address(), what }
    }

    /// Takes up a session, as it stands.
    fn attached(&self, session: SessionId, answer: Result<BytesFrame, Denied>) -> Result<(), Trouble> {
        let held = |frame: &BytesFrame| -> Result<HashSet<_>, Unexpected> {
            reply::items(reply::field(frame, "held")?)?.iter().map(reply::token).collect()
        };
        match answer {
            Ok(frame) => {
                let held = held(&frame).map_err(|Unexpected(what)| self.garbled(what))?;
                self.lasting.end_missing(session, |token| held.contains(&token));
                Ok(())
            }
            Err(Denied::ByRules(Refusal::NoSuchSession { .. })) => {
                self.lasting.session_ended(session, SessionEnd::Expired);
                Ok(())
            }
            // It was another user's, or nobody's. It cannot be kept alive, and is lost at its time.
            Err(denied @ Denied::NotAllowed(_)) => {
                tracing::warn!(%denied, session = session.get(), "a session cannot be taken up");
                Ok(())
            }
            Err(denied) => Err(self.garbled(denied.to_string())),
        }
    }

    /// From now on this is the line. Nothing can begin to wait between the repeats and that.
    fn take_up(&self, line: &Rc<Line>) {
        for (key, command) in self.lasting.waits(Command::clone) {
            line.wait(key, &command);
        }
        self.lasting.note_missed();
        self.lines.set(line.clone());
    }
}
