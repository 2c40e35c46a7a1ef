//! HTTP on every node: one that does not lead relays requests to the one that does.

use std::collections::BTreeMap;

use palisade_testbench::bounded::{block_until, check, until};
use palisade_testbench::credentials::{Credentials, Login, users};
use palisade_testbench::servers::ServiceCluster;
use serde_json::{Value, json};

use crate::fixture::{self, BOUND, calm, take};
use crate::http_client::{Answer, HttpClient};

/// Returns the node that leads, and another one.
fn leader_and_follower(cluster: &ServiceCluster) -> (usize, usize) {
    let mut leader = None;
    block_until("a node leads", || {
        leader = cluster.leader();
        leader.is_some()
    });
    let leader = leader.unwrap();
    (leader, (leader + 1) % cluster.len())
}

fn connect(cluster: &ServiceCluster, at: usize) -> HttpClient {
    HttpClient::connect(cluster.http(at))
}

/// Asks until the answer is a success: a node that does not know the leader yet, or has just lost it, answers 503, and one that
/// starts does not answer.
fn eventually(cluster: &ServiceCluster, at: usize, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let mut last = None;
    block_until(path, || {
        last = HttpClient::attempt(cluster.http(at), method, path, body).filter(|answer| {
            assert!(answer.status < 400 || answer.code() == "UNAVAILABLE", "{answer:?}");
            answer.status < 400
        });
        last.is_some()
    });
    last.unwrap()
}

/// Waits until this many requests wait for the lock.
fn until_waiting(cluster: &ServiceCluster, lock: &str, count: u64) {
    let (leader, _) = leader_and_follower(cluster);
    let path = format!("/v1/locks/show?name={lock}");
    block_until("the length of the queue", || {
        let shown = HttpClient::attempt(cluster.http(leader), "GET", &path, None);
        shown.is_some_and(|shown| shown.status == 200 && shown.good()["waiter_count"] == count)
    });
}

#[test]
fn every_node_answers_every_request() {
    calm(&[], |cluster| {
        let mut last = 0;
        for round in 0..2 {
            for at in 0..cluster.len() {
                eventually(cluster, at, "GET", "/v1/locks", None);
                // All on one connection.
                let mut client = connect(cluster, at);
                let session = client.post("/v1/sessions", &json!({ "ttl_ms": 60_000 })).good()["session"].clone();
                let ask = json!({ "locks": ["orders"], "session": session, "wait_ms": 1_000 });
                let token = client.post("/v1/locks/acquire", &ask).good()["token"].as_u64().unwrap();
                assert!(token > last, "{token} follows {last}");
                last = token;
                let shown = client.get("/v1/locks/show?name=orders").good();
                assert_eq!(shown["holders"][0]["token"], token);
                assert!(
                    shown["holders"][0]["label"].as_str().unwrap().contains(&client.address.to_string()),
                    "{shown}"
                );
                assert_eq!(
                    client.post("/v1/locks/acquire", &json!({ "locks": ["orders"], "ttl_ms": 1_000 })).code(),
                    "BUSY"
                );
                assert_eq!(client.post("/v1/locks/acquire", &json!({ "nonsense": 1 })).code(), "BADARG");
                assert_eq!(client.get("/v1/nonsense").code(), "NOTFOUND");
                client.post("/v1/locks/release", &json!({ "lock": "orders", "token": token })).good();
                client.ask("DELETE", &format!("/v1/sessions/{session}"), None).good();
            }
            if round == 0 {
                let (leader, _) = leader_and_follower(cluster);
                cluster.restart(leader).unwrap();
                eventually(cluster, leader, "GET", "/v1/locks", None);
            }
        }
    });
}

#[test]
fn a_client_that_leaves_a_follower_leaves_the_queue_of_the_leader() {
    calm(&[], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        let held = json!({ "locks": ["orders"], "ttl_ms": 600_000 });
        connect(cluster, leader).post("/v1/locks/acquire", &held).good();
        let wait = json!({ "locks": ["orders"], "ttl_ms": 600_000, "wait_ms": 600_000 });
        // The second one has sent more, which nothing reads while the first request waits.
        for sends_more in [false, true] {
            let mut waiting = connect(cluster, follower);
            waiting.send("POST", "/v1/locks/acquire", Some(&wait));
            if sends_more {
                waiting.send("GET", "/v1/locks", None);
            }
            until_waiting(cluster, "orders", 1);
            drop(waiting);
            until_waiting(cluster, "orders", 0);
        }
    });
}

