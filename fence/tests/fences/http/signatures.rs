//! A fence that requires signed tokens.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use http::{Method, Request};
use palisade_fence::http::{FENCING_SIGNATURE, FENCING_TOKEN, Limits, MemoryMarks, Scope, Signatures};
use palisade_fence::signed::Verifier;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use super::fixture::{Fixture, Reply};

fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a key")
}

fn verifier(seed: u8) -> Verifier {
    let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": BASE64.encode(pair(seed).public_key()) });
    Verifier::new("cluster", &json!({ "issuer": "cluster", "keys": [key] }).to_string()).expect("keys")
}

fn claims(lock: &str, token: u64, user: &str) -> Value {
    json!({ "iss": "cluster", "sub": user, "lock": lock, "token": token, "session": 7, "scope": "exclusive" })
}

fn signed(seed: u8, claims: &Value) -> String {
    let head = json!({ "alg": "EdDSA", "typ": "palisade+jws", "kid": "k" });
    let signing_input = format!("{}.{}", BASE64.encode(head.to_string()), BASE64.encode(claims.to_string()));
    format!("{signing_input}.{}", BASE64.encode(pair(seed).sign(signing_input.as_bytes())))
}

fn fixture(signatures: Signatures) -> Fixture {
    let (scope, marks) = (Scope::one("orders").expect("a name"), MemoryMarks::default());
    Fixture::of(scope, marks, Limits::default(), |layer| layer.signed(signatures))
}

async fn send(fixture: &Fixture, method: Method, header: &str, signatures: &[&str], user: &str) -> Reply {
    let mut request = Request::builder().method(method).uri("/orders").header(FENCING_TOKEN, header);
    for signature in signatures {
        request = request.header(FENCING_SIGNATURE, *signature);
    }
    fixture.pass(request.header("x-user", user).body(String::new()).expect("a request")).await
}

#[tokio::test]
async fn only_a_token_that_was_granted_passes() {
    let fixture = fixture(Signatures::new(verifier(1)));
    let good = signed(1, &claims("orders", 34, "ci"));
    for (method, header, verdict) in [
        (Method::POST, "34; seal", "sealed; token=34; seq=0"),
        (Method::GET, "34", "admitted"),
        (Method::PUT, "34; seq=1", "admitted"),
        (Method::POST, "34; seq=1; settle", "repeated"),
    ] {
        assert_eq!(send(&fixture, method, header, &[&good], "").await.verdict, verdict);
    }
    let mut altered = good.clone();
    altered.replace_range(80..81, if &altered[80..81] == "A" { "B" } else { "A" });
    let forged = signed(2, &claims("orders", 35, "ci"));
    let of_other_lock = signed(1, &claims("stock", 35, "ci"));
    let shared =
        signed(1, &json!({ "iss": "cluster", "lock": "orders", "token": 35, "session": 7, "scope": "shared" }));
    let arrived = *fixture.backend.arrived.borrow();
    for (signatures, message) in [
        (&[][..], "there is no signature"),
        (&[good.as_str()], "the signature is of token 34"),
        (&[good.as_str(), good.as_str()], "two signatures"),
        (&["x.y.z"], "the signed token is refused"),
        (&[altered.as_str()], "the signed token is refused"),
        (&[forged.as_str()], "it was altered or forged"),
        (&[of_other_lock.as_str()], "it is for another lock"),
        (&[shared.as_str()], "the lock is held shared"),
    ] {
        for (method, header) in [(Method::POST, "35; seal"), (Method::PUT, "35; seq=1"), (Method::GET, "35")] {
            let seen = send(&fixture, method, header, signatures, "").await;
            assert_eq!((seen.status.as_u16(), seen.verdict.as_str()), (403, "not-genuine"), "{message}");
            assert_eq!(seen.headers["content-type"], "application/problem+json");
            assert!(seen.body.contains(message), "{message}: {}", seen.body);
        }
    }
    assert_eq!(*fixture.backend.arrived.borrow(), arrived, "nothing has reached the service");
    assert_eq!(send(&fixture, Method::GET, "mark", &[], "").await.verdict, "marked; token=34; seq=1");
    assert_eq!(
        send(&fixture, Method::PUT, "34; seq=2", &[&good], "").await.verdict,
        "admitted",
        "it was not overtaken"
    );
}

#[tokio::test]
async fn a_borrowed_token_is_refused_if_the_user_is_known() {
    let user_of = |parts: &http::request::Parts| {
        let user = parts.headers.get("x-user")?.to_str().ok()?;
        (!user.is_empty()).then(|| user.to_owned())
    };
    let fixture = fixture(Signatures::new(verifier(1)).presented_by(user_of));
    let of_ci = signed(1, &claims("orders", 34, "ci"));
    for (user, message) in [("eve", "the token is borrowed"), ("", "the request has no known user")] {
        let seen = send(&fixture, Method::POST, "34; seal", &[&of_ci], user).await;
        assert!(seen.verdict == "not-genuine" && seen.body.contains(message), "{}", seen.body);
    }
    let without_user = json!({ "iss": "cluster", "lock": "orders", "token": 34, "session": 7, "scope": "exclusive" });
    let seen = send(&fixture, Method::POST, "34; seal", &[&signed(1, &without_user)], "ci").await;
    assert_eq!(seen.verdict, "not-genuine");
    assert_eq!(send(&fixture, Method::POST, "34; seal", &[&of_ci], "ci").await.verdict, "sealed; token=34; seq=0");
    assert_eq!(
        send(&fixture, Method::GET, "34", &[&of_ci], "eve").await.verdict,
        "not-genuine",
        "the cache has the user too"
    );
}

#[tokio::test]
async fn keys_can_be_replaced_and_the_cache_is_cleared() {
    let signatures = Signatures::new(verifier(1));
    let fixture = fixture(signatures.clone());
    let old = signed(1, &claims("orders", 34, "ci"));
    assert_eq!(send(&fixture, Method::POST, "34; seal", &[&old], "").await.verdict, "sealed; token=34; seq=0");
    signatures.replace(verifier(2));
    assert_eq!(send(&fixture, Method::GET, "34", &[&old], "").await.verdict, "not-genuine");
    let new = signed(2, &claims("orders", 34, "ci"));
    assert_eq!(send(&fixture, Method::GET, "34", &[&new], "").await.verdict, "admitted");
}
