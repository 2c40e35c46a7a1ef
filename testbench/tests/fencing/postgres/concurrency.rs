//! A seal and transactions in flight, at every isolation level.

use super::fixture::{ServerProcess, ask, play, refused, run, seal, under};

#[test]
fn a_seal_waits_for_a_writer_and_nothing_older_comes_after_it() {
    play(async |fixture| {
        let (old, new, late) = (fixture.client().await, fixture.client().await, fixture.client().await);
        seal(&old, 33).await;
        run(&old, "BEGIN; SET LOCAL palisade_fence.token = '33'; UPDATE orders SET total = 1").await;
        let (sealer, writer) = (ServerProcess::of(&new).await, ServerProcess::of(&late).await);
        let sealing = tokio::spawn(async move {
            seal(&new, 34).await;
            ask(&new, "SELECT total FROM orders").await
        });
        fixture.until_it_waits(&sealer).await;
        // A transaction that comes after the seal waits for it, although the mark could still be shared.
        let writing = tokio::spawn(async move { refused(&late, &under(33, "UPDATE orders SET total = 100")).await });
        fixture.until_it_waits(&writer).await;
        run(&old, "COMMIT").await;
        assert_eq!(
            sealing.await.expect("it is sealed"),
            "1",
            "what is read after a seal has the last old write in it"
        );
        assert_eq!(writing.await.expect("it is refused"), "PF001");
        assert_eq!(ask(&old, "SELECT total FROM orders").await, "1");
    });
}

#[test]
fn a_writer_waits_for_a_seal_and_is_refused() {
    play(async |fixture| {
        let (old, new) = (fixture.client().await, fixture.client().await);
        seal(&old, 33).await;
        for (number, level) in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"].into_iter().enumerate() {
            let token = 34 + number as u64;
            seal(&old, token - 1).await;
            run(&new, &format!("BEGIN; SELECT palisade_fence.seal('orders', {token})")).await;
            let process = ServerProcess::of(&old).await;
            let sql = format!(
                "BEGIN ISOLATION LEVEL {level}; SET LOCAL palisade_fence.token = '{}'; UPDATE orders SET total = 100",
                token - 1
            );
            let writing = async { refused(&old, &sql).await };
            let committing = async {
                fixture.until_it_waits(&process).await;
                run(&new, "COMMIT").await;
            };
            let (code, ()) = futures_util::future::join(writing, committing).await;
            assert_eq!(code, if level == "READ COMMITTED" { "PF001" } else { "40001" }, "{level}");
        }
        assert_eq!(ask(&old, "SELECT total FROM orders").await, "0");
    });
}

#[test]
fn a_snapshot_from_before_a_seal_cannot_write() {
    play(async |fixture| {
        let (client, other) = (fixture.client().await, fixture.client().await);
        seal(&other, 33).await;
        for (number, level) in ["REPEATABLE READ", "SERIALIZABLE"].into_iter().enumerate() {
            let token = 34 + number as u64;
            run(&client, &format!("BEGIN ISOLATION LEVEL {level}; SELECT total FROM orders")).await;
            seal(&other, token).await;
            let write = format!("SET LOCAL palisade_fence.token = '{token}'; UPDATE orders SET total = 1");
            assert_eq!(refused(&client, &write).await, "40001", "{level}: under the new token");
            let sealing = format!("BEGIN ISOLATION LEVEL {level}; SELECT palisade_fence.seal('orders', 90)");
            assert_eq!(refused(&client, &sealing).await, "PF008", "{level}");
            let whole = format!(
                "BEGIN ISOLATION LEVEL {level}; SET LOCAL palisade_fence.token = '{token}'; UPDATE orders SET total = total + 1; COMMIT"
            );
            run(&client, &whole).await;
        }
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "2");
    });
}

