//! Redis commands on fenced keys.

use redis::ToRedisArgs;

/// A Redis command on the keys of one resource: its keys come first, then its arguments. Without a key it is for the
/// key of the resource's name.
///
/// ```
/// use palisade_fence::redis::Command;
/// let raise = Command::new("INCR");
/// let add = Command::new("ZADD").key("orders/42").arg(3).arg("urgent");
/// let all = Command::new("HGETALL").key("{orders/42}:lines");
/// ```
///
/// All of its keys are given as keys. A write can be any of the usual commands whose keys come first (not `MSET`, `SORT`,
/// `BITOP`, `ZUNIONSTORE` or `EVAL`), a read any of the usual ones that change nothing. The server refuses the others, and keys
/// that begin with `palisade:`, and changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub(super) name: String,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) args: Vec<Vec<u8>>,
}

impl Command {
    /// Returns a command without keys or arguments.
    pub fn new(name: &str) -> Command {
        Command { name: name.to_owned(), keys: Vec::new(), args: Vec::new() }
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Command {
        self.keys.push(key.as_ref().to_vec());
        self
    }

    /// Adds an argument: text, bytes or a number.
    #[must_use]
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Command {
        self.args.extend(arg.to_redis_args());
        self
    }
}
