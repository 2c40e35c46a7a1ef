//! The three schedules, on real servers and with two real processes.

use std::path::Path;
use std::time::{Duration, Instant};

use super::client_process::ClientProcess;
use super::servers::{Clock, Kind, Server, free_address};
use super::timeline::{Actor, Protection, Schedule, StepKind, Timeline};
use super::wire::{ClientConfig, Reply, Request};
use crate::outcome::Failure;
use crate::prove::scheme::Scheme;
use crate::prove::store::{self, Store};
use crate::prove::{lock, unused_name};

/// The server that something happens to.
const THIRD: usize = 2;

/// Servers that have been started, and what is to happen on them.
pub(super) struct Setup {
    schedule: Schedule,
    kept: Protection,
    ttl: Duration,
    servers: Vec<Server>,
    began: Instant,
}

impl Setup {
    /// Starts its servers. Nothing else happens yet, so that servers can grow old enough to count.
    pub(super) async fn start(
        schedule: Schedule,
        kept: Protection,
        ttl: Duration,
        folder: &Path,
    ) -> Result<Setup, Failure> {
        let (kind, count) = match kept {
            Protection::Fenced => (Kind::Palisade, 1),
            Protection::Redlock | Protection::RedlockAsPublished => (Kind::Redis, 5),
        };
        let mut servers = Vec::new();
        for number in 0..count {
            let folder = folder.join(format!("{schedule:?}-{kept:?}-{number}"));
            std::fs::create_dir_all(&folder)?;
            let jumps = schedule == Schedule::Clock && number == THIRD.min(count - 1);
            let clock = if jumps { Some(Clock::new(&folder)?) } else { None };
            servers.push(Server::start(kind, folder, clock).await?);
        }
        Ok(Setup { schedule, kept, ttl, servers, began: Instant::now() })
    }

    /// The engine as one of the two sees it. Except where the point is another, A does not reach the last two servers.
    fn engine(&self, who: Actor) -> Result<String, Failure> {
        if self.kept == Protection::Fenced {
            return Ok(format!("palisade://{}", self.servers[0].address));
        }
        let mut nodes: Vec<_> = self.servers.iter().map(|server| server.address).collect();
        if who == Actor::A && self.schedule != Schedule::Pause {
            for node in &mut nodes[THIRD + 1..] {
                *node = free_address()?;
            }
        }
        let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let counts = if self.kept == Protection::RedlockAsPublished { "&dangerous_count_restarted=yes" } else { "" };
        Ok(format!("redlock://{}?max_ttl={}ms{counts}", nodes.join(","), self.ttl.as_millis()))
    }

    /// Runs the schedule.
    pub(super) async fn run(mut self, folder: &Path) -> Result<Timeline, Failure> {
        if self.kept == Protection::Redlock {
            // Servers say how old they are in whole seconds.
            let old_enough = self.began + self.ttl + Duration::from_secs(1);
            tokio::time::sleep_until(old_enough.into()).await;
        }
        let name = unused_name();
        let resource = format!("file:{}", folder.display());
        let scheme = if self.kept == Protection::Fenced { Scheme::Strict } else { Scheme::None };
        let store: Box<dyn Store> = store::open(&resource, &name).await?;
        store.make(scheme).await?;
        let config = |engine| ClientConfig {
            engine,
            lock: lock(&name),
            ttl_ms: self.ttl.as_millis() as u64,
            resource: resource.clone(),
            name: name.clone(),
            scheme,
        };
        let a = ClientProcess::start(&config(self.engine(Actor::A)?)).await?;
        let b = ClientProcess::start(&config(self.engine(Actor::B)?)).await?;
        let mut scenario = Scenario {
            timeline: Timeline::new(self.schedule, self.kept),
            step: self.ttl / 16,
            ttl: self.ttl,
            clients: [a, b],
        };
        scenario.run(&mut self.servers).await?;
        Ok(scenario.timeline)
    }
}

struct Scenario {
    timeline: Timeline,
    /// Between two things that happen.
    step: Duration,
    ttl: Duration,
    clients: [ClientProcess; 2],
}

impl Scenario {
    async fn run(&mut self, servers: &mut [Server]) -> Result<(), Failure> {
        if !self.acquire(Actor::A, self.ttl * 10).await? {
            return Err(Failure::Unavailable(
                "the first client does not get the lock, although no client holds it".to_owned(),
            ));
        }
        self.perform(Actor::A, Request::Read).await?;
        self.inject_fault(servers).await?;
        let patience = if self.timeline.schedule == Schedule::Pause { self.ttl * 5 } else { self.ttl / 3 };
        match self.acquire(Actor::B, patience).await? {
            true => self.overlapping().await?,
            false => self.sequential().await?,
        }
        let number = match self.clients[1].ask(Request::Read).await? {
            Reply::Read(number) => number,
            reply => return Err(unexpected(&reply)),
        };
        self.timeline.conclude(number);
        Ok(())
    }

