//! Random commands that reach deep states: few names, few sessions, and mostly valid numbers. A command is first a
//! [`Step`] in terms of "some session", "some live token". The [`Resolver`] picks the actual one when the step runs, so
//! that a sequence is still valid after shrinking. Strategies are boxed because a debug build moves them over the stack
//! whole.

use palisade_core::{
    Acquire, Answer, Applied, Caller, Command, Delay, Event, Kind, Label, Limits, LockName, Machine, Mode,
    OpenAndAcquire, Patience, Reentry, RequestNo, Secret, SessionId, Ticket, Token, Ttl, Value, Waiting, Want,
};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::observed::Observed;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Open {
        /// Whether it has the id of a session that was opened before.
        is_repeat: bool,
        ttl_ms: u32,
        label: &'static str,
    },
    Close {
        session: u8,
    },
    Expire {
        session: u8,
    },
    Acquire {
        session: u8,
        number: NumberChoice,
        wants: Vec<(u8, Mode)>,
        options: Options,
    },
    Release {
        by: Option<(u8, NumberChoice)>,
        token: TokenChoice,
        lock: u8,
    },
    Cancel {
        session: u8,
        number: NumberChoice,
        wait: WaitChoice,
    },
    Publish {
        session: u8,
        number: NumberChoice,
        token: TokenChoice,
        lock: u8,
        value: &'static str,
    },
    Force {
        lock: u8,
        only: Option<TokenChoice>,
        by: &'static str,
        reason: &'static str,
    },
    Resize {
        lock: u8,
        limit: u32,
    },
    EndDelay {
        token: TokenChoice,
        lock: u8,
    },
    Raise {
        by: i64,
    },
    Configure {
        limits: Limits,
    },
    /// Opens a session for one request.
    OpenAndAcquire {
        is_repeat: bool,
        ttl_ms: Option<u32>,
        secret: Option<&'static str>,
        renews: bool,
        wants: Vec<(u8, Mode)>,
        options: Options,
    },
    Extend {
        locks: Vec<u8>,
        secret: &'static str,
        ttl_ms: u32,
    },
    ReleaseHeld {
        locks: Vec<u8>,
        secret: &'static str,
    },
    /// The exact command of an earlier step.
    Again {
        ago: u8,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    wait: bool,
    queue_behind_myself: bool,
    delay_ms: Option<u32>,
    value: Option<&'static str>,
}

/// A request's number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NumberChoice {
    None,
    /// The highest number that the session has used, plus this.
    Above(u64),
    /// The highest number that the session has used, minus this.
    Below(u64),
}

/// A token.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TokenChoice {
    /// Held or withheld, with its own lock.
    Live(u8),
    /// Held or withheld, with any lock.
    Misplaced(u8),
    Withheld(u8),
    /// Given before, in any state now.
    Old(u8),
    /// Not given yet.
    Future(i64),
}

/// A wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitChoice {
    /// One that is in a queue, cancelled by its own session.
    Live(u8),
    /// One that was in a queue, cancelled by any session.
    Old(u8),
    Numbered(NumberChoice),
}

/// Turns steps into commands, from the results of the commands before.
pub(crate) struct Resolver {
    pub(crate) commands: Vec<Command>,
    tokens: Vec<Token>,
    tickets: Vec<Ticket>,
    last_session: u64,
    numbers: std::collections::BTreeMap<SessionId, u64>,
    now: Observed,
}

pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "too-long"];

pub(crate) fn name(number: u8) -> LockName {
    let text = match number {
        0..=29 => NAMES[usize::from(number) % 3],
        30.. => NAMES[3],
    };
    LockName::new(text).expect("a good name")
}

fn pick<T: Copy>(from: &[T], number: u8) -> Option<T> {
    if from.is_empty() { None } else { Some(from[usize::from(number) % from.len()]) }
}

