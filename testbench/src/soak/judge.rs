//! The judge of a long run: reads the workers' records, and returns the violations.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade::Token;

use super::record::{Fact, Share, moment, parse};
use super::{HOT, hot, number_file};
use crate::fenced_file::FencedFile;
use crate::history::{self, Grant};

/// A grant, and what is known of its end.
#[derive(Debug, Clone)]
struct Held {
    asked: u64,
    told: u64,
    /// Until when it was certainly held, if it was not released.
    safe: u64,
    let_go: Option<u64>,
    token: u64,
    share: Share,
    locks: Vec<String>,
    client: usize,
}

impl Held {
    fn let_go_at_latest(&mut self, at: u64) {
        self.let_go = Some(self.let_go.map_or(at, |before| before.min(at)));
    }
}

/// The record of one worker.
#[derive(Debug)]
struct Account {
    path: PathBuf,
    client: usize,
    /// The number of bytes that have been read.
    read: u64,
    grants: BTreeMap<u64, Held>,
    waits: BTreeMap<u64, (u64, String)>,
    ended_at: Option<u64>,
}

/// An update that was acknowledged.
#[derive(Debug)]
struct Update {
    token: u64,
    number: u64,
    lock: String,
}

/// Everything that the workers wrote.
#[derive(Debug, Default)]
pub struct Judge {
    accounts: Vec<Account>,
    /// Grants of workers that are gone.
    over: Vec<Held>,
    updates: Vec<Update>,
    /// When each hot lock was granted last.
    last_told: BTreeMap<String, u64>,
    /// Transient failures, by their message.
    failures: BTreeMap<String, usize>,
    losses: BTreeMap<String, usize>,
    violations: Vec<String>,
    longest_wait: Duration,
    clients: usize,
}

impl Judge {
    /// Adds a worker that appends to this file.
    pub fn expect(&mut self, path: PathBuf) {
        let (client, grants, waits) = (self.clients, BTreeMap::new(), BTreeMap::new());
        self.accounts.push(Account { path, client, read: 0, grants, waits, ended_at: None });
        self.clients += 1;
    }

    /// Notes that this worker was ended at that moment, or later.
    pub fn ends(&mut self, path: &Path, at: u64) {
        if let Some(account) = self.accounts.iter_mut().find(|account| account.path == path) {
            account.ended_at = Some(at);
        }
    }

    /// Reads what the workers have written since. `ends_sessions`: all grants of a worker end with it.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or has a line that no worker writes.
    pub fn read(&mut self, ends_sessions: bool) -> io::Result<()> {
        let mut accounts = std::mem::take(&mut self.accounts);
        for account in &mut accounts {
            for fact in account.news()? {
                self.take(account, fact);
            }
            if let (Some(at), true) = (account.ended_at, ends_sessions) {
                account.let_go_all(at);
            }
        }
        let (gone, here): (Vec<_>, Vec<_>) = accounts.into_iter().partition(|account| account.ended_at.is_some());
        self.over.extend(gone.into_iter().flat_map(|account| account.grants.into_values()));
        self.accounts = here;
        Ok(())
    }

    fn take(&mut self, account: &mut Account, fact: Fact) {
        match fact {
            Fact::Waits { id, at, lock } => drop(account.waits.insert(id, (at, lock))),
            Fact::Waited { id, at } => {
                if let Some((began, _)) = account.waits.remove(&id) {
                    self.longest_wait = self.longest_wait.max(Duration::from_nanos(at.saturating_sub(began)));
                }
            }
            Fact::Granted { id, asked, told, safe, token, share, locks } => {
                for lock in &locks {
                    if number_file(lock).is_some() {
                        let last = self.last_told.entry(lock.clone()).or_default();
                        *last = told.max(*last);
                    }
                }
                let client = account.client;
                let held = Held { asked, told, safe, let_go: None, token, share, locks, client };
                account.grants.insert(id, held);
            }
            Fact::Kept { id, safe } => {
                if let Some(held) = account.grants.get_mut(&id) {
                    held.safe = held.safe.max(safe);
                }
            }
            Fact::Wrote { token, number, lock } => self.updates.push(Update { token, number, lock }),
            Fact::Ends { id, at } => {
                if let Some(held) = account.grants.get_mut(&id) {
                    held.let_go_at_latest(at);
                }
            }
            Fact::Lost { id, at, why } => self.lost(account, id, at, why),
            Fact::Closes { at } => account.let_go_all(at),
            Fact::Failed { is_retryable: true, what, .. } => *self.failures.entry(kind_of(&what)).or_default() += 1,
            Fact::Failed { what, .. } => self.violations.push(format!(
                "an operation failed in a way that does not pass: {what} ({})",
                account.path.display()
            )),
        }
    }

