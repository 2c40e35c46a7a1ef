//! Something is to be held by somebody who waits for it, and who may go away meanwhile.

use std::time::Duration;

use palisade_core::{
    Acquire, Answer, Caller, Command, Departure, Label, Patience, Reentry, Refusal, SessionId, Ticket, Token, Ttl,
    Waiting,
};
use tokio::sync::oneshot;

use super::Service;
use super::audit::Origin;
use super::state::Waited;
use super::waiters::Places;
use super::who::{Refused, Who};
use crate::access::User;
use crate::resp::Holding;
use crate::storage::disk::Disk;

/// What was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) token: Token,
    pub(crate) session: SessionId,
    pub(crate) ttl_ms: u64,
}

/// One who wants to hold something.
pub(super) struct Suitor<'a, D: Disk> {
    pub(super) service: &'a Service<D>,
    pub(super) origin: &'a Origin,
    pub(super) holding: &'a Holding,
}

impl<D: Disk> Service<D> {
    /// Places in queues for a request that waits, until it is answered; `None` for one that does not wait.
    pub(super) fn may_wait(&self, who: &Who, holding: &Holding) -> Result<Option<Places>, Refused> {
        let most = self.bounds.wait_ms();
        if let Some(wait_ms) = holding.wait_ms.filter(|wait_ms| *wait_ms > most) {
            let why = format!("wait_ms is {wait_ms}, and at most {most}; nothing is held or queued");
            return Err(Refused::OverBound(why));
        }
        if !holding.waits() {
            return Ok(None);
        }
        let mut state = self.state.borrow_mut();
        // A repeat has its places already.
        if let (Ok(session), Some(number)) = (holding.by, holding.number)
            && state.replica.machine().has_request(session, number)
        {
            return Ok(None);
        }
        state.waiters.ask(who.user().map(User::name), holding.wants.len()).map(Some)
    }
}

impl<D: Disk> Suitor<'_, D> {
    /// Waits as long as it is told to, or until `gone`. `None` when it was not to be had. `answered` is called when it
    /// is known whether there is a session for it, where one has to be made. `places` are those that it may take in
    /// queues.
    pub(super) async fn acquire(
        &self,
        label: Label,
        places: Option<Places>,
        answered: impl FnOnce(),
        gone: impl Future<Output = ()>,
    ) -> Result<Option<Grant>, Refusal> {
        let ttl = match self.holding.by {
            Ok(session) => return self.wait(session, places, gone).await,
            Err(ttl) => ttl,
        };
        let opened = self.ask(Command::OpenSession { ttl, label }).await;
        answered();
        let session = match opened? {
            Answer::Opened { session } => session,
            other => unreachable!("an open is not answered with {other:?}"),
        };
        let outcome = self.wait(session, places, gone).await;
        if let Ok(Some(_)) = outcome {
            // It is held for its TTL from now on, however long it has waited.
            let _ = self.service.state.borrow_mut().keep_alive(session);
        } else {
            drop(self.ask(Command::CloseSession { session }).await);
        }
        outcome
    }

    /// Gives back what was granted to one who has gone. A numbered request is left to its session, whose client can
    /// ask again under the same number and is told the same token.
    pub(super) async fn give_back(&self, grant: Grant) {
        let (session, token) = (grant.session, grant.token);
        let undo = match self.holding {
            Holding { by: Err(_), .. } => Command::CloseSession { session },
            Holding { number: Some(_), .. } => return,
            Holding { wants, .. } => match wants.first() {
                Some(want) => Command::Release { caller: None, lock: want.lock.clone(), token },
                None => return,
            },
        };
        drop(self.ask(undo).await);
    }

    async fn ask(&self, command: Command) -> Result<Answer, Refusal> {
        self.service.ask_from(self.origin.clone(), command, None).await
    }

    async fn wait(
        &self,
        session: SessionId,
        places: Option<Places>,
        gone: impl Future<Output = ()>,
    ) -> Result<Option<Grant>, Refusal> {
        let wait = self.holding.wait_ms.filter(|ms| *ms > 0);
        let (sender, mut granted) = oneshot::channel();
        let command = command(self.holding, session, wait.is_some());
        let asked = self.service.ask_from(self.origin.clone(), command, Some(sender)).await;
        // From now on they are counted as queued, if they are.
        drop(places);
        let ticket = match asked? {
            Answer::Granted { token } => return Ok(Some(self.grant(session, token))),
            Answer::Queued { ticket } => ticket,
            _ => return Ok(None),
        };
        let ended = tokio::select! {
            biased;
            ended = &mut granted => ended.ok(),
            () = tokio::time::sleep(Duration::from_millis(wait.unwrap_or(0))) => self.give_up(session, ticket, granted).await?,
            () = gone => self.give_up(session, ticket, granted).await?,
            () = self.keep_alive(session) => None,
        };
        match ended {
            Some(Ok(token)) => Ok(Some(self.grant(session, token))),
            Some(Err(Departure::Refused(refusal))) => Err(refusal),
            Some(Err(Departure::SessionEnded(_))) => Err(Refusal::NoSuchSession { session }),
            // Without a word: a repeat of this request has taken its place, and the wait is that one's to end.
            Some(Err(Departure::Cancelled)) | None => Ok(None),
        }
    }

    fn grant(&self, session: SessionId, token: Token) -> Grant {
        let state = self.service.state.borrow();
        let ttl_ms = state.replica.machine().session(session).map_or(0, |session| session.ttl().as_ms());
        Grant { token, session, ttl_ms }
    }

    /// Leaves the queue. One who was granted before that has been told so.
    async fn give_up(
        &self,
        session: SessionId,
        ticket: Ticket,
        mut granted: oneshot::Receiver<Waited>,
    ) -> Result<Option<Waited>, Refusal> {
        let cancel = Command::Cancel { caller: session.into(), waiting: Waiting::Ticket(ticket) };
        match self.ask(cancel).await {
            Err(Refusal::AlreadyGranted { token }) => Ok(Some(Ok(token))),
            Ok(_) | Err(Refusal::NotWaiting) => Ok(granted.try_recv().ok()),
            Err(refusal) => Err(refusal),
        }
    }

    /// A session that was made for a wait lives as long as the wait.
    async fn keep_alive(&self, session: SessionId) {
        let Some(ttl) = self.holding.by.err().map(Ttl::as_ms) else { return std::future::pending().await };
        loop {
            tokio::time::sleep(Duration::from_millis(ttl) / 3).await;
            let _ = self.service.state.borrow_mut().keep_alive(session);
        }
    }
}

/// What a wish comes to in the rules. One who would wait for what its own session holds is refused where nothing else
/// can be said on its line meanwhile; where there can, the session may stand for many tasks.
pub(super) fn command(holding: &Holding, session: SessionId, waits: bool) -> Command {
    Command::Acquire(Acquire {
        caller: Caller { session, number: holding.number },
        wants: holding.wants.clone(),
        patience: if waits { Patience::Wait } else { Patience::Try },
        reentry: if waits && !holding.is_async { Reentry::Refuse } else { Reentry::Queue },
        delay: holding.delay,
        value: holding.value.clone(),
    })
}
