//! Random commands that reach deep: few names, few sessions, and numbers that mostly mean something. A command is
//! first an [`Ask`] in terms of "some session", "some live token"; what that is is looked up when its turn comes,
//! so that a sequence still makes sense after a part of it was cut out. Strategies are boxed because a debug build
//! moves them over the stack whole.

use palisade_core::{
    Acquire, Answer, Applied, Caller, Command, Delay, Kind, Label, Limits, LockName, Machine, Mode, Patience,
    Reentry, RequestNo, SessionId, Ticket, Token, Ttl, Value, Waiting, Want,
};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::picture::Picture;

#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Open {
        ttl_ms: u32,
        label: &'static str,
    },
    Close {
        who: u8,
    },
    Expire {
        who: u8,
    },
    Acquire {
        who: u8,
        number: Number,
        wants: Vec<(u8, Mode)>,
        manner: Manner,
    },
    Release {
        by: Option<(u8, Number)>,
        token: Which,
        lock: u8,
    },
    Cancel {
        who: u8,
        number: Number,
        what: Wait,
    },
    Publish {
        who: u8,
        number: Number,
        token: Which,
        lock: u8,
        value: &'static str,
    },
    Force {
        lock: u8,
        only: Option<Which>,
        by: &'static str,
    },
    Resize {
        lock: u8,
        limit: u32,
    },
    EndDelay {
        token: Which,
        lock: u8,
    },
    Raise {
        by: i64,
    },
    Configure {
        limits: Limits,
    },
    /// The command of so many steps ago, word for word.
    Again {
        ago: u8,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Manner {
    wait: bool,
    queue_behind_myself: bool,
    delay_ms: Option<u32>,
    value: Option<&'static str>,
}

/// A request's number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Number {
    None,
    /// So many above the highest that the session has used.
    Above(u64),
    /// So many below it.
    Below(u64),
}

/// A token.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    /// Held or withheld, and its own lock is named.
    Live(u8),
    /// Held or withheld, whatever lock is named.
    Misplaced(u8),
    Withheld(u8),
    /// Given once, whatever became of it.
    Old(u8),
    /// Not given yet.
    Future(i64),
}

/// A wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// One that is in a queue, by its own session.
    Live(u8),
    /// One that was, by the session that asks.
    Old(u8),
    Numbered(Number),
}

/// Everything that was said, from which later commands pick.
pub(crate) struct World {
    pub(crate) commands: Vec<Command>,
    tokens: Vec<Token>,
    tickets: Vec<Ticket>,
    last_session: u64,
    numbers: std::collections::BTreeMap<SessionId, u64>,
    now: Picture,
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

impl World {
    pub(crate) fn new(machine: &Machine) -> World {
        World {
            commands: Vec::new(),
            tokens: Vec::new(),
            tickets: Vec::new(),
            last_session: 0,
            numbers: std::collections::BTreeMap::new(),
            now: Picture::of(machine),
        }
    }

    /// What this ask is as a command, now.
    pub(crate) fn command(&mut self, ask: &Ask) -> Command {
        let command = self.resolve(ask);
        if let Some(Caller { session, number: Some(number) }) = command.caller() {
            let highest = self.numbers.entry(session).or_default();
            *highest = (*highest).max(number.get());
        }
        self.commands.push(command.clone());
        command
    }

    pub(crate) fn learn(&mut self, applied: &Applied, now: Picture) {
        match applied.answer {
            Ok(Answer::Opened { session }) => self.last_session = session.get(),
            Ok(Answer::Queued { ticket }) => self.tickets.push(ticket),
            _ => {}
        }
        self.tokens.extend(now.last_token);
        self.tokens.dedup();
        self.now = now;
    }

    fn resolve(&self, ask: &Ask) -> Command {
        match ask {
            Ask::Open { ttl_ms, label } => Command::OpenSession {
                ttl: Ttl::from_ms(u64::from(*ttl_ms)).expect("a ttl"),
                label: Label::new(label),
            },
            Ask::Close { who } => Command::CloseSession { session: self.session(*who) },
            Ask::Expire { who } => Command::ExpireSession { session: self.session(*who) },
            Ask::Acquire { who, number, wants, manner } => self.acquire(*who, *number, wants, manner),
            Ask::Release { by, token, lock } => {
                let (lock, token, owner) = self.token(*token, *lock);
                let caller = by.map(|(who, number)| self.caller_or(who, number, owner));
                Command::Release { caller, lock, token }
            }
            Ask::Cancel { who, number, what } => self.cancel(*who, *number, *what),
            Ask::Publish { who, number, token, lock, value } => {
                let (lock, token, owner) = self.token(*token, *lock);
                let caller = self.caller_or(*who, *number, owner);
                Command::Publish { caller, lock, token, value: Value::new(value.as_bytes()) }
            }
            Ask::Force { lock, only, by } => {
                let (lock, only) = match only.map(|which| self.token(which, *lock)) {
                    Some((lock, token, _)) => (lock, Some(token)),
                    None => (name(*lock), None),
                };
                Command::ForceRelease { lock, only, by: Label::new(by), reason: Label::new("why") }
            }
            Ask::Resize { lock, limit } => Command::Resize { lock: name(*lock), limit: *limit },
            Ask::EndDelay { token, lock } => {
                let (lock, token, _) = self.token(*token, *lock);
                Command::EndDelay { lock, token }
            }
            Ask::Raise { by } => Command::RaiseTokens { above: self.near_last_token(*by) },
            Ask::Configure { limits } => Command::Configure { limits: limits.clone() },
            Ask::Again { ago } => match self.commands.len().checked_sub(1 + usize::from(*ago)) {
                Some(at) => self.commands[at].clone(),
                None => Command::Configure { limits: self.now.limits.clone() },
            },
        }
    }

