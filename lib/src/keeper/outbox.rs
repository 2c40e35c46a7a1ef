//! How answers wake the application: those that are ready together, all at once.
//!
//! To wake a future from the keeper's thread costs a system call, and often a switch to the application's thread
//! before the next answer is ready; to wake it on its own thread costs next to nothing. So while the keeper goes
//! through a batch of operations, and while it goes through what an engine has answered, those to be woken are
//! collected. Then it wakes one after the other, and the first that runs wakes those that are left. Nobody depends on
//! that: the keeper goes on until all are awake.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::{Notify, oneshot};

/// Those who are to be woken.
#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The courier will look again. Otherwise whoever is to be woken is woken at once.
    is_open: bool,
    /// Calls the courier, as long as there is one that can be called.
    call: Option<Waker>,
    sleepers: VecDeque<Arc<Sleeper>>,
}

/// A future that waits for an answer.
struct Sleeper {
    waker: Waker,
    outbox: Arc<Outbox>,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        let mut state = self.outbox.state();
        if state.is_open {
            state.sleepers.push_back(self.clone());
        } else if let Some(call) = state.call.clone() {
            state.sleepers.push_back(self.clone());
            state.is_open = true;
            drop(state);
            call.wake();
        } else {
            drop(state);
            self.waker.wake_by_ref();
        }
    }
}

impl Outbox {
    /// Waits for an answer; `None` if there will be none.
    pub(super) async fn receive<T>(self: &Arc<Self>, mut answer: oneshot::Receiver<T>) -> Option<T> {
        let mut known: Option<Arc<Sleeper>> = None;
        let received = poll_fn(|context| {
            let waker = context.waker();
            let sleeper = match known.take() {
                Some(sleeper) if sleeper.waker.will_wake(waker) => sleeper,
                _ => Arc::new(Sleeper { waker: waker.clone(), outbox: self.clone() }),
            };
            let waker = Waker::from(known.insert(sleeper).clone());
            Pin::new(&mut answer).poll(&mut Context::from_waker(&waker))
        });
        let received = received.await;
        while let Some(sleeper) = self.next() {
            sleeper.waker.wake_by_ref();
        }
        received.ok()
    }

    fn next(&self) -> Option<Arc<Sleeper>> {
        self.state().sleepers.pop_front()
    }

