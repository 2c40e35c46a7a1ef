//! The engine: the client keeps sessions, a majority of the nodes keeps locks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use palisade_core::{
    Acquire, Label, LockName, Mode, Patience, Refusal, RequestNo, SessionEnd, SessionId, Token, Ttl, Value,
};
use redis::{FromRedisValue, Pipeline, pipe};
use tokio::sync::mpsc;

use super::attempt::{extend, vote};
use super::config::Config;
use super::error::{Absence, NoMajority, NotIndependent, not_offered};
use super::node::Node;
use super::owner;
use super::quorum::{self, Verdict, majority, verdict, verdict_on_grant};
use super::session::{self, Grant, Session, Sessions};
use super::undo::{Undo, release, undo_all};
use crate::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, Level, LockInfo, Notice, Offers, Opened, Order, Raised,
    Released, SessionClock, Unavailable, WakeUp, Watched,
};
use crate::{BootInstant, SignedToken};

/// Locks kept by a majority of Redis servers.
pub struct Redlock {
    shared: Rc<Shared>,
}

pub(super) struct Shared {
    pub(super) nodes: Vec<Rc<Node>>,
    config: Config,
    pub(super) sessions: RefCell<Sessions>,
    pub(super) undos: mpsc::UnboundedSender<Undo>,
}

impl Redlock {
    /// Connects to the nodes, of which a majority must answer. Must be called on a `tokio` runtime with a local set.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], with [`NoMajority`] or [`NotIndependent`] as its source.
    pub async fn connect(config: Config) -> Result<Redlock, Failure> {
        let nodes = (0..config.nodes.len()).map(|index| Node::new(&config, index));
        let nodes =
            nodes.collect::<Result<Vec<_>, _>>().map_err(|why| Unavailable::new(why.to_string()).permanent())?;
        let (undos, queued_undos) = mpsc::unbounded_channel();
        let shared = Rc::new(Shared { nodes, config, sessions: RefCell::default(), undos });
        let reached = join_all(shared.nodes.iter().map(Node::run_id)).await;
        shared.ensure_independent(&reached)?;
        let answered = reached.iter().filter(|answer| answer.is_ok()).count();
        if answered < majority(shared.nodes.len()) {
            return Err(shared.no_majority(reached).failure(false));
        }
        tokio::task::spawn_local(undo_all(queued_undos, shared.inspect_timeout()));
        Ok(Redlock { shared })
    }
}

