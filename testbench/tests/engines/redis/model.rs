//! Random commands to the state machine of `core` and to the engine in Redis. The replies, and the visible state of every lock
//! after each command, must be the same, and the stored data consistent. The test moves the clock. In half of the runs each call
//! does the least work that it may, and leaves the rest to the next call.

use std::collections::{HashMap, HashSet};

use palisade_core::{
    Acquire, Answer, Caller, Command, Delay, GrantState, Kind, Label, Limits, LockName, Machine, Mode, Patience,
    Reentry, Refusal, RequestNo, SessionId, Token, Ttl, Value as Published, Waiting, Want,
};
use palisade_testbench::conformance::seed::Seed;
use palisade_testbench::servers;
use redis::{Connection, Value};

pub(crate) const FAST_PATH: &str = include_str!("../../../../lib/src/engine/redis/fast_path.lua");
pub(crate) const RULES: &str = concat!(
    include_str!("../../../../lib/src/engine/redis/words.lua"),
    "\nlocal function make()\n",
    include_str!("../../../../lib/src/engine/redis/rules.lua"),
    "\nend\nmake()\n",
);
pub(crate) const CALL: &str = include_str!("../../../../lib/src/engine/redis/call.lua");
pub(crate) const CHECK: &str = include_str!("../../../../lib/src/engine/redis/check.lua");
/// Limits every call to the least work.
pub(crate) const FORCED: &str = "rule.WORK, rule.ALWAYS = 1, true\n";
const KEY: &str = "palisade:{model}:locks";
const DUE: &str = "palisade:{model}:locks:due";
/// Long after any test.
const TTL_MS: u64 = 3_600_000;
const LOCKS: [&str; 3] = ["a", "b", "c"];
const SEMAPHORE: &str = "s";
const STEPS: usize = 60;

/// Pseudo-random numbers from a seed.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len() as u64) as usize]) }
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// An answer, as far as both must agree.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Reply {
    Granted(u64),
    Queued,
    Busy,
    Done,
    Gone,
    Ended,
    Forced(u64, u64),
    /// The last token then.
    Raised(u64),
    Refused(String),
}

struct Pair {
    machine: Machine,
    redis: Connection,
    script: String,
    check: String,
    is_function: bool,
    incarnation: String,
    /// From the machine's sessions to those in Redis.
    sessions: HashMap<SessionId, String>,
    /// Redis begins to count above it.
    base: u64,
    asked: HashMap<SessionId, Vec<Acquire>>,
    /// The number of those that no client will repeat.
    settled: HashMap<SessionId, usize>,
    /// The requests that were granted at once, by their tokens.
    granted: HashMap<u64, (SessionId, RequestNo)>,
    /// Requests that were sent more than once.
    repeated: HashSet<(SessionId, RequestNo)>,
    /// Requests that are never sent again: the release of their grant said so.
    over: HashSet<(SessionId, RequestNo)>,
    story: Vec<String>,
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        other => panic!("no text: {other:?}"),
    }
}

pub(crate) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        other => panic!("no list: {other:?}"),
    }
}

pub(crate) fn number(value: &Value) -> u64 {
    text(value).parse().expect("a number")
}

