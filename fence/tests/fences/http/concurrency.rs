//! Concurrent requests: which ones wait for each other.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use palisade_fence::http::{Limits, Marks, MemoryMarks, Scope, SqliteMarks};

use super::fixture::Fixture;

fn fixture(marks: impl Marks) -> Fixture {
    Fixture::new(Scope::one("orders").expect("a name"), marks, Limits::default())
}

/// Polls a future until it is ready or makes no progress.
async fn is_pending<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    for _ in 0..100 {
        if poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}

#[tokio::test]
async fn a_seal_waits_for_the_running_write() {
    let fixture = fixture(MemoryMarks::default());
    fixture.seal(33).await;
    fixture.hold();
    let old = tokio::spawn({
        let fixture = fixture.clone();
        async move { fixture.write(33, 1, "old").await }
    });
    fixture.until_arrived(1).await;
    let mut seal = Box::pin(fixture.seal(34));
    assert!(is_pending(&mut seal).await, "the old write could still change something");
    fixture.backend.permits.add_permits(1);
    assert_eq!(seal.await.verdict, "sealed; token=34; seq=0");
    assert_eq!(fixture.written(), ["old"], "it was carried out before the seal");
    assert_eq!(old.await.expect("no panic").verdict, "admitted");
    assert_eq!(fixture.write(33, 2, "later").await.verdict, "stale; seen=34");
}

#[tokio::test]
async fn a_slow_read_does_not_hold_up_a_seal_and_is_refused_after_it() {
    let fixture = fixture(MemoryMarks::default());
    fixture.seal(33).await;
    fixture.hold();
    let mut read = Box::pin(fixture.read(33));
    assert!(is_pending(&mut read).await);
    assert_eq!(fixture.seal(34).await.verdict, "sealed; token=34; seq=0");
    fixture.backend.permits.add_permits(1);
    assert_eq!(read.await.verdict, "stale; seen=34");
}

#[tokio::test]
async fn a_write_whose_client_disconnects_runs_to_completion() {
    let directory = tempfile::tempdir().expect("a directory");
    let fixture = fixture(SqliteMarks::open(directory.path().join("marks.db")).expect("marks"));
    fixture.seal(33).await;
    fixture.hold();
    {
        let mut write = Box::pin(fixture.write(33, 1, "one"));
        let mut arrived = Box::pin(fixture.until_arrived(1));
        poll_fn(|context| {
            assert!(write.as_mut().poll(context).is_pending());
            arrived.as_mut().poll(context)
        })
        .await;
    }
    let mut drained = Box::pin(fixture.layer.drain());
    assert!(is_pending(&mut drained).await, "the write is under way");
    fixture.backend.permits.add_permits(1);
    drained.await;
    assert_eq!(fixture.settle(33, 1).await.verdict, "repeated");
    assert_eq!(fixture.written(), ["one"]);
}

#[tokio::test]
async fn a_slow_client_blocks_no_other() {
    let fixture = fixture(MemoryMarks::default());
    fixture.seal(33).await;
    let (sender, body) = http_body_util::channel::Channel::<bytes::Bytes, std::io::Error>::new(1);
    let request = http::Request::put("/orders").header("fencing-token", "33; seq=1").body(body).expect("a request");
    let mut slow = Box::pin(fixture.pass(request));
    assert!(is_pending(&mut slow).await);
    assert_eq!(fixture.write(33, 1, "quick").await.verdict, "admitted");
    drop(sender);
    assert_eq!(slow.await.verdict, "repeated");
    assert_eq!(fixture.written(), ["quick"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_arrives_times_out() {
    let fixture = fixture(MemoryMarks::default());
    fixture.seal(33).await;
    let (_sender, body) = http_body_util::channel::Channel::<bytes::Bytes, std::io::Error>::new(1);
    let request = http::Request::put("/orders").header("fencing-token", "33; seq=1").body(body).expect("a request");
    assert_eq!(fixture.pass(request).await.verdict, "incomplete");
    assert_eq!(fixture.write(33, 1, "x").await.verdict, "admitted");
}
