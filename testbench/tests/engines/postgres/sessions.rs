//! The end of a session is one durable decision for all its grants and waits, whatever the clock and other rows do.

use palisade::Options;
use tokio_postgres::Client;

use super::fixture::{Fixture, LONG_TTL, Server, check, client, inspect, take, until};
use super::functions::clock;
use super::tables::open;

/// Runs a statement that answers with one value.
pub(crate) async fn ask<T: for<'a> tokio_postgres::types::FromSql<'a>>(store: &Client, sql: &str) -> T {
    store.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{error}: {sql}")).get(0)
}

/// The SQLSTATE of a refusal.
pub(crate) async fn refused(store: &Client, sql: &str) -> String {
    let error = store.batch_execute(sql).await.expect_err(sql);
    error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned())
}

/// Sweeps until nothing is left to do.
async fn sweep(store: &Client) {
    until("nothing is left to sweep", async || ask::<i32>(store, "SELECT palisade.sweep()").await == 0).await;
}

/// Asserts that the tables are consistent.
pub(crate) async fn assert_consistent(store: &Client) {
    let wrong = store.query("SELECT palisade.check()", &[]).await.expect("an answer");
    let wrong: Vec<String> = wrong.iter().map(|row| row.get(0)).collect();
    assert_eq!(wrong, [""; 0]);
}

/// Asks for a lock, waits for it if it is not free, and returns what is answered.
pub(crate) async fn request(store: &Client, session: i64, lock: &str) -> String {
    ask(store, &format!("SELECT palisade.take({session}, 0, 1, '{lock}', true, true)")).await
}

async fn release(store: &Client, lock: &str) {
    let sql = format!(
        "SELECT palisade.give_back(session, lock, token) FROM palisade.claim WHERE lock = '{lock}' AND NOT waits"
    );
    assert_eq!(ask::<Option<String>>(store, &sql).await, None);
}

async fn holder(store: &Client, lock: &str) -> Option<i64> {
    ask(store, &format!("SELECT max(session) FROM palisade.claim WHERE lock = '{lock}' AND NOT waits")).await
}

async fn lives(store: &Client, session: i64) -> bool {
    ask(store, &format!("SELECT palisade.keep_alive({session})")).await
}

/// A clock that is ahead for a moment ends a session with its wait, or neither of the two.
#[test]
fn a_waiter_is_not_dropped_while_its_session_lives_on() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        for (round, meanwhile) in
            ["give back", "look up", "another request", "a keep-alive", "sweep"].iter().enumerate()
        {
            let (alice, bob, carol) = (open(&store).await, open(&store).await, open(&store).await);
            let lock = format!("lock/{round}");
            request(&store, alice, &lock).await;
            assert_eq!(request(&store, bob, &lock).await, "queued");
            store.batch_execute(&clock("2 hours")).await.expect("it jumps");
            let sql = match *meanwhile {
                "give back" => format!(
                    "SELECT palisade.give_back(session, lock, token) FROM palisade.claim WHERE lock = '{lock}' AND NOT waits"
                ),
                "look up" => format!("SELECT palisade.look_up({bob}, '{{1}}')"),
                "another request" => format!("SELECT palisade.take({carol}, 0, 1, '{lock}', true, true)"),
                "a keep-alive" => format!("SELECT palisade.keep_alive({bob})"),
                _ => "SELECT palisade.sweep()".to_owned(),
            };
            store.batch_execute(&sql).await.expect("an answer");
            store.batch_execute(&clock("0")).await.expect("it is back");
            assert_consistent(&store).await;
            let waits: bool =
                ask(&store, &format!("SELECT count(*) > 0 FROM palisade.claim WHERE session = {bob}")).await;
            if lives(&store, bob).await {
                assert!(waits, "{meanwhile}: it lives, and its wait is gone");
            } else {
                // An ended session stays ended, and leaves no rows.
                sweep(&store).await;
                let left = format!("SELECT count(*) FROM palisade.claim WHERE session = {bob}");
                assert_eq!(ask::<i64>(&store, &left).await, 0, "{meanwhile}");
                assert!(!lives(&store, bob).await, "{meanwhile}: it came back");
                assert!(request(&store, bob, "other").await.contains("NoSuchSession"), "{meanwhile}");
            }
            store
                .batch_execute("TRUNCATE palisade.session, palisade.lock, palisade.claim, palisade.notice")
                .await
                .expect("as new");
        }
    });
}