impl Shared {
    fn ensure_independent(&self, reached: &[Result<String, Absence>]) -> Result<(), NotIndependent> {
        let mut seen = HashMap::new();
        for (node, reached) in self.nodes.iter().zip(reached) {
            match reached {
                Err(Absence::Unfit(why)) => return Err(NotIndependent::Unfit(node.name.clone(), why)),
                Ok(run_id) if !run_id.is_empty() => {
                    if let Some(other) = seen.insert(run_id, node) {
                        return Err(NotIndependent::SameServer(other.name.clone(), node.name.clone()));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends commands to all nodes at once.
    pub(super) async fn call_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
        call_timeout: Duration,
    ) -> Vec<Result<T, Absence>> {
        join_all(self.nodes.iter().map(|node| node.call(commands, call_timeout))).await
    }

    /// Returns the time-out of a call to one node.
    pub(super) fn call_timeout(&self, ttl: Duration) -> Duration {
        self.config.timeout.unwrap_or_else(|| quorum::call_timeout(ttl))
    }

    pub(super) fn inspect_timeout(&self) -> Duration {
        self.config.timeout.unwrap_or(quorum::LONGEST_TIMEOUT)
    }

    /// Returns the error that lists the nodes without an answer, and why.
    pub(super) fn no_majority<T>(&self, answers: Vec<Result<T, Absence>>) -> NoMajority {
        let absent = self.nodes.iter().zip(answers);
        let absent = absent.filter_map(|(node, answer)| Some(node.absent(answer.err()?))).collect();
        NoMajority { nodes: self.nodes.len(), needed: majority(self.nodes.len()), absent }
    }

    /// Ends a session that has lost a lock. The time of the loss is unknown, so all its grants end.
    fn end(&self, number: SessionId, how: SessionEnd) {
        let Some(session) = self.sessions.borrow_mut().remove(number) else { return };
        for held in session.grants.into_values() {
            let undo = self.undo(&held, session.ttl);
            drop(self.undos.send(undo));
        }
        // Without a receiver, the keeper is gone.
        drop(session.notices.send(Notice::SessionEnded(how)));
    }

    fn undo(&self, held: &Grant, ttl: Duration) -> Undo {
        Undo { nodes: self.nodes.clone(), key: owner::key(&held.lock), value: held.value.clone(), ttl }
    }

    /// Extends every lock of a session on a majority.
    async fn extend_all(&self, number: SessionId, ttl: Duration, held: &[(Token, Grant)]) -> Result<(), Failure> {
        let mut commands = pipe();
        for (_, held) in held {
            extend(&mut commands, &owner::key(&held.lock), &held.value, ttl);
        }
        let answers = self.call_all::<Vec<i64>>(&commands, self.call_timeout(ttl)).await;
        for (index, (token, _)) in held.iter().enumerate() {
            // A lock that was released meanwhile is not a loss.
            if self.sessions.borrow_mut().held(number, *token).is_none_or(|held| held.is_releasing) {
                continue;
            }
            let answers = answers.iter().map(|answer| match answer {
                Ok(extended) => Ok(extended.get(index) == Some(&1)),
                Err(why) => Err(why.clone()),
            });
            let answers: Vec<_> = answers.collect();
            match verdict_on_grant(answers.iter().map(vote)) {
                Verdict::Yes => {}
                Verdict::No => return Err(Failure::SessionEnded),
                Verdict::Unknown => return Err(self.no_majority(answers).failure(true)),
            }
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Engine for Redlock {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            engine: "redlock",
            level: Level::Advisory,
            order: Order::Race,
            session_clock: SessionClock::Store,
            wake_up: WakeUp::Polled,
            offers: Offers {
                shared: false,
                permits: false,
                resize: false,
                several: false,
                values: false,
                delay: false,
                force_release: false,
                list: true,
                watch: false,
                detach: false,
                signed: false,
            },
        }
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        session::check(ttl, &label, self.shared.config.max_ttl)?;
        let (number, now, ttl) = (owner::session_number(), BootInstant::now(), Duration::from_millis(ttl.as_ms()));
        let (notices, received) = mpsc::unbounded_channel();
        let session =
            Session { ttl, label, notices, expires_at: now + ttl, renewal_began_at: now, grants: HashMap::new() };
        self.shared.sessions.borrow_mut().add(number, session);
        Ok(Opened { session: number, notices: received, lifeline: None })
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        let (now, shared) = (BootInstant::now(), &self.shared);
        let (ttl, held) = {
            let mut sessions = shared.sessions.borrow_mut();
            let session = sessions.live(session)?;
            session.renewal_began_at = now;
            let held = session.grants.iter().filter(|(_, held)| !held.is_releasing);
            (session.ttl, held.map(|(token, held)| (*token, held.clone())).collect::<Vec<_>>())
        };
        if !held.is_empty()
            && let Err(failure) = shared.extend_all(session, ttl, &held).await
        {
            if let Failure::SessionEnded = failure {
                shared.end(session, SessionEnd::Expired);
            }
            return Err(failure);
        }
        shared.sessions.borrow_mut().live(session)?.expires_at = now + ttl;
        Ok(())
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        let Some(session) = self.shared.sessions.borrow_mut().remove(session) else { return Ok(()) };
        let call_timeout = self.shared.call_timeout(session.ttl);
        let undone = session.grants.values().map(|held| self.shared.undo(held, session.ttl).once(call_timeout));
        for left in join_all(undone).await.into_iter().flatten() {
            drop(self.shared.undos.send(left));
        }
        // Without a receiver, the keeper is gone.
        drop(session.notices.send(Notice::SessionEnded(SessionEnd::Closed)));
        Ok(())
    }

    async fn detach_session(&self, _: SessionId) -> Result<(), Failure> {
        Err(not_offered("sessions that outlive their client"))
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Acquired, Failure> {
        let Acquire { caller, wants, patience, .. } = acquire;
        let want = match wants.as_slice() {
            [] => return Err(Refusal::NoLocks.into()),
            [want] => want,
            _ => return Err(not_offered("sets of locks")),
        };
        if want.mode != Mode::Exclusive {
            return Err(not_offered("locks that are shared"));
        }
        loop {
            let granted =
                caller.number.and_then(|number| self.shared.sessions.borrow().granted(caller.session, number));
            let granted = match granted {
                Some(token) => Some(token),
                None => self.shared.try_once(caller.session, &want.lock, caller.number).await?,
            };
            match (granted, patience) {
                (Some(token), _) => return Ok(Acquired::Granted { token }),
                (None, Patience::Try) => return Ok(Acquired::Busy),
                (None, _) => tokio::time::sleep(quorum::pause(owner::random())).await,
            }
        }
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        // An acquire that was dropped has undone its keys.
        Ok(match self.shared.sessions.borrow().granted(session, number) {
            Some(token) => Cancelled::WasGranted { token },
            None => Cancelled::Gone,
        })
    }

    async fn release(&self, session: SessionId, _: LockName, token: Token) -> Result<Released, Failure> {
        let shared = &self.shared;
        let Some(held) = shared.sessions.borrow_mut().held(session, token).map(|held| {
            held.is_releasing = true;
            held.clone()
        }) else {
            return Ok(Released::Before);
        };
        let ttl = match shared.sessions.borrow_mut().live(session) {
            Ok(session) => session.ttl,
            Err(_) => return Ok(Released::Before),
        };
        let commands = release(&owner::key(&held.lock), &held.value);
        let answers = shared.call_all::<(i64,)>(&commands, shared.call_timeout(ttl)).await;
        let answers: Vec<_> = answers.into_iter().map(|answer| Ok(answer?.0 == 1)).collect();
        let verdict = verdict(answers.iter().map(vote));
        if verdict == Verdict::Unknown {
            return Err(shared.no_majority(answers).failure(true));
        }
        let left = shared.nodes.iter().zip(&answers).filter(|(_, answer)| answer.is_err());
        let nodes: Vec<_> = left.map(|(node, _)| node.clone()).collect();
        if !nodes.is_empty() {
            drop(shared.undos.send(Undo { nodes, ..shared.undo(&held, ttl) }));
        }
        shared.sessions.borrow_mut().forget(session, token);
        Ok(if verdict == Verdict::Yes { Released::Now } else { Released::Before })
    }

    async fn publish(&self, _: SessionId, _: LockName, _: Token, _: Value) -> Result<(), Failure> {
        Err(not_offered("published values"))
    }

    async fn sign(&self, _: SessionId, _: LockName, _: Token) -> Result<SignedToken, Failure> {
        Err(not_offered("tokens, and so none that could be signed"))
    }

    async fn force_release(&self, _: LockName, _: Option<Token>, _: Label, _: Label) -> Result<Forced, Failure> {
        Err(not_offered("force-release"))
    }

    async fn resize(&self, _: LockName, _: u32) -> Result<(), Failure> {
        Err(not_offered("semaphores"))
    }

    async fn raise_tokens(&self, _: Token) -> Result<Raised, Failure> {
        Err(not_offered("tokens"))
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        self.shared.inspect(lock).await
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        self.shared.list(&prefix).await
    }

    async fn watch(&self, _: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        Err(not_offered("way to watch"))
    }
}