#[test]
fn a_watch_of_a_follower_shows_what_the_leader_does() {
    calm(&[], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        let watches = |count: &str| {
            let metrics = connect(cluster, leader).get("/metrics").body;
            metrics.contains(&format!("palisade_watchers {count}\n"))
        };
        for sends_more in [false, true] {
            let mut watch = connect(cluster, follower);
            watch.send("GET", "/v1/locks/watch?prefix=orders/", None);
            assert_eq!(watch.head().unwrap().0, 200);
            if sends_more {
                watch.send("GET", "/v1/locks", None);
            }
            for lock in ["orders/1", "orders/2"] {
                connect(cluster, leader)
                    .post("/v1/locks/acquire", &json!({ "locks": [lock], "ttl_ms": 600_000 }))
                    .good();
                let event = watch.event();
                assert_eq!((&event["event"], &event["locks"]), (&json!("granted"), &json!([lock])));
                let forced = json!({ "lock": lock, "reason": "test" });
                connect(cluster, leader).post("/v1/locks/break", &forced).good();
                assert_eq!(watch.event()["event"], "ended");
            }
            block_until("the watch", || watches("1"));
            drop(watch);
            block_until("the watch has ended", || watches("0"));
        }
    });
}

#[test]
fn a_relayed_wait_ends_when_another_node_leads_and_its_repeat_is_carried_out_once() {
    // A leader that is stopped closes no connection.
    for is_stopped in [false, true] {
        calm(&[], |cluster| {
            let (leader, follower) = leader_and_follower(cluster);
            let mut client = connect(cluster, follower);
            let session = client.post("/v1/sessions", &json!({ "ttl_ms": 600_000 })).good()["session"].clone();
            let held = client.post("/v1/locks/acquire", &json!({ "locks": ["orders"], "ttl_ms": 600_000 })).good();
            let wait = json!({ "locks": ["orders"], "session": session, "wait_ms": 600_000, "request": 1 });
            client.send("POST", "/v1/locks/acquire", Some(&wait));
            until_waiting(cluster, "orders", 1);
            if is_stopped {
                cluster.stop(leader)
            } else {
                cluster.kill(leader)
            }
            let answer = client.answer().unwrap();
            assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"), "{answer:?}");
            assert!(answer.head.contains("retry-after: 1"), "{answer:?}");
            eventually(cluster, follower, "GET", "/v1/locks", None);
            // The connection of the client goes on, to the new leader.
            client.post("/v1/locks/release", &json!({ "lock": "orders", "token": held["token"] })).good();
            let granted = client.post("/v1/locks/acquire", &wait).good();
            assert_eq!(client.post("/v1/locks/acquire", &wait).good(), granted);
        });
    }
}

#[test]
fn a_watch_of_a_follower_ends_with_the_leader() {
    calm(&[], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        let mut watch = connect(cluster, follower);
        watch.send("GET", "/v1/locks/watch", None);
        assert_eq!(watch.head().unwrap().0, 200);
        cluster.kill(leader);
        // Without the last chunk, so that no client takes it for complete.
        block_until("the stream breaks", || {
            watch.line().inspect(|line| assert_ne!(line.trim(), "0", "the stream has an end")).is_err()
        });
    });
}

/// Its browser connects again, and gets the page of the node that leads.
#[test]
fn a_page_of_the_leader_ends_when_another_node_leads() {
    calm(&[], |cluster| {
        let (leader, _) = leader_and_follower(cluster);
        let mut page = connect(cluster, leader);
        page.send("GET", "/page/stream", None);
        assert_eq!(page.head().unwrap().0, 200);
        cluster.stop(leader);
        block_until("another node leads", || cluster.leader().is_some_and(|now| now != leader));
        cluster.go_on(leader);
        // Its numbers come each second until then.
        block_until("the stream ends", || page.line().map_or(true, |line| line.trim() == "0"));
    });
}

#[test]
fn without_a_leader_requests_are_refused() {
    calm(&[], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        (0..cluster.len()).filter(|at| *at != follower).for_each(|at| cluster.kill(at));
        let ask = json!({ "locks": ["orders"], "ttl_ms": 600_000 });
        let mut client = connect(cluster, follower);
        for path in ["/v1/locks/acquire", "/v1/locks/acquire"] {
            let answer = client.post(path, &ask);
            assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"), "{answer:?}");
            // `detail` says that nothing was done, and the remedy does not contradict it.
            assert!(answer.body.contains("Try again later; `detail` says whether it may have been"), "{answer:?}");
        }
        client.get("/healthz").good();
        client.get("/metrics").good();
        cluster.restart(leader).unwrap();
        let granted = eventually(cluster, follower, "POST", "/v1/locks/acquire", Some(&ask));
        assert!(granted.good()["token"].as_u64().is_some());
    });
}

