//! The order of the acquires of one client over a broken connection.

use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use palisade::Palisade;

use crate::fixture::{token, until_queued};
use crate::proxy::Proxy;

const ACQUIRES: usize = 40;
const ROUNDS: usize = 10;

/// Asserts that the acquires of `behind_proxy` are granted in the order in which they were made. Some are made before the
/// client notices that its connection is cut, some without a connection, and some on the next one.
///
/// # Panics
///
/// If two of them change places.
pub async fn assert_order_over_a_cut(behind_proxy: &Palisade, direct: &Palisade, proxy: &Proxy) {
    for round in 0..ROUNDS {
        let name = format!("order/{round}");
        let lock = |client: &Palisade| client.lock(name.as_str()).dangerous_accept_failover();
        let held = lock(direct).acquire().await.expect("a free lock");
        proxy.cut();
        let mut waiting = Vec::new();
        for _ in 0..ACQUIRES {
            // The first poll hands the acquire to the keeper. Tasks on two threads would do so in any order.
            let lock = lock(behind_proxy);
            let mut acquire = Box::pin(async move { lock.acquire().await });
            assert!(poll_immediate(&mut acquire).await.is_none(), "a held lock was granted");
            waiting.push(async move {
                let guard = acquire.await.expect("a grant");
                let token = token(&guard);
                guard.release().await.expect("a held lock");
                token
            });
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        let (tokens, ()) = tokio::join!(join_all(waiting), async {
            until_queued(direct, &name, ACQUIRES).await;
            held.release().await.expect("a held lock");
        });
        assert!(tokens.is_sorted(), "{tokens:?}");
    }
}
