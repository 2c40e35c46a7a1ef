//! The engine `embedded:` on real files, with several instances and real processes.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::engine::embedded::{Config, Embedded};
use palisade::engine::{
    Acquired, Cancelled, Engine, Failure, Level, Notice, Offers, Opened, Order, Released, Watched,
};
use palisade::{BootInstant, Event, LockName, SessionId, Token};
use palisade_core::{Acquire, Caller, Delay, Ending, Label, Patience, RequestNo, SessionEnd, Ttl};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::LocalSet;

const LONG: u64 = 10 * 60 * 1000;

fn run(test: impl Future<Output = ()>) {
    LocalSet::new().block_on(&runtime(), in_time(test));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    // Only so that it ends: hundreds of flushes on a busy disk take more than half a minute.
    tokio::time::timeout(Duration::from_secs(300), work).await.expect("took too long")
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    async fn connect(&self) -> Embedded {
        Embedded::connect(Config::at(self.file())).await.unwrap()
    }

    fn sql(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.file()).unwrap()
    }

    /// How many batches were ever committed.
    fn batches(&self) -> i64 {
        self.sql().query_row("SELECT coalesce(max(seq), 0) FROM log", [], |row| row.get(0)).unwrap()
    }

    /// The names beside the database.
    fn session_files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path().join("locks.db-sessions")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

async fn open(engine: &Embedded, ttl_ms: u64) -> Opened {
    engine.open_session(Ttl::from_ms(ttl_ms).unwrap(), Label::new("test")).await.unwrap()
}

fn ask(session: SessionId, lock: &str, patience: Patience, number: u64) -> Acquire {
    let caller = Caller { session, number: Some(RequestNo::new(number).unwrap()) };
    Acquire { patience, ..Acquire::exclusive(caller, name(lock)) }
}

async fn attempt(engine: &Embedded, session: SessionId, lock: &str) -> Option<Token> {
    match engine.acquire(Acquire::exclusive(session, name(lock))).await.unwrap() {
        Acquired::Granted { token } => Some(token),
        Acquired::Busy => None,
    }
}

async fn wait(engine: &Embedded, session: SessionId, lock: &str, number: u64) -> Token {
    match in_time(engine.acquire(ask(session, lock, Patience::Wait, number))).await.unwrap() {
        Acquired::Granted { token } => token,
        Acquired::Busy => panic!("a wait is not answered with busy"),
    }
}

async fn until_queued(engine: &Embedded, lock: &str, count: usize) {
    while engine.inspect(name(lock)).await.unwrap().is_none_or(|info| info.waiters.len() != count) {
        tokio::task::yield_now().await;
    }
}

async fn failed(config: Config) -> String {
    match Embedded::connect(config).await {
        Ok(_) => panic!("connected"),
        Err(Failure::Unavailable(why)) => {
            assert!(!why.may_have_taken_effect && !why.is_retryable, "{why:?}");
            why.what
        }
        Err(other) => panic!("{other:?}"),
    }
}

// --- processes ---

/// A process that does what `act` says, and the lines it has printed.
struct Actor {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Actor {
    fn start(role: &str, file: &Path, ttl_ms: u64) -> Actor {
        Actor::from(Command::new(std::env::current_exe().unwrap()), role, file, ttl_ms)
    }

