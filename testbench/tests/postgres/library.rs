//! What Rust has on top.

use palisade_fence::postgres::{Fence, Postgres, Sql, protect};
use palisade_fence::{ErrorKind, Sealed, Token};
use tokio_postgres::NoTls;

use crate::scene::{ask, play, run};

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

#[test]
fn a_fence_works_over_the_applications_own_connection() {
    play(async |scene| {
        let mut client = scene.client().await;
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
fn a_transaction_that_has_failed_is_not_said_to_be_committed() {
    play(async |scene| {
        let mut client = scene.client().await;
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
fn what_the_database_does_not_accept_is_rejected_and_the_handle_goes_on() {
    play(async |scene| {
        let orders = Postgres::connect(&scene.url(), NoTls, "orders").await.expect("it connects");
        let mut orders = Sealed::seal(orders, token(34)).await.expect("it is sealed");
        let error = orders.execute(Sql::new("INSERT INTO orders VALUES (42, 0)")).await.expect_err("it is there");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
        assert!(error.to_string().contains("23505"), "{error}");
        let own = orders.transaction(|_| Box::pin(async { Err("not today".into()) })).await.expect_err("its own");
        assert!(own.to_string().contains("not today"), "{own}");
        assert_eq!(orders.execute(Sql::new("UPDATE orders SET total = $1").bind(3)).await.expect("it is written"), 1);
        assert_eq!(
            orders.query(Sql::new("SELECT total FROM orders")).await.expect("it is read")[0].get::<_, i32>(0),
            3
        );
    });
}

#[test]
fn errors_say_what_to_do() {
    play(async |scene| {
        let mut client = scene.client().await;
        let error = protect(&mut client, "nowhere", "orders").await.expect_err("there is no such table");
        assert!(error.to_string().contains("\"nowhere\" does not exist"), "{error}");
        run(&client, "DROP SCHEMA palisade_fence CASCADE").await;
        let error = Postgres::connect(&scene.url(), NoTls, "orders").await.expect_err("it is not installed");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        assert!(error.to_string().contains("palisade fence postgres --install"), "{error}");
        let error =
            Postgres::connect("postgres://127.0.0.1:1/x?user=y", NoTls, "orders").await.expect_err("nobody is there");
        assert!(error.is_retryable() && !error.may_have_taken_effect(), "{error}");
        let error = Postgres::connect("nonsense", NoTls, "orders").await.expect_err("it is no URL");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    });
}

#[test]
fn strange_names_are_names() {
    play(async |scene| {
        for name in ["a'b", r"a\b", "a\"b; DROP TABLE orders", "größe/42", "'; --", "$$"] {
            let resource = Postgres::connect(&scene.url(), NoTls, name).await.expect("it connects");
            let mut resource = Sealed::seal(resource, token(34)).await.expect("it is sealed");
            resource.transaction(|_| Box::pin(async { Ok(b"it's".to_vec()) })).await.expect("it is written");
            let client = scene.client().await;
            let mark =
                Fence::new(name).expect("a name").mark(&client).await.expect("it is read").expect("it is sealed");
            assert_eq!((mark.token.get(), mark.seq.get()), (34, 1), "{name}");
        }
    });
}

#[test]
fn a_table_without_the_trigger_is_told_apart() {
    play(async |scene| {
        let client = scene.client().await;
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
