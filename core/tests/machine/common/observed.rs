//! The observable state of a machine, as plain data that can be compared and printed.

use std::collections::BTreeMap;

use palisade_core::{
    Cursor, Delay, Ended, GrantState, Kind, Label, Limits, LockName, LockView, Machine, Mode, Secret, SessionId,
    SessionView, Ticket, Token, Ttl, Value,
};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observed {
    pub(crate) limits: Limits,
    pub(crate) last_token: Option<Token>,
    pub(crate) sessions: BTreeMap<SessionId, ObservedSession>,
    pub(crate) locks: BTreeMap<LockName, ObservedLock>,
    pub(crate) withheld: BTreeMap<Token, (Vec<LockName>, Delay)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservedSession {
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
    /// A lock that it both holds and waits for counts twice.
    pub(crate) lock_count: usize,
    /// In the order of the requests.
    pub(crate) grants: Vec<(Vec<LockName>, Token)>,
}

pub(crate) type Holder = (SessionId, Label);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservedLock {
    pub(crate) kind: Kind,
    /// Oldest grant first; without a holder once it is withheld.
    pub(crate) holders: Vec<(Token, Mode, Option<Holder>)>,
    /// In the order of arrival.
    pub(crate) waiters: Vec<(Ticket, Mode, SessionId, Label)>,
    pub(crate) history: Vec<Ended>,
    pub(crate) value: Option<Value>,
    pub(crate) secret: Option<Secret>,
}

impl Observed {
    pub(crate) fn of(machine: &Machine) -> Observed {
        let sessions: BTreeMap<_, _> = machine.sessions().map(|view| (view.id(), observe_session(&view))).collect();
        assert_eq!(sessions.len(), machine.session_count() as usize, "sessions are listed once each");
        for id in sessions.keys() {
            assert_eq!(machine.session(*id).map(|view| view.id()), Some(*id), "a listed session is found");
        }
        let withheld = machine.withheld().map(|(locks, token, delay)| (token, (locks.to_vec(), delay)));
        Observed {
            limits: machine.limits().clone(),
            last_token: machine.last_token(),
            sessions,
            locks: locks_of(machine),
            withheld: withheld.collect(),
        }
    }
}

/// Lists one lock per page, and looks each of them up by name too.
fn locks_of(machine: &Machine) -> BTreeMap<LockName, ObservedLock> {
    let mut locks = BTreeMap::new();
    let mut from = Cursor::default();
    while let Some((next, view)) = machine.locks(from).next() {
        let mut observed = observe_lock(&view);
        let found = machine.lock(view.name()).map(|view| observe_lock(&view));
        assert_eq!(found.as_ref(), Some(&observed), "a listed lock is found");
        observed.secret = machine.held_with_secret(view.name()).ok().flatten().map(|(_, _, secret)| secret.clone());
        assert!(locks.insert(view.name().clone(), observed).is_none(), "a lock is listed twice");
        from = next;
    }
    assert_eq!(locks.len(), machine.lock_count() as usize, "locks are listed once each");
    locks
}

fn observe_session(view: &SessionView<'_>) -> ObservedSession {
    ObservedSession {
        ttl: view.ttl(),
        label: view.label().clone(),
        lock_count: view.lock_count() as usize,
        grants: view.grants().map(|(locks, token)| (locks.to_vec(), token)).collect(),
    }
}

fn observe_lock(view: &LockView<'_>) -> ObservedLock {
    let holders = view.holders().map(|grant| {
        let holder = match grant.state {
            GrantState::Held { session, label } => Some((session, label.clone())),
            GrantState::Withheld => None,
        };
        (grant.token, grant.mode, holder)
    });
    let observed = ObservedLock {
        kind: view.kind(),
        holders: holders.collect(),
        waiters: view.waiters().map(|w| (w.ticket, w.mode, w.session, w.label.clone())).collect(),
        history: view.history().cloned().collect(),
        value: view.value().cloned(),
        secret: None,
    };
    assert_eq!(view.holder_count() as usize, observed.holders.len(), "holders are counted rightly");
    assert_eq!(view.waiter_count() as usize, observed.waiters.len(), "waiters are counted rightly");
    observed
}
