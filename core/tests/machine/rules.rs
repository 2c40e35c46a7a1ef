//! The machine against a reference model, with random commands, checked after every step.
//!
//! `PROPTEST_CASES=100000 cargo test --release -p palisade-core --test machine rules` tries many more cases. A
//! sequence that fails is made as short as possible and its seed is kept in `rules.proptest-regressions`, from where
//! every later run tries it first.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::event_checker::EventChecker;
use crate::common::model::Model;
use crate::common::observed::Observed;
use crate::common::steps::{Resolver, Step, limits, steps};
use palisade_core::{
    Acquire, Answer, Applied, Caller, Command, Delay, Event, Kind, Label, Limits, LockName, Machine, Mode, Patience,
    Reentry, Refusal, RequestNo, SessionId, Token, Ttl, Value, Waiting, Want, invariant,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

/// Returns the configuration of a test with this many cases, unless `PROPTEST_CASES` is set.
fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config.max_shrink_iters = 20_000;
    let seeds = FileFailurePersistence::Direct("tests/machine/rules.proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(seeds)), ..config }
}

/// A machine with all its checkers.
struct CheckedMachine {
    machine: Machine,
    model: Model,
    events: EventChecker,
    resolver: Resolver,
    before: (Observed, Vec<u8>),
    /// Requests that were cancelled, or whose cancel was answered with "not waiting".
    cancelled: BTreeSet<(SessionId, RequestNo)>,
}

impl CheckedMachine {
    fn new(limits: Limits) -> CheckedMachine {
        let machine = Machine::new(limits.clone());
        let (events, resolver) = (EventChecker::default(), Resolver::new(&machine));
        let before = (Observed::of(&machine), machine.snapshot());
        CheckedMachine { machine, model: Model::new(limits), events, resolver, before, cancelled: BTreeSet::new() }
    }

    fn run(&mut self, step: &Step) {
        let command = self.resolver.command(step);
        self.apply(&command);
    }

    fn apply(&mut self, command: &Command) -> Applied {
        let applied = self.machine.apply(command.clone());
        assert_eq!(invariant::check(&self.machine), Ok(()));
        self.model.step(command, &applied);
        let after = (Observed::of(&self.machine), self.machine.snapshot());
        assert_eq!(after.0, self.model.observed(), "machine (left), model (right)");
        self.events.apply(&applied.events);
        self.events.check(&after.0);
        check_refusal_changes_nothing(command, &applied, &self.before, &after);
        check_grants(&applied, &self.before.0, &after.0);
        self.check_cancelled(command, &applied);
        self.resolver.learn(&applied, after.0.clone());
        self.before = after;
        applied
    }
}

impl CheckedMachine {
    /// Checks that a request whose cancel was answered with "not waiting" is not granted later.
    fn check_cancelled(&mut self, command: &Command, applied: &Applied) {
        match (command, &applied.answer) {
            (Command::Cancel { caller, waiting: Waiting::Request(number) }, Ok(_) | Err(Refusal::NotWaiting)) => {
                self.cancelled.insert((caller.session, *number));
            }
            // A session that has ended may be followed by another one with its id.
            (Command::OpenSession { session, .. }, Ok(_)) if !applied.events.is_empty() => {
                self.cancelled.retain(|(cancelled, _)| cancelled != session);
            }
            (Command::Acquire(Acquire { caller: Caller { session, number: Some(number) }, .. }), Ok(_)) => {
                let begun = !applied.events.is_empty();
                let cancelled = self.cancelled.contains(&(*session, *number));
                assert!(!begun || !cancelled, "request {number} was carried out after it was cancelled");
            }
            _ => {}
        }
    }
}

/// Checks that a refusal or `busy` changes nothing, except that the answer to a numbered request is remembered.
fn check_refusal_changes_nothing(
    command: &Command,
    applied: &Applied,
    before: &(Observed, Vec<u8>),
    after: &(Observed, Vec<u8>),
) {
    if !matches!(applied.answer, Err(_) | Ok(Answer::Busy)) {
        return;
    }
    assert!(applied.events.is_empty(), "a refusal has no events");
    assert_eq!(before.0, after.0, "a refusal changes nothing that can be seen");
    if command.caller().is_none_or(|caller| caller.number.is_none()) {
        assert!(before.1 == after.1, "a refusal without a number changes nothing at all");
    }
}

/// Checks that each new token is above all earlier ones, and that no grant takes more permits than there are.
fn check_grants(applied: &Applied, before: &Observed, after: &Observed) {
    let mut last = before.last_token;
    for event in &applied.events {
        let Event::Granted { locks, token, .. } = event else { continue };
        assert!(Some(*token) > last, "tokens of grants rise");
        last = Some(*token);
        for lock in locks.iter().map(|name| &after.locks[name]) {
            let taken: u64 = lock.holders.iter().map(|(_, mode, _)| permits(*mode)).sum();
            let most = match lock.kind {
                Kind::Semaphore { limit } => u64::from(limit),
                Kind::Lock if lock.holders.iter().any(|(_, mode, _)| *mode == Mode::Exclusive) => 1,
                Kind::Lock => u64::MAX,
            };
            assert!(taken <= most, "a grant took more than there is: {taken} of {most}");
        }
    }
}

fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive | Mode::Shared => 1,
        Mode::Permits { count, .. } => u64::from(count),
    }
}

