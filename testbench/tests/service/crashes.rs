//! The service is killed -9 repeatedly while clients work: nothing acknowledged is lost, no token is given twice, and no lock
//! has two holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade::{BootInstant, Options, Palisade};
use palisade_testbench::bounded::{check_many, number_from_env};
use palisade_testbench::faulty_disk::Rng;
use palisade_testbench::history::{self, Grant};
use palisade_testbench::servers::Service;

const CLIENTS: usize = 8;
const LOCKS: usize = 3;
/// The number of kills, unless `PALISADE_KILLS` sets another.
const KILLS: u32 = 60;

/// Acquires and releases locks until `stop` is set; returns the grants.
async fn work(palisade: Palisade, client: usize, stop: Arc<AtomicBool>) -> Vec<Grant> {
    let mut rng = Rng::new(client as u64 + 1);
    let mut grants = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let lock = format!("lock/{}", rng.below(LOCKS));
        let asked_at = BootInstant::now();
        // An outage is no failure here: the keeper releases a grant whose reply was lost.
        let Ok(Some(guard)) = palisade.lock(&lock).acquire_within(Duration::from_millis(500)).await else { continue };
        let told_at = BootInstant::now();
        let Ok(token) = guard.token() else { continue };
        tokio::time::sleep(Duration::from_micros(rng.below(3_000) as u64)).await;
        let let_go_at = match guard.token() {
            Ok(_) => BootInstant::now().min(guard.safe_until()),
            // The guard does not know since when it was lost, only until when it was certainly held.
            Err(_) => guard.safe_until().min(told_at),
        };
        grants.push(Grant { lock, token, asked_at, told_at, let_go_at, takes: 1, of: 1, client });
        drop(guard.release().await);
    }
    grants
}

#[test]
fn a_service_that_is_killed_at_any_moment_loses_nothing_acknowledged() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut service = Service::start(env!("CARGO_BIN_EXE_serve"), place.path()).expect("the service starts");
    let kills = number_from_env("PALISADE_KILLS", KILLS);
    check_many(kills, Duration::from_secs(10), async {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let options = Options::new().ttl(Duration::from_secs(5)).label(format!("client {number}"));
            clients.push(options.connect(&service.url()).await.expect("the service is there"));
        }
        let clients = clients.into_iter().enumerate();
        let clients: Vec<_> =
            clients.map(|(number, client)| tokio::spawn(work(client, number, stop.clone()))).collect();
        let mut rng = Rng::new(7);
        for _ in 0..kills {
            // The random moment of the kill is what is tested: anywhere between two commits.
            std::thread::sleep(Duration::from_micros(rng.below(300_000) as u64));
            service.kill();
            service.restart().expect("it starts again");
        }
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        let mut grants = Vec::new();
        for client in clients {
            grants.extend(client.await.expect("no client panics"));
        }
        assert!(grants.len() > kills as usize, "only {} grants in all: the clients did not get on", grants.len());
        history::check(&grants).unwrap_or_else(|anomalies| panic!("{}", anomalies[0]));
        // Every lock can be acquired again, with a higher token.
        let palisade = palisade::connect(&service.url())
            .await
            .unwrap_or_else(|error| panic!("{error}\nit has said:\n{}", service.log()));
        let last = grants.iter().map(|grant| grant.token).max().expect("there are grants");
        for lock in 0..LOCKS {
            let guard = palisade.lock(format!("lock/{lock}")).acquire().await.expect("it is free");
            assert!(guard.token().expect("it is held") > last);
        }
    });
}
