//! Both halves of a signed token: the service signs, and a resource verifies offline.

use std::path::Path;

use palisade::{ErrorKind, Options, Palisade};
use palisade_fence::memory::Memory;
use palisade_fence::signed::{NotGenuine, Scope, Verifier};
use palisade_server::sign::Signer;
use palisade_testbench::credentials::{self, Login};

use super::fixture::{Fixture, LONG_TTL, check, retryable, take, token, until_some};

/// A service with signing keys and two users.
struct Signing {
    fixture: Fixture,
    alice: Login,
    bob: Login,
}

impl Signing {
    fn new() -> Signing {
        let (alice, bob) = (Login::new("alice", "admin", ""), Login::new("bob", "admin", ""));
        let (name, users) = credentials::users(&[&alice, &bob]);
        let variables = [("SERVE_SIGN", "yes"), (name, users.as_str())];
        let fixture = Fixture::with_variables(tempfile::tempdir().expect("a folder"), &variables);
        Signing { fixture, alice, bob }
    }

    async fn client(&self, login: &Login) -> Palisade {
        let url = format!("palisade://{}@{}", login.in_url(), self.fixture.service.address);
        Options::new().ttl(LONG_TTL).connect(&url).await.expect("a client")
    }

    fn verifier(&self) -> Verifier {
        verifier(self.fixture.folder())
    }
}

fn signer(folder: &Path) -> Signer {
    Signer::new(&folder.join("service"))
}

/// Returns a verifier with the keys that are published now.
fn verifier(folder: &Path) -> Verifier {
    let published = signer(folder).published().expect("keys");
    Verifier::new(&published.issuer, &serde_json::to_string(&published).expect("JSON")).expect("keys")
}

#[test]
fn a_resource_verifies_a_grant_offline() {
    check(async {
        let signing = Signing::new();
        let alice = signing.client(&signing.alice).await;
        let guard = take(&alice, "orders/42").await;
        let (signed, verifier) = (guard.signed_token().await.expect("it is held"), signing.verifier());
        drop(signing);
        let claims = verifier.verify_from(signed.as_str(), "orders/42", "alice").expect("it is genuine");
        assert_eq!((claims.token, claims.session), (token(&guard), guard.session()));
        assert_eq!((claims.scope, claims.principal.as_deref()), (Scope::Exclusive, Some("alice")));
        let borrowed = verifier.verify_from(signed.as_str(), "orders/42", "bob").expect_err("it is alice's");
        assert_eq!(borrowed, NotGenuine::Borrowed { principal: Some("alice".to_owned()) });
        let other = verifier.verify(signed.as_str(), "orders/43").expect_err("it is for another lock");
        assert_eq!(other, NotGenuine::OtherLock { lock: "orders/42".to_owned() });
    });
}

#[test]
fn a_token_of_another_cluster_is_refused() {
    check(async {
        let (ours, theirs) = (Signing::new(), Signing::new());
        let guard = take(&theirs.client(&theirs.alice).await, "orders/42").await;
        let signed = guard.signed_token().await.expect("it is held");
        let refused = ours.verifier().verify(signed.as_str(), "orders/42").expect_err("it is another cluster's");
        assert!(matches!(refused, NotGenuine::UnknownKey { .. }), "{refused}");
    });
}

/// A signature stays valid; only the fence knows that the token was overtaken.
#[test]
fn an_overtaken_token_verifies_and_is_refused_by_the_fence() {
    check(async {
        let signing = Signing::new();
        let (alice, bob) = (signing.client(&signing.alice).await, signing.client(&signing.bob).await);
        let (orders, verifier) = (Memory::new("orders"), signing.verifier());
        let old = take(&alice, "orders/42").await.signed_token().await.expect("it is held");
        // The guard is dropped and the lock released; the signed text remains.
        let guard = take(&bob, "orders/42").await;
        let new = guard.signed_token().await.expect("it is held");
        let mut sealed = verifier.seal(orders.clone(), new.as_str(), "orders/42").await.expect("it is bob's");
        verifier.verify(old.as_str(), "orders/42").expect("it was given");
        let error = verifier.seal(orders, old.as_str(), "orders/42").await.expect_err("it was overtaken");
        assert_eq!(error.overtaken_by(), Some(token(&guard)));
        sealed.write(b"bob's".to_vec()).await.expect("it is bob's");
    });
}

#[test]
fn keys_outlive_a_crash_and_are_replaced_one_by_one() {
    check(async {
        let mut signing = Signing::new();
        let folder = signing.fixture.folder().to_owned();
        let alice = signing.client(&signing.alice).await;
        let guard = take(&alice, "orders/42").await;
        let before = guard.signed_token().await.expect("it is held");
        let first = verifier(&folder);
        let old = signer(&folder).published().expect("keys").keys[0].kid.clone();
        signing.fixture.service.kill();
        signing.fixture.service.restart().expect("it starts again");
        let signed = async || retryable(guard.signed_token().await);
        let again = until_some("the service signs again", &signed).await;
        assert_eq!(again, before, "the same keys, the same cluster, the same grant");

        signer(&folder).add_key().expect("a key");
        signing.fixture.service.kill();
        signing.fixture.service.restart().expect("it starts again");
        let after = until_some("the service signs again", &signed).await;
        let both = verifier(&folder);
        for signed in [&before, &after] {
            assert_eq!(both.verify(signed.as_str(), "orders/42").expect("it is genuine").token, token(&guard));
        }
        let early = first.verify(after.as_str(), "orders/42").expect_err("its key was not fetched yet");
        assert!(matches!(early, NotGenuine::UnknownKey { .. }), "{early}");

        signer(&folder).retire_key(&old).expect("it signs no more");
        let one = verifier(&folder);
        assert_eq!(one.verify(before.as_str(), "orders/42"), Err(NotGenuine::UnknownKey { kid: old }));
        one.verify(after.as_str(), "orders/42").expect("its key stays");
    });
}

#[test]
fn a_service_without_keys_refuses_with_what_to_do() {
    check(async {
        let fixture = Fixture::new();
        let guard = take(&fixture.client(LONG_TTL).await, "orders/42").await;
        let error = guard.signed_token().await.expect_err("nothing is signed");
        assert!(matches!(error.kind(), ErrorKind::Outage { .. }), "{error:?}");
        assert!(!error.is_retryable() && !error.may_have_taken_effect());
        let message = error.to_string().replace(&fixture.service.address.to_string(), "ADDRESS");
        insta::assert_snapshot!(message, @"cannot sign the token of 'orders/42' on palisade: the service at ADDRESS: not supported: this service signs no tokens; start it with --sign, or set sign = true under [serve] (nothing has changed)");
    });
}
