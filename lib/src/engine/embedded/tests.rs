//! Tests that inject faults.

use std::path::Path;
use std::time::Duration;

use palisade_core::{
    Acquire, Caller, Label, LockName, Mode, Patience, Reentry, RequestNo, SessionId, Token, Ttl, Want,
};
use rustix::fs::{FlockOperation, flock};

use super::error::StoreError;
use super::log::Fault;
use super::replica::Replica;
use super::{Config, Embedded};
use crate::engine::{Acquired, Engine, Failure, Released, Unavailable};

/// The longest wait for one event.
const WAIT: Duration = Duration::from_secs(300);

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let bounded = async { tokio::time::timeout(2 * WAIT, test).await.expect("the test ends within 600 s") };
    local.block_on(&runtime, bounded);
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

async fn connect(file: &Path) -> Embedded {
    Embedded::connect(Config::at(file)).await.unwrap()
}

async fn session(engine: &Embedded) -> SessionId {
    engine.open_session(Ttl::from_ms(600_000).unwrap(), Label::new("test")).await.unwrap().session
}

async fn acquire(engine: &Embedded, session: SessionId, lock: &str) -> Result<Acquired, Failure> {
    engine.acquire(Acquire::exclusive(session, name(lock))).await
}

fn token(answer: Result<Acquired, Failure>) -> Token {
    match answer {
        Ok(Acquired::Granted { token }) => token,
        other => panic!("not granted: {other:?}"),
    }
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, Failure>) -> Unavailable {
    match answer {
        Err(Failure::Unavailable(why)) => why,
        other => panic!("not unavailable: {other:?}"),
    }
}

/// Asserts that the replica equals the file, byte for byte.
fn assert_equals_file(engine: &Embedded) {
    let mut state = engine.state.borrow_mut();
    state.catch_up().unwrap();
    let file = Replica::load(&state.log, state.replica.settings).unwrap();
    assert_eq!(state.replica.applied, file.applied);
    assert!(state.replica.machine.snapshot() == file.machine.snapshot(), "the replica differs from the file");
    assert_eq!(state.replica.notes, file.notes);
    assert_eq!(state.replica.delays.keys().collect::<Vec<_>>(), file.delays.keys().collect::<Vec<_>>());
}

#[test]
fn a_failed_commit_leaves_nothing_and_reports_no_effect() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let engine = connect(&directory.path().join("locks.db")).await;
        let alice = session(&engine).await;
        engine.state.borrow().log.fault.set(Some(Fault::BeforeCommit));
        let why = unavailable(acquire(&engine, alice, "a").await);
        assert!(!why.may_have_taken_effect && why.is_retryable, "{why:?}");
        assert_equals_file(&engine);
        assert_eq!(engine.inspect(name("a")).await.unwrap(), None);
        assert_eq!(token(acquire(&engine, alice, "a").await).get(), 1, "no token was used up");
    });
}

#[test]
fn a_commit_that_failed_but_is_in_the_log_succeeds() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let engine = connect(&directory.path().join("locks.db")).await;
        let alice = session(&engine).await;
        engine.state.borrow().log.fault.set(Some(Fault::AfterCommit));
        let token = token(acquire(&engine, alice, "a").await);
        assert_equals_file(&engine);
        assert_eq!(engine.release(alice, name("a"), token).await.unwrap(), Released::Now);
    });
}

#[test]
fn a_session_that_failed_to_open_leaves_no_lease_file() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let engine = connect(&directory.path().join("locks.db")).await;
        engine.state.borrow().log.fault.set(Some(Fault::BeforeCommit));
        unavailable(engine.open_session(Ttl::from_ms(1_000).unwrap(), Label::new("x")).await.map(|o| o.session));
        let left: Vec<_> = std::fs::read_dir(directory.path().join("locks.db-sessions")).unwrap().collect();
        let is_bell =
            |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "bell");
        assert!(left.iter().flatten().all(is_bell), "{left:?}");
        let alice = session(&engine).await;
        engine.keep_alive(alice).await.unwrap();
    });
}