impl Resolver {
    pub(crate) fn new(machine: &Machine) -> Resolver {
        Resolver {
            commands: Vec::new(),
            tokens: Vec::new(),
            tickets: Vec::new(),
            last_session: 0,
            numbers: std::collections::BTreeMap::new(),
            now: Observed::of(machine),
        }
    }

    /// Returns the command of this step in the current state.
    pub(crate) fn command(&mut self, step: &Step) -> Command {
        let command = self.resolve(step);
        if let Some(Caller { session, number: Some(number) }) = command.caller() {
            let highest = self.numbers.entry(session).or_default();
            *highest = (*highest).max(number.get());
        }
        self.commands.push(command.clone());
        command
    }

    pub(crate) fn learn(&mut self, applied: &Applied, now: Observed) {
        if let Ok(Answer::Queued { ticket }) = applied.answer {
            self.tickets.push(ticket);
        }
        for event in &applied.events {
            if let Event::SessionOpened { session, .. } = event {
                self.last_session = session.get();
            }
        }
        self.tokens.extend(now.last_token);
        self.tokens.dedup();
        self.now = now;
    }

    fn resolve(&self, step: &Step) -> Command {
        match step {
            Step::Open { is_repeat, ttl_ms, label } => Command::OpenSession {
                session: self.new_session(*is_repeat),
                ttl: Ttl::from_ms(u64::from(*ttl_ms)).expect("a ttl"),
                label: Label::new(label),
            },
            Step::Close { session } => Command::CloseSession { session: self.session(*session) },
            Step::Expire { session } => Command::ExpireSession { session: self.session(*session) },
            Step::Acquire { session, number, wants, options } => {
                let caller = self.caller(self.session(*session), *number);
                Command::Acquire(self.acquire(caller, wants, options))
            }
            Step::Release { by, token, lock } => {
                let (lock, token, owner) = self.token(*token, *lock);
                let caller = by.map(|(session, number)| self.caller_or(session, number, owner));
                Command::Release { caller, lock, token }
            }
            Step::Cancel { session, number, wait } => self.cancel(*session, *number, *wait),
            Step::Publish { session, number, token, lock, value } => {
                let (lock, token, owner) = self.token(*token, *lock);
                let caller = self.caller_or(*session, *number, owner);
                Command::Publish { caller, lock, token, value: Value::new(value.as_bytes()) }
            }
            Step::Force { lock, only, by, reason } => {
                let (lock, only) = match only.map(|which| self.token(which, *lock)) {
                    Some((lock, token, _)) => (lock, Some(token)),
                    None => (name(*lock), None),
                };
                Command::ForceRelease { lock, only, by: Label::new(by), reason: Label::new(reason) }
            }
            Step::Resize { lock, limit } => Command::Resize { lock: name(*lock), limit: *limit },
            Step::EndDelay { token, lock } => {
                let (lock, token, _) = self.token(*token, *lock);
                Command::EndDelay { lock, token }
            }
            Step::Raise { by } => Command::RaiseTokens { above: self.near_last_token(*by) },
            Step::Configure { limits } => Command::Configure { limits: limits.clone() },
            Step::OpenAndAcquire { is_repeat, ttl_ms, secret, renews, wants, options } => {
                let caller = Caller::from(self.new_session(*is_repeat));
                Command::OpenAndAcquire(OpenAndAcquire {
                    ttl: ttl_ms.map_or(Ttl::ENDLESS, |ms| Ttl::from_ms(u64::from(ms)).expect("a ttl")),
                    label: Label::new("one"),
                    secret: secret.map(|secret| Secret::new(secret.as_bytes())),
                    renews: *renews,
                    acquire: self.acquire(caller, wants, options),
                })
            }
            Step::Extend { locks, secret, ttl_ms } => Command::ExtendHeld {
                locks: locks.iter().map(|lock| name(*lock)).collect(),
                secret: Secret::new(secret.as_bytes()),
                ttl: Ttl::from_ms(u64::from(*ttl_ms)).expect("a ttl"),
            },
            Step::ReleaseHeld { locks, secret } => Command::ReleaseHeld {
                locks: locks.iter().map(|lock| name(*lock)).collect(),
                secret: Secret::new(secret.as_bytes()),
            },
            Step::Again { ago } => match self.commands.len().checked_sub(1 + usize::from(*ago)) {
                Some(at) => self.commands[at].clone(),
                None => Command::Configure { limits: self.now.limits.clone() },
            },
        }
    }