/// Whichever call reports the end first: the session stays ended when the clock goes back.
#[test]
fn a_session_that_was_reported_ended_stays_ended() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        for call in [
            "SELECT palisade.keep_alive(%S)::text",
            "SELECT palisade.take(%S, 0, 2, 'other', true, true)",
            "SELECT palisade.give_back(%S, 'lock', 1)",
            "SELECT palisade.look_up(%S, '{}')",
            "SELECT detail FROM palisade.cancel(%S, 7)",
            "SELECT palisade.publish(%S, 'lock', 1, 'x')",
            "SELECT count(*)::text FROM palisade.attach(%S, 5)",
            "SELECT said FROM palisade.wait_on(%S)",
        ] {
            let session = open(&store).await;
            store.batch_execute(&clock("2 hours")).await.expect("it jumps");
            let reply: String = ask(&store, &call.replace("%S", &session.to_string())).await;
            let has_ended = reply == "false" || reply == "0" || reply == "lost" || reply.contains("NoSuchSession");
            assert!(has_ended || reply == format!("s {session} expired"), "{call}: {reply}");
            store.batch_execute(&clock("0")).await.expect("it is back");
            assert!(!lives(&store, session).await, "{call}");
            assert!(request(&store, session, "other").await.contains("NoSuchSession"), "{call}");
        }
    });
}

/// A keep-alive that was in time and commits late: no call may take its session for dead.
#[test]
fn a_keep_alive_that_commits_late_keeps_the_place_in_the_queue() {
    let fixture = Fixture::new();
    check(async {
        let (store, renewing) = (fixture.store().await, client(&fixture.url()).await);
        let (alice, bob) = (open(&store).await, open(&store).await);
        request(&store, alice, "lock").await;
        assert_eq!(request(&store, bob, "lock").await, "queued");
        store.batch_execute(&clock("30 minutes")).await.expect("later");
        assert!(lives(&store, alice).await);
        renewing.batch_execute(&format!("BEGIN; SELECT palisade.keep_alive({bob})")).await.expect("in time");
        // An hour after the opening, for every transaction that does not see the keep-alive.
        store.batch_execute(&clock("70 minutes")).await.expect("later");
        let carol = open(&store).await;
        assert_eq!(request(&store, carol, "lock").await, "queued");
        store.batch_execute("SET lock_timeout = '60s'; SELECT palisade.sweep()").await.expect("it waits for nothing");
        release(&store, "lock").await;
        renewing.batch_execute("COMMIT").await.expect("late");
        assert!(lives(&store, bob).await);
        store.batch_execute(&format!("SELECT palisade.look_up({bob}, '{{1}}')")).await.expect("an answer");
        assert_eq!(holder(&store, "lock").await, Some(bob));
        assert_consistent(&store).await;
    });
}

/// Without a sweep before: the call that grants must notice it.
#[test]
fn a_dead_waiter_is_never_granted() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        for mode in ["4294967295", "1"] {
            let (alice, bob, carol) = (open(&store).await, open(&store).await, open(&store).await);
            request(&store, alice, "lock").await;
            for session in [bob, carol] {
                let sql = format!(
                    "SELECT said FROM palisade.request({session}, 0, 2, '{{lock}}', '{{{mode}}}', ARRAY[NULL::bigint], \
                     true, true, NULL, NULL)"
                );
                assert_eq!(ask::<String>(&store, &sql).await, "queued");
            }
            let dead = format!("UPDATE palisade.session SET deadline = palisade.now() WHERE id = {bob}");
            store.batch_execute(&dead).await.expect("it is overdue");
            release(&store, "lock").await;
            let holders = "SELECT array_agg(session) FROM palisade.claim WHERE NOT waits";
            assert_eq!(ask::<Vec<i64>>(&store, holders).await, [carol]);
            assert!(!lives(&store, bob).await);
            assert_consistent(&store).await;
            for session in [bob, carol] {
                assert!(ask::<bool>(&store, &format!("SELECT palisade.close({session})")).await);
            }
        }
    });
}

