//! Rights to the keys that an operator takes away while a client uses them.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use palisade::engine::Watched;
use palisade::{Event, Options, Palisade, Watch};
use palisade_testbench::bounded::within;
use palisade_testbench::proxy::Towards;
use tokio::time::timeout;

use super::fixture::{Fixture, LONG_TTL, alone, check, take, taking, token, until_idle, until_queued};

const ROOT: &str = "--user=root:xyzzy";

/// Starts an etcd that lets two users in, `app` and `other`. Both may use the same keys.
fn guarded() -> Fixture {
    let fixture = alone();
    let ctl = |words: &str| fixture.etcd().ctl(&words.split(' ').collect::<Vec<_>>());
    ctl("user add root:xyzzy");
    ctl("user grant-role root root");
    for user in ["app", "other"] {
        ctl(&format!("role add {user}"));
        ctl(&format!("role grant-permission {user} --prefix=true readwrite palisade/"));
        ctl(&format!("user add {user}:secret"));
        ctl(&format!("user grant-role {user} {user}"));
    }
    ctl("auth enable");
    fixture
}

fn deny(fixture: &Fixture, user: &str) {
    fixture.etcd().ctl(&[ROOT, "role", "revoke-permission", user, "--prefix=true", "palisade/"]);
}

fn allow(fixture: &Fixture, user: &str) {
    fixture.etcd().ctl(&[ROOT, "role", "grant-permission", user, "--prefix=true", "readwrite", "palisade/"]);
}

async fn client(user: &str, address: SocketAddr) -> Palisade {
    let url = format!("etcd://{user}:secret@{address}");
    Options::new().label(user).ttl(LONG_TTL).connect(&url).await.expect("a client")
}

/// Otherwise its claim would be granted later, although no caller waits for it.
#[test]
#[ignore = "long: crowds"]
fn a_waiter_that_is_denied_leaves_the_queue() {
    check(async {
        let fixture = guarded();
        let (alice, bob) = (client("app", fixture.address).await, client("other", fixture.address).await);
        let held = take(&bob, "lock").await;
        let waiting = taking(&alice, "lock");
        until_queued(&bob, "lock", 1).await;
        deny(&fixture, "app");
        held.release().await.expect("it is held");
        let error = within("the wait ends", waiting).await.expect("no panic").expect_err("it has no right");
        assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains("does not let this client in"), "{error}");
        allow(&fixture, "app");
        until_idle(&bob, "lock").await;
        assert!(bob.lock("lock").try_acquire().await.expect("an answer").is_some());
    });
}

/// A compaction ends the watch of a client that lags behind. The client may not read the locks then.
#[test]
#[ignore = "long: several seconds"]
fn a_watch_whose_events_were_compacted_goes_on_when_the_locks_can_be_read_again() {
    check(async {
        let fixture = guarded();
        let (alice, bob) = (client("app", fixture.proxy.address).await, client("other", fixture.address).await);
        let mut watch = alice.watch("").await.expect("a watch");
        // On a busy machine the client may give up a connection that is silent while it lags behind. Another one reads the locks again.
        loop {
            until_up_to_date(&mut watch, &bob).await;
            let connections = fixture.proxy.accepted();
            lag_behind(&fixture, &bob).await;
            let revision = fixture.etcd().ctl(&[ROOT, "get", "none", "--write-out", "fields"]);
            let revision =
                revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).expect("a revision");
            fixture.etcd().ctl(&[ROOT, "compact", revision]);
            deny(&fixture, "app");
            let has_kept_it = fixture.proxy.accepted() == connections;
            fixture.proxy.pass();
            if !has_kept_it {
                allow(&fixture, "app");
                continue;
            }
            // The events before the compaction come first.
            let mut early = None;
            let seen = async {
                while let Ok(next) = timeout(Duration::from_secs(2), watch.next()).await {
                    if !matches!(next, Some(Watched::Event(_))) {
                        early = Some(next);
                        break;
                    }
                }
            };
            within("the events before the compaction", seen).await;
            allow(&fixture, "app");
            if early.is_none() {
                let missed =
                    async { while !matches!(watch.next().await.expect("the watch goes on"), Watched::Missed) {} };
                within("the watch says that it missed events", missed).await;
            }
            if fixture.proxy.accepted() == connections {
                assert!(early.is_none(), "{early:?} while the locks cannot be read");
                break;
            }
        }
        take(&bob, "another").await.release().await.expect("it is held");
        assert!(matches!(within("an event", watch.next()).await, Some(Watched::Event(_))));
    });
}

/// Waits until a watch shows what has just happened.
async fn until_up_to_date(watch: &mut Watch, bob: &Palisade) {
    let shown = async {
        // A watch that just had another connection may have missed a grant.
        loop {
            let held = take(bob, "lock").await;
            let granted = token(&held);
            held.release().await.expect("it is held");
            while let Ok(next) = timeout(Duration::from_secs(1), watch.next()).await {
                if matches!(next, Some(Watched::Event(Event::Granted { token, .. })) if token == granted) {
                    return;
                }
            }
        }
    };
    within("the watch shows what happens", shown).await;
}

/// Makes more changes than etcd and the connections of the proxy hold for a client. Many at a time: the client gives up a connection
/// that is silent for longer.
async fn lag_behind(fixture: &Fixture, bob: &Palisade) {
    fixture.proxy.hold_all(Towards::Client);
    // The receive window of an HTTP/2 stream has 2 MiB, and etcd keeps 128 responses of a stream.
    let large = "x".repeat(4_000);
    let terms = (0..160).map(async |number| {
        let leader = bob.election(format!("boss/{number}")).campaign("first").await.expect("a leader");
        for _ in 0..5 {
            leader.publish(&large).await.expect("published");
        }
        leader.release().await.expect("it is held");
    });
    join_all(terms).await;
}
