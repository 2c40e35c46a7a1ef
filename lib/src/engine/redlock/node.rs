//! One of the servers: its line, and whether it counts.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, FromRedisValue, IntoConnectionInfo, Pipeline, RedisConnectionInfo,
    RedisError, ServerErrorKind,
};
use tokio::time::timeout;

use super::config::Config;
use super::error::{Absence, Absent};
use super::report::Facts;
use crate::BootInstant;

/// How long it may take to make a line.
const DIALLING: Duration = Duration::from_secs(2);
/// A line that has been silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(5);

/// A server, as this client knows it.
pub(super) struct Node {
    pub(super) name: Arc<str>,
    client: Client,
    /// For how long it does not count after a restart.
    quarantine: Option<Duration>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    line: Option<Line>,
    dialling: Option<Shared<LocalBoxFuture<'static, Result<Line, Absence>>>>,
    lines: u64,
    /// Which process answered last. A process that is started anew has another one.
    run_id: Option<String>,
    counts_from: Option<BootInstant>,
}

#[derive(Clone)]
struct Line {
    number: u64,
    connection: MultiplexedConnection,
    silent_since: Option<BootInstant>,
}

impl Node {
    pub(super) fn new(config: &Config, place: usize) -> Result<Rc<Node>, Absence> {
        let address = &config.nodes[place];
        let mut settings = RedisConnectionInfo::default();
        if let Some(login) = &config.login {
            settings = settings.set_username(&login.user).set_password(&login.secret);
        }
        let to = ConnectionAddr::Tcp(address.host.clone(), address.port);
        let info = to.into_connection_info().map_err(of_error)?.set_redis_settings(settings);
        Ok(Rc::new(Node {
            name: address.to_string().into(),
            client: Client::open(info).map_err(of_error)?,
            quarantine: (!config.dangerous_count_restarted).then_some(config.max_ttl),
            state: RefCell::default(),
        }))
    }

    /// Asks, and waits for so long at most. What is sent on one line is carried out in the order in which it is asked,
    /// whether it is waited for or not.
    pub(super) async fn ask<T: FromRedisValue>(
        self: &Rc<Self>,
        question: &Pipeline,
        patience: Duration,
    ) -> Result<T, Absence> {
        let mut number = None;
        let asking = async {
            let mut line = self.line().await?;
            number = Some(line.number);
            question.query_async(&mut line.connection).await.map_err(|error| {
                if error.is_unrecoverable_error() {
                    self.hang_up(line.number);
                }
                of_error(error)
            })
        };
        let answer = timeout(patience, asking).await;
        if let Some(number) = number {
            self.note_silence(number, answer.is_err());
        }
        answer.unwrap_or(Err(Absence::Silent(patience)))
    }

    /// Whether it counts when something is granted.
    pub(super) fn counts(&self) -> Result<(), Absence> {
        let counts_in = self.state.borrow().counts_from.map_or(Duration::ZERO, BootInstant::left);
        if counts_in.is_zero() { Ok(()) } else { Err(Absence::Restarted { counts_in }) }
    }

    pub(super) fn absent(&self, why: Absence) -> Absent {
        Absent { node: self.name.clone(), why }
    }

    /// The line that there is, or a new one. Who does not wait for it any more does not end the attempt.
    async fn line(self: &Rc<Self>) -> Result<Line, Absence> {
        let dialling = {
            let mut state = self.state.borrow_mut();
            if let Some(line) = &state.line {
                return Ok(line.clone());
            }
            match &state.dialling {
                Some(dialling) => dialling.clone(),
                None => {
                    let dialling = self.clone().dial().boxed_local().shared();
                    state.dialling = Some(dialling.clone());
                    tokio::task::spawn_local(dialling.clone());
                    dialling
                }
            }
        };
        dialling.await
    }

    async fn dial(self: Rc<Self>) -> Result<Line, Absence> {
        let reached = timeout(DIALLING, self.reach()).await.unwrap_or(Err(Absence::Silent(DIALLING)));
        let mut state = self.state.borrow_mut();
        state.dialling = None;
        let (connection, facts) = reached?;
        if let Some(why) = facts.unfit() {
            return Err(Absence::Unfit(why));
        }
        state.note_process(&facts, self.quarantine);
        state.lines += 1;
        let line = Line { number: state.lines, connection, silent_since: None };
        state.line = Some(line.clone());
        Ok(line)
    }

