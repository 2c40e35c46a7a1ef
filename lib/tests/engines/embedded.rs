//! The engine `embedded:` on real files, with several instances and real processes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use palisade::engine::embedded::{Config, Embedded};
use palisade::engine::{
    Acquired, Cancelled, Engine, Failure, Level, Notice, Offers, Opened, Order, Released, Watched,
};
use palisade::{BootInstant, Event, LockName, SessionId, Token};
use palisade_core::{Acquire, Caller, Delay, Ending, Label, Patience, RequestNo, SessionEnd, Ttl};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

/// A TTL in milliseconds that no test outlives.
const LONG: u64 = 60 * 60 * 1000;

/// The TTL in milliseconds of sessions that end during their tests. They outlive a standstill of ten seconds before that.
const SHORT: u64 = 15 * 1000;

/// The longest wait for one event.
const WAIT: Duration = Duration::from_secs(300);

/// The longest time of a test. Hundreds of flushes on a busy disk take more than half a minute.
const TEST: Duration = Duration::from_secs(900);

fn run(test: impl Future<Output = ()>) {
    run_on(&LocalSet::new(), &runtime(), test);
}

fn run_on<T>(local: &LocalSet, runtime: &Runtime, test: impl Future<Output = T>) -> T {
    let bounded = async { tokio::time::timeout(TEST, test).await.expect("the test ends within 900 s") };
    local.block_on(runtime, bounded)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits for an event, and panics with its name if it does not come.
async fn within<T>(awaited: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT, event).await.unwrap_or_else(|_| panic!("no {awaited} within {WAIT:?}"))
}

struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Fixture {
        Fixture(tempfile::tempdir().unwrap())
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

    /// Returns the number of batches that were ever committed.
    fn batches(&self) -> i64 {
        self.sql().query_row("SELECT coalesce(max(seq), 0) FROM log", [], |row| row.get(0)).unwrap()
    }

    /// Returns the names of the session files.
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

async fn open_session(engine: &Embedded, ttl_ms: u64) -> Opened {
    engine.open_session(Ttl::from_ms(ttl_ms).unwrap(), Label::new("test")).await.unwrap()
}

fn request(session: SessionId, lock: &str, patience: Patience, number: u64) -> Acquire {
    let caller = Caller { session, number: Some(RequestNo::new(number).unwrap()) };
    Acquire { patience, ..Acquire::exclusive(caller, name(lock)) }
}

async fn try_acquire(engine: &Embedded, session: SessionId, lock: &str) -> Option<Token> {
    match engine.acquire(Acquire::exclusive(session, name(lock))).await.unwrap() {
        Acquired::Granted { token } => Some(token),
        Acquired::Busy => None,
    }
}

async fn acquire(engine: &Embedded, session: SessionId, lock: &str, number: u64) -> Token {
    let granted = engine.acquire(request(session, lock, Patience::Wait, number));
    match within(&format!("grant of '{lock}'"), granted).await.unwrap() {
        Acquired::Granted { token } => token,
        Acquired::Busy => panic!("a wait is not answered with busy"),
    }
}

async fn until_queued(engine: &Embedded, lock: &str, count: usize) {
    let queued = async {
        while engine.inspect(name(lock)).await.unwrap().is_none_or(|info| info.waiters.len() != count) {
            tokio::task::yield_now().await;
        }
    };
    within(&format!("queue of {count} at '{lock}'"), queued).await;
}

async fn connect_error(config: Config) -> String {
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

/// A process that runs [`child_process`], and the lines that it prints.
struct ChildProcess {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl ChildProcess {
    fn start(role: &str, file: &Path, ttl_ms: u64) -> ChildProcess {
        ChildProcess::from(Command::new(std::env::current_exe().unwrap()), role, file, ttl_ms)
    }

    fn from(mut command: Command, role: &str, file: &Path, ttl_ms: u64) -> ChildProcess {
        command
            .args(["--exact", "embedded::child_process", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.env("PALISADE_TEST_ROLE", role).env("PALISADE_TEST_FILE", file);
        command.env("PALISADE_TEST_TTL", ttl_ms.to_string());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // A separate thread, since reading from a pipe has no time-out.
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        ChildProcess { child, lines }
    }

    /// Returns the rest of the next line that begins with this word.
    fn read(&mut self, word: &str) -> String {
        let times_out_at = Instant::now() + WAIT;
        loop {
            let left = times_out_at.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some((_, rest)) = line.split_once(&format!("child {word} ")) {
                        return rest.to_owned();
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("the child printed no '{word}' within {WAIT:?}"),
                Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the child ended without printing '{word}'"),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        assert!(self.exits_in_time(), "the killed child did not exit within {WAIT:?}");
    }

    /// Waits for the exit of the process, for a bounded time.
    fn exits_in_time(&mut self) -> bool {
        let times_out_at = Instant::now() + WAIT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > times_out_at {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        self.exits_in_time();
    }
}

/// Not a test: the main function of the child processes. Returns at once in other processes.
#[test]
#[expect(clippy::print_stdout, reason = "the test reads it")]
fn child_process() {
    let Ok(role) = std::env::var("PALISADE_TEST_ROLE") else { return };
    let file = PathBuf::from(std::env::var_os("PALISADE_TEST_FILE").unwrap());
    let ttl_ms: u64 = std::env::var("PALISADE_TEST_TTL").unwrap().parse().unwrap();
    run(async move {
        let engine = match Embedded::connect(Config::at(file)).await {
            Ok(engine) => engine,
            Err(error) => return println!("child failed {error}"),
        };
        let before = BootInstant::now();
        let Opened { session, .. } = open_session(&engine, ttl_ms).await;
        match role.as_str() {
            "hold" => {
                let token = try_acquire(&engine, session, "a").await.unwrap();
                println!("child holds {token}");
                println!("child began {}", BootInstant::now().since(before).as_nanos());
                std::future::pending::<()>().await;
            }
            "queue" => {
                println!("child queues {session}");
                acquire(&engine, session, "a", 1).await;
            }
            "count" => {
                for number in 1..=200 {
                    let token = acquire(&engine, session, "a", number).await;
                    let counter = PathBuf::from(std::env::var_os("PALISADE_TEST_FILE").unwrap()).with_file_name("n");
                    let count: u64 = fs::read_to_string(&counter).unwrap().parse().unwrap();
                    fs::write(&counter, (count + 1).to_string()).unwrap();
                    engine.release(session, name("a"), token).await.unwrap();
                    println!("child counted {number}");
                }
            }
            "append" => {
                let uses = PathBuf::from(std::env::var_os("PALISADE_TEST_FILE").unwrap()).with_file_name("uses");
                let mut uses = fs::OpenOptions::new().append(true).create(true).open(uses).unwrap();
                for number in 1.. {
                    let token = acquire(&engine, session, "a", number).await;
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
fn the_engine_declares_its_guarantees() {
    run(async {
        let guarantees = Fixture::new().connect().await.guarantees();
        assert_eq!((guarantees.engine, guarantees.level, guarantees.order), ("embedded", Level::Fenced, Order::Fair));
        assert_eq!(guarantees.offers, Offers { signed: false, ..Offers::ALL });
    });
}

#[test]
fn waiters_of_all_instances_are_granted_in_the_order_of_their_requests() {
    run(async {
        let fixture = Fixture::new();
        let engines = [fixture.connect().await, fixture.connect().await, fixture.connect().await];
        let holder = open_session(&engines[0], LONG).await.session;
        let held = try_acquire(&engines[0], holder, "a").await.unwrap();
        let mut waits = Vec::new();
        for n in 0..6 {
            let engine = engines[n % 3].clone();
            let session = open_session(&engine, LONG).await.session;
            waits.push((session, tokio::task::spawn_local(async move { acquire(&engine, session, "a", 1).await })));
            until_queued(&engines[0], "a", n + 1).await;
        }
        engines[0].release(holder, name("a"), held).await.unwrap();
        let mut last = held;
        for (n, (session, wait)) in waits.into_iter().enumerate() {
            let token = within("grant of 'a'", wait).await.unwrap();
            assert!(token > last);
            last = token;
            assert_eq!(engines[n % 3].release(session, name("a"), token).await.unwrap(), Released::Now);
        }
    });
}

#[test]
fn tokens_rise_over_restarts() {
    let fixture = Fixture::new();
    let mut last = 0;
    for _ in 0..4 {
        run(async {
            let engine = fixture.connect().await;
            let session = open_session(&engine, LONG).await.session;
            for _ in 0..3 {
                let token = try_acquire(&engine, session, "a").await.expect("an earlier holder is gone");
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
fn concurrent_calls_share_a_commit() {
    run(async {
        let fixture = Fixture::new();
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        let before = fixture.batches();
        let locks: Vec<_> = (0..64).map(|n| n.to_string()).collect();
        let granted =
            futures_util::future::join_all(locks.iter().map(|lock| try_acquire(&engine, session, lock))).await;
        assert!(granted.iter().all(Option::is_some));
        assert!(fixture.batches() - before <= 2, "{} batches", fixture.batches() - before);
    });
}

#[test]
fn a_busy_answer_is_not_written_to_the_log() {
    run(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.connect().await, fixture.connect().await);
        let (a, b) = (open_session(&alice, LONG).await.session, open_session(&bob, LONG).await.session);
        try_acquire(&alice, a, "a").await.unwrap();
        let before = fixture.batches();
        for number in 1..10 {
            let busy = bob.acquire(request(b, "a", Patience::Try, number)).await.unwrap();
            assert_eq!(busy, Acquired::Busy);
        }
        assert_eq!(fixture.batches(), before);
    });
}

#[test]
fn a_try_that_was_granted_is_found_by_its_number() {
    run(async {
        let fixture = Fixture::new();
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        let granted = engine.acquire(request(session, "a", Patience::Try, 7)).await.unwrap();
        let Acquired::Granted { token } = granted else { panic!("{granted:?}") };
        let number = RequestNo::new(7).unwrap();
        assert_eq!(engine.cancel(session, number).await.unwrap(), Cancelled::WasGranted { token });
        let again = engine.acquire(request(session, "a", Patience::Try, 7)).await.unwrap();
        assert_eq!(again, granted, "a repeat gets the first answer");
    });
}

#[test]
fn an_acquire_that_is_dropped_and_cancelled_leaves_nothing() {
    run(async {
        let fixture = Fixture::new();
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        let held = try_acquire(&engine, session, "a").await.unwrap();
        let other = open_session(&engine, LONG).await.session;
        for number in 1..20 {
            let waiting = engine.acquire(request(other, "a", Patience::Wait, number));
            // Dropped before, during or after its commit.
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
fn the_lock_of_a_killed_process_is_granted_before_its_ttl_ends() {
    let fixture = Fixture::new();
    let mut child = ChildProcess::start("hold", &fixture.file(), LONG);
    let held: u64 = child.read("holds").parse().unwrap();
    run(async {
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        let waiting = acquire(&engine, session, "a", 1);
        let kill = async {
            until_queued(&engine, "a", 1).await;
            child.kill();
        };
        let (token, ()) = futures_util::future::join(waiting, kill).await;
        assert!(token.get() > held);
    });
}

#[test]
fn a_try_is_granted_after_the_holder_was_killed() {
    let fixture = Fixture::new();
    let mut child = ChildProcess::start("hold", &fixture.file(), LONG);
    child.read("holds");
    run(async {
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        assert_eq!(try_acquire(&engine, session, "a").await, None);
        child.kill();
        assert!(try_acquire(&engine, session, "a").await.is_some());
    });
}

#[test]
fn a_killed_waiter_is_skipped() {
    let fixture = Fixture::new();
    run(async {
        let engine = fixture.connect().await;
        let (holder, waiter) = (open_session(&engine, LONG).await.session, open_session(&engine, LONG).await.session);
        let held = try_acquire(&engine, holder, "a").await.unwrap();
        let mut children = [(); 3].map(|()| ChildProcess::start("queue", &fixture.file(), LONG));
        children.iter_mut().for_each(|child| drop(child.read("queues")));
        until_queued(&engine, "a", 3).await;
        let waiting = acquire(&engine, waiter, "a", 1);
        let release = async {
            until_queued(&engine, "a", 4).await;
            children.iter_mut().for_each(ChildProcess::kill);
            engine.release(holder, name("a"), held).await.unwrap();
        };
        let (token, ()) = futures_util::future::join(waiting, release).await;
        assert!(token > held);
    });
}

#[test]
fn a_stopped_holder_loses_its_lock_at_its_ttl_and_not_before() {
    let (fixture, ttl) = (Fixture::new(), Duration::from_millis(SHORT));
    let mut child = ChildProcess::start("hold", &fixture.file(), SHORT);
    child.read("holds");
    let opening_took = Duration::from_nanos(child.read("began").parse().unwrap());
    let stopped_at = BootInstant::now();
    child.signal(Signal::STOP);
    run(async {
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        let asked_at = BootInstant::now();
        let left = engine.inspect(name("a")).await.unwrap().unwrap().holders[0].time_left_ms.unwrap();
        acquire(&engine, session, "a", 1).await;
        let waited = BootInstant::now().since(asked_at);
        assert!(waited >= Duration::from_millis(left.saturating_sub(10)), "{left} ms were left, it took {waited:?}");
        // A busy machine may be late.
        assert!(BootInstant::now().since(stopped_at) + opening_took < ttl + WAIT / 2, "long after its TTL");
    });
}

#[test]
fn a_session_is_not_ended_before_its_ttl_has_passed() {
    run(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.connect().await, fixture.connect().await);
        let opening = BootInstant::now();
        let mut opened = open_session(&alice, SHORT).await;
        try_acquire(&alice, opened.session, "a").await.unwrap();
        let b = open_session(&bob, LONG).await.session;
        acquire(&bob, b, "a", 1).await;
        assert!(BootInstant::now().since(opening) >= Duration::from_millis(SHORT));
        let grant = within("notice", opened.notices.recv()).await;
        assert!(matches!(grant, Some(Notice::GrantEnded { .. })), "{grant:?}");
        assert_eq!(within("notice", opened.notices.recv()).await, Some(Notice::SessionEnded(SessionEnd::Expired)));
        assert!(matches!(alice.keep_alive(opened.session).await, Err(Failure::SessionEnded)));
    });
}

#[test]
fn an_idle_session_expires_without_other_clients() {
    run(async {
        let fixture = Fixture::new();
        let engine = fixture.connect().await;
        let mut opened = open_session(&engine, 200).await;
        assert_eq!(within("notice", opened.notices.recv()).await, Some(Notice::SessionEnded(SessionEnd::Expired)));
        assert!(matches!(engine.keep_alive(opened.session).await, Err(Failure::SessionEnded)));
        assert_eq!(fixture.session_files(), [""; 0]);
    });
}

#[test]
fn a_keep_alive_extends_the_session_and_writes_nothing_to_the_log() {
    run(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.connect().await, fixture.connect().await);
        let (a, b) = (open_session(&alice, SHORT).await.session, open_session(&bob, LONG).await.session);
        try_acquire(&alice, a, "a").await.unwrap();
        let before = fixture.batches();
        // For longer than the TTL.
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(SHORT / 6)).await;
            alice.keep_alive(a).await.unwrap();
            assert_eq!(try_acquire(&bob, b, "a").await, None, "the session is alive");
        }
        assert_eq!(fixture.batches(), before);
    });
}

#[test]
fn a_reboot_ends_all_sessions_except_detached_ones() {
    run(async {
        let fixture = Fixture::new();
        let boot = |id: &str| Config { boot_id: Some(id.to_owned()), ..Config::at(fixture.file()) };
        let before = Embedded::connect(boot("before")).await.unwrap();
        let old = open_session(&before, LONG).await.session;
        let detached = open_session(&before, LONG).await.session;
        let held = try_acquire(&before, old, "a").await.unwrap();
        let kept = try_acquire(&before, detached, "b").await.unwrap();
        before.detach_session(detached).await.unwrap();
        drop(before);
        let after = Embedded::connect(boot("after")).await.unwrap();
        let held_still = after.list(String::new()).await.unwrap();
        let holders: Vec<_> = held_still.iter().map(|lock| (lock.name.as_str(), lock.holders[0].token)).collect();
        assert_eq!(holders, [("b", kept)]);
        let time_left_ms = held_still[0].holders[0].time_left_ms.unwrap();
        assert!(time_left_ms > LONG / 2, "it has its full TTL again, not {time_left_ms} ms");
        let session = open_session(&after, LONG).await.session;
        assert!(try_acquire(&after, session, "a").await.unwrap() > held);
        after.keep_alive(detached).await.unwrap();
        assert_eq!(after.release(detached, name("b"), kept).await.unwrap(), Released::Now);
    });
}

#[test]
fn another_boot_id_is_refused_while_processes_use_the_file() {
    run(async {
        let fixture = Fixture::new();
        let other = || Config { boot_id: Some("other".to_owned()), ..Config::at(fixture.file()) };
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        let token = try_acquire(&engine, session, "a").await.unwrap();
        let what = connect_error(other()).await;
        assert!(what.contains("another boot or clock"), "{what}");
        engine.keep_alive(session).await.unwrap();
        assert_eq!(engine.release(session, name("a"), token).await.unwrap(), Released::Now);
        drop(engine);
        Embedded::connect(other()).await.unwrap();
    });
}

#[test]
fn compaction_keeps_grants_and_their_times() {
    run(async {
        let fixture = Fixture::new();
        let config = || Config { compact_after: Some(4), ..Config::at(fixture.file()) };
        let engine = Embedded::connect(config()).await.unwrap();
        let session = open_session(&engine, LONG).await.session;
        let kept = try_acquire(&engine, session, "kept").await.unwrap();
        for _ in 0..40 {
            let token = try_acquire(&engine, session, "a").await.unwrap();
            engine.release(session, name("a"), token).await.unwrap();
        }
        let rows: i64 = fixture.sql().query_row("SELECT count(*) FROM log", [], |row| row.get(0)).unwrap();
        assert!(rows <= 12, "{rows} rows are left of {}", fixture.batches());
        let held = engine.inspect(name("kept")).await.unwrap().unwrap();
        let other = Embedded::connect(config()).await.unwrap();
        let seen = other.inspect(name("kept")).await.unwrap().unwrap();
        assert_eq!((seen.holders[0].token, seen.holders[0].session), (kept, Some(session)));
        assert!(seen.holders[0].held_for_ms.is_some() && held.holders[0].held_for_ms.is_some());
    });
}

/// Drives one instance while the other, on a separate runtime, does not run.
#[test]
fn an_instance_behind_a_compaction_receives_its_grants_and_losses() {
    let fixture = Fixture::new();
    let config = || Config { compact_after: Some(4), ..Config::at(fixture.file()) };
    let (slow_runtime, fast_runtime) = (runtime(), runtime());
    let (slow_set, fast_set) = (LocalSet::new(), LocalSet::new());
    let fast = run_on(&fast_set, &fast_runtime, Embedded::connect(config())).unwrap();
    let slow = run_on(&slow_set, &slow_runtime, Embedded::connect(config())).unwrap();

    let (holder, held) = run_on(&fast_set, &fast_runtime, async {
        let session = open_session(&fast, LONG).await.session;
        (session, try_acquire(&fast, session, "a").await.unwrap())
    });
    let (mut opened, forced, mut ended, mut watch, wait) = run_on(&slow_set, &slow_runtime, async {
        let opened = open_session(&slow, LONG).await;
        let forced = try_acquire(&slow, opened.session, "forced").await.unwrap();
        try_acquire(&slow, opened.session, "kept").await.unwrap();
        let ended = open_session(&slow, LONG).await;
        let watch = slow.watch(String::new()).await.unwrap();
        let (waiting, waiter) = (slow.clone(), opened.session);
        let wait = tokio::task::spawn_local(async move { acquire(&waiting, waiter, "a", 1).await });
        until_queued(&slow, "a", 1).await;
        (opened, forced, ended, watch, wait)
    });
    run_on(&fast_set, &fast_runtime, async {
        fast.release(holder, name("a"), held).await.unwrap();
        fast.force_release(name("forced"), None, Label::new("op"), Label::new("stuck")).await.unwrap();
        fast.close_session(ended.session).await.unwrap();
        for _ in 0..20 {
            let token = try_acquire(&fast, holder, "b").await.unwrap();
            fast.release(holder, name("b"), token).await.unwrap();
        }
    });
    run_on(
        &slow_set,
        &slow_runtime,
        within("grant, notices and missed events", async {
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
        let fixture = Fixture::new();
        let (alice, operator) = (fixture.connect().await, fixture.connect().await);
        let mut opened = open_session(&alice, LONG).await;
        let token = try_acquire(&alice, opened.session, "a").await.unwrap();
        let forced = operator.force_release(name("a"), None, Label::new("op"), Label::new("stuck")).await.unwrap();
        assert!(forced.moved_to > token);
        match within("notice", opened.notices.recv()).await {
            Some(Notice::GrantEnded { token: ended, how: Ending::Forced(force) }) => {
                assert_eq!((ended, force.by.as_str(), force.reason.as_str()), (token, "op", "stuck"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(alice.release(opened.session, name("a"), token).await.unwrap(), Released::Before);
    });
}

#[test]
fn a_watch_receives_the_events_of_other_instances() {
    run(async {
        let fixture = Fixture::new();
        let (alice, observer) = (fixture.connect().await, fixture.connect().await);
        let session = open_session(&alice, LONG).await.session;
        let mut watch = observer.watch("orders/".to_owned()).await.unwrap();
        try_acquire(&alice, session, "other").await.unwrap();
        let held = try_acquire(&alice, session, "orders/1").await.unwrap();
        alice.release(session, name("orders/1"), held).await.unwrap();
        match within("watched event", watch.recv()).await {
            Some(Watched::Event(Event::Granted { token, .. })) => assert_eq!(token, held),
            other => panic!("{other:?}"),
        }
        match within("watched event", watch.recv()).await {
            Some(Watched::Event(Event::GrantEnded { how, .. })) => assert_eq!(how, Ending::Released),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_watch_receives_the_expiry_of_a_session() {
    run(async {
        let fixture = Fixture::new();
        let observer = fixture.connect().await;
        let mut watch = observer.watch(String::new()).await.unwrap();
        let mut child = ChildProcess::start("hold", &fixture.file(), SHORT);
        child.read("holds");
        child.signal(Signal::STOP);
        loop {
            match within("watched event", watch.recv()).await {
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
fn a_lock_is_withheld_for_its_lock_delay_after_the_holder_died() {
    run(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.connect().await, fixture.connect().await);
        let (a, b) = (open_session(&alice, LONG).await.session, open_session(&bob, LONG).await.session);
        let delay = Some(Delay::from_ms(400).unwrap());
        alice.acquire(Acquire { delay, ..Acquire::exclusive(a, name("a")) }).await.unwrap();
        let died_at = BootInstant::now();
        drop(alice);
        acquire(&bob, b, "a", 1).await;
        let waited = BootInstant::now().since(died_at);
        assert!(waited >= Duration::from_millis(400), "{waited:?}");
    });
}

#[test]
fn a_detached_session_outlives_its_process_and_can_be_used_by_another() {
    run(async {
        let fixture = Fixture::new();
        let first = fixture.connect().await;
        let session = open_session(&first, LONG).await.session;
        let token = try_acquire(&first, session, "a").await.unwrap();
        first.detach_session(session).await.unwrap();
        drop(first);

        let second = fixture.connect().await;
        let other = open_session(&second, LONG).await.session;
        assert_eq!(try_acquire(&second, other, "a").await, None, "it is still held");
        second.keep_alive(session).await.unwrap();
        let b = try_acquire(&second, other, "b").await.unwrap();
        let adopted = async { acquire(&second, session, "b", 1).await };
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
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.connect().await, fixture.connect().await);
        let session = open_session(&alice, LONG).await.session;
        match bob.keep_alive(session).await {
            Err(Failure::Unavailable(why)) => {
                assert!(why.what.contains(&format!("process {}", std::process::id())), "{}", why.what);
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn the_locks_of_a_dropped_engine_are_free() {
    run(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.connect().await, fixture.connect().await);
        let (a, b) = (open_session(&alice, LONG).await.session, open_session(&bob, LONG).await.session);
        try_acquire(&alice, a, "a").await.unwrap();
        drop(alice);
        acquire(&bob, b, "a", 1).await;
        assert_eq!(fixture.session_files(), [b.to_string(), format!("{b}.bell")], "only live sessions have files");
    });
}

#[test]
fn files_of_ended_sessions_are_removed_at_connect() {
    run(async {
        let fixture = Fixture::new();
        drop(fixture.connect().await);
        let directory = fixture.0.path().join("locks.db-sessions");
        for file in ["77", "77.bell", "notes.txt"] {
            fs::write(directory.join(file), "").unwrap();
        }
        drop(fixture.connect().await);
        assert_eq!(fixture.session_files(), ["notes.txt"]);
    });
}

#[test]
fn a_session_whose_file_was_removed_lives_on() {
    run(async {
        let fixture = Fixture::new();
        let (alice, bob) = (fixture.connect().await, fixture.connect().await);
        let a = open_session(&alice, SHORT).await.session;
        let mut renewed_at = BootInstant::now();
        let b = open_session(&bob, LONG).await.session;
        try_acquire(&alice, a, "a").await.unwrap();
        fs::remove_file(fixture.0.path().join("locks.db-sessions").join(a.to_string())).unwrap();
        // For longer than the TTL.
        for _ in 0..10 {
            assert_eq!(try_acquire(&bob, b, "a").await, None);
            tokio::time::sleep(Duration::from_millis(SHORT / 6)).await;
            let kept = alice.keep_alive(a).await;
            let late = BootInstant::now().since(renewed_at);
            kept.unwrap_or_else(|error| panic!("{error:?}, {late:?} after the last renewal"));
            renewed_at = BootInstant::now();
        }
    });
}

#[test]
fn a_session_whose_file_was_removed_ends_one_ttl_later_without_keep_alives() {
    run(async {
        let fixture = Fixture::new();
        let engine = fixture.connect().await;
        let b = open_session(&engine, LONG).await.session;
        let mut child = ChildProcess::start("hold", &fixture.file(), SHORT);
        child.read("holds");
        child.signal(Signal::STOP);
        let held_by = engine.inspect(name("a")).await.unwrap().unwrap().holders[0].session.unwrap();
        let removed_at = BootInstant::now();
        fs::remove_file(fixture.0.path().join("locks.db-sessions").join(held_by.to_string())).unwrap();
        acquire(&engine, b, "a", 1).await;
        assert!(BootInstant::now().since(removed_at) >= Duration::from_millis(SHORT));
    });
}

#[test]
fn processes_that_contend_lose_no_update() {
    let fixture = Fixture::new();
    fs::write(fixture.file().with_file_name("n"), "0").unwrap();
    let mut children = [(); 4].map(|()| ChildProcess::start("count", &fixture.file(), LONG));
    for child in &mut children {
        // Waits for each number, so that the bound holds on a slow disk.
        while child.read("counted") != "200" {}
    }
    assert_eq!(fs::read_to_string(fixture.file().with_file_name("n")).unwrap(), "800");
}

/// Each process appends its token to a file while it holds the lock. If two held it at once, or a token was issued
/// again, the tokens would not be in order.
#[test]
fn killed_processes_leave_tokens_in_order_and_block_no_waiter() {
    let fixture = Fixture::new();
    let uses = || -> Vec<u64> {
        let text = fs::read_to_string(fixture.file().with_file_name("uses")).unwrap_or_default();
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    };
    let until_used = |count: usize| {
        let began = Instant::now();
        while uses().len() < count {
            assert!(began.elapsed() < WAIT, "the lock was not granted {count} times within {WAIT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let start = || ChildProcess::start("append", &fixture.file(), LONG);
    let mut children: Vec<_> = (0..3).map(|_| start()).collect();
    for round in 0..15 {
        // After a number of grants rather than a time, since the speed of the machine varies.
        until_used(uses().len() + 7 + round % 5);
        children.remove(round % 3).kill();
        children.push(start());
    }
    until_used(uses().len() + 20);
    drop(children);
    assert!(uses().is_sorted_by(|earlier, later| earlier < later), "{:?}", uses());
}

// --- files that cannot be used ---

#[test]
fn another_format_is_refused_and_not_changed() {
    run(async {
        let fixture = Fixture::new();
        drop(fixture.connect().await);
        for (format, advice) in [(3, "use a newer build"), (1, "move it away")] {
            fixture.sql().pragma_update(None, "user_version", format).unwrap();
            let what = connect_error(Config::at(fixture.file())).await;
            assert!(what.contains(&format!("format {format}")) && what.contains(advice), "{what}");
        }
        fixture.sql().pragma_update(None, "user_version", 2).unwrap();
        fixture.connect().await;
    });
}

#[test]
fn the_snapshot_of_another_build_is_refused_and_not_changed() {
    run(async {
        let fixture = Fixture::new();
        drop(fixture.connect().await);
        let stored: Vec<u8> = fixture.sql().query_row("SELECT machine FROM snapshot", [], |row| row.get(0)).unwrap();
        let version = u32::from_le_bytes(stored[8..12].try_into().unwrap());
        for (other, advice) in [(version + 1, "use a newer build"), (version - 1, "raise them above")] {
            let mut snapshot = stored.clone();
            snapshot[8..12].copy_from_slice(&other.to_le_bytes());
            fixture.sql().execute("UPDATE snapshot SET machine = ?1", [&snapshot]).unwrap();
            let what = connect_error(Config::at(fixture.file())).await;
            assert!(what.contains(&format!("format {other}")) && what.contains(advice), "{what}");
        }
    });
}

#[test]
fn a_file_that_is_no_database_is_refused_and_not_changed() {
    run(async {
        let fixture = Fixture::new();
        let text = "This is a letter to my landlord. ".repeat(100);
        fs::write(fixture.file(), &text).unwrap();
        let what = connect_error(Config::at(fixture.file())).await;
        assert!(what.contains("locks.db is not an SQLite database"), "{what}");
        assert_eq!(fs::read_to_string(fixture.file()).unwrap(), text);
        assert_eq!(fs::read_dir(fixture.0.path()).unwrap().count(), 1, "nothing is put next to it");
    });
}

#[test]
fn the_database_of_another_program_is_refused_and_not_changed() {
    run(async {
        let fixture = Fixture::new();
        fixture.sql().execute_batch("CREATE TABLE log (entry TEXT)").unwrap();
        let what = connect_error(Config::at(fixture.file())).await;
        assert!(what.contains("database of another program"), "{what}");
        assert_eq!(fs::read_dir(fixture.0.path()).unwrap().count(), 1, "nothing is put next to it");
    });
}

#[test]
fn damage_is_reported_with_its_position() {
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
            let fixture = Fixture::new();
            let engine = fixture.connect().await;
            let session = open_session(&engine, LONG).await.session;
            try_acquire(&engine, session, "a").await.unwrap();
            try_acquire(&engine, session, "b").await.unwrap();
            drop(engine);
            fixture.sql().execute_batch(damage).unwrap();
            let what = connect_error(Config::at(fixture.file())).await;
            assert!(what.contains("is damaged") && what.contains(says) && what.contains("locks.db"), "{what}");
        });
    }
}

#[test]
fn a_torn_page_is_reported_as_damage() {
    run(async {
        let fixture = Fixture::new();
        drop(fixture.connect().await);
        fixture.sql().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let mut bytes = fs::read(fixture.file()).unwrap();
        let end = bytes.len();
        bytes[100..end].fill(0xa5);
        fs::write(fixture.file(), bytes).unwrap();
        let what = connect_error(Config::at(fixture.file())).await;
        assert!(what.contains("is damaged"), "{what}");
    });
}

#[test]
fn an_unusable_path_is_refused_with_the_reason() {
    run(async {
        let fixture = Fixture::new();
        let directory = fixture.0.path();
        fs::write(directory.join("file"), "").unwrap();
        let what = connect_error(Config::at(directory.join("missing/locks.db"))).await;
        assert!(what.contains("missing does not exist") && what.contains("mkdir -p"), "{what}");
        let what = connect_error(Config::at(directory.join("file/locks.db"))).await;
        assert!(what.contains("is not a directory"), "{what}");
        let what = connect_error(Config::at(directory)).await;
        assert!(what.contains("is not a regular file"), "{what}");
    });
}

/// The process runs as the user `nobody`, since root may write everywhere. Tests that do not run as root need no
/// other user.
#[test]
fn a_directory_without_write_permission_is_named() {
    let fixture = Fixture::new();
    let program = fixture.0.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    run(async { drop(fixture.connect().await) });
    let read_only = fixture.0.path().join("read-only");
    fs::create_dir(&read_only).unwrap();
    for path in [fixture.0.path(), &read_only] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let new = ChildProcess::from(command, "hold", &read_only.join("locks.db"), LONG).read("failed");
    assert!(new.contains("may not write") && new.contains("read-only"), "{new}");

    let mut command = Command::new(&program);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
        let existing = ChildProcess::from(command, "hold", &fixture.file(), LONG).read("failed");
        let is_named = existing.contains("may not write") || existing.contains("is read-only");
        assert!(is_named && existing.contains("locks.db"), "{existing}");
    }
    fs::set_permissions(fixture.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_file_that_was_removed_while_in_use_is_noticed() {
    run(async {
        let fixture = Fixture::new();
        let engine = fixture.connect().await;
        let session = open_session(&engine, LONG).await.session;
        fs::remove_file(fixture.file()).unwrap();
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
fn a_relative_path_is_relative_to_the_working_directory() {
    run(async {
        let config = Config::parse("no-such-directory/locks.db").unwrap();
        let what = connect_error(config).await;
        let here = std::env::current_dir().unwrap();
        assert!(what.contains(&here.join("no-such-directory").display().to_string()), "{what}");
    });
}
