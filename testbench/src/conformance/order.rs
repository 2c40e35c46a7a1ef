//! First come, first served, where the engine declares it.

use std::sync::{Arc, Mutex, PoisonError};

use palisade::Palisade;
use palisade::engine::Order;

use super::bench::{Bench, join, ok, take};

/// The queue is one for all clients.
pub async fn waiters_of_several_clients_are_granted_in_order(bench: &Bench) {
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(bench.client().await);
    }
    granted_in_order(bench, &clients).await;
}

/// Tasks of one client keep their order too.
pub async fn waiters_of_one_client_are_granted_in_order(bench: &Bench) {
    let client = bench.client().await;
    granted_in_order(bench, &vec![client; 5]).await;
}

/// Every waiter is granted once; in the order of arrival, if the engine is fair.
async fn granted_in_order(bench: &Bench, clients: &[Palisade]) {
    let (holder, name) = (bench.client().await, bench.name("lock"));
    let held = take(&holder, &name).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let (client, lock, order) = (client.clone(), name.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let held = take(&client, &lock).await;
            order.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            ok(held.release().await);
        }));
        bench.until_queued(&holder, &name, number + 1).await;
    }
    ok(held.release().await);
    for task in tasks {
        join(task).await;
    }
    let mut order = order.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if holder.guarantees().order == Order::Race {
        order.sort_unstable();
    }
    assert_eq!(order, (0..clients.len()).collect::<Vec<_>>());
}
