//! The three schedules, on real servers and with two real processes.

use std::path::Path;
use std::time::{Duration, Instant};

use palisade_cli::harness::free_port;
use palisade_cli::harness::wall_clock::WallClock;

use super::client_process::ClientProcess;
use super::servers::{Kind, Server};
use super::timeline::{Actor, Protection, Schedule, StepKind, Timeline};
use super::wire::{ClientConfig, Reply, Request};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;
use crate::prove::store::{self, Store};
use crate::prove::{lock_name, unused_name};

/// The index of the server that the fault hits. A does not reach the servers after it.
const FAULTY_SERVER: usize = 2;

/// The started servers of one run.
pub(super) struct Setup {
    schedule: Schedule,
    protection: Protection,
    ttl: Duration,
    servers: Vec<Server>,
    began: Instant,
}

impl Setup {
    /// Starts the servers. The caller runs the schedule later, because Redlock ignores a server that is younger than the TTL.
    pub(super) async fn start(
        schedule: Schedule,
        protection: Protection,
        ttl: Duration,
        folder: &Path,
    ) -> Result<Setup, Failure> {
        let (kind, count) = match protection {
            Protection::Fenced => (Kind::Palisade, 1),
            Protection::Redlock | Protection::RedlockAsPublished => (Kind::Redis, 5),
        };
        let mut servers = Vec::new();
        for number in 0..count {
            let folder = folder.join(format!("{schedule:?}-{protection:?}-{number}"));
            std::fs::create_dir_all(&folder)?;
            let jumps = schedule == Schedule::Clock && number == FAULTY_SERVER.min(count - 1);
            let clock = if jumps { Some(WallClock::new(&folder.join("time"))?.with_libc()) } else { None };
            servers.push(Server::start(kind, folder, clock).await?);
        }
        Ok(Setup { schedule, protection, ttl, servers, began: Instant::now() })
    }

    /// Returns the engine's URL for one client. A does not reach the last two servers, except in the pause schedule.
    fn engine(&self, actor: Actor) -> Result<String, Failure> {
        if self.protection == Protection::Fenced {
            return Ok(format!("palisade://{}", self.servers[0].address));
        }
        let mut nodes: Vec<_> = self.servers.iter().map(|server| server.address).collect();
        if actor == Actor::A && self.schedule != Schedule::Pause {
            for node in &mut nodes[FAULTY_SERVER + 1..] {
                *node = free_port()?;
            }
        }
        let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let option =
            if self.protection == Protection::RedlockAsPublished { "&dangerous_count_restarted=yes" } else { "" };
        Ok(format!("redlock://{}?max_ttl={}ms{option}", nodes.join(","), self.ttl.as_millis()))
    }

