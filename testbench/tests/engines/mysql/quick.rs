//! The fast path: one UPDATE of the client for an acquire and one for a release. Tests its checks, and the fallback to the
//! procedures.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use palisade::Palisade;
use palisade::engine::Watched;
use palisade_core::{Ending, Event};

use super::fixture::{
    Fixture, LONG_TTL, Server, check, client, install, retryable, take, taking, token, until, until_blocked,
    until_queued, until_some,
};
use super::sessions::ask as first;
use super::tables::{open, run};

/// Uses a lock twice, after which the client takes the fast path.
async fn use_twice(client: &Palisade, lock: &str) {
    for _ in 0..2 {
        take(client, lock).await.release().await.expect("it is held");
    }
}

/// Waits for a statement of this database that waits for a row, and returns it.
async fn waiting(store: &mut Conn) -> String {
    let sql = "SELECT info FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'UPDATE palisade_lock %'";
    until_some("an update waits for a row", async || first(store, sql).await).await
}

/// Returns a client's fast-path statements for an acquire and a release, with their values. They are read from the process list
/// while another transaction locks the row.
async fn statements(fixture: &Fixture, store: &mut Conn, user: &Palisade, lock: &str) -> [String; 2] {
    let mut busy = client(&fixture.url()).await;
    let hold = format!("SELECT name FROM palisade_lock WHERE name = '{lock}' FOR UPDATE");
    run(&mut busy, "START TRANSACTION").await;
    run(&mut busy, &hold).await;
    let taking = taking(user, lock);
    let take = waiting(store).await;
    run(&mut busy, "COMMIT").await;
    let guard = taking.await.expect("no panic").expect("it is free");
    run(&mut busy, "START TRANSACTION").await;
    run(&mut busy, &hold).await;
    let giving_back = tokio::spawn(async move { guard.release().await });
    let give_back = loop {
        let statement = waiting(store).await;
        // The list of processes may still show what has ended.
        if statement != take {
            break statement;
        }
    };
    run(&mut busy, "COMMIT").await;
    giving_back.await.expect("no panic").expect("it is held");
    let of_row = |column: &str| format!("SELECT {column} FROM palisade_lock WHERE name = '{lock}'");
    let [mut session, mut number, mut token] = [const { String::new() }; 3];
    for (value, column) in [(&mut session, "used_by"), (&mut number, "number"), (&mut token, "token")] {
        *value = first(store, &of_row(column)).await.expect("it was used");
    }
    let (name, epoch) = (&format!("'{lock}'"), &"1".to_owned());
    let (session, number, token) = (&session, &number, &token);
    [
        with(&take, &[session, session, number, name, session, epoch, number, number]),
        with(&give_back, &[name, session, token]),
    ]
}

/// Returns a prepared statement with its values.
fn with(statement: &str, values: &[&String]) -> String {
    assert_eq!(statement.matches('?').count(), values.len(), "{statement}");
    values.iter().fold(statement.to_owned(), |statement, value| statement.replacen('?', value, 1))
}

/// Opens a connection with the settings of a client's.
async fn set(fixture: &Fixture) -> Conn {
    let mut conn = client(&fixture.url()).await;
    run(&mut conn, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
    conn
}

#[test]
#[ignore = "long: several seconds"]
fn the_fast_path_needs_no_procedure_and_tokens_rise() {
    let fixture = Fixture::new();
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        let mut store = client(&fixture.url()).await;
        // Names of every script.
        let lock = "schloss/\u{1F512}?'";
        let mut last = token(&take(&alice, lock).await);
        use_twice(&alice, lock).await;
        // More than a block of tokens.
        for round in 0..600 {
            if round == 300 {
                for procedure in ["palisade_request", "palisade_give_back"] {
                    run(&mut store, &format!("DROP PROCEDURE {procedure}")).await;
                }
                run(&mut store, "UPDATE palisade_lock SET token = 100353").await;
            } else if round == 500 {
                install(&mut store).await;
            }
            let guard = take(&alice, lock).await;
            assert!(token(&guard) > last);
            last = token(&guard);
            guard.release().await.expect("it is held");
        }
    });
}

#[test]
fn tokens_of_a_lock_rise_for_every_client() {
    let fixture = Fixture::new();
    check(async {
        let clients = [fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await];
        let mut last = token(&take(&clients[0], "lock").await);
        for turn in [0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0] {
            let guard = take(&clients[turn], "lock").await;
            assert!(token(&guard) > last, "{:?} came after {last:?}", token(&guard));
            last = token(&guard);
            guard.release().await.expect("it is held");
        }
    });
}