#[test]
fn one_holders_transactions_do_not_wait_for_each_other() {
    play(async |fixture| {
        let (one, two, three) = (fixture.client().await, fixture.client().await, fixture.client().await);
        seal(&one, 34).await;
        run(&one, "BEGIN; SET LOCAL palisade_fence.token = '34'; UPDATE orders SET total = 1 WHERE id = 42").await;
        run(&two, &under(34, "INSERT INTO orders VALUES (43, 1)")).await;
        run(&two, &under(34, "SET LOCAL palisade_fence.seq = '1'; INSERT INTO orders VALUES (44, 1)")).await;
        seal(&three, 34).await;
        run(&three, "SELECT palisade_fence.admit('orders', 34)").await;
        run(&one, "COMMIT").await;
        assert_eq!(ask(&one, "SELECT sum(total) FROM orders").await, "3");
    });
}

#[test]
fn a_numbered_write_waits_for_the_one_before_it() {
    play(async |fixture| {
        let (one, two) = (fixture.client().await, fixture.client().await);
        seal(&one, 34).await;
        for (first, admit) in [
            (1, "SET LOCAL palisade_fence.token = '34'; SET LOCAL palisade_fence.seq = '2'"),
            (3, "SELECT palisade_fence.admit_write('orders', 34, 4, 7, '')"),
        ] {
            run(&one, &format!("BEGIN; SELECT palisade_fence.admit_write('orders', 34, {first}, 7, '')")).await;
            let process = ServerProcess::of(&two).await;
            let writing =
                async { run(&two, &format!("BEGIN; {admit}; UPDATE orders SET total = total + 1; COMMIT")).await };
            let committing = async {
                fixture.until_it_waits(&process).await;
                run(&one, "COMMIT").await;
            };
            futures_util::future::join(writing, committing).await;
            let repeat = format!("BEGIN; {admit}; UPDATE orders SET total = 9");
            let code = refused(&two, &repeat).await;
            assert!(code == "PF004", "{code}");
        }
        assert_eq!(ask(&one, "SELECT total FROM orders").await, "2");
    });
}

#[test]
fn a_seal_that_is_rolled_back_has_no_effect() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 33).await;
        run(&client, "BEGIN; SELECT palisade_fence.seal('orders', 34); ROLLBACK").await;
        run(&client, &under(33, "UPDATE orders SET total = 1")).await;
        let whole = "BEGIN; SELECT palisade_fence.seal('orders', 35); SET LOCAL palisade_fence.token = '35'; \
                     UPDATE orders SET total = 2; COMMIT";
        run(&client, whole).await;
        assert_eq!(refused(&client, &under(33, "UPDATE orders SET total = 3")).await, "PF001");
    });
}

#[test]
fn the_server_ends_a_transaction_whose_client_stops() {
    play(async |fixture| {
        let (old, new) = (fixture.client().await, fixture.client().await);
        seal(&old, 33).await;
        run(&old, "BEGIN; SET LOCAL palisade_fence.token = '33'; UPDATE orders SET total = 1").await;
        assert_eq!(ask(&old, "SHOW idle_in_transaction_session_timeout").await, "30s");
        run(&old, "COMMIT").await;
        assert_eq!(ask(&old, "SHOW idle_in_transaction_session_timeout").await, "0");
        run(&old, "SET idle_in_transaction_session_timeout = '50ms'").await;
        run(&old, "BEGIN; SET LOCAL palisade_fence.token = '33'; UPDATE orders SET total = 2").await;
        seal(&new, 34).await;
        assert_eq!(ask(&new, "SELECT total FROM orders").await, "1");
    });
}

#[test]
fn acknowledged_writes_are_durable_whatever_the_session_sets() {
    play(async |fixture| {
        let client = fixture.client().await;
        run(&client, "SET synchronous_commit = off").await;
        let sealing = "BEGIN; SELECT palisade_fence.seal('orders', 34); SHOW synchronous_commit";
        assert_eq!(ask(&client, sealing).await, "on");
        run(&client, "COMMIT").await;
        let writing =
            "BEGIN; SET LOCAL palisade_fence.token = '34'; UPDATE orders SET total = 1; SHOW synchronous_commit";
        assert_eq!(ask(&client, writing).await, "on");
        run(&client, "ROLLBACK").await;
    });
}

