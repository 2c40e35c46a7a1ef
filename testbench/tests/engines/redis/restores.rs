//! Random calls of several clients, with restarts of the server and older data restored between any two of them. A restart is a
//! new run id, and older data are the two keys as they were.

use std::collections::{HashMap, HashSet};

use palisade_testbench::conformance::seed::Seed;
use palisade_testbench::servers;
use redis::{Connection, Value};

use super::model::{CALL, CHECK, FAST_PATH, FORCED, RULES, Rng, items, number, text};

const KEYS: [&str; 2] = ["palisade:{restores}:locks", "palisade:{restores}:locks:due"];
const LOCKS: [&str; 4] = ["a", "b", "c", "d"];
const ALL: &str = "4294967295";
const TTL_MS: &str = "3600000";
const STEPS: usize = 120;

/// What a client knows, and what it believes to hold.
#[derive(Debug, Default)]
struct Client {
    incarnation: String,
    seen: u64,
    known_run: String,
    /// Whether it has attached in this run of the server.
    is_greeted: bool,
    session: Option<String>,
    requests: u64,
    held: HashMap<u64, &'static str>,
    waits: HashMap<u64, &'static str>,
    /// Whether the data have lost a token that it has seen.
    has_lost: bool,
}

/// The keys as they were.
struct Backup {
    keys: Vec<Option<Vec<u8>>>,
    last: u64,
    runs: HashSet<String>,
}

struct World {
    redis: Connection,
    script: String,
    check: String,
    clients: Vec<Client>,
    run: String,
    runs: HashSet<String>,
    runs_begun: u64,
    last: u64,
    backup: Option<Backup>,
    tokens: HashSet<u64>,
    sessions: HashSet<String>,
    story: Vec<String>,
}

