//! The end of a session, and a grant, are one durable decision each, whatever the clock, other rows and other calls do.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};
use palisade_core::LockName;

use super::fixture::{Fixture, LONG_TTL, Server, check, client, take, until, until_blocked};
use super::functions::{assert_consistent, contradictions};
use super::tables::{open, run};

/// The first column of the first row, as text; `None` for NULL, and for no row.
pub(crate) async fn ask(store: &mut Conn, sql: &str) -> Option<String> {
    let row: Option<Row> = store.query_first(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    row.and_then(|row| row.get::<Option<String>, _>(0)).flatten()
}

/// Sweeps until nothing is left to do.
pub(crate) async fn sweep(store: &mut Conn) {
    let sweep = "CALL palisade_sweep(1000)";
    until("nothing is left to sweep", async || ask(store, sweep).await.as_deref() != Some("1")).await;
}

/// The code of a refusal.
async fn refused(store: &mut Conn, sql: &str) -> u16 {
    match store.query_drop(sql).await {
        Err(Error::Server(error)) => error.code,
        other => panic!("{sql}: {other:?}"),
    }
}

/// Every grant has a row, also while rows of other names are removed as fast as possible.
#[test]
#[ignore = "long: crowds"]
fn a_grant_has_a_row_while_other_rows_are_removed() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let many: Vec<_> = (0..1200).map(|number| format!("('{number}/idle', 1)")).collect();
        run(&mut store, &format!("INSERT INTO palisade_lock (name, token) VALUES {}", many.join(","))).await;
        let url = fixture.url();
        let sweeping = tokio::spawn(async move {
            let mut other = client(&url).await;
            loop {
                other.query_drop("CALL palisade_sweep(0)").await.expect("it sweeps");
            }
        });
        let session = open(&mut store).await;
        for number in 1..=400 {
            let name = format!("{number}/new");
            let call = match number % 2 {
                0 => format!(
                    "CALL palisade_request({session}, 0, {number}, CONCAT(HEX('{name}'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
                ),
                _ => {
                    let hex: String = name.bytes().map(|byte| format!("{byte:02X}")).collect();
                    format!("CALL palisade_request({session}, 0, {number}, '{hex}:1:', '1', 1, 1, NULL, NULL)")
                }
            };
            let row: Option<Row> = store.query_first(call).await.expect("an answer");
            let row = row.expect("an answer");
            assert_eq!(row.get::<String, _>(0).as_deref(), Some("granted"));
            let token: u64 = row.get(1).expect("a token");
            let held = format!("SELECT token FROM palisade_locks WHERE name = '{name}' AND session = {session}");
            assert_eq!(ask(&mut store, &held).await, Some(token.to_string()), "{name}");
        }
        sweeping.abort();
        assert_consistent(&mut store).await;
    });
}

