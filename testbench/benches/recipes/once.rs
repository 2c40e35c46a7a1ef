//! An operation that happens once, beside a plain insert under a unique constraint, which keeps no outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade::Palisade;
use palisade::recipe::once::{KEEP, PostgresClaim, claim_in_postgres};
use palisade::recipe::store::Postgres;
use palisade_testbench::servers::Service;

use super::queue::plain;
use super::{Client, sample};

/// Numbers that were not used before.
type Numbers = Arc<AtomicU64>;

/// Does new operations, or repeats one.
struct Caller {
    palisade: Palisade,
    store: Postgres,
    /// `None` to repeat the same operation.
    numbers: Option<Numbers>,
}

impl Client for Caller {
    async fn call(&mut self) -> u32 {
        let number = self.numbers.as_ref().map_or(0, |numbers| numbers.fetch_add(1, Ordering::Relaxed) + 1);
        let work = async |_| Ok::<_, std::io::Error>(1);
        self.palisade.once(format!("charge/{number}"), &self.store).run(work).await.unwrap()
    }
}

/// Keeps the record in the transaction of the work, without a lock.
struct Claimer(tokio_postgres::Client, Numbers);

impl Client for Claimer {
    async fn call(&mut self) -> u32 {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        let transaction = self.0.transaction().await.unwrap();
        match claim_in_postgres(&transaction, &format!("claim/{number}")).await.unwrap() {
            PostgresClaim::First(claim) => claim.keep(&transaction, b"1", KEEP).await.unwrap(),
            other => panic!("{other:?}"),
        }
        transaction.commit().await.unwrap();
        1
    }
}

/// Inserts a row under a unique constraint.
struct Plain(tokio_postgres::Client, Numbers);

impl Client for Plain {
    async fn call(&mut self) -> u32 {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        let insert = "INSERT INTO plain_once VALUES ($1) ON CONFLICT DO NOTHING";
        let key = format!("charge/{number}");
        self.0.execute_typed(insert, &[(&key, tokio_postgres::types::Type::TEXT)]).await.unwrap();
        1
    }
}

/// Measures each in turns, each client with its own connections.
pub(super) async fn measure(url: &str, service: &Service) {
    plain(url).await.batch_execute("CREATE TABLE plain_once (key text PRIMARY KEY)").await.unwrap();
    println!(
        "\n{:>8} {:>16} {:>18} {:>10} {:>14} {:>10}",
        "clients", "new, service/s", "new, postgres/s", "repeat/s", "transaction/s", "plain/s"
    );
    let numbers = Numbers::default();
    for clients in [1, 8, 32] {
        let (mut on_service, mut on_postgres, mut repeats) = (Vec::new(), Vec::new(), Vec::new());
        let (mut claims, mut plains) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            let store = Postgres::connect(url).await.unwrap();
            let caller = async |locks: &str, numbers: Option<Numbers>| {
                let palisade = palisade::connect(locks).await.unwrap();
                Caller { palisade, store: store.clone(), numbers }
            };
            on_service.push(caller(&service.url(), Some(numbers.clone())).await);
            on_postgres.push(caller(url, Some(numbers.clone())).await);
            repeats.push(caller(&service.url(), None).await);
            claims.push(Claimer(plain(url).await, numbers.clone()));
            plains.push(Plain(plain(url).await, numbers.clone()));
        }
        let rates = [
            sample(on_service).await.0,
            sample(on_postgres).await.0,
            sample(repeats).await.0,
            sample(claims).await.0,
            sample(plains).await.0,
        ];
        let [service, postgres, repeat, transaction, plain] = rates;
        println!("{clients:>8} {service:>16.0} {postgres:>18.0} {repeat:>10.0} {transaction:>14.0} {plain:>10.0}");
    }
}
