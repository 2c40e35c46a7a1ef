//! The events of locks, found by comparing the claims before and after each revision.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Event, EventType, KeyValue, WatchOptions};
use palisade_core::{Ending, Force, LockName, SessionEnd, SessionId, Token};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::backend::Shared;
use super::connection::{Connection, Watch};
use super::wire::{self, Claim, Claims, Key, SessionBody};
use crate::engine::claims::call_error::CallError;
use crate::engine::claims::{ClaimView, changes};
use crate::engine::remote::{ConnectError, RemoteConnection, jittered};

/// The pause before the locks are read again after an error.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The claims of all locks, followed from revision to revision.
pub(super) struct Observer {
    shared: Rc<Shared>,
    locks: BTreeMap<LockName, Claims>,
    /// Sessions that their clients close.
    closing: HashSet<SessionId>,
}

impl Observer {
    /// Observes the locks on this connection, unless they are observed already.
    pub(super) async fn start(shared: &Rc<Shared>, connection: &Rc<Connection>) -> Result<(), CallError> {
        let mut is_observing = connection.is_observing.lock().await;
        if !*is_observing {
            let (observer, watch) = Observer::read(shared, connection).await?;
            *is_observing = true;
            spawn_local(observer.run(connection.clone(), watch));
        }
        Ok(())
    }

    async fn read(shared: &Rc<Shared>, connection: &Rc<Connection>) -> Result<(Observer, Watch), CallError> {
        let (claims, revision) = shared.read_claims(connection, "").await?;
        let options = WatchOptions::new().with_prefix();
        let watch = connection.watch(shared.keys.all.as_str(), options, revision + 1);
        Ok((Observer { shared: shared.clone(), locks: wire::by_lock(claims), closing: HashSet::new() }, watch))
    }

    /// Reports events until the connection breaks or the last watcher is gone.
    async fn run(mut self, connection: Rc<Connection>, mut watch: Watch) {
        loop {
            match watch.next().await {
                Some(response) => {
                    for events in response.events().chunk_by(|one, next| revision(one) == revision(next)) {
                        self.apply(events);
                    }
                }
                None if connection.is_broken() => return,
                None => match Observer::read(&self.shared, &connection).await {
                    // A compaction has removed events.
                    Ok(again) => {
                        self.shared.client.note_missed_events();
                        (self, watch) = again;
                    }
                    Err(_) if connection.is_broken() => return,
                    // The next connection would fail in the same way, such as without the right to read.
                    Err(error) => {
                        tracing::debug!(error = %ConnectError::from(error), "retrying to observe the locks");
                        sleep(jittered(RETRY_PAUSE)).await;
                    }
                },
            }
            if !self.shared.client.watchers.borrow().is_watching() {
                let mut is_observing = connection.is_observing.lock().await;
                if !self.shared.client.watchers.borrow().is_watching() {
                    *is_observing = false;
                    return;
                }
            }
        }
    }

    /// Applies all changes of one revision.
    fn apply(&mut self, events: &[Event]) {
        let parsed = |event: &Event| Some((self.shared.keys.parse(event.kv()?.key())?, event.event_type()));
        let keys: Vec<_> = events.iter().map(parsed).collect();
        let locks: BTreeSet<_> = keys
            .iter()
            .filter_map(|key| match key {
                Some((Key::Claim(lock, ..), _)) => Some(lock.clone()),
                _ => None,
            })
            .collect();
        let before = self.views(&locks);
        let mut ended: HashMap<SessionId, SessionEnd> = HashMap::new();
        let mut forced: HashMap<Token, Arc<Force>> = HashMap::new();
        for (event, key) in events.iter().zip(keys) {
            let Some(kv) = event.kv() else { continue };
            match key {
                Some((Key::Claim(lock, session, place), kind)) => {
                    let claims = self.locks.entry(lock.clone()).or_default();
                    claims.0.retain(|claim| (claim.session, claim.place) != (session, place));
                    match Claim::read(&self.shared.keys, kv) {
                        Ok(claim) if kind == EventType::Put => {
                            let at = claims.0.partition_point(|other| other.revision < claim.revision);
                            claims.0.insert(at, claim);
                        }
                        _ if claims.0.is_empty() => drop(self.locks.remove(&lock)),
                        _ => {}
                    }
                }
                Some((Key::Session(session), EventType::Delete)) => {
                    let was_closed = self.closing.remove(&session);
                    let how = if was_closed { SessionEnd::Closed } else { SessionEnd::Expired };
                    ended.insert(session, how);
                }
                Some((Key::Session(session), EventType::Put)) if is_closing(kv) => {
                    self.closing.insert(session);
                }
                Some((Key::Lost(_, token), EventType::Put)) => {
                    forced.insert(token, Arc::new(wire::read_force(kv.value(), token)));
                }
                _ => {}
            }
        }
        let ending = |claim: &ClaimView| match (forced.get(&claim.token), ended.get(&claim.session)) {
            (Some(force), _) => Ending::Forced(force.clone()),
            (None, Some(how)) => Ending::SessionEnded(*how),
            (None, None) => Ending::Released,
        };
        let events = changes(&before, &self.views(&locks), ending);
        self.shared.client.watchers.borrow_mut().tell(&events);
    }

    fn views(&self, locks: &BTreeSet<LockName>) -> Vec<ClaimView> {
        wire::views(locks.iter().filter_map(|lock| self.locks.get(lock)))
    }
}

fn revision(event: &Event) -> i64 {
    event.kv().map_or(0, KeyValue::mod_revision)
}

fn is_closing(kv: &KeyValue) -> bool {
    serde_json::from_slice(kv.value()).is_ok_and(|body: SessionBody| body.closed)
}
