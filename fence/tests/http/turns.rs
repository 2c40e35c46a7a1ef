//! Several at once: who waits for whom.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use palisade_fence::http::{Limits, Marks, MemoryMarks, Scope, SqliteMarks};

use crate::scene::Scene;

fn scene(marks: impl Marks) -> Scene {
    Scene::new(Scope::one("orders").expect("a name"), marks, Limits::default())
}

/// Goes on with it as far as it goes now.
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
async fn a_seal_waits_for_the_write_that_is_under_way() {
    let scene = scene(MemoryMarks::default());
    scene.seal(33).await;
    scene.hold();
    let old = tokio::spawn({
        let scene = scene.clone();
        async move { scene.write(33, 1, "old").await }
    });
    scene.until_arrived(1).await;
    let mut seal = Box::pin(scene.seal(34));
    assert!(is_pending(&mut seal).await, "the old write could still change something");
    scene.behind.permits.add_permits(1);
    assert_eq!(seal.await.verdict, "sealed; token=34; seq=0");
    assert_eq!(scene.written(), ["old"], "it was carried out before the seal");
    assert_eq!(old.await.expect("no panic").verdict, "admitted");
    assert_eq!(scene.write(33, 2, "later").await.verdict, "stale; seen=34");
}

#[tokio::test]
async fn a_slow_read_does_not_hold_up_a_seal_and_is_refused_after_it() {
    let scene = scene(MemoryMarks::default());
    scene.seal(33).await;
    scene.hold();
    let mut read = Box::pin(scene.read(33));
    assert!(is_pending(&mut read).await);
    assert_eq!(scene.seal(34).await.verdict, "sealed; token=34; seq=0");
    scene.behind.permits.add_permits(1);
    assert_eq!(read.await.verdict, "stale; seen=34");
}

#[tokio::test]
async fn a_write_whose_client_goes_away_is_carried_out_to_its_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let scene = scene(SqliteMarks::open(directory.path().join("marks.db")).expect("marks"));
    scene.seal(33).await;
    scene.hold();
    {
        let mut write = Box::pin(scene.write(33, 1, "one"));
        let mut arrived = Box::pin(scene.until_arrived(1));
        poll_fn(|context| {
            assert!(write.as_mut().poll(context).is_pending());
            arrived.as_mut().poll(context)
        })
        .await;
    }
    let mut idle = Box::pin(scene.layer.idle());
    assert!(is_pending(&mut idle).await, "the write is under way");
    scene.behind.permits.add_permits(1);
    idle.await;
    assert_eq!(scene.settle(33, 1).await.verdict, "repeated");
    assert_eq!(scene.written(), ["one"]);
}

#[tokio::test]
async fn a_slow_client_holds_up_nobody() {
    let scene = scene(MemoryMarks::default());
    scene.seal(33).await;
    let (sender, body) = http_body_util::channel::Channel::<bytes::Bytes, std::io::Error>::new(1);
    let request = http::Request::put("/orders").header("fencing-token", "33; seq=1").body(body).expect("a request");
    let mut slow = Box::pin(scene.pass(request));
    assert!(is_pending(&mut slow).await);
    assert_eq!(scene.write(33, 1, "quick").await.verdict, "admitted");
    drop(sender);
    assert_eq!(slow.await.verdict, "repeated");
    assert_eq!(scene.written(), ["quick"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_arrives_is_given_up() {
    let scene = scene(MemoryMarks::default());
    scene.seal(33).await;
    let (_sender, body) = http_body_util::channel::Channel::<bytes::Bytes, std::io::Error>::new(1);
    let request = http::Request::put("/orders").header("fencing-token", "33; seq=1").body(body).expect("a request");
    assert_eq!(scene.pass(request).await.verdict, "incomplete");
    assert_eq!(scene.write(33, 1, "x").await.verdict, "admitted");
}