/// Resolves steps into commands.
fn commands(limits: &Limits, steps: &[Step]) -> Vec<Command> {
    let mut machine = Machine::new(limits.clone());
    let mut resolver = Resolver::new(&machine);
    for step in steps {
        let command = resolver.command(step);
        let applied = machine.apply(command);
        resolver.learn(&applied, Observed::of(&machine));
    }
    resolver.commands
}

/// Returns the variant names of the answer or refusal, of each event, and of its reason.
fn names_of(applied: &Applied) -> Vec<String> {
    let mut happened = vec![match &applied.answer {
        Ok(answer) => format!("{answer:?}"),
        Err(refusal) => format!("{refusal:?}"),
    }];
    for event in &applied.events {
        happened.push(format!("{event:?}"));
        match event {
            Event::LeftQueue { why, .. } => happened.push(format!("Left{why:?}")),
            Event::GrantEnded { how, .. } => happened.push(format!("Ended{how:?}")),
            Event::Granted { ticket: Some(_), .. } => happened.push("GrantedAfterWait".to_owned()),
            _ => {}
        }
    }
    let first_word = |text: &String| text.chars().take_while(char::is_ascii_alphabetic).collect();
    happened.iter().map(first_word).collect()
}

/// The other tests would be empty if the random commands were all refused for the same few reasons.
#[test]
fn the_random_commands_reach_every_answer_refusal_and_event() {
    let mut runner = TestRunner::deterministic();
    let mut met = BTreeMap::<String, u32>::new();
    for _ in 0..300 {
        let (limits, steps) = (limits(), steps(70)).new_tree(&mut runner).expect("a case").current();
        let mut machine = Machine::new(limits.clone());
        for command in commands(&limits, &steps) {
            names_of(&machine.apply(command)).into_iter().for_each(|name| *met.entry(name).or_default() += 1);
        }
    }
    let every = "Opened Granted Queued Busy Forced Done NoSuchSession SessionExists NoSuchLock NoReason NoHolder OverLimit \
        Matched PartOfGrant SecretNotPossible ForOneRequest TtlChanged \
        UnderLimit AlreadyHeld NoLocks NamedTwice WrongKind LimitDiffers BadPermits BadLimit BadLimit ValueNotPossible NotHeld NotWithheld \
        NeverGranted OtherSession AlreadyGranted NotWaiting Withdrawn NumberReused NumberForgotten SessionOpened \
        SessionEnded LeftQueue LeftCancelled LeftSessionEnded LeftRefused GrantedAfterWait GrantEnded EndedReleased \
        EndedSessionEnded EndedForced Withheld DelayEnded Published Resized TokensRaised Configured";
    let rare: Vec<&str> = every.split_whitespace().filter(|kind| met.get(*kind).is_none_or(|n| *n < 10)).collect();
    assert!(rare.is_empty(), "hardly ever met: {rare:?} in {met:#?}");
}

fn open(session: u64) -> Command {
    let (session, ttl) = (SessionId::new(session).expect("an id"), Ttl::from_ms(1000).expect("a ttl"));
    Command::OpenSession { session, ttl, label: Label::new("me") }
}

