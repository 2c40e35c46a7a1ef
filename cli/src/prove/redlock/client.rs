//! One of the two clients that share the lock: a process that carries out requests, one after the other.

use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use palisade::{EfficiencyGuard, LockGuard, Palisade, Standing};

use super::wire::{ClientConfig, Reply, Request};
use crate::outcome::Failure;
use crate::prove::child;
use crate::prove::fencing::Fencing;
use crate::prove::store::{self, Access, Store, StoreError};

/// A client's role.
const CLIENT: &str = "_client";

/// Returns the command that starts a client.
pub(super) fn command() -> Command {
    let mut command = child::self_command(CLIENT);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Runs the client if this process was started as one.
pub(super) fn run_as_child(args: &[OsString]) -> Option<ExitCode> {
    if let Err(code) = child::enter_role(CLIENT, args)? {
        return Some(code);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(run()));
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The parent process reports it to the user.
            let _ = send(&Reply::Failed(failure.message().unwrap_or_default()));
            ExitCode::from(failure.exit_code())
        }
    })
}

/// The guard of the lock, with or without a token.
enum Guard {
    Fenced(LockGuard),
    Efficient(EfficiencyGuard),
}

struct Client<'s> {
    config: ClientConfig,
    palisade: Palisade,
    store: &'s dyn Store,
    guard: Option<Guard>,
    access: Option<Access<'s>>,
    number: u64,
}

async fn run() -> Result<(), Failure> {
    let mut lines = io::BufReader::new(io::stdin()).lines();
    let Some(first) = lines.next() else { return Ok(()) };
    let config: ClientConfig = serde_json::from_str(&first?).map_err(io::Error::from)?;
    let store = store::open(&config.resource, &config.name).await?;
    let palisade = crate::prove::connect(&config.engine, Duration::from_millis(config.ttl_ms)).await?;
    let mut client = Client { config, palisade, store: &*store, guard: None, access: None, number: 0 };
    send(&Reply::Ready)?;
    // The keeper thread renews the session while this thread blocks on its next line.
    for line in lines {
        let request = serde_json::from_str(&line?).map_err(io::Error::from)?;
        send(&client.handle(request).await)?;
    }
    Ok(())
}

impl Client<'_> {
    async fn handle(&mut self, request: Request) -> Reply {
        match request {
            Request::Acquire { within_ms } => match self.acquire(Duration::from_millis(within_ms)).await {
                Ok(reply) => reply,
                Err(failure) => Reply::Failed(failure.message().unwrap_or_default()),
            },
            Request::Read => match &self.access {
                Some(access) => match access.read().await {
                    Ok(number) => {
                        self.number = number;
                        Reply::Read(number)
                    }
                    Err(error) => reply_to_error(error),
                },
                None => Reply::Failed("it has no lock".to_owned()),
            },
            Request::Inspect => self.inspect(),
            Request::Write => match &mut self.access {
                Some(access) => match access.write(self.number + 1).await {
                    Ok(()) => Reply::Wrote(self.number + 1),
                    Err(error) => reply_to_error(error),
                },
                None => Reply::Failed("it has no lock".to_owned()),
            },
            Request::Release => self.release().await,
        }
    }

    async fn acquire(&mut self, within: Duration) -> Result<Reply, Failure> {
        let lock = self.palisade.lock(&self.config.lock);
        let token = match self.config.fencing {
            Fencing::None => {
                let Some(guard) = lock.efficiency().acquire_within(within).await? else {
                    return Ok(Reply::NotGranted);
                };
                self.guard = Some(Guard::Efficient(guard));
                self.access = Some(Access::Plain(self.store));
                None
            }
            fencing => {
                let Some(guard) = lock.acquire_within(within).await? else { return Ok(Reply::NotGranted) };
                let token = guard.token()?;
                self.access = Some(Access::begin(self.store, fencing, token).await?);
                self.guard = Some(Guard::Fenced(guard));
                Some(token.get())
            }
        };
        Ok(Reply::Granted { token })
    }

    fn inspect(&self) -> Reply {
        let standing = match &self.guard {
            Some(Guard::Fenced(guard)) => guard.standing(),
            Some(Guard::Efficient(guard)) => guard.standing(),
            None => return Reply::Lost("it has none".to_owned()),
        };
        match standing {
            Standing::Held => Reply::Holds { is_in_jeopardy: false },
            Standing::Jeopardy { .. } => Reply::Holds { is_in_jeopardy: true },
            Standing::Lost(loss) => Reply::Lost(loss.to_string()),
        }
    }

    async fn release(&mut self) -> Reply {
        let released = match self.guard.take() {
            Some(Guard::Fenced(guard)) => guard.release().await,
            Some(Guard::Efficient(guard)) => guard.release().await,
            None => Ok(()),
        };
        match released {
            Ok(()) => Reply::Released,
            Err(error) => match error.loss() {
                Some(loss) => Reply::Lost(loss.to_string()),
                None => Reply::Failed(error.to_string()),
            },
        }
    }
}

fn reply_to_error(error: StoreError) -> Reply {
    match error {
        StoreError::Refused(message) => Reply::Refused(message),
        error => Reply::Failed(error.to_string()),
    }
}

fn send(reply: &Reply) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(reply)?)?;
    out.flush()
}
