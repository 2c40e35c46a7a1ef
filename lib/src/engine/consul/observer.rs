//! The events of locks, found by comparing the claims before and after each change. Consul keeps no history: changes between two
//! answers are merged.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Ending, Event, Force, LockName, SessionEnd, SessionId, Token};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::backend::{RETRY_PAUSE, Shared};
use super::connection::{CALL_TIMEOUT, Connection, Pairs};
use super::delayed::Withheld;
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::stored::{self, Claim, Claims, Key, Keys, Pair, Record};
use crate::engine::claims::{ClaimView, changes};
use crate::engine::remote::{RemoteConnection, jittered};

/// How long a query waits.
const WAIT: Duration = Duration::from_secs(60);

/// The claims of all locks, followed from answer to answer.
pub(super) struct Observer {
    shared: Rc<Shared>,
    locks: BTreeMap<LockName, Claims>,
    /// The grants whose locks are withheld.
    withheld: BTreeMap<Token, Withheld>,
    index: i64,
}

impl Observer {
    /// Observes the locks on this connection. If they are observed already, reports the events until now: a new watch does not
    /// show what happened before it.
    pub(super) async fn start(shared: &Rc<Shared>, connection: &Rc<Connection>) -> Result<(), CallError> {
        let mut current = connection.observer.lock().await;
        let (pairs, index) = connection.get_keys(&shared.keys.all, "?recurse&consistent", CALL_TIMEOUT).await?;
        let index = index.max(1);
        match &*current {
            Some(observer) => observer.borrow_mut().note(&pairs, index),
            None => {
                let (locks, withheld) = shared.observed(&pairs);
                let observer = Rc::new(RefCell::new(Observer { shared: shared.clone(), locks, withheld, index }));
                *current = Some(observer.clone());
                spawn_local(Observer::run(observer, connection.clone()));
            }
        }
        Ok(())
    }

    /// Reports events until the connection breaks or the last watcher is gone.
    async fn run(observer: Rc<RefCell<Observer>>, connection: Rc<Connection>) {
        let shared = observer.borrow().shared.clone();
        loop {
            let (index, withheld) = (observer.borrow().index, observer.borrow().withheld.clone());
            // No event says that a delay is over.
            let wait = withheld.values().map(Withheld::pause).min().unwrap_or(WAIT);
            shared.end_withheld(&connection, &withheld).await;
            match connection.next_change(&shared.keys.all, "recurse&consistent", index, wait).await {
                Ok((pairs, next)) => observer.borrow_mut().note(&pairs, next),
                Err(_) if connection.is_broken() => return,
                Err(_) => sleep(jittered(RETRY_PAUSE)).await,
            }
            if !shared.client.watchers.borrow().is_watching() {
                let mut current = connection.observer.lock().await;
                if !shared.client.watchers.borrow().is_watching() {
                    *current = None;
                    return;
                }
            }
        }
    }

    /// Reports what has changed, unless a later answer has come before. An index of 0 is of other data.
    fn note(&mut self, pairs: &Pairs, index: i64) {
        if index == 0 || index >= self.index {
            self.apply(pairs);
            self.index = index;
        }
    }

    fn apply(&mut self, pairs: &Pairs) {
        let (after, withheld) = self.shared.observed(pairs);
        let before = std::mem::replace(&mut self.locks, after);
        let withheld_before = std::mem::replace(&mut self.withheld, withheld);
        let (after, withheld) = (&self.locks, &self.withheld);
        let names: HashSet<_> = before.keys().chain(after.keys()).collect();
        let is_in_one =
            |(token, _): &(&Token, &Withheld)| withheld.contains_key(token) != withheld_before.contains_key(token);
        let begun_or_over = withheld.iter().chain(&withheld_before).filter(is_in_one);
        let begun_or_over: HashSet<_> = begun_or_over.flat_map(|(_, withheld)| &withheld.locks).collect();
        let is_other = |lock: &LockName| match (before.get(lock), after.get(lock)) {
            (Some(before), Some(after)) => begun_or_over.contains(lock) || !is_same(&before.0, &after.0),
            _ => true,
        };
        let changed: Vec<_> = names.into_iter().filter(|lock| is_other(lock)).collect();
        let views = |lists: &BTreeMap<LockName, Claims>, withheld: &BTreeMap<Token, Withheld>| {
            let mut views = stored::views(changed.iter().filter_map(|lock| lists.get(*lock)));
            views.retain(|claim| !withheld.contains_key(&claim.token));
            views
        };
        let mut sessions: HashSet<SessionId> = HashSet::new();
        let mut forced: HashMap<Token, Arc<Force>> = HashMap::new();
        for pair in pairs.all() {
            match self.shared.keys.parse(pair.key()) {
                Some(Key::Session(session)) => drop(sessions.insert(session)),
                Some(Key::Lost(_, token)) => {
                    forced.insert(token, Arc::new(stored::read_force(pair.value(), token)));
                }
                _ => {}
            }
        }
        let ending = |claim: &ClaimView| match forced.get(&claim.token) {
            Some(force) => Ending::Forced(force.clone()),
            None if withheld.contains_key(&claim.token) => Ending::SessionEnded(SessionEnd::Expired),
            None if sessions.contains(&claim.session) => Ending::Released,
            // Consul does not say whether its client has closed it.
            None => Ending::SessionEnded(SessionEnd::Expired),
        };
        let mut events = Vec::new();
        for (token, Withheld { locks, .. }) in
            withheld_before.iter().filter(|(token, _)| !withheld.contains_key(token))
        {
            let force = self.shared.forced(pairs, &locks[0], *token);
            events.push(Event::DelayEnded { locks: locks.clone(), token: *token, force });
        }
        for event in changes(&views(&before, &withheld_before), &views(after, withheld), ending) {
            let ended = match &event {
                Event::GrantEnded { token, .. } => Some(*token),
                _ => None,
            };
            events.push(event);
            if let Some((token, Withheld { locks, delay, .. })) =
                ended.and_then(|token| withheld.get_key_value(&token))
            {
                events.push(Event::Withheld { locks: locks.clone(), token: *token, delay: *delay });
            }
        }
        self.shared.client.watchers.borrow_mut().tell(&events);
    }
}

impl Shared {
    /// The claims of each lock, and the grants whose locks are withheld.
    fn observed(&self, pairs: &Pairs) -> (BTreeMap<LockName, Claims>, BTreeMap<Token, Withheld>) {
        let mut locks = stored::by_lock(self.readable_claims(pairs));
        for claims in locks.values_mut() {
            self.without_dead_waiters(pairs, claims);
        }
        let withheld = self.withheld(pairs, locks.values());
        (locks, withheld)
    }

    /// How a grant was released by force, as the records of its lock show it.
    fn forced(&self, pairs: &Pairs, lock: &LockName, token: Token) -> Option<Arc<Force>> {
        let stored = pairs.get(&Keys::record(&self.keys.forced(lock), token))?;
        let record: Record = serde_json::from_slice(stored.value()).ok()?;
        record.forced.filter(|_| record.token == token).map(Arc::new)
    }
}

/// Whether two lists of claims are the same, with the same marks and values.
fn is_same(before: &[Claim], after: &[Claim]) -> bool {
    let content =
        |claims: &[Claim]| claims.iter().map(|claim| (claim.revision, claim.body.clone())).collect::<Vec<_>>();
    before.len() == after.len() && content(before) == content(after)
}
