//! Random commands to the state machine of `core` and to the engine on the real store. The answers, and the holders and waiters
//! of every lock after each command, must be the same.

use std::collections::BTreeMap;
use std::rc::Rc;

use palisade::engine::{
    Acquire, Acquired, Caller, Cancelled, Engine, Failure, Label, LockInfo, Patience, Reentry, RequestNo, Ttl, Want,
};
use palisade::{LockName, Mode, Refusal, SessionId, Token};
use palisade_core::{Answer, Command, Event, GrantState, Limits, Machine, Waiting};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::Store;
use super::bench::Stores;
use crate::bounded::{number_from_env, until};
use crate::conformance::seed::Seed;

const LOCKS: [&str; 3] = ["a", "b", "c"];
const STEPS: usize = 40;

/// Pseudo-random numbers from a seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn wants(&mut self) -> Vec<Want> {
        let first = self.below(3) as usize;
        let several = if self.below(3) == 0 { 2 } else { 1 };
        let want = |lock: &str, rng: &mut Rng| {
            let mode = match rng.below(6) {
                0..=2 => Mode::Exclusive,
                3 | 4 => Mode::Shared,
                _ => Mode::Permits { count: 1 + rng.below(2) as u32, of: 3 },
            };
            Want { lock: name(lock), mode }
        };
        (0..several).map(|nth| want(LOCKS[(first + nth) % 3], self)).collect()
    }
}

fn name(lock: &str) -> LockName {
    LockName::new(lock).expect("a name")
}

/// The holders and the waiters of a lock.
type State = (Vec<(SessionId, Mode)>, Vec<(SessionId, Mode)>);

fn shown(lock: &LockInfo) -> State {
    let holders = lock.holders.iter().map(|holder| (holder.session.expect("a session"), holder.mode)).collect();
    (holders, lock.waiters.iter().map(|waiter| (waiter.session, waiter.mode)).collect())
}

struct Run<E> {
    machine: Machine,
    engine: Rc<E>,
    sessions: Vec<SessionId>,
    last: u64,
    /// The acquires that wait or are granted.
    acquires: BTreeMap<(SessionId, RequestNo), JoinHandle<Result<Acquired, Failure>>>,
    /// The grants of the model: a lock, and the token there.
    held: BTreeMap<(SessionId, RequestNo), (LockName, Token)>,
}

impl<E: Engine> Run<E> {
    fn apply(&mut self, command: Command) -> Result<Answer, Refusal> {
        let applied = self.machine.apply(command);
        for event in applied.events {
            match event {
                Event::Granted { session, number: Some(number), locks, token, .. } => {
                    self.held.insert((session, number), (locks[0].clone(), token));
                }
                Event::GrantEnded { token, .. } => self.held.retain(|_, (_, its)| *its != token),
                _ => {}
            }
        }
        applied.answer
    }

    async fn open(&mut self) {
        let (ttl, label) = (Ttl::from_ms(3_600_000).expect("a TTL"), Label::new("a client"));
        let session = self.engine.open_session(ttl, label.clone()).await.expect("opened").session;
        self.apply(Command::OpenSession { session, ttl, label }).expect("opened");
        self.sessions.push(session);
    }

    async fn acquire(&mut self, rng: &mut Rng) {
        let session = self.sessions[rng.below(self.sessions.len() as u64) as usize];
        self.last += 1;
        let number = RequestNo::new(self.last).expect("a number");
        let mut acquire = Acquire::many(Caller { session, number: Some(number) }, rng.wants());
        acquire.patience = if rng.below(3) == 0 { Patience::Try } else { Patience::Wait };
        acquire.reentry = if rng.below(4) == 0 { Reentry::Refuse } else { Reentry::Queue };
        let expected = self.apply(Command::Acquire(acquire.clone()));
        let engine = self.engine.clone();
        let asked = acquire.clone();
        let answer = spawn_local(async move { engine.acquire(asked).await });
        match expected {
            Ok(Answer::Queued { .. } | Answer::Granted { .. }) => {
                self.acquires.insert((session, number), answer);
            }
            Ok(Answer::Busy) => {
                let answer = answer.await.expect("no panic").expect("an answer");
                assert_eq!(answer, Acquired::Busy, "{acquire:?}");
            }
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => match (answer.await.expect("no panic"), &refusal) {
                (
                    Err(Failure::Refused(Refusal::AlreadyHeld { lock, .. })),
                    Refusal::AlreadyHeld { lock: its, .. },
                ) => {
                    // The tokens are others.
                    assert_eq!(&lock, its);
                }
                (Err(Failure::Refused(found)), _) => assert_eq!(found, refusal, "{acquire:?}"),
                (other, _) => panic!("{other:?} instead of {refusal:?}"),
            },
        }
    }