    /// Injects the fault of the schedule.
    async fn inject_fault(&mut self, servers: &mut [Server]) -> Result<(), Failure> {
        let which = THIRD.min(servers.len() - 1);
        let its = if servers.len() > 1 { "server 3" } else { "the service" };
        let (mark, what) = match self.timeline.schedule {
            Schedule::Clock => {
                tokio::time::sleep(self.step).await;
                servers[which].jump()?;
                (StepKind::Fault, format!("the clock of {its} jumps an hour ahead"))
            }
            Schedule::Restart => {
                tokio::time::sleep(self.step).await;
                servers[which].restart().await?;
                let empty = if servers.len() > 1 { ", empty" } else { "" };
                (StepKind::Fault, format!("{its} is killed and started again{empty}"))
            }
            Schedule::Pause => {
                self.perform(Actor::A, Request::Inspect).await?;
                self.clients[0].stop()?;
                (StepKind::Stopped, "A is stopped".to_owned())
            }
        };
        self.timeline.note(Actor::Fault, mark, what);
        Ok(())
    }

    /// B has been granted what A believes to hold.
    async fn overlapping(&mut self) -> Result<(), Failure> {
        let is_paused = self.timeline.schedule == Schedule::Pause;
        self.perform(Actor::B, Request::Read).await?;
        let mut of_a = Reply::Ready;
        if !is_paused {
            of_a = self.perform(Actor::A, Request::Inspect).await?;
        }
        self.perform(Actor::B, Request::Write).await?;
        if !matches!(of_a, Reply::Lost(_)) {
            of_a = self.write_late(is_paused).await?;
        }
        self.perform(Actor::B, Request::Release).await?;
        if matches!(of_a, Reply::Wrote(_)) {
            self.perform(Actor::A, Request::Release).await?;
        }
        Ok(())
    }

    /// A writes. If it is stopped, it finds this when it wakes, and does what it was about to do.
    async fn write_late(&mut self, is_stopped: bool) -> Result<Reply, Failure> {
        tokio::time::sleep(self.step).await;
        self.clients[0].send(Request::Write)?;
        if is_stopped {
            self.timeline.note(Actor::Fault, StepKind::Woken, "A wakes");
            self.clients[0].wake()?;
        }
        let reply = self.clients[0].receive().await?;
        self.note(Actor::A, &reply)?;
        Ok(reply)
    }

    /// B has to wait until A is done.
    async fn sequential(&mut self) -> Result<(), Failure> {
        if !matches!(self.perform(Actor::A, Request::Inspect).await?, Reply::Lost(_)) {
            self.perform(Actor::A, Request::Write).await?;
            self.perform(Actor::A, Request::Release).await?;
        }
        if !self.acquire(Actor::B, self.ttl * 10).await? {
            return Err(Failure::Unavailable(
                "the second client does not get the lock, although it is free".to_owned(),
            ));
        }
        self.perform(Actor::B, Request::Read).await?;
        self.perform(Actor::B, Request::Write).await?;
        self.perform(Actor::B, Request::Release).await.map(drop)
    }

    async fn acquire(&mut self, who: Actor, within: Duration) -> Result<bool, Failure> {
        let reply = self.perform(who, Request::Acquire { within_ms: within.as_millis() as u64 }).await?;
        Ok(matches!(reply, Reply::Granted { .. }))
    }

    /// Lets one of them do something, after a moment, and notes what came of it.
    async fn perform(&mut self, who: Actor, request: Request) -> Result<Reply, Failure> {
        if !self.timeline.steps.is_empty() {
            tokio::time::sleep(self.step).await;
        }
        let reply = self.clients[usize::from(who == Actor::B)].ask(request).await?;
        self.note(who, &reply)?;
        Ok(reply)
    }

    fn note(&mut self, who: Actor, reply: &Reply) -> Result<(), Failure> {
        let (mark, what) = match reply {
            Reply::Granted { token: None } => (StepKind::Granted, "has the lock".to_owned()),
            Reply::Granted { token: Some(token) } => {
                (StepKind::Granted, format!("has the lock with token {token}, and seals the file with it"))
            }
            Reply::NotGranted => (StepKind::NotGranted, "does not get the lock".to_owned()),
            Reply::Read(number) => (StepKind::Read, format!("reads {number}")),
            Reply::Holds { is_in_jeopardy: false } => (StepKind::Looked, "looks: it holds the lock".to_owned()),
            Reply::Holds { is_in_jeopardy: true } => {
                (StepKind::Looked, "looks: it holds the lock, and is warned that it may lose it".to_owned())
            }
            Reply::Lost(why) => (StepKind::Lost, format!("is told that it has lost the lock: {why}")),
            Reply::Wrote(number) => (StepKind::Wrote, format!("writes {number}, and is told that it is done")),
            Reply::Refused(_) => (StepKind::Refused, "writes, and is refused: it was overtaken".to_owned()),
            Reply::Released => (StepKind::Released, "releases the lock".to_owned()),
            Reply::Ready | Reply::Failed(_) => return Err(unexpected(reply)),
        };
        self.timeline.note(who, mark, what);
        Ok(())
    }
}

fn unexpected(reply: &Reply) -> Failure {
    match reply {
        Reply::Failed(what) => Failure::Unavailable(what.clone()),
        reply => Failure::Unavailable(format!("a client sent an unexpected reply: {reply:?}")),
    }
}