/// An admitted connection is not checked again until the next seal. Then it must be.
#[test]
fn a_writer_admitted_before_a_seal_is_refused_after_it() {
    play(async |fixture| {
        let (old, new) = (fixture.client().await, fixture.client().await);
        seal(&old, 33).await;
        run(&old, "SET palisade_fence.token = '33'").await;
        run(&old, "UPDATE orders SET total = 1").await;
        run(&old, "UPDATE orders SET total = 2").await;
        seal(&new, 34).await;
        assert_eq!(refused(&old, "UPDATE orders SET total = 3").await, "PF001");
        assert_eq!(refused(&old, "TRUNCATE orders").await, "PF001");
        run(&old, "SET palisade_fence.token = '34'").await;
        run(&old, "UPDATE orders SET total = 4").await;
        run(&old, "SET palisade_fence.token = '33'").await;
        assert_eq!(refused(&old, "UPDATE orders SET total = 5").await, "PF001");
        assert_eq!(ask(&new, "SELECT total FROM orders").await, "4");
    });
}

#[test]
fn a_seal_waits_for_transactions_admitted_before() {
    play(async |fixture| {
        let (old, new) = (fixture.client().await, fixture.client().await);
        seal(&old, 33).await;
        run(&old, "SET palisade_fence.token = '33'; UPDATE orders SET total = 1").await;
        run(&old, "BEGIN; UPDATE orders SET total = 2").await;
        assert_eq!(ask(&old, "SHOW idle_in_transaction_session_timeout").await, "30s");
        run(&new, "SET lock_timeout = '50ms'").await;
        assert_eq!(refused(&new, "SELECT palisade_fence.seal('orders', 34)").await, "55P03");
        run(&new, "RESET lock_timeout").await;
        run(&old, "COMMIT").await;
        seal(&new, 34).await;
        assert_eq!(refused(&old, "UPDATE orders SET total = 3").await, "PF001");
    });
}

#[test]
fn reads_and_numbered_writes_of_an_admitted_connection_are_checked_too() {
    play(async |fixture| {
        let (old, new) = (fixture.client().await, fixture.client().await);
        seal(&old, 33).await;
        let read = "SELECT palisade_fence.admit('orders', 33)";
        let write = |seq: u64| format!("SELECT palisade_fence.admit_write('orders', 33, {seq}, 7, '')");
        run(&old, &format!("{read}; {}", write(1))).await;
        run(&new, "SET lock_timeout = '50ms'").await;
        for again in [read.to_owned(), write(2)] {
            run(&old, &format!("BEGIN; {again}")).await;
            assert_eq!(ask(&old, "SHOW idle_in_transaction_session_timeout").await, "30s");
            assert_eq!(refused(&new, "SELECT palisade_fence.seal('orders', 34)").await, "55P03", "{again}");
            run(&old, "COMMIT").await;
        }
        run(&new, "RESET lock_timeout").await;
        seal(&new, 34).await;
        assert_eq!(refused(&old, read).await, "PF001");
        assert_eq!(refused(&old, &write(3)).await, "PF001");
        run(&old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT total FROM orders").await;
        seal(&new, 35).await;
        assert_eq!(refused(&old, "SELECT palisade_fence.admit('orders', 35)").await, "40001");
    });
}

#[test]
fn an_admission_is_for_one_resource_and_ends_with_what_gave_it() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 33).await;
        run(&client, "CREATE TABLE parcels (id int); SELECT palisade_fence.protect('parcels', 'parcels')").await;
        run(&client, "SELECT palisade_fence.seal('parcels', 12)").await;
        run(&client, "SET palisade_fence.token = '33'; UPDATE orders SET total = 1").await;
        assert_eq!(refused(&client, "INSERT INTO parcels VALUES (1)").await, "PF002");
        // An admission in a transaction that is rolled back has no effect.
        let undone = "BEGIN; SELECT palisade_fence.seal('orders', 34); SET palisade_fence.token = '34'; \
                      UPDATE orders SET total = 2; ROLLBACK";
        run(&client, undone).await;
        run(&client, "UPDATE orders SET total = 3").await;
        run(&client, "SET palisade_fence.token = '34'").await;
        assert_eq!(refused(&client, "UPDATE orders SET total = 4").await, "PF002");
        run(&client, "SET palisade_fence.token = '33'; SET synchronous_commit = off").await;
        let durable = "BEGIN; UPDATE orders SET total = 5; SHOW synchronous_commit";
        assert_eq!(ask(&client, durable).await, "on");
    });
}