/// A role that may lock must not be able to stop others, so its arguments are checked before they are stored.
#[test]
fn a_channel_that_cannot_be_notified_is_refused() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        for channel in ["", &"x".repeat(64), &"\u{e9}".repeat(32)] {
            let open = format!("SELECT palisade.open(60000, 'x', '{channel}')");
            assert_eq!(refused(&store, &open).await, "PL001");
            let watch = format!("SELECT palisade.watch('{channel}', '', 1000)");
            assert_eq!(refused(&store, &watch).await, "23514");
        }
        // A watch without an end is refused too: it would end the fast path for all clients.
        store.batch_execute("SELECT palisade.watch('a', '', 9223372036854775)").await.expect("it is shortened");
        let sql = "SELECT watched_until < palisade.now() + interval '2 minutes' FROM palisade.state";
        assert!(ask::<bool>(&store, sql).await);
    });
}

/// With `synchronous_commit = off` and a server that seldom flushes its log: no acknowledged keep-alive is lost.
#[test]
#[ignore = "long: killed and stopped processes"]
fn an_acknowledged_keep_alive_survives_a_crash() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
    let fixture = Fixture::at(server.address, "careless");
    check(async {
        let store = fixture.store().await;
        for sql in [
            "ALTER SYSTEM SET synchronous_commit = off",
            "ALTER SYSTEM SET wal_writer_delay = '10s'",
            "SELECT pg_reload_conf()",
        ] {
            store.batch_execute(sql).await.expect("it is set");
        }
        let alice = Options::new().ttl(LONG_TTL).connect(&fixture.url()).await.expect("a client");
        let _held = take(&alice, "lock").await;
        let mut store = client(&fixture.url()).await;
        assert_eq!(ask::<String>(&store, "SHOW synchronous_commit").await, "off");
        for _ in 0..3 {
            let row = store.query_one("SELECT token, session FROM palisade.acquire('leased', '1 hour')", &[]).await;
            let (token, session): (i64, i64) = row.map(|row| (row.get(0), row.get(1))).expect("it is free");
            let opened = open(&store).await;
            assert!(ask::<bool>(&store, &format!("SELECT palisade.renew('leased', {token})")).await);
            let (one, other) = tokio::join!(lives(&store, opened), lives(&store, session));
            assert!(one && other);
            let deadlines = "SELECT string_agg(id || ' ' || deadline, ',' ORDER BY id) FROM palisade.session";
            let before: String = ask(&store, deadlines).await;
            server.kill();
            server.restart().unwrap_or_else(|absent| panic!("{absent}"));
            store = client(&fixture.url()).await;
            assert_eq!(ask::<String>(&store, deadlines).await, before);
            let sql = format!("SELECT palisade.close({session}), palisade.close({opened})");
            store.batch_execute(&sql).await.expect("they end");
        }
    });
}

/// The sweep never waits: it skips locked rows, and so cannot deadlock.
#[test]
fn the_sweep_skips_locked_rows() {
    let fixture = Fixture::new();
    check(async {
        let (store, busy) = (fixture.store().await, client(&fixture.url()).await);
        let (alice, bob) = (open(&store).await, open(&store).await);
        request(&store, alice, "busy").await;
        request(&store, bob, "free").await;
        store.batch_execute("UPDATE palisade.session SET deadline = palisade.now()").await.expect("they are overdue");
        busy.batch_execute("BEGIN; SELECT FROM palisade.lock WHERE name = 'busy' FOR UPDATE").await.expect("a row");
        store.batch_execute("SET lock_timeout = '60s'").await.expect("a bound");
        sweep(&store).await;
        assert_eq!((holder(&store, "busy").await, holder(&store, "free").await), (Some(alice), None));
        // The end is decided, though not all rows are removed yet.
        assert!(!lives(&store, alice).await);
        assert_consistent(&store).await;
        busy.batch_execute("COMMIT").await.expect("done");
        sweep(&store).await;
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.session").await, 0);
        assert_eq!(holder(&store, "busy").await, None);
    });
}