/// A limit on SQLite's pages causes the same error as a full disk (`SQLITE_FULL`).
#[test]
fn a_full_disk_is_reported_and_nothing_is_lost() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let engine = connect(&directory.path().join("locks.db")).await;
        let alice = session(&engine).await;
        let kept = token(acquire(&engine, alice, "kept").await);
        let limit = |pages: u32| {
            let state = engine.state.borrow();
            state.log.connection().pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
        };
        limit(1);
        let mut number = 0;
        let why = loop {
            number += 1;
            match acquire(&engine, alice, &format!("{number}/{}", "x".repeat(400))).await {
                Ok(_) => assert!(number < 1_000, "the limit is never reached"),
                failed => break unavailable(failed),
            }
        };
        assert!(why.what.contains("no space is left") && why.what.contains("locks.db"), "{}", why.what);
        assert!(!why.may_have_taken_effect && why.is_retryable);
        assert_equals_file(&engine);
        engine.keep_alive(alice).await.unwrap();
        assert_eq!(engine.inspect(name("kept")).await.unwrap().unwrap().holders[0].token, kept);
        limit(1 << 20);
        assert!(token(acquire(&engine, alice, "after").await) > kept);
        assert_equals_file(&engine);
    });
}

#[test]
fn a_log_lock_timeout_names_the_process_that_holds_the_lock() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("locks.db");
        let engine = connect(&file).await;
        let alice = session(&engine).await;
        let lock = std::fs::File::open(directory.path().join("locks.db-lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let why = unavailable(acquire(&engine, alice, "a").await);
        assert!(why.what.contains(&format!("kill -CONT {}", std::process::id())), "{}", why.what);
        assert!(!why.may_have_taken_effect && why.is_retryable);
        engine.keep_alive(alice).await.expect("a keep-alive does not need the log's lock");
        assert_eq!(engine.inspect(name("a")).await.unwrap(), None, "nor does an inspect");
        drop(lock);
        token(acquire(&engine, alice, "a").await);
    });
}

#[test]
fn a_file_that_lost_commits_is_refused() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let engine = connect(&directory.path().join("locks.db")).await;
        let alice = session(&engine).await;
        token(acquire(&engine, alice, "a").await);
        engine.state.borrow().log.connection().execute("DELETE FROM log WHERE seq = 2", []).unwrap();
        let why = unavailable(acquire(&engine, alice, "b").await);
        assert!(why.what.contains("removed or replaced"), "{}", why.what);
        assert!(!why.may_have_taken_effect && !why.is_retryable);
    });
}

/// Returns the mode of the last commit: 2 was flushed, 1 is flushed with a later commit.
fn synchronous(engine: &Embedded) -> i64 {
    let state = engine.state.borrow();
    let mode: String = state.log.connection().pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    state.log.connection().pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap()
}

#[test]
fn a_commit_that_issues_a_token_is_flushed_before_the_reply() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("locks.db");
        let (here, there) = (connect(&file).await, connect(&file).await);
        let (alice, bob) = (session(&here).await, session(&there).await);
        assert_eq!(synchronous(&here), 2);
        let held = token(acquire(&here, alice, "a").await);
        assert_eq!(synchronous(&here), 2);
        here.release(alice, name("a"), held).await.unwrap();
        assert_eq!(synchronous(&here), 1, "a release without a waiter is not flushed");

        let held = token(acquire(&here, alice, "a").await);
        assert_eq!(synchronous(&here), 2);
        let waiting = Acquire { patience: Patience::Wait, ..Acquire::exclusive(bob, name("a")) };
        let granted = {
            let there = there.clone();
            tokio::task::spawn_local(async move { there.acquire(waiting).await })
        };
        let queued = async {
            while there.inspect(name("a")).await.unwrap().is_none_or(|lock| lock.waiters.is_empty()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT, queued).await.expect("the request is queued within 300 s");
        here.release(alice, name("a"), held).await.unwrap();
        assert_eq!(synchronous(&here), 2, "a release that grants a waiter the lock issues a token");
        let granted = tokio::time::timeout(WAIT, granted).await.expect("the waiter is granted the lock within 300 s");
        assert!(token(granted.unwrap()) > held);
        here.force_release(name("a"), None, Label::new("ops"), Label::new("a test")).await.unwrap();
        assert_eq!(synchronous(&here), 2);
        here.close_session(alice).await.unwrap();
        assert_eq!(synchronous(&here), 1);
        session(&here).await;
        assert_eq!(synchronous(&here), 2);
    });
}

