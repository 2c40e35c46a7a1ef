//! The way to the service from another thread. What is asked for is done on the service's own thread; who goes away
//! while it waits leaves nothing behind.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use palisade_core::{Answer, Command, LockName, SessionId, Ttl};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

use super::audit::Protocol;
use super::meaning::Meaning;
use super::state::Reader;
use super::tally::Tally;
use super::unread::{Account, Charge, Unread};
use super::wait::{Grant, Suitor};
use super::who::{Asker, Refused, Who};
use super::{Service, permission};
use crate::access::User;
use crate::resp::{Holding, Reply, Request};
use crate::storage::disk::Disk;

/// Nobody answers: the service has ended, or does not lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unavailable;

/// How things stand.
pub(crate) struct Measures {
    pub(crate) tally: Tally,
    pub(crate) sessions: u32,
    pub(crate) locks: u32,
    pub(crate) last_token: u64,
    pub(crate) watchers: usize,
    pub(crate) leads: bool,
    /// Since when a write has been on its way to the disk.
    pub(crate) write_under_way: Option<Duration>,
}

type Acquired = Result<Option<Grant>, Refused>;
/// Sessions that were kept alive, and those that live no longer. Nothing, where that is not known.
type Kept = Option<Vec<Option<Ttl>>>;

/// What is to be done on the service's thread.
enum Errand {
    Ask(Asker, Request, oneshot::Sender<Result<Answer, Refused>>),
    Acquire(Asker, Holding, oneshot::Sender<Handed>),
    KeepAlive(Asker, Vec<SessionId>, oneshot::Sender<Result<Kept, Refused>>),
    Look(Asker, Request, oneshot::Sender<Result<Reply, Refused>>),
    Watch(Asker, String, Teller, oneshot::Sender<Result<(), Refused>>),
    Measure(oneshot::Sender<Measures>),
}

/// The outcome of an acquire on its way. Only once `taken` was used is it certain that it has arrived.
struct Handed {
    outcome: Acquired,
    taken: oneshot::Sender<()>,
}

/// What waits for the service's thread.
pub(super) struct Errands(mpsc::UnboundedReceiver<Errand>);

/// The way to the service, for any thread.
#[derive(Clone)]
pub(crate) struct Far {
    // As many errands can be under way as requests: those are bounded where they come in.
    errands: mpsc::UnboundedSender<Errand>,
    unread: Arc<Unread>,
}

impl Far {
    pub(super) fn new(unread: Arc<Unread>) -> (Far, Errands) {
        let (errands, received) = mpsc::unbounded_channel();
        (Far { errands, unread }, Errands(received))
    }

    async fn send<T>(&self, errand: impl FnOnce(oneshot::Sender<T>) -> Errand) -> Result<T, Unavailable> {
        let (sender, answer) = oneshot::channel();
        self.errands.send(errand(sender)).map_err(|_| Unavailable)?;
        answer.await.map_err(|_| Unavailable)
    }

    /// Has something carried out that changes something at once.
    pub(crate) async fn ask(&self, asker: Asker, request: Request) -> Result<Result<Answer, Refused>, Unavailable> {
        self.send(|answer| Errand::Ask(asker, request, answer)).await
    }

    /// Has something acquired, waiting as long as it says.
    ///
    /// # Cancellation
    ///
    /// Dropped before it is ready, it leaves the queue, and a grant that is under way is given back. Only a numbered
    /// request that was granted stays: its repeat is told the same token.
    pub(crate) async fn acquire(&self, asker: Asker, holding: Holding) -> Result<Acquired, Unavailable> {
        let Handed { outcome, taken } = self.send(|answer| Errand::Acquire(asker, holding, answer)).await?;
        // Who handed it over may have ended since.
        let _ = taken.send(());
        Ok(outcome)
    }

    /// Keeps sessions alive; `None` for one that lives no longer.
    pub(crate) async fn keep_alive(
        &self,
        asker: Asker,
        sessions: Vec<SessionId>,
    ) -> Result<Result<Vec<Option<Ttl>>, Refused>, Unavailable> {
        match self.send(|answer| Errand::KeepAlive(asker, sessions, answer)).await? {
            Ok(kept) => Ok(Ok(kept.ok_or(Unavailable)?)),
            Err(refused) => Ok(Err(refused)),
        }
    }

    /// Looks at the state as it is now, and not as it was.
    pub(crate) async fn look(&self, asker: Asker, request: Request) -> Result<Result<Reply, Refused>, Unavailable> {
        self.send(|answer| Errand::Look(asker, request, answer)).await
    }

    /// The events of all locks whose names begin like this, as far as they may be seen, from now on. So many of them
    /// may wait to be read.
    pub(crate) async fn watch(
        &self,
        asker: Asker,
        prefix: String,
        backlog: usize,
    ) -> Result<Result<Watch, Refused>, Unavailable> {
        let account = self.unread.account(asker.who.user().map(User::name));
        let (teller, watch) = hearing(backlog, asker.who.clone(), account);
        let begun = self.send(|answer| Errand::Watch(asker, prefix, teller, answer)).await?;
        Ok(begun.map(|()| watch))
    }

