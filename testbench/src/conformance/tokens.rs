//! Tokens only go up.

use palisade::engine::Level;
use palisade::{ErrorKind, Token};

use super::bench::{Bench, Held, Subject, is_fenced, is_unsupported, ok, take, try_take};
use crate::staged::{Cut, Stage};

/// Whoever does not say otherwise gets a lock with a token, or a refusal that names both ways out.
pub async fn a_correctness_lock_needs_a_fenced_engine<S: Subject>(bench: &Bench<S>) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    if is_fenced(client.guarantees()) {
        let guard = ok(client.lock(&name).acquire().await);
        assert!(ok(guard.token()) <= Token::MAX);
        return;
    }
    let level = client.guarantees().level;
    assert!(level < Level::Fenced);
    for result in [
        client.lock(&name).acquire().await.map(Some),
        client.lock(&name).try_acquire().await,
        client.lock(&name).acquire_within(std::time::Duration::ZERO).await,
    ] {
        if let Err(error) = &result {
            let text = error.to_string();
            assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{text}");
            assert!(text.contains(&level.to_string()), "it does not say what the engine is: {text}");
            assert!(text.contains("fenced engine") && text.contains(".efficiency()"), "no way out: {text}");
        }
        is_unsupported(result);
    }
    assert_eq!(ok(client.inspect(&name).await), None);
}

/// A lock that only saves work needs no token, gives none, and keeps others out all the same:
///
/// ```compile_fail
/// fn token(guard: &palisade::EfficiencyGuard) {
///     let _ = guard.token();
/// }
/// ```
///
/// while this compiles:
///
/// ```
/// fn standing(guard: &palisade::EfficiencyGuard) {
///     let _ = guard.standing();
/// }
/// ```
pub async fn an_efficiency_lock_is_granted_on_every_engine<S: Subject>(bench: &Bench<S>) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    let guard = ok(alice.lock(&name).efficiency().acquire().await);
    assert_eq!(guard.standing(), palisade::Standing::Held);
    assert!(!format!("{guard:?}").to_lowercase().contains("token"), "{guard:?}");
    assert!(try_take(&bob, &name).await.is_none());
    assert!(ok(bob.lock(&name).efficiency().try_acquire().await).is_none());
    ok(guard.release().await);
    assert!(try_take(&bob, &name).await.is_some());
}

/// After a release.
pub async fn tokens_rise_over_a_release<S: Subject>(bench: &Bench<S>) {
    let clients = [bench.client().await, bench.client().await];
    let mut tokens = Rising::default();
    for client in clients.iter().cycle().take(6) {
        let held = take(client, &bench.name("lock")).await;
        tokens.see(&held);
        ok(held.release().await);
    }
}

/// After a guard was dropped.
pub async fn tokens_rise_over_a_drop<S: Subject>(bench: &Bench<S>) {
    let client = bench.client().await;
    let mut tokens = Rising::default();
    for _ in 0..4 {
        tokens.see(&take(&client, &bench.name("lock")).await);
    }
}

/// After the holder's session was closed.
pub async fn tokens_rise_over_the_end_of_a_session<S: Subject>(bench: &Bench<S>) {
    let observer = bench.client().await;
    let mut tokens = Rising::default();
    for _ in 0..3 {
        let client = bench.client().await;
        tokens.see(&take(&client, &bench.name("lock")).await);
        ok(client.close().await);
    }
    tokens.see(&take(&observer, &bench.name("lock")).await);
}

/// After the lock was taken away, which itself moves the token on.
pub async fn tokens_rise_over_a_forced_release<S: Subject>(bench: &Bench<S>) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let held = take(&client, &name).await;
    if !client.guarantees().offers.force_release {
        return is_unsupported(client.force_release(&name, "a test").await);
    }
    let mut tokens = Rising::default();
    tokens.see(&held);
    let forced = ok(client.force_release(&name, "a test").await);
    if is_fenced(client.guarantees()) {
        tokens.rise_to(forced.moved_to);
    }
    tokens.see(&take(&client, &name).await);
}

/// After the holder's session expired.
pub async fn tokens_rise_over_an_expiry<S: Subject>(bench: &Bench<S>) {
    let (stage, bob, name) = (Stage::default(), bench.client().await, bench.name("lock"));
    let alice = bench.client_on(&stage).await;
    let mut tokens = Rising::default();
    let lost = take(&alice, &name).await;
    tokens.see(&lost);
    stage.cut(Cut::Silent);
    tokens.see(&take(&bob, &name).await);
    stage.mend();
}

/// After there was no client at all for a while.
pub async fn tokens_rise_when_the_last_client_has_gone_and_another_comes<S: Subject>(bench: &Bench<S>) {
    let mut tokens = Rising::default();
    for _ in 0..3 {
        let client = bench.client().await;
        let held = take(&client, &bench.name("lock")).await;
        tokens.see(&held);
        ok(held.release().await);
    }
}

/// The tokens seen so far. Engines without tokens have nothing to show.
#[derive(Default)]
struct Rising(Option<Token>);

impl Rising {
    #[track_caller]
    fn see(&mut self, held: &Held) {
        if let Held::Fenced(guard) = held {
            self.rise_to(ok(guard.token()));
        }
    }

    #[track_caller]
    fn rise_to(&mut self, token: Token) {
        assert!(Some(token) > self.0, "token {token} came after {:?}", self.0);
        self.0 = Some(token);
    }
}