impl Pair {
    fn new(mut redis: Connection, is_function: bool, is_forced: bool) -> Pair {
        redis::cmd("FLUSHALL").exec(&mut redis).expect("it is ours");
        let forced = if is_forced { FORCED } else { "" };
        let mut load = |script: String| redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut redis);
        let script = load(format!("{FAST_PATH}\n{RULES}{forced}{CALL}")).expect("the script");
        let check = load(format!("{RULES}{CHECK}return rule.check(KEYS)")).expect("the check");
        let library = format!(
            "#!lua name=model\n{RULES}{forced}redis.register_function('model', function(KEYS, ARGV)\n{FAST_PATH}\n{CALL}\nend)"
        );
        redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(library).exec(&mut redis).expect("the function");
        let machine = Machine::new(Limits::default());
        Pair {
            machine,
            redis,
            script,
            check,
            is_function,
            incarnation: String::new(),
            settled: HashMap::new(),
            granted: HashMap::new(),
            repeated: HashSet::new(),
            over: HashSet::new(),
            sessions: HashMap::new(),
            base: 0,
            asked: HashMap::new(),
            story: Vec::new(),
        }
    }

    fn call(&mut self, what: &str, args: &[String]) -> Vec<Value> {
        // A function keeps its variables from one call to the next, and a script does not. The replies must not differ.
        let mut call = redis::cmd(if self.is_function { "FCALL" } else { "EVALSHA" });
        call.arg(if self.is_function { "model" } else { &self.script })
            .arg(2)
            .arg(KEY)
            .arg(DUE)
            .arg(what)
            .arg(&self.incarnation)
            .arg(0)
            .arg("channel")
            .arg(args);
        let answer = match call.query(&mut self.redis) {
            Ok(Value::Array(mut answer)) if what == "several" => Ok(answer.remove(0)),
            answer => answer,
        };
        match answer {
            Ok(Value::Array(answer)) => answer,
            Ok(Value::Int(0)) => vec![Value::SimpleString("done".to_owned())],
            Ok(token @ Value::Int(_)) => vec![Value::SimpleString("granted".to_owned()), token],
            other => panic!("{what} {args:?}: {other:?}\n{}", self.story.join("\n")),
        }
    }

    /// Sends every second fast-path request in the form of a batch.
    fn reply_of_redis(&mut self, what: &str, args: &[String]) -> Reply {
        let all = u32::MAX.to_string();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let together = match (what, &args[..]) {
            ("acquire", [session, number, patience, "queue", "", "", lock, need, limit])
                if *need == all && *limit == all =>
            {
                let (patience, low) = patience.split_once('.').expect("patience and low");
                Some([session, low, patience, lock, number])
            }
            ("release", [session, low, lock, token, "once"]) => Some([session, low, "once", lock, token]),
            _ => None,
        };
        let owned = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        let answer = match together.filter(|_| self.story.len().is_multiple_of(3)) {
            Some(args) => self.call("several", &owned(&args)),
            None => self.call(what, &owned(&args)),
        };
        match (text(&answer[0]).as_str(), &answer[1..]) {
            ("granted", [token]) => Reply::Granted(number(token) - self.base),
            ("queued", _) => Reply::Queued,
            ("busy", _) => Reply::Busy,
            ("done", _) => Reply::Done,
            ("gone", _) => Reply::Gone,
            ("ended", _) => Reply::Ended,
            ("forced", [grants, moved]) => Reply::Forced(number(grants), number(moved) - self.base),
            ("raised", [_, _, last]) => Reply::Raised(number(last) - self.base),
            ("refused", [code, ..]) => Reply::Refused(text(code)),
            other => panic!("{other:?}"),
        }
    }

    fn reply_of_machine(&mut self, command: Command) -> Reply {
        match self.machine.apply(command).answer {
            Ok(Answer::Granted { token }) => Reply::Granted(token.get()),
            Ok(Answer::Queued { .. }) => Reply::Queued,
            Ok(Answer::Busy) => Reply::Busy,
            Ok(Answer::Done) => Reply::Done,
            Ok(Answer::Raised { .. }) => Reply::Raised(self.machine.last_token().map_or(0, Token::get)),
            Ok(Answer::Forced { grants, moved_to }) => Reply::Forced(grants.into(), moved_to.get()),
            Ok(Answer::Opened { .. } | Answer::Matched { .. }) => unreachable!("not among the commands"),
            Err(Refusal::NoSuchSession { .. }) => Reply::Ended,
            Err(refusal) => match serde_json::to_value(&refusal).expect("JSON") {
                serde_json::Value::String(name) => Reply::Refused(name),
                object => Reply::Refused(
                    object.as_object().and_then(|fields| fields.keys().next()).expect("a name").clone(),
                ),
            },
        }
    }

    fn compare(&mut self, redis: &Reply, machine: &Reply) {
        self.story.push(format!("  -> {machine:?}"));
        assert_eq!(redis, machine, "Redis says the former, core the latter, after\n{}", self.story.join("\n"));
    }

    fn open(&mut self) {
        let label = format!("session {}", self.sessions.len());
        let session = SessionId::new(self.sessions.len() as u64 + 1).expect("not zero");
        let ttl = Ttl::from_ms(TTL_MS).expect("a TTL");
        let command = Command::OpenSession { session, ttl, label: Label::new(&label) };
        let Ok(Answer::Opened { session }) = self.machine.apply(command).answer else { panic!("no session") };
        let opened = self.call("open", &[TTL_MS.to_string(), label]);
        if self.sessions.is_empty() {
            self.base = number(&opened[3]);
            self.incarnation = text(&opened[2]);
        }
        self.sessions.insert(session, text(&opened[1]));
        self.story.push(format!("open -> {session}"));
    }

    fn known_as(&self, session: SessionId) -> String {
        self.sessions[&session].clone()
    }

    /// Lets a session expire.
    fn expire(&mut self, session: SessionId) {
        self.story.push(format!("expire {session}"));
        let field = format!("s{}", self.known_as(session));
        self.move_time(&field, 2);
        let machine = self.machine.apply(Command::ExpireSession { session });
        drop(machine);
    }

    /// Ends a lock-delay.
    fn end_delay(&mut self, lock: &LockName, token: Token) {
        self.story.push(format!("end delay of {lock} {token}"));
        let wanted = token.get() + self.base;
        let find = "for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do if f:sub(1, 1) == 'c' then \
             local c = cmsgpack.unpack(redis.call('HGET', KEYS[1], f)) \
             if c[3] == 2 and string.format('%.0f', c[4]) == ARGV[1] then return f end end end";
        let mut call = redis::cmd("EVAL");
        let field: String = call.arg(find).arg(1).arg(KEY).arg(wanted).query(&mut self.redis).expect("a claim");
        self.move_time(&field, 5);
        drop(self.machine.apply(Command::EndDelay { lock: lock.clone(), token }));
    }

    fn move_time(&mut self, field: &str, position: usize) {
        // The first bytes of a session are not MessagePack.
        let back = "local p = redis.call('HGET', KEYS[1], ARGV[1]) if not p then return end \
             local front = ARGV[1]:sub(1, 1) == 's' and 45 or 0 local r = cmsgpack.unpack(p:sub(front + 1)) \
             r[tonumber(ARGV[2])] = 0 redis.call('HSET', KEYS[1], ARGV[1], p:sub(1, front) .. cmsgpack.pack(r)) \
             redis.call('ZADD', KEYS[2], 0, ARGV[1])";
        let mut call = redis::cmd("EVAL");
        call.arg(back).arg(2).arg(KEY).arg(DUE).arg(field).arg(position);
        call.exec(&mut self.redis).expect("it can be changed");
        self.drain();
    }

    /// Polls until no call has left work to the next one, and then checks the stored data.
    fn drain(&mut self) {
        let left = "local time = redis.call('TIME') \
             return redis.call('ZCOUNT', KEYS[1], '-inf', time[1] * 1000 + math.floor(time[2] / 1000))";
        let mut calls = 0;
        loop {
            let left: u64 =
                redis::cmd("EVAL").arg(left).arg(1).arg(DUE).query(&mut self.redis).expect("it can be read");
            if left == 0 {
                break;
            }
            drop(self.call("poll", &[]));
            calls += 1;
            assert!(calls < 1_000, "it comes to no end, after\n{}", self.story.join("\n"));
        }
        let mut check = redis::cmd("EVALSHA");
        check.arg(&self.check).arg(2).arg(KEY).arg(DUE);
        let wrong: Vec<String> = check.query(&mut self.redis).expect("it can be checked");
        assert!(wrong.is_empty(), "{wrong:#?}, after\n{}", self.story.join("\n"));
    }

    /// Keeps a session alive, which also sweeps other sessions.
    fn keep_alive(&mut self, session: SessionId) {
        self.story.push(format!("keep alive {session}"));
        drop(self.call("alive", &[self.known_as(session)]));
    }

    fn acquire(&mut self, ask: Acquire) {
        self.story.push(format!("{ask:?}"));
        let number = ask.caller.number.expect("all are numbered");
        let mut args = vec![self.known_as(ask.caller.session), number.to_string()];
        args.push(if ask.patience == Patience::Try { "try.1".to_owned() } else { "wait.1".to_owned() });
        args.push(if ask.reentry == Reentry::Refuse { "refuse".to_owned() } else { "queue".to_owned() });
        args.push(ask.delay.map(|delay| delay.to_string()).unwrap_or_default());
        let value = ask.value.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        args.push(value.map(|value| format!("={value}")).unwrap_or_default());
        for want in &ask.wants {
            let (need, limit) = match want.mode {
                Mode::Exclusive => (u32::MAX, u32::MAX),
                Mode::Shared => (1, u32::MAX),
                Mode::Permits { count, of } => (count, of),
            };
            args.extend([want.lock.to_string(), need.to_string(), limit.to_string()]);
        }
        let caller = ask.caller;
        let redis = self.reply_of_redis("acquire", &args);
        let machine = self.reply_of_machine(Command::Acquire(ask));
        self.compare(&redis, &machine);
        if let Reply::Granted(token) = machine {
            self.granted.insert(token, (caller.session, number));
        }
    }

    fn cancel(&mut self, session: SessionId, number: RequestNo) {
        self.story.push(format!("cancel {session} {number}"));
        let mut args = vec![self.known_as(session), number.to_string()];
        let asked = self.asked.get(&session).and_then(|asked| asked.get(number.get() as usize - 1));
        args.extend(asked.map(|ask| ask.wants[0].lock.to_string()));
        let redis = self.reply_of_redis("cancel", &args);
        let command = Command::Cancel { caller: session.into(), waiting: Waiting::Request(number) };
        let machine = match self.machine.apply(command).answer {
            Err(Refusal::AlreadyGranted { token }) => Reply::Granted(token.get()),
            Err(Refusal::NoSuchSession { .. }) => Reply::Ended,
            _ => Reply::Gone,
        };
        self.compare(&redis, &machine);
    }

    fn release(&mut self, session: SessionId, lock: &LockName, token: u64) {
        self.story.push(format!("release {session} {lock} {token}"));
        if token.is_multiple_of(2) {
            // The client has all replies, and says so.
            self.settled.insert(session, self.asked.get(&session).map_or(0, Vec::len));
        }
        let low = self.settled.get(&session).copied().unwrap_or(0) + 1;
        let mut args =
            vec![self.known_as(session), low.to_string(), lock.to_string(), (token + self.base).to_string()];
        let request =
            self.granted.get(&token).filter(|request| request.0 == session && !self.repeated.contains(request));
        if let Some(request) = request
            && !token.is_multiple_of(3)
        {
            self.over.insert(*request);
            args.push("once".to_owned());
        }
        let redis = self.reply_of_redis("release", &args);
        let token = Token::new(token).expect("a token");
        let command = Command::Release { caller: Some(session.into()), lock: lock.clone(), token };
        let machine = self.reply_of_machine(command);
        self.compare(&redis, &machine);
    }

    fn publish(&mut self, session: SessionId, lock: &LockName, token: u64, value: &str) {
        self.story.push(format!("publish {session} {lock} {token}"));
        let args = [self.known_as(session), lock.to_string(), (token + self.base).to_string(), value.to_owned()];
        let redis = self.reply_of_redis("publish", &args);
        let command = Command::Publish {
            caller: session.into(),
            lock: lock.clone(),
            token: Token::new(token).expect("a token"),
            value: Published::new(value.as_bytes()),
        };
        let machine = self.reply_of_machine(command);
        self.compare(&redis, &machine);
    }

    fn force(&mut self, lock: &LockName, only: Option<u64>) {
        self.story.push(format!("force {lock} {only:?}"));
        let token = only.map(|token| (token + self.base).to_string()).unwrap_or_default();
        let redis = self.reply_of_redis("force", &[lock.to_string(), token, "me".to_owned(), "why".to_owned()]);
        let only = only.map(|token| Token::new(token).expect("a token"));
        let (by, reason) = (Label::new("me"), Label::new("why"));
        let machine = self.reply_of_machine(Command::ForceRelease { lock: lock.clone(), only, by, reason });
        self.compare(&redis, &machine);
    }

    fn raise(&mut self, above: u64) {
        self.story.push(format!("raise {above}"));
        let redis = self.reply_of_redis("raise", &[(above + self.base).to_string(), String::new()]);
        let machine = self.reply_of_machine(Command::RaiseTokens { above: Token::new(above).expect("a token") });
        self.compare(&redis, &machine);
    }

    fn resize(&mut self, lock: &LockName, limit: u32) {
        self.story.push(format!("resize {lock} {limit}"));
        let redis = self.reply_of_redis("resize", &[lock.to_string(), limit.to_string()]);
        let machine = self.reply_of_machine(Command::Resize { lock: lock.clone(), limit });
        self.compare(&redis, &machine);
    }

    fn close(&mut self, session: SessionId) {
        self.story.push(format!("close {session}"));
        let redis = self.reply_of_redis("close", &[self.known_as(session)]);
        let machine = self.reply_of_machine(Command::CloseSession { session });
        self.compare(&redis, &machine);
    }

    /// Everything that can be seen of a lock: limit, holders, waiters, value, history.
    fn seen_in_machine(&self, lock: &str) -> Option<String> {
        let view = self.machine.lock(&name(lock))?;
        let limit = match view.kind() {
            Kind::Lock => u32::MAX,
            Kind::Semaphore { limit } => limit,
        };
        let need = |mode| match mode {
            Mode::Exclusive => u32::MAX,
            Mode::Shared => 1,
            Mode::Permits { count, .. } => count,
        };
        let holders: Vec<_> = view
            .holders()
            .map(|grant| {
                let owner = match grant.state {
                    GrantState::Held { session, label } => format!("{} {}", self.known_as(session), label.as_str()),
                    GrantState::Withheld => "nobody".to_owned(),
                };
                format!("{} {} {owner}", grant.token.get(), need(grant.mode))
            })
            .collect();
        let waiters: Vec<_> = view
            .waiters()
            .map(|waiter| {
                format!("{} {} {}", self.known_as(waiter.session), waiter.label.as_str(), need(waiter.mode))
            })
            .collect();
        let value = view.value().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let history: Vec<_> = view
            .history()
            .map(|ended| {
                let how = format!("{:?}", ended.how);
                let how = ["Released", "Closed", "Expired", "Forced"].into_iter().find(|word| how.contains(word));
                format!("{} {} {}", ended.token.get(), self.known_as(ended.session), how.unwrap_or_default())
            })
            .collect();
        Some(format!("{limit} {holders:?} {waiters:?} {value:?} {history:?}"))
    }

    fn seen_in_redis(&self, locks: &[Value], lock: &str) -> Option<String> {
        let found = locks.iter().find(|found| text(&items(found)[0]) == lock)?;
        let [_, limit, holders, waiters, value, history] = items(found) else { panic!("a lock") };
        let base = self.base;
        let holders: Vec<_> = items(holders)
            .iter()
            .map(|holder| {
                let [token, need, owner, label, ..] = items(holder) else { panic!("a holder") };
                let owner = match owner {
                    Value::Nil => "nobody".to_owned(),
                    owner => format!("{} {}", text(owner), text(label)),
                };
                format!("{} {} {owner}", number(token) - base, number(need))
            })
            .collect();
        let waiters: Vec<_> = items(waiters)
            .iter()
            .map(|waiter| {
                let [owner, label, need] = items(waiter) else { panic!("a waiter") };
                format!("{} {} {}", text(owner), text(label), number(need))
            })
            .collect();
        let value = if *value == Value::Nil { None } else { Some(text(value)) };
        let history: Vec<_> = items(history)
            .iter()
            .map(|ended| {
                let [token, owner, _, how] = items(ended) else { panic!("an end") };
                let how = match how {
                    Value::Array(_) => "Forced",
                    word => match text(word).as_str() {
                        "released" => "Released",
                        "closed" => "Closed",
                        _ => "Expired",
                    },
                };
                format!("{} {} {how}", number(token) - base, text(owner))
            })
            .collect();
        Some(format!("{} {holders:?} {waiters:?} {value:?} {history:?}", number(limit)))
    }

    fn look(&mut self) {
        self.drain();
        let names: Vec<_> = LOCKS.into_iter().chain([SEMAPHORE]).map(str::to_owned).collect();
        let answer = self.call("inspect", &names);
        for lock in LOCKS.into_iter().chain([SEMAPHORE]) {
            let (redis, machine) = (self.seen_in_redis(items(&answer[1]), lock), self.seen_in_machine(lock));
            let story = self.story.join("\n");
            assert_eq!(redis, machine, "'{lock}' in Redis is the former, in core the latter, after\n{story}");
        }
    }

    /// Returns the current grants: session, lock, token.
    fn grants(&self) -> Vec<(Option<SessionId>, &'static str, u64)> {
        let mut grants = Vec::new();
        for lock in LOCKS.into_iter().chain([SEMAPHORE]) {
            for grant in self.machine.lock(&name(lock)).iter().flat_map(|view| view.holders()) {
                let owner = match grant.state {
                    GrantState::Held { session, .. } => Some(session),
                    GrantState::Withheld => None,
                };
                grants.push((owner, lock, grant.token.get()));
            }
        }
        grants
    }

    fn a_request(&mut self, rng: &mut Rng, session: SessionId) -> Acquire {
        let asked = self.asked.entry(session).or_default();
        let settled = self.settled.get(&session).copied().unwrap_or(0);
        let is_over =
            |at: &usize| asked[*at].caller.number.is_some_and(|number| self.over.contains(&(session, number)));
        if rng.one_in(8)
            && let Some(again) = rng.pick(&(settled..asked.len()).filter(|at| !is_over(at)).collect::<Vec<_>>())
        {
            self.repeated.extend(asked[again].caller.number.map(|number| (session, number)));
            return asked[again].clone();
        }
        let caller = Caller { session, number: RequestNo::new(asked.len() as u64 + 1).ok() };
        let mode = |rng: &mut Rng| if rng.one_in(3) { Mode::Shared } else { Mode::Exclusive };
        let mut wants = Vec::new();
        match rng.below(6) {
            0 => wants.push(Want {
                lock: name(SEMAPHORE),
                mode: Mode::Permits { count: rng.below(3) as u32 + 1, of: if rng.one_in(6) { 4 } else { 3 } },
            }),
            1 => {
                let first = rng.below(3) as usize;
                for step in 0..2 + rng.below(2) as usize {
                    wants.push(Want { lock: name(LOCKS[(first + step) % 3]), mode: mode(rng) });
                }
            }
            2 if rng.one_in(8) => wants.push(Want { lock: name(SEMAPHORE), mode: Mode::Exclusive }),
            _ => wants.push(Want { lock: name(LOCKS[rng.below(3) as usize]), mode: mode(rng) }),
        }
        let can_publish = wants.len() == 1 && wants[0].mode == Mode::Exclusive;
        let mut ask = Acquire::many(caller, wants);
        ask.patience = if rng.one_in(4) { Patience::Try } else { Patience::Wait };
        ask.reentry = if rng.one_in(5) { Reentry::Refuse } else { Reentry::Queue };
        ask.delay = rng.one_in(4).then(|| Delay::from_ms(3_600_000).expect("a delay"));
        ask.value = (can_publish && rng.one_in(3)).then(|| Published::new(b"value"));
        asked.push(ask.clone());
        ask
    }

    fn step(&mut self, rng: &mut Rng) {
        let mut sessions: Vec<_> = self.sessions.keys().copied().collect();
        sessions.sort_unstable();
        let Some(session) = rng.pick(&sessions) else { return self.open() };
        let grants = self.grants();
        match rng.below(24) {
            0 if sessions.len() < 6 => self.open(),
            1 if rng.one_in(2) => self.close(session),
            2 | 3 if self.machine.session(session).is_some() && rng.one_in(2) => self.expire(session),
            4 => {
                let held = self.machine.withheld().map(|(locks, token, _)| (locks[0].clone(), token)).next();
                if let Some((lock, token)) = held {
                    self.end_delay(&lock, token);
                }
            }
            5 => {
                let next = self.asked.get(&session).map_or(0, Vec::len) as u64 + 1;
                // A cancelled number that was not sent yet is never used: it must not be taken for a repeat later.
                let settled = self.settled.get(&session).copied().unwrap_or(0) as u64;
                let number = settled + rng.below(next - settled) + 1;
                if RequestNo::new(number).is_ok_and(|number| self.over.contains(&(session, number))) {
                    return;
                }
                if number == next {
                    let ask = self.a_request_of(session, next);
                    self.asked.entry(session).or_default().push(ask);
                }
                self.cancel(session, RequestNo::new(number).expect("not 0"));
            }
            6..=11 => {
                let Some((owner, lock, token)) = rng.pick(&grants) else { return };
                let owner = owner.filter(|_| !rng.one_in(10)).unwrap_or(session);
                let lock = if rng.one_in(12) { LOCKS[rng.below(3) as usize] } else { lock };
                let token = if rng.one_in(12) { token + rng.below(3) } else { token };
                self.release(owner, &name(lock), token);
            }
            12 => {
                let Some((owner, lock, token)) = rng.pick(&grants) else { return };
                self.publish(owner.unwrap_or(session), &name(lock), token, "another");
            }
            13 => match rng.pick(&grants) {
                Some((_, lock, token)) => self.force(&name(lock), rng.one_in(2).then_some(token)),
                None => self.force(&name("a"), None),
            },
            15 if rng.one_in(3) => {
                let last = self.machine.last_token().map_or(0, Token::get);
                self.raise((last + rng.below(6)).saturating_sub(2).max(1));
            }
            15 => self.keep_alive(session),
            14 => self.resize(&name(if rng.one_in(6) { "a" } else { SEMAPHORE }), rng.below(4) as u32 + 1),
            _ => {
                let ask = self.a_request(rng, session);
                self.acquire(ask);
            }
        }
    }

    fn a_request_of(&self, session: SessionId, number: u64) -> Acquire {
        let caller = Caller { session, number: RequestNo::new(number).ok() };
        Acquire { patience: Patience::Wait, ..Acquire::exclusive(caller, name("a")) }
    }
}

