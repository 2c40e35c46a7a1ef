//! Every state that two locks and three sessions can be in, searched to the end by `stateright`.
//!
//! Two states are the same when they differ only in numbers: sessions, tokens and tickets are renamed by where they
//! first appear, so the space is finite. Some state decides later steps but is in no view (a claim's delay, which
//! claims are one request). It is taken from the plain model, which applies the same commands and must agree at every
//! step.
//!
//! All features in one search would be millions of states, most of them mixtures of unrelated features. So there are
//! four searches, each with features that interact: locks held exclusively and shared, alone and both at once; locks
//! that their holder wants again; semaphores that are resized; and delays after an expiry. Trying, waiting, cancelling,
//! releasing, forcing, and closing and expiring sessions are in all of them. The random tests in `rules.rs` mix
//! everything.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use crate::common::model::{Claim, ClaimState, Model};
use crate::common::observed::Observed;
use palisade_core::{
    Acquire, Answer, Applied, Command, Delay, Event, Kind, Label, Limits, LockName, Machine, Mode, Patience, Reentry,
    SessionId, Ticket, Token, Ttl, Waiting, Want, invariant,
};
use stateright::{Checker, Model as Search, Property};

/// The commands of a search.
struct Scope {
    sessions: usize,
    limits: Limits,
    /// The possible wants of one request.
    wants: Vec<Vec<(&'static str, Mode)>>,
    /// Whether requests come with a delay, without, or both.
    delays: &'static [bool],
    reentry: &'static [Reentry],
    sizes: &'static [u32],
}

#[derive(Clone)]
struct State {
    machine: Machine,
    model: Model,
    key: Key,
    /// The violation of the step that led here.
    violation: Option<String>,
    /// The machine's bytes, once they were needed.
    bytes: OnceLock<Vec<u8>>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.key, &self.violation).hash(state);
    }
}

/// For the report of a failure.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#?} {:?}", Observed::of(&self.machine).locks, self.violation)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        (&self.key, &self.violation) == (&other.key, &other.violation)
    }
}

/// A state without its numbers.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct Key {
    /// Whether anything was ever granted, to tell the end from the beginning.
    begun: bool,
    sessions: usize,
    locks: Vec<(String, Option<u32>, Vec<ClaimKey>)>,
}

/// A claim at one lock: its session, mode and arrival, renumbered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ClaimKey {
    claim: usize,
    session: Option<usize>,
    state: u8,
    mode: Mode,
    delayed: bool,
}

/// Gives each new thing the next number.
fn renamed<T: Ord>(names: &mut BTreeMap<T, usize>, thing: T) -> usize {
    let next = names.len();
    *names.entry(thing).or_insert(next)
}

impl Key {
    fn of(model: &Model) -> Key {
        let (mut sessions, mut claims) = (BTreeMap::new(), BTreeMap::new());
        let mut key = Key { begun: model.last_token().is_some(), sessions: model.sessions.len(), locks: Vec::new() };
        for (name, lock) in &model.locks {
            let at_lock = model.holders(name).into_iter().chain(model.queue(name));
            let at_lock = at_lock.map(|claim| {
                let (state, number) = match claim.state {
                    ClaimState::Held(token) => (0, token.get()),
                    ClaimState::Withheld(token) => (1, token.get()),
                    ClaimState::Waiting(ticket) => (2, ticket.arrival()),
                };
                ClaimKey {
                    claim: renamed(&mut claims, (state, number)),
                    session: (state != 1).then(|| renamed(&mut sessions, claim.session())),
                    state,
                    mode: mode_now(claim, name, lock.permits),
                    delayed: claim.request.delay.is_some(),
                }
            });
            key.locks.push((name.as_str().to_owned(), lock.permits, at_lock.collect()));
        }
        key
    }
}

/// Returns a claim's mode at a lock, with the lock's current limit.
fn mode_now(claim: &Claim, name: &LockName, permits: Option<u32>) -> Mode {
    match (claim.want(name).expect("a claim at this lock").mode, permits) {
        (Mode::Permits { count, .. }, Some(of)) => Mode::Permits { count, of },
        (mode, _) => mode,
    }
}

fn lock(name: &str) -> LockName {
    LockName::new(name).expect("a good name")
}