    fn new_session(&self, is_repeat: bool) -> SessionId {
        SessionId::new(self.last_session + u64::from(!is_repeat || self.last_session == 0)).expect("an id")
    }

    fn acquire(&self, caller: Caller, wants: &[(u8, Mode)], options: &Options) -> Acquire {
        let wants = wants.iter().map(|(lock, mode)| Want { lock: name(*lock), mode: self.fitting(*lock, *mode) });
        Acquire {
            patience: if options.wait { Patience::Wait } else { Patience::Try },
            reentry: if options.queue_behind_myself { Reentry::Queue } else { Reentry::Refuse },
            delay: options.delay_ms.map(|ms| Delay::from_ms(u64::from(ms)).expect("a delay")),
            value: options.value.map(|value| Value::new(value.as_bytes())),
            ..Acquire::many(caller, wants)
        }
    }

    /// Adapts permits of 3 to the semaphore's current limit, and returns other modes unchanged.
    fn fitting(&self, lock: u8, mode: Mode) -> Mode {
        match (mode, self.now.locks.get(&name(lock)).map(|lock| lock.kind)) {
            (Mode::Permits { count, of: 3 }, Some(Kind::Semaphore { limit })) => {
                Mode::Permits { count: count.min(limit), of: limit }
            }
            _ => mode,
        }
    }

    fn cancel(&self, session: u8, number: NumberChoice, wait: WaitChoice) -> Command {
        let mut session = self.session(session);
        let live: Vec<(Ticket, SessionId)> =
            self.now.locks.values().flat_map(|lock| lock.waiters.iter().map(|(t, _, s, _)| (*t, *s))).collect();
        let waiting = match wait {
            WaitChoice::Live(which) => pick(&live, which).map(|(ticket, waiter)| {
                session = waiter;
                Waiting::Ticket(ticket)
            }),
            WaitChoice::Old(which) => pick(&self.tickets, which).map(Waiting::Ticket),
            WaitChoice::Numbered(number) => self.number(session, number).map(Waiting::Request),
        };
        let first = RequestNo::new(1).expect("a number");
        Command::Cancel { caller: self.caller(session, number), waiting: waiting.unwrap_or(Waiting::Request(first)) }
    }

    /// Returns an open session nearly always, otherwise one that has ended or was never opened.
    fn session(&self, session: u8) -> SessionId {
        let open: Vec<SessionId> = self.now.sessions.keys().copied().collect();
        let other = SessionId::new(self.last_session.max(1) + u64::from(session % 2)).expect("a session");
        if session < 28 { pick(&open, session).unwrap_or(other) } else { other }
    }

    fn caller(&self, session: SessionId, number: NumberChoice) -> Caller {
        Caller { session, number: self.number(session, number) }
    }

    /// Returns the grant's own session in most cases.
    fn caller_or(&self, session: u8, number: NumberChoice, owner: Option<SessionId>) -> Caller {
        let session = if session < 24 { owner.unwrap_or(self.session(session)) } else { self.session(session) };
        self.caller(session, number)
    }

    fn number(&self, session: SessionId, number: NumberChoice) -> Option<RequestNo> {
        let highest = self.numbers.get(&session).copied().unwrap_or(0);
        let number = match number {
            NumberChoice::None => return None,
            NumberChoice::Above(by) => highest + by,
            NumberChoice::Below(by) => highest.saturating_sub(by).max(1),
        };
        Some(RequestNo::new(number).expect("a number"))
    }