#[test]
#[ignore = "long: random histories"]
fn redis_decides_as_the_rules_do() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150);
    let first = Seed::first(1);
    let folder = tempfile::tempdir().expect("a folder");
    let server = servers::Redis::start(folder.path(), "no").unwrap_or_else(|absent| panic!("{absent}"));
    let client = redis::Client::open(server.url()).expect("an address");
    for seed in first..first + cases {
        let _seed = Seed::new(seed, "PROPTEST_CASES");
        let connection = client.get_connection().expect("a connection");
        let mut pair = Pair::new(connection, seed.is_multiple_of(2), seed % 4 < 2);
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        pair.story.push(format!("PALISADE_SEED={seed}"));
        for _ in 0..STEPS {
            pair.step(&mut rng);
            pair.look();
        }
        for session in pair.sessions.keys().copied().collect::<Vec<_>>() {
            pair.close(session);
            pair.drain();
        }
        let withheld: Vec<_> = pair.machine.withheld().map(|(locks, token, _)| (locks, token)).collect();
        for (locks, token) in withheld {
            pair.end_delay(&locks[0], token);
        }
        let mut left: Vec<String> = redis::cmd("HKEYS").arg(KEY).query(&mut pair.redis).expect("fields");
        left.sort();
        assert_eq!(left, ["about", "r", "token"], "something is left behind, after\n{}", pair.story.join("\n"));
    }
}