    fn from(mut command: Command, role: &str, file: &Path, ttl_ms: u64) -> Actor {
        command.args(["--exact", "act", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("PALISADE_TEST_ROLE", role).env("PALISADE_TEST_FILE", file);
        command.env("PALISADE_TEST_TTL", ttl_ms.to_string());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Actor { child, lines }
    }

    /// The rest of the line that it prints with this word in front.
    fn hear(&mut self, word: &str) -> String {
        for line in &mut self.lines {
            let line = line.unwrap();
            if let Some((_, rest)) = line.split_once(&format!("actor {word} ")) {
                return rest.to_owned();
            }
        }
        panic!("the actor ended without saying {word}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Not a test, but what the other processes of the tests do; returns at once unless it is one of them.
#[test]
#[expect(clippy::print_stdout, reason = "this is how it talks to the test")]
fn act() {
    let Ok(role) = std::env::var("PALISADE_TEST_ROLE") else { return };
    let file = PathBuf::from(std::env::var_os("PALISADE_TEST_FILE").unwrap());
    let ttl_ms: u64 = std::env::var("PALISADE_TEST_TTL").unwrap().parse().unwrap();
    run(async move {
        let engine = match Embedded::connect(Config::at(file)).await {
            Ok(engine) => engine,
            Err(error) => return println!("actor failed {error}"),
        };
        let before = BootInstant::now();
        let Opened { session, .. } = open(&engine, ttl_ms).await;
        match role.as_str() {
            "hold" => {
                let token = attempt(&engine, session, "a").await.unwrap();
                println!("actor holds {token}");
                println!("actor began {}", BootInstant::now().since(before).as_nanos());
                std::future::pending::<()>().await;
            }
            "queue" => {
                println!("actor queues {session}");
                wait(&engine, session, "a", 1).await;
            }
            "count" => {
                for number in 1..=200 {
                    let token = wait(&engine, session, "a", number).await;
                    let counter = PathBuf::from(std::env::var_os("PALISADE_TEST_FILE").unwrap()).with_file_name("n");
                    let count: u64 = fs::read_to_string(&counter).unwrap().parse().unwrap();
                    fs::write(&counter, (count + 1).to_string()).unwrap();
                    engine.release(session, name("a"), token).await.unwrap();
                }
                println!("actor counted {session}");
            }
            "append" => {
                let uses = PathBuf::from(std::env::var_os("PALISADE_TEST_FILE").unwrap()).with_file_name("uses");
                let mut uses = fs::OpenOptions::new().append(true).create(true).open(uses).unwrap();
                for number in 1.. {
                    let token = wait(&engine, session, "a", number).await;
                    uses.write_all(format!("{token:>9}\n").as_bytes()).unwrap();
                    engine.release(session, name("a"), token).await.unwrap();
                }
            }
            other => panic!("there is no role {other}"),
        }
    });
}

// --- promises ---

#[test]
fn it_declares_what_it_promises() {
    run(async {
        let guarantees = Place::new().connect().await.guarantees();
        assert_eq!((guarantees.engine, guarantees.level, guarantees.order), ("embedded", Level::Fenced, Order::Fair));
        assert_eq!(guarantees.offers, Offers { signed: false, ..Offers::ALL });
    });
}

#[test]
fn instances_are_served_in_the_order_in_which_they_asked() {
    run(async {
        let place = Place::new();
        let engines = [place.connect().await, place.connect().await, place.connect().await];
        let holder = open(&engines[0], LONG).await.session;
        let held = attempt(&engines[0], holder, "a").await.unwrap();
        let mut waits = Vec::new();
        for n in 0..6 {
            let engine = engines[n % 3].clone();
            let session = open(&engine, LONG).await.session;
            waits.push((session, tokio::task::spawn_local(async move { wait(&engine, session, "a", 1).await })));
            until_queued(&engines[0], "a", n + 1).await;
        }
        engines[0].release(holder, name("a"), held).await.unwrap();
        let mut last = held;
        for (n, (session, wait)) in waits.into_iter().enumerate() {
            let token = in_time(wait).await.unwrap();
            assert!(token > last);
            last = token;
            assert_eq!(engines[n % 3].release(session, name("a"), token).await.unwrap(), Released::Now);
        }
    });
}

#[test]
fn tokens_rise_over_restarts() {
    let place = Place::new();
    let mut last = 0;
    for _ in 0..4 {
        run(async {
            let engine = place.connect().await;
            let session = open(&engine, LONG).await.session;
            for _ in 0..3 {
                let token = attempt(&engine, session, "a").await.expect("an earlier holder is gone");
                assert!(token.get() > last);
                last = token.get();
                if last % 2 == 0 {
                    break;
                }
                engine.release(session, name("a"), token).await.unwrap();
            }
        });
    }
}

#[test]
fn calls_that_come_together_are_committed_together() {
    run(async {
        let place = Place::new();
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        let before = place.batches();
        let locks: Vec<_> = (0..64).map(|n| n.to_string()).collect();
        let granted = futures_util::future::join_all(locks.iter().map(|lock| attempt(&engine, session, lock))).await;
        assert!(granted.iter().all(Option::is_some));
        assert!(place.batches() - before <= 2, "{} batches", place.batches() - before);
    });
}

#[test]
fn busy_is_not_written() {
    run(async {
        let place = Place::new();
        let (alice, bob) = (place.connect().await, place.connect().await);
        let (a, b) = (open(&alice, LONG).await.session, open(&bob, LONG).await.session);
        attempt(&alice, a, "a").await.unwrap();
        let before = place.batches();
        for number in 1..10 {
            let busy = bob.acquire(ask(b, "a", Patience::Try, number)).await.unwrap();
            assert_eq!(busy, Acquired::Busy);
        }
        assert_eq!(place.batches(), before);
    });
}

#[test]
fn a_try_that_was_granted_is_found_by_its_number() {
    run(async {
        let place = Place::new();
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        let granted = engine.acquire(ask(session, "a", Patience::Try, 7)).await.unwrap();
        let Acquired::Granted { token } = granted else { panic!("{granted:?}") };
        let number = RequestNo::new(7).unwrap();
        assert_eq!(engine.cancel(session, number).await.unwrap(), Cancelled::WasGranted { token });
        let again = engine.acquire(ask(session, "a", Patience::Try, 7)).await.unwrap();
        assert_eq!(again, granted, "a repeat gets the first answer");
    });
}

#[test]
fn an_acquire_that_is_dropped_and_cancelled_leaves_nothing() {
    run(async {
        let place = Place::new();
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        let held = attempt(&engine, session, "a").await.unwrap();
        let other = open(&engine, LONG).await.session;
        for number in 1..20 {
            let waiting = engine.acquire(ask(other, "a", Patience::Wait, number));
            // Dropped before, during and after its commit.
            drop(tokio::time::timeout(Duration::from_micros(number * 50), waiting).await);
            let cancelled = engine.cancel(other, RequestNo::new(number).unwrap()).await.unwrap();
            assert_eq!(cancelled, Cancelled::Gone);
        }
        assert_eq!(engine.inspect(name("a")).await.unwrap().unwrap().waiters, []);
        engine.release(session, name("a"), held).await.unwrap();
        assert_eq!(engine.inspect(name("a")).await.unwrap(), None);
    });
}

#[test]
fn the_lock_of_a_killed_process_is_granted_without_waiting_for_the_ttl() {
    let place = Place::new();
    let mut actor = Actor::start("hold", &place.file(), LONG);
    let held: u64 = actor.hear("holds").parse().unwrap();
    run(async {
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        let waiting = wait(&engine, session, "a", 1);
        let kill = async {
            until_queued(&engine, "a", 1).await;
            actor.kill();
        };
        let (token, ()) = futures_util::future::join(waiting, kill).await;
        assert!(token.get() > held);
    });
}

#[test]
fn a_try_finds_out_that_the_holder_was_killed() {
    let place = Place::new();
    let mut actor = Actor::start("hold", &place.file(), LONG);
    actor.hear("holds");
    run(async {
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        assert_eq!(attempt(&engine, session, "a").await, None);
        actor.kill();
        assert!(attempt(&engine, session, "a").await.is_some());
    });
}

#[test]
fn a_waiter_that_was_killed_is_skipped() {
    let place = Place::new();
    run(async {
        let engine = place.connect().await;
        let (holder, waiter) = (open(&engine, LONG).await.session, open(&engine, LONG).await.session);
        let held = attempt(&engine, holder, "a").await.unwrap();
        let mut actors = [(); 3].map(|()| Actor::start("queue", &place.file(), LONG));
        actors.iter_mut().for_each(|actor| drop(actor.hear("queues")));
        until_queued(&engine, "a", 3).await;
        let waiting = wait(&engine, waiter, "a", 1);
        let release = async {
            until_queued(&engine, "a", 4).await;
            actors.iter_mut().for_each(Actor::kill);
            engine.release(holder, name("a"), held).await.unwrap();
        };
        let (token, ()) = futures_util::future::join(waiting, release).await;
        assert!(token > held);
    });
}

#[test]
fn a_stopped_holder_loses_its_lock_at_its_ttl_and_not_before() {
    let (place, ttl) = (Place::new(), Duration::from_millis(1_500));
    let mut actor = Actor::start("hold", &place.file(), ttl.as_millis() as u64);
    actor.hear("holds");
    let took = Duration::from_nanos(actor.hear("began").parse().unwrap());
    let heard = BootInstant::now();
    actor.signal(Signal::STOP);
    run(async {
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        let left = engine.inspect(name("a")).await.unwrap().unwrap().holders[0].time_left_ms.unwrap();
        let looked = BootInstant::now();
        wait(&engine, session, "a", 1).await;
        let waited = BootInstant::now().since(looked);
        assert!(waited >= Duration::from_millis(left.saturating_sub(10)), "{left} ms were left, it took {waited:?}");
        assert!(BootInstant::now().since(heard) + took < ttl + Duration::from_secs(1), "long after its TTL");
    });
}

#[test]
fn a_session_is_not_ended_before_its_ttl_has_passed() {
    run(async {
        let place = Place::new();
        let (alice, bob) = (place.connect().await, place.connect().await);
        let opening = BootInstant::now();
        let mut opened = open(&alice, 400).await;
        attempt(&alice, opened.session, "a").await.unwrap();
        let b = open(&bob, LONG).await.session;
        wait(&bob, b, "a", 1).await;
        assert!(BootInstant::now().since(opening) >= Duration::from_millis(400));
        let grant = in_time(opened.notices.recv()).await;
        assert!(matches!(grant, Some(Notice::GrantEnded { .. })), "{grant:?}");
        assert_eq!(in_time(opened.notices.recv()).await, Some(Notice::SessionEnded(SessionEnd::Expired)));
        assert!(matches!(alice.keep_alive(opened.session).await, Err(Failure::SessionEnded)));
    });
}

#[test]
fn a_session_that_nobody_misses_ends_by_itself() {
    run(async {
        let place = Place::new();
        let engine = place.connect().await;
        let mut opened = open(&engine, 200).await;
        assert_eq!(in_time(opened.notices.recv()).await, Some(Notice::SessionEnded(SessionEnd::Expired)));
        assert!(matches!(engine.keep_alive(opened.session).await, Err(Failure::SessionEnded)));
        assert_eq!(place.session_files(), [""; 0]);
    });
}

#[test]
fn a_keep_alive_extends_the_session_and_writes_nothing_to_the_log() {
    run(async {
        let place = Place::new();
        let (alice, bob) = (place.connect().await, place.connect().await);
        let (a, b) = (open(&alice, 600).await.session, open(&bob, LONG).await.session);
        attempt(&alice, a, "a").await.unwrap();
        let before = place.batches();
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            alice.keep_alive(a).await.unwrap();
            assert_eq!(attempt(&bob, b, "a").await, None, "it lives");
        }
        assert_eq!(place.batches(), before);
    });
}

#[test]
fn a_reboot_ends_all_sessions_but_those_that_were_left() {
    run(async {
        let place = Place::new();
        let boot = |id: &str| Config { boot_id: Some(id.to_owned()), ..Config::at(place.file()) };
        let before = Embedded::connect(boot("before")).await.unwrap();
        let old = open(&before, LONG).await.session;
        let left = open(&before, LONG).await.session;
        let held = attempt(&before, old, "a").await.unwrap();
        let kept = attempt(&before, left, "b").await.unwrap();
        before.leave_session(left).await.unwrap();
        drop(before);
        let after = Embedded::connect(boot("after")).await.unwrap();
        let held_still = after.list(String::new()).await.unwrap();
        let holders: Vec<_> = held_still.iter().map(|lock| (lock.name.as_str(), lock.holders[0].token)).collect();
        assert_eq!(holders, [("b", kept)]);
        let time_left_ms = held_still[0].holders[0].time_left_ms.unwrap();
        assert!(time_left_ms > LONG - 5_000, "it has its full TTL again, not {time_left_ms} ms");
        let session = open(&after, LONG).await.session;
        assert!(attempt(&after, session, "a").await.unwrap() > held);
        after.keep_alive(left).await.unwrap();
        assert_eq!(after.release(left, name("b"), kept).await.unwrap(), Released::Now);
    });
}

#[test]
fn another_boot_is_not_believed_while_processes_of_this_one_use_the_file() {
    run(async {
        let place = Place::new();
        let other = || Config { boot_id: Some("other".to_owned()), ..Config::at(place.file()) };
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        let token = attempt(&engine, session, "a").await.unwrap();
        let what = failed(other()).await;
        assert!(what.contains("another boot or clock"), "{what}");
        engine.keep_alive(session).await.unwrap();
        assert_eq!(engine.release(session, name("a"), token).await.unwrap(), Released::Now);
        drop(engine);
        Embedded::connect(other()).await.unwrap();
    });
}

#[test]
fn compaction_keeps_everything() {
    run(async {
        let place = Place::new();
        let config = || Config { compact_after: Some(4), ..Config::at(place.file()) };
        let engine = Embedded::connect(config()).await.unwrap();
        let session = open(&engine, LONG).await.session;
        let kept = attempt(&engine, session, "kept").await.unwrap();
        for _ in 0..40 {
            let token = attempt(&engine, session, "a").await.unwrap();
            engine.release(session, name("a"), token).await.unwrap();
        }
        let rows: i64 = place.sql().query_row("SELECT count(*) FROM log", [], |row| row.get(0)).unwrap();
        assert!(rows <= 12, "{rows} rows are left of {}", place.batches());
        let held = engine.inspect(name("kept")).await.unwrap().unwrap();
        let other = Embedded::connect(config()).await.unwrap();
        let seen = other.inspect(name("kept")).await.unwrap().unwrap();
        assert_eq!((seen.holders[0].token, seen.holders[0].session), (kept, Some(session)));
        assert!(seen.holders[0].held_for_ms.is_some() && held.holders[0].held_for_ms.is_some());
    });
}

/// Drives one instance while the other, on a runtime of its own, stands still.
#[test]
fn who_falls_behind_a_compaction_still_learns_what_concerns_him() {
    let place = Place::new();
    let config = || Config { compact_after: Some(4), ..Config::at(place.file()) };
    let (slow_runtime, fast_runtime) = (runtime(), runtime());
    let (slow_set, fast_set) = (LocalSet::new(), LocalSet::new());
    let fast = fast_set.block_on(&fast_runtime, Embedded::connect(config())).unwrap();
    let slow = slow_set.block_on(&slow_runtime, Embedded::connect(config())).unwrap();

    let (holder, held) = fast_set.block_on(&fast_runtime, async {
        let session = open(&fast, LONG).await.session;
        (session, attempt(&fast, session, "a").await.unwrap())
    });
    let (mut opened, forced, mut ended, mut watch, wait) = slow_set.block_on(&slow_runtime, async {
        let opened = open(&slow, LONG).await;
        let forced = attempt(&slow, opened.session, "forced").await.unwrap();
        attempt(&slow, opened.session, "kept").await.unwrap();
        let ended = open(&slow, LONG).await;
        let watch = slow.watch(String::new()).await.unwrap();
        let (waiting, waiter) = (slow.clone(), opened.session);
        let wait = tokio::task::spawn_local(async move { wait(&waiting, waiter, "a", 1).await });
        until_queued(&slow, "a", 1).await;
        (opened, forced, ended, watch, wait)
    });
    fast_set.block_on(&fast_runtime, async {
        fast.release(holder, name("a"), held).await.unwrap();
        fast.force_release(name("forced"), None, Label::new("op"), Label::new("stuck")).await.unwrap();
        fast.close_session(ended.session).await.unwrap();
        for _ in 0..20 {
            let token = attempt(&fast, holder, "b").await.unwrap();
            fast.release(holder, name("b"), token).await.unwrap();
        }
    });
    slow_set.block_on(
        &slow_runtime,
        in_time(async {
            let granted = wait.await.unwrap();
            assert!(granted > held);
            match opened.notices.recv().await {
                Some(Notice::GrantEnded { token, how: Ending::Forced(_) }) => assert_eq!(token, forced),
                other => panic!("{other:?}"),
            }
            assert_eq!(ended.notices.recv().await, Some(Notice::SessionEnded(SessionEnd::Expired)));
            while watch.recv().await.expect("the watch goes on") != Watched::Missed {}
            slow.keep_alive(opened.session).await.unwrap();
            assert_eq!(slow.inspect(name("a")).await.unwrap().unwrap().holders[0].token, granted);
        }),
    );
}

#[test]
fn a_forced_release_is_noticed_by_the_holder_in_another_instance() {
    run(async {
        let place = Place::new();
        let (alice, operator) = (place.connect().await, place.connect().await);
        let mut opened = open(&alice, LONG).await;
        let token = attempt(&alice, opened.session, "a").await.unwrap();
        let forced = operator.force_release(name("a"), None, Label::new("op"), Label::new("stuck")).await.unwrap();
        assert!(forced.moved_to > token);
        match in_time(opened.notices.recv()).await {
            Some(Notice::GrantEnded { token: ended, how: Ending::Forced(force) }) => {
                assert_eq!((ended, force.by.as_str(), force.reason.as_str()), (token, "op", "stuck"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(alice.release(opened.session, name("a"), token).await.unwrap(), Released::Before);
    });
}

#[test]
fn a_watch_sees_what_other_instances_do() {
    run(async {
        let place = Place::new();
        let (alice, observer) = (place.connect().await, place.connect().await);
        let session = open(&alice, LONG).await.session;
        let mut watch = observer.watch("orders/".to_owned()).await.unwrap();
        attempt(&alice, session, "other").await.unwrap();
        let held = attempt(&alice, session, "orders/1").await.unwrap();
        alice.release(session, name("orders/1"), held).await.unwrap();
        match in_time(watch.recv()).await {
            Some(Watched::Event(Event::Granted { token, .. })) => assert_eq!(token, held),
            other => panic!("{other:?}"),
        }
        match in_time(watch.recv()).await {
            Some(Watched::Event(Event::GrantEnded { how, .. })) => assert_eq!(how, Ending::Released),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_watch_sees_that_a_session_expired() {
    run(async {
        let place = Place::new();
        let observer = place.connect().await;
        let mut actor = Actor::start("hold", &place.file(), 500);
        actor.hear("holds");
        actor.signal(Signal::STOP);
        let mut watch = observer.watch(String::new()).await.unwrap();
        loop {
            match in_time(watch.recv()).await {
                Some(Watched::Event(Event::GrantEnded { how, .. })) => {
                    assert_eq!(how, Ending::SessionEnded(SessionEnd::Expired));
                    break;
                }
                Some(_) => {}
                None => panic!("the watch ended"),
            }
        }
    });
}

#[test]
fn a_lock_is_withheld_for_its_delay_after_the_holder_died() {
    run(async {
        let place = Place::new();
        let (alice, bob) = (place.connect().await, place.connect().await);
        let (a, b) = (open(&alice, LONG).await.session, open(&bob, LONG).await.session);
        let delay = Some(Delay::from_ms(400).unwrap());
        alice.acquire(Acquire { delay, ..Acquire::exclusive(a, name("a")) }).await.unwrap();
        let died = BootInstant::now();
        drop(alice);
        wait(&bob, b, "a", 1).await;
        let waited = BootInstant::now().since(died);
        assert!(waited >= Duration::from_millis(400), "{waited:?}");
    });
}

#[test]
fn a_left_session_outlives_its_process_and_can_be_used_by_another() {
    run(async {
        let place = Place::new();
        let first = place.connect().await;
        let session = open(&first, LONG).await.session;
        let token = attempt(&first, session, "a").await.unwrap();
        first.leave_session(session).await.unwrap();
        drop(first);

        let second = place.connect().await;
        let other = open(&second, LONG).await.session;
        assert_eq!(attempt(&second, other, "a").await, None, "it is still held");
        second.keep_alive(session).await.unwrap();
        let b = attempt(&second, other, "b").await.unwrap();
        let adopted = async { wait(&second, session, "b", 1).await };
        let release = async {
            until_queued(&second, "b", 1).await;
            second.release(other, name("b"), b).await.unwrap();
        };
        futures_util::future::join(adopted, release).await;
        assert_eq!(second.release(session, name("a"), token).await.unwrap(), Released::Now);
        second.close_session(session).await.unwrap();
        assert!(matches!(second.keep_alive(session).await, Err(Failure::SessionEnded)));
    });
}

#[test]
fn the_session_of_a_living_process_is_not_kept_alive_by_another() {
    run(async {
        let place = Place::new();
        let (alice, bob) = (place.connect().await, place.connect().await);
        let session = open(&alice, LONG).await.session;
        match bob.keep_alive(session).await {
            Err(Failure::Unavailable(why)) => {
                assert!(why.what.contains(&format!("process {}", std::process::id())), "{}", why.what);
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn the_locks_of_an_engine_that_was_dropped_are_free() {
    run(async {
        let place = Place::new();
        let (alice, bob) = (place.connect().await, place.connect().await);
        let (a, b) = (open(&alice, LONG).await.session, open(&bob, LONG).await.session);
        attempt(&alice, a, "a").await.unwrap();
        drop(alice);
        wait(&bob, b, "a", 1).await;
        assert_eq!(place.session_files(), [b.to_string(), format!("{b}.bell")], "only the living have files");
    });
}

#[test]
fn what_is_left_of_ended_sessions_is_removed_at_connect() {
    run(async {
        let place = Place::new();
        drop(place.connect().await);
        let directory = place.0.path().join("locks.db-sessions");
        for left in ["77", "77.bell", "notes.txt"] {
            fs::write(directory.join(left), "").unwrap();
        }
        drop(place.connect().await);
        assert_eq!(place.session_files(), ["notes.txt"]);
    });
}

#[test]
fn a_session_whose_file_was_removed_lives_on() {
    run(async {
        let place = Place::new();
        let (alice, bob) = (place.connect().await, place.connect().await);
        let (a, b) = (open(&alice, 400).await.session, open(&bob, LONG).await.session);
        attempt(&alice, a, "a").await.unwrap();
        fs::remove_file(place.0.path().join("locks.db-sessions").join(a.to_string())).unwrap();
        for _ in 0..8 {
            assert_eq!(attempt(&bob, b, "a").await, None);
            tokio::time::sleep(Duration::from_millis(100)).await;
            alice.keep_alive(a).await.unwrap();
        }
    });
}

#[test]
fn a_session_whose_file_was_removed_ends_one_ttl_later_if_nobody_keeps_it() {
    run(async {
        let place = Place::new();
        let engine = place.connect().await;
        let b = open(&engine, LONG).await.session;
        let mut actor = Actor::start("hold", &place.file(), 500);
        actor.hear("holds");
        actor.signal(Signal::STOP);
        let held_by = engine.inspect(name("a")).await.unwrap().unwrap().holders[0].session.unwrap();
        fs::remove_file(place.0.path().join("locks.db-sessions").join(held_by.to_string())).unwrap();
        let began = BootInstant::now();
        wait(&engine, b, "a", 1).await;
        assert!(BootInstant::now().since(began) >= Duration::from_millis(500));
    });
}

#[test]
fn processes_that_contend_lose_no_update() {
    let place = Place::new();
    fs::write(place.file().with_file_name("n"), "0").unwrap();
    let mut actors = [(); 4].map(|()| Actor::start("count", &place.file(), LONG));
    actors.iter_mut().for_each(|actor| drop(actor.hear("counted")));
    assert_eq!(fs::read_to_string(place.file().with_file_name("n")).unwrap(), "800");
}

/// Each process writes down its token while it holds the lock: if two held it at once, or a token came back, the
/// tokens would not stand in order.
#[test]
fn processes_that_are_killed_at_any_moment_leave_tokens_in_order_and_block_nobody() {
    let place = Place::new();
    let uses = || -> Vec<u64> {
        let text = fs::read_to_string(place.file().with_file_name("uses")).unwrap_or_default();
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    };
    let until_used = |count: usize| {
        let began = std::time::Instant::now();
        while uses().len() < count {
            assert!(began.elapsed() < Duration::from_secs(20), "nobody gets the lock any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let start = || Actor::start("append", &place.file(), LONG);
    let mut actors: Vec<_> = (0..3).map(|_| start()).collect();
    for round in 0..15 {
        // Somewhere within some use of the lock: not a fixed time, for the machine's pace differs.
        until_used(uses().len() + 7 + round % 5);
        actors.remove(round % 3).kill();
        actors.push(start());
    }
    until_used(uses().len() + 20);
    drop(actors);
    assert!(uses().is_sorted_by(|earlier, later| earlier < later), "{:?}", uses());
}

// --- files that cannot be used ---

#[test]
fn another_format_is_refused_and_left_alone() {
    run(async {
        let place = Place::new();
        drop(place.connect().await);
        for (format, advice) in [(3, "use a newer build"), (1, "move it away")] {
            place.sql().pragma_update(None, "user_version", format).unwrap();
            let what = failed(Config::at(place.file())).await;
            assert!(what.contains(&format!("format {format}")) && what.contains(advice), "{what}");
        }
        place.sql().pragma_update(None, "user_version", 2).unwrap();
        place.connect().await;
    });
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    run(async {
        let place = Place::new();
        let text = "This is a letter to my landlord. ".repeat(100);
        fs::write(place.file(), &text).unwrap();
        let what = failed(Config::at(place.file())).await;
        assert!(what.contains("locks.db is not an SQLite database"), "{what}");
        assert_eq!(fs::read_to_string(place.file()).unwrap(), text);
        assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 1, "nothing is put beside it");
    });
}

#[test]
fn the_database_of_another_program_is_refused_and_left_alone() {
    run(async {
        let place = Place::new();
        place.sql().execute_batch("CREATE TABLE log (entry TEXT)").unwrap();
        let what = failed(Config::at(place.file())).await;
        assert!(what.contains("database of another program"), "{what}");
        assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 1, "nothing is put beside it");
    });
}

#[test]
fn damage_is_found_and_named_with_its_place() {
    let cases = [
        (
            "UPDATE log SET batch = cast(substr(batch, 1, length(batch) - 1) || x'ff' AS BLOB) WHERE seq = 2",
            "batch 2",
        ),
        ("UPDATE log SET batch = (SELECT batch FROM log WHERE seq = 1) WHERE seq = 2", "batch 2"),
        ("UPDATE log SET batch = x'00' WHERE seq = 2", "batch 2 is cut off"),
        ("DELETE FROM log WHERE seq = 2", "batch 2 is missing"),
        ("UPDATE snapshot SET machine = x'0102'", "snapshot 0"),
        ("UPDATE snapshot SET notes = x'0102030405'", "snapshot 0"),
        ("DELETE FROM snapshot", "it has no snapshot"),
    ];
    for (damage, says) in cases {
        run(async {
            let place = Place::new();
            let engine = place.connect().await;
            let session = open(&engine, LONG).await.session;
            attempt(&engine, session, "a").await.unwrap();
            attempt(&engine, session, "b").await.unwrap();
            drop(engine);
            place.sql().execute_batch(damage).unwrap();
            let what = failed(Config::at(place.file())).await;
            assert!(what.contains("is damaged") && what.contains(says) && what.contains("locks.db"), "{what}");
        });
    }
}

#[test]
fn a_torn_page_is_found() {
    run(async {
        let place = Place::new();
        drop(place.connect().await);
        place.sql().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let mut bytes = fs::read(place.file()).unwrap();
        let end = bytes.len();
        bytes[100..end].fill(0xa5);
        fs::write(place.file(), bytes).unwrap();
        let what = failed(Config::at(place.file())).await;
        assert!(what.contains("is damaged"), "{what}");
    });
}

#[test]
fn a_path_that_cannot_be_is_refused_with_the_reason() {
    run(async {
        let place = Place::new();
        let directory = place.0.path();
        fs::write(directory.join("file"), "").unwrap();
        let what = failed(Config::at(directory.join("missing/locks.db"))).await;
        assert!(what.contains("missing does not exist") && what.contains("mkdir -p"), "{what}");
        let what = failed(Config::at(directory.join("file/locks.db"))).await;
        assert!(what.contains("is not a directory"), "{what}");
        let what = failed(Config::at(directory)).await;
        assert!(what.contains("is not a regular file"), "{what}");
    });
}

/// A directory that may be read and not written, as seen by a process of the user `nobody`: root may write anywhere.
/// Where the tests do not run as root they cannot become another user, and need not.
#[test]
fn a_directory_that_may_not_be_written_is_named() {
    let place = Place::new();
    let program = place.0.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    run(async { drop(place.connect().await) });
    let sealed = place.0.path().join("sealed");
    fs::create_dir(&sealed).unwrap();
    for path in [place.0.path(), &sealed] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let new = Actor::from(command, "hold", &sealed.join("locks.db"), LONG).hear("failed");
    assert!(new.contains("may not write") && new.contains("sealed"), "{new}");

    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
        let existing = Actor::from(command, "hold", &place.file(), LONG).hear("failed");
        let is_named = existing.contains("may not write") || existing.contains("is read-only");
        assert!(is_named && existing.contains("locks.db"), "{existing}");
    }
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_file_that_was_removed_while_in_use_is_noticed() {
    run(async {
        let place = Place::new();
        let engine = place.connect().await;
        let session = open(&engine, LONG).await.session;
        fs::remove_file(place.file()).unwrap();
        match engine.acquire(Acquire::exclusive(session, name("a"))).await {
            Err(Failure::Unavailable(why)) => {
                assert!(why.what.contains("was removed or replaced"), "{}", why.what);
                assert!(!why.may_have_taken_effect && !why.is_retryable);
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_relative_path_is_taken_from_where_the_process_is() {
    run(async {
        let config = Config::parse("no-such-directory/locks.db").unwrap();
        let what = failed(config).await;
        let here = std::env::current_dir().unwrap();
        assert!(what.contains(&here.join("no-such-directory").display().to_string()), "{what}");
    });
}
