//! The model once more, with rare events after every step: clean-up, the sweep, names that are used once,
//! abandoned sessions, jumps of the clock, crashes of the server, and callers in every kind of transaction.

use std::cell::RefCell;

use super::fixture::{Fixture, Server};
use super::functions::Functions;
use super::model::{Pair, check_cases, compare_with_rules};

#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do_with_all_that_is_rare_between_any_two_calls() {
    let fixture = Fixture::new();
    check_cases(12, async |cases| {
        compare_with_rules(Functions::of(&fixture).await.with_rare_forced(), cases, async |_| ()).await;
    });
}

#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do_in_every_kind_of_transaction() {
    let fixture = Fixture::new();
    check_cases(8, async |cases| {
        let store = Functions::of(&fixture).await.with_rare_forced().in_transactions();
        compare_with_rules(store, cases, async |_| ()).await;
    });
}

/// A clock that is a day ahead ends every session that a call finds expired. When the clock is back, they stay ended.
#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do_when_its_clock_jumps() {
    let fixture = Fixture::new();
    check_cases(6, async |cases| {
        compare_with_rules(Functions::of(&fixture).await.with_rare_forced(), cases, async |pair| {
            if pair.steps.is_multiple_of(11) {
                jump_ahead(pair).await;
            }
        })
        .await;
    });
}

async fn jump_ahead(pair: &mut Pair<'_>) {
    pair.store.set_clock("1 day").await;
    // A delay that began at an earlier jump, by the clock of that day, is over as well.
    pair.store.end_all_delays().await;
    pair.store.sweep().await;
    pair.expire_all();
    pair.compare().await;
    pair.store.set_clock("0").await;
    pair.compare().await;
    for (_, id) in pair.sessions.clone() {
        let row = pair.store.client().query_one("SELECT palisade.keep_alive($1)", &[&id]).await.expect("an answer");
        assert!(!row.get::<_, bool>(0), "a session that has ended came back with the clock");
    }
    // Other sessions go on.
    pair.open().await;
}

/// The server is killed between two calls and restarted: all acknowledged changes remain.
#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do_over_crashes() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
    let fixture = Fixture::at(server.address, "crashing");
    check_cases(4, async |cases| {
        let server = RefCell::new(server);
        let store = Functions::of(&fixture).await.with_rare_forced();
        compare_with_rules(store, cases, async |pair| {
            if pair.steps.is_multiple_of(17) {
                server.borrow_mut().kill();
                server.borrow_mut().restart().unwrap_or_else(|absent| panic!("{absent}"));
                pair.store.reconnect(&fixture.url()).await;
                pair.compare().await;
            }
        })
        .await;
    });
}
