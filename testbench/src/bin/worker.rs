//! A process that obeys commands, one per line, so that tests can stop and kill it at chosen moments.
//!
//! | command | action | reply |
//! |---|---|---|
//! | `connect URL TTL_MS` | connects | `connected` |
//! | `acquire NAME` | waits for the lock | `granted TOKEN` |
//! | `try NAME` | tries once to acquire | `granted TOKEN` or `busy` |
//! | `token` | asks the guard | `token TOKEN` or `lost` |
//! | `fate` | waits until the lock is lost | why it was lost |
//! | `release` | releases | `released` or `lost` |
//! | `seal FILE` | seals the fenced file with the token of the last grant | `sealed NUMBER` or `superseded` |
//! | `write FILE NUMBER` | writes with that token, without a look at the lock | `written NUMBER` or `superseded` |
//! | `overwrite FILE NUMBER` | replaces the file by the number, without a token | `written NUMBER` |
//! | `join NAME COUNT` | becomes a member that shares partitions | `joined` |
//! | `change` | waits for the next change of what it owns | `gained PARTITION`, `losing PARTITION` or `lost PARTITION` |
//! | `own PARTITION` | takes the token of a partition that it owns for `seal` and `write` | `token TOKEN` |
//! | `waiters NAME` | inspects the lock | the number of waiters |
//! | `clock` | reads the boot clock | its milliseconds |
//! | `count FILE NAME TIMES` | increments the number in the file under the lock | `ack TOKEN` for each, then `counted` |
//! | `soak URL FOLDER RECORD SEED PAUSE_MS` | begins to work as in a long run | `soaking` |
//! | `leave` | closes the sessions of that run, and ends | |
//!
//! The reply to a command that fails is `error …`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use palisade::blocking::{Held, Member, Palisade, connect_with};
use palisade::recipe::Change;
use palisade::{BootInstant, LockGuard, Options, Token};
use palisade_testbench::fenced_file::{Access, FencedFile};
use palisade_testbench::soak::work::{Orders, Working};

#[derive(Default)]
struct Worker {
    palisade: Option<Palisade>,
    held: Option<Held<LockGuard>>,
    token: Option<Token>,
    soaking: Option<Working>,
    member: Option<Member>,
}

fn main() {
    let mut worker = Worker::default();
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { return };
        let words: Vec<&str> = line.split_whitespace().collect();
        match worker.obey(&words) {
            Ok(said) => say(&said),
            Err(error) => say(&format!("error {error}")),
        }
    }
}

fn say(what: &str) {
    println!("{what}");
    // Without a reader there is no reason to continue.
    if std::io::stdout().flush().is_err() {
        std::process::exit(1);
    }
}