/// Returns the metrics of a node.
fn metrics(cluster: &ServiceCluster, at: usize) -> BTreeMap<String, f64> {
    let text = connect(cluster, at).get("/metrics").body;
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn each_node_answers_for_itself_what_is_about_it() {
    calm(&[], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        for (at, leads) in [(leader, 1.0), (follower, 0.0)] {
            let mut client = connect(cluster, at);
            client.get("/healthz").good();
            assert_eq!(metrics(cluster, at)["palisade_leads"], leads);
            assert!(client.get("/openapi.json").good()["paths"]["/v1/locks"].is_object());
        }
    });
}

#[test]
fn a_node_is_ready_while_it_leads_or_knows_the_leader() {
    calm(&[], |cluster| {
        let (_, follower) = leader_and_follower(cluster);
        let is_ready = |cluster: &ServiceCluster, at| connect(cluster, at).get("/readyz").status == 200;
        for at in 0..cluster.len() {
            block_until("the node is ready", || is_ready(cluster, at));
        }
        let others: Vec<_> = (0..cluster.len()).filter(|at| *at != follower).collect();
        others.iter().for_each(|at| cluster.kill(*at));
        block_until("the node is not ready", || !is_ready(cluster, follower));
        let answer = connect(cluster, follower).get("/readyz");
        assert_eq!((answer.status, answer.code().as_str()), (503, "NOTREADY"), "{answer:?}");
        assert!(answer.body.contains("this node knows no leader"), "{answer:?}");
        cluster.restart(others[0]).unwrap();
        block_until("the node is ready again", || is_ready(cluster, follower));
    });
}

#[test]
fn the_metrics_describe_the_cluster() {
    calm(&[], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        let lag = |at: usize| format!("palisade_node_lag_entries{{node=\"node{}\"}}", at + 1);
        let mut client = connect(cluster, leader);
        let session = client.post("/v1/sessions", &json!({ "ttl_ms": 600_000 })).good()["session"].clone();
        block_until("all nodes have everything", || {
            let (leading, following) = (metrics(cluster, leader), metrics(cluster, follower));
            let is_applied =
                |metrics: &BTreeMap<String, f64>| metrics["palisade_applied_index"] == leading["palisade_last_index"];
            let is_complete = is_applied(&leading) && is_applied(&following);
            is_complete && leading[&lag(follower)] == 0.0 && following["palisade_connected_nodes"] == 2.0
        });
        let (leading, following) = (metrics(cluster, leader), metrics(cluster, follower));
        assert_eq!(leading["palisade_connected_nodes"], 2.0);
        assert_eq!(leading["palisade_term"], following["palisade_term"]);
        assert!(leading["palisade_term"] >= 1.0);
        for metrics in [&leading, &following] {
            assert!(metrics["palisade_leader_changes_total"] >= 1.0);
            assert_eq!(metrics["palisade_snapshots_sent_total"] + metrics["palisade_snapshots_received_total"], 0.0);
        }
        assert!(!leading.contains_key(&lag(leader)));
        assert!(!following.keys().any(|name| name.starts_with("palisade_node_lag_entries")), "only the leader knows");

        cluster.kill(follower);
        // The log grows until the leader has forgotten what the other node needs.
        block_until("the leader has made a snapshot", || {
            let ask = json!({ "locks": ["orders"], "session": session });
            let token = client.post("/v1/locks/acquire", &ask).good()["token"].clone();
            client.post("/v1/locks/release", &json!({ "lock": "orders", "token": token })).good();
            let files = std::fs::read_dir(cluster.directory(leader)).unwrap().filter_map(Result::ok);
            files.map(|file| file.file_name()).any(|name| name.to_string_lossy().starts_with("snapshot-"))
        });
        let behind = metrics(cluster, leader);
        assert!(behind[&lag(follower)] > 0.0);
        assert_eq!(behind["palisade_connected_nodes"], 1.0);
        cluster.restart(follower).unwrap();
        block_until("it listens", || std::net::TcpStream::connect(cluster.http(follower)).is_ok());
        block_until("the snapshot is counted on both nodes", || {
            metrics(cluster, leader)["palisade_snapshots_sent_total"] >= 1.0
                && metrics(cluster, follower)["palisade_snapshots_received_total"] >= 1.0
        });
        block_until("the node has caught up", || metrics(cluster, leader)[&lag(follower)] == 0.0);
    });
}

