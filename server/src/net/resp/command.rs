//! Parses the words of a command.

use palisade_core::{
    BadName, BadNumber, Delay, Label, LockName, Mode, RequestNo, SessionId, Token, Ttl, Value, Want,
};
use smallvec::SmallVec;
use thiserror::Error;

use super::channels::Subscription;
use super::form::Form;
use super::redis::{self, Call};
use crate::request::{AcquireRequest, ClusterRequest, Holder, Query, Request};
use crate::storage::Member;

/// A command, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Command {
    /// A request for the node.
    Request(Request),
    /// A request by a command of Redis, and the form of its reply.
    Keyed(Request, Form),
    /// A call of a script.
    Eval(Call),
    LoadScript(Vec<u8>),
    /// Asks which scripts are known, by their digests.
    FindScripts(Vec<Vec<u8>>),
    Subscribe(Vec<Subscription>),
    Unsubscribe {
        is_pattern: bool,
        names: Vec<Vec<u8>>,
    },
    /// A request about the nodes of the cluster.
    Cluster(ClusterRequest),
    Hello {
        version: Option<u64>,
        auth: Option<(Vec<u8>, Vec<u8>)>,
    },
    Auth {
        user: Option<Vec<u8>>,
        secret: Vec<u8>,
    },
    Ping {
        message: Option<Vec<u8>>,
    },
    Quit,
    Detail {
        is_on: bool,
    },
    ClientId,
    ClientName,
    Ignored,
    Help,
    ListCommands,
    DescribeCommands,
    Info,
}

