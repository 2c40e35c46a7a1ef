//! Wakes the application's futures in batches.
//!
//! Waking a future from the keeper's thread costs a system call, and often a switch to the application's thread before the
//! next reply is ready. Waking it on its own thread costs next to nothing. So the keeper collects the wake-ups of a batch
//! of operations, or of an engine's replies. Then it wakes one future after the other, and the first that runs wakes the
//! rest. Correctness does not depend on that: the keeper goes on until all are awake.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::{Notify, oneshot};

/// The futures to wake.
#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the [`BatchWaker`] will empty the outbox. Otherwise a future is woken at once.
    is_open: bool,
    /// Wakes the task of [`BatchWaker::run`], while it exists.
    batch_waker: Option<Waker>,
    sleepers: VecDeque<Arc<Sleeper>>,
}

/// A future that waits for a reply.
struct Sleeper {
    waker: Waker,
    outbox: Arc<Outbox>,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        let mut state = self.outbox.state();
        if state.is_open {
            state.sleepers.push_back(self.clone());
        } else if let Some(batch_waker) = state.batch_waker.clone() {
            state.sleepers.push_back(self.clone());
            state.is_open = true;
            drop(state);
            batch_waker.wake();
        } else {
            drop(state);
            self.waker.wake_by_ref();
        }
    }
}