    fn acquire(&self, who: u8, number: Number, wants: &[(u8, Mode)], manner: &Manner) -> Command {
        let wants = wants.iter().map(|(lock, mode)| Want { lock: name(*lock), mode: self.fitting(*lock, *mode) });
        Command::Acquire(Acquire {
            patience: if manner.wait { Patience::Wait } else { Patience::Try },
            reentry: if manner.queue_behind_myself { Reentry::Queue } else { Reentry::Refuse },
            delay: manner.delay_ms.map(|ms| Delay::from_ms(u64::from(ms)).expect("a delay")),
            value: manner.value.map(|value| Value::new(value.as_bytes())),
            ..Acquire::many(self.caller(self.session(who), number), wants)
        })
    }

    /// Permits of three are permits of however many there are; others are taken at their word.
    fn fitting(&self, lock: u8, mode: Mode) -> Mode {
        match (mode, self.now.locks.get(&name(lock)).map(|lock| lock.kind)) {
            (Mode::Permits { count, of: 3 }, Some(Kind::Semaphore { limit })) => {
                Mode::Permits { count: count.min(limit), of: limit }
            }
            _ => mode,
        }
    }

    fn cancel(&self, who: u8, number: Number, what: Wait) -> Command {
        let mut session = self.session(who);
        let live: Vec<(Ticket, SessionId)> =
            self.now.locks.values().flat_map(|lock| lock.waiters.iter().map(|(t, _, s, _)| (*t, *s))).collect();
        let waiting = match what {
            Wait::Live(which) => pick(&live, which).map(|(ticket, waiter)| {
                session = waiter;
                Waiting::Ticket(ticket)
            }),
            Wait::Old(which) => pick(&self.tickets, which).map(Waiting::Ticket),
            Wait::Numbered(number) => self.number(session, number).map(Waiting::Request),
        };
        let first = RequestNo::new(1).expect("a number");
        Command::Cancel { caller: self.caller(session, number), waiting: waiting.unwrap_or(Waiting::Request(first)) }
    }

    /// Nearly always one that is open; now and then one that is gone, or was never there.
    fn session(&self, who: u8) -> SessionId {
        let open: Vec<SessionId> = self.now.sessions.keys().copied().collect();
        let other = SessionId::new(self.last_session.max(1) + u64::from(who % 2)).expect("a session");
        if who < 28 { pick(&open, who).unwrap_or(other) } else { other }
    }

    fn caller(&self, session: SessionId, number: Number) -> Caller {
        Caller { session, number: self.number(session, number) }
    }

    /// Mostly the grant's own session.
    fn caller_or(&self, who: u8, number: Number, owner: Option<SessionId>) -> Caller {
        let session = if who < 24 { owner.unwrap_or(self.session(who)) } else { self.session(who) };
        self.caller(session, number)
    }