impl World {
    fn new(mut redis: Connection, is_forced: bool) -> World {
        redis::cmd("FLUSHALL").exec(&mut redis).expect("it is ours");
        let forced = if is_forced { FORCED } else { "" };
        let mut load = |script: String| redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut redis);
        let script = load(format!("{FAST_PATH}\n{RULES}{forced}{CALL}")).expect("the script");
        let check = load(format!("{RULES}{CHECK}return rule.check(KEYS)")).expect("the check");
        World {
            redis,
            script,
            check,
            clients: (0..4).map(|_| Client::default()).collect(),
            run: "run0".to_owned(),
            runs: HashSet::new(),
            runs_begun: 0,
            last: 0,
            backup: None,
            tokens: HashSet::new(),
            sessions: HashSet::new(),
            story: Vec::new(),
        }
    }

    fn story(&self) -> String {
        self.story.join("\n")
    }

    /// Sends a request as a client does; `None` if the reply reports a loss of data.
    fn call(&mut self, client: usize, what: &str, args: &[&str]) -> Option<Vec<Value>> {
        let Client { incarnation, seen, .. } = &self.clients[client];
        self.story.push(format!("{client}: {what} {args:?} seen {seen}"));
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.script).arg(2).arg(&KEYS).arg(what).arg(incarnation).arg(seen).arg("channel").arg(args);
        let answer = match call.query(&mut self.redis) {
            Ok(Value::Array(answer)) => answer,
            Ok(Value::Int(0)) => vec![Value::SimpleString("done".to_owned())],
            Ok(token @ Value::Int(_)) => vec![Value::SimpleString("granted".to_owned()), token],
            other => panic!("{other:?} after\n{}", self.story()),
        };
        self.story.push(format!("  -> {answer:?}"));
        let last: Option<String> =
            redis::cmd("HGET").arg(KEYS[0]).arg("token").query(&mut self.redis).expect("it is read");
        self.last = last.map_or(0, |last| last.parse().expect("digits"));
        (text(&answer[0]) != "lost").then_some(answer)
    }

    /// Attaches a client in a new run of the server. A client whose data were lost gets an error, and is replaced.
    fn greet(&mut self, client: usize) {
        let Client { known_run, session, held, .. } = &self.clients[client];
        let (run, known) = (self.run.clone(), known_run.clone());
        let mut args = vec![run.clone(), known.clone()];
        if let Some(session) = session {
            args.extend([session.clone(), held.len().to_string()]);
            args.extend(held.iter().flat_map(|(token, lock)| [(*lock).to_owned(), token.to_string()]));
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let Some(answer) = self.call(client, "attach", &args) else {
            let is_known = known.is_empty() || self.runs.contains(&known);
            let has_lost = self.clients[client].has_lost;
            assert!(has_lost || !is_known, "{client} is told of a loss that was none, after\n{}", self.story());
            self.clients[client] = Client::default();
            return;
        };
        assert!(!self.clients[client].has_lost, "{client} is not told of its loss, after\n{}", self.story());
        let [_, incarnation, last, sessions, known_run] = &answer[..] else { panic!("{answer:?}") };
        let (incarnation, known_run) = (text(incarnation), text(known_run));
        self.runs.extend(Some(known_run.clone()).filter(|run| !run.is_empty()));
        let client = &mut self.clients[client];
        (client.is_greeted, client.known_run) = (true, known_run);
        client.seen = client.seen.max(number(last));
        if !incarnation.is_empty() {
            client.incarnation = incarnation;
        }
        match items(sessions) {
            [Value::Nil] => (client.session, client.held, client.waits) = (None, HashMap::new(), HashMap::new()),
            [held] => {
                let found: HashSet<_> = items(held).iter().map(number).collect();
                let missing: Vec<_> = client.held.keys().filter(|token| !found.contains(token)).collect();
                assert!(missing.is_empty(), "{missing:?} was lost silently, after\n{}", self.story.join("\n"));
            }
            _ => {}
        }
    }

    fn granted(&mut self, client: usize, token: u64, lock: &'static str) {
        assert!(self.tokens.insert(token), "{token} is given twice, after\n{}", self.story());
        let client = &mut self.clients[client];
        client.seen = client.seen.max(token);
        client.held.insert(token, lock);
    }

    fn open(&mut self, client: usize) {
        let run = self.run.clone();
        let Some(opened) = self.call(client, "open", &[TTL_MS, "label", &run]) else { panic!("{}", self.story()) };
        let [_, session, incarnation, last, run] = &opened[..] else { panic!("{opened:?}") };
        let (session, run) = (text(session), text(run));
        assert!(self.sessions.insert(session.clone()), "session {session} is given twice, after\n{}", self.story());
        self.runs.extend(Some(run.clone()).filter(|run| !run.is_empty()));
        let client = &mut self.clients[client];
        (client.session, client.incarnation, client.known_run) = (Some(session), text(incarnation), run);
        client.seen = client.seen.max(number(last));
    }

    fn acquire(&mut self, client: usize, lock: &'static str, patience: &str) {
        self.clients[client].requests += 1;
        let request = self.clients[client].requests;
        let (session, number_of) = (self.clients[client].session.clone().expect("a session"), request.to_string());
        let patience = format!("{patience}.1");
        let args = [&session, &number_of, &patience, "queue", "", "", lock, ALL, ALL];
        let Some(answer) = self.call(client, "acquire", &args) else { panic!("{}", self.story()) };
        match text(&answer[0]).as_str() {
            "granted" => self.granted(client, number(&answer[1]), lock),
            "queued" => drop(self.clients[client].waits.insert(request, lock)),
            _ => {}
        }
    }

    fn poll(&mut self, client: usize) {
        let session = self.clients[client].session.clone().expect("a session");
        for (request, lock) in self.clients[client].waits.clone() {
            let Some(polled) = self.call(client, "poll", &[&session, &request.to_string()]) else {
                panic!("{}", self.story())
            };
            let state = items(&items(&polled[2])[0]);
            match text(&state[0]).as_str() {
                "granted" => {
                    self.clients[client].waits.remove(&request);
                    self.granted(client, number(&state[1]), lock);
                }
                // The request was lost. A real client repeats it with the same number; here it gives up.
                "unknown" => drop(self.clients[client].waits.remove(&request)),
                _ => {}
            }
        }
    }

    fn release(&mut self, client: usize, token: u64) {
        let session = self.clients[client].session.clone().expect("a session");
        let lock = self.clients[client].held.remove(&token).expect("it is held");
        let args = [&session, "1", lock, &token.to_string()];
        let Some(answer) = self.call(client, "release", &args) else { panic!("{}", self.story()) };
        assert_eq!(text(&answer[0]), "done", "after\n{}", self.story());
    }

    fn back_up(&mut self) {
        self.story.push("backup".to_owned());
        let keys = KEYS.map(|key| redis::cmd("DUMP").arg(key).query(&mut self.redis).expect("it is read")).to_vec();
        self.backup = Some(Backup { keys, last: self.last, runs: self.runs.clone() });
    }

    /// The server is started again: with all its data, or with those of the backup.
    fn restart(&mut self, is_older: bool) {
        self.runs_begun += 1;
        self.run = format!("run{}", self.runs_begun);
        for client in &mut self.clients {
            client.is_greeted = false;
        }
        let Some(backup) = self.backup.as_ref().filter(|_| is_older) else {
            return self.story.push(format!("restart as {}", self.run));
        };
        self.story.push(format!("restart as {} from older data", self.run));
        for (key, dump) in KEYS.iter().zip(&backup.keys) {
            redis::cmd("DEL").arg(key).exec(&mut self.redis).expect("it is ours");
            if let Some(dump) = dump {
                redis::cmd("RESTORE").arg(key).arg(0).arg(dump).exec(&mut self.redis).expect("it is restored");
            }
        }
        (self.last, self.runs) = (backup.last, backup.runs.clone());
        for client in &mut self.clients {
            client.has_lost |= client.seen > self.last;
            // A waiter may be granted a token that it had before in the lost data, and gives up here.
            client.waits.clear();
            // A grant that was released after the backup exists again, and no client here knows of it.
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let client = rng.below(4) as usize;
        match rng.below(16) {
            0 => return self.restart(false),
            1 if self.backup.is_some() => return self.restart(true),
            2 | 3 => return self.back_up(),
            _ => {}
        }
        if !self.clients[client].is_greeted {
            return self.greet(client);
        }
        if self.clients[client].session.is_none() {
            return self.open(client);
        }
        let held: Vec<_> = self.clients[client].held.keys().copied().collect();
        match (rng.below(6), rng.pick(&held)) {
            (0, _) => {
                let session = self.clients[client].session.clone().expect("a session");
                drop(self.call(client, "alive", &[&session]));
            }
            (1, _) => self.poll(client),
            (2 | 3, Some(token)) => self.release(client, token),
            (4, _) => self.acquire(client, LOCKS[rng.below(4) as usize], "wait"),
            _ => self.acquire(client, LOCKS[rng.below(4) as usize], "try"),
        }
    }

    fn assert_sound(&mut self) {
        let mut check = redis::cmd("EVALSHA");
        let wrong: Vec<String> =
            check.arg(&self.check).arg(2).arg(&KEYS).query(&mut self.redis).expect("it is checked");
        assert!(wrong.is_empty(), "{wrong:#?}, after\n{}", self.story());
    }
}

#[test]
#[ignore = "long: restarts on older data"]
fn a_loss_is_reported_to_its_sessions_and_no_token_repeats() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150);
    let first = Seed::first(1);
    let folder = tempfile::tempdir().expect("a folder");
    let server = servers::Redis::start(folder.path(), "no").unwrap_or_else(|absent| panic!("{absent}"));
    let client = redis::Client::open(server.url()).expect("an address");
    for seed in first..first + cases {
        let _seed = Seed::new(seed, "PROPTEST_CASES");
        let mut world = World::new(client.get_connection().expect("a connection"), seed.is_multiple_of(2));
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        world.story.push(format!("PALISADE_SEED={seed}"));
        for _ in 0..STEPS {
            world.step(&mut rng);
            world.assert_sound();
        }
    }
}
