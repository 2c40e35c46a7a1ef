//! The fast path: one statement for an acquire and one for a release of a free lock, and the checks that it must not leave
//! out.

use palisade::engine::Watched;
use palisade_core::{Ending, Event};

use super::fixture::{Fixture, LONG_TTL, check, client, retryable, take, until};
use super::tables::open;

/// No call would ever end a grant that is made between the two.
#[test]
fn a_session_ends_before_a_request_of_it_or_after_it() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let ending = client(&fixture.url()).await;
        for lock in ["lock", "new"] {
            let session = open(&store).await;
            for number in [1, 2] {
                let sql = format!("SELECT palisade.take({session}, 0, {number}, 'lock', true, true)");
                store.batch_execute(&sql).await.expect("an answer");
                let sql = format!("SELECT palisade.give_back({session}, 'lock', l.token) FROM palisade.lock l");
                store.batch_execute(&sql).await.expect("an answer");
            }
            ending.batch_execute(&format!("BEGIN; SELECT palisade.close({session})")).await.expect("it ends");
            let asking = client(&fixture.url()).await;
            let sql = format!("SELECT palisade.take({session}, 0, 3, '{lock}', true, true)");
            let asking = tokio::spawn(async move { asking.query_one(&sql, &[]).await.expect("an answer") });
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()";
            until("the request waits for the end of its session", async || {
                assert!(!asking.is_finished(), "a request is answered while its session ends");
                store.query_one(waits, &[]).await.expect("an answer").get::<_, i64>(0) > 0
            })
            .await;
            ending.batch_execute("COMMIT").await.expect("it has ended");
            let reply: String = asking.await.expect("no panic").get(0);
            assert!(reply.contains("NoSuchSession"), "{lock}: {reply}");
        }
    });
}

/// A new watcher lists the locks, and then receives later events. An operation in flight is neither of the two,
/// unless it is waited for.
#[test]
fn a_watch_begins_when_what_was_under_way_is_done() {
    let fixture = Fixture::new();
    check(async {
        let (store, under_way) = (fixture.store().await, client(&fixture.url()).await);
        let session = open(&store).await;
        let watcher = fixture.client(LONG_TTL).await;
        take(&watcher, "lock").await.release().await.expect("it is held");
        let sql = format!("BEGIN; SELECT palisade.take({session}, 0, 1, 'lock', true, true)");
        under_way.batch_execute(&sql).await.expect("it is taken");
        let watches = watcher.clone();
        let watching = tokio::spawn(async move {
            // A call fails that waits for three seconds, and the machine may stand still for longer.
            loop {
                if let Some(watch) = retryable(watches.watch("").await) {
                    return watch;
                }
            }
        });
        let waits = "SELECT count(*) FROM pg_locks l WHERE NOT l.granted AND l.relation = 'palisade.lock'::regclass";
        until("the watch waits for the take", async || {
            assert!(!watching.is_finished(), "it watches, and does not see what is under way");
            store.query_one(waits, &[]).await.expect("an answer").get::<_, i64>(0) > 0
        })
        .await;
        under_way.batch_execute("COMMIT").await.expect("it is done");
        let _watch = watching.await.expect("no panic");
        assert!(watcher.inspect("lock").await.expect("an answer").is_some());
    });
}