#[test]
fn the_fast_path_statements_do_nothing_where_they_may_not() {
    let fixture = Fixture::new();
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        use_twice(&alice, "lock").await;
        let mut store = set(&fixture).await;
        let [take, give_back] = statements(&fixture, &mut store, &alice, "lock").await;
        let is = first(&mut store, "SELECT CONCAT_WS(' ', used_by, number, token) FROM palisade_lock").await;
        let is = is.expect("it was used");
        let [session, number, token] = is.split(' ').collect::<Vec<_>>()[..] else { panic!("{is}") };
        let free = format!("UPDATE palisade_lock SET session = NULL, number = NULL, token = {token}");
        let held = format!("UPDATE palisade_lock SET session = {session}, number = {number}, token = {token}");
        let lives = format!(
            "UPDATE palisade_session SET ended = NULL, deadline = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, epoch = 1, \
             forgotten = 0, withdrawn = '' WHERE id = {session}"
        );
        let unwatched = "UPDATE palisade_watched SET until = '2000-01-01'".to_owned();
        let idle =
            "UPDATE palisade_lock SET taken = 0, waiting = 0, withheld_until = NULL, delay_ms = NULL, value = NULL, \
             history = NULL"
                .to_owned();
        let lock = |set: &str| format!("UPDATE palisade_lock SET {set}");
        let of_session = |set: &str| format!("UPDATE palisade_session SET {set} WHERE id = {session}");
        let watched = "UPDATE palisade_watched SET until = UTC_TIMESTAMP(6) + INTERVAL 10 SECOND".to_owned();
        let may_not_take = [
            lock("session = 7"),
            lock("taken = 1"),
            lock("waiting = 1"),
            lock("token = 256"),
            lock("token = 9007199254740991"),
            of_session("ended = 'closed'"),
            of_session("deadline = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND"),
            of_session("epoch = 2"),
            of_session(&format!("forgotten = {number}")),
            of_session(&format!("withdrawn = '1000,{number}'")),
            of_session("id = 7"),
            watched.clone(),
            "DELETE FROM palisade_watched".to_owned(),
        ];
        let may_not_give_back = [
            lock("session = 7"),
            lock("session = NULL"),
            lock(&format!("token = {token} + 1")),
            lock("waiting = 1"),
            lock("withheld_until = UTC_TIMESTAMP(6)"),
            lock("delay_ms = 1"),
            lock("value = 'x'"),
            lock("history = 'x'"),
            watched.clone(),
            "DELETE FROM palisade_watched".to_owned(),
        ];
        for (statement, begin, hindrances) in
            [(&take, &free, &may_not_take[..]), (&give_back, &held, &may_not_give_back[..])]
        {
            for hindrance in hindrances.iter().map(Some).chain([None]) {
                for sql in [&idle, begin, &lives, &unwatched].into_iter().chain(hindrance) {
                    run(&mut store, sql).await;
                }
                run(&mut store, statement).await;
                assert_eq!(store.affected_rows(), u64::from(hindrance.is_none()), "{hindrance:?}: {statement}");
                run(&mut store, &format!("UPDATE palisade_session SET id = {session} WHERE id = 7")).await;
                run(&mut store, "INSERT IGNORE INTO palisade_watched VALUES (1, '2000-01-01')").await;
            }
        }
    });
}

/// No call would ever end a grant that is made between the two. The server's default isolation would allow that.
#[test]
#[ignore = "long: several seconds"]
fn a_session_ends_before_a_request_of_it_or_after_it() {
    let folder = tempfile::tempdir().expect("a directory");
    let server = Server::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
    server
        .run("SET GLOBAL transaction_isolation = 'READ-COMMITTED'")
        .or_else(|_| server.run("SET GLOBAL tx_isolation = 'READ-COMMITTED'"))
        .expect("it is set");
    let fixture = Fixture::at(server.address, "own");
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        use_twice(&alice, "lock").await;
        let (mut store, mut ending) = (client(&fixture.url()).await, client(&fixture.url()).await);
        run(&mut ending, "START TRANSACTION").await;
        run(&mut ending, "UPDATE palisade_session SET ended = 'closed'").await;
        let asking = taking(&alice, "lock");
        waiting(&mut store).await;
        until_blocked(&mut store, || assert!(!asking.is_finished(), "it is answered while its session ends")).await;
        run(&mut ending, "COMMIT").await;
        asking.await.expect("no panic").map(drop).expect_err("its session has ended");
        let held = "SELECT COUNT(*) FROM palisade_lock WHERE session IS NOT NULL";
        assert_eq!(first(&mut store, held).await.as_deref(), Some("0"));
    });
}