/// Why a command cannot be parsed. Nothing has happened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadRequest {
    /// There is no such command.
    #[error("there is no command '{0}'; COMMAND lists those there are, and LOCK HELP those for locks")]
    Unknown(String),
    /// Redis has such a command.
    #[error("{command} is a command of Redis, and this is no Redis: {hint}; LOCK HELP says more")]
    OfRedis {
        /// Its name.
        command: String,
        /// What to use in its place.
        hint: &'static str,
    },
    /// A command of Redis that does not lock.
    #[error("{0}")]
    NotALock(String),
    /// Words are missing, or too many.
    #[error("usage: {0}")]
    Usage(&'static str),
    /// A word is not what it should be.
    #[error("{what} '{word}' {why}")]
    Word {
        /// What it should be.
        what: &'static str,
        /// The word.
        word: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Every command with its arguments, for `COMMAND` and for messages.
pub(crate) const USAGES: &[(&str, &str)] = &[
    ("HELLO", "HELLO [2|3 [AUTH user secret]]"),
    ("AUTH", "AUTH [user] secret"),
    ("PING", "PING [message]"),
    ("QUIT", "QUIT"),
    ("CLIENT DETAIL", "CLIENT DETAIL ON|OFF"),
    ("CLIENT ID", "CLIENT ID"),
    ("CLIENT GETNAME", "CLIENT GETNAME"),
    ("CLIENT SETNAME", "CLIENT SETNAME name"),
    ("CLIENT SETINFO", "CLIENT SETINFO attribute value"),
    ("COMMAND", "COMMAND"),
    ("INFO", "INFO"),
    ("SESSION OPEN", "SESSION OPEN ttl_ms [LABEL text]"),
    ("SESSION KEEPALIVE", "SESSION KEEPALIVE id [id …]"),
    ("SESSION CLOSE", "SESSION CLOSE id"),
    ("SESSION ATTACH", "SESSION ATTACH id"),
    (
        "LOCK ACQUIRE",
        "LOCK ACQUIRE name [name …] SESSION id|TTL ms [SHARED|PERMITS n OF m] [WAIT ms] [DELAY ms] [REQ n] [ASYNC]",
    ),
    (
        "LOCK ALL",
        "LOCK ALL count name EXCLUSIVE|SHARED|n/m [name …] SESSION id|TTL ms [WAIT ms] [DELAY ms] [REQ n] [ASYNC]",
    ),
    ("LOCK RELEASE", "LOCK RELEASE name token [SESSION id] [REQ n]"),
    ("LOCK SIGN", "LOCK SIGN name token [SESSION id]"),
    ("LOCK CANCEL", "LOCK CANCEL SESSION id REQ n"),
    ("LOCK PUBLISH", "LOCK PUBLISH name token SESSION id VALUE value"),
    ("LOCK SHOW", "LOCK SHOW name [CURSOR c] [COUNT n]"),
    ("LOCK LIST", "LOCK LIST prefix [CURSOR c] [COUNT n]"),
    ("LOCK WATCH", "LOCK WATCH prefix"),
    ("LOCK UNWATCH", "LOCK UNWATCH prefix"),
    ("LOCK BREAK", "LOCK BREAK name REASON text [TOKEN token] [BY text]"),
    ("LOCK RESIZE", "LOCK RESIZE name permits"),
    ("LOCK HELP", "LOCK HELP"),
    ("TOKENS RAISE", "TOKENS RAISE above"),
    ("CAMPAIGN", "CAMPAIGN name SESSION id|TTL ms VALUE value [WAIT ms] [REQ n] [ASYNC]"),
    ("OBSERVE", "OBSERVE name"),
    ("CLUSTER STATUS", "CLUSTER STATUS"),
    ("CLUSTER ADD", "CLUSTER ADD node host:port"),
    ("CLUSTER REMOVE", "CLUSTER REMOVE node"),
    ("CLUSTER TRANSFER", "CLUSTER TRANSFER [node]"),
    ("CLUSTER BACKUP", "CLUSTER BACKUP [number FROM byte]"),
    ("LOCK TOKEN", "LOCK TOKEN key value"),
    ("SET", "SET key value NX|XX|IFEQ value [PX ms|EX seconds|KEEPTTL] [GET]"),
    ("GET", "GET key"),
    ("EXISTS", "EXISTS key [key …]"),
    ("PTTL", "PTTL key"),
    ("TTL", "TTL key"),
    ("PEXPIRE", "PEXPIRE key ms"),
    ("EXPIRE", "EXPIRE key seconds"),
    ("DEL", "DEL key"),
    ("UNLINK", "UNLINK key"),
    ("DELEX", "DELEX key IFEQ value"),
    ("EVAL", "EVAL script numkeys key [key …] value [argument …]"),
    ("EVALSHA", "EVALSHA digest numkeys key [key …] value [argument …]"),
    ("SCRIPT LOAD", "SCRIPT LOAD script"),
    ("SCRIPT EXISTS", "SCRIPT EXISTS digest [digest …]"),
    ("SELECT", "SELECT 0"),
    ("SUBSCRIBE", "SUBSCRIBE channel [channel …]"),
    ("PSUBSCRIBE", "PSUBSCRIBE pattern [pattern …]"),
    ("UNSUBSCRIBE", "UNSUBSCRIBE [channel …]"),
    ("PUNSUBSCRIBE", "PUNSUBSCRIBE [pattern …]"),
];

/// Commands that users of Redis try, and what to use in their place.
const REDIS_HINTS: &[(&[&str], &str)] = &[
    (
        &["SETNX", "SETEX", "PSETEX", "GETSET", "MSET", "MSETNX", "INCR", "FCALL"],
        "a lock is taken with SET key value NX PX ms, or with LOCK ACQUIRE name TTL ms",
    ),
    (&["MGET", "TYPE", "STRLEN"], "a lock is looked at with GET key, or with LOCK SHOW name"),
    (&["KEYS", "SCAN", "DBSIZE"], "locks are listed with LOCK LIST prefix"),
    (
        &["PERSIST", "FLUSHALL", "FLUSHDB"],
        "a lock is released with its value or its token, and taken away with LOCK BREAK",
    ),
    (
        &["HSET", "HGET", "HDEL", "LPUSH", "RPUSH", "LPOP", "BLPOP", "SADD", "ZADD", "APPEND"],
        "it is a lock service, and keeps no data",
    ),
    (&["SCRIPT"], "there are SCRIPT LOAD and SCRIPT EXISTS"),
    (&["PUBLISH", "MONITOR"], "events come after LOCK WATCH prefix, in version 3"),
    (&["MULTI", "EXEC", "DISCARD", "WATCH"], "several locks are taken together with LOCK ACQUIRE name name … TTL ms"),
    (&["SWAPDB", "MOVE"], "there is one set of locks, and no numbered databases"),
    (&["CONFIG", "DEBUG", "SHUTDOWN", "SAVE", "BGSAVE"], "it is configured where it is started, with palisade serve"),
    (&["CLIENT"], "there are CLIENT DETAIL, ID, GETNAME, SETNAME and SETINFO"),
];

pub(super) fn usage(command: &str) -> BadRequest {
    let found = USAGES.iter().find(|(name, _)| *name == command);
    BadRequest::Usage(found.map_or("see COMMAND", |(_, usage)| usage))
}

/// Reads the words of a command from left to right.
pub(super) struct Reader<'a> {
    pub(super) words: &'a [&'a [u8]],
    pub(super) command: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn next(&mut self) -> Result<&'a [u8], BadRequest> {
        let (first, rest) = self.words.split_first().ok_or_else(|| usage(self.command))?;
        self.words = rest;
        Ok(first)
    }

    fn is_at(&self, keyword: &str) -> bool {
        self.words.first().is_some_and(|word| word.eq_ignore_ascii_case(keyword.as_bytes()))
    }

    /// Takes a keyword, if it is the next word.
    pub(super) fn take(&mut self, keyword: &str) -> bool {
        let is_there = self.is_at(keyword);
        if is_there {
            self.words = &self.words[1..];
        }
        is_there
    }

    fn end(&self) -> Result<(), BadRequest> {
        if self.words.is_empty() { Ok(()) } else { Err(usage(self.command)) }
    }

    fn text(&mut self, what: &'static str) -> Result<&'a str, BadRequest> {
        let word = self.next()?;
        std::str::from_utf8(word).map_err(|_| bad(what, word, "is not UTF-8"))
    }

    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, BadRequest> {
        let word = self.next()?;
        let text = std::str::from_utf8(word).ok();
        text.and_then(|text| text.parse().ok()).ok_or_else(|| bad(what, word, "is not a number"))
    }

    pub(super) fn parsed<T>(
        &mut self,
        what: &'static str,
        make: impl FnOnce(u64) -> Result<T, BadNumber>,
    ) -> Result<T, BadRequest> {
        let number = self.number(what)?;
        make(number).map_err(|why| bad(what, number.to_string().as_bytes(), format!("is refused: {why}")))
    }

    pub(super) fn lock(&mut self) -> Result<LockName, BadRequest> {
        let word = self.next()?;
        let text = std::str::from_utf8(word).map_err(|_| bad("lock", word, "is not UTF-8"))?;
        LockName::new(text).map_err(|why: BadName| bad("lock", word, format!("is refused: {why}")))
    }

    fn session(&mut self) -> Result<SessionId, BadRequest> {
        self.parsed("session", SessionId::new)
    }

    fn number_u32(&mut self, what: &'static str) -> Result<u32, BadRequest> {
        let number = self.number(what)?;
        u32::try_from(number).map_err(|_| bad(what, number.to_string().as_bytes(), "is too large"))
    }
}

