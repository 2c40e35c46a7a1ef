//! The Rust API of the fence.

use futures_util::FutureExt;
use palisade_fence::postgres::{Fence, Postgres, Sql, protect};
use palisade_fence::{ErrorKind, Sealed, Token};
use tokio_postgres::NoTls;

use super::fixture::{ask, play, refused, run, seal};

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

#[test]
fn a_fence_works_over_the_applications_own_connection() {
    play(async |fixture| {
        let mut client = fixture.client().await;
        let fence = Fence::new("orders").expect("a name");
        assert_eq!(fence.mark(&client).await.expect("it is read"), None);
        fence.seal(&mut client, token(34)).await.expect("it is sealed");
        let transaction = fence.transaction(&mut client, token(34)).await.expect("it begins");
        transaction.execute("UPDATE orders SET total = 1", &[]).await.expect("it is written");
        drop(transaction);
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "0", "it was dropped");
        let transaction = fence.transaction(&mut client, token(34)).await.expect("it begins");
        transaction.execute("UPDATE orders SET total = 1", &[]).await.expect("it is written");
        transaction.commit().await.expect("it is committed");
        let update = client.prepare("UPDATE orders SET total = total + $1").await.expect("a statement");
        assert_eq!(fence.execute(&mut client, token(34), &update, &[&5]).await.expect("it is written"), 1);
        let error = fence.execute(&mut client, token(33), &update, &[&5]).await.expect_err("it is stale");
        assert_eq!(error.overtaken_by(), Some(token(34)), "{error}");
        assert!(!error.may_have_taken_effect());
        let error = fence.transaction(&mut client, token(35)).await.expect_err("it has not sealed");
        assert!(matches!(error.kind(), ErrorKind::NotSealed), "{error}");
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "6");
    });
}

#[test]
fn a_connection_shows_its_token_while_the_guard_is_there() {
    play(async |fixture| {
        let (mut client, other) = (fixture.client().await, fixture.client().await);
        let fence = Fence::new("orders").expect("a name");
        let update = client.prepare("UPDATE orders SET total = total + $1").await.expect("a statement");
        let orders = fence.under(&mut client, token(34)).await.expect("it is shown");
        let error = orders.execute(&update, &[&5]).await.expect_err("nothing has sealed it");
        assert!(matches!(error.kind(), ErrorKind::NotSealed), "{error}");
        seal(&other, 34).await;
        assert_eq!(orders.execute(&update, &[&5]).await.expect("it is written"), 1);
        assert_eq!(orders.execute(&update, &[&5]).await.expect("it is written"), 1);
        orders.batch_execute("UPDATE orders SET total = total + 1").await.expect("any statement is under it");
        let twice = orders.prepare("INSERT INTO orders VALUES (42, 0)").await.expect("a statement");
        let error = orders.execute(&twice, &[]).await.expect_err("it is there already");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
        seal(&other, 35).await;
        let error = orders.execute(&update, &[&5]).await.expect_err("it is stale");
        assert_eq!((error.overtaken_by(), error.token()), (Some(token(35)), Some(token(34))), "{error}");
        assert!(!error.may_have_taken_effect());
        orders.end().await.expect("it ends");
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "11");
    });
}

#[test]
fn a_token_is_not_shown_after_its_guard() {
    play(async |fixture| {
        let mut client = fixture.client().await;
        let fence = Fence::new("orders").expect("a name");
        seal(&client, 34).await;
        drop(fence.under(&mut client, token(34)).await.expect("it is shown"));
        assert_eq!(refused(&client, "UPDATE orders SET total = 1").await, "PF003", "it was dropped");
        fence.under(&mut client, token(34)).await.expect("it is shown").end().await.expect("it ends");
        assert_eq!(refused(&client, "UPDATE orders SET total = 1").await, "PF003", "it has ended");
        assert!(fence.under(&mut client, token(34)).now_or_never().is_none(), "it takes a round trip");
        assert_eq!(refused(&client, "UPDATE orders SET total = 1").await, "PF003", "it was cancelled");
    });
}

#[test]
fn a_failed_transaction_is_not_reported_as_committed() {
    play(async |fixture| {
        let mut client = fixture.client().await;
        let fence = Fence::new("orders").expect("a name");
        fence.seal(&mut client, token(34)).await.expect("it is sealed");
        let transaction = fence.transaction(&mut client, token(34)).await.expect("it begins");
        transaction.execute("UPDATE orders SET total = 1", &[]).await.expect("it is written");
        transaction.execute("INSERT INTO orders VALUES (42, 0)", &[]).await.expect_err("it is there already");
        let error = transaction.commit().await.expect_err("it has failed");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
        assert_eq!(ask(&client, "SELECT total FROM orders").await, "0");
    });
}