impl Scope {
    fn acquires(&self, session: SessionId, commands: &mut Vec<Command>) {
        for wants in &self.wants {
            for (delayed, reentry) in self.delays.iter().flat_map(|d| self.reentry.iter().map(move |r| (*d, *r))) {
                for patience in [Patience::Try, Patience::Wait] {
                    let wants = wants.iter().map(|(name, mode)| Want { lock: lock(name), mode: *mode });
                    let delay = delayed.then(|| Delay::from_ms(1).expect("a delay"));
                    let request = Acquire::many(session, wants);
                    commands.push(Command::Acquire(Acquire { patience, reentry, delay, ..request }));
                }
            }
        }
    }

    /// Adds the commands on existing claims: release, force, end, cancel, resize.
    fn with_claims(&self, model: &Model, commands: &mut Vec<Command>) {
        for claim in &model.claims {
            let first = claim.request.wants[0].lock.clone();
            if let ClaimState::Waiting(ticket) = claim.state {
                let (caller, waiting) = (claim.session().into(), Waiting::Ticket(ticket));
                commands.push(Command::Cancel { caller, waiting });
            }
            if let Some(token) = claim.token() {
                commands.push(Command::Release { caller: None, lock: first.clone(), token });
                commands.push(Command::EndDelay { lock: first.clone(), token });
                commands.push(force(first, Some(token)));
            }
        }
        for name in model.locks.keys() {
            commands.push(force(name.clone(), None));
            for limit in self.sizes {
                commands.push(Command::Resize { lock: name.clone(), limit: *limit });
            }
        }
    }
}

fn force(lock: LockName, only: Option<Token>) -> Command {
    Command::ForceRelease { lock, only, by: Label::new("op"), reason: Label::new("why") }
}

/// Returns the last token that was granted and holds nothing any more.
fn stale_token(state: &State) -> Option<Token> {
    let live: Vec<Token> = state.model.claims.iter().filter_map(Claim::token).collect();
    let last = state.machine.last_token()?.get();
    (1..=last).rev().filter_map(|number| Token::new(number).ok()).find(|token| !live.contains(token))
}

impl Search for Scope {
    type State = State;
    type Action = Command;

    fn init_states(&self) -> Vec<State> {
        let (machine, model) = (Machine::new(self.limits.clone()), Model::new(self.limits.clone()));
        vec![State { machine, model, key: Key::default(), violation: None, bytes: OnceLock::new() }]
    }

    fn actions(&self, state: &State, commands: &mut Vec<Command>) {
        if state.model.sessions.len() < self.sessions {
            // One id that is free. Which one makes no difference.
            let is_free = |session: &SessionId| !state.model.sessions.contains_key(session);
            let session = (1..).filter_map(|number| SessionId::new(number).ok()).find(is_free).expect("an id");
            commands.push(Command::OpenSession {
                session,
                ttl: Ttl::from_ms(1000).expect("a ttl"),
                label: Label::new("me"),
            });
        }
        let mut met_idle = false;
        for session in state.model.sessions.keys().copied() {
            // Sessions without claims are symmetric: one of them is enough.
            let idle = state.machine.session(session).is_some_and(|view| view.lock_count() == 0);
            if idle && met_idle {
                continue;
            }
            met_idle |= idle;
            commands.push(Command::CloseSession { session });
            commands.push(Command::ExpireSession { session });
            self.acquires(session, commands);
        }
        self.with_claims(&state.model, commands);
        for name in state.model.locks.keys().cloned() {
            let stale = stale_token(state);
            commands.extend(stale.map(|token| Command::Release { caller: None, lock: name, token }));
        }
    }

    fn next_state(&self, last: &State, command: Command) -> Option<State> {
        let (mut machine, mut model) = (last.machine.clone(), last.model.clone());
        let applied = machine.apply(command.clone());
        model.step(&command, &applied);
        if matches!(applied.answer, Err(_) | Ok(Answer::Busy)) {
            let changed = machine.snapshot() != *last.bytes.get_or_init(|| last.machine.snapshot());
            return changed.then(|| State { violation: Some(format!("{command:?} was refused")), ..last.clone() });
        }
        let key = Key::of(&model);
        let violation = find_violation(&last.machine, &machine, &applied);
        Some(State { machine, model, key, violation, bytes: OnceLock::new() })
    }

    fn properties(&self) -> Vec<Property<Scope>> {
        let mut all = always();
        all.extend(sometimes(self));
        all
    }
}

