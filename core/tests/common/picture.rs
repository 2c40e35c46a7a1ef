//! Everything that can be seen of a machine, as plain data that can be compared and printed.

use std::collections::BTreeMap;

use palisade_core::{
    Cursor, Delay, Ended, GrantState, Kind, Label, Limits, LockName, LockView, Machine, Mode, SessionId, SessionView,
    Ticket, Token, Ttl, Value,
};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Picture {
    pub(crate) limits: Limits,
    pub(crate) last_token: Option<Token>,
    pub(crate) sessions: BTreeMap<SessionId, SessionPicture>,
    pub(crate) locks: BTreeMap<LockName, LockPicture>,
    pub(crate) withheld: BTreeMap<Token, (Vec<LockName>, Delay)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SessionPicture {
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
    /// Places: a lock that it both holds and waits for counts twice.
    pub(crate) lock_count: usize,
    /// In the order of the requests.
    pub(crate) grants: Vec<(Vec<LockName>, Token)>,
}

pub(crate) type Holder = (SessionId, Label);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LockPicture {
    pub(crate) kind: Kind,
    /// Oldest grant first; without a holder once it is withheld.
    pub(crate) holders: Vec<(Token, Mode, Option<Holder>)>,
    /// First come, first.
    pub(crate) waiters: Vec<(Ticket, Mode, SessionId, Label)>,
    pub(crate) history: Vec<Ended>,
    pub(crate) value: Option<Value>,
}

impl Picture {
    pub(crate) fn of(machine: &Machine) -> Picture {
        let sessions: BTreeMap<_, _> = machine.sessions().map(|view| (view.id(), session_picture(&view))).collect();
        assert_eq!(sessions.len(), machine.session_count() as usize, "sessions are listed once each");
        for id in sessions.keys() {
            assert_eq!(machine.session(*id).map(|view| view.id()), Some(*id), "a listed session is found");
        }
        let withheld = machine.withheld().map(|(locks, token, delay)| (token, (locks.to_vec(), delay)));
        Picture {
            limits: machine.limits().clone(),
            last_token: machine.last_token(),
            sessions,
            locks: locks_of(machine),
            withheld: withheld.collect(),
        }
    }
}

/// Lists page by page, one lock at a time, and finds each of them by its name too.
fn locks_of(machine: &Machine) -> BTreeMap<LockName, LockPicture> {
    let mut locks = BTreeMap::new();
    let mut from = Cursor::default();
    while let Some((next, view)) = machine.locks(from).next() {
        let picture = lock_picture(&view);
        let found = machine.lock(view.name()).map(|view| lock_picture(&view));
        assert_eq!(found.as_ref(), Some(&picture), "a listed lock is found");
        assert!(locks.insert(view.name().clone(), picture).is_none(), "a lock is listed twice");
        from = next;
    }
    assert_eq!(locks.len(), machine.lock_count() as usize, "locks are listed once each");
    locks
}

fn session_picture(view: &SessionView<'_>) -> SessionPicture {
    SessionPicture {
        ttl: view.ttl(),
        label: view.label().clone(),
        lock_count: view.lock_count() as usize,
        grants: view.grants().map(|(locks, token)| (locks.to_vec(), token)).collect(),
    }
}

fn lock_picture(view: &LockView<'_>) -> LockPicture {
    let holders = view.holders().map(|grant| {
        let holder = match grant.state {
            GrantState::Held { session, label } => Some((session, label.clone())),
            GrantState::Withheld => None,
        };
        (grant.token, grant.mode, holder)
    });
    let picture = LockPicture {
        kind: view.kind(),
        holders: holders.collect(),
        waiters: view.waiters().map(|w| (w.ticket, w.mode, w.session, w.label.clone())).collect(),
        history: view.history().cloned().collect(),
        value: view.value().cloned(),
    };
    assert_eq!(view.holder_count() as usize, picture.holders.len(), "holders are counted rightly");
    assert_eq!(view.waiter_count() as usize, picture.waiters.len(), "waiters are counted rightly");
    picture
}