#[test]
fn a_rejected_statement_leaves_the_handle_usable() {
    play(async |fixture| {
        let orders = Postgres::connect(&fixture.url(), NoTls, "orders").await.expect("it connects");
        let mut orders = Sealed::seal(orders, token(34)).await.expect("it is sealed");
        let error = orders.execute(Sql::new("INSERT INTO orders VALUES (42, 0)")).await.expect_err("it is there");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
        assert!(error.to_string().contains("23505"), "{error}");
        let own = orders.transaction(|_| Box::pin(async { Err("not today".into()) })).await.expect_err("its own");
        assert!(own.to_string().contains("not today"), "{own}");
        let error =
            orders.execute(Sql::new("UPDATE nowhere SET total = 1")).await.expect_err("there is no such table");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
        assert_eq!(orders.execute(Sql::new("UPDATE orders SET total = $1").bind(3)).await.expect("it is written"), 1);
        assert_eq!(
            orders.query(Sql::new("SELECT total FROM orders")).await.expect("it is read")[0].get::<_, i32>(0),
            3
        );
    });
}

/// The usual outcome, one row, is stored before the statement; any other is stored after it.
#[test]
fn the_outcome_of_a_numbered_write_is_stored() {
    play(async |fixture| {
        let client = fixture.client().await;
        let orders = Postgres::connect(&fixture.url(), NoTls, "orders").await.expect("it connects");
        let mut orders = Sealed::seal(orders, token(34)).await.expect("it is sealed");
        let stored = "SELECT seq || ' ' || convert_from(outcome, 'UTF8') FROM palisade_fence.mark('orders')";
        let writes = [
            ("INSERT INTO orders VALUES (43, 0)", 1),
            ("UPDATE orders SET total = 1", 2),
            ("DELETE FROM orders WHERE id = 0", 0),
        ];
        for (number, (sql, rows)) in writes.into_iter().enumerate() {
            assert_eq!(orders.execute(Sql::new(sql)).await.expect("it is written"), rows, "{sql}");
            assert_eq!(ask(&client, stored).await, format!("{} {rows}", number + 1), "{sql}");
        }
        let outcome =
            orders.transaction(|_| Box::pin(async { Ok(b"'; \\x".to_vec()) })).await.expect("it is written");
        assert_eq!(outcome, b"'; \\x");
        assert_eq!(ask(&client, stored).await, "4 '; \\x");
    });
}

#[test]
fn errors_say_what_to_do() {
    play(async |fixture| {
        let mut client = fixture.client().await;
        let error = protect(&mut client, "nowhere", "orders").await.expect_err("there is no such table");
        assert!(error.to_string().contains("\"nowhere\" does not exist"), "{error}");
        let orders = Postgres::connect(&fixture.url(), NoTls, "orders").await.expect("it connects");
        let mut orders = Sealed::seal(orders, token(34)).await.expect("it is sealed");
        run(&client, "DROP FUNCTION palisade_fence.admit_write").await;
        let error = orders.execute(Sql::new("DELETE FROM orders")).await.expect_err("version 2 has no such function");
        assert!(
            error.to_string().contains("older than this program: `palisade fence postgres --install`"),
            "{error}"
        );
        run(&client, "DROP SCHEMA palisade_fence CASCADE").await;
        let error = Postgres::connect(&fixture.url(), NoTls, "orders").await.expect_err("it is not installed");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        assert!(error.to_string().contains("palisade fence postgres --install"), "{error}");
        let error = Postgres::connect("postgres://127.0.0.1:1/x?user=y", NoTls, "orders")
            .await
            .expect_err("no server is there");
        assert!(error.is_retryable() && !error.may_have_taken_effect(), "{error}");
        let error = Postgres::connect("nonsense", NoTls, "orders").await.expect_err("it is no URL");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    });
}

#[test]
fn unusual_names_work() {
    play(async |fixture| {
        for name in ["a'b", r"a\b", "a\"b; DROP TABLE orders", "größe/42", "'; --", "$$"] {
            let resource = Postgres::connect(&fixture.url(), NoTls, name).await.expect("it connects");
            let mut resource = Sealed::seal(resource, token(34)).await.expect("it is sealed");
            resource.transaction(|_| Box::pin(async { Ok(b"it's".to_vec()) })).await.expect("it is written");
            let client = fixture.client().await;
            let mark =
                Fence::new(name).expect("a name").mark(&client).await.expect("it is read").expect("it is sealed");
            assert_eq!((mark.token.get(), mark.seq.get()), (34, 1), "{name}");
        }
    });
}

#[test]
fn the_error_of_a_table_without_the_trigger_says_so() {
    play(async |fixture| {
        let client = fixture.client().await;
        let (orders, other) = (Fence::new("orders").expect("a name"), Fence::new("order").expect("a name"));
        assert!(orders.is_protecting(&client, "orders").await.expect("it is there"));
        assert!(!other.is_protecting(&client, "orders").await.expect("it is there"), "under another mark");
        client.batch_execute("CREATE TABLE plain (id int)").await.expect("a table");
        assert!(!orders.is_protecting(&client, "plain").await.expect("it is there"));
        orders.is_protecting(&client, "nothing").await.expect_err("there is no such table");
        client.batch_execute("ALTER TABLE orders DISABLE TRIGGER palisade_fence").await.expect("it is ours");
        assert!(!orders.is_protecting(&client, "orders").await.expect("it is there"), "it does not fire");
    });
}