/// Finds a token that is not above all earlier ones, or a waiter that was overtaken.
fn find_violation(before: &Machine, after: &Machine, applied: &Applied) -> Option<String> {
    let mut last = before.last_token();
    for event in &applied.events {
        let Event::Granted { token, .. } = event else { continue };
        if Some(*token) <= last {
            return Some(format!("token {token} came after {last:?}"));
        }
        last = Some(*token);
    }
    let queue = |machine: &Machine, name: &LockName| -> Vec<Ticket> {
        machine.lock(name).map(|view| view.waiters().map(|waiter| waiter.ticket).collect()).unwrap_or_default()
    };
    for event in &applied.events {
        let Event::Granted { locks, ticket, .. } = event else { continue };
        for name in locks {
            let ahead = queue(before, name);
            let ahead = ahead.iter().take_while(|other| Some(**other) != *ticket);
            let still = queue(after, name);
            if let Some(overtaken) = ahead.into_iter().find(|other| still.contains(other)) {
                return Some(format!("{overtaken:?} was overtaken at {name} by {event:?}"));
            }
        }
    }
    None
}

fn always() -> Vec<Property<Scope>> {
    vec![
        Property::always("no step violates a rule between two states", |_, state: &State| state.violation.is_none()),
        Property::always("the invariants hold", |_, state: &State| invariant::check(&state.machine).is_ok()),
        Property::always("the machine equals the model", |_, state: &State| {
            Observed::of(&state.machine) == state.model.observed()
        }),
        Property::always("an exclusive holder is alone", |_, state: &State| {
            locks(state).iter().all(|lock| {
                let alone = lock.holders.iter().any(|(_, mode, _)| *mode == Mode::Exclusive);
                !alone || lock.holders.len() == 1
            })
        }),
        Property::always("no waiter waits that could be granted", |_, State { model, .. }| {
            (0..model.claims.len()).all(|at| !model.claims[at].is_waiting() || !model.can_be_granted(at))
        }),
        Property::always("queues are in the order of arrival", |_, state: &State| {
            locks(state).iter().all(|lock| lock.waiters.is_sorted_by_key(|(ticket, ..)| ticket.arrival()))
        }),
        Property::always("an idle lock leaves nothing behind", |_, state: &State| {
            state.machine.lock_count() as usize == locks(state).len()
                && locks(state).iter().all(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty())
        }),
    ]
}

fn locks(state: &State) -> Vec<crate::common::observed::ObservedLock> {
    Observed::of(&state.machine).locks.into_values().collect()
}

/// States that the search must have reached.
fn sometimes(scope: &Scope) -> Vec<Property<Scope>> {
    let wanted = |mode: Mode| scope.wants.iter().flatten().any(|(_, other)| *other == mode);
    let mut all = vec![
        Property::sometimes("two wait", |_, state: &State| locks(state).iter().any(|lock| lock.waiters.len() == 2)),
        Property::sometimes("all sessions are closed again and nothing is left", |_, state: &State| {
            let empty = state.machine.session_count() == 0 && state.machine.lock_count() == 0;
            empty && state.machine.last_token().is_some()
        }),
    ];
    if wanted(Mode::Shared) {
        all.push(Property::sometimes("a reader waits behind a writer behind readers", |_, state: &State| {
            locks(state).iter().any(|lock| {
                let held = lock.holders.iter().filter(|(_, mode, _)| *mode == Mode::Shared).count() >= 1;
                let waiting: Vec<Mode> = lock.waiters.iter().map(|(_, mode, ..)| *mode).collect();
                held && waiting == [Mode::Exclusive, Mode::Shared]
            })
        }));
    }
    if scope.wants.iter().any(|wants| wants.len() > 1) {
        all.push(Property::sometimes("a request for both waits though only one is held", |_, state: &State| {
            let held = |want: &Want| !state.model.holders(&want.lock).is_empty();
            let waiting =
                state.model.claims.iter().filter(|claim| claim.is_waiting() && claim.request.wants.len() == 2);
            waiting.into_iter().any(|claim| claim.request.wants.iter().filter(|want| held(want)).count() == 1)
        }));
    }
    if scope.delays.contains(&true) {
        all.push(Property::sometimes("a session waits for a lock that is withheld", |_, state: &State| {
            let withheld =
                |lock: &crate::common::observed::ObservedLock| lock.holders.iter().any(|(_, _, by)| by.is_none());
            locks(state).iter().any(|lock| withheld(lock) && !lock.waiters.is_empty())
        }));
    }
    if !scope.sizes.is_empty() {
        all.push(Property::sometimes("more is held than there is since a resize", |_, state: &State| {
            let held = |(_, mode, _): &(Token, Mode, _)| match mode {
                Mode::Permits { count, .. } => *count,
                Mode::Exclusive | Mode::Shared => 0,
            };
            locks(state).iter().any(|lock| match lock.kind {
                Kind::Semaphore { limit } => lock.holders.iter().map(held).sum::<u32>() > limit,
                Kind::Lock => false,
            })
        }));
    }
    all
}

