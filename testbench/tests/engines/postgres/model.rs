//! Random commands to the state machine of `core` and to a database. Both must give the same replies, and have the same
//! holders and queues.
//!
//! Two differences are not tested. A database remembers the answer to a numbered request only while it waits or is
//! held, or was cancelled. And as each lock counts its tokens, a database cannot tell a token that was never given from one that
//! has ended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use palisade_core::{
    Acquire, Answer, Caller, Command, Delay, GrantState, Label, Limits, LockName, Machine, Mode, Patience, Reentry,
    Refusal, RequestNo, SessionId, Token, Ttl, Value, Waiting, Want,
};
use palisade_testbench::bounded::within;
use palisade_testbench::conformance::seed::Seed;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::fixture::{Fixture, check_many, number_from_env};
use super::functions::Functions;
use super::steps::{LOCKS, Step, step};

/// A grant, or a wait, as the database shows it.
pub(crate) struct Seen {
    pub(crate) lock: String,
    pub(crate) state: String,
    pub(crate) session: Option<i64>,
    pub(crate) need: i64,
    pub(crate) token: Option<i64>,
    pub(crate) permits: Option<i64>,
    pub(crate) value: Option<Vec<u8>>,
}

/// Returns the permits that a mode takes, and the number that it declares.
pub(crate) fn need(mode: Mode) -> (i64, Option<i64>) {
    match mode {
        Mode::Exclusive => (i64::from(u32::MAX), None),
        Mode::Shared => (1, None),
        Mode::Permits { count, of } => (i64::from(count), Some(i64::from(of))),
    }
}

/// The state machine and the database.
pub(crate) struct Pair<'a> {
    pub(crate) machine: Machine,
    pub(crate) store: &'a mut Functions,
    prefix: String,
    /// The number of steps that were taken.
    pub(crate) steps: u32,
    /// The sessions in the order of opening: the number in the machine, and the number in the store.
    pub(crate) sessions: Vec<(SessionId, i64)>,
    last_number: u64,
    asked: Vec<Acquire>,
    /// The tokens of the machine, with those of the store at each lock.
    tokens: BTreeMap<(LockName, Token), i64>,
    highest: BTreeMap<LockName, i64>,
}

/// The part of a reply that both must give.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Granted,
    Queued,
    Busy,
    Done,
    Forced(u32),
    Refused(String),
}

fn reply_of(answer: &Result<Answer, Refusal>) -> Reply {
    match answer {
        Ok(Answer::Granted { .. }) => Reply::Granted,
        Ok(Answer::Queued { .. }) => Reply::Queued,
        Ok(Answer::Busy) => Reply::Busy,
        Ok(Answer::Forced { grants, .. }) => Reply::Forced(*grants),
        Ok(Answer::Opened { .. } | Answer::Done | Answer::Raised { .. } | Answer::Matched { .. }) => Reply::Done,
        Err(refusal) => refused(refusal),
    }
}

/// Returns a refusal without the numbers that differ between the two.
fn refused(refusal: &Refusal) -> Reply {
    Reply::Refused(match refusal {
        Refusal::NotHeld { .. } | Refusal::NeverGranted { .. } => "not held".to_owned(),
        Refusal::AlreadyHeld { lock, .. } => format!("already held: {lock}"),
        Refusal::OtherSession { lock, .. } => format!("another's: {lock}"),
        Refusal::NoSuchSession { .. } => "no such session".to_owned(),
        other => format!("{other:?}"),
    })
}

fn refused_in(detail: &str) -> Reply {
    refused(&serde_json::from_str(detail).unwrap_or_else(|error| panic!("{detail}: {error}")))
}

fn unless_refused(refusal: Option<String>) -> Reply {
    refusal.map_or(Reply::Done, |refusal| refused_in(&refusal))
}