impl Worker {
    fn obey(&mut self, words: &[&str]) -> Result<String, Box<dyn Error>> {
        match words {
            ["connect", url, ttl_ms] => {
                let options = Options::new().ttl(Duration::from_millis(ttl_ms.parse()?)).label("worker");
                self.palisade = Some(connect_with(options, url)?);
                Ok("connected".to_owned())
            }
            ["acquire", name] => {
                let guard = self.palisade()?.lock(*name).dangerous_accept_failover().acquire()?;
                self.hold(guard)
            }
            ["try", name] => match self.palisade()?.lock(*name).dangerous_accept_failover().try_acquire()? {
                Some(guard) => self.hold(guard),
                None => Ok("busy".to_owned()),
            },
            ["token"] => Ok(match self.held()?.token() {
                Ok(token) => format!("token {token}"),
                Err(_) => "lost".to_owned(),
            }),
            ["fate"] => Ok(self.held()?.wait_until_lost().to_string()),
            ["release"] => Ok(match self.held()?.release() {
                Ok(()) => "released".to_owned(),
                Err(error) if error.loss().is_some() => "lost".to_owned(),
                Err(error) => return Err(error.into()),
            }),
            ["seal", file] => Ok(match FencedFile::open(Path::new(file))?.seal(self.token()?)? {
                Access::Done(number) => format!("sealed {number}"),
                Access::Superseded => "superseded".to_owned(),
            }),
            ["write", file, number] => {
                let written = FencedFile::open(Path::new(file))?.write(self.token()?, number.parse()?)?;
                Ok(match written {
                    Access::Done(number) => format!("written {number}"),
                    Access::Superseded => "superseded".to_owned(),
                })
            }
            ["overwrite", file, number] => {
                std::fs::write(file, number)?;
                Ok(format!("written {number}"))
            }
            ["join", name, count] => {
                let count = count.parse()?;
                let partitions = self.palisade()?.partitions(*name, count).dangerous_accept_failover();
                self.member = Some(partitions.join(count)?);
                Ok("joined".to_owned())
            }
            ["change"] => Ok(match self.member.as_mut().ok_or("not a member")?.next_change()? {
                Change::Gained(ownership) => format!("gained {}", ownership.partition()),
                Change::Losing { partition, .. } => format!("losing {partition}"),
                Change::Lost { partition, .. } => format!("lost {partition}"),
                other => format!("{other:?}"),
            }),
            ["own", partition] => {
                let member = self.member.as_ref().ok_or("not a member")?;
                let token = member.get(partition.parse()?).ok_or("not owned")?.token()?;
                self.token = Some(token);
                Ok(format!("token {token}"))
            }
            ["waiters", name] => {
                let lock = self.palisade()?.inspect(name)?;
                Ok(lock.map_or(0, |lock| lock.waiters.len()).to_string())
            }
            ["clock"] => Ok(BootInstant::now().since_boot().as_millis().to_string()),
            ["count", file, name, times] => self.count(Path::new(file), name, times.parse()?),
            ["soak", url, folder, record, seed, pause_ms] => {
                let (url, folder, record) = ((*url).to_owned(), folder.into(), record.into());
                let pause = Duration::from_millis(pause_ms.parse()?);
                self.soaking = Some(Working::start(Orders { url, folder, record, seed: seed.parse()?, pause })?);
                Ok("soaking".to_owned())
            }
            ["leave"] => {
                self.soaking.take().ok_or("it does not soak")?.leave();
                std::process::exit(0);
            }
            _ => Err("not understood".into()),
        }
    }

    fn palisade(&self) -> Result<&Palisade, &'static str> {
        self.palisade.as_ref().ok_or("not connected")
    }

    fn held(&self) -> Result<&Held<LockGuard>, &'static str> {
        self.held.as_ref().ok_or("nothing is held")
    }

    fn token(&self) -> Result<Token, &'static str> {
        self.token.ok_or("nothing was granted")
    }

    fn hold(&mut self, guard: Held<LockGuard>) -> Result<String, Box<dyn Error>> {
        let token = guard.token()?;
        (self.held, self.token) = (Some(guard), Some(token));
        Ok(format!("granted {token}"))
    }

    fn count(&self, file: &Path, name: &str, times: usize) -> Result<String, Box<dyn Error>> {
        let mut file = FencedFile::open(file)?;
        let mut done = 0;
        while done < times {
            done += usize::from(self.increment(&mut file, name)?);
        }
        Ok("counted".to_owned())
    }

    /// Reads and writes once. Returns whether that was done; it is not done if the lock is lost meanwhile.
    fn increment(&self, file: &mut FencedFile, name: &str) -> Result<bool, Box<dyn Error>> {
        let guard = match self.palisade()?.lock(name).dangerous_accept_failover().acquire() {
            Ok(guard) => guard,
            Err(error) if error.is_retryable() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Ok(token) = guard.token() else { return Ok(false) };
        let Access::Done(number) = file.seal(token)? else { return Ok(false) };
        let Access::Done(_) = file.write(token, number + 1)? else { return Ok(false) };
        say(&format!("ack {token}"));
        match guard.release() {
            Err(error) if !error.is_retryable() => Err(error.into()),
            _ => Ok(true),
        }
    }
}