/// Without clients of the library, a call removes the sessions of crashed programs.
#[test]
fn sql_alone_can_sweep_abandoned_sessions() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        for number in 0..100 {
            let row = store.query_opt(&format!("SELECT token FROM palisade.acquire('lock/{number}')"), &[]).await;
            assert!(row.expect("an answer").is_some());
            // Its program has crashed.
            store
                .batch_execute("UPDATE palisade.session SET deadline = palisade.now()")
                .await
                .expect("it is overdue");
        }
        store.batch_execute("CALL palisade.tidy()").await.expect("it is tidied up");
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.session").await, 0);
        // A session with more locks than one step ends does not stop the sweep.
        let many = open(&store).await;
        for number in 1..20 {
            let sql = format!("SELECT palisade.take({many}, 0, {number}, 'many/{number}', true, true)");
            ask::<String>(&store, &sql).await;
        }
        store.batch_execute("UPDATE palisade.session SET deadline = palisade.now()").await.expect("it is overdue");
        for number in 1..20 {
            let sql = format!("SELECT count(*) FROM palisade.acquire('many/{number}')");
            assert_eq!(ask::<i64>(&store, &sql).await, 1);
        }
        store.batch_execute("UPDATE palisade.session SET deadline = palisade.now()").await.expect("they are overdue");
        assert_consistent(&store).await;
        // The other sessions are removed by a call too.
        store.batch_execute("CALL palisade.tidy()").await.expect("it is tidied up");
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.session").await, 0);
        let sql = "SELECT setval('palisade.tokens', 10000); CALL palisade.tidy()";
        for sql in sql.split("; ") {
            store.batch_execute(sql).await.expect("it is tidied up");
        }
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.lock").await, 0);
    });
}

/// A session with many locks ends in several steps, and the library makes all of them.
#[test]
#[ignore = "long: crowds"]
fn a_session_with_many_locks_is_closed_whole() {
    let fixture = Fixture::new();
    check(async {
        let (alice, store) = (fixture.client(LONG_TTL).await, fixture.store().await);
        let mut held = Vec::new();
        for number in 0..200 {
            held.push(take(&alice, &format!("lock/{number}")).await);
        }
        drop(held.split_off(150));
        let session: i64 = ask(&store, "SELECT id FROM palisade.session").await;
        assert!(!ask::<bool>(&store, &format!("SELECT palisade.close({session})")).await, "not in one step");
        assert_consistent(&store).await;
        let close = format!("SELECT palisade.close({session})");
        until("the session is closed", async || ask(&store, &close).await).await;
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.claim").await, 0);
        let bob = fixture.client(LONG_TTL).await;
        let mut held = Vec::new();
        for number in 0..150 {
            held.push(take(&bob, &format!("lock/{number}")).await);
        }
        bob.close().await.expect("it closes");
        assert_eq!(ask::<i64>(&store, "SELECT count(*) FROM palisade.claim").await, 0);
    });
}

/// A caller's transaction may stay open for long: it holds the row of its own lock, and no other.
#[test]
fn a_call_in_an_open_transaction_holds_the_row_of_its_own_lock_only() {
    let fixture = Fixture::new();
    check(async {
        let (store, other) = (fixture.store().await, client(&fixture.url()).await);
        let session = open(&store).await;
        request(&store, session, "dead").await;
        store.batch_execute("UPDATE palisade.session SET deadline = palisade.now()").await.expect("its time is over");
        other.batch_execute("BEGIN; SELECT palisade.acquire('own')").await.expect("it is free");
        let free: Vec<String> = store
            .query("SELECT name FROM palisade.lock FOR UPDATE SKIP LOCKED", &[])
            .await
            .expect("an answer")
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert_eq!(free, ["dead"]);
        other.batch_execute("COMMIT").await.expect("it is over");
    });
}