/// A session that looks expired for a moment ends with its waits and grants, or keeps all of them.
#[test]
fn a_waiter_is_not_dropped_while_its_session_lives_on() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        for (round, meanwhile) in
            ["release", "request", "nudge", "keep-alive", "busy release", "sweep", "attach", "cancel"]
                .into_iter()
                .enumerate()
        {
            let lock = format!("lock/{round}");
            let (alice, bob, carol) = (open(&mut store).await, open(&mut store).await, open(&mut store).await);
            run(&mut store, &format!("CALL palisade_request({alice}, 0, 1, CONCAT(HEX('{lock}'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            run(
                &mut store,
                &format!(
                    "CALL palisade_request({bob}, 0, 1, CONCAT(HEX('{lock}'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
                ),
            )
            .await;
            run(&mut store, &format!("CALL palisade_request({bob}, 0, 2, CONCAT(HEX('{lock}/other'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            let token = ask(&mut store, &format!("SELECT token FROM palisade_lock WHERE name = '{lock}'")).await;
            let token = token.expect("it is held");
            let release = format!("CALL palisade_give_back({alice}, '{lock}', {token})");
            let overdue =
                |when| format!("UPDATE palisade_session SET deadline = UTC_TIMESTAMP(6) {when} WHERE id = {bob}");
            let mut busy = client(&fixture.url()).await;
            run(&mut store, &overdue("- INTERVAL 1 SECOND")).await;
            match meanwhile {
                "release" => run(&mut store, &release).await,
                "busy release" => {
                    // A keep-alive that commits late: its row is busy meanwhile.
                    run(&mut busy, "START TRANSACTION").await;
                    run(&mut busy, &overdue("+ INTERVAL 1 HOUR")).await;
                    run(&mut store, &release).await;
                    run(&mut busy, "COMMIT").await;
                }
                "request" => run(&mut store, &format!("CALL palisade_request({carol}, 0, 1, CONCAT(HEX('{lock}'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await,
                "nudge" => {
                    run(&mut store, &format!("CALL palisade_request({carol}, 0, 1, CONCAT(HEX('{lock}'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
                    run(&mut store, &format!("CALL palisade_nudge({carol}, 1)")).await;
                }
                "keep-alive" => run(&mut store, &format!("CALL palisade_keep_alive({bob})")).await,
                "sweep" => sweep(&mut store).await,
                "attach" => run(&mut store, &format!("CALL palisade_attach({bob}, 1)")).await,
                _ => run(&mut store, &format!("CALL palisade_cancel({bob}, 7)")).await,
            }
            // The clock is back.
            run(&mut store, &format!("{} AND ended IS NULL", overdue("+ INTERVAL 1 HOUR"))).await;
            let lives = ask(&mut store, &format!("CALL palisade_keep_alive({bob})")).await.is_some();
            assert_eq!(lives, ["request", "nudge", "busy release"].contains(&meanwhile), "{meanwhile}");
            if meanwhile != "release" && meanwhile != "busy release" {
                run(&mut store, &release).await;
            }
            let places =
                format!("SELECT COUNT(*) FROM palisade_locks WHERE session = {bob} AND state IN ('held', 'waiting')");
            assert_eq!(ask(&mut store, &places).await.as_deref(), Some(if lives { "2" } else { "0" }), "{meanwhile}");
            let held = ask(&mut store, &format!("SELECT session FROM palisade_lock WHERE name = '{lock}'")).await;
            assert_eq!(held == Some(bob.to_string()), lives, "{meanwhile}: it is {held:?}");
            assert_consistent(&mut store).await;
        }
    });
}

/// An acknowledged keep-alive is durable: a crash does not shorten the session.
#[test]
#[ignore = "long: killed and stopped processes"]
fn a_keep_alive_survives_a_crash() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
    let fixture = Fixture::at(server.address, "kept");
    check(async {
        let mut store = fixture.store().await;
        let session = open(&mut store).await;
        for _ in 0..3 {
            let kept = ask(&mut store, &format!("CALL palisade_keep_alive({session})")).await;
            let deadline = format!("SELECT CONCAT(kept, ' ', deadline) FROM palisade_session WHERE id = {session}");
            let before = ask(&mut store, &deadline).await;
            let opened = open(&mut store).await;
            server.kill();
            server.restart().unwrap_or_else(|absent| panic!("{absent}"));
            store = client(&fixture.url()).await;
            assert_eq!(ask(&mut store, &deadline).await, before, "kept {kept:?}");
            let lives = ask(&mut store, &format!("CALL palisade_keep_alive({opened})")).await;
            assert_eq!(lives.as_deref(), Some("1"), "what was opened is there");
        }
    });
}

/// Every procedure for clients. The caller's transaction goes on as if nothing had been called.
#[test]
fn a_callers_own_transaction_is_refused_and_left_alone() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        run(&mut store, "CREATE TABLE work (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB").await;
        let (session, mut done) = (open(&mut store).await, 0);
        for call in [
            "palisade_acquire('lock', 30000, 'me')",
            "palisade_acquire_as('lock', 30000, 'me', 'shared', NULL, NULL, NULL)",
            "palisade_acquire_within('lock', 30000, 'me', 1000)",
            "palisade_release('lock', 1)",
            "palisade_renew('lock', 1)",
            "palisade_break('lock', 'why', NULL)",
            "palisade_raise_tokens(7)",
            "palisade_open(1000, 'me')",
            "palisade_keep_alive({S})",
            "palisade_close({S})",
            "palisade_request({S}, 0, 1, CONCAT(HEX('lock'), ':4294967295:'), '1', 1, 1, NULL, NULL)",
            "palisade_request({S}, 0, 1, '6C:1:', '1', 1, 1, NULL, NULL)",
            "palisade_give_back({S}, 'lock', 1)",
            "palisade_cancel({S}, 1)",
            "palisade_publish({S}, 'lock', 1, 'x')",
            "palisade_force('lock', NULL, 'me', 'why')",
            "palisade_resize('lock', 2)",
            "palisade_attach({S}, 1)",
            "palisade_nudge({S}, 1)",
            "palisade_heard({S}, 1)",
            "palisade_watch(1000)",
        ] {
            let call = format!("CALL {}", call.replace("{S}", &session.to_string()));
            for (begin, end) in [
                ("START TRANSACTION", "COMMIT"),
                ("SET autocommit = 0", "SET autocommit = 1"),
                (
                    "SET completion_type = CHAIN; START TRANSACTION",
                    "COMMIT AND NO CHAIN; SET completion_type = NO_CHAIN",
                ),
            ] {
                for sql in begin.split("; ") {
                    run(&mut store, sql).await;
                }
                run(&mut store, "INSERT INTO work () VALUES ()").await;
                assert_eq!(refused(&mut store, &call).await, 1568, "{call}");
                run(&mut store, "INSERT INTO work () VALUES ()").await;
                for sql in end.split("; ") {
                    run(&mut store, sql).await;
                }
                done += 2;
                let rows = ask(&mut store, "SELECT COUNT(*) FROM work").await;
                assert_eq!(rows, Some(done.to_string()), "{call} in {begin}");
            }
        }
        assert_eq!(ask(&mut store, "SELECT COUNT(*) FROM palisade_lock").await.as_deref(), Some("0"));
        assert_consistent(&mut store).await;
    });
}

