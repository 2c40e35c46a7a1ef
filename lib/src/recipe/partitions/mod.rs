//! Partitions: members share a number of partitions, and each partition has one owner, with a token of its own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
//! use palisade::recipe::Change;
//!
//! let palisade = palisade::connect("memory:").await?;                     // one client per member
//! let mut member = palisade.partitions("orders", 8).join(8).await?;       // takes at most 8 of the 8
//! # let mut gains = 0;
//! loop {
//!     match member.next().await? {
//!         Change::Gained(ownership) => {
//!             let (partition, token) = (ownership.partition(), ownership.token()?);
//!             println!("start to write partition {partition} with token {token}");
//! #           gains += 1; if gains == 8 { break }
//!         }
//!         Change::Losing { partition, deadline } => {
//!             println!("finish partition {partition} before {deadline}");
//!             member.release(partition).await?;                           // the next owner gets it now
//!         }
//!         Change::Lost { partition, loss } => println!("stop partition {partition}: {loss}"),
//!         _ => {}
//!     }
//! }
//! member.leave().await?;
//! # Ok(()) }
//! ```
//!
//! There is no leader and no plan: each partition is a lock, `orders/partitions/0007`, and so is each membership. A member
//! watches both, computes the same assignment as all others, waits for the locks that are assigned to it, and gives up those
//! that are not. So a partition changes hands only when its lock does, and its fencing tokens rise like those of any lock.

mod assignment;
mod inbox;
#[cfg(test)]
mod model;
mod task;
mod view;

use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::{BadNumber, SessionId};
use tokio::sync::{mpsc, oneshot};

use crate::client::parse_name;
use crate::engine::{Level, LockInfo, Offers};
use crate::guard::{Guard, LockGuard};
use crate::keeper::{Link, Op};
use crate::lock::Lock;
use crate::{BootInstant, Error, ErrorKind, Loss, Misuse, Request, error};

use inbox::{Inbox, Next};
use task::{Leave, Start};
use view::{MAX_PARTITIONS, Names, View};

const JOIN: &str = "join";

/// How long an application has to let go of a partition, unless [`Partitions::grace`] says otherwise.
const GRACE: Duration = Duration::from_secs(10);

/// A number of partitions that members share. See [`Palisade::partitions`](crate::Palisade::partitions).
#[derive(Clone)]
#[must_use = "partitions are shared among members that have joined"]
pub struct Partitions {
    link: Arc<Link>,
    name: String,
    count: u32,
    grace: Duration,
    needed_level: Level,
}

impl Partitions {
    /// The most partitions that a name can have.
    pub const MAX: u32 = MAX_PARTITIONS;

    pub(crate) fn new(link: Arc<Link>, name: String, count: u32) -> Partitions {
        Partitions { link, name, count, grace: GRACE, needed_level: Level::Fenced }
    }

    /// Sets how long the application has, from [`Change::Losing`] on, to let go of a partition that another member is to
    /// own. Then this member releases it anyway. The default is 10 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use std::time::Duration;
    /// let palisade = palisade::connect("memory:").await?;
    /// let member = palisade.partitions("orders", 64).grace(Duration::from_secs(60)).join(64).await?;
    /// # Ok(()) }
    /// ```
    pub fn grace(self, grace: Duration) -> Partitions {
        Partitions { grace, ..self }
    }

    /// Accepts an engine whose tokens rise only while its store keeps its data. See
    /// [`Request::dangerous_accept_failover`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let member = palisade.partitions("orders", 64).dangerous_accept_failover().join(64).await?;
    /// # Ok(()) }
    /// ```
    pub fn dangerous_accept_failover(self) -> Partitions {
        Partitions { needed_level: self.needed_level.min(Level::HealthyOnly), ..self }
    }

    /// Returns the partition of a key: the CRC-32 (of zlib, PNG and Ethernet) of its bytes, modulo the number of partitions. All members,
    /// in whatever language, must compute the same.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let orders = palisade.partitions("orders", 64);
    /// assert_eq!(orders.partition_of("customer/7"), 10); // zlib.crc32(b"customer/7") % 64
    /// # Ok(()) }
    /// ```
    pub fn partition_of(&self, key: impl AsRef<[u8]>) -> u32 {
        crc32fast::hash(key.as_ref()).checked_rem(self.count).unwrap_or_default()
    }

