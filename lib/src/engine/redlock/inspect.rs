//! Locks as a majority of the nodes reports them. Waiters and history are unknown: waiters only repeat their attempts, and the
//! nodes keep no history.

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

/// The keys that one SCAN examines. Redis serves no other client meanwhile.
const PAGE: usize = 1000;

/// The value of a key at a node, and its remaining milliseconds.
type KeyState = (Option<Vec<u8>>, i64);

impl Shared {
    /// Returns a lock as a majority of the nodes reports it.
    pub(super) async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        let key = owner::key(&lock);
        let mut commands = pipe();
        commands.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let answers = self.call_all::<KeyState>(&commands, self.inspect_timeout()).await;
        let answers = self.of_majority(answers)?;
        Ok(self.lock_info(lock, answers))
    }

    /// Returns all locks with this prefix as a majority of the nodes reports them.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Failure> {
        let call_timeout = self.inspect_timeout();
        let pages = join_all(self.nodes.iter().map(|node| all_keys(node, prefix, call_timeout))).await;
        let mut states: BTreeMap<String, Vec<KeyState>> = BTreeMap::new();
        for (key, state) in self.of_majority(pages)?.into_iter().flatten() {
            states.entry(key).or_default().push(state);
        }
        let locks = states.into_iter().filter_map(|(key, states)| {
            let lock = LockName::new(key.strip_prefix(PREFIX)?).ok()?;
            self.lock_info(lock, states)
        });
        Ok(locks.collect())
    }

    /// Returns the replies, if a majority has answered.
    fn of_majority<T>(&self, answers: Vec<Result<T, Absence>>) -> Result<Vec<T>, Failure> {
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        if answered < majority(self.nodes.len()) {
            return Err(self.no_majority(answers).failure(false));
        }
        Ok(answers.into_iter().filter_map(Result::ok).collect())
    }

    /// Returns the lock, if a majority has the same value.
    fn lock_info(&self, lock: LockName, states: Vec<KeyState>) -> Option<LockInfo> {
        let needed = majority(self.nodes.len());
        let mut by_value: BTreeMap<Vec<u8>, Vec<i64>> = BTreeMap::new();
        for (value, left_ms) in states {
            if let Some(value) = value {
                by_value.entry(value).or_default().push(left_ms);
            }
        }
        let (value, mut left_ms) = by_value.into_iter().find(|(_, left_ms)| left_ms.len() >= needed)?;
        // The lock expires when the last key of a majority does.
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

/// Returns all keys of a node with this prefix.
async fn all_keys(node: &Rc<Node>, prefix: &str, call_timeout: Duration) -> Result<Vec<(String, KeyState)>, Absence> {
    let pattern = format!("{PREFIX}{}*", escaped(prefix));
    let (mut cursor, mut seen, mut found) = (0_u64, HashSet::new(), Vec::new());
    let times_out_at = BootInstant::now() + call_timeout * 20;
    loop {
        let mut commands = pipe();
        // A key of another type belongs to another program, and GET would fail the pipeline.
        commands.cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE).arg("TYPE").arg("string");
        let ((next, keys),): ((u64, Vec<Vec<u8>>),) = node.call(&commands, call_timeout).await?;
        // A key that is not UTF-8 belongs to another program.
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        let keys: Vec<String> = keys.filter(|key| seen.insert(key.clone())).collect();
        if !keys.is_empty() {
            let mut commands = pipe();
            for key in &keys {
                commands.cmd("GET").arg(key).cmd("PTTL").arg(key);
            }
            let replies: Vec<redis::Value> = node.call(&commands, call_timeout).await?;
            let states = replies.chunks_exact(2).map(|pair| Ok((value(&pair[0])?, value(&pair[1])?)));
            let states = states.collect::<Result<Vec<KeyState>, Absence>>()?;
            found.extend(keys.into_iter().zip(states).filter(|(_, (value, _))| value.is_some()));
        }
        cursor = next;
        if cursor == 0 {
            return Ok(found);
        }
        if times_out_at.has_passed() {
            return Err(Absence::Silent(call_timeout * 20));
        }
    }
}

fn value<T: redis::FromRedisValue>(reply: &redis::Value) -> Result<T, Absence> {
    redis::from_redis_value_ref(reply).map_err(|error| Absence::Refuses(error.to_string()))
}

/// Escapes the characters that are special to `MATCH`.
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
