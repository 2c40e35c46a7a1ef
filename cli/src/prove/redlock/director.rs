//! The three schedules, on real servers and with two real processes.

use std::path::Path;
use std::time::{Duration, Instant};

use super::servers::{Clock, Kind, Server, free_address};
use super::timeline::{Kept, Mark, Schedule, Timeline, Who};
use super::troupe::Player;
use super::wire::{Order, Part, Said};
use crate::outcome::Failure;
use crate::prove::scheme::Scheme;
use crate::prove::store::{self, Store};
use crate::prove::{lock, unused_name};

/// The server that something happens to.
const THIRD: usize = 2;

/// Servers that have been started, and what is to happen on them.
pub(super) struct Scene {
    schedule: Schedule,
    kept: Kept,
    ttl: Duration,
    servers: Vec<Server>,
    began: Instant,
}

impl Scene {
    /// Starts its servers. Nothing else happens yet, so that servers can grow old enough to count.
    pub(super) async fn set(schedule: Schedule, kept: Kept, ttl: Duration, folder: &Path) -> Result<Scene, Failure> {
        let (kind, count) = match kept {
            Kept::Fenced => (Kind::Palisade, 1),
            Kept::Redlock | Kept::RedlockAsPublished => (Kind::Redis, 5),
        };
        let mut servers = Vec::new();
        for number in 0..count {
            let folder = folder.join(format!("{schedule:?}-{kept:?}-{number}"));
            std::fs::create_dir_all(&folder)?;
            let jumps = schedule == Schedule::Clock && number == THIRD.min(count - 1);
            let clock = if jumps { Some(Clock::new(&folder)?) } else { None };
            servers.push(Server::start(kind, folder, clock).await?);
        }
        Ok(Scene { schedule, kept, ttl, servers, began: Instant::now() })
    }

    /// The engine as one of the two sees it. Except where the point is another, A does not reach the last two servers.
    fn engine(&self, who: Who) -> Result<String, Failure> {
        if self.kept == Kept::Fenced {
            return Ok(format!("palisade://{}", self.servers[0].address));
        }
        let mut nodes: Vec<_> = self.servers.iter().map(|server| server.address).collect();
        if who == Who::A && self.schedule != Schedule::Pause {
            for node in &mut nodes[THIRD + 1..] {
                *node = free_address()?;
            }
        }
        let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let counts = if self.kept == Kept::RedlockAsPublished { "&dangerous_count_restarted=yes" } else { "" };
        Ok(format!("redlock://{}?max_ttl={}ms{counts}", nodes.join(","), self.ttl.as_millis()))
    }

    /// Plays it.
    pub(super) async fn play(mut self, folder: &Path) -> Result<Timeline, Failure> {
        if self.kept == Kept::Redlock {
            // Servers say how old they are in whole seconds.
            let old_enough = self.began + self.ttl + Duration::from_secs(1);
            tokio::time::sleep_until(old_enough.into()).await;
        }
        let name = unused_name();
        let resource = format!("file:{}", folder.display());
        let scheme = if self.kept == Kept::Fenced { Scheme::Strict } else { Scheme::None };
        let store: Box<dyn Store> = store::open(&resource, &name).await?;
        store.make(scheme).await?;
        let part = |engine| Part {
            engine,
            lock: lock(&name),
            ttl_ms: self.ttl.as_millis() as u64,
            resource: resource.clone(),
            name: name.clone(),
            scheme,
        };
        let a = Player::start(&part(self.engine(Who::A)?)).await?;
        let b = Player::start(&part(self.engine(Who::B)?)).await?;
        let mut play = Play {
            timeline: Timeline::new(self.schedule, self.kept),
            step: self.ttl / 16,
            ttl: self.ttl,
            players: [a, b],
        };
        play.whole(&mut self.servers).await?;
        Ok(play.timeline)
    }
}

struct Play {
    timeline: Timeline,
    /// Between two things that happen.
    step: Duration,
    ttl: Duration,
    players: [Player; 2],
}

impl Play {
    async fn whole(&mut self, servers: &mut [Server]) -> Result<(), Failure> {
        if !self.acquire(Who::A, self.ttl * 10).await? {
            return Err(Failure::Unreachable(
                "the first player does not get the lock, although nobody has it".to_owned(),
            ));
        }
        self.act(Who::A, Order::Read).await?;
        self.strike(servers).await?;
        let patience = if self.timeline.schedule == Schedule::Pause { self.ttl * 5 } else { self.ttl / 3 };
        match self.acquire(Who::B, patience).await? {
            true => self.both().await?,
            false => self.one_after_the_other().await?,
        }
        let number = match self.players[1].ask(Order::Read).await? {
            Said::Read(number) => number,
            said => return Err(unexpected(&said)),
        };
        self.timeline.conclude(number);
        Ok(())
    }

