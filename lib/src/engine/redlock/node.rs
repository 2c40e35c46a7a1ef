//! One of the servers: its connection, and whether its vote counts.

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
use crate::engine::remote::printable;

/// The longest time that connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection without a reply for this long is replaced.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// A server.
pub(super) struct Node {
    pub(super) name: Arc<str>,
    client: Client,
    /// The time after a restart during which the node does not count.
    quarantine: Option<Duration>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    connecting: Option<Shared<LocalBoxFuture<'static, Result<Connection, Absence>>>>,
    connections: u64,
    /// The run id of the server that answered last. It changes with each start.
    run_id: Option<String>,
    counts_from: Option<BootInstant>,
}

#[derive(Clone)]
struct Connection {
    number: u64,
    redis: MultiplexedConnection,
    silent_since: Option<BootInstant>,
}

impl Node {
    pub(super) fn new(config: &Config, index: usize) -> Result<Rc<Node>, Absence> {
        let address = &config.nodes[index];
        let mut settings = RedisConnectionInfo::default();
        if let Some(login) = &config.login {
            let secret = login.secret.reveal().map_err(|error| Absence::NotLetIn(error.to_string()))?;
            settings = settings.set_username(&login.user).set_password(secret);
        }
        let target = ConnectionAddr::Tcp(address.host.clone(), address.port);
        let info = target.into_connection_info().map_err(classify)?.set_redis_settings(settings);
        Ok(Rc::new(Node {
            name: address.to_string().into(),
            client: Client::open(info).map_err(classify)?,
            quarantine: (!config.dangerous_count_restarted).then_some(config.max_ttl),
            state: RefCell::default(),
        }))
    }

    /// Sends commands and waits for the replies. The node runs the commands of one connection in the order in which they
    /// were sent, also after a time-out.
    pub(super) async fn call<T: FromRedisValue>(
        self: &Rc<Self>,
        commands: &Pipeline,
        call_timeout: Duration,
    ) -> Result<T, Absence> {
        let mut number = None;
        let calling = async {
            let mut connection = self.connection().await?;
            number = Some(connection.number);
            commands.query_async(&mut connection.redis).await.map_err(|error| {
                if error.is_unrecoverable_error() {
                    self.drop_connection(connection.number);
                }
                classify(error)
            })
        };
        let answer = timeout(call_timeout, calling).await;
        if let Some(number) = number {
            self.note_silence(number, answer.is_err());
        }
        answer.unwrap_or(Err(Absence::Silent(call_timeout)))
    }

    /// Fails while the node's vote does not count in a grant.
    pub(super) fn counts(&self) -> Result<(), Absence> {
        let counts_in = self.state.borrow().counts_from.map_or(Duration::ZERO, BootInstant::left);
        if counts_in.is_zero() { Ok(()) } else { Err(Absence::Restarted { counts_in }) }
    }

    pub(super) fn absent(&self, why: Absence) -> Absent {
        Absent { node: self.name.clone(), why }
    }

    /// Returns the connection, or opens one. The attempt continues if the caller is dropped.
    async fn connection(self: &Rc<Self>) -> Result<Connection, Absence> {
        let connecting = {
            let mut state = self.state.borrow_mut();
            if let Some(connection) = &state.connection {
                return Ok(connection.clone());
            }
            match &state.connecting {
                Some(connecting) => connecting.clone(),
                None => {
                    let connecting = self.clone().connect().boxed_local().shared();
                    state.connecting = Some(connecting.clone());
                    tokio::task::spawn_local(connecting.clone());
                    connecting
                }
            }
        };
        connecting.await
    }

    async fn connect(self: Rc<Self>) -> Result<Connection, Absence> {
        let reached = timeout(CONNECT_TIMEOUT, self.reach()).await.unwrap_or(Err(Absence::Silent(CONNECT_TIMEOUT)));
        let mut state = self.state.borrow_mut();
        state.connecting = None;
        let (redis, facts) = reached?;
        if let Some(why) = facts.unfit() {
            return Err(Absence::Unfit(why));
        }
        state.note_process(&facts, self.quarantine);
        state.connections += 1;
        let connection = Connection { number: state.connections, redis, silent_since: None };
        state.connection = Some(connection.clone());
        Ok(connection)
    }

    /// Opens a connection and reads the node's INFO.
    pub(super) async fn reach(&self) -> Result<(MultiplexedConnection, Facts), Absence> {
        // Each call has its own time-out.
        let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&settings).await;
        let mut connection = connection.map_err(classify)?;
        let info: String = redis::cmd("INFO").query_async(&mut connection).await.map_err(classify)?;
        Ok((connection, Facts::parse(&info)))
    }

    /// Returns the node's run id, once there is a connection.
    pub(super) async fn run_id(self: &Rc<Self>) -> Result<String, Absence> {
        self.connection().await?;
        Ok(self.state.borrow().run_id.clone().unwrap_or_default())
    }

    fn drop_connection(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        if state.connection.as_ref().is_some_and(|connection| connection.number == number) {
            state.connection = None;
        }
    }

    /// Drops a connection without a reply for too long.
    fn note_silence(&self, number: u64, is_silent: bool) {
        let mut state = self.state.borrow_mut();
        let Some(connection) = state.connection.as_mut().filter(|connection| connection.number == number) else {
            return;
        };
        if !is_silent {
            connection.silent_since = None;
        } else if BootInstant::now().since(*connection.silent_since.get_or_insert_with(BootInstant::now))
            > LONGEST_SILENCE
        {
            state.connection = None;
        }
    }
}

impl State {
    /// Excludes a server that was started recently: it may have lost the keys of other clients. It counts again when all of these
    /// have expired. Its uptime depends on its wall clock, so it is used only if no earlier run id is known.
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

/// Classifies an error of the driver.
pub(super) fn classify(error: RedisError) -> Absence {
    let text = printable(&error.to_string());
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

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// The time for which a node does not count after each of these processes has answered in turn.
    fn time_excluded(processes: &[(&str, u64)]) -> Duration {
        let mut state = State::default();
        for (run_id, uptime) in processes {
            let info = format!("run_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\n");
            state.note_process(&Facts::parse(&info), Some(MINUTE));
        }
        state.counts_from.map_or(Duration::ZERO, BootInstant::left)
    }

    #[test]
    fn a_restarted_or_replaced_process_does_not_count() {
        // Some of the time may have passed before it is read.
        let excludes = |seconds: u64, processes: &[(&str, u64)]| {
            let (began_at, expected) = (BootInstant::now(), Duration::from_secs(seconds));
            let excluded = time_excluded(processes);
            excluded <= expected && excluded + BootInstant::now().since(began_at) >= expected
        };
        assert_eq!(time_excluded(&[("a", 60)]), Duration::ZERO);
        assert!(excludes(10, &[("a", 50)]));
        assert_eq!(time_excluded(&[("a", 60), ("a", 90)]), Duration::ZERO);
        // Its uptime is not used: its clock may have jumped.
        assert!(excludes(60, &[("a", 60), ("b", 3600)]));
        assert!(excludes(60, &[("", 60), ("", 3600)]));
        // A broken connection changes nothing.
        assert!(excludes(60, &[("a", 60), ("b", 0), ("b", 1)]));
    }
}
