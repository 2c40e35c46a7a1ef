//! The rules against a plain model of them, with random commands, checked after every step.
//!
//! `PROPTEST_CASES=100000 cargo test --release -p palisade-core --test rules` looks much longer than usual. A
//! sequence that fails is made as short as possible and its seed is kept in `rules.proptest-regressions`, from where
//! every later run tries it first.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::asks::{Ask, World, asks, limits};
use common::model::Model;
use common::picture::Picture;
use common::story::Story;
use palisade_core::{
    Acquire, Answer, Applied, Caller, Command, Delay, Event, Kind, Label, Limits, LockName, Machine, Mode, Patience,
    Reentry, Refusal, RequestNo, SessionId, Token, Ttl, Value, Waiting, Want, invariant,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

/// So many cases, unless the environment says otherwise.
fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config.max_shrink_iters = 20_000;
    let seeds = FileFailurePersistence::Direct("tests/rules.proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(seeds)), ..config }
}

/// A machine with everything that watches it.
struct Watched {
    machine: Machine,
    model: Model,
    story: Story,
    world: World,
    before: (Picture, Vec<u8>),
    /// Requests that were cancelled, and those of which a cancel was told that they do not wait.
    given_up: BTreeSet<(SessionId, RequestNo)>,
}

impl Watched {
    fn new(limits: Limits) -> Watched {
        let machine = Machine::new(limits.clone());
        let (story, world) = (Story::default(), World::new(&machine));
        let before = (Picture::of(&machine), machine.snapshot());
        Watched { machine, model: Model::new(limits), story, world, before, given_up: BTreeSet::new() }
    }

    fn ask(&mut self, ask: &Ask) {
        let command = self.world.command(ask);
        self.apply(&command);
    }

    fn apply(&mut self, command: &Command) -> Applied {
        let applied = self.machine.apply(command.clone());
        assert_eq!(invariant::check(&self.machine), Ok(()));
        self.model.step(command, &applied);
        let after = (Picture::of(&self.machine), self.machine.snapshot());
        assert_eq!(after.0, self.model.picture(), "the machine (left) is not as the rules say (right)");
        self.story.hear(&applied.events);
        self.story.check(&after.0);
        check_what_stays(command, &applied, &self.before, &after);
        check_grants(&applied, &self.before.0, &after.0);
        self.check_given_up(command, &applied);
        self.world.learn(&applied, after.0.clone());
        self.before = after;
        applied
    }
}

impl Watched {
    /// Whoever was told that a request does not wait, and has no grant, must not be granted it later.
    fn check_given_up(&mut self, command: &Command, applied: &Applied) {
        match (command, &applied.answer) {
            (Command::Cancel { caller, waiting: Waiting::Request(number) }, Ok(_) | Err(Refusal::NotWaiting)) => {
                self.given_up.insert((caller.session, *number));
            }
            (Command::Acquire(Acquire { caller: Caller { session, number: Some(number) }, .. }), Ok(_)) => {
                let begun = !applied.events.is_empty();
                let given_up = self.given_up.contains(&(*session, *number));
                assert!(!begun || !given_up, "request {number} was carried out after it was cancelled");
            }
            _ => {}
        }
    }
}

/// A refusal changes nothing, but that the answer to a numbered request is remembered; nor does being busy.
fn check_what_stays(command: &Command, applied: &Applied, before: &(Picture, Vec<u8>), after: &(Picture, Vec<u8>)) {
    if !matches!(applied.answer, Err(_) | Ok(Answer::Busy)) {
        return;
    }
    assert!(applied.events.is_empty(), "a refusal has no events");
    assert_eq!(before.0, after.0, "a refusal changes nothing that can be seen");
    if command.caller().is_none_or(|caller| caller.number.is_none()) {
        assert!(before.1 == after.1, "a refusal without a number changes nothing at all");
    }
}

/// Each new token is above all there were, and no grant takes more than there is.
fn check_grants(applied: &Applied, before: &Picture, after: &Picture) {
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

/// The commands that these asks come to.
fn commands(limits: &Limits, asks: &[Ask]) -> Vec<Command> {
    let mut machine = Machine::new(limits.clone());
    let mut world = World::new(&machine);
    for ask in asks {
        let command = world.command(ask);
        let applied = machine.apply(command);
        world.learn(&applied, Picture::of(&machine));
    }
    world.commands
}

/// The names of what happened: of the answer or refusal, of each event, and of why and how.
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
            Event::Granted { ticket: Some(_), .. } => happened.push("GrantedAtLast".to_owned()),
            _ => {}
        }
    }
    let first_word = |text: &String| text.chars().take_while(char::is_ascii_alphabetic).collect();
    happened.iter().map(first_word).collect()
}