impl Outbox {
    /// Waits for a reply; `None` if its sender is gone.
    pub(super) async fn receive<T>(self: &Arc<Self>, mut reply: oneshot::Receiver<T>) -> Option<T> {
        let mut last: Option<Arc<Sleeper>> = None;
        let received = poll_fn(|context| {
            let waker = context.waker();
            let sleeper = match last.take() {
                Some(sleeper) if sleeper.waker.will_wake(waker) => sleeper,
                _ => Arc::new(Sleeper { waker: waker.clone(), outbox: self.clone() }),
            };
            let waker = Waker::from(last.insert(sleeper).clone());
            Pin::new(&mut reply).poll(&mut Context::from_waker(&waker))
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

    /// Returns the next future, or closes the outbox.
    fn next_or_close(&self) -> Option<Arc<Sleeper>> {
        let mut state = self.state();
        let next = state.sleepers.pop_front();
        state.is_open = next.is_some();
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keeper's end of an outbox. Dropping it wakes all futures.
pub(super) struct BatchWaker {
    outbox: Arc<Outbox>,
    has_woken_one: Notify,
}

impl BatchWaker {
    pub(super) fn new(outbox: Arc<Outbox>) -> BatchWaker {
        BatchWaker { outbox, has_woken_one: Notify::new() }
    }

    /// Waits until exactly one future was woken between batches: its caller is likely to send the next operation at once.
    pub(super) async fn has_woken_one(&self) {
        self.has_woken_one.notified().await;
    }

    /// Wakes futures between batches, after the other tasks that are ready on the keeper's thread.
    pub(super) async fn run(self: Rc<Self>) {
        poll_fn(|context| {
            self.outbox.state().batch_waker = Some(context.waker().clone());
            if self.deliver() == 1 {
                self.has_woken_one.notify_one();
            }
            Poll::Pending
        })
        .await
    }

    /// Runs `work`, then wakes the futures that it completed. Returns how many.
    pub(super) fn collect(&self, work: impl FnOnce()) -> usize {
        self.outbox.state().is_open = true;
        work();
        self.deliver()
    }

    /// Returns how many futures were woken.
    fn deliver(&self) -> usize {
        let mut woken = 0;
        while let Some(sleeper) = self.outbox.next_or_close() {
            sleeper.waker.wake_by_ref();
            woken += 1;
        }
        woken
    }
}

impl Drop for BatchWaker {
    fn drop(&mut self) {
        self.outbox.state().batch_waker = None;
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
    struct WakeCounter(AtomicU32);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A future that waits for a reply, and a counter of its wake-ups.
    struct Waiting {
        future: Pin<Box<dyn Future<Output = Option<u32>>>>,
        reply: Option<oneshot::Sender<u32>>,
        wakes: Arc<WakeCounter>,
    }

    impl Waiting {
        fn on(outbox: &Arc<Outbox>) -> Waiting {
            let (reply, received) = oneshot::channel();
            let outbox = outbox.clone();
            let future = Box::pin(async move { outbox.receive(received).await });
            let mut waiting = Waiting { future, reply: Some(reply), wakes: Arc::default() };
            assert!(!waiting.has_reply());
            waiting
        }

        fn has_reply(&mut self) -> bool {
            let waker = Waker::from(self.wakes.clone());
            self.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        }

        fn answer(&mut self) {
            self.reply.take().expect("it was not answered").send(1).expect("it waits");
        }

        fn was_woken(&self) -> bool {
            self.wakes.0.load(Ordering::SeqCst) > 0
        }
    }

    fn three() -> (BatchWaker, [Waiting; 3]) {
        let outbox = Arc::new(Outbox::default());
        let waiting = [(); 3].map(|()| Waiting::on(&outbox));
        (BatchWaker::new(outbox), waiting)
    }

    #[test]
    fn futures_completed_in_a_batch_are_woken_after_it() {
        let (waker, mut all) = three();
        waker.collect(|| {
            all.iter_mut().for_each(Waiting::answer);
            assert!(!all.iter().any(Waiting::was_woken));
        });
        assert!(all.iter().all(Waiting::was_woken));
        assert!(all.iter_mut().all(Waiting::has_reply));
    }

    #[test]
    fn the_first_that_runs_wakes_the_others() {
        let (waker, mut all) = three();
        waker.collect(|| {
            all.iter_mut().for_each(Waiting::answer);
            assert!(all[0].has_reply());
            assert!(all.iter().all(Waiting::was_woken));
        });
    }

    #[test]
    fn a_future_completed_between_batches_is_woken_at_once() {
        let (waker, mut all) = three();
        all[0].answer();
        assert!(all[0].was_woken());
        waker.collect(|| {});
        all[1].answer();
        assert!(all[1].was_woken());
    }

    #[test]
    fn futures_completed_between_batches_are_woken_when_the_waker_runs() {
        let (waker, mut all) = three();
        let (batch_waker, wakes) = (Rc::new(waker), Arc::<WakeCounter>::default());
        let mut run = Box::pin(batch_waker.run());
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        assert!(run.as_mut().poll(&mut context).is_pending());
        all[0].answer();
        all[1].answer();
        assert!(!all.iter().any(Waiting::was_woken));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert!(run.as_mut().poll(&mut context).is_pending());
        assert!(all[0].was_woken() && all[1].was_woken());
        drop(run);
        all[2].answer();
        assert!(all[2].was_woken());
    }

    #[test]
    fn a_dropped_future_does_not_delay_the_others() {
        let (waker, all) = three();
        let [mut first, mut second, mut third] = all;
        waker.collect(|| {
            for waiting in [&mut first, &mut second, &mut third] {
                waiting.answer();
            }
            drop(first);
        });
        assert!(second.was_woken() && third.was_woken());
    }

    #[test]
    fn every_future_is_woken_when_the_keeper_ends_within_a_batch() {
        let (waker, mut all) = three();
        let outbox = waker.outbox.clone();
        let ends = AssertUnwindSafe(|| {
            waker.collect(|| {
                all[0].answer();
                panic!("the keeper ends");
            });
        });
        catch_unwind(ends).expect_err("it panicked");
        drop(waker);
        assert!(all[0].was_woken());
        // An operation that ends with the keeper, without a reply.
        drop(all[1].reply.take());
        assert!(all[1].was_woken() && all[1].has_reply());
        assert!(!outbox.state().is_open);
    }

    #[test]
    fn a_future_that_has_moved_to_another_task_is_woken_there() {
        let (waker, mut all) = three();
        let before = std::mem::take(&mut all[0].wakes);
        assert!(!all[0].has_reply());
        waker.collect(|| all[0].answer());
        assert!(all[0].was_woken());
        assert_eq!(before.0.load(Ordering::SeqCst), 0);
    }
}