pub(super) fn bad(what: &'static str, word: &[u8], why: impl Into<String>) -> BadRequest {
    const SHOWN: usize = 80;
    let word = String::from_utf8_lossy(&word[..word.len().min(SHOWN)]).escape_debug().to_string();
    BadRequest::Word { what, word, why: why.into() }
}

impl Command {
    /// Returns whether those before it must be answered first: the node looks at its state for this command, or the command
    /// changes how replies are written.
    pub(super) fn needs_earlier_replies(&self) -> bool {
        match self {
            Command::Keyed(request, _) => request.reads_state(),
            Command::Hello { .. } | Command::Detail { .. } => true,
            _ => false,
        }
    }

    /// Parses the words of a command.
    ///
    /// # Errors
    ///
    /// The command does not exist, or its arguments are wrong.
    ///
    /// ```
    /// use palisade_server::request::Request;
    /// use palisade_server::resp::{BadRequest, Command};
    ///
    /// let command = Command::parse(&[b"session", b"close", b"7"])?;
    /// assert!(matches!(command, Command::Request(Request::CloseSession { .. })));
    /// assert!(Command::parse(&[b"SESSION", b"CLOSE", b"0"]).is_err());
    /// # Ok::<(), BadRequest>(())
    /// ```
    pub fn parse(words: &[&[u8]]) -> Result<Command, BadRequest> {
        let (name, words) = name(words)?;
        let mut reader = Reader { words, command: name };
        let command = parse(&mut reader)?;
        reader.end()?;
        Ok(command)
    }
}