/// The other tests would be empty if the random commands were all refused for the same few reasons.
#[test]
fn the_random_commands_meet_everything_that_can_happen() {
    let mut runner = TestRunner::deterministic();
    let mut met = BTreeMap::<String, u32>::new();
    for _ in 0..300 {
        let (limits, asks) = (limits(), asks(70)).new_tree(&mut runner).expect("a case").current();
        let mut machine = Machine::new(limits.clone());
        for command in commands(&limits, &asks) {
            names_of(&machine.apply(command)).into_iter().for_each(|name| *met.entry(name).or_default() += 1);
        }
    }
    let every = "Opened Granted Queued Busy Forced Done NoSuchSession NoSuchLock NobodyHolds OverLimit UnderLimit \
        AlreadyHeld NoLocks NamedTwice WrongKind LimitDiffers BadPermits BadLimit BadLimit ValueNotPossible NotHeld NotWithheld \
        NeverGranted OtherSession AlreadyGranted NotWaiting Withdrawn NumberReused NumberForgotten SessionOpened \
        SessionEnded LeftQueue LeftCancelled LeftSessionEnded LeftRefused GrantedAtLast GrantEnded EndedReleased \
        EndedSessionEnded EndedForced Withheld DelayEnded Published Resized TokensRaised Configured";
    let rare: Vec<&str> = every.split_whitespace().filter(|kind| met.get(*kind).is_none_or(|n| *n < 10)).collect();
    assert!(rare.is_empty(), "hardly ever met: {rare:?} in {met:#?}");
}

/// Too rare for the random commands: a repeat after the request was dropped.
#[test]
fn a_waiter_that_a_resize_drops_is_told_so_at_every_repeat() {
    let roomy = Limits { history_per_lock: 2, ..Limits::default() };
    let mut watched = Watched::new(roomy);
    let open = Command::OpenSession { ttl: Ttl::from_ms(1000).unwrap(), label: Label::new("me") };
    watched.apply(&open);
    let lock = LockName::new("pool").unwrap();
    let ask = |number, count, of| {
        let caller = Caller { session: SessionId::new(1).unwrap(), number: RequestNo::new(number).ok() };
        let wants = [Want { lock: lock.clone(), mode: Mode::Permits { count, of } }];
        let (patience, reentry) = (Patience::Wait, Reentry::Queue);
        Command::Acquire(Acquire { patience, reentry, ..Acquire::many(caller, wants) })
    };
    let (hopeless, hopeful) = (ask(2, 3, 3), ask(3, 1, 3));
    for command in [ask(1, 1, 3), hopeless.clone(), hopeful.clone()] {
        watched.apply(&command);
    }
    watched.apply(&Command::Resize { lock: lock.clone(), limit: 2 });
    let refusal = Refusal::ResizedBelow { lock, limit: 2 };
    assert_eq!(watched.apply(&hopeless).answer, Err(refusal.clone()));
    assert_eq!(watched.apply(&hopeless).answer, Err(refusal));
    assert!(matches!(watched.apply(&hopeful).answer, Ok(Answer::Granted { .. })));
}

#[test]
fn a_value_ends_with_its_grant_though_the_lock_is_withheld() {
    let mut watched = Watched::new(Limits::default());
    watched.apply(&Command::OpenSession { ttl: Ttl::from_ms(1000).unwrap(), label: Label::new("me") });
    let (session, lock) = (SessionId::new(1).unwrap(), LockName::new("leader").unwrap());
    let (delay, value) = (Delay::from_ms(10).ok(), Some(Value::new(b"10.0.0.1")));
    watched.apply(&Command::Acquire(Acquire { delay, value, ..Acquire::exclusive(session, lock.clone()) }));
    assert!(watched.machine.lock(&lock).unwrap().value().is_some());
    watched.apply(&Command::ExpireSession { session });
    assert!(watched.machine.lock(&lock).unwrap().value().is_none());
}