/// The fast path sets no search path, because that is slow. It must call nothing that a caller's search path can replace.
#[test]
fn a_callers_search_path_does_not_say_what_is_called() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let without = "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'palisade'::regnamespace AND p.prosecdef \
             AND p.proconfig IS NULL ORDER BY 1";
        let rows = store.query(without, &[]).await.expect("an answer");
        let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(names, ["give_back", "take"]);
        // Replaces every operator of these types, and every called function, by one that fails.
        let evil = "CREATE SCHEMA evil; DO $$ DECLARE o record; BEGIN \
             FOR o IN SELECT x.oprname AS name, md5(x.oprname) AS f, x.oprleft::regtype AS l, x.oprright::regtype AS r, \
                 x.oprresult::regtype AS result FROM pg_operator x WHERE x.oprright <> 0 AND x.oprresult <> 0 \
                 AND x.oprleft = ANY ('{int8,int4,text,timestamptz,bool}'::regtype[]) LOOP \
                 EXECUTE format('CREATE FUNCTION evil.f_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ \
                     BEGIN RAISE ''evil''; END $f$', o.f, o.l, o.r, o.result); \
                 EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.f_%s)', \
                     o.name, o.l, o.r, o.f); \
             END LOOP; \
             FOR o IN SELECT p.proname AS name, pg_get_function_identity_arguments(p.oid) AS args, \
                 p.prorettype::regtype AS result FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace \
                 AND p.proname = ANY ('{nextval,clock_timestamp,current_setting,set_config,pg_try_advisory_xact_lock_shared}') LOOP \
                 EXECUTE format('CREATE FUNCTION evil.%s(%s) RETURNS %s LANGUAGE plpgsql AS $f$ \
                     BEGIN RAISE ''evil''; END $f$', o.name, o.args, o.result); \
             END LOOP; END $$";
        store.batch_execute(evil).await.expect("they are made");
        let (session, other) = (open(&store).await, open(&store).await);
        store.batch_execute("SET search_path = evil, pg_catalog").await.expect("a path");
        let error = store.query_one("SELECT 1::bigint = 1::bigint", &[]).await.expect_err("it is theirs");
        assert!(error.as_db_error().is_some_and(|error| error.message().contains("evil")), "{error}");
        let ask = async |sql: String| {
            store.query_one(&sql, &[]).await.expect("ours are called").get::<_, Option<String>>(0)
        };
        for number in 1..4 {
            let token = ask(format!("SELECT palisade.take({session}, 0, {number}, 'lock', true, true)")).await;
            let token = token.expect("it is granted");
            let queued = ask(format!("SELECT palisade.take({other}, 0, {number}, 'lock', true, true)")).await;
            assert_eq!(queued.as_deref(), Some("queued"));
            assert_eq!(ask(format!("SELECT palisade.give_back({session}, 'lock', {token})")).await, None);
            let held = client(&fixture.url()).await;
            let row =
                held.query_one("SELECT token FROM palisade.lock WHERE name = 'lock'", &[]).await.expect("an answer");
            let token: i64 = row.get(0);
            let sql = format!("SELECT palisade.give_back({session}, 'lock', {token})");
            assert!(ask(sql).await.is_some_and(|refusal| refusal.contains("OtherSession")));
            assert_eq!(ask(format!("SELECT palisade.give_back({other}, 'lock', {token})")).await, None);
        }
    });
}

/// A grant is found when its session ends, when its client reconnects, and when it polls, on whatever path it was made.
#[test]
fn every_grant_of_a_session_is_found_however_it_was_granted() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        for way in ["new", "there", "there, with a value", "handed over", "taken away", "left by an ended session"] {
            let (alice, bob, carol) = (open(&store).await, open(&store).await, open(&store).await);
            let give_back =
                "SELECT palisade.give_back(%A, l.name, l.token) FROM palisade.lock l WHERE l.name = %NAME";
            let ask = async |sql: &str| {
                let sql = sql.replace("%NAME", &format!("'lock/{way}'")).replace("%A", &alice.to_string());
                let sql = sql.replace("%B", &bob.to_string()).replace("%C", &carol.to_string());
                let row = store.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("{way}: {error}: {sql}"));
                row.get::<_, Option<String>>(0).unwrap_or_default()
            };
            if way != "new" {
                ask("SELECT palisade.take(%A, 0, 1, %NAME, true, true)").await;
            }
            if way.starts_with("there") {
                ask(give_back).await;
            }
            let value = "SELECT said FROM palisade.request(%B, 0, 2, ARRAY[%NAME], '{4294967295}', '{NULL}', true, true, NULL, 'x')";
            match way {
                "there, with a value" => ask(value).await,
                _ => ask("SELECT palisade.take(%B, 0, 2, %NAME, true, true)").await,
            };
            match way {
                "handed over" => ask(give_back).await,
                "taken away" => ask("SELECT palisade.force(%NAME, NULL, 'me', 'me')::text").await,
                "left by an ended session" => ask("SELECT palisade.close(%A)::text").await,
                _ => String::new(),
            };
            let found = [
                (
                    "SELECT string_agg(x.lock || ' ' || x.number, ',') FROM palisade.attach(%B, 0) x",
                    format!("lock/{way} 2"),
                ),
                ("SELECT said FROM palisade.cancel(%B, 2)", "granted".to_owned()),
                ("SELECT x FROM palisade.look_up(%B, '{2}') x", format!("g {bob} 2 ")),
            ];
            for (sql, is) in found {
                let reply = ask(sql).await;
                assert!(reply.starts_with(&is), "{way}: {sql}: {reply}");
            }
            assert_eq!(ask("SELECT palisade.take(%C, 0, 3, %NAME, true, true)").await, "queued", "{way}");
            ask("SELECT palisade.close(%B)::text").await;
            let holder = ask("SELECT session::text FROM palisade.claim WHERE lock = %NAME").await;
            assert_eq!(holder, carol.to_string(), "{way}");
        }
    });
}

