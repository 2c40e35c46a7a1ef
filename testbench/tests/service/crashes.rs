//! The service is killed -9 repeatedly while clients work: nothing acknowledged is lost, no token is given twice, and no lock
//! has two holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use palisade::{BootInstant, Options, Palisade};
use palisade_testbench::bounded::{block_until, check_many, number_from_env, until_some};
use palisade_testbench::faulty_disk::Rng;
use palisade_testbench::fixture::{LONG_TTL, retryable};
use palisade_testbench::history::{self, Grant};
use palisade_testbench::servers::Service;

const CLIENTS: usize = 8;
const LOCKS: usize = 3;
/// The number of kills, unless `PALISADE_KILLS` sets another.
const KILLS: u32 = 60;

/// Acquires and releases locks until `stop` is set, and counts the grants in `granted`; returns them.
async fn work(palisade: Palisade, client: usize, stop: Arc<AtomicBool>, granted: Arc<AtomicU32>) -> Vec<Grant> {
    let mut rng = Rng::new(client as u64 + 1);
    let mut grants = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let lock = format!("lock/{}", rng.below(LOCKS));
        let asked_at = BootInstant::now();
        // An outage is no failure here: the keeper releases a grant whose reply was lost.
        // Some waits are given up soon.
        let patience = Duration::from_millis([500, 20_000][rng.below(2)]);
        let Ok(Some(guard)) = palisade.lock(&lock).acquire_within(patience).await else { continue };
        let told_at = BootInstant::now();
        let Ok(token) = guard.token() else { continue };
        tokio::time::sleep(Duration::from_micros(rng.below(3_000) as u64)).await;
        let let_go_at = match guard.token() {
            Ok(_) => BootInstant::now().min(guard.safe_until()),
            // The guard does not know since when it was lost, only until when it was certainly held.
            Err(_) => guard.safe_until().min(told_at),
        };
        grants.push(Grant { lock, token, asked_at, told_at, let_go_at, takes: 1, of: 1, client });
        granted.fetch_add(1, Ordering::Relaxed);
        drop(guard.release().await);
    }
    grants
}

#[test]
#[ignore = "long: kills"]
fn a_service_that_is_killed_at_any_moment_loses_nothing_acknowledged() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut service = Service::start(env!("CARGO_BIN_EXE_serve"), place.path()).expect("the service starts");
    let kills = number_from_env("PALISADE_KILLS", KILLS);
    check_many(kills, Duration::from_secs(10), async {
        let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let options = Options::new().ttl(Duration::from_secs(5)).label(format!("client {number}"));
            clients.push(options.connect(&service.url()).await.expect("the service is there"));
        }
        let clients = clients.into_iter().enumerate();
        let clients: Vec<_> = clients
            .map(|(number, client)| tokio::spawn(work(client, number, stop.clone(), granted.clone())))
            .collect();
        let until_granted = |count: u32| {
            block_until("the clients get on", || granted.load(Ordering::Relaxed) >= count);
        };
        let mut rng = Rng::new(7);
        for kill in 0..kills {
            // Usually there are many more. A slow machine gets the time that its clients need.
            until_granted(kill);
            // The random moment of the kill is what is tested: anywhere between two commits.
            std::thread::sleep(Duration::from_micros(rng.below(300_000) as u64));
            service.kill();
            service.restart().expect("it starts again");
        }
        until_granted(kills + 1);
        stop.store(true, Ordering::Relaxed);
        let mut grants = Vec::new();
        for client in clients {
            grants.extend(client.await.expect("no client panics"));
        }
        history::check(&grants).unwrap_or_else(|anomalies| panic!("{}", anomalies[0]));
        // Every lock can be acquired again, with a higher token.
        let connect = async || retryable(Options::new().ttl(LONG_TTL).connect(&service.url()).await);
        let palisade = until_some("the service lets a client in", connect).await;
        let last = grants.iter().map(|grant| grant.token).max().expect("there are grants");
        for lock in 0..LOCKS {
            let guard = palisade.lock(format!("lock/{lock}")).acquire().await.expect("it is free");
            assert!(guard.token().expect("it is held") > last);
        }
    });
}
