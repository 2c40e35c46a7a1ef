//! Signed tokens.

use palisade::{Loss, Misuse};

use super::bench::{Bench, is_fenced, is_lost, is_misuse, is_unsupported, ok};

/// A token that holds a lock is signed for that lock and no other, as long as it holds it. An engine without signatures refuses.
pub async fn a_token_is_signed_where_that_is_offered(bench: &Bench) {
    let (client, name, other) = (bench.client().await, bench.name("lock"), bench.name("other"));
    let offers = client.guarantees().offers;
    if !is_fenced(client.guarantees()) {
        return assert!(!offers.signed, "there is no token that could be signed");
    }
    let guard = ok(client.lock(&name).acquire().await);
    if !offers.signed {
        is_unsupported(guard.signed_token_for(&name).await);
        return is_unsupported(guard.signed_token().await);
    }
    let signed = ok(guard.signed_token().await);
    assert_eq!(signed.as_str().split('.').count(), 3, "this is no JWS");
    assert!(!format!("{signed:?}").contains(signed.as_str()));
    assert_eq!(ok(guard.signed_token_for(&name).await), signed);
    is_misuse(guard.signed_token_for(&other).await);
    is_misuse(guard.signed_token_for("").await);
    ok(guard.release().await);
    assert_eq!(is_lost(guard.signed_token().await), Loss::Released);
    let both = ok(client.lock_all([&name, &other]).acquire().await);
    assert_eq!(is_misuse(both.signed_token().await), Misuse::WhichLock);
    assert_ne!(ok(both.signed_token_for(&name).await), ok(both.signed_token_for(&other).await));
}