    /// Whether somebody may be shown how things stand.
    pub(crate) fn may_measure(asker: &Asker) -> Result<(), Refused> {
        permission::measure(&asker.who, &asker.audit)
    }

    /// How things stand.
    pub(crate) async fn measure(&self) -> Result<Measures, Unavailable> {
        self.send(Errand::Measure).await
    }
}

/// The near end of a watch.
pub(super) struct Teller {
    who: Who,
    events: mpsc::Sender<Option<Unseen>>,
    missed: Arc<AtomicU64>,
    account: Account,
    /// Bytes of events that wait to be read.
    kept: Arc<AtomicUsize>,
}

/// An event that waits to be read.
struct Unseen {
    event: Reply,
    kept: Arc<AtomicUsize>,
    bytes: usize,
    _charge: Charge,
}

impl Drop for Unseen {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Teller {
    pub(super) fn is_closed(&self) -> bool {
        self.events.is_closed() || self.who.is_gone()
    }

    /// Whether the watcher may be shown this lock.
    pub(super) fn sees(&self, lock: &LockName) -> bool {
        self.who.sees(lock.as_str())
    }

    /// Tells of an event, or that one was missed.
    pub(super) fn tell(&self, event: &Reply) {
        let bytes = event.weight();
        let is_over = self.account.is_over(self.kept.load(Ordering::Relaxed) + bytes);
        if self.missed.load(Ordering::Acquire) == 0 && self.events.capacity() > 1 && !is_over {
            self.kept.fetch_add(bytes, Ordering::Relaxed);
            let (event, kept, charge) = (event.clone(), self.kept.clone(), self.account.charge(bytes));
            drop(self.events.try_send(Some(Unseen { event, kept, bytes, _charge: charge })));
        } else if self.missed.fetch_add(1, Ordering::AcqRel) == 0 {
            drop(self.events.try_send(None));
        }
    }
}

/// What a watcher learns.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Event(Reply),
    /// So many events came too fast.
    Missed(u64),
}

/// The far end of a watch. Dropped, it is over.
pub(crate) struct Watch {
    events: mpsc::Receiver<Option<Unseen>>,
    missed: Arc<AtomicU64>,
}

impl Watch {
    /// The next event; `None` when the service has ended.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        Some(match self.events.recv().await? {
            Some(mut unseen) => Seen::Event(std::mem::replace(&mut unseen.event, Reply::Nil)),
            None => Seen::Missed(self.missed.swap(0, Ordering::AcqRel)),
        })
    }
}

/// Both ends of a watch. Beside the backlog there is a place for saying that something was missed.
fn hearing(backlog: usize, who: Who, account: Account) -> (Teller, Watch) {
    let (events, seen) = mpsc::channel(backlog + 1);
    let missed = Arc::new(AtomicU64::new(0));
    let teller = Teller { who, events, missed: missed.clone(), account, kept: Arc::default() };
    (teller, Watch { events: seen, missed })
}

/// Does what is asked for from afar, where that may be done.
pub(super) async fn attend<D: Disk>(service: Rc<Service<D>>, mut errands: Errands) {
    while let Some(errand) = errands.0.recv().await {
        match errand {
            Errand::Ask(asker, request, answer) => {
                let service = service.clone();
                drop(spawn_local(async move { drop(answer.send(ask(&service, &asker, request).await)) }));
            }
            Errand::Acquire(asker, holding, answer) => {
                drop(spawn_local(acquire(service.clone(), asker, holding, answer)));
            }
            Errand::KeepAlive(asker, sessions, answer) => drop(answer.send(keep_alive(&service, &asker, sessions))),
            Errand::Look(asker, request, answer) => look(&service, asker, request, answer),
            Errand::Watch(asker, prefix, teller, answer) => {
                let permitted = permit(&service, &asker, &Request::Watch { prefix: prefix.clone() });
                if permitted.is_ok() {
                    service.state.borrow_mut().watch_from_afar(teller, prefix);
                }
                drop(answer.send(permitted));
            }
            Errand::Measure(answer) => drop(answer.send(service.state.borrow().measures())),
        }
        service.wake.notify_one();
    }
}

fn permit<D: Disk>(service: &Service<D>, asker: &Asker, request: &Request) -> Result<(), Refused> {
    permission::permit(&asker.who, request, service.state.borrow().replica.machine(), &asker.audit)
}

async fn ask<D: Disk>(service: &Service<D>, asker: &Asker, request: Request) -> Result<Answer, Refused> {
    permit(service, asker, &request)?;
    let Meaning::Change(command) = Meaning::of(request, |said| asker.label(said)) else {
        unreachable!("nothing else is asked in this way")
    };
    let opening =
        matches!(command, Command::OpenSession { .. }).then(|| Opening::begin(service, asker)).transpose()?;
    let answer = service.ask_from(asker.origin(), command, None).await;
    drop(opening);
    Ok(answer?)
}