    fn lost(&mut self, account: &Account, id: u64, at: u64, why: String) {
        let Some(held) = account.grants.get(&id) else { return };
        let path = account.path.display();
        if !["expired", "paused", "unreachable"].contains(&why.as_str()) {
            self.violations.push(format!("{:?} was lost by {why}, which nothing here does ({path})", held.locks));
        } else if why == "expired" && at < held.safe {
            let early = Duration::from_nanos(held.safe - at);
            self.violations.push(format!("the session of {held:?} ended {early:?} before it could ({path})"));
        }
        *self.losses.entry(why).or_default() += 1;
    }

    /// Returns the locks that were not granted, and the waits that were not answered, for this time.
    pub fn stalls(&self, now: u64, bound: Duration) -> Vec<String> {
        let late = |since: u64| Duration::from_nanos(now.saturating_sub(since)) > bound;
        let locks = self.last_told.iter().filter(|(_, told)| late(**told));
        let locks = locks.map(|(lock, _)| format!("{lock} was not granted for {bound:?}, although many want it"));
        let waits = self.accounts.iter().flat_map(|account| account.waits.values().map(move |wait| (account, wait)));
        let waits = waits.filter(|(_, (since, _))| late(*since)).map(|(account, (_, lock))| {
            format!("a worker waits for {lock} for more than {bound:?} ({})", account.path.display())
        });
        locks.chain(waits).collect()
    }

    /// How many grants there were so far.
    pub fn grants(&self) -> usize {
        self.over.len() + self.accounts.iter().map(|account| account.grants.len()).sum::<usize>()
    }

    /// How many updates were acknowledged so far.
    pub fn updates(&self) -> usize {
        self.updates.len()
    }

    /// Returns the transient failures and losses, with their counts.
    pub fn failures(&self) -> impl Iterator<Item = (&str, usize)> {
        self.failures.iter().chain(&self.losses).map(|(what, times)| (what.as_str(), *times))
    }

    /// The longest wait without a bound that was answered.
    pub fn longest_wait(&self) -> Duration {
        self.longest_wait
    }

    /// The highest token of each lock.
    pub fn highest_tokens(&self) -> BTreeMap<&str, u64> {
        let mut highest = BTreeMap::new();
        for held in self.all() {
            for lock in &held.locks {
                let token = highest.entry(lock.as_str()).or_default();
                *token = held.token.max(*token);
            }
        }
        highest
    }

    fn all(&self) -> impl Iterator<Item = &Held> {
        self.over.iter().chain(self.accounts.iter().flat_map(|account| account.grants.values()))
    }

    /// Everything that must not have happened, once all workers are gone and all that they wrote was read.
    ///
    /// # Errors
    ///
    /// A fenced number cannot be read.
    pub fn verdict(&mut self, folder: &Path) -> io::Result<Vec<String>> {
        let mut grants = Vec::new();
        for held in self.all() {
            let let_go = held.let_go.map_or(held.safe, |at| at.min(held.safe));
            for lock in &held.locks {
                grants.push(Grant {
                    lock: lock.clone(),
                    token: Token::new(held.token).map_err(io::Error::other)?,
                    asked_at: moment(held.asked),
                    told_at: moment(held.told),
                    let_go_at: moment(let_go),
                    takes: held.share.takes,
                    of: held.share.of,
                    client: held.client,
                });
            }
        }
        let mut violations = std::mem::take(&mut self.violations);
        if let Err(anomalies) = history::check(&grants) {
            violations.extend(anomalies.iter().map(ToString::to_string));
        }
        for number in 0..HOT {
            self.check_number(folder, &hot(number), &mut violations)?;
        }
        Ok(violations)
    }

