//! The requests that operations cost, as etcd counts them.

use super::fixture::{Fixture, LONG_TTL, alone, check, take, taken, taking, until_queued};

/// All requests but watches and keep-alives are unary.
fn requests(fixture: &Fixture) -> u64 {
    let counters = fixture.metrics("grpc_server_handled_total{");
    let is_unary = |line: &str| line.contains("grpc_type=\"unary\"") && !line.contains("Authenticate");
    counters.lines().filter(|line| is_unary(line)).map(count).sum()
}

fn count(line: &str) -> u64 {
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number: {line}"))
}

/// One request each, in an open session.
#[test]
fn an_acquire_and_a_release_are_one_request_each() {
    check(async {
        let fixture = alone();
        let client = fixture.client(LONG_TTL).await;
        let before = requests(&fixture);
        for _ in 0..10 {
            take(&client, "lock").await.release().await.expect("released");
        }
        assert_eq!(requests(&fixture) - before, 20);
        let before = requests(&fixture);
        for _ in 0..10 {
            let held = client.lock("lock").try_acquire().await.expect("an answer").expect("it is free");
            held.release().await.expect("released");
            let all = client.lock_all(["a", "b", "c"]).acquire().await.expect("they are free");
            all.release().await.expect("released");
        }
        assert_eq!(requests(&fixture) - before, 40);
    });
}

/// A hand-over is a release and one read of the next waiter, however many others wait.
#[test]
fn a_hand_over_wakes_one_waiter_only() {
    check(async {
        let fixture = alone();
        let client = fixture.client(LONG_TTL).await;
        let mut held = take(&client, "lock").await;
        let mut waiters = Vec::new();
        for number in 1..=20 {
            waiters.push(taking(&client, "lock"));
            until_queued(&client, "lock", number).await;
        }
        let before = requests(&fixture);
        for waiter in waiters {
            held.release().await.expect("released");
            held = taken(waiter).await;
        }
        assert_eq!(requests(&fixture) - before, 40);
    });
}
