//! The options and arguments of a queue. The promises are tested in the testbench, on every store.

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