    /// Becomes a member that owns at most `capacity` partitions. If the capacities of all members together do not suffice,
    /// some partitions have no owner ([`Member::without_room`]).
    ///
    /// A client can be a member of a name once: connect a client for each member.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let member = palisade.partitions("orders", 64).join(16).await?;
    /// assert!(palisade.partitions("orders", 64).join(16).await.is_err(), "this client is a member");
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves no membership behind.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: an invalid name; 0 or more than [`MAX`](Partitions::MAX) partitions; a capacity of 0; members with another
    /// number of partitions; a client that is a member already. An engine that cannot fence, list or watch locks, or does
    /// not answer.
    pub async fn join(self, capacity: u32) -> Result<Member, Error> {
        self.check(capacity)?;
        let Partitions { link, name, count, grace, needed_level } = self;
        let seat = Seat::take(&link, &name)?;
        let names = Names::new(&name, count);
        let group = Group { link, name, names, count, capacity: capacity.min(count), grace, needed_level };
        // Events that come before the list are in the list too. The view recognises them by their tokens.
        let watch = group.link.call(|reply| Op::Watch(group.names.prefix.clone(), reply)).await?;
        let (membership, locks) = group.become_member().await?;
        let mut view = View::new(group.names.clone());
        view.reset(&locks);
        let (leave, requests) = mpsc::unbounded_channel();
        let (ending, ended) = std_mpsc::channel();
        let (inbox, link) = (Arc::new(Inbox::default()), group.link.clone());
        let name = group.name.clone();
        let start = Start { group, inbox: inbox.clone(), view, watch, membership, leave: requests, seat };
        link.send(Op::Spawn(Box::new(move || {
            Box::pin(async move {
                task::run(start).await;
                drop(ending);
            })
        })));
        Ok(Member { link, name, inbox, leave: Some(leave), ended: Mutex::new(ended) })
    }

    fn check(&self, capacity: u32) -> Result<(), Error> {
        let fail = |kind| Error::new(kind, self.link.guarantees.engine, JOIN).on(&self.name);
        let number = |bad| Err(fail(ErrorKind::Misuse(Misuse::Number(bad))));
        parse_name(&self.link, &self.name, JOIN)?;
        let what = "the number of partitions";
        if self.count == 0 {
            return number(BadNumber::Zero { what });
        }
        if self.count > MAX_PARTITIONS {
            return number(BadNumber::TooLarge { what, value: self.count.into(), max: MAX_PARTITIONS.into() });
        }
        if capacity == 0 {
            return number(BadNumber::Zero { what: "a member's capacity" });
        }
        if self.link.is_observer {
            return Err(fail(ErrorKind::Misuse(Misuse::Observer)));
        }
        let Offers { list, watch, .. } = self.link.guarantees.offers;
        if !list || !watch {
            return Err(fail(error::not_offered(if list { "way to watch" } else { "list of locks" })));
        }
        let level = self.link.guarantees.level;
        if level < self.needed_level {
            // Each ownership is identified by its token, so there are no partitions for efficiency only.
            return Err(fail(error::not_fenced(level, true)));
        }
        Ok(())
    }
}

/// The group that a member belongs to, and how it belongs to it.
#[derive(Clone)]
struct Group {
    link: Arc<Link>,
    name: String,
    names: Names,
    count: u32,
    capacity: u32,
    grace: Duration,
    needed_level: Level,
}

impl Group {
    /// Acquires the lock of a new member, and returns it with the locks of all members. Its name is unique, so that it is never queued
    /// behind one that has not ended yet.
    async fn become_member(&self) -> Result<(LockGuard, Vec<LockInfo>), Error> {
        let nonce = RandomState::new().hash_one(0);
        let membership = self.lock(self.names.member(self.capacity, nonce)).acquire().await?;
        // Listed afterwards, so that of two members with different numbers at least one finds the other.
        let locks = self.link.call(|reply| Op::List(self.names.prefix.clone(), reply)).await?;
        if let Some(theirs) = View::other_count(&self.names, &locks) {
            membership.release().await?;
            return Err(self.error(ErrorKind::Misuse(Misuse::PartitionCount { ours: self.count, theirs })));
        }
        Ok((membership, locks))
    }