/// Splits off the command's name, of one word or two.
fn name<'a>(words: &'a [&'a [u8]]) -> Result<(&'static str, &'a [&'a [u8]]), BadRequest> {
    let is = |at: usize, part: &str| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(part.as_bytes()));
    for (name, _) in USAGES {
        match name.split_once(' ') {
            None if is(0, name) => return Ok((name, &words[1..])),
            Some((first, second)) if is(0, first) && is(1, second) => return Ok((name, &words[2..])),
            _ => {}
        }
    }
    for (commands, hint) in REDIS_HINTS {
        if let Some(command) = commands.iter().find(|command| is(0, command)) {
            return Err(BadRequest::OfRedis { command: (*command).to_owned(), hint });
        }
    }
    // Some commands have names of two words.
    let count = if USAGES.iter().any(|(name, _)| name.split_once(' ').is_some_and(|(first, _)| is(0, first))) {
        2
    } else {
        1
    };
    let shown: Vec<_> = words.iter().take(count).map(|word| String::from_utf8_lossy(word)).collect();
    let shown: String = shown.join(" ").chars().take(80).collect();
    Err(BadRequest::Unknown(shown.escape_debug().to_string()))
}

fn parse(reader: &mut Reader<'_>) -> Result<Command, BadRequest> {
    Ok(match reader.command {
        "HELLO" => hello(reader)?,
        "AUTH" => {
            let first = reader.next()?.to_vec();
            match reader.next() {
                Ok(secret) => Command::Auth { user: Some(first), secret: secret.to_vec() },
                Err(_) => Command::Auth { user: None, secret: first },
            }
        }
        "PING" => Command::Ping { message: reader.next().ok().map(<[u8]>::to_vec) },
        "QUIT" => Command::Quit,
        "CLIENT DETAIL" => match (reader.take("ON"), reader.take("OFF")) {
            (true, _) => Command::Detail { is_on: true },
            (_, true) => Command::Detail { is_on: false },
            _ => return Err(usage(reader.command)),
        },
        "CLIENT ID" => Command::ClientId,
        "CLIENT GETNAME" => Command::ClientName,
        "CLIENT SETNAME" | "CLIENT SETINFO" => {
            reader.words = &[];
            Command::Ignored
        }
        "COMMAND" => match std::mem::take(&mut reader.words) {
            [] => Command::ListCommands,
            // Tools ask for descriptions in the form of Redis, and do without them.
            _ => Command::DescribeCommands,
        },
        "INFO" => {
            reader.words = &[];
            Command::Info
        }
        "LOCK HELP" => Command::Help,
        "LOCK ACQUIRE" => Command::Request(acquire(reader)?),
        "LOCK ALL" => Command::Request(acquire_all(reader)?),
        "CAMPAIGN" => Command::Request(campaign(reader)?),
        "OBSERVE" => Command::Request(Request::Query(Query::Leader { lock: reader.lock()? })),
        "TOKENS RAISE" => Command::Request(Request::RaiseTokens { above: reader.parsed("token", Token::new)? }),
        "SET" | "GET" | "EXISTS" | "PTTL" | "TTL" | "PEXPIRE" | "EXPIRE" | "DEL" | "UNLINK" | "DELEX" | "EVAL"
        | "EVALSHA" | "SCRIPT LOAD" | "SCRIPT EXISTS" | "SELECT" | "LOCK TOKEN" | "SUBSCRIBE" | "PSUBSCRIBE"
        | "UNSUBSCRIBE" | "PUNSUBSCRIBE" => redis::parse(reader)?,
        command if command.starts_with("CLUSTER") => Command::Cluster(cluster(reader)?),
        command if command.starts_with("SESSION") => Command::Request(session(reader)?),
        _ => Command::Request(lock(reader)?),
    })
}

