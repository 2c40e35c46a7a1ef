//! Only tokens that a trusted key has signed, for this lock, in this cluster, are accepted.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use insta::assert_snapshot;
use palisade_core::{LockName, SessionId};
use palisade_fence::memory::Memory;
use palisade_fence::signed::{BadKeys, Claims, NotGenuine, Scope, Verifier};
use palisade_fence::{ErrorKind, Seal, Token};
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

const CLUSTER: &str = "9b1deb4d3b7d4bad9bdd2b0d7b3dcb6d";
const LOCK: &str = "orders/42";

fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a key")
}

fn jwk(seed: u8, kid: &str) -> Value {
    json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": BASE64.encode(pair(seed).public_key()) })
}

fn keys(all: &[Value]) -> String {
    json!({ "keys": all }).to_string()
}

fn verifier() -> Verifier {
    Verifier::new(CLUSTER, &keys(&[jwk(1, "old"), jwk(2, "new")])).expect("keys")
}

fn head(kid: &str) -> Value {
    json!({ "alg": "EdDSA", "typ": "palisade+jws", "kid": kid })
}

fn claims() -> Value {
    json!({ "iss": CLUSTER, "sub": "ci", "lock": LOCK, "token": 34, "session": 7, "scope": "exclusive" })
}

fn signing_input(head: &Value, claims: &Value) -> String {
    format!("{}.{}", BASE64.encode(head.to_string()), BASE64.encode(claims.to_string()))
}

fn signed(seed: u8, head: &Value, claims: &Value) -> String {
    let input = signing_input(head, claims);
    format!("{input}.{}", BASE64.encode(pair(seed).sign(input.as_bytes())))
}

fn changed(claim: &str, value: Value) -> String {
    let mut claims = claims();
    claims[claim] = value;
    signed(2, &head("new"), &claims)
}

fn refused(text: &str) -> NotGenuine {
    verifier().verify(text, LOCK).expect_err("it is not genuine")
}

#[test]
fn a_token_signed_by_a_trusted_key_is_accepted() {
    let expected = Claims {
        cluster: CLUSTER.to_owned(),
        principal: Some("ci".to_owned()),
        lock: LockName::new(LOCK).expect("a name"),
        token: Token::new(34).expect("a token"),
        session: SessionId::new(7).expect("a session"),
        scope: Scope::Exclusive,
    };
    for (seed, kid) in [(1, "old"), (2, "new")] {
        let text = signed(seed, &head(kid), &claims());
        assert_eq!(verifier().verify(&text, LOCK), Ok(expected.clone()));
        assert_eq!(verifier().verify_from(&text, LOCK, "ci"), Ok(expected.clone()));
    }
    // A newer service may say more.
    assert!(verifier().verify(&changed("more", json!(true)), LOCK).is_ok());
}

#[test]
fn forged_tokens_are_refused_with_advice() {
    let mut messages = String::new();
    let mut check = |what: &str, text: &str| messages += &format!("{what}: {}\n", refused(text));
    check("nothing", "");
    check("a number", "34");
    check("no signature", &signing_input(&head("new"), &claims()));
    check("a key of one's own", &signed(3, &head("mine\u{1b}[2J"), &claims()));
    check("a key of one's own under a trusted name", &signed(3, &head("new"), &claims()));
    check("another trusted key's name", &signed(1, &head("new"), &claims()));
    check(
        "no algorithm",
        &format!("{}.", signing_input(&json!({"alg": "none", "typ": "palisade+jws", "kid": "new"}), &claims())),
    );
    check("another algorithm", &signed(2, &json!({"alg": "HS256", "typ": "palisade+jws", "kid": "new"}), &claims()));
    check(
        "something else that was signed",
        &signed(2, &json!({"alg": "EdDSA", "typ": "JWT", "kid": "new"}), &claims()),
    );
    check(
        "an extension",
        &signed(2, &json!({"alg": "EdDSA", "typ": "palisade+jws", "kid": "new", "crit": ["b64"]}), &claims()),
    );
    check("another cluster", &changed("iss", json!("another")));
    check("another lock", &changed("lock", json!("orders/43")));
    check("a token that cannot be", &changed("token", json!(0)));
    check("a token that is a text", &changed("token", json!("34")));
    check("shared", &changed("scope", json!("shared")));
    check("permits", &changed("scope", json!({"permits": {"count": 2, "of": 5}})));
    check("too long", &changed("lock", json!("x".repeat(20_000))));
    assert_snapshot!(messages);
}

/// The key is public: it must not work as a shared secret.
#[test]
fn the_public_key_is_no_secret_to_sign_with() {
    let input = signing_input(&json!({ "alg": "HS256", "typ": "palisade+jws", "kid": "new" }), &claims());
    let key = hmac::Key::new(hmac::HMAC_SHA256, pair(2).public_key().as_ref());
    let text = format!("{input}.{}", BASE64.encode(hmac::sign(&key, input.as_bytes())));
    assert_eq!(refused(&text), NotGenuine::OtherAlgorithm { alg: "HS256".to_owned() });
    let renamed =
        format!("{}.{}", signing_input(&head("new"), &claims()), BASE64.encode(hmac::sign(&key, input.as_bytes())));
    assert_eq!(refused(&renamed), NotGenuine::Altered);
}

