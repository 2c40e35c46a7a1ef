//! The offset of raised tokens, which another program changes. For the stores that keep it in a key.

use palisade::{Loss, Palisade, Token};

use crate::fixture::{LONG_TTL, Proxied, take, token};

fn high() -> Token {
    Token::new(1 << 40).expect("a token")
}

/// A client that knew the offset reports lost data instead of lower tokens.
pub async fn a_lower_offset_is_noticed_by_a_connected_client(store: &Proxied, lower: impl FnOnce()) {
    let client = store.client(LONG_TTL).await;
    client.raise_tokens(high()).await.expect("raised");
    let held = take(&client, "held").await;
    lower();
    let error = client.lock("lock").acquire().await.expect_err("its token would be lower");
    assert!(error.to_string().contains("went back from"), "{error}");
    let loss = held.lost().await;
    assert!(matches!(loss, Loss::DataLost { .. }), "{loss:?}");
}

/// A new client does not know the offset, but sees claims that were created with it.
pub async fn a_lower_offset_is_noticed_behind_a_claim_that_has_it(store: &Proxied, lower: impl FnOnce()) {
    let client = store.client(LONG_TTL).await;
    client.raise_tokens(high()).await.expect("raised");
    let held = take(&client, "lock").await;
    lower();
    let other = store.client(LONG_TTL).await;
    let error = other.lock("lock").acquire().await.expect_err("its token would be lower");
    assert!(error.to_string().contains("tokens raise") && !error.may_have_taken_effect(), "{error}");
    let error = other.lock("lock").try_acquire().await.expect_err("its token would be lower");
    assert!(error.to_string().contains("tokens raise"), "{error}");
    other.raise_tokens(high()).await.expect_err("a lock is held with a lower token than the next would be");
    assert!(token(&held) > high());
}

/// Without its number the offset is unknown, and with a number that is too high no token is left. Deleting the key alone would let
/// tokens fall.
pub async fn an_unusable_offset_is_reported_with_advice(store: &Proxied, client: &Palisade, write: impl Fn(&str)) {
    for value in ["", "many", "1.5", "9007199254740991", "99999999999999999999"] {
        write(value);
        let connected = palisade::connect(&store.url()).await.map(drop);
        let acquired = client.lock("lock").acquire().await.map(drop);
        for error in [connected, acquired] {
            let error = error.expect_err("the offset cannot be used");
            let text = error.to_string();
            assert!(text.contains("offset'") && text.contains("tokens raise --above HIGHEST"), "{value}: {text}");
            assert!(!text.contains("/lock/") && !error.may_have_taken_effect(), "{value}: {text}");
        }
    }
    write("0");
    take(client, "lock").await.release().await.expect("it is held");
}
