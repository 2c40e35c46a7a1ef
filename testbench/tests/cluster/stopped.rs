//! A leader that is stopped for longer than sessions live, and then goes on where it was.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use palisade_testbench::bounded::{block_until, check};
use serde_json::{Value, json};

use crate::failures::under_load;
use crate::fixture::{BOUND, leader, on_network};
use crate::http_client::{Answer, HttpClient};

/// The TTL of sessions that a test keeps alive, or leaves. It outlives an election, and a standstill of ten seconds.
const SHORT: Duration = Duration::from_secs(15);
/// Between two keep-alives of a session with that TTL.
const PAUSE: Duration = Duration::from_millis(100);

/// Sends a request again while no node leads, and returns the body of its success.
fn ask(client: &mut HttpClient, method: &str, path: &str, body: Option<&Value>) -> Value {
    let mut answer = client.ask(method, path, body);
    block_until(path, || {
        let is_served = answer.status != 503;
        if !is_served {
            answer = client.ask(method, path, body);
        }
        is_served
    });
    answer.good()
}

fn open(client: &mut HttpClient, ttl: Duration) -> Value {
    let session = ask(client, "POST", "/v1/sessions", Some(&json!({ "ttl_ms": ttl.as_millis() as u64 })));
    session["session"].clone()
}

fn take(client: &mut HttpClient, session: &Value, lock: &str) -> u64 {
    // With a number, a repeat takes the lock once.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let (wait_ms, number) = (BOUND.as_millis() as u64, LAST.fetch_add(1, Ordering::Relaxed) + 1);
    let wanted = json!({ "locks": [lock], "session": session, "wait_ms": wait_ms, "request": number });
    ask(client, "POST", "/v1/locks/acquire", Some(&wanted))["token"].as_u64().unwrap()
}

fn keep_alive(session: &Value) -> String {
    format!("/v1/sessions/{session}/keepalive")
}

/// Keeps a session alive at any of these nodes. Ends with `false` when the session has ended.
fn keep(session: Value, nodes: Vec<SocketAddr>, is_over: Arc<AtomicBool>) -> JoinHandle<bool> {
    thread::spawn(move || {
        for node in nodes.iter().cycle().take_while(|_| !is_over.load(Ordering::SeqCst)) {
            let mut client = HttpClient::connect(*node);
            client.send("POST", &keep_alive(&session), None);
            match client.answer() {
                Ok(answer) if answer.status < 300 => thread::sleep(PAUSE),
                // It knows no leader.
                Ok(answer) if answer.status >= 500 => {}
                Ok(_) => return false,
                Err(_) => {}
            }
        }
        true
    })
}

/// Everything that clients of the old leader have sent while it was stopped.
struct Stale {
    acquire: HttpClient,
    keep_alive: HttpClient,
    show: HttpClient,
}

impl Stale {
    fn connect(leader: SocketAddr) -> Stale {
        let [acquire, keep_alive, show] = [(); 3].map(|()| HttpClient::connect(leader));
        Stale { acquire, keep_alive, show }
    }

    fn send(&mut self, ask: &Value, ended: &Value) {
        self.acquire.send("POST", "/v1/locks/acquire", Some(ask));
        self.keep_alive.send("POST", &keep_alive(ended), None);
        self.show.send("GET", "/v1/locks/show?name=taken", None);
    }

    /// Reads what the old leader answers. It may close its connections, and it may ask the new leader.
    fn check(mut self, token: u64) {
        let is_good = |answer: &io::Result<Answer>| answer.as_ref().is_ok_and(|answer| answer.status < 300);
        let acquired = self.acquire.answer();
        assert!(!is_good(&acquired), "the old leader grants a lock that is held: {acquired:?}");
        let kept = self.keep_alive.answer();
        assert!(!is_good(&kept), "the old leader keeps a session alive that has ended: {kept:?}");
        let shown = self.show.answer();
        if is_good(&shown) {
            assert_eq!(
                shown.unwrap().good()["holders"][0]["token"],
                token,
                "the old leader shows what is out of date"
            );
        }
    }
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn a_leader_that_was_stopped_for_three_ttls_confirms_nothing_and_ends_no_session() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cluster, network) = on_network(3, &[], folder.path());
    check(BOUND * 2, async {
        let after = under_load(&mut cluster, async |cluster| {
            let old = leader(cluster).await;
            let mut client = HttpClient::connect(cluster.http(old));
            let (kept, ended, asker) = (open(&mut client, SHORT), open(&mut client, BOUND), open(&mut client, BOUND));
            let token = take(&mut client, &kept, "kept");
            let left = open(&mut client, SHORT);
            take(&mut client, &left, "left");
            let mut stale = Stale::connect(cluster.http(old));
            let others = (0..cluster.len()).filter(|at| *at != old).map(|at| cluster.http(at)).collect();
            let is_over = Arc::new(AtomicBool::new(false));

            // It learns nothing from the others before it has read what its clients have sent.
            network.lose(network.ways().filter(|(_, to)| *to == old));
            cluster.stop(old);
            let stopped_at = tokio::time::Instant::now();
            let keeping = keep(kept, others, is_over.clone());
            let new = leader(cluster).await;
            let mut client = HttpClient::connect(cluster.http(new));
            ask(&mut client, "DELETE", &format!("/v1/sessions/{ended}"), None);
            let other = open(&mut client, BOUND);
            let taken = take(&mut client, &other, "taken");
            stale.send(&json!({ "locks": ["taken"], "session": asker }), &ended);
            // The session that is not kept alive ends, at the new leader.
            let waiting = tokio::task::spawn_blocking(move || take(&mut client, &other, "left"));
            assert!(waiting.await.unwrap() > token);
            tokio::time::sleep_until(stopped_at + 3 * SHORT).await;

            cluster.go_on(old);
            tokio::task::spawn_blocking(move || stale.check(taken)).await.unwrap();
            network.heal();
            // As long as the old leader would take to end sessions.
            tokio::time::sleep(SHORT).await;
            is_over.store(true, Ordering::SeqCst);
            let is_alive = tokio::task::spawn_blocking(move || keeping.join().unwrap()).await.unwrap();
            assert!(is_alive, "a session that was kept alive has ended");
            let new = leader(cluster).await;
            let shown = ask(&mut HttpClient::connect(cluster.http(new)), "GET", "/v1/locks/show?name=kept", None);
            assert_eq!(shown["holders"][0]["token"], token, "{shown}");
        });
        assert!(after.await >= 100);
    });
}