    fn partition(&self, partition: u32) -> Lock {
        self.lock(self.names.partition(partition))
    }

    fn lock(&self, name: String) -> Lock {
        let lock = Request::new_lock(self.link.clone(), name);
        if self.needed_level < Level::Fenced { lock.dangerous_accept_failover() } else { lock }
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind, self.link.guarantees.engine, JOIN).on(&self.name)
    }
}

/// The one membership that a client can have in a group.
struct Seat {
    link: Arc<Link>,
    name: String,
}

impl Seat {
    fn take(link: &Arc<Link>, name: &str) -> Result<Seat, Error> {
        if link.joined().insert(name.to_owned()) {
            return Ok(Seat { link: link.clone(), name: name.to_owned() });
        }
        Err(Error::new(ErrorKind::Misuse(Misuse::AlreadyMember), link.guarantees.engine, JOIN).on(name))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.link.joined().remove(&self.name);
    }
}

/// A change of what a member owns.
///
/// For each partition, a `Gained` is followed by at most one `Losing`, and then by a `Lost`, unless the application has
/// released the partition itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Change {
    /// The member owns this partition from now on.
    Gained(Ownership),
    /// The partition is to be given up, because another member is to own it, or because the session is in
    /// [jeopardy](crate::Standing::Jeopardy). Finish the work on it, and call [`Member::release`].
    Losing {
        /// The partition.
        partition: u32,
        /// When it is released at the latest. If the session ends, it is lost earlier.
        deadline: BootInstant,
    },
    /// The member does not own the partition any more. Its token was refused by [`Guard::token`] before this is reported.
    Lost {
        /// The partition.
        partition: u32,
        /// The reason. [`Loss::Released`] if the deadline passed.
        loss: Loss,
    },
}

/// A partition that a member owns. It is the [`Guard`] of the partition's lock: [`token`](Guard::token) fails once it is lost.
///
/// Cheap to clone. Dropping it does not release the partition: the member holds it until [`Member::release`].
#[derive(Debug, Clone)]
pub struct Ownership {
    partition: u32,
    guard: Arc<LockGuard>,
}

impl Ownership {
    fn new(partition: u32, guard: LockGuard) -> Ownership {
        Ownership { partition, guard: Arc::new(guard) }
    }

    /// Returns the number of the partition, from 0.
    pub fn partition(&self) -> u32 {
        self.partition
    }
}

impl Deref for Ownership {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// A member of the group that shares partitions.
///
/// A task on the keeper's thread follows the group, also while the application does not call [`next`](Member::next). If
/// the member's session is lost, the task reports every partition as lost and joins again.
///
/// Dropping it leaves the group and releases its partitions, in the background.
pub struct Member {
    link: Arc<Link>,
    name: String,
    inbox: Arc<Inbox>,
    /// Dropping it ends the task.
    leave: Option<mpsc::UnboundedSender<Leave>>,
    /// Closed when the task has ended; never receives anything.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

impl Member {
    /// Waits for the next change. Several changes of a partition between two calls may be reported as one: a partition
    /// that was gained and lost again is not reported.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::recipe::Change;
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 1).join(1).await?;
    /// assert!(matches!(member.next().await?, Change::Gained(ownership) if ownership.partition() == 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// No change is lost; call it again.
    ///
    /// # On connection loss
    ///
    /// The partitions are reported as losing, and then as lost. The member joins again as soon as the engine answers.
    ///
    /// # Errors
    ///
    /// The member has ended: the client was closed, the store has lost its data, or the engine refuses the member.
    pub async fn next(&mut self) -> Result<Change, Error> {
        match self.inbox.next().await {
            Next::Change(change) => Ok(change),
            Next::Ended(Some(error)) => Err(error),
            Next::Ended(None) => Err(self.ended_error()),
        }
    }

