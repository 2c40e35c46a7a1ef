//! The model once more, with rare events after every step: clean-up, the sweep, names that are used once,
//! abandoned sessions, other connections, jumps of the clock, crashes of the server, and callers with other settings.

use std::cell::{Cell, RefCell};

use palisade_cli::harness::wall_clock::WallClock;

use super::fixture::{Fixture, Server};
use super::functions::Functions;
use super::model::{Pair, check_cases, compare_with_rules};

#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do_with_all_that_is_rare_between_any_two_calls() {
    let fixture = Fixture::new();
    check_cases(10, async |cases| {
        compare_with_rules(Functions::of(&fixture).await.with_rare_forced(), cases, async |_| ()).await;
    });
}

#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do_whatever_the_settings_of_its_callers() {
    let fixture = Fixture::in_character_set("utf16");
    check_cases(10, async |cases| {
        compare_with_rules(Functions::of(&fixture).await.with_settings_of_others().await, cases, async |_| ()).await;
    });
}

/// A clock that is days ahead ends every session. When the clock is back, they stay ended.
#[test]
#[ignore = "long: random histories"]
fn the_database_does_what_the_rules_do_when_its_clock_jumps() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = WallClock::new(&folder.path().join("time")).expect("faketime is installed: scripts/setup");
    let server = Server::start_with(folder.path(), &clock.variables()).unwrap_or_else(|absent| panic!("{absent}"));
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 0").expect("it is not killed");
    let fixture = Fixture::at(server.address, "jumping");
    check_cases(5, async |cases| {
        let jumps = Cell::new(0_u32);
        compare_with_rules(Functions::of(&fixture).await.with_rare_forced(), cases, async |pair| {
            if pair.steps.is_multiple_of(11) {
                // Each time further, so that a lock-delay of an hour by that clock is over the next time.
                jumps.set(jumps.get() + 1);
                jump_ahead(pair, &clock, jumps.get()).await;
            }
        })
        .await;
    });
}

async fn jump_ahead(pair: &mut Pair<'_>, clock: &WallClock, days: u32) {
    clock.jump(&format!("+{days}d")).expect("the time can be set");
    pair.store.sweep().await;
    pair.expire_all();
    pair.compare().await;
    clock.jump("+0").expect("the time can be set");
    pair.compare().await;
    for (_, id) in pair.sessions.clone() {
        assert_eq!(pair.store.keep_alive(id).await, None, "a session that has ended came back with the clock");
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
        compare_with_rules(Functions::of(&fixture).await, cases, async |pair| {
            if pair.steps.is_multiple_of(19) {
                server.borrow_mut().kill();
                server.borrow_mut().restart().unwrap_or_else(|absent| panic!("{absent}"));
                pair.store.reconnect_all().await;
                pair.compare().await;
            }
        })
        .await;
    });
}