/// Too rare for the random commands: a repeat after the request was dropped.
#[test]
fn every_repeat_of_a_request_that_a_resize_dropped_is_refused() {
    let roomy = Limits { history_per_lock: 2, ..Limits::default() };
    let mut checked = CheckedMachine::new(roomy);
    checked.apply(&open(1));
    let lock = LockName::new("pool").unwrap();
    let acquire = |number, count, of| {
        let caller = Caller { session: SessionId::new(1).unwrap(), number: RequestNo::new(number).ok() };
        let wants = [Want { lock: lock.clone(), mode: Mode::Permits { count, of } }];
        let (patience, reentry) = (Patience::Wait, Reentry::Queue);
        Command::Acquire(Acquire { patience, reentry, ..Acquire::many(caller, wants) })
    };
    let (too_large, small) = (acquire(2, 3, 3), acquire(3, 1, 3));
    for command in [acquire(1, 1, 3), too_large.clone(), small.clone()] {
        checked.apply(&command);
    }
    checked.apply(&Command::Resize { lock: lock.clone(), limit: 2 });
    let refusal = Refusal::ResizedBelow { lock, limit: 2 };
    assert_eq!(checked.apply(&too_large).answer, Err(refusal.clone()));
    assert_eq!(checked.apply(&too_large).answer, Err(refusal));
    assert!(matches!(checked.apply(&small).answer, Ok(Answer::Granted { .. })));
}

#[test]
fn a_value_ends_with_its_grant_though_the_lock_is_withheld() {
    let mut checked = CheckedMachine::new(Limits::default());
    checked.apply(&open(1));
    let (session, lock) = (SessionId::new(1).unwrap(), LockName::new("leader").unwrap());
    let (delay, value) = (Delay::from_ms(10).ok(), Some(Value::new(b"10.0.0.1")));
    checked.apply(&Command::Acquire(Acquire { delay, value, ..Acquire::exclusive(session, lock.clone()) }));
    assert!(checked.machine.lock(&lock).unwrap().value().is_some());
    checked.apply(&Command::ExpireSession { session });
    assert!(checked.machine.lock(&lock).unwrap().value().is_none());
}