#[test]
fn a_borrowed_token_is_refused_if_the_user_is_known() {
    let text = signed(2, &head("new"), &claims());
    let borrowed = verifier().verify_from(&text, LOCK, "mallory").expect_err("it is ci's");
    assert_snapshot!(borrowed, @"the signed token is refused: it was given to 'ci', and another user presents it; have one signed for yourself");
    let mut without_user = claims();
    without_user.as_object_mut().expect("an object").remove("sub");
    let without_user = signed(2, &head("new"), &without_user);
    assert!(verifier().verify(&without_user, LOCK).is_ok());
    assert_eq!(verifier().verify_from(&without_user, LOCK, "ci"), Err(NotGenuine::Borrowed { principal: None }));
    assert_eq!(verifier().verify_from(&without_user, LOCK, ""), Err(NotGenuine::Borrowed { principal: None }));
}

#[test]
fn a_shared_holder_is_accepted_only_if_allowed() {
    let shared = changed("scope", json!("shared"));
    assert_eq!(refused(&shared), NotGenuine::NotExclusive { scope: Scope::Shared });
    let scope = verifier().any_scope().verify(&shared, LOCK).expect("it is accepted").scope;
    assert_eq!(scope, Scope::Shared);
}

/// A change of only the signature's encoding would give one token two texts.
#[test]
fn no_single_character_can_be_changed_left_out_or_added() {
    let text = signed(2, &head("new"), &claims());
    for at in 0..text.len() {
        let (before, rest) = text.split_at(at);
        for other in ["A", "B", "_", ".", "=", "\n", "+", "é"] {
            if !rest.starts_with(other) {
                verifier().verify(&format!("{before}{other}{}", &rest[1..]), LOCK).expect_err("it was changed");
            }
            verifier().verify(&format!("{before}{other}{rest}"), LOCK).expect_err("it is longer");
        }
        verifier().verify(&format!("{before}{}", &rest[1..]), LOCK).expect_err("it is shorter");
    }
    verifier().verify(&format!("{text}A"), LOCK).expect_err("it is longer");
}

/// Repeats exactly: the same seed makes the same texts.
#[test]
fn random_texts_are_refused_without_a_panic() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).expect("it is below")
    };
    let genuine = signed(2, &head("new"), &claims());
    let parts = ["", ".", "..", "e30", "bnVsbA", "W10", "{}", "\u{0}", "é", "eyJhbGciOiJFZERTQSJ9", "=", &genuine];
    let verifier = verifier();
    for _ in 0..10_000 {
        let mut text: Vec<u8> = (0..=random(5)).flat_map(|_| parts[random(parts.len())].bytes()).collect();
        for _ in 0..random(4) {
            let at = random(text.len().max(1));
            match random(3) {
                0 => text.truncate(at),
                1 => text.insert(at.min(text.len()), random(256) as u8),
                _ => text.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random(8)),
            }
        }
        let text = String::from_utf8_lossy(&text);
        assert!(text == genuine || verifier.verify(&text, LOCK).is_err(), "{text}");
    }
}

#[test]
fn keys_that_cannot_be_used_are_refused() {
    let refused = |text: &str| Verifier::new(CLUSTER, text).map(drop).expect_err("it cannot be used");
    assert!(matches!(refused("{}"), BadKeys::NotKeys { .. }));
    assert!(matches!(refused("<html>"), BadKeys::NotKeys { .. }));
    assert_eq!(refused(&keys(&[])), BadKeys::NoKeys);
    assert_eq!(refused(&keys(&[json!({ "kty": "RSA", "n": "AQ", "e": "AQAB", "kid": "r" })])), BadKeys::NoKeys);
    assert_eq!(
        refused(&keys(&[json!({ "kty": "OKP", "crv": "Ed25519", "kid": "s", "x": "AAAA" })])),
        BadKeys::NoKeys
    );
    let of_another = json!({ "issuer": "another", "keys": [jwk(1, "k")] }).to_string();
    assert_eq!(refused(&of_another), BadKeys::OtherCluster { cluster: "another".to_owned() });
    assert!(Verifier::new(CLUSTER, &keys(&[json!({ "kty": "RSA" }), jwk(1, "k")])).is_ok(), "others may be there");
}

#[tokio::test]
async fn a_resource_is_sealed_only_with_a_genuine_token() {
    let orders = Memory::new("orders");
    let text = signed(2, &head("new"), &claims());
    let mut sealed = verifier().seal(orders.clone(), &text, LOCK).await.expect("it is genuine");
    assert_eq!(sealed.token().get(), 34);
    let forged = signed(
        3,
        &head("new"),
        &json!({
            "iss": CLUSTER, "lock": LOCK, "token": 9_007_199_254_740_991_u64, "session": 7, "scope": "exclusive"
        }),
    );
    let error = verifier().seal(orders.clone(), &forged, LOCK).await.expect_err("it is forged");
    assert!(matches!(error.kind(), ErrorKind::NotGenuine(NotGenuine::Altered)));
    assert!(!error.is_retryable() && !error.may_have_taken_effect());
    assert_snapshot!(error, @"cannot seal 'memory orders': the signed token is refused: its signature does not match: it was altered or forged");
    sealed.write(b"mine".to_vec()).await.expect("no newer token has sealed it");
    // Genuine but overtaken: the fence refuses it.
    drop(orders.seal(Token::new(35).expect("a token")).await.expect("it is newer"));
    let error = verifier().seal(orders, &text, LOCK).await.expect_err("it was overtaken");
    assert_eq!(error.overtaken_by(), Token::new(35).ok());
}
