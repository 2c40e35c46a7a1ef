//! What can be said about locks from outside: what a majority of the nodes says. Of those who wait nothing is known,
//! as they only ask again and again, and nothing is kept of what was.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use palisade_core::{LockName, Mode};
use redis::pipe;

use super::engine::Shared;
use super::error::Absence;
use super::node::Node;
use super::owner::{self, Owner, PREFIX};
use super::quorum::majority;
use crate::BootInstant;
use crate::engine::{Failure, HolderInfo, LockInfo};

/// How many keys a node is asked for at once.
const PAGE: usize = 1000;

/// What a node says about a key: its value, and for how many milliseconds it has it.
type Said = (Option<Vec<u8>>, i64);

impl Shared {
    /// A lock, as a majority of the nodes sees it.
    pub(super) async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let key = owner::key(&lock);
        let mut question = pipe();
        question.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let answers = self.ask_all::<Said>(&question, self.patience_for_looking()).await;
        let answers = self.enough(answers)?;
        Ok(self.seen(lock, answers))
    }

    /// All locks whose names begin so, as a majority of the nodes sees them.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let patience = self.patience_for_looking();
        let pages = join_all(self.nodes.iter().map(|node| all_keys(node, prefix, patience))).await;
        let mut said: BTreeMap<String, Vec<Said>> = BTreeMap::new();
        for (key, of_key) in self.enough(pages)?.into_iter().flatten() {
            said.entry(key).or_default().push(of_key);
        }
        let locks = said.into_iter().filter_map(|(key, said)| {
            let lock = LockName::new(key.strip_prefix(PREFIX)?).ok()?;
            self.seen(lock, said)
        });
        Ok(locks.collect())
    }

    /// The answers, if a majority has answered.
    fn enough<T>(&self, answers: Vec<Result<T, Absence>>) -> Result<Vec<T>, Failure> {
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        if answered < majority(self.nodes.len()) {
            return Err(self.no_majority(answers).failure(false));
        }
        Ok(answers.into_iter().filter_map(Result::ok).collect())
    }

    /// Held by whom a majority says.
    fn seen(&self, lock: LockName, said: Vec<Said>) -> Option<LockInfo> {
        let needed = majority(self.nodes.len());
        let mut by_value: BTreeMap<Vec<u8>, Vec<i64>> = BTreeMap::new();
        for (value, left_ms) in said {
            if let Some(value) = value {
                by_value.entry(value).or_default().push(left_ms);
            }
        }
        let (value, mut left_ms) = by_value.into_iter().find(|(_, left_ms)| left_ms.len() >= needed)?;
        // It is over when there is no majority any more.
        left_ms.sort_unstable_by(|a, b| b.cmp(a));
        let Owner { session, grant, label } = Owner::parse(&value)?;
        let holder = HolderInfo {
            token: grant,
            mode: Mode::Exclusive,
            session: Some(session),
            label: Some(label),
            held_for_ms: None,
            time_left_ms: u64::try_from(left_ms[needed - 1]).ok(),
        };
        Some(LockInfo {
            name: lock,
            limit: None,
            holders: vec![holder],
            waiters: Vec::new(),
            value: None,
            history: Vec::new(),
        })
    }
}

/// Everything that a node has below a prefix.
async fn all_keys(node: &Rc<Node>, prefix: &str, patience: Duration) -> Result<Vec<(String, Said)>, Absence> {
    let pattern = format!("{PREFIX}{}*", escaped(prefix));
    let (mut cursor, mut seen, mut found) = (0_u64, HashSet::new(), Vec::new());
    let over_at = BootInstant::now() + patience * 20;
    loop {
        let mut question = pipe();
        // A key of another kind is not ours, and would fail the whole question.
        question.cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE).arg("TYPE").arg("string");
        let ((next, keys),): ((u64, Vec<Vec<u8>>),) = node.ask(&question, patience).await?;
        // A name that is no text is not ours.
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        let keys: Vec<String> = keys.filter(|key| seen.insert(key.clone())).collect();
        if !keys.is_empty() {
            let mut question = pipe();
            for key in &keys {
                question.cmd("GET").arg(key).cmd("PTTL").arg(key);
            }
            let said: Vec<redis::Value> = node.ask(&question, patience).await?;
            let said = said.chunks_exact(2).map(|said| Ok((value(&said[0])?, value(&said[1])?)));
            let said = said.collect::<Result<Vec<Said>, Absence>>()?;
            found.extend(keys.into_iter().zip(said).filter(|(_, (value, _))| value.is_some()));
        }
        cursor = next;
        if cursor == 0 {
            return Ok(found);
        }
        if over_at.has_passed() {
            return Err(Absence::Silent(patience * 20));
        }
    }
}

fn value<T: redis::FromRedisValue>(said: &redis::Value) -> Result<T, Absence> {
    redis::from_redis_value_ref(said).map_err(|error| Absence::Refuses(error.to_string()))
}

/// A prefix in which nothing has a meaning to `MATCH`.
fn escaped(prefix: &str) -> String {
    let mut escaped = String::with_capacity(prefix.len());
    for c in prefix.chars() {
        if "*?[]^\\".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