/// However much a session does after it began to wait, its wait and its grant are found by the request's number.
#[test]
fn a_grant_is_found_by_its_request_however_long_ago_that_was() {
    let mut machine = Machine::new(Limits { answers_per_session: 1, ..Limits::default() });
    let open = || Command::OpenSession { ttl: Ttl::from_ms(1000).unwrap(), label: Label::new("me") };
    let (other, session) = (SessionId::new(1).unwrap(), SessionId::new(2).unwrap());
    let lock = |name| LockName::new(name).unwrap();
    let ask = |number, name| {
        let caller = Caller { session, number: RequestNo::new(number).ok() };
        Command::Acquire(Acquire { patience: Patience::Wait, ..Acquire::exclusive(caller, lock(name)) })
    };
    let first = [open(), open(), Command::Acquire(Acquire::exclusive(other, lock("a"))), ask(1, "a")];
    for command in first.into_iter().chain([ask(2, "b"), ask(3, "c"), ask(4, "d")]) {
        assert!(machine.apply(command).answer.is_ok());
    }
    let token = Token::new(1).unwrap();
    machine.apply(Command::Release { caller: None, lock: lock("a"), token });
    let granted = machine.last_token().unwrap();
    assert_eq!(machine.apply(ask(1, "a")).answer, Ok(Answer::Granted { token: granted }));
    let waiting = Waiting::Request(RequestNo::new(1).unwrap());
    let cancelled = machine.apply(Command::Cancel { caller: session.into(), waiting });
    assert_eq!(cancelled.answer, Err(Refusal::AlreadyGranted { token: granted }));
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn the_machine_does_what_the_rules_say(limits in limits(), asks in asks(70)) {
        let mut watched = Watched::new(limits);
        for ask in &asks {
            watched.ask(ask);
        }
    }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn nothing_is_granted_after_the_last_token(limits in limits(), left in 0u64..8, asks in asks(40)) {
        let mut watched = Watched::new(limits);
        let above = Token::new(Token::MAX.get() - left).expect("a token");
        watched.apply(&Command::RaiseTokens { above });
        for ask in &asks {
            watched.ask(ask);
        }
    }

    #[test]
    fn nothing_is_left_behind_when_all_sessions_are_closed(limits in limits(), asks in asks(50)) {
        let mut watched = Watched::new(limits);
        for ask in &asks {
            watched.ask(ask);
        }
        for session in watched.before.0.sessions.clone().into_keys() {
            watched.apply(&Command::CloseSession { session });
        }
        for (token, (locks, _)) in watched.before.0.withheld.clone() {
            watched.apply(&Command::EndDelay { lock: locks[0].clone(), token });
        }
        prop_assert_eq!((watched.machine.session_count(), watched.machine.lock_count()), (0, 0));
    }

    #[test]
    fn a_repeat_changes_nothing(limits in limits(), asks in asks(50)) {
        let mut machine = Machine::new(limits.clone());
        for command in commands(&limits, &asks) {
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
    fn equal_commands_make_equal_machines(limits in limits(), asks in asks(70), key in any::<u64>()) {
        let mut one = Machine::new(limits.clone());
        let mut two = Machine::new(limits.clone()).with_hash_key(key);
        for (step, command) in commands(&limits, &asks).into_iter().enumerate() {
            prop_assert_eq!(one.apply(command.clone()), two.apply(command));
            prop_assert!(one.snapshot() == two.snapshot());
            if step % 16 == 0 {
                two = two.with_hash_key(key.wrapping_add(step as u64));
                prop_assert_eq!(invariant::check(&two), Ok(()));
            }
        }
    }

    #[test]
    fn a_restored_machine_goes_on_as_the_first(limits in limits(), asks in asks(70), cut in any::<prop::sample::Index>()) {
        let commands = commands(&limits, &asks);
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
    fn commands_survive_being_written_and_read(limits in limits(), asks in asks(50)) {
        for command in commands(&limits, &asks) {
            let bytes = postcard::to_stdvec(&command).expect("written");
            prop_assert_eq!(postcard::from_bytes::<Command>(&bytes).expect("read"), command);
        }
    }
}

/// Of a lock that is idle nothing is kept but who took it away, and that of the last few.
#[test]
fn a_lock_that_was_taken_away_is_remembered_when_it_is_idle() {
    let mut machine = Machine::new(Limits::default());
    machine.apply(Command::OpenSession { ttl: Ttl::from_ms(1000).unwrap(), label: Label::new("me") });
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
