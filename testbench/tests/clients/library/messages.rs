//! Error messages: what failed, on which lock and engine, what is now known, what to do.

use std::fmt::Display;
use std::time::Duration;

use insta::assert_snapshot;
use palisade::engine::{Guarantees, Level, Offers};
use palisade::{Error, Loss, Options};
use palisade_testbench::faulty_engine::{Act, Call, Cut, EngineFaults};

use super::fixture::{Fixture, SHORT_TTL, check};

fn message<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => with_answers(&error),
    }
}

/// The message, and the answers to the two questions.
fn with_answers(error: &Error) -> String {
    let retry = if error.is_retryable() { "may be retried" } else { "not to be retried" };
    let effect = if error.may_have_taken_effect() { "may have taken effect" } else { "no effect" };
    format!("{error} | {retry}, {effect}")
}

fn text(what: &impl Display) -> String {
    what.to_string()
}

#[test]
fn messages_about_names() {
    check(async {
        let client = Fixture::new().client().await;
        assert_snapshot!(message(client.lock("").acquire().await), @"cannot acquire '' on memory: a lock's name must not be empty | not to be retried, no effect");
        assert_snapshot!(message(client.lock("$mine").try_acquire().await), @"cannot acquire '$mine' on memory: names that begin with '$' are reserved | not to be retried, no effect");
        assert_snapshot!(message(client.inspect("two\nlines").await), @r#"cannot inspect 'two\nlines' on memory: a lock's name must not contain control characters (one is at byte 3) | not to be retried, no effect"#);
        assert_snapshot!(message(client.force_release("esc\u{1b}[2J", "why").await), @r#"cannot force the release of 'esc\u{1b}[2J' on memory: a lock's name must not contain control characters (one is at byte 3) | not to be retried, no effect"#);
        let long = message(client.lock("x".repeat(1025)).acquire().await);
        assert_snapshot!(long.replace(&"x".repeat(1025), "xxx…"), @"cannot acquire 'xxx…' on memory: a lock's name must not be longer than 1024 bytes; this one has 1025 | not to be retried, no effect");
        let long = message(client.lock("x".repeat(600)).acquire().await);
        assert_snapshot!(long.replace(&"x".repeat(600), "xxx…"), @"cannot acquire 'xxx…' on memory: the length of a lock's name in bytes is limited to 512, this would be 600 | not to be retried, no effect");
    });
}

#[test]
fn messages_about_urls_and_times() {
    check(async {
        let fixture = Fixture::new();
        assert_snapshot!(message(palisade::connect("redis\u{7}://localhost").await), @r#"cannot connect: 'redis\u{7}' names no engine of this build; there are: consul:, consuls:, embedded:, etcd:, etcds:, memory:, mysql:, palisade:, palisades:, postgres:, postgresql:, redis:, rediss:, redlock:, zk:, zookeeper: | not to be retried, no effect"#);
        let connect = async |ttl| message(Options::new().ttl(ttl).connect(&fixture.url()).await);
        assert_snapshot!(connect(Duration::ZERO).await, @"cannot open a session on memory: ttl_ms must not be 0 | not to be retried, no effect");
        assert_snapshot!(connect(Duration::from_millis(5)).await, @"cannot open a session on memory: ttl_ms must be at least 100, this is 5 | not to be retried, no effect");
        assert_snapshot!(connect(Duration::from_secs(4_000_000)).await, @"cannot open a session on memory: ttl_ms is limited to 3888000000, this would be 4000000000 | not to be retried, no effect");
        assert_snapshot!(connect(Duration::MAX).await, @"cannot open a session on memory: ttl_ms 18446744073709551615 is above the highest possible, 4294967295 | not to be retried, no effect");
        let client = fixture.client().await;
        assert_snapshot!(message(client.lock("a").delay(Duration::ZERO).acquire().await), @"cannot acquire 'a' on memory: delay_ms must not be 0 | not to be retried, no effect");
    });
}

#[test]
fn messages_about_refusals() {
    check(async {
        let client = Fixture::new().client().await;
        let _permit = client.semaphore("gpu", 4).acquire().await.expect("it is free");
        let guard = client.lock("lock").acquire().await.expect("it is free");
        let token = guard.token().expect("it is held");
        assert_snapshot!(message(client.semaphore("gpu", 2).acquire().await), @"cannot acquire 'gpu' on memory: semaphore 'gpu' is in use with 4 permits, not 2; use 4, or wait until it is free | not to be retried, no effect");
        assert_snapshot!(message(client.semaphore("gpu", 4).acquire_many(5).await), @"cannot acquire 'gpu' on memory: 5 permits of 4 cannot be had: take between 1 and all of them | not to be retried, no effect");
        assert_snapshot!(message(client.semaphore("lock", 4).acquire().await), @"cannot acquire 'lock' on memory: 'lock' is in use as a lock, it cannot be used as a semaphore of 4 at the same time | not to be retried, no effect");
        assert_snapshot!(message(client.lock_all(["a", "a"]).acquire().await), @"cannot acquire 'a, a' on memory: lock 'a' is named twice in one request | not to be retried, no effect");
        assert_snapshot!(message(client.lock_all(Vec::<String>::new()).acquire().await), @"cannot acquire '' on memory: no lock was named | not to be retried, no effect");
        assert_snapshot!(message(client.force_release("nobody's", "why").await), @r#"cannot force the release of 'nobody\'s' on memory: lock 'nobody's' is not held by anyone | not to be retried, no effect"#);
        assert_snapshot!(message(client.force_release_only("gpu", token, "why").await), @"cannot force the release of 'gpu' on memory: token 2 does not hold lock 'gpu': it was released or taken away, its session ended, or it is another lock's | not to be retried, no effect");
        assert_snapshot!(message(client.election("boss").campaign(vec![0; 5000]).await), @"cannot acquire 'boss' on memory: the length of a value in bytes is limited to 4096, this would be 5000 | not to be retried, no effect");
    });
}

#[test]
#[ignore = "long: several seconds"]
fn messages_about_losses() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client_with(&faults, Options::new().ttl(SHORT_TTL)).await;
        let operator = Options::new().label("eve\u{1b}[31m").connect(&fixture.url()).await.expect("a client");
        let guard = client.lock("orders/42").acquire().await.expect("it is free");
        operator.force_release("orders/42", "it\nhangs").await.expect("it is held");
        guard.lost().await;
        assert_snapshot!(message(guard.token()), @r#"cannot use 'orders/42' on memory: it was taken away by eve\u{1b}[31m: it\nhangs; stop the work and acquire it again | may be retried, no effect"#);
        assert_snapshot!(message(guard.release().await), @r#"cannot release 'orders/42' on memory: it was taken away by eve\u{1b}[31m: it\nhangs; stop the work and acquire it again | may be retried, no effect"#);
        let guard = client.lock("orders/42").acquire().await.expect("it is free");
        guard.release().await.expect("it is held");
        assert_snapshot!(message(guard.token()), @"cannot use 'orders/42' on memory: it was released; acquire it again first | not to be retried, no effect");

        let both = client.lock_all(["a", "b"]).acquire().await.expect("they are free");
        faults.cut(Cut::Failing);
        both.lost().await;
        let lost = message(both.token());
        // A client that notices the loss a second late takes its process for paused.
        if !lost.contains("this process was paused for ") {
            assert_snapshot!(lost, @"cannot use 'a, b' on memory: the engine could not be reached to keep its session alive, and another client may hold it by now; stop the work and acquire it again | may be retried, no effect");
        }
        faults.mend();
        let leadership = client.election("boss").campaign("me").await.expect("it is free");
        client.clone().close().await.expect("it is closed");
        assert_snapshot!(message(leadership.publish("late").await), @"cannot publish a value for 'boss' on memory: its session was closed; connect again | not to be retried, no effect");
        assert_snapshot!(message(client.lock("orders/42").acquire().await), @"cannot acquire 'orders/42' on memory: its session was closed; connect again | not to be retried, no effect");
        assert_snapshot!(message(client.list("orders/").await), @"cannot list locks below 'orders/' on memory: its session was closed; connect again | not to be retried, no effect");
        assert_snapshot!(text(&Loss::Expired), @"its session is over: it was not kept alive in time, or was deleted");
    });
}

#[test]
fn messages_about_outages() {
    check(async {
        let (fixture, faults) = (Fixture::new(), EngineFaults::default());
        let client = fixture.faulty_client(&faults).await;
        let guard = client.lock("orders/42").acquire().await.expect("it is free");
        assert_snapshot!(message(guard.ensure(Duration::from_secs(3600))), @"cannot use 'orders/42' on memory: 3600s are needed, and a keep-alive is good for 29.7s; connect with a longer TTL | not to be retried, no effect");
        let ensured = message(guard.ensure(guard.safe_until().left() + Duration::from_micros(1)));
        let (before, after) = ensured.split_once("only ").expect("it says how much is left");
        let (_, after) = after.split_once(" are needed").expect("it says how much is needed");
        assert_snapshot!(format!("{before}only … are left until it may be lost, and … are needed{after}"), @"cannot use 'orders/42' on memory: only … are left until it may be lost, and … are needed; wait for a renewal (nothing has changed) | may be retried, no effect");
        faults.next(Call::Inspect, Act::Fail);
        assert_snapshot!(message(client.inspect("orders/42").await), @"cannot inspect 'orders/42' on memory: the line to the engine is cut (nothing has changed) | may be retried, no effect");
        faults.next(Call::Inspect, Act::LoseAnswer);
        assert_snapshot!(message(client.inspect("orders/42").await), @"cannot inspect 'orders/42' on memory: the answer was lost (nothing has changed) | may be retried, no effect");
        faults.next(Call::Release, Act::LoseAnswer);
        assert_snapshot!(message(guard.release().await), @"cannot release 'orders/42' on memory: the answer was lost (it may have taken effect) | may be retried, may have taken effect");
        faults.next(Call::Acquire, Act::LoseAnswer);
        assert_snapshot!(message(client.lock("orders/43").try_acquire().await), @"cannot acquire 'orders/43' on memory: the answer was lost (it may have taken effect) | may be retried, may have taken effect");
        faults.cut(Cut::Silent);
        assert_snapshot!(message(client.close().await), @"cannot close the session on memory: the engine did not answer; the session ends by its TTL (it may have taken effect) | may be retried, may have taken effect");
    });
}

#[test]
fn messages_about_operations_that_an_engine_does_not_offer() {
    fn little(guarantees: Guarantees) -> Guarantees {
        Guarantees { engine: "little", level: Level::HealthyOnly, offers: Offers::NONE, ..guarantees }
    }
    check(async {
        let client = Fixture::new().faulty_client(&EngineFaults::declaring(little)).await;
        assert_snapshot!(message(client.lock("orders/42").acquire().await), @"cannot acquire 'orders/42' on little: this engine is healthy-only: it cannot issue tokens that always rise, so two holders at once could not be told apart; use a fenced engine, or .efficiency() if two holders would only waste work, or .dangerous_accept_failover() if lower tokens after a failover are acceptable | not to be retried, no effect");
        assert_snapshot!(message(client.rw_lock("table").read().acquire().await), @"cannot acquire 'table' on little: this engine has no shared locks; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.semaphore("gpu", 4).acquire().await), @"cannot acquire 'gpu' on little: this engine has no semaphores; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.lock_all(["a", "b"]).acquire().await), @"cannot acquire 'a, b' on little: this engine has no way to take several locks at once; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.election("boss").campaign("me").await), @"cannot acquire 'boss' on little: this engine has no elections; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.election("boss").observe().await), @"cannot observe 'boss' on little: this engine has no way to watch; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.lock("a").delay(Duration::from_secs(1)).acquire().await), @"cannot acquire 'a' on little: this engine has no lock-delay; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.force_release("a", "why").await), @"cannot force the release of 'a' on little: this engine has no force-release; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.list("a").await), @"cannot list locks below 'a' on little: this engine has no list of locks; use another engine for it | not to be retried, no effect");
        assert_snapshot!(message(client.watch("a").await), @"cannot watch locks below 'a' on little: this engine has no way to watch; use another engine for it | not to be retried, no effect");
    });
}
