//! The store of a long run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use palisade::engine::redis;

use crate::servers::{Absent, MariaDb, Postgres, Redis, Service};

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One file.
    Embedded,
    /// `palisade serve`.
    Service,
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MySql,
    /// Redis that flushes every write.
    Redis,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Embedded, Kind::Service, Kind::Postgres, Kind::MySql, Kind::Redis];

    /// Whether a session ends with its process, and not only with its TTL.
    pub fn ends_dead_sessions(self) -> bool {
        self == Kind::Embedded
    }

    /// The shortest time between two crashes of the server. The service and Redis give every session its full TTL again
    /// after a restart, so a dead session ends only if no restart follows within its TTL: 30 s by default.
    pub fn shortest_uptime(self) -> Duration {
        Duration::from_secs(if matches!(self, Kind::Service | Kind::Redis) { 40 } else { 15 })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Embedded => "embedded",
            Kind::Service => "service",
            Kind::Postgres => "postgres",
            Kind::MySql => "mysql",
            Kind::Redis => "redis",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| format!("there is no store '{text}'; there is embedded, service, postgres, mysql, redis"))
    }
}

/// A store that runs.
pub enum Store {
    /// One file.
    Embedded(PathBuf),
    /// A server.
    Service(Service),
    /// A server.
    Postgres(Postgres),
    /// A server.
    MySql(MariaDb),
    /// A server.
    Redis(Redis),
}

impl Store {
    /// Starts one whose files are in this folder. `serve` is the test bench's program of that name.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(kind: Kind, folder: &Path, serve: &Path) -> Result<Store, Absent> {
        Ok(match kind {
            Kind::Embedded => Store::Embedded(folder.join("locks.db")),
            Kind::Service => Store::Service(Service::start(serve, folder)?),
            Kind::Postgres => Store::Postgres(Postgres::start(folder)?),
            Kind::MySql => Store::MySql(MariaDb::start(folder)?),
            Kind::Redis => Store::Redis(Redis::start(folder, "always")?),
        })
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        match self {
            Store::Embedded(file) => format!("embedded://{}", file.display()),
            Store::Service(server) => server.url(),
            Store::Postgres(server) => server.url(),
            Store::MySql(server) => server.url(),
            Store::Redis(server) => server.url(),
        }
    }

    /// Kills it with `SIGKILL`. Returns whether there was a server to kill.
    pub fn kill(&mut self) -> bool {
        match self {
            Store::Embedded(_) => return false,
            Store::Service(server) => server.kill(),
            Store::Postgres(server) => server.kill(),
            Store::MySql(server) => server.kill(),
            Store::Redis(server) => server.kill(),
        }
        true
    }

    /// Starts it again after [`Store::kill`].
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        match self {
            Store::Embedded(_) => Ok(()),
            Store::Service(server) => server.restart(),
            Store::Postgres(server) => server.restart(),
            Store::MySql(server) => server.restart(),
            Store::Redis(server) => server.restart(),
        }
    }

    /// Returns what the store's check finds wrong with its data; `None` if it has no check.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub fn check(&self) -> Result<Option<Vec<String>>, Absent> {
        let (run, exists, check): (Run<'_>, _, _) = match self {
            Store::Postgres(server) => (
                &|sql| server.run(sql),
                "SELECT count(to_regprocedure('palisade.check()'))",
                "SELECT * FROM palisade.check()",
            ),
            Store::MySql(server) => (
                &|sql| server.run(sql),
                "SELECT count(*) FROM information_schema.routines WHERE routine_name = 'palisade_check'",
                "CALL palisade_check()",
            ),
            Store::Redis(server) => return check_redis(server).map(Some),
            Store::Embedded(_) | Store::Service(_) => return Ok(None),
        };
        if run(exists)?.trim() != "1" {
            return Ok(None);
        }
        Ok(Some(run(check)?.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()))
    }
}

/// Runs a statement in a store.
type Run<'a> = &'a dyn Fn(&str) -> Result<String, Absent>;

fn check_redis(server: &Redis) -> Result<Vec<String>, Absent> {
    let silent = |why: String| Absent::Silent("redis-server", why);
    let config = redis::Config::parse(&format!("//{}", server.address)).map_err(|bad| silent(bad.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(redis::check(&config)).map_err(|failure| silent(failure.to_string()))
}