    /// Whether every acknowledged update is in the file, once, and in the order of the tokens.
    fn check_number(&self, folder: &Path, lock: &str, violations: &mut Vec<String>) -> io::Result<()> {
        let Some(file) = number_file(lock) else { return Ok(()) };
        let writes = FencedFile::open(&folder.join(file))?.contents()?.writes;
        if let Some(pair) = writes.windows(2).find(|pair| pair[0] >= pair[1]) {
            violations.push(format!("the number of {lock} was written with {} after {}", pair[1], pair[0]));
        }
        for update in self.updates.iter().filter(|update| update.lock == lock) {
            let at = usize::try_from(update.number).map_err(io::Error::other)?;
            if at.checked_sub(1).and_then(|at| writes.get(at)) != Some(&update.token) {
                violations.push(format!("an acknowledged update was lost: {update:?}"));
            }
        }
        Ok(())
    }
}

impl Account {
    /// The facts of the whole lines that were appended since.
    fn news(&mut self) -> io::Result<Vec<Fact>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        let bad = |line: &str| io::Error::other(format!("{}: {line}", self.path.display()));
        text[..whole].lines().map(|line| parse(line).ok_or_else(|| bad(line))).collect()
    }

    fn let_go_all(&mut self, at: u64) {
        for held in self.grants.values_mut() {
            held.let_go_at_latest(at);
        }
    }
}

/// The first words of a failure, without the lock and the numbers in it.
fn kind_of(what: &str) -> String {
    let operation = what.split(['\'', ':']).next().unwrap_or_default().trim();
    let (_, why) = what.split_once(": ").unwrap_or(("", what));
    let why: String = why.chars().filter(|char| !char.is_ascii_digit()).take(100).collect();
    format!("{operation}: {why}")
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::*;

    const EXCLUSIVE: Share = Share { takes: 1, of: 1 };

    fn granted(id: u64, token: u64, told: u64, safe: u64) -> Fact {
        Fact::Granted { id, asked: 1, told, safe, token, share: EXCLUSIVE, locks: vec![hot(0)] }
    }

    /// Returns what the judge finds in these records. The first worker was killed at 50.
    fn judged(workers: &[&[Fact]], ends_sessions: bool) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut judge = Judge::default();
        for (number, facts) in workers.iter().enumerate() {
            let path = folder.path().join(format!("worker-{number}"));
            let record = Record::open(&path).expect("it can be made");
            facts.iter().for_each(|fact| record.write(fact));
            judge.expect(path.clone());
            judge.ends(&path, if number == 0 { 50 } else { 1_000 });
        }
        judge.read(ends_sessions).expect("they can be read");
        judge.verdict(folder.path()).expect("the numbers can be read")
    }

    #[test]
    fn hand_overs_are_no_violation() {
        let first = [granted(1, 5, 10, 90), Fact::Ends { id: 1, at: 20 }, granted(2, 9, 40, 100)];
        let second = [granted(1, 6, 25, 90), Fact::Closes { at: 35 }];
        assert_eq!(judged(&[&first, &second], false), Vec::<String>::new());
        // The session of a process that was killed goes on, unless the store ends it.
        let later = [granted(1, 10, 60, 200)];
        assert_eq!(judged(&[&first, &later], true), Vec::<String>::new());
        assert_eq!(judged(&[&first, &later], false).len(), 1);
    }

    #[test]
    fn every_kind_of_violation_is_found() {
        let first = [granted(1, 5, 10, 90)];
        for (second, what) in [
            (granted(1, 6, 80, 200), "more was held at once"),
            (granted(1, 5, 95, 200), "a token was given twice"),
            (granted(1, 4, 95, 200), "a later grant has a lower token"),
            (Fact::Wrote { token: 5, number: 1, lock: hot(0) }, "an acknowledged update was lost"),
            (Fact::Failed { at: 1, is_retryable: false, what: "no".to_owned() }, "does not pass"),
        ] {
            let found = judged(&[&first, &[second]], false);
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
        let lost = |at, why: &str| Fact::Lost { id: 1, at, why: why.to_owned() };
        for why in ["expired", "paused", "unreachable"] {
            assert!(judged(&[&[granted(1, 5, 10, 90), lost(95, why)]], false).is_empty(), "{why}");
        }
        let early = judged(&[&[granted(1, 5, 10, 90), lost(80, "expired")]], false);
        assert!(early[0].contains("before it could"), "{early:?}");
        let odd = judged(&[&[granted(1, 5, 10, 90), lost(95, "DataLost")]], false);
        assert!(odd[0].contains("which nothing here does"), "{odd:?}");
    }
}