    fn last_token(&self) -> Token {
        self.near_last_token(0)
    }

    fn near_last_token(&self, by: i64) -> Token {
        let last = self.now.last_token.map_or(0, Token::get);
        Token::new(last.saturating_add_signed(by).max(1)).unwrap_or(Token::MAX)
    }

    /// Returns a token, the lock to name with it, and the session that holds it.
    fn token(&self, which: TokenChoice, lock: u8) -> (LockName, Token, Option<SessionId>) {
        let mut live = Vec::new();
        for (name, lock) in &self.now.locks {
            live.extend(lock.holders.iter().map(|(token, _, holder)| (name, *token, holder.as_ref().map(|h| h.0))));
        }
        let withheld: Vec<_> = live.iter().filter(|(_, _, holder)| holder.is_none()).copied().collect();
        let found = match which {
            TokenChoice::Live(at) | TokenChoice::Misplaced(at) => pick(&live, at),
            TokenChoice::Withheld(at) => pick(&withheld, at),
            TokenChoice::Old(at) => {
                let token = pick(&self.tokens, at).unwrap_or_else(|| self.last_token());
                return (name(lock), token, None);
            }
            TokenChoice::Future(by) => return (name(lock), self.near_last_token(by), None),
        };
        match (found, which) {
            (Some((_, token, holder)), TokenChoice::Misplaced(_)) => (name(lock), token, holder),
            (Some((own, token, holder)), _) => (own.clone(), token, holder),
            (None, _) => (name(lock), self.last_token(), None),
        }
    }
}

/// Limits that are reached sometimes, or all the time.
pub(crate) fn limits() -> BoxedStrategy<Limits> {
    let roomy = Limits {
        name_bytes: 4,
        label_bytes: 4,
        value_bytes: 3,
        sessions: 5,
        locks: 4,
        locks_per_session: 12,
        locks_per_request: 3,
        waiters_per_lock: 6,
        ttl_min_ms: 10,
        ttl_max_ms: 100,
        delay_max_ms: 50,
        history_per_lock: 3,
        answers_per_session: 4,
    };
    let tight = (1u32..4, 1u32..4, 1u32..5, 1u32..3, 0u32..3, 0u32..3, 0u32..3);
    let tight = tight.prop_map({
        let roomy = roomy.clone();
        move |(sessions, locks, locks_per_session, locks_per_request, waiters, history, answers)| Limits {
            sessions: sessions + 1,
            locks,
            locks_per_session,
            locks_per_request,
            waiters_per_lock: waiters,
            history_per_lock: history,
            answers_per_session: answers,
            ..roomy.clone()
        }
    });
    prop_oneof![3 => Just(roomy), 1 => tight].boxed()
}

fn lock_mode() -> BoxedStrategy<Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)].boxed()
}

fn permits() -> BoxedStrategy<Mode> {
    let permits = |count, of| Just(Mode::Permits { count, of });
    let odd = (0u32..3, prop_oneof![Just(0), Just(1), Just(u32::MAX)]);
    prop_oneof![
        16 => permits(1, 3),
        10 => permits(2, 3),
        6 => permits(3, 3),
        6 => permits(1, 2),
        6 => permits(2, 2),
        2 => odd.prop_map(|(count, of)| Mode::Permits { count, of }),
    ]
    .boxed()
}

/// Names by number: valid below 30, weighted so that one lock is the busiest.
fn lock() -> BoxedStrategy<u8> {
    prop_oneof![24 => Just(0u8), 16 => Just(1u8), 16 => Just(2u8), 1 => Just(30u8)].boxed()
}

/// Returns a want. Two of the names are mostly locks and one is mostly a semaphore, since otherwise nearly all requests
/// would name the wrong kind.
fn want() -> BoxedStrategy<(u8, Mode)> {
    prop_oneof![
        8 => (Just(0u8), lock_mode()),
        6 => (Just(1u8), lock_mode()),
        6 => (Just(2u8), permits()),
        1 => (lock(), prop_oneof![lock_mode(), permits()]),
    ]
    .boxed()
}