/// The connection may be the application's, and a fence keeps its token there.
#[test]
#[ignore = "long: several seconds"]
fn no_call_changes_a_variable_of_its_connection() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        run(&mut store, "CREATE TABLE work (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB").await;
        let variables = ["token", "fence_token", "events", "granted", "is", "database"];
        for name in variables {
            run(&mut store, &format!("SET @palisade_{name} = 'mine'")).await;
        }
        run(&mut store, "INSERT INTO work VALUES (4711)").await;
        run(&mut store, "DO LAST_INSERT_ID(4711)").await;
        let (one, two) = (open(&mut store).await, open(&mut store).await);
        let mut tokens = Vec::new();
        for number in 1..300 {
            let (from, to) = if number % 2 == 0 { (one, two) } else { (two, one) };
            run(&mut store, &format!("CALL palisade_request({to}, 0, {number}, CONCAT(HEX('hot'), ':4294967295:'), '1', 1, 1, NULL, NULL)")).await;
            if number > 1 {
                let release = "SELECT token FROM palisade_lock WHERE name = 'hot'";
                let token = ask(&mut store, release).await.expect("it is held");
                run(&mut store, &format!("CALL palisade_give_back({from}, 'hot', {token})")).await;
                tokens.push(token.parse::<u64>().expect("a token"));
            }
            run(&mut store, &format!("CALL palisade_request({to}, 0, {}, CONCAT(HEX('other/{number}'), ':4294967295:'), '1', 1, 1, NULL, NULL)", number + 1000)).await;
            let other = format!("SELECT token FROM palisade_lock WHERE name = 'other/{number}'");
            tokens.push(ask(&mut store, &other).await.expect("a token").parse().expect("a token"));
        }
        let given = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), given, "a token was given twice");
        for name in variables {
            assert_eq!(ask(&mut store, &format!("SELECT @palisade_{name}")).await.as_deref(), Some("mine"), "{name}");
        }
        assert_eq!(ask(&mut store, "SELECT LAST_INSERT_ID()").await.as_deref(), Some("4711"));
    });
}

