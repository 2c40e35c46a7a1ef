//! Who may do what.

use crate::scene::{ask, play, refused, run, seal, under};

/// A role without rights that may only write the table.
async fn as_writer(client: &tokio_postgres::Client, database: &str) {
    let role = format!("writer_{database}");
    run(client, &format!("CREATE ROLE {role}; GRANT ALL ON orders TO {role}; SET ROLE {role}")).await;
}

#[test]
fn the_trigger_judges_a_role_that_knows_nothing_of_it() {
    play(async |scene| {
        let client = scene.client().await;
        seal(&client, 34).await;
        as_writer(&client, &ask(&client, "SELECT current_database()").await).await;
        assert_eq!(refused(&client, "UPDATE orders SET total = 1").await, "PF003");
        assert_eq!(refused(&client, &under(33, "UPDATE orders SET total = 1")).await, "PF001");
        run(&client, &under(34, "UPDATE orders SET total = 1")).await;
        run(&client, &under(34, "SET LOCAL palisade.seq = '1'; UPDATE orders SET total = 2")).await;
    });
}

#[test]
fn nobody_moves_a_mark_but_who_may_seal_and_nobody_lowers_it() {
    play(async |scene| {
        let client = scene.client().await;
        let database = ask(&client, "SELECT current_database()").await;
        seal(&client, 34).await;
        as_writer(&client, &database).await;
        let touches = [
            "SELECT palisade_fence.seal('orders', 35)",
            "SELECT * FROM palisade_fence.mark('orders')",
            "UPDATE palisade_fence.marks SET token = 1",
            "DELETE FROM palisade_fence.marks",
            "SELECT palisade_fence.unprotect('orders')",
            "CREATE OR REPLACE FUNCTION palisade_fence.version() RETURNS integer LANGUAGE sql AS 'SELECT 9'",
        ];
        for sql in touches {
            assert_eq!(refused(&client, sql).await, "42501", "{sql}");
        }
        run(&client, "RESET ROLE").await;
        run(&client, &format!("GRANT USAGE ON SCHEMA palisade_fence TO writer_{database}")).await;
        run(&client, &format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence TO writer_{database}")).await;
        run(&client, &format!("SET ROLE writer_{database}")).await;
        seal(&client, 35).await;
        assert_eq!(refused(&client, "SELECT palisade_fence.seal('orders', 34)").await, "PF007");
        run(&client, &under(35, "UPDATE orders SET total = 1")).await;
        for sql in touches.into_iter().skip(2) {
            assert_eq!(refused(&client, sql).await, "42501", "{sql}");
        }
        assert_eq!(refused(&client, "ALTER TABLE orders DISABLE TRIGGER ALL").await, "42501");
    });
}

/// Version 2 had neither this function nor a right to it.
#[test]
fn who_could_write_before_an_upgrade_can_after_it() {
    play(async |scene| {
        let mut client = scene.client().await;
        let database = ask(&client, "SELECT current_database()").await;
        as_writer(&client, &database).await;
        run(&client, "RESET ROLE; DROP FUNCTION palisade_fence.admit_write").await;
        let version =
            "CREATE OR REPLACE FUNCTION palisade_fence.version() RETURNS integer LANGUAGE sql AS 'SELECT 2'";
        run(&client, version).await;
        run(&client, &format!("GRANT USAGE ON SCHEMA palisade_fence TO writer_{database}")).await;
        run(&client, &format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence TO writer_{database}")).await;
        seal(&client, 34).await;
        palisade_fence::postgres::install(&mut client).await.expect("it is upgraded");
        assert_eq!(ask(&client, "SELECT palisade_fence.version()").await, "3");
        run(&client, &format!("CREATE ROLE stranger_{database}; SET ROLE writer_{database}")).await;
        run(&client, "SELECT palisade_fence.admit_write('orders', 34, 1, 7, '1')").await;
        run(&client, &format!("RESET ROLE; SET ROLE stranger_{database}")).await;
        let admitting = "SELECT palisade_fence.admit_write('orders', 34, 2, 7, '1')";
        assert_eq!(refused(&client, admitting).await, "42501");
    });
}

#[test]
fn what_the_caller_has_in_front_of_the_catalogue_is_not_used() {
    play(async |scene| {
        let client = scene.client().await;
        seal(&client, 34).await;
        let own = "CREATE SCHEMA mine; \
                   CREATE FUNCTION mine.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$SELECT '34'$$; \
                   CREATE FUNCTION mine.differs(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'; \
                   CREATE OPERATOR mine.= (LEFTARG = text, RIGHTARG = text, FUNCTION = mine.differs); \
                   SET search_path = mine, pg_catalog, public";
        run(&client, own).await;
        assert_eq!(refused(&client, "UPDATE orders SET total = 1").await, "PF003");
        assert_eq!(refused(&client, &under(33, "UPDATE orders SET total = 1")).await, "PF001");
    });
}