#[test]
fn the_leader_checks_users_and_names_the_address_of_the_client() {
    let (ci, ops) = (Login::new("ci", "acquire", "ci/"), Login::new("ops", "admin", ""));
    let users = users(&[&ci, &ops]);
    calm(&[(users.0, &users.1)], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        let basic = |login: &Login, secret: &str| {
            use base64::Engine;
            let coded = base64::prelude::BASE64_STANDARD.encode(format!("{}:{secret}", login.name()));
            format!("authorization: Basic {coded}\r\n")
        };
        let mut client = connect(cluster, follower);
        client.header = basic(&ops, ops.secret());
        block_until("it knows the leader", || client.get("/v1/locks").status == 200);
        client.header = String::new();
        assert_eq!(client.get("/v1/locks").code(), "NOAUTH");
        client.header = basic(&ci, "wrong");
        assert_eq!(client.get("/v1/locks").code(), "WRONGPASS");
        client.header = basic(&ci, ci.secret());
        let ask = |lock: &str| json!({ "locks": [lock], "ttl_ms": 600_000 });
        client.post("/v1/locks/acquire", &ask("ci/web")).good();
        assert_eq!(client.post("/v1/locks/acquire", &ask("orders")).code(), "DENIED");
        let mut operator = connect(cluster, follower);
        operator.header = basic(&ops, ops.secret());
        operator.post("/v1/locks/break", &json!({ "lock": "ci/web", "reason": "test" })).good();
        for (what, address, user) in [
            ("login failed", client.address, None),
            ("denied", client.address, Some("ci")),
            ("a lock was taken away", operator.address, Some("ops")),
        ] {
            let is_entry = |line: &str| {
                line.contains(what)
                    && line.contains(&format!("peer=\"{address}\""))
                    && user.is_none_or(|user| line.contains(&format!("user=\"{user}\"")))
            };
            // On a busy machine another node may lead by now.
            let has_entry = |at: usize| cluster.log(at).lines().any(is_entry);
            assert!((0..3).any(|at| at != follower && has_entry(at)), "{what}: {}", cluster.log(leader));
            assert!(!has_entry(follower), "{what}: {}", cluster.log(follower));
        }
        // The eighth wrong secret closes the connection, here too.
        let mut guesser = connect(cluster, follower);
        guesser.header = basic(&ci, "wrong");
        for guess in 1..=8 {
            let answer = guesser.get("/v1/locks");
            assert_eq!(
                (answer.code().as_str(), answer.head.contains("connection: close")),
                ("WRONGPASS", guess == 8)
            );
        }
        guesser.line().unwrap_err();
    });
}

#[test]
fn the_leader_knows_the_user_that_a_certificate_names() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = Credentials::new(folder.path());
    credentials.demand_certificates();
    let (users, tls) = (users(&[&Login::new("client", "acquire", "ci/")]), credentials.tls());
    let files = folder.path().display().to_string();
    let variables =
        [(users.0, users.1.as_str()), (tls.0, &tls.1), ("SERVE_USER_FROM", "dns"), ("SERVE_PEER_TLS", &files)];
    calm(&variables, |cluster| {
        let (_, follower) = leader_and_follower(cluster);
        let mut client = HttpClient::encrypted(cluster.http(follower), folder.path());
        let ask = |lock: &str| json!({ "locks": [lock], "ttl_ms": 600_000 });
        block_until("it knows the leader", || client.post("/v1/locks/acquire", &ask("orders")).code() == "DENIED");
        client.post("/v1/locks/acquire", &ask("ci/web")).good();
    });
}

#[test]
fn the_leader_bounds_the_connections_of_all_nodes_together() {
    calm(&[("SERVE_HTTP_CONNECTIONS", "4")], |cluster| {
        let (leader, follower) = leader_and_follower(cluster);
        let other = 3 - leader - follower;
        check(BOUND, async {
            // Over RESP, so that it takes no place.
            let observer = fixture::connect(&cluster.url()).await;
            let _held = take(&observer, "orders").await;
            let until_waiting = async |count: usize| {
                let waiters = async || observer.inspect("orders").await.unwrap().unwrap().waiters.len();
                until("the length of the queue", async || waiters().await == count).await;
            };
            let wait = json!({ "locks": ["orders"], "ttl_ms": 600_000, "wait_ms": 600_000 });
            let mut waiting = Vec::new();
            for count in 1..=4 {
                let mut client = connect(cluster, follower);
                client.send("POST", "/v1/locks/acquire", Some(&wait));
                waiting.push(client);
                until_waiting(count).await;
            }
            // This node has room for four, and the leader for four in all.
            let answer = connect(cluster, other).get("/v1/locks");
            assert_eq!((answer.status, answer.code().as_str()), (503, "OVERLOADED"), "{answer:?}");
            drop(waiting);
            until_waiting(0).await;
            until("there is room again", async || connect(cluster, other).get("/v1/locks").status == 200).await;
        });
    });
}