impl<'a> Pair<'a> {
    pub(crate) fn new(store: &'a mut Functions, case: u64) -> Pair<'a> {
        Pair {
            machine: Machine::new(Limits::default()),
            store,
            prefix: format!("{case}/"),
            steps: 0,
            sessions: Vec::new(),
            last_number: 0,
            asked: Vec::new(),
            tokens: BTreeMap::new(),
            highest: BTreeMap::new(),
        }
    }

    fn lock(&self, lock: usize) -> LockName {
        LockName::new(&format!("{}{lock}", self.prefix)).expect("a name")
    }

    fn session(&self, client: usize) -> Option<(SessionId, i64)> {
        (!self.sessions.is_empty()).then(|| self.sessions[client % self.sessions.len()])
    }

    fn store_session(&self, session: SessionId) -> i64 {
        self.sessions.iter().find(|(ours, _)| *ours == session).expect("it was opened").1
    }

    fn next_number(&mut self) -> RequestNo {
        self.last_number += 1;
        RequestNo::new(self.last_number).expect("above 0")
    }

    /// Returns a current or former grant of one lock, with its token in the machine and in the store.
    fn grant(&self, grant: usize) -> Option<(LockName, Token, i64)> {
        let at = grant % self.tokens.len().max(1);
        self.tokens.iter().nth(at).map(|((lock, token), theirs)| (lock.clone(), *token, *theirs))
    }

    /// Returns the holder of a grant, or any session.
    fn holder(&self, lock: &LockName, token: Token) -> Option<(SessionId, i64)> {
        let holders = self.machine.lock(lock).into_iter().flat_map(|lock| lock.holders().collect::<Vec<_>>());
        let held = holders.into_iter().find(|grant| grant.token == token).and_then(|grant| match grant.state {
            GrantState::Held { session, .. } => Some(session),
            GrantState::Withheld => None,
        });
        held.map(|session| (session, self.store_session(session))).or(self.session(0))
    }

    pub(crate) async fn take(&mut self, step: Step) {
        self.steps += 1;
        let (ours, theirs) = match step {
            Step::Open => return self.open().await,
            Step::Close(client) => {
                let Some((session, id)) = self.session(client) else { return };
                self.store.close(id).await;
                drop(self.machine.apply(Command::CloseSession { session }));
                return self.compare().await;
            }
            Step::Expire(client) => {
                let Some((session, id)) = self.session(client) else { return };
                self.store.make_overdue(id).await;
                self.store.sweep().await;
                drop(self.machine.apply(Command::ExpireSession { session }));
                return self.compare().await;
            }
            Step::Acquire { client, wants, waits, may_queue, delay, value } => {
                let Some((session, _)) = self.session(client) else { return };
                let number = Some(self.next_number());
                let wants = wants.into_iter().map(|(lock, mode)| Want { lock: self.lock(lock), mode });
                let ask = Acquire {
                    patience: if waits { Patience::Wait } else { Patience::Try },
                    reentry: if may_queue { Reentry::Queue } else { Reentry::Refuse },
                    delay: delay.then(|| Delay::from_ms(3_600_000).expect("an hour")),
                    value: value.then(|| Value::new(b"a value")),
                    ..Acquire::many(Caller { session, number }, wants)
                };
                self.asked.push(ask.clone());
                self.ask(ask).await
            }
            Step::Repeat(which) => {
                let Some(ask) = self.asked.get(which % self.asked.len().max(1)).cloned() else { return };
                if !self.is_live(&ask) {
                    return;
                }
                self.ask(ask).await
            }
            Step::Cancel(which) => {
                let Some(ask) = self.asked.get(which % self.asked.len().max(1)).cloned() else { return };
                self.cancel(ask.caller).await
            }
            Step::CancelFirst { client, lock } => {
                let Some((session, _)) = self.session(client) else { return };
                let caller = Caller { session, number: Some(self.next_number()) };
                let (ours, theirs) = self.cancel(caller).await;
                assert_eq!(ours, theirs);
                self.ask(Acquire::exclusive(caller, self.lock(lock))).await
            }
            Step::Release { grant, client, lock } => {
                let Some((held, token, theirs)) = self.grant(grant) else { return };
                let lock = lock.map_or(held.clone(), |lock| self.lock(lock));
                let client = client.and_then(|client| self.session(client)).or(self.holder(&held, token));
                let Some((session, id)) = client else { return };
                // Another lock may have had the same number, which is not one of its tokens in the machine.
                if lock != held {
                    return;
                }
                let theirs = match self.store.give_back(id, &lock, theirs).await {
                    (word, _) if word == "released" => Reply::Done,
                    (_, refusal) => refused_in(&refusal),
                };
                (
                    reply_of(
                        &self.machine.apply(Command::Release { caller: Some(session.into()), lock, token }).answer,
                    ),
                    theirs,
                )
            }
            Step::Publish { grant, client } => {
                let Some((lock, token, theirs)) = self.grant(grant) else { return };
                let client = client.and_then(|client| self.session(client)).or(self.holder(&lock, token));
                let Some((session, id)) = client else { return };
                let theirs = unless_refused(self.store.publish(id, &lock, theirs, "another").await);
                let value = Value::new(b"another");
                (
                    reply_of(
                        &self.machine.apply(Command::Publish { caller: session.into(), lock, token, value }).answer,
                    ),
                    theirs,
                )
            }
            Step::Force { lock, only } => {
                let only = only.and_then(|only| self.grant(only));
                let lock = only.as_ref().map_or(self.lock(lock), |(lock, ..)| lock.clone());
                let theirs = only.as_ref().map(|(_, _, theirs)| *theirs);
                let theirs = match self.store.force(&lock, theirs).await {
                    Err(refusal) => refused_in(&refusal),
                    Ok((grants, token)) => {
                        let moved_to = self.highest.entry(lock.clone()).or_default();
                        assert!(token > *moved_to, "a token came twice");
                        *moved_to = token;
                        Reply::Forced(grants)
                    }
                };
                let (by, reason) = (Label::new("me"), Label::new("me"));
                let only = only.map(|(_, token, _)| token);
                (reply_of(&self.machine.apply(Command::ForceRelease { lock, only, by, reason }).answer), theirs)
            }
            Step::Resize { lock, limit } => {
                let lock = self.lock(lock);
                let theirs = unless_refused(self.store.resize(&lock, limit).await);
                (reply_of(&self.machine.apply(Command::Resize { lock, limit }).answer), theirs)
            }
            Step::EndDelay(which) => {
                let withheld: Vec<_> = self.machine.withheld().collect();
                let Some((locks, token, _)) = withheld.get(which % withheld.len().max(1)) else { return };
                for lock in locks {
                    let theirs = self.tokens[&(lock.clone(), *token)];
                    self.store.end_delay(lock, theirs).await;
                }
                self.store.sweep().await;
                drop(self.machine.apply(Command::EndDelay { lock: locks[0].clone(), token: *token }));
                return self.compare().await;
            }
        };
        assert_eq!(ours, theirs);
        self.compare().await;
    }

    pub(crate) async fn open(&mut self) {
        let ttl = Ttl::from_ms(600_000).expect("ten minutes");
        let id = self.store.open().await;
        let session = SessionId::new(self.sessions.len() as u64 + 1).expect("not zero");
        let opened = self.machine.apply(Command::OpenSession { session, ttl, label: Label::new("me") });
        assert_eq!(opened.answer, Ok(Answer::Opened { session }));
        self.sessions.push((session, id));
    }

    async fn ask(&mut self, ask: Acquire) -> (Reply, Reply) {
        let id = self.store_session(ask.caller.session);
        let (word, refusal) = self.store.acquire(id, &ask).await;
        let theirs = match word.as_str() {
            "granted" => Reply::Granted,
            "queued" => Reply::Queued,
            "busy" => Reply::Busy,
            _ => refused_in(&refusal),
        };
        (reply_of(&self.machine.apply(Command::Acquire(ask)).answer), theirs)
    }

    /// Returns whether a request waits or holds.
    fn is_live(&self, ask: &Acquire) -> bool {
        // A repeat changes nothing, so it can be tried on a copy of the machine.
        let mut copy = self.machine.clone();
        let cancel = Command::Cancel {
            caller: ask.caller.session.into(),
            waiting: Waiting::Request(ask.caller.number.expect("it has one")),
        };
        let before = copy.lock(&ask.wants[0].lock).map_or(0, |lock| lock.waiter_count());
        match copy.apply(cancel).answer {
            Err(Refusal::AlreadyGranted { .. }) => true,
            Ok(_) => copy.lock(&ask.wants[0].lock).map_or(0, |lock| lock.waiter_count()) < before,
            Err(_) => false,
        }
    }

    async fn cancel(&mut self, caller: Caller) -> (Reply, Reply) {
        let number = caller.number.expect("it has one");
        let id = self.store_session(caller.session);
        let (word, refusal) = self.store.cancel(id, number).await;
        let theirs = match word.as_str() {
            "gone" => Reply::Done,
            "granted" => Reply::Granted,
            _ => refused_in(&refusal),
        };
        let cancel = Command::Cancel { caller: caller.session.into(), waiting: Waiting::Request(number) };
        let ours = match self.machine.apply(cancel).answer {
            Err(Refusal::AlreadyGranted { .. }) => Reply::Granted,
            // The request does not wait, and never will.
            Err(Refusal::NotWaiting) => Reply::Done,
            answer => reply_of(&answer),
        };
        (ours, theirs)
    }

    /// Ends all waits, all delays and then all sessions in the machine, as they end in a store whose clock has jumped far ahead: the time
    /// of every session is over at once, so that nothing that ends is granted to another one.
    pub(crate) fn expire_all(&mut self) {
        // From the back of the queues, so that the end of a wait lets no other request be granted.
        for ask in self.asked.iter().rev() {
            let waiting = Waiting::Request(ask.caller.number.expect("it has one"));
            drop(self.machine.apply(Command::Cancel { caller: ask.caller.session.into(), waiting }));
        }
        let withheld: Vec<_> = self.machine.withheld().map(|(locks, token, _)| (locks[0].clone(), token)).collect();
        for (lock, token) in withheld {
            drop(self.machine.apply(Command::EndDelay { lock, token }));
        }
        for (session, _) in &self.sessions {
            drop(self.machine.apply(Command::ExpireSession { session: *session }));
        }
    }

    /// Closes all sessions.
    pub(crate) async fn finish(self) {
        for (_, id) in self.sessions {
            self.store.close(id).await;
        }
        self.store.end_all_delays().await;
        self.store.sweep().await;
    }

    /// Asserts that every lock has the same holders and waiters in the same order, and that tokens rise.
    pub(crate) async fn compare(&mut self) {
        self.store.between_steps().await;
        let locks: Vec<_> = (0..LOCKS).map(|lock| self.lock(lock)).collect();
        let all = self.store.locks(&locks).await;
        for lock in locks {
            let seen: Vec<_> = all.iter().filter(|seen| seen.lock == lock.as_str()).collect();
            let theirs: Vec<_> = seen
                .iter()
                .map(|Seen { state, session, need, permits, .. }| {
                    (state.as_str(), session.filter(|_| state != "withheld"), *need, *permits)
                })
                .collect();
            let mut ours = Vec::new();
            let mut tokens = Vec::new();
            if let Some(view) = self.machine.lock(&lock) {
                let mut holders: Vec<_> = view.holders().collect();
                holders.sort_by_key(|grant| grant.token);
                for grant in holders {
                    let (need, of) = need(grant.mode);
                    let (state, session) = match grant.state {
                        GrantState::Held { session, .. } => ("held", Some(self.store_session(session))),
                        GrantState::Withheld => ("withheld", None),
                    };
                    ours.push((state, session, need, of));
                    tokens.push(grant.token);
                }
                for waiter in view.waiters() {
                    let (need, of) = need(waiter.mode);
                    ours.push(("waiting", Some(self.store_session(waiter.session)), need, of));
                }
                let value = seen.iter().filter(|seen| seen.state == "held").find_map(|seen| seen.value.as_deref());
                assert_eq!(view.value().map(Value::as_bytes), value, "what {lock} shows");
            }
            assert_eq!(ours, theirs, "{lock}");
            for (token, seen) in tokens.into_iter().zip(seen) {
                let (theirs, key) = (seen.token.expect("it is a grant"), (lock.clone(), token));
                match self.tokens.get(&key) {
                    Some(known) => assert_eq!(*known, theirs, "a token has changed"),
                    None => {
                        let highest = self.highest.entry(lock.clone()).or_default();
                        assert!(theirs > *highest, "{lock}: {theirs} came after {highest}");
                        *highest = theirs;
                        self.tokens.insert(key, theirs);
                    }
                }
            }
        }
    }
}

/// Checks as many cases as `PROPTEST_CASES` says, or this default.
pub(crate) fn check_cases(default: u32, comparison: impl AsyncFnOnce(u32)) {
    let cases = number_from_env("PROPTEST_CASES", default);
    // A case has at most 80 steps, and the slowest ones restart the server five times.
    check_many(cases, Duration::from_secs(10), comparison(cases));
}

/// Takes random steps in both. After each step `disturb` may do something that no answer depends on. `PALISADE_SEED` sets the seed of
/// the first case.
pub(crate) async fn compare_with_rules(store: Functions, cases: u32, disturb: impl AsyncFn(&mut Pair<'_>)) {
    let (store, attempts) = (RefCell::new(store), Cell::new(0));
    let first = Seed::first(RandomState::new().hash_one(()));
    for seed in (0..u64::from(cases)).map(|case| first.wrapping_add(case)) {
        let _seed = Seed::new(seed, "PROPTEST_CASES");
        let config = ProptestConfig {
            cases: 1,
            max_shrink_iters: 100,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed.to_le_bytes().repeat(4));
        let result = TestRunner::new_with_rng(config, rng).run(&vec(step(), 1..80), |steps| {
            attempts.set(attempts.get() + 1);
            // After a failure proptest tries smaller cases, on the same connection.
            let mut store = store.borrow_mut();
            let mut pair = Pair::new(&mut store, attempts.get());
            let run = async {
                pair.open().await;
                pair.open().await;
                for step in steps {
                    pair.take(step).await;
                    disturb(&mut pair).await;
                }
                pair.finish().await;
            };
            // Proptest is not async: the check cannot interrupt it, so each case has to notice the deadline.
            let run = within("all steps of the case are taken", run);
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(run));
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }
}

#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do() {
    let fixture = Fixture::new();
    check_cases(30, async |cases| {
        compare_with_rules(Functions::of(&fixture).await, cases, async |_| ()).await;
    });
}