    async fn step(&mut self, rng: &mut Rng) {
        match rng.below(10) {
            0..=4 => self.acquire(rng).await,
            5..=7 => {
                let nth = rng.below(self.held.len().max(1) as u64) as usize;
                let Some((key, (lock, token))) = self.held.clone().into_iter().nth(nth) else { return };
                let granted = self.acquires.remove(&key).expect("it was asked for").await.expect("no panic");
                let Ok(Acquired::Granted { token: own }) = granted else { panic!("{granted:?} instead of a grant") };
                self.apply(Command::Release { caller: None, lock: lock.clone(), token }).expect("it is held");
                self.engine.release(key.0, lock, own).await.expect("it is held");
            }
            8 => {
                let waits: Vec<_> =
                    self.acquires.keys().filter(|key| !self.held.contains_key(key)).copied().collect();
                let Some((session, number)) = waits.get(rng.below(waits.len().max(1) as u64) as usize).copied()
                else {
                    return;
                };
                let caller = Caller { session, number: None };
                self.apply(Command::Cancel { caller, waiting: Waiting::Request(number) }).expect("it waits");
                self.acquires.remove(&(session, number)).expect("it waits").abort();
                assert_eq!(self.engine.cancel(session, number).await.expect("an answer"), Cancelled::Gone);
            }
            _ => {
                let session = self.sessions.swap_remove(rng.below(self.sessions.len() as u64) as usize);
                self.apply(Command::CloseSession { session }).expect("it is open");
                self.acquires.retain(|key, _| key.0 != session);
                self.engine.close_session(session).await.expect("closed");
                self.open().await;
            }
        }
    }

    fn expected(&self) -> BTreeMap<LockName, State> {
        let state = |lock: &str| {
            let view = self.machine.lock(&name(lock))?;
            let holder = |state: &GrantState<'_>, mode| match state {
                GrantState::Held { session, .. } => (*session, mode),
                GrantState::Withheld => unreachable!("there is no lock-delay"),
            };
            let holders = view.holders().map(|grant| holder(&grant.state, grant.mode)).collect();
            Some((name(lock), (holders, view.waiters().map(|waiter| (waiter.session, waiter.mode)).collect())))
        };
        LOCKS.into_iter().filter_map(state).collect()
    }

    async fn found(&self) -> BTreeMap<LockName, State> {
        let locks = self.engine.list(String::new()).await.expect("a list");
        locks.iter().map(|lock| (lock.name.clone(), shown(lock))).collect()
    }
}

/// `PALISADE_MODEL_RUNS` sets the number of histories, and `PALISADE_SEED` the seed of the first one.
pub async fn random_histories_agree_with_the_model<S: Store>(stores: &Stores<S>) {
    const RUNS: &str = "PALISADE_MODEL_RUNS";
    let histories = async {
        let first = Seed::first(0);
        for seed in first..first + u64::from(number_from_env(RUNS, 8)) {
            let _seed = Seed::new(seed, RUNS);
            run::<S>(stores, seed).await;
        }
    };
    LocalSet::new().run_until(histories).await;
}

async fn run<S: Store>(stores: &Stores<S>, seed: u64) {
    let fixture = stores.shared();
    let engine = Rc::new(S::connect(&fixture.url()).await.expect("an engine"));
    let (machine, sessions) = (Machine::new(Limits::default()), Vec::new());
    let (acquires, held) = (BTreeMap::new(), BTreeMap::new());
    let mut run = Run { machine, engine, sessions, last: 0, acquires, held };
    for _ in 0..3 {
        run.open().await;
    }
    let mut rng = Rng(seed);
    for step in 0..STEPS {
        run.step(&mut rng).await;
        // A set that waited is marked by its client, a moment later.
        let what = format!("seed {seed}, step {step}: the store agrees with {:?}", run.expected());
        until(&what, async || run.found().await == run.expected()).await;
    }
    for session in run.sessions {
        run.engine.close_session(session).await.expect("closed");
    }
}