    /// Returns the partitions that this member owns now, those included that it is about to lose.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 1).join(1).await?;
    /// member.next().await?;
    /// assert_eq!(member.owned().len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn owned(&self) -> Vec<Ownership> {
        self.inbox.owned()
    }

    /// Returns a partition that this member owns; `None` if it does not.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 1).join(1).await?;
    /// member.next().await?;
    /// let token = member.get(0).expect("it was gained").token()?;
    /// # Ok(()) }
    /// ```
    pub fn get(&self, partition: u32) -> Option<Ownership> {
        self.inbox.get(partition)
    }

    /// Returns how many members there are, this one included, as far as this member knows; 0 before it has looked.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 1).join(1).await?;
    /// member.next().await?;
    /// assert_eq!(member.members(), 1);
    /// # Ok(()) }
    /// ```
    pub fn members(&self) -> u32 {
        self.inbox.status().members
    }

    /// Returns how many partitions have no owner because all members are at their capacity.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 8).join(5).await?;
    /// member.next().await?;
    /// assert_eq!(member.without_room(), 3);
    /// # Ok(()) }
    /// ```
    pub fn without_room(&self) -> u32 {
        self.inbox.status().without_room
    }

    /// Returns the session that owns this member's partitions; `None` before it has looked. It changes when the member has
    /// joined again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 1).join(1).await?;
    /// member.next().await?;
    /// assert_eq!(member.session(), member.get(0).map(|ownership| ownership.session()));
    /// # Ok(()) }
    /// ```
    pub fn session(&self) -> Option<SessionId> {
        self.inbox.status().session
    }

    /// Lets go of a partition, so that its next owner gets it. Nothing happens if this member does not own it. A partition
    /// that is still assigned to this member comes back, with a new token.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::recipe::Change;
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut member = palisade.partitions("orders", 1).join(1).await?;
    /// let Change::Gained(before) = member.next().await? else { panic!("it only gains") };
    /// let token = before.token()?;
    /// member.release(0).await?;
    /// let Change::Gained(after) = member.next().await? else { panic!("it only gains") };
    /// assert!(after.token()? > token);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// The partition is released nevertheless.
    ///
    /// # On connection loss
    ///
    /// As [`Guard::release`].
    ///
    /// # Errors
    ///
    /// As [`Guard::release`]: it had been lost before, or the engine does not answer.
    pub async fn release(&self, partition: u32) -> Result<(), Error> {
        match self.get(partition) {
            Some(ownership) => {
                let released = ownership.release().await;
                // The task would note it later. The application expects it now.
                self.inbox.forget(&ownership);
                released
            }
            None => Ok(()),
        }
    }

    /// Leaves the group and releases its partitions. Finish the work on them first.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let member = palisade.partitions("orders", 64).join(64).await?;
    /// member.leave().await?;
    /// let again = palisade.partitions("orders", 64).join(64).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// The member leaves nevertheless.
    ///
    /// # Errors
    ///
    /// The member has ended before, a partition had been lost, or the engine does not answer. The keeper retries the releases
    /// in the background.
    pub async fn leave(mut self) -> Result<(), Error> {
        let (reply, left) = oneshot::channel();
        if let Some(leave) = self.leave.take() {
            // A task that has ended drops the reply.
            drop(leave.send(reply));
        }
        left.await.unwrap_or_else(|_| Err(self.ended_error()))
    }

    fn ended_error(&self) -> Error {
        let engine = self.link.guarantees.engine;
        Error::new(ErrorKind::Lost(Loss::SessionClosed), engine, "stay a member of").on(&self.name)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.leave.take());
        // The session can be closed, and the process can end, only after the task has let go of the client.
        self.link.wait_for_task(self.ended.get_mut().unwrap_or_else(PoisonError::into_inner));
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owned: Vec<_> = self.owned().iter().map(Ownership::partition).collect();
        f.debug_struct("Member").field("name", &self.name).field("owned", &owned).finish_non_exhaustive()
    }
}