/// A new watcher lists the locks, and then receives later events. An operation in flight is neither of the two,
/// unless it is waited for.
#[test]
#[ignore = "long: several seconds"]
fn a_watch_begins_when_what_was_under_way_is_done() {
    for is_held in [true, false] {
        let fixture = Fixture::new();
        check(async {
            let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
            use_twice(&alice, "lock").await;
            let (mut store, mut under_way) = (client(&fixture.url()).await, set(&fixture).await);
            let [take, give_back] = statements(&fixture, &mut store, &alice, "lock").await;
            if !is_held {
                run(&mut store, "UPDATE palisade_lock SET token = token - 1").await;
                run(&mut under_way, &take).await;
            }
            run(&mut under_way, "START TRANSACTION").await;
            run(&mut under_way, if is_held { &take } else { &give_back }).await;
            assert_eq!(under_way.affected_rows(), 1, "{take}; {give_back}");
            let watches = bob.clone();
            let watching = tokio::spawn(async move {
                // A call fails that waits for five seconds, and the machine may stand still for longer.
                loop {
                    if let Some(watch) = retryable(watches.watch("").await) {
                        return watch;
                    }
                }
            });
            let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE \
                 'SELECT%palisade_watched w WHERE%FOR UPDATE' AND time_ms > 20";
            until("the watch waits for the row", async || {
                assert!(!watching.is_finished(), "it watches, and does not see what is under way");
                first(&mut store, waits).await.as_deref() != Some("0")
            })
            .await;
            run(&mut under_way, "COMMIT").await;
            let _watch = watching.await.expect("no panic");
            assert_eq!(bob.inspect("lock").await.expect("an answer").is_some(), is_held);
        });
    }
}

/// Also of a lock that the same client had before there was a watcher.
#[test]
fn a_watcher_sees_fast_path_grants() {
    let fixture = Fixture::new();
    check(async {
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        use_twice(&alice, "lock").await;
        let mut watch = bob.watch("lock").await.expect("it is watched");
        for _ in 0..3 {
            take(&alice, "lock").await.release().await.expect("it is held");
            let event = watch.next().await;
            assert!(matches!(event, Some(Watched::Event(Event::Granted { .. }))), "{event:?}");
            let event = watch.next().await;
            let is_released = matches!(event, Some(Watched::Event(Event::GrantEnded { how: Ending::Released, .. })));
            assert!(is_released, "{event:?}");
        }
    });
}

/// The reply was lost, and the client repeats the request with the same number.
#[test]
fn a_repeat_of_what_was_taken_by_a_statement_is_recognised() {
    let fixture = Fixture::new();
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        use_twice(&alice, "lock").await;
        let guard = take(&alice, "lock").await;
        let mut store = client(&fixture.url()).await;
        let is = first(&mut store, "SELECT CONCAT_WS(', 1, ', session, number) FROM palisade_lock").await;
        let is = is.expect("it is held");
        let again =
            format!("CALL palisade_request({is}, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)");
        let row: Option<(String, u64, Option<String>)> = store.query_first(again).await.expect("an answer");
        let row = row.map(|(said, token, _)| (said, token));
        assert_eq!(row, Some(("granted".to_owned(), token(&guard).get())));
        let (session, number) = is.split_once(", 1, ").expect("two numbers");
        let cancelled = first(&mut store, &format!("CALL palisade_cancel({session}, {number})")).await;
        assert_eq!(cancelled.as_deref(), Some("granted"));
    });
}

/// Without the right to write to the table the procedures are used; with it they are not needed.
#[test]
fn a_user_without_write_access_takes_locks_by_procedures() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let database = first(&mut store, "SELECT DATABASE()").await.expect("it has one");
        let user = format!("quick_{database}");
        run(&mut store, &format!("CREATE USER {user}@'%'")).await;
        run(&mut store, &format!("GRANT EXECUTE, SELECT ON {database}.* TO {user}@'%'")).await;
        let url = fixture.url().replace("root@", &format!("{user}@"));
        // The remaining number shows how the lock was released.
        let by_statement = "SELECT number IS NOT NULL FROM palisade_lock WHERE name = 'lock'";
        for (rights, is_by_statement) in [(None, "0"), (Some("UPDATE"), "1")] {
            if let Some(rights) = rights {
                run(&mut store, &format!("GRANT {rights} ON {database}.palisade_lock TO {user}@'%'")).await;
            }
            let app = palisade::Options::new().ttl(LONG_TTL).connect(&url).await.expect("it is let in");
            use_twice(&app, "lock").await;
            use_twice(&app, "lock").await;
            assert_eq!(first(&mut store, by_statement).await.as_deref(), Some(is_by_statement), "{rights:?}");
        }
    });
}