    /// Asks what it says about itself, on a line of its own.
    pub(super) async fn reach(&self) -> Result<(MultiplexedConnection, Facts), Absence> {
        // Each question has its own patience.
        let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&settings).await;
        let mut connection = connection.map_err(of_error)?;
        let said: String = redis::cmd("INFO").query_async(&mut connection).await.map_err(of_error)?;
        Ok((connection, Facts::parse(&said)))
    }

    /// Which process answers, once there is a line.
    pub(super) async fn run_id(self: &Rc<Self>) -> Result<String, Absence> {
        self.line().await?;
        Ok(self.state.borrow().run_id.clone().unwrap_or_default())
    }

    fn hang_up(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        if state.line.as_ref().is_some_and(|line| line.number == number) {
            state.line = None;
        }
    }

    /// Gives up a line on which nothing comes any more: it may lead nowhere.
    fn note_silence(&self, number: u64, is_silent: bool) {
        let mut state = self.state.borrow_mut();
        let Some(line) = state.line.as_mut().filter(|line| line.number == number) else { return };
        if !is_silent {
            line.silent_since = None;
        } else if BootInstant::now().since(*line.silent_since.get_or_insert_with(BootInstant::now)) > SILENCE {
            state.line = None;
        }
    }
}

impl State {
    /// A process that was started lately may have forgotten what another client was granted: it does not count until
    /// all of that is over. How long it runs is a matter of its wall clock, so it is believed only where nothing better
    /// is known.
    fn note_process(&mut self, facts: &Facts, quarantine: Option<Duration>) {
        let known = self.run_id.replace(facts.run_id.clone());
        let Some(quarantine) = quarantine else { return };
        let left = match known {
            Some(known) if known == facts.run_id && !known.is_empty() => return,
            Some(_) => quarantine,
            None => quarantine.saturating_sub(facts.uptime),
        };
        self.counts_from = (!left.is_zero()).then(|| BootInstant::now() + left);
    }
}

/// What an error of the client means for the node.
pub(super) fn of_error(error: RedisError) -> Absence {
    let text = shown(&error.to_string());
    match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => Absence::NotLetIn(text),
        _ if matches!(error.kind(), redis::ErrorKind::AuthenticationFailed) => Absence::NotLetIn(text),
        _ if matches!(error.kind(), redis::ErrorKind::Server(ServerErrorKind::ReadOnly)) => {
            Absence::Unfit("is a replica now, and cannot be written")
        }
        _ if error.is_io_error() || error.is_connection_dropped() => Absence::NotReached(text),
        _ => Absence::Refuses(text),
    }
}

/// What somebody else has said, fit for a terminal.
fn shown(text: &str) -> String {
    let show = |c: char| if c == '\'' || c == '"' { c.to_string() } else { c.escape_debug().to_string() };
    text.chars().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// For how long a node does not count after each of these processes has answered, one after the other.
    fn stays_out(processes: &[(&str, u64)]) -> Duration {
        let mut state = State::default();
        for (run_id, uptime) in processes {
            let said = format!("run_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\n");
            state.note_process(&Facts::parse(&said), Some(MINUTE));
        }
        state.counts_from.map_or(Duration::ZERO, BootInstant::left)
    }

    #[test]
    fn a_process_that_is_young_or_another_than_before_does_not_count() {
        let about = |seconds: u64| Duration::from_secs(seconds - 1)..=Duration::from_secs(seconds);
        assert_eq!(stays_out(&[("a", 60)]), Duration::ZERO);
        assert!(about(10).contains(&stays_out(&[("a", 50)])));
        assert_eq!(stays_out(&[("a", 60), ("a", 90)]), Duration::ZERO);
        // How old it says to be is not believed: its clock may have jumped.
        assert!(about(60).contains(&stays_out(&[("a", 60), ("b", 3600)])));
        assert!(about(60).contains(&stays_out(&[("", 60), ("", 3600)])));
        // A broken line changes nothing.
        assert!(about(60).contains(&stays_out(&[("a", 60), ("b", 0), ("b", 1)])));
    }
}
