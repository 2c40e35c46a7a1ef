//! The task of a member, on the keeper's thread. It follows the group, waits for the partitions that are assigned to this
//! member, and gives up those that are not.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, Aborted, LocalBoxFuture, abortable, join_all};
use futures_util::stream::FuturesUnordered;
use palisade_core::{SessionId, Token};
use tokio::sync::{mpsc, oneshot};

use super::inbox::{Inbox, Status};
use super::view::{Target, View};
use super::{Group, Ownership, Seat};
use crate::engine::{LockInfo, Watched};
use crate::keeper::Op;
use crate::time::{Instant, sleep, sleep_until};
use crate::{BootInstant, Error, ErrorKind, LockGuard, Loss, Standing, Watch};

/// How long a member waits for more changes before it acts: several members often start or end at once.
const SETTLE: Duration = Duration::from_millis(50);

/// How long a member puts off acting at most, while changes go on to come.
const LONGEST_SETTLE: Duration = Duration::from_millis(500);

/// The pause before a request is repeated that failed because the engine did not answer.
const RETRY: Duration = Duration::from_millis(500);

/// A request of the application to leave the group.
pub(super) type Leave = oneshot::Sender<Result<(), Error>>;

/// Everything that a member's task starts with.
pub(super) struct Start {
    pub(super) group: Group,
    pub(super) inbox: Arc<Inbox>,
    pub(super) view: View,
    pub(super) watch: Watch,
    pub(super) membership: LockGuard,
    pub(super) leave: mpsc::UnboundedReceiver<Leave>,
    pub(super) seat: Seat,
}