/// Also of a lock that the same client had before there was a watcher.
#[test]
fn a_watcher_sees_fast_path_grants() {
    let fixture = Fixture::new();
    check(async {
        let (alice, bob) = (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await);
        for _ in 0..2 {
            take(&alice, "lock").await.release().await.expect("it is held");
        }
        let mut watch = bob.watch("lock").await.expect("it is watched");
        for _ in 0..2 {
            take(&alice, "lock").await.release().await.expect("it is held");
            let event = watch.next().await;
            assert!(matches!(event, Some(Watched::Event(Event::Granted { .. }))), "{event:?}");
            let event = watch.next().await;
            assert!(
                matches!(event, Some(Watched::Event(Event::GrantEnded { how: Ending::Released, .. }))),
                "{event:?}"
            );
        }
    });
}

/// At a lock whose row exists, without holder and waiter.
#[test]
fn a_request_that_may_not_be_granted_is_not() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        store.batch_execute("INSERT INTO palisade.lock (name, token) VALUES ('lock', 1)").await.expect("a row");
        for (set, is) in [
            ("deadline = clock_timestamp() - interval '1 s'", "NoSuchSession"),
            ("deadline = '-infinity'", "NoSuchSession"),
            ("epoch = 1", "outdated"),
            ("withdrawn = '{7}'", "Withdrawn"),
            ("forgotten = 7", "NumberForgotten"),
            ("epoch = 0", "2"),
        ] {
            let session = open(&store).await;
            store.batch_execute("SELECT setval('palisade.tokens', 1)").await.expect("so that the next is 2");
            store
                .batch_execute(&format!("UPDATE palisade.session SET {set} WHERE id = {session}"))
                .await
                .expect("it is");
            let sql = format!("SELECT palisade.take({session}, 0, 7, 'lock', true, true)");
            let reply: String = store.query_one(&sql, &[]).await.expect("an answer").get(0);
            assert!(reply == is || (reply.starts_with('{') && reply.contains(is)), "{set}: {reply}");
        }
    });
}

/// A repeated request number has one place in the queue.
#[test]
fn a_repeated_request_waits_once() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let (alice, bob) = (open(&store).await, open(&store).await);
        for (session, reply) in [(alice, None), (bob, Some("queued")), (bob, Some("queued"))] {
            let sql = format!("SELECT palisade.take({session}, 0, 1, 'lock', true, true)");
            let row = store.query_one(&sql, &[]).await.expect("an answer");
            assert!(reply.is_none_or(|reply| row.get::<_, &str>(0) == reply));
        }
        let places = "SELECT l.waiting::bigint, count(*) FROM palisade.lock l, palisade.claim c WHERE c.waits GROUP BY l.waiting";
        let row = store.query_one(places, &[]).await.expect("an answer");
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 1));
    });
}

/// A value, a lock-delay and a history end with their holder.
#[test]
fn a_new_holder_finds_nothing_of_the_one_before() {
    let fixture = Fixture::new();
    check(async {
        let store = fixture.store().await;
        let (alice, bob) = (open(&store).await, open(&store).await);
        let request = "SELECT palisade.request(%A, 0, 1, '{lock}', '{4294967295}', '{NULL}', true, true, ";
        let quickly = "SELECT palisade.take(%A, 0, 2, 'lock', true, true)";
        let give_back =
            "SELECT palisade.give_back(c.session, c.lock, c.token) FROM palisade.claim c WHERE NOT c.waits";
        for before in [
            vec![format!("{request} NULL, 'x')")],
            vec![format!("{request} 1000, NULL)")],
            vec![quickly.to_owned(), quickly.replace("%A", "%B"), give_back.to_owned()],
        ] {
            for sql in before.iter().map(String::as_str).chain([give_back, quickly]) {
                let sql = sql.replace("%A", &alice.to_string()).replace("%B", &bob.to_string());
                store.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
            }
            let left = "SELECT c.session, concat_ws(' ', c.value, c.delay_ms, l.history, c.withheld_until) \
                 FROM palisade.lock l JOIN palisade.claim c ON c.lock = l.name";
            let row = store.query_one(left, &[]).await.expect("an answer");
            assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (alice, ""), "{before:?}");
            store.batch_execute(give_back).await.expect("an answer");
        }
    });
}