    /// Runs the schedule.
    pub(super) async fn run(mut self, folder: &Path) -> Result<Timeline, Failure> {
        if self.protection == Protection::Redlock {
            // Redis reports its age in whole seconds.
            let old_enough = self.began + self.ttl + Duration::from_secs(1);
            tokio::time::sleep_until(old_enough.into()).await;
        }
        let name = unused_name();
        let resource = format!("file:{}", folder.display());
        let fencing = if self.protection == Protection::Fenced { Fencing::Strict } else { Fencing::None };
        let store: Box<dyn Store> = store::open(&resource, &name).await?;
        store.create_data(fencing).await?;
        let config = |engine| ClientConfig {
            engine,
            lock: lock_name(&name),
            ttl_ms: self.ttl.as_millis() as u64,
            resource: resource.clone(),
            name: name.clone(),
            fencing,
        };
        let a = ClientProcess::start(&config(self.engine(Actor::A)?)).await?;
        let b = ClientProcess::start(&config(self.engine(Actor::B)?)).await?;
        let mut scenario = Scenario {
            timeline: Timeline::new(self.schedule, self.protection),
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
    /// The delay between two steps.
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
        let within = if self.timeline.schedule == Schedule::Pause { self.ttl * 5 } else { self.ttl / 3 };
        match self.acquire(Actor::B, within).await? {
            true => self.overlapping().await?,
            false => self.sequential().await?,
        }
        let number = match self.clients[1].call(Request::Read).await? {
            Reply::Read(number) => number,
            reply => return Err(unexpected(&reply)),
        };
        self.timeline.conclude(number);
        Ok(())
    }

    /// Injects the fault of the schedule.
    async fn inject_fault(&mut self, servers: &mut [Server]) -> Result<(), Failure> {
        let index = FAULTY_SERVER.min(servers.len() - 1);
        let server = if servers.len() > 1 { "server 3" } else { "the service" };
        let (kind, text) = match self.timeline.schedule {
            Schedule::Clock => {
                tokio::time::sleep(self.step).await;
                servers[index].jump()?;
                (StepKind::Fault, format!("the clock of {server} jumps an hour ahead"))
            }
            Schedule::Restart => {
                tokio::time::sleep(self.step).await;
                servers[index].restart().await?;
                let empty = if servers.len() > 1 { ", empty" } else { "" };
                (StepKind::Fault, format!("{server} is killed and started again{empty}"))
            }
            Schedule::Pause => {
                self.perform(Actor::A, Request::Inspect).await?;
                self.clients[0].stop()?;
                (StepKind::Stopped, "A is stopped".to_owned())
            }
        };
        self.timeline.note(Actor::Fault, kind, text);
        Ok(())
    }

    /// Continues after B was granted the lock while A believes to hold it.
    async fn overlapping(&mut self) -> Result<(), Failure> {
        let is_paused = self.timeline.schedule == Schedule::Pause;
        self.perform(Actor::B, Request::Read).await?;
        let mut a_reply = Reply::Ready;
        if !is_paused {
            a_reply = self.perform(Actor::A, Request::Inspect).await?;
        }
        self.perform(Actor::B, Request::Write).await?;
        if !matches!(a_reply, Reply::Lost(_)) {
            a_reply = self.write_late(is_paused).await?;
        }
        self.perform(Actor::B, Request::Release).await?;
        if matches!(a_reply, Reply::Wrote(_)) {
            self.perform(Actor::A, Request::Release).await?;
        }
        Ok(())
    }

    /// Has A write. A stopped client finds the request when it wakes.
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

    /// Continues after B was not granted the lock: B waits until A has released it.
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

    async fn acquire(&mut self, actor: Actor, within: Duration) -> Result<bool, Failure> {
        let reply = self.perform(actor, Request::Acquire { within_ms: within.as_millis() as u64 }).await?;
        Ok(matches!(reply, Reply::Granted { .. }))
    }

    /// Sends a client a request, after a delay, and notes its reply.
    async fn perform(&mut self, actor: Actor, request: Request) -> Result<Reply, Failure> {
        if !self.timeline.steps.is_empty() {
            tokio::time::sleep(self.step).await;
        }
        let reply = self.clients[usize::from(actor == Actor::B)].call(request).await?;
        self.note(actor, &reply)?;
        Ok(reply)
    }

    fn note(&mut self, actor: Actor, reply: &Reply) -> Result<(), Failure> {
        let (kind, text) = match reply {
            Reply::Granted { token: None } => (StepKind::Granted, "has the lock".to_owned()),
            Reply::Granted { token: Some(token) } => {
                (StepKind::Granted, format!("has the lock with token {token}, and seals the file with it"))
            }
            Reply::NotGranted => (StepKind::NotGranted, "does not get the lock".to_owned()),
            Reply::Read(number) => (StepKind::Read, format!("reads {number}")),
            Reply::Holds { is_in_jeopardy: false } => (StepKind::Checked, "checks: it holds the lock".to_owned()),
            Reply::Holds { is_in_jeopardy: true } => {
                (StepKind::Checked, "checks: it holds the lock, and is warned that it may lose it".to_owned())
            }
            Reply::Lost(why) => (StepKind::Lost, format!("learns that it has lost the lock: {why}")),
            Reply::Wrote(number) => (StepKind::Wrote, format!("writes {number}, and the write is acknowledged")),
            Reply::Refused(_) => (StepKind::Refused, "writes, and is refused: it was overtaken".to_owned()),
            Reply::Released => (StepKind::Released, "releases the lock".to_owned()),
            Reply::Ready | Reply::Failed(_) => return Err(unexpected(reply)),
        };
        self.timeline.note(actor, kind, text);
        Ok(())
    }
}

fn unexpected(reply: &Reply) -> Failure {
    match reply {
        Reply::Failed(message) => Failure::Unavailable(message.clone()),
        reply => Failure::Unavailable(format!("a client sent an unexpected reply: {reply:?}")),
    }
}
