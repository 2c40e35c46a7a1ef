//! Tokens only go up.

use std::time::Duration;

use palisade::engine::{Level, Raised};
use palisade::{Error, ErrorKind, Misuse, Palisade, Token};
use palisade_core::Refusal;

use super::bench::{
    Bench, Held, close, is_fenced, is_misuse, is_unsupported, ok, short_ttls, take, take_unless_lost, try_take,
};
use crate::faulty_engine::{Cut, EngineFaults};

/// By default a lock has a token, or is refused with a message that names both alternatives.
pub async fn a_correctness_lock_needs_a_fenced_engine(bench: &Bench) {
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
        client.lock(&name).acquire_within(Duration::ZERO).await,
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

/// An efficiency lock has no token, and excludes others all the same:
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
pub async fn an_efficiency_lock_is_granted_on_every_engine(bench: &Bench) {
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
pub async fn tokens_rise_over_a_release(bench: &Bench) {
    let clients = [bench.client().await, bench.client().await];
    let mut tokens = Rising::default();
    for client in clients.iter().cycle().take(6) {
        let held = take(client, &bench.name("lock")).await;
        tokens.see(&held);
        ok(held.release().await);
    }
}

/// After a guard was dropped.
pub async fn tokens_rise_over_a_drop(bench: &Bench) {
    let client = bench.client().await;
    let mut tokens = Rising::default();
    for _ in 0..4 {
        tokens.see(&take(&client, &bench.name("lock")).await);
    }
}

/// After the holder's session was closed.
pub async fn tokens_rise_over_the_end_of_a_session(bench: &Bench) {
    let observer = bench.client().await;
    let mut tokens = Rising::default();
    for _ in 0..3 {
        let client = bench.client().await;
        tokens.see(&take(&client, &bench.name("lock")).await);
        close(client).await;
    }
    tokens.see(&take(&observer, &bench.name("lock")).await);
}

/// After a force-release, which itself raises the token.
pub async fn tokens_rise_over_a_forced_release(bench: &Bench) {
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
pub async fn tokens_rise_over_an_expiry(bench: &Bench) {
    let (bob, name) = (bench.client().await, bench.name("lock"));
    let mut tokens = Rising::default();
    for ttl in short_ttls() {
        let faults = EngineFaults::default();
        let alice = bench.faulty_client(&faults, ttl).await;
        let Some(lost) = take_unless_lost(&alice, &name).await else { continue };
        if let Held::Fenced(guard) = &lost {
            let Ok(token) = guard.token() else { continue };
            tokens.rise_to(token);
        }
        faults.cut(Cut::Silent);
        let was_held = !lost.is_lost();
        let next = take(&bob, &name).await;
        tokens.see(&next);
        faults.mend();
        if was_held {
            return;
        }
        ok(next.release().await);
    }
}

/// After there was no client at all for a while.
pub async fn tokens_rise_when_the_last_client_has_gone_and_another_comes(bench: &Bench) {
    let mut tokens = Rising::default();
    for _ in 0..3 {
        let client = bench.client().await;
        let held = take(&client, &bench.name("lock")).await;
        tokens.see(&held);
        ok(held.release().await);
    }
}

/// Whatever lock is granted afterwards, by whichever client, also one that comes later. A held lock keeps its token.
pub async fn raised_tokens_begin_above_the_number_and_are_never_lowered(bench: &Bench) {
    let bench = &bench.alone();
    let (client, other) = (bench.client().await, bench.client().await);
    if client.guarantees().level == Level::Advisory {
        return is_unsupported(client.raise_tokens(Token::MAX).await);
    }
    let (old, held) = (bench.name("old"), bench.name("held"));
    let first = grant(&client, &old).await;
    let guard = ok(client.lock(&held).efficiency().acquire().await);
    let above = ok_token(first.get() + 1_000_000);
    let (raised, is_repeated) = raise(&client, above, || guard.release()).await;
    assert!(raised == Raised::Now || is_repeated, "tokens were above {above} before");
    for (client, name) in [(&client, &old), (&other, &old), (&other, &bench.name("new"))] {
        let token = grant(client, name).await;
        assert!(token > above, "token {token} was granted after tokens were raised above {above}");
    }
    let last = grant(&client, &old).await;
    let (raised, _) = raise(&other, first, async || Ok(())).await;
    assert_eq!(raised, Raised::Before, "tokens were above {first}");
    assert!(grant(&client, &old).await > last, "tokens were lowered");
    for client in [client, other] {
        close(client).await;
    }
    assert!(grant(&bench.client().await, &old).await > last);
}

/// Raises tokens. An engine may refuse that while a lock is held with a lower token: `release` releases it, and tests on the same
/// store may hold others for a while. Returns also whether an attempt before the last may have raised them.
async fn raise(client: &Palisade, above: Token, release: impl AsyncFnOnce() -> Result<(), Error>) -> (Raised, bool) {
    let (mut release, mut may_be_raised) = (Some(release), false);
    loop {
        match client.raise_tokens(above).await {
            Ok(raised) => return (raised, may_be_raised),
            Err(error) if error.to_string().contains("held with lower tokens") => {
                assert!(!error.may_have_taken_effect(), "{error}");
                if let Some(release) = release.take() {
                    ok(release().await);
                }
            }
            // The rows of the other tests were locked for too long.
            Err(error) if error.is_retryable() => may_be_raised |= error.may_have_taken_effect(),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One typing error must not use up the tokens.
pub async fn a_raise_that_would_use_up_the_tokens_is_refused(bench: &Bench) {
    let client = bench.client().await;
    if client.guarantees().level == Level::Advisory {
        return is_unsupported(client.raise_tokens(Token::HIGHEST_RAISE).await);
    }
    for above in [Token::MAX, ok_token(Token::HIGHEST_RAISE.get() + 1)] {
        let refused = is_misuse(client.raise_tokens(above).await);
        assert_eq!(refused, Misuse::Refused(Refusal::RaiseTooHigh { above, max: Token::HIGHEST_RAISE }));
    }
    assert!(grant(&client, &bench.name("lock")).await < Token::HIGHEST_RAISE);
}

fn ok_token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// Returns the token of a new grant, also on an engine whose tokens are no promise.
async fn grant(client: &Palisade, name: &str) -> Token {
    let guard = ok(client.lock(name).efficiency().acquire().await);
    let lock = ok(client.inspect(name).await).expect("it is held");
    ok(guard.release().await);
    lock.holders[0].token
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