/// `SET timestamp` would end the sessions of others.
#[test]
fn a_connection_with_a_clock_of_its_own_is_refused() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        for shifted in ["2000000000", "UNIX_TIMESTAMP() + 60", "UNIX_TIMESTAMP() - 60"] {
            run(&mut store, &format!("SET timestamp = {shifted}")).await;
            assert_eq!(refused(&mut store, "CALL palisade_sweep(1000)").await, 1644, "{shifted}");
            assert_eq!(refused(&mut store, "CALL palisade_acquire('lock', 30000, 'me')").await, 1644, "{shifted}");
            run(&mut store, "SET timestamp = DEFAULT").await;
        }
        run(&mut store, "SET timestamp = DEFAULT").await;
        assert!(ask(&mut store, "CALL palisade_acquire('lock', 30000, 'me')").await.is_some());
    });
}

/// One call could use up all tokens: the right to lock is not enough for it.
#[test]
fn only_users_with_write_access_raise_tokens() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let database = ask(&mut store, "SELECT DATABASE()").await.expect("it has one");
        let user = format!("app_{database}");
        run(&mut store, &format!("CREATE USER {user}@'%'")).await;
        run(&mut store, &format!("GRANT EXECUTE, SELECT ON {database}.* TO {user}@'%'")).await;
        let mut app = client(&fixture.url().replace("root@", &format!("{user}@"))).await;
        assert_eq!(refused(&mut app, "CALL palisade_raise_tokens(4503599627370496)").await, 1142);
        assert!(ask(&mut app, "CALL palisade_acquire('lock', 30000, 'me')").await.is_some());
        run(&mut store, "CALL palisade_raise_tokens(1)").await;
    });
}

/// The procedures and the library accept the same names, and a name that was inserted by hand hides no other lock.
#[test]
fn the_procedures_refuse_the_names_that_the_library_refuses() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let session = open(&mut store).await;
        let characters = [0..=0x180, 0x600..=0x620, 0x2000..=0x2070, 0xFE00..=0xFE0F, 0x1F510..=0x1F514];
        for character in characters.into_iter().flatten().filter_map(char::from_u32) {
            for name in [format!("a{character}b"), character.to_string()] {
                let hex: String = name.bytes().map(|byte| format!("{byte:02X}")).collect();
                let reply = store.query_drop(format!("CALL palisade_check_name(x'{hex}')")).await;
                assert_eq!(reply.is_err(), LockName::new(&name).is_err(), "{:?}: {reply:?}", name);
            }
        }
        for bad in ["''", "x'FF'", "x'61FF62'", "REPEAT('a', 513)", "'$x'", "x'E280AE'", "x'61E280A8'", "x'610A'"] {
            for call in [
                format!(
                    "CALL palisade_request({session}, 0, 1, CONCAT(HEX({bad}), ':4294967295:'), '1', 1, 1, NULL, NULL)"
                ),
                format!("CALL palisade_request({session}, 0, 1, CONCAT(HEX({bad}), ':1:'), '1', 1, 1, NULL, NULL)"),
                format!("CALL palisade_acquire({bad}, 30000, 'me')"),
            ] {
                store.query_drop(&call).await.expect_err(&call);
            }
        }
        let alice = fixture.client(LONG_TTL).await;
        let _held = [take(&alice, "a").await, take(&alice, "z").await];
        for bad in ["x'6DFF'", "x'6DE280AE'"] {
            let row = format!(
                "INSERT INTO palisade_lock (name, token, session, used_by) VALUES ({bad}, 7, {session}, {session})"
            );
            run(&mut store, &row).await;
        }
        run(&mut store, "UPDATE palisade_session SET label = x'C328E280AE0A'").await;
        let names: Vec<_> = alice.list("").await.expect("a list").iter().map(|lock| lock.name.to_string()).collect();
        assert_eq!(names, ["a", "z"]);
    });
}

