//! Rights of roles.

use super::fixture::{ask, play, refused, run, seal, under};

/// A role without rights that may only write the table.
async fn as_writer(client: &tokio_postgres::Client, database: &str) {
    let role = format!("writer_{database}");
    run(client, &format!("CREATE ROLE {role}; GRANT ALL ON orders TO {role}; SET ROLE {role}")).await;
}

#[test]
fn the_trigger_fences_a_role_without_rights_on_the_fence() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 34).await;
        as_writer(&client, &ask(&client, "SELECT current_database()").await).await;
        assert_eq!(refused(&client, "UPDATE orders SET total = 1").await, "PF003");
        assert_eq!(refused(&client, &under(33, "UPDATE orders SET total = 1")).await, "PF001");
        run(&client, &under(34, "UPDATE orders SET total = 1")).await;
        run(&client, &under(34, "SET LOCAL palisade_fence.seq = '1'; UPDATE orders SET total = 2")).await;
    });
}

#[test]
fn only_sealers_move_a_mark_and_it_never_falls() {
    play(async |fixture| {
        let client = fixture.client().await;
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

#[test]
fn a_role_without_rights_installs_it_and_protects_its_own_tables() {
    play(async |fixture| {
        let mut client = fixture.client().await;
        let database = ask(&client, "SELECT current_database()").await;
        let owner = format!("owner_{database}");
        run(&client, "DROP EVENT TRIGGER palisade_fence; DROP SCHEMA palisade_fence CASCADE").await;
        run(&client, &format!("CREATE ROLE {owner}; GRANT CREATE ON DATABASE {database} TO {owner}")).await;
        run(&client, &format!("GRANT CREATE ON SCHEMA public TO {owner}; SET ROLE {owner}")).await;
        palisade_fence::postgres::install(&mut client).await.expect("it may");
        run(&client, "CREATE TABLE own (id int)").await;
        palisade_fence::postgres::protect(&mut client, "own", "own").await.expect("it is a plain table");
        assert_eq!(refused(&client, "TRUNCATE own").await, "PF003");
        run(&client, "CREATE TABLE parts (id int) PARTITION BY RANGE (id)").await;
        let error =
            palisade_fence::postgres::protect(&mut client, "parts", "own").await.expect_err("it cannot keep up");
        assert!(error.to_string().contains("later ones would not be fenced; Have a superuser run"), "{error}");

        // Another role that owns a table, and was granted the functions.
        run(&client, "RESET ROLE").await;
        run(&client, &format!("CREATE ROLE other_{database}; GRANT CREATE ON SCHEMA public TO other_{database}"))
            .await;
        run(&client, &format!("GRANT USAGE ON SCHEMA palisade_fence TO other_{database}")).await;
        run(&client, &format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence TO other_{database}")).await;
        run(&client, &format!("SET ROLE other_{database}; CREATE TABLE theirs (id int)")).await;
        palisade_fence::postgres::protect(&mut client, "theirs", "theirs").await.expect("it is its own table");
        assert_eq!(refused(&client, "TRUNCATE theirs").await, "PF003");
        assert_eq!(palisade_fence::postgres::problems(&client).await.expect("it may look"), []);
        // It cannot register a table of another role.
        run(&client, "SELECT palisade_fence.note('public.orders')").await;
        run(&client, "RESET ROLE").await;
        let noted = "SELECT string_agg(name, ' ' ORDER BY name) FROM palisade_fence.protected";
        assert_eq!(ask(&client, noted).await, "public.own public.theirs");
        // A superuser adds the parts that it could not install.
        palisade_fence::postgres::install(&mut client).await.expect("it is installed again");
        palisade_fence::postgres::protect(&mut client, "parts", "own").await.expect("now it keeps up");
        run(&client, &format!("SET ROLE {owner}; CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (1)"))
            .await;
        assert_eq!(refused(&client, "TRUNCATE part").await, "PF003");
    });
}

/// Only the owner of the schema lowers a mark. Admissions under the higher mark are checked again.
#[test]
fn the_owner_of_the_schema_lowers_a_mark() {
    play(async |fixture| {
        let client = fixture.client().await;
        seal(&client, 9000).await;
        run(&client, &under(9000, "UPDATE orders SET total = 1")).await;
        let database = ask(&client, "SELECT current_database()").await;
        run(&client, &format!("CREATE ROLE app_{database}; GRANT USAGE ON SCHEMA palisade_fence TO app_{database}"))
            .await;
        run(&client, &format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence TO app_{database}")).await;
        let lower = "SELECT palisade_fence.force_lower('orders', 33)";
        assert_eq!(refused(&client, &format!("SET ROLE app_{database}; {lower}")).await, "42501");
        run(&client, "RESET ROLE").await;
        run(&client, lower).await;
        assert_eq!(refused(&client, &under(9000, "UPDATE orders SET total = 2")).await, "PF002");
        seal(&client, 34).await;
        run(&client, &under(34, "UPDATE orders SET total = 3")).await;
        for lower in ["'orders', 34", "'none', 1", "'orders', NULL"] {
            let code = refused(&client, &format!("SELECT palisade_fence.force_lower({lower})")).await;
            assert!(["PF006", "PF008"].contains(&&*code), "{lower}: {code}");
        }
    });
}

#[test]
fn a_search_path_in_front_of_the_catalogue_has_no_effect() {
    play(async |fixture| {
        let client = fixture.client().await;
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