/// A grant is found when its session ends, when its client reconnects, and when it polls, on whatever path it was made.
#[test]
fn every_grant_of_a_session_is_found_however_it_was_granted() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let alice = fixture.client(LONG_TTL).await;
        for way in [
            "new",
            "there",
            "with a value",
            "handed over",
            "taken away",
            "left by an ended session",
            "by a statement",
        ] {
            let name = format!("lock/{way}");
            let (before, mut bob, carol) = (open(&mut store).await, open(&mut store).await, open(&mut store).await);
            let mut number = "2".to_owned();
            if way != "new" {
                run(&mut store, &format!("CALL palisade_request({before}, 0, 1, CONCAT(HEX('{name}'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            }
            let sql = format!("SELECT token FROM palisade_lock WHERE name = '{name}'");
            let held = first(&mut store, &sql).await.unwrap_or_default();
            let give_back = format!("CALL palisade_give_back({before}, '{name}', {held})");
            if ["there", "with a value", "by a statement"].contains(&way) {
                run(&mut store, &give_back).await;
            }
            let hex: String = name.bytes().map(|byte| format!("{byte:02X}")).collect();
            let mut guard = None;
            match way {
                "by a statement" => {
                    use_twice(&alice, &name).await;
                    guard = Some(take(&alice, &name).await);
                    let sql = format!("SELECT CONCAT(session, ' ', number) FROM palisade_lock WHERE name = '{name}'");
                    let is = first(&mut store, &sql).await.expect("it is held");
                    let (session, request) = is.split_once(' ').expect("two numbers");
                    (bob, number) = (session.parse().expect("a number"), request.to_owned());
                }
                "with a value" => {
                    let request =
                        format!("CALL palisade_request({bob}, 0, 2, '{hex}:4294967295:', '1', 1, 1, NULL, 'x')");
                    run(&mut store, &request).await;
                }
                _ => run(&mut store, &format!("CALL palisade_request({bob}, 0, 2, CONCAT(HEX('{name}'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await,
            }
            match way {
                "handed over" => run(&mut store, &give_back).await,
                "taken away" => run(&mut store, &format!("CALL palisade_force('{name}', NULL, 'me', 'me')")).await,
                "left by an ended session" => run(&mut store, &format!("CALL palisade_close({before})")).await,
                _ => {}
            }
            let attached: Vec<Row> = store.query(format!("CALL palisade_attach({bob}, 0)")).await.expect("an answer");
            let found = attached.iter().any(|row| row.get::<Option<String>, _>(1).flatten().as_ref() == Some(&name));
            assert!(found, "{way}");
            let cancelled = first(&mut store, &format!("CALL palisade_cancel({bob}, {number})")).await;
            assert_eq!(cancelled.as_deref(), Some("granted"), "{way}");
            let queued = first(&mut store, &format!("CALL palisade_request({carol}, 0, 3, CONCAT(HEX('{name}'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            assert_eq!(queued.as_deref(), Some("queued"), "{way}");
            run(&mut store, &format!("CALL palisade_close({bob})")).await;
            let holder = format!("SELECT session FROM palisade_lock WHERE name = '{name}'");
            assert_eq!(first(&mut store, &holder).await, Some(carol.to_string()), "{way}");
            drop(guard);
        }
    });
}

/// A value, a lock-delay and a history end with their holder.
#[test]
fn a_new_holder_finds_nothing_of_the_one_before() {
    let fixture = Fixture::new();
    check(async {
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let mut store = client(&fixture.url()).await;
        let left = "SELECT CONCAT_WS(' ', value, delay_ms, history, withheld_until) FROM palisade_lock";
        for before in ["value", "delay", "history"] {
            use_twice(&alice, "lock").await;
            let guard = take(&alice, "lock").await;
            match before {
                "value" => run(&mut store, "UPDATE palisade_lock SET value = 'x'").await,
                "delay" => run(&mut store, "UPDATE palisade_lock SET delay_ms = 1000").await,
                _ => {}
            }
            let waiting = (before == "history").then(|| taking(&bob, "lock"));
            if waiting.is_some() {
                until_queued(&alice, "lock", 1).await;
            }
            guard.release().await.expect("it is held");
            if let Some(waiting) = waiting {
                waiting.await.expect("no panic").expect("its turn comes").release().await.expect("it is held");
            }
            let _guard = take(&alice, "lock").await;
            assert_eq!(first(&mut store, left).await.as_deref(), Some(""), "{before}");
        }
    });
}

/// Tables of a version that was never released are not used, and not touched; the message says what to do.
#[test]
fn tables_of_an_unreleased_version_are_refused() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        run(&mut store, "UPDATE palisade_version SET version = 2, usable_from = 1").await;
        let error = palisade::connect(&fixture.url()).await.map(drop).expect_err("it cannot be used");
        assert!(error.to_string().contains("drop the tables of the locks") && !error.is_retryable(), "{error}");
        let schema = palisade::engine::mysql::SCHEMA;
        let guard = schema.split("$$\n").find(|statement| statement.contains("PROCEDURE palisade_install()"));
        run(&mut store, guard.expect("it is there").trim()).await;
        store.query_drop("CALL palisade_install()").await.expect_err("it cannot be installed over them");
    });
}