fn wants() -> BoxedStrategy<Vec<(u8, Mode)>> {
    let pair = (lock_mode(), lock_mode()).prop_map(|(a, b)| std::vec![(0, a), (1, b)]);
    let mixed = (lock_mode(), permits()).prop_map(|(b, c)| std::vec![(2, c), (1, b)]);
    let all = (lock_mode(), lock_mode(), permits()).prop_map(|(a, b, c)| std::vec![(1, b), (2, c), (0, a)]);
    prop_oneof![24 => vec(want(), 1), 5 => pair, 5 => mixed, 3 => all, 2 => vec(want(), 0..5)].boxed()
}

fn number() -> BoxedStrategy<NumberChoice> {
    prop_oneof![
        8 => Just(NumberChoice::None),
        5 => Just(NumberChoice::Above(1)),
        1 => Just(NumberChoice::Above(4)),
        1 => (0u64..6).prop_map(NumberChoice::Below),
    ]
    .boxed()
}

fn token_choice() -> BoxedStrategy<TokenChoice> {
    prop_oneof![
        10 => any::<u8>().prop_map(TokenChoice::Live),
        1 => any::<u8>().prop_map(TokenChoice::Misplaced),
        2 => any::<u8>().prop_map(TokenChoice::Withheld),
        2 => any::<u8>().prop_map(TokenChoice::Old),
        1 => (0i64..3).prop_map(TokenChoice::Future),
    ]
    .boxed()
}

fn options() -> BoxedStrategy<Options> {
    let delay_ms = weighted(0.4, prop_oneof![9 => Just(20u32), 1 => Just(80)]);
    let value = weighted(0.05, prop_oneof![6 => Just("val"), 1 => Just("value")]);
    (weighted(0.75, Just(())), any::<bool>(), delay_ms, value)
        .prop_map(|(wait, queue_behind_myself, delay_ms, value)| Options {
            wait: wait.is_some(),
            queue_behind_myself,
            delay_ms,
            value,
        })
        .boxed()
}

fn session() -> BoxedStrategy<u8> {
    prop_oneof![40 => 0u8..28, 1 => 28u8..30].boxed()
}

fn asks_of_sessions() -> BoxedStrategy<Step> {
    let acquire = (session(), number(), wants(), options());
    let acquire =
        acquire.prop_map(|(session, number, wants, options)| Step::Acquire { session, number, wants, options });
    let release = (weighted(0.6, (session(), number())), token_choice(), lock());
    let release = release.prop_map(|(by, token, lock)| Step::Release { by, token, lock });
    let wait = prop_oneof![
        3 => any::<u8>().prop_map(WaitChoice::Live),
        1 => any::<u8>().prop_map(WaitChoice::Old),
        2 => number().prop_map(WaitChoice::Numbered),
    ];
    let cancel =
        (session(), number(), wait).prop_map(|(session, number, wait)| Step::Cancel { session, number, wait });
    let value = prop_oneof![5 => Just("new"), 1 => Just("newer")];
    let publish = (session(), number(), token_choice(), lock(), value);
    let publish = publish.prop_map(|(session, number, token, lock, value)| Step::Publish {
        session,
        number,
        token,
        lock,
        value,
    });
    prop_oneof![24 => acquire, 7 => release, 4 => cancel, 2 => publish].boxed()
}

fn secret() -> BoxedStrategy<&'static str> {
    prop_oneof![6 => Just("s1"), 3 => Just("s2"), 1 => Just("long")].boxed()
}

/// Locks by number: mostly those that can be exclusive.
fn held_locks() -> BoxedStrategy<Vec<u8>> {
    prop_oneof![6 => Just(vec![0]), 3 => Just(vec![1]), 4 => Just(vec![0, 1]), 1 => vec(lock(), 0..5)].boxed()
}