    /// The next one; if there is none, the outbox is closed.
    fn next_or_close(&self) -> Option<Arc<Sleeper>> {
        let mut state = self.state();
        let next = state.sleepers.pop_front();
        state.is_open = next.is_some();
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole at any moment, whatever panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keeper's end of an outbox. When it is dropped, all are awake.
pub(super) struct Courier {
    outbox: Arc<Outbox>,
    has_woken_one: Notify,
}

impl Courier {
    pub(super) fn new(outbox: Arc<Outbox>) -> Courier {
        Courier { outbox, has_woken_one: Notify::new() }
    }

    /// Waits until somebody was woken between batches who was alone.
    pub(super) async fn has_woken_one(&self) {
        self.has_woken_one.notified().await;
    }

    /// Is called between batches, and comes when whatever else is ready on the keeper's thread has had its turn.
    pub(super) async fn run(self: Rc<Self>) {
        poll_fn(|context| {
            self.outbox.state().call = Some(context.waker().clone());
            if self.deliver() == 1 {
                self.has_woken_one.notify_one();
            }
            Poll::Pending
        })
        .await
    }

    /// Collects those whom the work wakes, and wakes them when it is done.
    pub(super) fn collect(&self, work: impl FnOnce()) {
        self.outbox.state().is_open = true;
        work();
        self.deliver();
    }

    /// Says how many were left to be woken.
    fn deliver(&self) -> usize {
        let mut woken = 0;
        while let Some(sleeper) = self.outbox.next_or_close() {
            sleeper.waker.wake_by_ref();
            woken += 1;
        }
        woken
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.outbox.state().call = None;
        self.deliver();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Bell(AtomicU32);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A future that waits for an answer, and the task that it is part of.
    struct Waiting {
        future: Pin<Box<dyn Future<Output = Option<u32>>>>,
        reply: Option<oneshot::Sender<u32>>,
        bell: Arc<Bell>,
    }

    impl Waiting {
        fn on(outbox: &Arc<Outbox>) -> Waiting {
            let (reply, answer) = oneshot::channel();
            let outbox = outbox.clone();
            let future = Box::pin(async move { outbox.receive(answer).await });
            let mut waiting = Waiting { future, reply: Some(reply), bell: Arc::default() };
            assert!(!waiting.has_answer());
            waiting
        }

        fn has_answer(&mut self) -> bool {
            let waker = Waker::from(self.bell.clone());
            self.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        }

        fn answer(&mut self) {
            self.reply.take().expect("it was not answered").send(1).expect("it waits");
        }

        fn was_woken(&self) -> bool {
            self.bell.0.load(Ordering::SeqCst) > 0
        }
    }

    fn three() -> (Courier, [Waiting; 3]) {
        let outbox = Arc::new(Outbox::default());
        let waiting = [(); 3].map(|()| Waiting::on(&outbox));
        (Courier::new(outbox), waiting)
    }

    #[test]
    fn those_who_are_answered_in_one_batch_are_woken_after_it() {
        let (courier, mut all) = three();
        courier.collect(|| {
            all.iter_mut().for_each(Waiting::answer);
            assert!(!all.iter().any(Waiting::was_woken));
        });
        assert!(all.iter().all(Waiting::was_woken));
        assert!(all.iter_mut().all(Waiting::has_answer));
    }

    #[test]
    fn the_first_that_runs_wakes_the_others() {
        let (courier, mut all) = three();
        courier.collect(|| {
            all.iter_mut().for_each(Waiting::answer);
            assert!(all[0].has_answer());
            assert!(all.iter().all(Waiting::was_woken));
        });
    }

    #[test]
    fn whoever_is_answered_between_batches_is_woken_at_once() {
        let (courier, mut all) = three();
        all[0].answer();
        assert!(all[0].was_woken());
        courier.collect(|| {});
        all[1].answer();
        assert!(all[1].was_woken());
    }

    #[test]
    fn those_who_are_answered_between_batches_are_woken_when_the_courier_comes() {
        let (courier, mut all) = three();
        let (courier, bell) = (Rc::new(courier), Arc::<Bell>::default());
        let mut run = Box::pin(courier.run());
        let waker = Waker::from(bell.clone());
        let mut context = Context::from_waker(&waker);
        assert!(run.as_mut().poll(&mut context).is_pending());
        all[0].answer();
        all[1].answer();
        assert!(!all.iter().any(Waiting::was_woken));
        assert_eq!(bell.0.load(Ordering::SeqCst), 1);
        assert!(run.as_mut().poll(&mut context).is_pending());
        assert!(all[0].was_woken() && all[1].was_woken());
        // Nobody calls one that has gone.
        drop(run);
        all[2].answer();
        assert!(all[2].was_woken());
    }

    #[test]
    fn whoever_is_dropped_holds_nobody_up() {
        let (courier, all) = three();
        let [mut first, mut second, mut third] = all;
        courier.collect(|| {
            for waiting in [&mut first, &mut second, &mut third] {
                waiting.answer();
            }
            drop(first);
        });
        assert!(second.was_woken() && third.was_woken());
    }

    #[test]
    fn nobody_sleeps_on_when_the_keeper_ends_within_a_batch() {
        let (courier, mut all) = three();
        let outbox = courier.outbox.clone();
        let ends = AssertUnwindSafe(|| {
            courier.collect(|| {
                all[0].answer();
                panic!("the keeper ends");
            });
        });
        catch_unwind(ends).expect_err("it panicked");
        drop(courier);
        assert!(all[0].was_woken());
        // An operation that is never answered, as it goes with the keeper.
        drop(all[1].reply.take());
        assert!(all[1].was_woken() && all[1].has_answer());
        assert!(!outbox.state().is_open);
    }

    #[test]
    fn a_future_that_has_moved_to_another_task_is_woken_there() {
        let (courier, mut all) = three();
        let before = std::mem::take(&mut all[0].bell);
        assert!(!all[0].has_answer());
        courier.collect(|| all[0].answer());
        assert!(all[0].was_woken());
        assert_eq!(before.0.load(Ordering::SeqCst), 0);
    }
}
