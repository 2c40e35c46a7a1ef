//! The proxy killed -9 again and again while writers write: what was acknowledged is there, once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use palisade_fence::http::Api;
use palisade_fence::{ErrorKind, Seal, Sealed, Settled, Token};
use reqwest::Client;

use crate::proxy::Proxy;
use crate::sandbox::Sandbox;
use crate::upstream::Upstream;

const KILLS: usize = 12;
const WRITERS: u64 = 3;

/// What the writers know.
#[derive(Default)]
struct Acknowledged {
    acknowledged: BTreeSet<String>,
    refused: BTreeSet<String>,
    unknown: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_and_nothing_is_applied_twice() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let options = ["--shut-for", "200ms"];
    let mut proxy = Proxy::start(&sandbox, &upstream.url(), &options);
    let at = proxy.at.to_string();
    let (tokens, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let known = Arc::new(Mutex::new(Acknowledged::default()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let api = Api::new(Client::new(), &format!("http://{at}")).unwrap();
            tokio::spawn(write(api, tokens.clone(), known.clone(), is_over.clone()))
        })
        .collect();
    let mut arrived = upstream.arrived.subscribe();
    for kill in 0..KILLS {
        // Always at another point of a write.
        let target = *arrived.borrow() + 1 + kill * 7 % 5;
        arrived.wait_for(|arrived| *arrived >= target).await.unwrap();
        for _ in 0..kill * 13 % 40 {
            tokio::task::yield_now().await;
        }
        proxy.kill();
        proxy = Proxy::start(&sandbox, &upstream.url(), &[&options[..], &["--listen", &at]].concat());
    }
    is_over.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    judge(&upstream.log(), &known.lock().unwrap());
}

/// Writes under one token after the other, three times under each.
async fn write(api: Api, tokens: Arc<AtomicU64>, known: Arc<Mutex<Acknowledged>>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::Relaxed) {
        let token = tokens.fetch_add(1, Ordering::Relaxed) + 1;
        // Overtaken, shut or down: the next token tries again.
        let Ok(mut handle) = api.seal(Token::new(token).unwrap()).await else {
            tokio::task::yield_now().await;
            continue;
        };
        for number in 0..3 {
            let entry = format!("{token} {number}");
            let written = handle.post("/log", entry.clone()).await;
            let came_of_it = match written {
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
            let mut known = known.lock().unwrap();
            match came_of_it {
                Some(true) => drop(known.acknowledged.insert(entry)),
                Some(false) => drop(known.refused.insert(entry)),
                None => known.unknown += 1,
            }
            if came_of_it != Some(true) {
                break;
            }
        }
    }
}

/// Whether the last write was carried out, as soon as the proxy is there to say so; `None` if it does not know.
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

fn judge(log: &[String], known: &Acknowledged) {
    let written: BTreeSet<String> = log.iter().cloned().collect();
    assert_eq!(written.len(), log.len(), "something was carried out twice");
    let lost: Vec<_> = known.acknowledged.difference(&written).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let applied: Vec<_> = known.refused.intersection(&written).collect();
    assert!(applied.is_empty(), "refused and carried out: {applied:?}");
    let tokens: Vec<u64> = log.iter().map(|entry| entry.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(tokens.is_sorted(), "something older was carried out after something newer: {tokens:?}");
    assert!(!known.acknowledged.is_empty() && known.unknown > 0, "the kills hit nothing: it proves nothing");
}