fn hello(reader: &mut Reader<'_>) -> Result<Command, BadRequest> {
    let version = if reader.words.is_empty() { None } else { Some(reader.number("version")?) };
    let mut auth = None;
    loop {
        if reader.take("AUTH") {
            auth = Some((reader.next()?.to_vec(), reader.next()?.to_vec()));
        } else if reader.take("SETNAME") {
            reader.next()?;
        } else {
            return Ok(Command::Hello { version, auth });
        }
    }
}

fn session(reader: &mut Reader<'_>) -> Result<Request, BadRequest> {
    Ok(match reader.command {
        "SESSION OPEN" => {
            let ttl = reader.parsed("ttl_ms", Ttl::from_ms)?;
            let label = if reader.take("LABEL") { Some(Label::new(reader.text("label")?)) } else { None };
            Request::OpenSession { ttl, label }
        }
        "SESSION KEEPALIVE" => {
            let mut sessions = vec![reader.session()?];
            while !reader.words.is_empty() {
                sessions.push(reader.session()?);
            }
            Request::KeepAlive { sessions }
        }
        "SESSION CLOSE" => Request::CloseSession { session: reader.session()? },
        _ => Request::Attach { session: reader.session()? },
    })
}

fn cluster(reader: &mut Reader<'_>) -> Result<ClusterRequest, BadRequest> {
    Ok(match reader.command {
        "CLUSTER STATUS" => ClusterRequest::Status,
        "CLUSTER ADD" => ClusterRequest::Add { name: node(reader)?, address: reader.text("address")?.to_owned() },
        "CLUSTER REMOVE" => ClusterRequest::Remove { name: node(reader)? },
        "CLUSTER TRANSFER" if reader.words.is_empty() => ClusterRequest::Transfer { name: None },
        "CLUSTER TRANSFER" => ClusterRequest::Transfer { name: Some(node(reader)?) },
        _ if reader.words.is_empty() => ClusterRequest::Backup,
        _ => {
            let number = reader.number("backup")?;
            if !reader.take("FROM") {
                return Err(usage(reader.command));
            }
            ClusterRequest::ReadBackup { number, from: reader.number("byte")? }
        }
    })
}

fn node(reader: &mut Reader<'_>) -> Result<String, BadRequest> {
    let name = reader.text("node")?;
    match Member::check_name(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(why) => Err(bad("node", name.as_bytes(), why)),
    }
}