struct Task {
    group: Group,
    inbox: Arc<Inbox>,
    view: View,
    watch: Watch,
    membership: LockGuard,
    leave: mpsc::UnboundedReceiver<Leave>,
    owned: BTreeMap<u32, Owned>,
    /// The partitions that this member waits for.
    waits: BTreeMap<u32, AbortHandle>,
    acquires: FuturesUnordered<LocalBoxFuture<'static, (u32, AcquireEnd)>>,
    losses: FuturesUnordered<LocalBoxFuture<'static, (u32, Token, Loss)>>,
    /// A list of the group's locks, after events were missed.
    listing: Option<LocalBoxFuture<'static, Result<Vec<LockInfo>, Error>>>,
    /// When the member acts on its view again.
    act_at: Option<Instant>,
    /// When the first change came that the member has not acted on.
    changed_at: Option<Instant>,
    /// The earliest deadline of an owned partition.
    deadline: Option<(BootInstant, LocalBoxFuture<'static, ()>)>,
    /// The end of the lease when jeopardy began; `None` outside it.
    jeopardy: Option<BootInstant>,
}

/// The end of a wait.
type AcquireEnd = Result<Result<LockGuard, Error>, Aborted>;

struct Owned {
    ownership: Ownership,
    /// When it is released at the latest; `None` while it is this member's.
    deadline: Option<BootInstant>,
}

/// What happened next.
enum Step {
    Leave(Option<Leave>),
    /// The member's session is in jeopardy, or its membership is lost.
    Standing(Standing),
    Renewed,
    Lost(u32, Token, Loss),
    Acquired(u32, AcquireEnd),
    Listed(Result<Vec<LockInfo>, Error>),
    DeadlinePassed,
    Act,
    Watched(Option<Watched>),
}

/// Why a member has ended.
enum End {
    Left(Option<Leave>),
    Failed(Error),
}

/// Ends the stream of changes whenever the task ends, also if its keeper ends first.
struct EndsInbox(Arc<Inbox>);

impl Drop for EndsInbox {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

/// Runs a member until it leaves or fails.
pub(super) async fn run(start: Start) {
    let Start { group, inbox, view, watch, membership, leave, seat } = start;
    let _ends_inbox = EndsInbox(inbox.clone());
    let mut task = Task {
        group,
        inbox,
        view,
        watch,
        membership,
        leave,
        owned: BTreeMap::new(),
        waits: BTreeMap::new(),
        acquires: FuturesUnordered::new(),
        losses: FuturesUnordered::new(),
        listing: None,
        act_at: None,
        changed_at: None,
        deadline: None,
        jeopardy: None,
    };
    task.act_soon();
    let end = loop {
        let step = task.next_step().await;
        if let Err(end) = task.perform(step).await {
            break end;
        }
    };
    task.stop_waiting();
    match end {
        End::Left(Some(reply)) => {
            let left = task.release_all().await;
            // The client may join again as soon as it has the reply.
            drop(seat);
            drop(reply.send(left));
        }
        End::Left(None) => task.release_all_in_background(),
        End::Failed(error) => {
            task.release_all_in_background();
            task.inbox.end(Some(error));
        }
    }
}

impl Task {
    async fn next_step(&mut self) -> Step {
        let Task { membership, jeopardy, act_at, leave, losses, acquires, deadline, listing, watch, .. } = self;
        let standing = async {
            match *jeopardy {
                None => Step::Standing(membership.jeopardy().await),
                Some(seen) => tokio::select! {
                    biased;
                    loss = membership.lost() => Step::Standing(Standing::Lost(loss)),
                    _ = membership.renewed(seen) => Step::Renewed,
                },
            }
        };
        let act = async {
            match *act_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let is_listing = listing.is_some();
        tokio::select! {
            biased;
            leave = leave.recv() => Step::Leave(leave),
            step = standing => step,
            Some((partition, token, loss)) = losses.next() => Step::Lost(partition, token, loss),
            Some((partition, end)) = acquires.next() => Step::Acquired(partition, end),
            () = optional(deadline.as_mut().map(|(_, reached)| reached)) => Step::DeadlinePassed,
            listed = optional(listing.as_mut()) => Step::Listed(listed),
            () = act => Step::Act,
            // Events wait for the list, which could be older than they are.
            watched = watch.next(), if !is_listing => Step::Watched(watched),
        }
    }

    async fn perform(&mut self, step: Step) -> Result<(), End> {
        match step {
            Step::Leave(leave) => return Err(End::Left(leave)),
            Step::Standing(Standing::Held) => {}
            Step::Standing(Standing::Jeopardy { safe_until }) => {
                self.jeopardy = Some(safe_until);
                self.give_up(safe_until, |_| true);
            }
            Step::Standing(Standing::Lost(loss)) => self.join_again(loss).await?,
            Step::Renewed => self.jeopardy = None,
            Step::Lost(partition, token, loss) => self.note_loss(partition, token, loss),
            Step::Acquired(partition, Ok(acquired)) => self.note_acquired(partition, acquired)?,
            // The wait was dropped.
            Step::Acquired(_, Err(Aborted)) => {}
            Step::Listed(listed) => self.note_list(listed)?,
            Step::DeadlinePassed => self.release_overdue(),
            Step::Act => self.act(),
            Step::Watched(Some(Watched::Event(event))) => {
                if self.view.apply(&event) {
                    self.act_soon();
                }
            }
            Step::Watched(Some(Watched::Missed)) => self.list_after(Duration::ZERO),
            // The client is closed, and the membership will be lost.
            Step::Watched(None) => return Err(End::Failed(self.lost_error(Loss::SessionClosed))),
        }
        Ok(())
    }

    /// Acts when no more changes have come for a while.
    fn act_soon(&mut self) {
        let now = Instant::now();
        let latest = *self.changed_at.get_or_insert(now) + LONGEST_SETTLE;
        self.act_at = Some(latest.min(now + SETTLE));
    }

    fn act_after(&mut self, time: Duration) {
        let at = Instant::now() + time;
        self.act_at = Some(self.act_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn list_after(&mut self, time: Duration) {
        let (link, prefix) = (self.group.link.clone(), self.group.names.prefix.clone());
        self.listing = Some(Box::pin(async move {
            sleep(time).await;
            link.call(|reply| Op::List(prefix, reply)).await
        }));
    }

    fn note_list(&mut self, listed: Result<Vec<LockInfo>, Error>) -> Result<(), End> {
        self.listing = None;
        match listed {
            Ok(locks) => {
                self.view.reset(&locks);
                self.act_soon();
            }
            Err(error) if error.is_retryable() => self.list_after(RETRY),
            Err(error) => return Err(End::Failed(error)),
        }
        Ok(())
    }

    /// Acts on the view: waits for what is assigned to this member, and gives up what is not.
    fn act(&mut self) {
        (self.act_at, self.changed_at) = (None, None);
        let me = self.membership.session();
        let (is_owned, is_waited_for) = (|p| self.owned.contains_key(&p), |p| self.waits.contains_key(&p));
        let target = self.view.target((me, self.group.capacity), is_owned, is_waited_for);
        self.note_status(me, &target);
        let is_mine = |partition: u32| target.owners[partition as usize] == Some(me);
        self.waits.retain(|partition, wait| {
            let keep = is_mine(*partition);
            if !keep {
                wait.abort();
            }
            keep
        });
        self.give_up(BootInstant::now() + self.group.grace, |partition| !is_mine(partition));
        for partition in (0..self.group.count).filter(|partition| is_mine(*partition)) {
            if !self.owned.contains_key(&partition) && !self.waits.contains_key(&partition) {
                self.wait_for(partition);
            }
        }
    }

    fn note_status(&self, me: SessionId, target: &Target) {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let without_room = count(target.owners.iter().filter(|owner| owner.is_none()).count());
        self.inbox.set_status(Status { session: Some(me), members: count(target.members), without_room });
    }

    fn wait_for(&mut self, partition: u32) {
        let (acquire, abort) = abortable(self.group.partition(partition).acquire());
        self.waits.insert(partition, abort);
        self.acquires.push(Box::pin(finish(partition, acquire)));
    }

    fn note_acquired(&mut self, partition: u32, acquired: Result<LockGuard, Error>) -> Result<(), End> {
        self.waits.remove(&partition);
        match acquired {
            // The session was replaced before this member has noticed: it has to join again first.
            Ok(guard) if guard.session() != self.membership.session() => self.act_soon(),
            Ok(guard) => {
                let ownership = Ownership::new(partition, guard);
                let (guard, token) = (ownership.clone(), ownership.granted_token());
                self.losses.push(Box::pin(async move { (partition, token, guard.lost().await) }));
                self.owned.insert(partition, Owned { ownership: ownership.clone(), deadline: None });
                self.inbox.gained(ownership);
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(partition, %error, "waiting for a partition failed and is repeated");
                self.act_after(RETRY);
            }
            Err(error) => return Err(End::Failed(error)),
        }
        Ok(())
    }

    fn note_loss(&mut self, partition: u32, token: Token, loss: Loss) {
        // The member may own it again already.
        if self.owned.get(&partition).is_none_or(|owned| owned.ownership.granted_token() != token) {
            return;
        }
        if let Some(owned) = self.owned.remove(&partition) {
            match loss {
                // By the application: this task removes what it releases itself.
                Loss::Released => drop(self.inbox.forget(&owned.ownership)),
                loss => self.inbox.lost(&owned.ownership, loss),
            }
        }
        self.set_deadline();
        self.act_soon();
    }

    /// Asks the application to let go of some of the partitions that it owns. They are released at the deadline in any case.
    fn give_up(&mut self, deadline: BootInstant, is_given_up: impl Fn(u32) -> bool) {
        for (partition, owned) in &mut self.owned {
            if owned.deadline.is_none() && is_given_up(*partition) {
                owned.deadline = Some(deadline);
                self.inbox.losing(*partition, deadline);
            }
        }
        self.set_deadline();
    }

    fn set_deadline(&mut self) {
        let earliest = self.owned.values().filter_map(|owned| owned.deadline).min();
        if earliest != self.deadline.as_ref().map(|(at, _)| *at) {
            self.deadline = earliest.map(|at| (at, Box::pin(at.reached()) as LocalBoxFuture<'static, ()>));
        }
    }

    fn release_overdue(&mut self) {
        self.owned.retain(|_, owned| {
            let is_overdue = owned.deadline.is_some_and(BootInstant::has_passed);
            if is_overdue {
                owned.ownership.release_in_background();
                self.inbox.lost(&owned.ownership, Loss::Released);
            }
            !is_overdue
        });
        self.deadline = None;
        self.set_deadline();
        self.act_soon();
    }

    /// Becomes a member again, with nothing, after the membership was lost.
    async fn join_again(&mut self, loss: Loss) -> Result<(), End> {
        self.stop_waiting();
        self.jeopardy = None;
        self.deadline = None;
        for owned in std::mem::take(&mut self.owned).into_values() {
            // If only the membership was taken away, the partitions are still held.
            owned.ownership.release_in_background();
            self.inbox.lost(&owned.ownership, loss.clone());
        }
        let mut error = self.lost_error(loss);
        loop {
            if !error.is_retryable() {
                return Err(End::Failed(error));
            }
            tracing::warn!(%error, "the member joins again");
            tokio::select! {
                biased;
                leave = self.leave.recv() => return Err(End::Left(leave)),
                joined = self.group.become_member() => match joined {
                    Ok((membership, locks)) => {
                        self.membership = membership;
                        self.view.reset(&locks);
                        self.listing = None;
                        self.act_soon();
                        return Ok(());
                    }
                    Err(failed) => error = failed,
                },
            }
            tokio::select! {
                biased;
                leave = self.leave.recv() => return Err(End::Left(leave)),
                () = sleep(RETRY) => {}
            }
        }
    }

    fn lost_error(&self, loss: Loss) -> Error {
        let engine = self.group.link.guarantees.engine;
        Error::new(ErrorKind::Lost(loss), engine, "stay a member of").on(&self.group.name)
    }

    fn stop_waiting(&mut self) {
        self.waits.clear();
        // Dropping a wait leaves nothing queued and nothing held.
        self.acquires.clear();
    }

    /// Releases the membership first: otherwise the others would assign the freed partitions to this member again.
    async fn release_all(&mut self) -> Result<(), Error> {
        let left = self.membership.release().await;
        let owned = std::mem::take(&mut self.owned);
        let released = join_all(owned.values().map(|owned| owned.ownership.release())).await;
        for owned in owned.values() {
            self.inbox.forget(&owned.ownership);
        }
        released.into_iter().fold(left, Result::and)
    }

    fn release_all_in_background(&mut self) {
        self.membership.release_in_background();
        for owned in std::mem::take(&mut self.owned).into_values() {
            owned.ownership.release_in_background();
            self.inbox.lost(&owned.ownership, Loss::Released);
        }
    }
}

async fn finish(
    partition: u32,
    acquire: Abortable<impl Future<Output = Result<LockGuard, Error>>>,
) -> (u32, AcquireEnd) {
    (partition, acquire.await)
}

/// Waits for a future. Never returns without one.
async fn optional<T>(future: Option<&mut LocalBoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
