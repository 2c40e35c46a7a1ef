//! The options and arguments of a queue. The promises are tested in the testbench, on every store.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::recipe::store::Sqlite;

fn check(test: impl Future<Output = Result<(), Box<dyn std::error::Error>>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test).expect("it passes");
}

#[test]
fn what_a_client_can_make_a_queue_keep_is_bounded() {
    check(async {
        let store = Sqlite::open(":memory:").await?;
        let queue = Queue::new(&store, "orders");
        let long = "k".repeat(MAX_KEY_BYTES + 1);
        for key in ["", "a\nb", "a\0b", &long] {
            let error = queue.push(key, "x").await.expect_err(key);
            assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Invalid(_))), "{error}");
            let error = Queue::new(&store, key).push("a", "x").await.expect_err(key);
            assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Invalid(_))), "{error}");
        }
        queue.push(&long[1..], vec![0; MAX_PAYLOAD_BYTES]).await?;
        queue.push("a", vec![0; MAX_PAYLOAD_BYTES + 1]).await.expect_err("it is too long");
        assert_eq!(queue.jobs(10).await?.len(), 1);
        let job = queue.attempts(1).next().await?;
        job.fail("ä".repeat(MAX_REASON_BYTES)).await?;
        let reason = Queue::new(&store, "orders").dead_letters(1).await?[0].reason.clone().expect("a reason");
        assert_eq!(reason, "ä".repeat(MAX_REASON_BYTES / 2));
        Ok(())
    });
}

#[test]
fn options_out_of_range_are_refused() {
    check(async {
        let store = Sqlite::open(":memory:").await?;
        let queue = Queue::new(&store, "orders");
        let too_long = MAX_TIME + Duration::from_secs(1);
        for queue in [
            queue.clone().attempts(0),
            queue.clone().attempts(MAX_ATTEMPTS + 1),
            queue.clone().visibility(Duration::ZERO),
            queue.clone().visibility(too_long),
            queue.clone().backoff(Duration::ZERO, too_long),
        ] {
            let error = queue.take().await.expect_err("it is out of range");
            assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Number(_))), "{error}");
        }
        Ok(())
    });
}

/// A store whose reply to the first settlement is lost. Before the second one, the next job of the key is delivered.
#[derive(Clone)]
struct LostReply {
    store: Sqlite,
    lost: Arc<AtomicBool>,
    /// Whether the store fails from then on.
    fails: bool,
}

impl Sealed for LostReply {}

impl LostReply {
    fn outage(may_have_taken_effect: bool, is_retryable: bool) -> Error {
        let what = "the connection was lost".to_owned();
        let kind = ErrorKind::Outage { what, may_have_taken_effect, is_retryable, source: None };
        Error::new(kind, Self::NAME, SETTLE)
    }
}

impl QueueStore for LostReply {
    const NAME: &'static str = "sqlite";

    async fn push(&self, queue: &str, key: &str, payload: &[u8], depth: Option<u32>) -> Result<Option<JobId>, Error> {
        self.store.push(queue, key, payload, depth).await
    }

    async fn take(&self, queue: &str, policy: &Policy) -> Result<Option<(Delivery, Vec<u8>)>, Error> {
        self.store.take(queue, policy).await
    }

    async fn settle(&self, queue: &str, delivery: &Delivery, settle: &Settle) -> Result<Settled, Error> {
        if self.lost.swap(true, Ordering::Relaxed) {
            return match self.fails {
                true => Err(Self::outage(false, false)),
                false => self.store.settle(queue, delivery, settle).await,
            };
        }
        self.store.settle(queue, delivery, settle).await?;
        // Another worker gets the next job of the key, if it has one.
        self.store.take(queue, &Policy::default()).await?;
        Err(Self::outage(true, true))
    }

    async fn list(&self, queue: &str, listed: Listed, limit: u32) -> Result<Vec<JobInfo>, Error> {
        self.store.list(queue, listed, limit).await
    }

    async fn payload(&self, queue: &str, id: JobId) -> Result<Option<Vec<u8>>, Error> {
        self.store.payload(queue, id).await
    }

    async fn retry(&self, queue: &str, id: JobId) -> Result<bool, Error> {
        self.store.retry(queue, id).await
    }

    async fn discard(&self, queue: &str, id: JobId) -> Result<bool, Error> {
        self.store.discard(queue, id).await
    }
}

/// A queue whose key has these jobs, on a store that loses the reply to the first settlement.
async fn queue_with_lost_reply(jobs: u32, fails: bool) -> Result<Queue<LostReply>, Error> {
    let store = LostReply { store: Sqlite::open(":memory:").await?, lost: Arc::default(), fails };
    let queue = Queue::new(&store, "orders");
    for _ in 0..jobs {
        queue.push("customer/7", "ship").await?;
    }
    Ok(queue)
}

#[test]
fn a_job_that_may_be_done_is_not_reported_as_stale() {
    check(async {
        let queue = queue_with_lost_reply(2, false).await?;
        let error = queue.next().await?.done().await.expect_err("the second job was delivered");
        assert!(matches!(&error, JobError::Failed(error) if error.may_have_taken_effect()), "{error}");
        assert_eq!(queue.jobs(10).await?.len(), 1, "the first job is done");
        Ok(())
    });
}

#[test]
fn the_last_error_of_a_settlement_says_that_an_earlier_try_may_have_taken_effect() {
    check(async {
        let queue = queue_with_lost_reply(1, true).await?;
        let error = queue.next().await?.done().await.expect_err("the store fails");
        assert!(matches!(&error, JobError::Failed(error) if error.may_have_taken_effect()), "{error}");
        Ok(())
    });
}
