//! The proxy is killed -9 again and again while writers write. Every acknowledged write was applied exactly once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::proxy::Proxy;
use super::upstream::Upstream;
use crate::common::bounded::TIMEOUT;
use crate::common::{free_address, http_client};
use crate::sandbox::Sandbox;
use palisade_fence::http::Api;
use palisade_fence::{ErrorKind, Seal, Sealed, Settled, Token};
use tokio::time::timeout;

/// The least number of kills. Others follow until one has hit a write.
const KILLS: usize = 12;
/// Nothing needs as many.
const MOST_KILLS: usize = 200;
const WRITERS: u64 = 3;

/// The outcomes that the writers have seen.
#[derive(Default)]
struct Results {
    acknowledged: BTreeSet<String>,
    refused: BTreeSet<String>,
    unknown: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: killed processes"]
async fn nothing_acknowledged_is_lost_and_nothing_is_applied_twice() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let address = free_address().to_string();
    let options = ["--shut-for", "200ms", "--listen", &address];
    let mut proxy = Proxy::start(&sandbox, &upstream.url(), &options);
    let (tokens, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let results = Arc::new(Mutex::new(Results::default()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let api = Api::new(http_client(), &format!("http://{address}")).unwrap();
            tokio::spawn(write(api, tokens.clone(), results.clone(), is_over.clone()))
        })
        .collect();
    let mut arrived = upstream.arrived.subscribe();
    for kill in 0..MOST_KILLS {
        let has_hit = results.lock().unwrap().unknown > 0;
        if kill >= KILLS && has_hit {
            break;
        }
        // Each kill hits another point of a write.
        let target = *arrived.borrow() + 1 + kill * 7 % 5;
        let arrival = timeout(TIMEOUT, arrived.wait_for(|arrived| *arrived >= target));
        arrival.await.expect("writes arrive").unwrap();
        for _ in 0..kill * 13 % 40 {
            tokio::task::yield_now().await;
        }
        proxy.kill();
        proxy = Proxy::start(&sandbox, &upstream.url(), &options);
    }
    is_over.store(true, Ordering::Relaxed);
    for writer in writers {
        timeout(TIMEOUT, writer).await.expect("it ends").unwrap();
    }
    judge(&upstream.log(), &results.lock().unwrap());
}

/// Writes under one token after the other, three times under each.
async fn write(api: Api, tokens: Arc<AtomicU64>, results: Arc<Mutex<Results>>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::Relaxed) {
        let token = tokens.fetch_add(1, Ordering::Relaxed) + 1;
        // Overtaken, refused after a write of unknown outcome, or the proxy is down: try again with the next token.
        let Ok(mut handle) = api.seal(Token::new(token).unwrap()).await else {
            tokio::task::yield_now().await;
            continue;
        };
        for number in 0..3 {
            let entry = format!("{token} {number}");
            let written = handle.post("/log", entry.clone()).await;
            let outcome = match written {
                Ok(reply) => {
                    assert_eq!(reply.status, 201);
                    Some(true)
                }
                Err(error) if error.may_have_taken_effect() => settle(&mut handle).await,
                Err(error) => {
                    let is_expected = error.overtaken_by().is_some() || error.is_retryable();
                    assert!(is_expected && !matches!(error.kind(), ErrorKind::NotSealed), "{error}");
                    Some(false)
                }
            };
            let mut results = results.lock().unwrap();
            match outcome {
                Some(true) => drop(results.acknowledged.insert(entry)),
                Some(false) => drop(results.refused.insert(entry)),
                None => results.unknown += 1,
            }
            if outcome != Some(true) {
                break;
            }
        }
    }
}

/// Waits until the proxy answers, and returns whether the last write was applied; `None` if the proxy does not know.
async fn settle(handle: &mut Sealed<Api>) -> Option<bool> {
    loop {
        match handle.settle().await {
            Ok(Settled::Applied(_)) => return Some(true),
            Ok(_) => return Some(false),
            Err(error) if error.is_retryable() => tokio::task::yield_now().await,
            Err(_) => return None,
        }
    }
}

fn judge(log: &[String], results: &Results) {
    let written: BTreeSet<String> = log.iter().cloned().collect();
    assert_eq!(written.len(), log.len(), "a write was applied twice");
    let lost: Vec<_> = results.acknowledged.difference(&written).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let applied: Vec<_> = results.refused.intersection(&written).collect();
    assert!(applied.is_empty(), "refused and applied: {applied:?}");
    let tokens: Vec<u64> = log.iter().map(|entry| entry.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(tokens.is_sorted(), "a write with an older token was applied after a newer one: {tokens:?}");
    assert!(!results.acknowledged.is_empty() && results.unknown > 0, "no kill hit a write: the test proves nothing");
}
