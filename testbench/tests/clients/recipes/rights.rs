//! A role that may not create tables, with the rights that the docs list.

use palisade::recipe::queue::Queue;
use palisade::recipe::store::Postgres;
use palisade::recipe::versioned::Versioned;
use palisade::recipe::{once, queue, versioned};
use palisade_testbench::bounded::{BOUND, check_on_threads};
use palisade_testbench::fixture::unused_name;
use palisade_testbench::servers::Postgres as Server;

use super::queue::{client, database_on};

const PAGE: &str = include_str!("../../../../docs/recipes/README.md");

async fn use_recipes(store: &Postgres) -> Result<(), palisade::Error> {
    let locks = palisade::connect("memory:").await?;
    let work = async |_| Ok::<_, std::io::Error>(1);
    let once: Result<u32, _> = locks.once("charge/42", store).run(work).await;
    once.unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..2 {
        Versioned::new(store, "account/7").update(|count: Option<u32>| count.unwrap_or_default() + 1).await?;
    }
    let queue = Queue::new(store, "orders").attempts(1);
    queue.push("customer/7", "ship").await?;
    queue.next().await?.fail("no").await.unwrap_or_else(|error| panic!("{error}"));
    let dead = queue.dead_letters(1).await?;
    queue.retry(dead[0].id).await?;
    queue.next().await?.done().await.unwrap_or_else(|error| panic!("{error}"));
    // Removes the rows of idle keys.
    assert!(queue.take().await?.is_none());
    Ok(())
}

#[test]
fn the_documented_rights_suffice_in_postgresql() {
    let database = database_on(Server::shared().unwrap_or_else(|absent| panic!("{absent}")));
    check_on_threads(BOUND, async {
        let (owner, role) = (client(&database.url).await, unused_name("app_"));
        let run =
            async |sql: String| owner.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        // What `palisade engine postgres recipes` prints.
        run([once::POSTGRES_SCHEMA, queue::POSTGRES_SCHEMA, versioned::POSTGRES_SCHEMA].join("\n")).await;
        run(format!("CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")).await;
        let store =
            Postgres::connect(&database.url.replace("postgres@", &format!("{role}@"))).await.expect("it may log in");
        let refused = Queue::new(&store, "orders").push("a", "ship").await.expect_err("it has no rights yet");
        assert!(refused.to_string().contains("palisade engine postgres recipes"), "{refused}");
        for grant in PAGE.lines().filter(|line| line.starts_with("GRANT")) {
            run(grant.replace(" TO app", &format!(" TO {role}"))).await;
        }
        use_recipes(&store).await.expect("it has the documented rights");
    });
}