#[test]
fn invalid_requests_are_refused() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let session = open(&mut store).await;
        for (wants, order) in [
            ("61:0:", "1"),
            ("61:-1:", "1"),
            ("61:2:", "1"),
            ("61::", "1"),
            ("zz:1:", "1"),
            (":1:", "1"),
            ("61", "1"),
            ("62:1:,61:1:", "1,2"),
            ("61:1:,62:1:", "1"),
            ("61:1:,62:1:", "1,1"),
        ] {
            let call = format!("CALL palisade_request({session}, 0, 1, '{wants}', '{order}', 1, 1, NULL, NULL)");
            store.query_drop(&call).await.expect_err(&call);
        }
        assert_eq!(ask(&mut store, "SELECT COUNT(*) FROM palisade_lock").await.as_deref(), Some("0"));
    });
}

/// A take that is under way when tokens are raised has its token from before, and is waited for.
#[test]
fn tokens_are_raised_above_what_is_under_way() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let (mut taking, mut raising) = (client(&fixture.url()).await, client(&fixture.url()).await);
        let session = open(&mut store).await;
        // Does slowly what a take of a new name does.
        run(&mut taking, "START TRANSACTION").await;
        run(&mut taking, "INSERT INTO palisade_lock (name, token) VALUES ('new', 1)").await;
        let set = format!("UPDATE palisade_lock SET session = {session}, used_by = {session} WHERE name = 'new'");
        run(&mut taking, &set).await;
        let raise = tokio::spawn(async move {
            let reply = raising.query_drop("CALL palisade_raise_tokens(1000)").await;
            (raising, reply)
        });
        until_blocked(&mut store, || assert!(!raise.is_finished(), "tokens are raised, and one below is given"))
            .await;
        run(&mut taking, "COMMIT").await;
        let (mut raising, reply) = raise.await.expect("no panic");
        reply.expect_err("it is held with a lower token");
        run(&mut store, &format!("CALL palisade_close({session})")).await;
        run(&mut raising, "CALL palisade_raise_tokens(1000)").await;
        let token = ask(&mut store, "CALL palisade_acquire('newer', 30000, 'me')").await.expect("it is free");
        assert!(token.parse::<u64>().expect("a token") > 1000, "{token}");
    });
}

/// Without a client of the library only these calls sweep.
#[test]
fn rows_do_not_pile_up_where_only_sql_is_used() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        for number in 0..50 {
            run(&mut store, &format!("CALL palisade_acquire('once/{number}', 30000, 'me')")).await;
            run(&mut store, "UPDATE palisade_session SET deadline = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND").await;
        }
        let sessions = ask(&mut store, "SELECT COUNT(*) FROM palisade_session").await;
        assert_eq!(sessions.as_deref(), Some("1"));
    });
}