fn lock(reader: &mut Reader<'_>) -> Result<Request, BadRequest> {
    let command = reader.command;
    Ok(match command {
        "LOCK RELEASE" => {
            let (lock, token) = (reader.lock()?, reader.parsed("token", Token::new)?);
            let session = if reader.take("SESSION") { Some(reader.session()?) } else { None };
            let number = if reader.take("REQ") { Some(reader.parsed("request", RequestNo::new)?) } else { None };
            Request::Release { lock, token, session, number }
        }
        "LOCK SIGN" => {
            let (lock, token) = (reader.lock()?, reader.parsed("token", Token::new)?);
            let session = if reader.take("SESSION") { Some(reader.session()?) } else { None };
            Request::Query(Query::Claims { lock, token, session })
        }
        "LOCK CANCEL" if reader.take("SESSION") => {
            let session = reader.session()?;
            if !reader.take("REQ") {
                return Err(usage(reader.command));
            }
            Request::Cancel { session, number: reader.parsed("request", RequestNo::new)? }
        }
        "LOCK PUBLISH" => publish(reader)?,
        "LOCK SHOW" => {
            let lock = reader.lock()?;
            let (cursor, count) = page(reader)?;
            Request::Query(Query::Lock { lock, cursor, count })
        }
        "LOCK LIST" => {
            let prefix = reader.text("prefix")?.to_owned();
            let (cursor, count) = page(reader)?;
            Request::Query(Query::Locks { prefix, cursor, count })
        }
        "LOCK WATCH" => Request::Watch { prefix: reader.text("prefix")?.to_owned() },
        "LOCK UNWATCH" => Request::Unwatch { prefix: reader.text("prefix")?.to_owned() },
        "LOCK BREAK" => {
            let lock = reader.lock()?;
            if !reader.take("REASON") {
                return Err(usage(reader.command));
            }
            let reason = Label::new(reader.text("reason")?);
            let only = if reader.take("TOKEN") { Some(reader.parsed("token", Token::new)?) } else { None };
            let by = if reader.take("BY") { Some(Label::new(reader.text("label")?)) } else { None };
            Request::Break { lock, only, by, reason }
        }
        "LOCK RESIZE" => Request::Resize { lock: reader.lock()?, permits: reader.number_u32("permits")? },
        _ => return Err(usage(reader.command)),
    })
}

fn page(reader: &mut Reader<'_>) -> Result<(u32, u32), BadRequest> {
    let cursor = if reader.take("CURSOR") { reader.number_u32("cursor")? } else { 0 };
    let count = if reader.take("COUNT") { reader.number_u32("count")? } else { 1000 };
    Ok((cursor, count))
}

fn publish(reader: &mut Reader<'_>) -> Result<Request, BadRequest> {
    let (lock, token) = (reader.lock()?, reader.parsed("token", Token::new)?);
    if !reader.take("SESSION") {
        return Err(usage(reader.command));
    }
    let session = reader.session()?;
    if !reader.take("VALUE") {
        return Err(usage(reader.command));
    }
    Ok(Request::Publish { session, lock, token, value: Value::new(reader.next()?) })
}

/// Parses a counted list of names, each with its mode. The count keeps a name from being read as an option.
fn acquire_all(reader: &mut Reader<'_>) -> Result<Request, BadRequest> {
    let count = reader.number_u32("count")?;
    let wants = (0..count).map(|_| Ok(Want { lock: reader.lock()?, mode: mode(reader)? }));
    let wants = wants.collect::<Result<_, BadRequest>>()?;
    let holder = holder(reader)?;
    Ok(Request::Acquire(options(reader, wants, holder)?))
}

/// Parses a mode of one word.
fn mode(reader: &mut Reader<'_>) -> Result<Mode, BadRequest> {
    let word = reader.text("mode")?;
    if word.eq_ignore_ascii_case("EXCLUSIVE") {
        return Ok(Mode::Exclusive);
    }
    if word.eq_ignore_ascii_case("SHARED") {
        return Ok(Mode::Shared);
    }
    let permits = word.split_once('/').and_then(|(count, of)| Some((count.parse().ok()?, of.parse().ok()?)));
    let (count, of) = permits.ok_or_else(|| bad("mode", word.as_bytes(), "is none of EXCLUSIVE, SHARED, n/m"))?;
    Ok(Mode::Permits { count, of })
}

/// Parses the names, which end at SESSION or TTL, and the options. The first word is always a name.
fn acquire(reader: &mut Reader<'_>) -> Result<Request, BadRequest> {
    let mut names = vec![reader.lock()?];
    while !reader.words.is_empty() && !reader.is_at("SESSION") && !reader.is_at("TTL") {
        names.push(reader.lock()?);
    }
    let holder = holder(reader)?;
    let mut mode = Mode::Exclusive;
    if reader.take("SHARED") {
        mode = Mode::Shared;
    } else if reader.take("PERMITS") {
        let count = reader.number_u32("permits")?;
        if !reader.take("OF") {
            return Err(usage(reader.command));
        }
        mode = Mode::Permits { count, of: reader.number_u32("permits")? };
    }
    let wants = names.into_iter().map(|lock| Want { lock, mode }).collect();
    Ok(Request::Acquire(options(reader, wants, holder)?))
}