    fn number(&self, session: SessionId, number: Number) -> Option<RequestNo> {
        let highest = self.numbers.get(&session).copied().unwrap_or(0);
        let number = match number {
            Number::None => return None,
            Number::Above(by) => highest + by,
            Number::Below(by) => highest.saturating_sub(by).max(1),
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

    /// A token, the lock to name with it, and the session that holds it.
    fn token(&self, which: Which, lock: u8) -> (LockName, Token, Option<SessionId>) {
        let mut live = Vec::new();
        for (name, lock) in &self.now.locks {
            live.extend(lock.holders.iter().map(|(token, _, holder)| (name, *token, holder.as_ref().map(|h| h.0))));
        }
        let withheld: Vec<_> = live.iter().filter(|(_, _, holder)| holder.is_none()).copied().collect();
        let found = match which {
            Which::Live(at) | Which::Misplaced(at) => pick(&live, at),
            Which::Withheld(at) => pick(&withheld, at),
            Which::Old(at) => {
                let token = pick(&self.tokens, at).unwrap_or_else(|| self.last_token());
                return (name(lock), token, None);
            }
            Which::Future(by) => return (name(lock), self.near_last_token(by), None),
        };
        match (found, which) {
            (Some((_, token, holder)), Which::Misplaced(_)) => (name(lock), token, holder),
            (Some((own, token, holder)), _) => (own.clone(), token, holder),
            (None, _) => (name(lock), self.last_token(), None),
        }
    }
}

/// Limits that are met now and then, or at every turn.
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
        1 => odd.prop_map(|(count, of)| Mode::Permits { count, of }),
    ]
    .boxed()
}

/// Names by number: below 30 they are good, in the ratio that makes one of them the busiest.
fn lock() -> BoxedStrategy<u8> {
    prop_oneof![24 => Just(0u8), 16 => Just(1u8), 16 => Just(2u8), 1 => Just(30u8)].boxed()
}

/// Two are mostly locks and one is mostly a semaphore, or nearly all would be of the wrong kind.
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

fn number() -> BoxedStrategy<Number> {
    prop_oneof![
        8 => Just(Number::None),
        5 => Just(Number::Above(1)),
        1 => Just(Number::Above(4)),
        1 => (0u64..6).prop_map(Number::Below),
    ]
    .boxed()
}

fn which() -> BoxedStrategy<Which> {
    prop_oneof![
        10 => any::<u8>().prop_map(Which::Live),
        1 => any::<u8>().prop_map(Which::Misplaced),
        2 => any::<u8>().prop_map(Which::Withheld),
        2 => any::<u8>().prop_map(Which::Old),
        1 => (0i64..3).prop_map(Which::Future),
    ]
    .boxed()
}

fn manner() -> BoxedStrategy<Manner> {
    let delay_ms = weighted(0.4, prop_oneof![9 => Just(20u32), 1 => Just(80)]);
    let value = weighted(0.05, prop_oneof![6 => Just("val"), 1 => Just("value")]);
    (weighted(0.75, Just(())), any::<bool>(), delay_ms, value)
        .prop_map(|(wait, queue_behind_myself, delay_ms, value)| Manner {
            wait: wait.is_some(),
            queue_behind_myself,
            delay_ms,
            value,
        })
        .boxed()
}

fn who() -> BoxedStrategy<u8> {
    prop_oneof![40 => 0u8..28, 1 => 28u8..30].boxed()
}

fn asks_of_sessions() -> BoxedStrategy<Ask> {
    let acquire = (who(), number(), wants(), manner());
    let acquire = acquire.prop_map(|(who, number, wants, manner)| Ask::Acquire { who, number, wants, manner });
    let release = (weighted(0.6, (who(), number())), which(), lock());
    let release = release.prop_map(|(by, token, lock)| Ask::Release { by, token, lock });
    let wait = prop_oneof![
        3 => any::<u8>().prop_map(Wait::Live),
        1 => any::<u8>().prop_map(Wait::Old),
        2 => number().prop_map(Wait::Numbered),
    ];
    let cancel = (who(), number(), wait).prop_map(|(who, number, what)| Ask::Cancel { who, number, what });
    let value = prop_oneof![5 => Just("new"), 1 => Just("newer")];
    let publish = (who(), number(), which(), lock(), value);
    let publish =
        publish.prop_map(|(who, number, token, lock, value)| Ask::Publish { who, number, token, lock, value });
    prop_oneof![24 => acquire, 7 => release, 4 => cancel, 2 => publish].boxed()
}

fn asks_of_operators() -> BoxedStrategy<Ask> {
    let by = prop_oneof![5 => Just("op"), 1 => Just("operator")];
    let force = (lock(), weighted(0.5, which()), by).prop_map(|(lock, only, by)| Ask::Force { lock, only, by });
    let permits = prop_oneof![1 => Just(0u32), 12 => 1u32..4, 1 => Just(u32::MAX)];
    let semaphore = prop_oneof![5 => Just(2u8), 1 => lock()];
    let resize = (semaphore, permits).prop_map(|(lock, limit)| Ask::Resize { lock, limit });
    let delayed = prop_oneof![3 => any::<u8>().prop_map(Which::Withheld), 1 => which()];
    let end_delay = (delayed, lock()).prop_map(|(token, lock)| Ask::EndDelay { token, lock });
    let raise = (-6i64..9).prop_map(|by| Ask::Raise { by });
    let configure = limits().prop_map(|limits| Ask::Configure { limits });
    prop_oneof![4 => force, 6 => resize, 6 => end_delay, 1 => raise, 1 => configure].boxed()
}

pub(crate) fn ask() -> BoxedStrategy<Ask> {
    let ttl_ms = prop_oneof![1 => Just(5u32), 20 => Just(50), 1 => Just(500)];
    let label = prop_oneof![5 => Just("me"), 5 => Just("you"), 1 => Just("everyone")];
    let open = (ttl_ms, label).prop_map(|(ttl_ms, label)| Ask::Open { ttl_ms, label });
    prop_oneof![
        3 => open,
        1 => who().prop_map(|who| Ask::Close { who }),
        3 => who().prop_map(|who| Ask::Expire { who }),
        60 => asks_of_sessions(),
        9 => asks_of_operators(),
        5 => (0u8..6).prop_map(|ago| Ask::Again { ago }),
    ]
    .boxed()
}

/// A sequence that begins with open sessions, so that what follows finds someone.
pub(crate) fn asks(most: usize) -> BoxedStrategy<Vec<Ask>> {
    vec(ask(), 0..most)
        .prop_map(|mut asks| {
            let open = |label| Ask::Open { ttl_ms: 50, label };
            asks.splice(0..0, [open("one"), open("two"), open("tri"), open("four")]);
            asks
        })
        .boxed()
}