#[test]
fn the_check_finds_each_contradiction() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let (one, two) = (open(&mut store).await, open(&mut store).await);
        for call in [
            format!("CALL palisade_request({one}, 0, 1, CONCAT(HEX('held'), ':4294967295:'), '1', 1, 1, NULL, NULL)"),
            format!("CALL palisade_request({two}, 0, 1, CONCAT(HEX('held'), ':4294967295:'), '1', 1, 1, NULL, NULL)"),
            format!("CALL palisade_request({one}, 0, 2, '73:1:', '1', 1, 1, NULL, NULL)"),
            format!("CALL palisade_request({two}, 0, 2, '73:1:', '1', 1, 1, NULL, NULL)"),
            format!("CALL palisade_request({one}, 0, 3, '78:1:,79:4294967295:', '1,2', 1, 1, NULL, NULL)"),
            format!("CALL palisade_request({one}, 0, 4, CONCAT(HEX('more'), ':4294967295:'), '1', 1, 1, NULL, NULL)"),
            format!("CALL palisade_request({one}, 0, 5, CONCAT(HEX('idle'), ':4294967295:'), '1', 1, 1, NULL, NULL)"),
            format!(
                "CALL palisade_give_back({one}, 'idle', (SELECT token FROM palisade_lock l WHERE l.name = 'idle'))"
            ),
        ] {
            run(&mut store, &call).await;
        }
        assert_consistent(&mut store).await;
        for broken in [
            "UPDATE palisade_lock SET waiting = 2 WHERE name = 'held'",
            "UPDATE palisade_lock SET taken = 3 WHERE name = 's'",
            "UPDATE palisade_lock SET taken = 1, session = NULL WHERE name = 'held'",
            "DELETE FROM palisade_lock WHERE name = 's'",
            "DELETE FROM palisade_session",
            "UPDATE palisade_lock SET token = 0 WHERE name = 'held'",
            "UPDATE palisade_lock SET token = 1 WHERE name = 's'",
            "UPDATE palisade_claim SET token = NULL WHERE name = 's'",
            "UPDATE palisade_claim SET token = 1 WHERE name = 's'",
            "UPDATE palisade_lock SET token = 1 WHERE name IN ('held', 'more')",
            "UPDATE palisade_lock SET used_by = NULL WHERE name = 'held'",
            "UPDATE palisade_lock SET passed = 9 WHERE name = 'held'",
            "UPDATE palisade_lock SET arrivals = 0 WHERE name = 'held'",
            "DELETE FROM palisade_claim WHERE name = 'x'",
            "UPDATE palisade_lock SET value = 'x' WHERE name = 'idle'",
            "UPDATE palisade_lock SET permits = 3 WHERE name = 'idle'",
            "DELETE FROM palisade_state",
            "UPDATE palisade_state SET token = 0",
        ] {
            run(&mut store, "START TRANSACTION").await;
            run(&mut store, broken).await;
            assert!(!contradictions(&mut store).await.is_empty(), "{broken}");
            run(&mut store, "ROLLBACK").await;
        }
        for impossible in [
            "UPDATE palisade_lock SET waiting = -1 WHERE name = 'idle'",
            "UPDATE palisade_lock SET taken = -1 WHERE name = 'idle'",
            "UPDATE palisade_lock SET token = -1 WHERE name = 'idle'",
            "UPDATE palisade_lock SET token = 9007199254740992 WHERE name = 'idle'",
            "UPDATE palisade_state SET token = 9007199254740992",
            "UPDATE palisade_claim SET need = 0",
        ] {
            store.query_drop(impossible).await.expect_err(impossible);
        }
        assert_consistent(&mut store).await;
    });
}

/// If a required row is missing, nothing is granted.
#[test]
fn a_grant_on_tables_that_contradict_each_other_is_an_error() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let (one, two) = (open(&mut store).await, open(&mut store).await);
        run(&mut store, &format!("CALL palisade_request({one}, 0, 1, '73:1:', '1', 1, 1, NULL, NULL)")).await;
        run(&mut store, &format!("CALL palisade_request({two}, 0, 1, '73:4294967295:', '1', 1, 1, NULL, NULL)"))
            .await;
        let token = ask(&mut store, "SELECT token FROM palisade_lock WHERE name = 's'").await.expect("it is held");
        run(&mut store, "DELETE FROM palisade_lock WHERE name = 's'").await;
        let code = refused(&mut store, &format!("CALL palisade_give_back({one}, 's', {token})")).await;
        assert_eq!(code, 1644);
        run(&mut store, "DELETE FROM palisade_state").await;
        assert_eq!(
            refused(
                &mut store,
                &format!(
                    "CALL palisade_request({one}, 0, 9, CONCAT(HEX('new'), ':4294967295:'), '1', 1, 1, NULL, NULL)"
                )
            )
            .await,
            1644
        );
    });
}

/// A holder that expired has its row until a sweep. It must not block an operator.
#[test]
fn tokens_are_raised_over_a_holder_that_has_expired_and_named_for_one_that_has_not() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let alice = fixture.client(LONG_TTL).await;
        run(&mut store, "CALL palisade_acquire('gone', 100, 'x')").await;
        run(&mut store, "DO SLEEP(0.2)").await;
        let above = palisade::Token::new(1000).expect("a token");
        assert_eq!(alice.raise_tokens(above).await.expect("nothing is held"), palisade::engine::Raised::Now);
        let held = take(&alice, "held").await;
        let higher = palisade::Token::new(5_000_000).expect("a token");
        let error = alice.raise_tokens(higher).await.expect_err("a lock is held").to_string();
        assert!(error.contains("held: release or break"), "{error}");
        drop(held);
    });
}