    /// What the schedule has in store.
    async fn strike(&mut self, servers: &mut [Server]) -> Result<(), Failure> {
        let which = THIRD.min(servers.len() - 1);
        let its = if servers.len() > 1 { "server 3" } else { "the service" };
        let (mark, what) = match self.timeline.schedule {
            Schedule::Clock => {
                tokio::time::sleep(self.step).await;
                servers[which].jump()?;
                (Mark::Fault, format!("the clock of {its} jumps an hour ahead"))
            }
            Schedule::Restart => {
                tokio::time::sleep(self.step).await;
                servers[which].restart().await?;
                let empty = if servers.len() > 1 { ", empty" } else { "" };
                (Mark::Fault, format!("{its} is killed and started again{empty}"))
            }
            Schedule::Pause => {
                self.act(Who::A, Order::Look).await?;
                self.players[0].stop()?;
                (Mark::Stopped, "A is stopped".to_owned())
            }
        };
        self.timeline.note(Who::Fault, mark, what);
        Ok(())
    }

    /// B has been granted what A believes to hold.
    async fn both(&mut self) -> Result<(), Failure> {
        let is_paused = self.timeline.schedule == Schedule::Pause;
        self.act(Who::B, Order::Read).await?;
        let mut of_a = Said::Ready;
        if !is_paused {
            of_a = self.act(Who::A, Order::Look).await?;
        }
        self.act(Who::B, Order::Write).await?;
        if !matches!(of_a, Said::Lost(_)) {
            of_a = self.write_late(is_paused).await?;
        }
        self.act(Who::B, Order::Release).await?;
        if matches!(of_a, Said::Wrote(_)) {
            self.act(Who::A, Order::Release).await?;
        }
        Ok(())
    }

    /// A writes. If it is stopped, it finds this when it wakes, and does what it was about to do.
    async fn write_late(&mut self, is_stopped: bool) -> Result<Said, Failure> {
        tokio::time::sleep(self.step).await;
        self.players[0].order(Order::Write)?;
        if is_stopped {
            self.timeline.note(Who::Fault, Mark::Woken, "A wakes");
            self.players[0].wake()?;
        }
        let said = self.players[0].hear().await?;
        self.note(Who::A, &said)?;
        Ok(said)
    }

    /// B has to wait until A is done.
    async fn one_after_the_other(&mut self) -> Result<(), Failure> {
        if !matches!(self.act(Who::A, Order::Look).await?, Said::Lost(_)) {
            self.act(Who::A, Order::Write).await?;
            self.act(Who::A, Order::Release).await?;
        }
        if !self.acquire(Who::B, self.ttl * 10).await? {
            return Err(Failure::Unreachable(
                "the second player does not get the lock, although it is free".to_owned(),
            ));
        }
        self.act(Who::B, Order::Read).await?;
        self.act(Who::B, Order::Write).await?;
        self.act(Who::B, Order::Release).await.map(drop)
    }

    async fn acquire(&mut self, who: Who, within: Duration) -> Result<bool, Failure> {
        let said = self.act(who, Order::Acquire { within_ms: within.as_millis() as u64 }).await?;
        Ok(matches!(said, Said::Granted { .. }))
    }

    /// Lets one of them do something, after a moment, and notes what came of it.
    async fn act(&mut self, who: Who, order: Order) -> Result<Said, Failure> {
        if !self.timeline.steps.is_empty() {
            tokio::time::sleep(self.step).await;
        }
        let said = self.players[usize::from(who == Who::B)].ask(order).await?;
        self.note(who, &said)?;
        Ok(said)
    }

    fn note(&mut self, who: Who, said: &Said) -> Result<(), Failure> {
        let (mark, what) = match said {
            Said::Granted { token: None } => (Mark::Granted, "has the lock".to_owned()),
            Said::Granted { token: Some(token) } => {
                (Mark::Granted, format!("has the lock with token {token}, and seals the file with it"))
            }
            Said::NotGranted => (Mark::NotGranted, "does not get the lock".to_owned()),
            Said::Read(number) => (Mark::Read, format!("reads {number}")),
            Said::Holds { is_in_jeopardy: false } => (Mark::Looked, "looks: it holds the lock".to_owned()),
            Said::Holds { is_in_jeopardy: true } => {
                (Mark::Looked, "looks: it holds the lock, and is warned that it may lose it".to_owned())
            }
            Said::Lost(why) => (Mark::Lost, format!("is told that it has lost the lock: {why}")),
            Said::Wrote(number) => (Mark::Wrote, format!("writes {number}, and is told that it is done")),
            Said::Refused(_) => (Mark::Refused, "writes, and is refused: it was overtaken".to_owned()),
            Said::Released => (Mark::Released, "releases the lock".to_owned()),
            Said::Ready | Said::Failed(_) => return Err(unexpected(said)),
        };
        self.timeline.note(who, mark, what);
        Ok(())
    }
}

fn unexpected(said: &Said) -> Failure {
    match said {
        Said::Failed(what) => Failure::Unreachable(what.clone()),
        said => Failure::Unreachable(format!("a player said something unexpected: {said:?}")),
    }
}