/// The store refuses what an older connection of a session still sends, so each connection attaches it with a higher epoch.
#[test]
fn each_connection_attaches_its_session_with_a_higher_epoch() {
    let fixture = Fixture::new();
    check(async {
        let alice = fixture.client(LONG_TTL).await;
        let held = take(&alice, "lock").await;
        let store = fixture.store().await;
        let mut last = -1;
        for _ in 0..3 {
            // Only a connection that has attached its session answers.
            inspect(&alice, "lock").await;
            let row = store.query_one("SELECT epoch FROM palisade.session", &[]).await.expect("one session");
            let epoch: i32 = row.get(0);
            assert!(epoch > last, "{epoch} after {last}");
            last = epoch;
            fixture.cut_connections().await;
        }
        assert!(held.token().is_ok());
    });
}

/// A holder that expired has its row until a sweep. It must not block an operator.
#[test]
fn tokens_are_raised_over_a_holder_that_has_expired_and_named_for_one_that_has_not() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let alice = fixture.client(LONG_TTL).await;
        store
            .batch_execute("SELECT palisade.acquire('gone', '0.1s'); SELECT pg_sleep(0.2)")
            .await
            .expect("it is free");
        let above = palisade::Token::new(1000).expect("a token");
        assert_eq!(alice.raise_tokens(above).await.expect("nothing is held"), palisade::engine::Raised::Now);
        let held = take(&alice, "held").await;
        let higher = palisade::Token::new(5_000_000).expect("a token");
        let error = alice.raise_tokens(higher).await.expect_err("a lock is held").to_string();
        assert!(error.contains("'held'") && error.contains("palisade break"), "{error}");
        drop(held);
    });
}

/// No handler runs for a cancelled or killed call. Its wait must not be granted the lock for its whole TTL.
#[test]
fn a_wait_whose_call_was_cancelled_leaves_the_queue_soon() {
    let fixture = Fixture::new();
    check(async {
        let (store, caller) = (fixture.store().await, fixture.store().await);
        let token: i64 = ask(&store, "SELECT token FROM palisade.acquire('lock', '1 hour')").await;
        let pid: i32 = ask(&caller, "SELECT pg_backend_pid()").await;
        let call = caller.batch_execute("CALL palisade.acquire_within('lock', '1 hour', ttl => '600s')");
        let cancel = async {
            // It is cancelled while it waits, and not as it begins.
            let sleeps =
                format!("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep')");
            until("it waits", async || ask(&store, &sleeps).await).await;
            caller.cancel_token().cancel_query(tokio_postgres::NoTls).await.expect("it is told");
        };
        let (cancelled, ()) = tokio::join!(call, cancel);
        let cancelled = cancelled.expect_err("it is cancelled");
        assert_eq!(cancelled.code().map(tokio_postgres::error::SqlState::code), Some("57014"));
        let left = "SELECT extract(epoch FROM max(deadline) - palisade.now())::float8 FROM palisade.session WHERE ttl_ms = 600000";
        let left: f64 = ask(&store, left).await;
        assert!(left <= 10.0, "the wait lives for another {left} s");
        // A wait that is granted has its whole TTL.
        let wait: i64 = ask(&store, "SELECT palisade.begin_wait('other', '600s')").await;
        let reply: String = ask(&store, &format!("SELECT said FROM palisade.wait_on({wait})")).await;
        assert_eq!(reply, "granted");
        let left = format!(
            "SELECT extract(epoch FROM deadline - palisade.now())::float8 FROM palisade.session WHERE id = {wait}"
        );
        let left: f64 = ask(&store, &left).await;
        assert!(left > 500.0, "the lock is held for {left} s");
        let _: bool = ask(&store, &format!("SELECT palisade.release('lock', {token})")).await;
        assert_consistent(&store).await;
    });
}