fn campaign(reader: &mut Reader<'_>) -> Result<Request, BadRequest> {
    let lock = reader.lock()?;
    let holder = holder(reader)?;
    if !reader.take("VALUE") {
        return Err(usage(reader.command));
    }
    let value = Value::new(reader.next()?);
    let wants = SmallVec::from([Want { lock, mode: Mode::Exclusive }]);
    Ok(Request::Acquire(AcquireRequest { value: Some(value), ..options(reader, wants, holder)? }))
}

fn holder(reader: &mut Reader<'_>) -> Result<Holder, BadRequest> {
    if reader.take("SESSION") {
        return Ok(Holder::Session(reader.session()?));
    }
    if reader.take("TTL") {
        return Ok(Holder::NewSession(reader.parsed("ttl_ms", Ttl::from_ms)?));
    }
    Err(usage(reader.command))
}

/// Parses the options after the names and the holder.
fn options(
    reader: &mut Reader<'_>,
    wants: SmallVec<[Want; 1]>,
    holder: Holder,
) -> Result<AcquireRequest, BadRequest> {
    let no_session = |word: &str| {
        bad("option", word.as_bytes(), "needs SESSION: a session that is made with TTL has no other requests")
    };
    let (mut wait_ms, mut delay, mut number, mut is_async) = (None, None, None, false);
    loop {
        if reader.take("WAIT") {
            wait_ms = Some(reader.number("wait_ms")?);
        } else if reader.take("DELAY") {
            delay = Some(reader.parsed("delay_ms", Delay::from_ms)?);
        } else if reader.take("REQ") {
            number = Some(reader.parsed("request", RequestNo::new)?);
        } else if reader.take("ASYNC") {
            is_async = true;
        } else {
            break;
        }
    }
    match (holder, number, is_async) {
        (Holder::NewSession(_), Some(_), _) => Err(no_session("REQ")),
        (Holder::NewSession(_), _, true) => Err(no_session("ASYNC")),
        _ => Ok(AcquireRequest {
            wants,
            holder,
            wait_ms,
            delay,
            number,
            is_async,
            value: None,
            secret: None,
            renews: false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, BadRequest> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        Command::parse(&words)
    }

    #[test]
    fn every_command_is_in_the_docs() {
        let docs = include_str!("../../../../docs/resp.md").replace("\\|", "|");
        let missing: Vec<_> = USAGES.iter().map(|(_, usage)| usage).filter(|usage| !docs.contains(*usage)).collect();
        assert!(missing.is_empty(), "not in docs/resp.md: {missing:?}");
    }

    #[test]
    fn counted_names_can_be_anything() {
        let parsed_all = parsed("LOCK ALL 3 session exclusive TTL shared REQ 2/5 SESSION 7 REQ 3");
        let Ok(Command::Request(Request::Acquire(request))) = parsed_all else { panic!("{parsed_all:?}") };
        let wants: Vec<_> = request.wants.iter().map(|want| (want.lock.as_str(), want.mode)).collect();
        let permits = Mode::Permits { count: 2, of: 5 };
        assert_eq!(wants, [("session", Mode::Exclusive), ("TTL", Mode::Shared), ("REQ", permits)]);
        assert_eq!(request.holder.session().map(SessionId::get), Some(7));
        assert_eq!(request.number.map(RequestNo::get), Some(3));
        for bad in ["2 a SHARED SESSION 7", "1 a SESSION 7", "1 a 2/x SESSION 7", "x", "4294967295 a SHARED"] {
            assert!(parsed(&format!("LOCK ALL {bad}")).is_err(), "{bad}");
        }
    }
}
