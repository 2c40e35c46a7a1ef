//! Watches: the changes of claims as events.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Ending, Force, Label, LockName, LockNames, SessionEnd, Token};
use std::sync::Arc;
use tokio::task::spawn_local;
use tokio::time::sleep;
use zookeeper_client::{AddWatchMode, Client, Error, EventType, PersistentWatcher, SessionState};

use super::backend::Shared;
use super::calls::{Claim, LockState};
use super::error::{self, NodeError};
use super::wire::{CLAIMS, EndedData};
use crate::engine::Failure;
use crate::engine::claims::{self, ClaimView};
use crate::engine::remote::jittered;

/// The timeout of the session that watches.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a failed watch is set again.
const PAUSE: Duration = Duration::from_millis(200);

/// The claims of all locks as the watchers know them.
type ClaimsByLock = HashMap<LockName, Vec<ClaimView>>;

impl Shared {
    /// Begins to watch all locks, unless that has begun.
    pub(super) async fn start_watching(self: &Rc<Self>) -> Result<(), Failure> {
        if self.watching.borrow().as_ref().is_some_and(|task| !task.is_finished()) {
            return Ok(());
        }
        let client = self.store.dial(SESSION_TIMEOUT).await;
        let client = client.map_err(|error| error.at(&self.store.peer).failure(false))?;
        let (watcher, known) =
            self.set_watch(&client).await.map_err(|error| error::outside(&self.store.peer, error))?;
        // Another call may have begun meanwhile.
        if self.watching.borrow().as_ref().is_none_or(|task| task.is_finished()) {
            let task = spawn_local(self.clone().serve_watches(client, watcher, known));
            self.watching.replace(Some(task.abort_handle()));
        }
        Ok(())
    }

    async fn set_watch(&self, client: &Client) -> Result<(PersistentWatcher, ClaimsByLock), NodeError> {
        let path = self.store.paths.locks();
        let watcher = client.watch(&path, AddWatchMode::PersistentRecursive).await?;
        self.store.confirm(client).await?;
        let names = self.store.lock_names(client, "").await?;
        let states = self.store.lock_states(client, &names).await?;
        let known = names.into_iter().zip(states).filter(|(_, state)| !state.claims.is_empty());
        Ok((watcher, known.map(|(name, state)| (name.clone(), views(&name, &state))).collect()))
    }

    /// Sends events to the watchers until there are none.
    async fn serve_watches(
        self: Rc<Self>,
        mut client: Client,
        mut watcher: PersistentWatcher,
        mut known: ClaimsByLock,
    ) {
        loop {
            let is_interrupted = self.follow(&client, &mut watcher, &mut known).await.is_err();
            if !is_interrupted {
                return;
            }
            // Changes during an interruption are not reported one by one.
            loop {
                sleep(jittered(PAUSE)).await;
                if client.state().is_terminated() {
                    match self.store.dial(SESSION_TIMEOUT).await {
                        Ok(dialed) => client = dialed,
                        Err(_) => continue,
                    }
                }
                if let Ok(set) = self.set_watch(&client).await {
                    (watcher, known) = set;
                    break;
                }
            }
            self.client.note_missed_events();
        }
    }

    /// Follows the changes until there are no watchers. Fails when the connection is interrupted.
    async fn follow(
        &self,
        client: &Client,
        watcher: &mut PersistentWatcher,
        known: &mut ClaimsByLock,
    ) -> Result<(), NodeError> {
        loop {
            let event = watcher.changed().await;
            if event.event_type == EventType::Session {
                match event.session_state {
                    SessionState::SyncConnected => continue,
                    _ => return Err(Error::ConnectionLoss.into()),
                }
            }
            if !self.client.watchers.borrow().is_watching() {
                return Ok(());
            }
            // Every acquire writes the parent of the claims, in the transaction that creates its claim.
            if event.path.ends_with(CLAIMS) {
                continue;
            }
            let Some(lock) = self.store.paths.lock_at(&event.path) else { continue };
            self.report_changes(client, &lock, known).await?;
        }
    }

    async fn report_changes(
        &self,
        client: &Client,
        lock: &LockName,
        known: &mut ClaimsByLock,
    ) -> Result<(), NodeError> {
        let state = self.store.lock_states(client, std::slice::from_ref(lock)).await?;
        let state = state.into_iter().next().unwrap_or_default();
        let after = views(lock, &state);
        let before = known.remove(lock).unwrap_or_default();
        // A claim for several locks is reported once, with the first of them.
        let is_reported = |claim: &&ClaimView| claim.locks.first() == Some(lock);
        let reported = |views: &[ClaimView]| views.iter().filter(is_reported).cloned().collect::<Vec<_>>();
        let mut endings = HashMap::new();
        for gone in before.iter().filter(|claim| !after.iter().any(|other| other.token == claim.token)) {
            let ended = state.data.history().find(|ended| ended.token == gone.token.get());
            let ending = match ended {
                Some(ended) => ending(&ended),
                None if client.check_stat(&self.store.paths.session(gone.session)).await?.is_some() => {
                    Ending::Released
                }
                // ZooKeeper does not say whether its client has closed it.
                None => Ending::SessionEnded(SessionEnd::Expired),
            };
            endings.insert(gone.token, ending);
        }
        let ending = |claim: &ClaimView| endings.get(&claim.token).cloned().unwrap_or(Ending::Released);
        let events = claims::changes(&reported(&before), &reported(&after), ending);
        self.client.watchers.borrow_mut().tell(&events);
        if !after.is_empty() {
            known.insert(lock.clone(), after);
        }
        Ok(())
    }
}

fn ending(ended: &EndedData) -> Ending {
    match &ended.forced {
        None => Ending::Released,
        Some((by, reason, moved_to)) => {
            let (by, reason) = (Label::new(by), Label::new(reason));
            let moved_to = Token::new(*moved_to).unwrap_or(Token::MAX);
            Ending::Forced(Arc::new(Force { by, reason, moved_to }))
        }
    }
}

fn views(lock: &LockName, state: &LockState) -> Vec<ClaimView> {
    state.claims.iter().map(|claim| view(lock, claim)).collect()
}

fn view(lock: &LockName, claim: &Claim) -> ClaimView {
    let parts: LockNames = claim.data.parts.iter().filter_map(|part| LockName::new(part).ok()).collect();
    ClaimView {
        session: claim.name.session,
        number: claim.name.number,
        token: claim.token,
        locks: if parts.is_empty() { [lock.clone()].into() } else { parts },
        is_granted: claim.is_granted,
        value: claim.data.published(),
    }
}