fn asks_with_secrets() -> BoxedStrategy<Step> {
    let exclusive = |locks: Vec<u8>| locks.into_iter().map(|lock| (lock, Mode::Exclusive)).collect::<Vec<_>>();
    let wanted = prop_oneof![8 => held_locks().prop_map(exclusive), 2 => wants()];
    let ttl_ms = || prop_oneof![1 => Just(5u32), 20 => Just(50), 10 => Just(70), 1 => Just(500)];
    let open = (
        prop::bool::weighted(0.05),
        weighted(0.8, ttl_ms()),
        weighted(0.95, secret()),
        prop::bool::weighted(0.4),
        wanted,
        options(),
    );
    let open = open.prop_map(|(is_repeat, ttl_ms, secret, renews, wants, options)| Step::OpenAndAcquire {
        is_repeat,
        ttl_ms,
        secret,
        renews,
        wants,
        options,
    });
    let extend =
        (held_locks(), secret(), ttl_ms()).prop_map(|(locks, secret, ttl_ms)| Step::Extend { locks, secret, ttl_ms });
    let release = (held_locks(), secret()).prop_map(|(locks, secret)| Step::ReleaseHeld { locks, secret });
    prop_oneof![6 => open, 5 => extend, 3 => release].boxed()
}

fn asks_of_operators() -> BoxedStrategy<Step> {
    let by = prop_oneof![5 => Just("op"), 1 => Just("operator")];
    let force = (lock(), weighted(0.5, token_choice()), by, prop_oneof![9 => Just("why"), 1 => Just(" ")])
        .prop_map(|(lock, only, by, reason)| Step::Force { lock, only, by, reason });
    let permits = prop_oneof![1 => Just(0u32), 12 => 1u32..4, 1 => Just(u32::MAX)];
    let semaphore = prop_oneof![5 => Just(2u8), 1 => lock()];
    let resize = (semaphore, permits).prop_map(|(lock, limit)| Step::Resize { lock, limit });
    let delayed = prop_oneof![3 => any::<u8>().prop_map(TokenChoice::Withheld), 1 => token_choice()];
    let end_delay = (delayed, lock()).prop_map(|(token, lock)| Step::EndDelay { token, lock });
    let raise = (-6i64..9).prop_map(|by| Step::Raise { by });
    let configure = limits().prop_map(|limits| Step::Configure { limits });
    prop_oneof![4 => force, 6 => resize, 6 => end_delay, 1 => raise, 1 => configure].boxed()
}

pub(crate) fn step() -> BoxedStrategy<Step> {
    let ttl_ms = prop_oneof![1 => Just(5u32), 20 => Just(50), 1 => Just(500)];
    let label = prop_oneof![5 => Just("me"), 5 => Just("you"), 1 => Just("everyone")];
    let open = (prop::bool::weighted(0.1), ttl_ms, label).prop_map(|(is_repeat, ttl_ms, label)| Step::Open {
        is_repeat,
        ttl_ms,
        label,
    });
    prop_oneof![
        3 => open,
        1 => session().prop_map(|session| Step::Close { session }),
        3 => session().prop_map(|session| Step::Expire { session }),
        60 => asks_of_sessions(),
        30 => asks_with_secrets(),
        9 => asks_of_operators(),
        5 => (0u8..6).prop_map(|ago| Step::Again { ago }),
    ]
    .boxed()
}

/// Returns a sequence that begins by opening sessions, so that the other steps can use them.
pub(crate) fn steps(most: usize) -> BoxedStrategy<Vec<Step>> {
    vec(step(), 0..most)
        .prop_map(|mut steps| {
            let open = |label| Step::Open { is_repeat: false, ttl_ms: 50, label };
            steps.splice(0..0, [open("one"), open("two"), open("tri"), open("four")]);
            steps
        })
        .boxed()
}