/// A session that a user is about to have, until that is answered.
struct Opening<'a, D: Disk> {
    service: &'a Service<D>,
    user: &'a str,
}

impl<'a, D: Disk> Opening<'a, D> {
    fn begin(service: &'a Service<D>, asker: &'a Asker) -> Result<Option<Opening<'a, D>>, Refused> {
        let Some(user) = asker.who.user().map(User::name) else { return Ok(None) };
        service.state.borrow_mut().owners.open(user)?;
        Ok(Some(Opening { service, user }))
    }
}

impl<D: Disk> Drop for Opening<'_, D> {
    fn drop(&mut self) {
        self.service.state.borrow_mut().owners.answered(self.user);
    }
}

fn keep_alive<D: Disk>(service: &Service<D>, asker: &Asker, sessions: Vec<SessionId>) -> Result<Kept, Refused> {
    let request = Request::KeepAlive { sessions };
    permit(service, asker, &request)?;
    let Request::KeepAlive { sessions } = request else { return Ok(None) };
    let mut state = service.state.borrow_mut();
    Ok(sessions.into_iter().map(|session| state.keep_alive(session).ok()).collect())
}

fn look<D: Disk>(
    service: &Service<D>,
    asker: Asker,
    request: Request,
    answer: oneshot::Sender<Result<Reply, Refused>>,
) {
    if let Err(refused) = permit(service, &asker, &request) {
        return drop(answer.send(Err(refused)));
    }
    let Meaning::Look(look) = Meaning::of(request, |said| asker.label(said)) else {
        unreachable!("nothing else is looked at")
    };
    let mut state = service.state.borrow_mut();
    state.tally.look(Protocol::Http, &look);
    state.replica.read(Reader::Task(answer, look, asker.who));
}

async fn acquire<D: Disk>(
    service: Rc<Service<D>>,
    asker: Asker,
    holding: Holding,
    mut answer: oneshot::Sender<Handed>,
) {
    let origin = asker.origin();
    let suitor = Suitor { service: &service, origin: &origin, holding: &holding };
    let outcome = win(&suitor, &asker, answer.closed()).await;
    let grant = outcome.as_ref().ok().copied().flatten();
    let (taken, is_taken) = oneshot::channel();
    drop(answer.send(Handed { outcome, taken }));
    if let Some(grant) = grant
        && is_taken.await.is_err()
    {
        suitor.give_back(grant).await;
    }
}

async fn win<D: Disk>(suitor: &Suitor<'_, D>, asker: &Asker, gone: impl Future<Output = ()>) -> Acquired {
    let Suitor { service, holding, .. } = suitor;
    permit(service, asker, &Request::Acquire((*holding).clone()))?;
    let places = service.may_wait(&asker.who, holding)?;
    let opening = holding.by.is_err().then(|| Opening::begin(service, asker)).transpose()?;
    let acquired = suitor.acquire(asker.label(None), places, || drop(opening), gone).await?;
    match (acquired, asker.who.user()) {
        (None, Some(user)) if user.is_gone() => Err(Refused::Denied(format!(
            "user '{}' was changed or removed while it waited; nothing is held or queued",
            user.name()
        ))),
        (acquired, _) => Ok(acquired),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watcher_that_is_too_slow_is_told_how_much_it_missed_and_goes_on() {
        let (teller, mut watch) = hearing(3, Who::Anyone, Unread::new(1 << 20, 10).account(None));
        for number in 0..9 {
            teller.tell(&Reply::Number(number));
        }
        for number in 0..3 {
            assert_eq!(watch.next().await, Some(Seen::Event(Reply::Number(number))));
        }
        assert_eq!(watch.next().await, Some(Seen::Missed(6)));
        teller.tell(&Reply::Number(9));
        assert_eq!(watch.next().await, Some(Seen::Event(Reply::Number(9))));
    }

    #[tokio::test]
    async fn a_watcher_misses_events_when_too_much_is_kept_for_all() {
        let unread = Unread::new(16 << 10, 100);
        let (teller, mut watch) = hearing(1000, Who::Anyone, unread.account(None));
        let (other, _watch) = hearing(1000, Who::Anyone, unread.account(None));
        let event = Reply::text("x".repeat(1000));
        for _ in 0..500 {
            teller.tell(&event);
            other.tell(&event);
        }
        let mut seen = 0;
        let missed = loop {
            match watch.next().await {
                Some(Seen::Event(_)) => seen += 1,
                Some(Seen::Missed(missed)) => break missed,
                None => panic!("the watch goes on"),
            }
        };
        assert_eq!(seen + missed, 500);
        assert!(seen < 20, "{seen} events of 1000 bytes were kept");
        teller.tell(&event);
        assert!(matches!(watch.next().await, Some(Seen::Event(_))), "it goes on");
    }

    #[tokio::test]
    async fn a_watch_that_nobody_reads_is_over() {
        let (teller, watch) = hearing(3, Who::Anyone, Unread::new(1 << 20, 10).account(None));
        assert!(!teller.is_closed());
        drop(watch);
        assert!(teller.is_closed());
    }
}