/// Later requests of the session must not make it forget the number of one that waits or is held.
#[test]
fn a_grant_is_found_by_its_request_number_after_many_other_requests() {
    let mut machine = Machine::new(Limits { answers_per_session: 1, ..Limits::default() });
    let (other, session) = (SessionId::new(1).unwrap(), SessionId::new(2).unwrap());
    let lock = |name| LockName::new(name).unwrap();
    let acquire = |number, name| {
        let caller = Caller { session, number: RequestNo::new(number).ok() };
        Command::Acquire(Acquire { patience: Patience::Wait, ..Acquire::exclusive(caller, lock(name)) })
    };
    let first = [open(1), open(2), Command::Acquire(Acquire::exclusive(other, lock("a"))), acquire(1, "a")];
    for command in first.into_iter().chain([acquire(2, "b"), acquire(3, "c"), acquire(4, "d")]) {
        assert!(machine.apply(command).answer.is_ok());
    }
    let token = Token::new(1).unwrap();
    machine.apply(Command::Release { caller: None, lock: lock("a"), token });
    let granted = machine.last_token().unwrap();
    assert_eq!(machine.apply(acquire(1, "a")).answer, Ok(Answer::Granted { token: granted }));
    let waiting = Waiting::Request(RequestNo::new(1).unwrap());
    let cancel = machine.apply(Command::Cancel { caller: session.into(), waiting });
    assert_eq!(cancel.answer, Err(Refusal::AlreadyGranted { token: granted }));
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn the_machine_matches_the_model(limits in limits(), steps in steps(70)) {
        let mut checked = CheckedMachine::new(limits);
        for step in &steps {
            checked.run(step);
        }
    }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn nothing_is_granted_after_the_last_token(limits in limits(), left in 0u64..8, steps in steps(40)) {
        let mut checked = CheckedMachine::new(limits);
        let above = Token::new(Token::MAX.get() - left).expect("a token");
        checked.apply(&Command::RaiseTokens { above });
        for step in &steps {
            checked.run(step);
        }
    }

    #[test]
    fn nothing_is_left_behind_when_all_sessions_are_closed(limits in limits(), steps in steps(50)) {
        let mut checked = CheckedMachine::new(limits);
        for step in &steps {
            checked.run(step);
        }
        for session in checked.before.0.sessions.clone().into_keys() {
            checked.apply(&Command::CloseSession { session });
        }
        for (token, (locks, _)) in checked.before.0.withheld.clone() {
            checked.apply(&Command::EndDelay { lock: locks[0].clone(), token });
        }
        prop_assert_eq!((checked.machine.session_count(), checked.machine.lock_count()), (0, 0));
    }

    #[test]
    fn a_repeat_changes_nothing(limits in limits(), steps in steps(50)) {
        let mut machine = Machine::new(limits.clone());
        for command in commands(&limits, &steps) {
            let first = machine.apply(command.clone());
            let before = machine.snapshot();
            if command.caller().is_some_and(|caller| caller.number.is_some()) {
                let again = machine.apply(command);
                prop_assert_eq!(again.answer, first.answer);
                prop_assert!(again.events.is_empty());
                prop_assert!(machine.snapshot() == before);
            }
        }
    }

    #[test]
    fn equal_commands_make_equal_machines(limits in limits(), steps in steps(70), key in any::<u64>()) {
        let mut one = Machine::new(limits.clone());
        let mut two = Machine::new(limits.clone()).with_hash_key(key);
        for (step, command) in commands(&limits, &steps).into_iter().enumerate() {
            prop_assert_eq!(one.apply(command.clone()), two.apply(command));
            prop_assert!(one.snapshot() == two.snapshot());
            if step % 16 == 0 {
                two = two.with_hash_key(key.wrapping_add(step as u64));
                prop_assert_eq!(invariant::check(&two), Ok(()));
            }
        }
    }

    #[test]
    fn a_restored_machine_behaves_like_the_original(limits in limits(), steps in steps(70), cut in any::<prop::sample::Index>()) {
        let commands = commands(&limits, &steps);
        let (past, future) = commands.split_at(cut.index(commands.len()));
        let mut first = Machine::new(limits);
        past.iter().for_each(|command| drop(first.apply(command.clone())));
        let mut restored = Machine::restore(&first.snapshot()).expect("its own snapshot");
        prop_assert!(restored.snapshot() == first.snapshot());
        for command in future {
            prop_assert_eq!(first.apply(command.clone()), restored.apply(command.clone()));
            prop_assert!(restored.snapshot() == first.snapshot());
        }
    }

    #[test]
    fn commands_survive_being_written_and_read(limits in limits(), steps in steps(50)) {
        for command in commands(&limits, &steps) {
            let bytes = postcard::to_stdvec(&command).expect("written");
            prop_assert_eq!(postcard::from_bytes::<Command>(&bytes).expect("read"), command);
        }
    }
}

/// Of an idle lock only its force-releases are kept, and of these only the last few.
#[test]
fn a_force_release_is_remembered_when_the_lock_is_idle() {
    let mut machine = Machine::new(Limits::default());
    machine.apply(open(1));
    let session = SessionId::new(1).unwrap();
    let lock = |number: usize| LockName::new(&format!("lock/{number}")).unwrap();
    let mut take_away = |number: usize| {
        machine.apply(Command::Acquire(Acquire::exclusive(session, lock(number))));
        let (by, reason) = (Label::new("root"), Label::new("it hangs"));
        machine.apply(Command::ForceRelease { lock: lock(number), only: None, by, reason }).answer.unwrap();
        invariant::check(&machine).unwrap();
    };
    take_away(0);
    take_away(0);
    (1..256).for_each(&mut take_away);
    machine.apply(Command::Acquire(Acquire::exclusive(session, lock(1))));
    let token = machine.last_token().unwrap();
    machine.apply(Command::Release { caller: None, lock: lock(1), token });
    let machine = Machine::restore(&machine.snapshot()).unwrap();
    assert_eq!(machine.lock_count(), 0);
    let kept = |number| machine.forced(&lock(number)).map(|ended| ended.token.get()).collect::<Vec<_>>();
    assert_eq!(kept(0), [3], "the oldest makes room");
    assert_eq!(kept(1), [5], "it was taken away, and later released");
    assert_eq!(kept(255).len(), 1);
}