/// A random number generator with a seed, so that a failure can be reproduced.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn random_request(random: &mut Random, session: SessionId, number: u64) -> Acquire {
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, of: 2 }];
    let mode = modes[random.below(3) as usize];
    let first = random.below(3);
    let wants = (0..1 + random.below(2)).map(|n| Want { lock: name(&format!("{}", (first + n) % 3)), mode });
    let mut request = Acquire::many(session, wants);
    request.caller = Caller { session, number: (random.below(4) > 0).then(|| RequestNo::new(number).unwrap()) };
    request.patience = if random.below(2) == 0 { Patience::Try } else { Patience::Wait };
    request.reentry = if random.below(2) == 0 { Reentry::Refuse } else { Reentry::Queue };
    request
}

/// A command that is not in the log must not change the replica.
#[test]
fn every_replica_equals_the_file_after_every_step() {
    for seed in 1..=8 {
        run(async move {
            let directory = tempfile::tempdir().unwrap();
            let config = Config { compact_after: Some(7), ..Config::at(directory.path().join("locks.db")) };
            let mut random = Random(seed);
            let engines =
                [Embedded::connect(config.clone()).await.unwrap(), Embedded::connect(config).await.unwrap()];
            let mut sessions = Vec::new();
            for n in 0..3 {
                sessions.push(session(&engines[n % 2]).await);
            }
            let mut granted = Vec::new();
            for number in 1..120 {
                let (engine, at) = (&engines[random.below(2) as usize], random.below(3) as usize);
                let session_now = sessions[at];
                match random.below(12) {
                    0..6 => {
                        let request = random_request(&mut random, session_now, number);
                        let lock = request.wants[0].lock.clone();
                        // Dropping the call stops waiting.
                        let acquired = tokio::time::timeout(Duration::from_millis(2), engine.acquire(request)).await;
                        if let Ok(Ok(Acquired::Granted { token })) = acquired {
                            granted.push((session_now, lock, token));
                        }
                    }
                    6..9 if !granted.is_empty() => {
                        let (owner, lock, token) = granted.swap_remove(random.below(granted.len() as u64) as usize);
                        drop(engine.release(owner, lock, token).await);
                    }
                    9 => drop(engine.cancel(session_now, RequestNo::new(1 + random.below(number)).unwrap()).await),
                    10 => drop(engine.force_release(name("0"), None, Label::new("x"), Label::new("y")).await),
                    _ => {
                        engine.close_session(session_now).await.unwrap();
                        sessions[at] = session(engine).await;
                    }
                }
                engines.iter().for_each(assert_equals_file);
            }
        });
    }
}

#[test]
fn errors_name_the_file_and_have_no_effect() {
    let file = std::path::PathBuf::from("locks.db");
    let errors = [
        StoreError::Forbidden(file.clone()),
        StoreError::ReadOnly(file.clone()),
        StoreError::io("open", &file, std::io::ErrorKind::StorageFull.into()),
        StoreError::io("open", &file, std::io::ErrorKind::PermissionDenied.into()),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("locks.db"), "{text}");
        assert!(!Failure::from(error).may_have_taken_effect());
    }
}