fn small() -> Limits {
    Limits { locks_per_session: 2, waiters_per_lock: 2, history_per_lock: 0, ..Limits::default() }
}

/// Searches the whole space, and asserts that the search was complete.
#[expect(clippy::print_stdout, reason = "the number of states is what a reader wants to know")]
fn search(name: &str, scope: Scope, at_least: usize) {
    let checker = scope.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.is_done(), "the search stopped early");
    let states = checker.unique_state_count();
    println!("{name}: {states} states, {} steps, {} deep", checker.state_count(), checker.max_depth());
    assert!(states >= at_least, "only {states} states: the search is incomplete");
}

const EXCLUSIVE: Mode = Mode::Exclusive;
const SHARED: Mode = Mode::Shared;

fn permits(count: u32, of: u32) -> Mode {
    Mode::Permits { count, of }
}

#[test]
fn every_state_of_two_locks_keeps_the_promises() {
    let wants = vec![
        vec![("a", EXCLUSIVE)],
        vec![("a", SHARED)],
        vec![("b", EXCLUSIVE)],
        vec![("b", SHARED)],
        vec![("a", EXCLUSIVE), ("b", EXCLUSIVE)],
        vec![("b", SHARED), ("a", EXCLUSIVE)],
    ];
    let reentry = &[Reentry::Refuse];
    search("locks", Scope { sessions: 3, limits: small(), wants, delays: &[false], reentry, sizes: &[] }, 3000);
}

fn reentry_scope(limits: Limits) -> Scope {
    let wants = vec![vec![("a", EXCLUSIVE)], vec![("a", SHARED)], vec![("b", SHARED), ("a", SHARED)]];
    let reentry = &[Reentry::Refuse, Reentry::Queue];
    Scope { sessions: 3, limits, wants, delays: &[false], reentry, sizes: &[] }
}

#[test]
fn every_state_of_a_lock_that_its_holder_wants_again_keeps_the_promises() {
    let limits = Limits { locks_per_session: 4, waiters_per_lock: 3, ..small() };
    search("reentry", Scope { sessions: 2, ..reentry_scope(limits) }, 1000);
}

#[test]
fn every_state_of_a_resized_semaphore_keeps_the_promises() {
    let mut wants = vec![vec![("b", EXCLUSIVE)]];
    for mode in [permits(1, 1), permits(1, 2), permits(2, 2)] {
        wants.push(vec![("a", mode)]);
        wants.push(vec![("a", mode), ("b", EXCLUSIVE)]);
    }
    let reentry = &[Reentry::Refuse];
    search(
        "semaphores",
        Scope { sessions: 3, limits: small(), wants, delays: &[false], reentry, sizes: &[1, 2] },
        1000,
    );
}

#[test]
fn every_state_of_withheld_locks_keeps_the_promises() {
    // Every request has a delay: closing a session instead of letting it expire is the same as having none.
    search("delays", Scope { delays: &[true], sizes: &[], ..withheld_scope() }, 1000);
}

fn withheld_scope() -> Scope {
    let wants = vec![
        vec![("a", EXCLUSIVE)],
        vec![("b", permits(1, 2))],
        vec![("b", permits(2, 2))],
        vec![("a", EXCLUSIVE), ("b", permits(1, 2))],
    ];
    let reentry = &[Reentry::Refuse];
    Scope { sessions: 3, limits: small(), wants, delays: &[false, true], reentry, sizes: &[1, 2] }
}

#[test]
#[ignore = "takes minutes: run it with --release after a change of the rules"]
fn every_state_of_a_wider_scope_keeps_the_promises() {
    let limits = Limits { locks_per_session: 3, waiters_per_lock: 3, ..small() };
    search("reentry, wider", reentry_scope(limits), 20_000);
    search("delays, wider", withheld_scope(), 100_000);
}
