//! The way to the service from another thread. What is asked for is done on the service's own thread; who goes away
//! while it waits leaves nothing behind.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_core::{Answer, Command, Label, Refusal, SessionId, Ttl};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

use super::Service;
use super::state::{Caller, Look, Origin, Reader};
use super::tally::Tally;
use super::wait::{Grant, Suitor};
use crate::resp::{Holding, Reply};
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

type Acquired = Result<Option<Grant>, Refusal>;

/// What is to be done on the service's thread.
enum Errand {
    Ask(Origin, Command, oneshot::Sender<Result<Answer, Refusal>>),
    Acquire(Origin, Holding, Label, oneshot::Sender<Handed>),
    KeepAlive(Vec<SessionId>, oneshot::Sender<Option<Vec<Option<Ttl>>>>),
    Look(Origin, Look, oneshot::Sender<Reply>),
    Watch(String, Teller, oneshot::Sender<()>),
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
}

impl Far {
    pub(super) fn new() -> (Far, Errands) {
        let (errands, received) = mpsc::unbounded_channel();
        (Far { errands }, Errands(received))
    }

    async fn send<T>(&self, errand: impl FnOnce(oneshot::Sender<T>) -> Errand) -> Result<T, Unavailable> {
        let (sender, answer) = oneshot::channel();
        self.errands.send(errand(sender)).map_err(|_| Unavailable)?;
        answer.await.map_err(|_| Unavailable)
    }

    /// Has a command carried out.
    pub(crate) async fn ask(&self, origin: Origin, command: Command) -> Result<Result<Answer, Refusal>, Unavailable> {
        self.send(|answer| Errand::Ask(origin, command, answer)).await
    }

    /// Has something acquired, waiting as long as it says.
    ///
    /// # Cancellation
    ///
    /// Dropped before it is ready, it leaves the queue, and a grant that is under way is given back. Only a numbered
    /// request that was granted stays: its repeat is told the same token.
    pub(crate) async fn acquire(
        &self,
        origin: Origin,
        holding: Holding,
        label: Label,
    ) -> Result<Acquired, Unavailable> {
        let Handed { outcome, taken } = self.send(|answer| Errand::Acquire(origin, holding, label, answer)).await?;
        // Who handed it over may have ended since.
        let _ = taken.send(());
        Ok(outcome)
    }

    /// Keeps sessions alive; `None` for one that lives no longer.
    pub(crate) async fn keep_alive(&self, sessions: Vec<SessionId>) -> Result<Vec<Option<Ttl>>, Unavailable> {
        self.send(|answer| Errand::KeepAlive(sessions, answer)).await?.ok_or(Unavailable)
    }

    /// Looks at the state as it is now, and not as it was.
    pub(crate) async fn look(&self, origin: Origin, look: Look) -> Result<Reply, Unavailable> {
        self.send(|answer| Errand::Look(origin, look, answer)).await
    }

    /// The events of all locks whose names begin like this, from now on. So many of them may wait to be read.
    pub(crate) async fn watch(&self, prefix: String, backlog: usize) -> Result<Watch, Unavailable> {
        let (teller, watch) = hearing(backlog);
        self.send(|answer| Errand::Watch(prefix, teller, answer)).await?;
        Ok(watch)
    }

    /// How things stand.
    pub(crate) async fn measure(&self) -> Result<Measures, Unavailable> {
        self.send(Errand::Measure).await
    }
}

/// The near end of a watch.
pub(super) struct Teller {
    events: mpsc::Sender<Option<Reply>>,
    missed: Arc<AtomicU64>,
}

impl Teller {
    pub(super) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Tells of an event, or that one was missed.
    pub(super) fn tell(&self, event: &Reply) {
        if self.missed.load(Ordering::Acquire) == 0 && self.events.capacity() > 1 {
            drop(self.events.try_send(Some(event.clone())));
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
    events: mpsc::Receiver<Option<Reply>>,
    missed: Arc<AtomicU64>,
}

impl Watch {
    /// The next event; `None` when the service has ended.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        Some(match self.events.recv().await? {
            Some(event) => Seen::Event(event),
            None => Seen::Missed(self.missed.swap(0, Ordering::AcqRel)),
        })
    }
}

/// Both ends of a watch. Beside the backlog there is a place for saying that something was missed.
fn hearing(backlog: usize) -> (Teller, Watch) {
    let (events, seen) = mpsc::channel(backlog + 1);
    let missed = Arc::new(AtomicU64::new(0));
    (Teller { events, missed: missed.clone() }, Watch { events: seen, missed })
}

/// Does what is asked for from afar.
pub(super) async fn attend<D: Disk>(service: Rc<Service<D>>, mut errands: Errands) {
    while let Some(errand) = errands.0.recv().await {
        match errand {
            Errand::Ask(origin, command, answer) => {
                service.state.borrow_mut().submit(command, Caller::Task(origin, answer, None));
            }
            Errand::Acquire(origin, holding, label, answer) => {
                drop(spawn_local(acquire(service.clone(), origin, holding, label, answer)));
            }
            Errand::KeepAlive(sessions, answer) => {
                let mut state = service.state.borrow_mut();
                let kept = sessions.into_iter().map(|session| state.keep_alive(session).ok()).collect();
                drop(answer.send(kept));
            }
            Errand::Look(origin, look, answer) => {
                let mut state = service.state.borrow_mut();
                state.tally.look(&origin, &look);
                state.replica.read(Reader::Task(answer, look));
            }
            Errand::Watch(prefix, teller, answer) => {
                service.state.borrow_mut().watch_from_afar(teller, prefix);
                let _ = answer.send(());
            }
            Errand::Measure(answer) => drop(answer.send(service.state.borrow().measures())),
        }
        service.wake.notify_one();
    }
}

async fn acquire<D: Disk>(
    service: Rc<Service<D>>,
    origin: Origin,
    holding: Holding,
    label: Label,
    mut answer: oneshot::Sender<Handed>,
) {
    let suitor = Suitor { service: &service, origin: &origin, holding: &holding };
    let outcome = suitor.acquire(label, || (), answer.closed()).await;
    let grant = outcome.as_ref().ok().copied().flatten();
    let (taken, is_taken) = oneshot::channel();
    drop(answer.send(Handed { outcome, taken }));
    if let Some(grant) = grant
        && is_taken.await.is_err()
    {
        suitor.give_back(grant).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watcher_that_is_too_slow_is_told_how_much_it_missed_and_goes_on() {
        let (teller, mut watch) = hearing(3);
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
    async fn a_watch_that_nobody_reads_is_over() {
        let (teller, watch) = hearing(3);
        assert!(!teller.is_closed());
        drop(watch);
        assert!(teller.is_closed());
    }
}
