//! Signed tokens over both protocols, and keys that standard tools can use.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use palisade_server::access::{Rule, Secret, User, Users, Verb};
use palisade_server::sign::Signer;
use serde_json::{Value, json};

use super::client::Client;
use super::test_server::TestServer;

/// Decodes a part of a signed token.
fn part(signed: &str, number: usize) -> Value {
    let text = signed.split('.').nth(number).expect("a part");
    serde_json::from_slice(&BASE64.decode(text).expect("Base64url")).expect("JSON")
}

fn sign(client: &Client, lock: &str, token: u64) -> String {
    let answer = client.post("/v1/locks/sign", &json!({ "lock": lock, "token": token })).good();
    answer["signed_token"].as_str().expect("a text").to_owned()
}

/// Returns whether OpenSSL verifies the signature with the published key.
fn openssl_accepts(folder: &Path, keys: &Value, signed: &str) -> bool {
    let kid = &part(signed, 0)["kid"];
    let key = keys["keys"].as_array().expect("keys").iter().find(|key| key["kid"] == *kid).expect("it is published");
    assert_eq!((&key["kty"], &key["crv"], &key["alg"]), (&json!("OKP"), &json!("Ed25519"), &json!("EdDSA")));
    // RFC 8410: what stands before an Ed25519 key.
    let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    der.extend(BASE64.decode(key["x"].as_str().expect("a text")).expect("Base64url"));
    let (message, signature) = signed.rsplit_once('.').expect("a signature");
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).expect("the folder is ours");
        folder.join(name)
    };
    let (key, message) = (file("key.der", &der), file("message", message.as_bytes()));
    let signature = file("signature", &BASE64.decode(signature).expect("Base64url"));
    let mut command = Command::new("openssl");
    command.args(["pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-rawin", "-inkey"]).arg(key);
    command.arg("-in").arg(message).arg("-sigfile").arg(signature).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("openssl is installed").success()
}

#[test]
fn openssl_verifies_the_signature_of_a_held_lock() {
    let server = TestServer::signing();
    let (client, folder) = (server.client(), tempfile::tempdir().expect("a folder"));
    let opened = client.post("/v1/sessions", &json!({ "ttl_ms": 60_000, "label": "alice: x" })).good();
    let session = opened["session"].as_u64().expect("a session");
    let token = client.hold("orders/42", session);
    let signed = sign(&client, "orders/42", token);
    let keys = client.get("/v1/keys").good();
    assert!(openssl_accepts(folder.path(), &keys, &signed));
    let claims = part(&signed, 1);
    let expected = json!({
        "iss": keys["issuer"], "lock": "orders/42", "token": token, "session": session, "scope": "exclusive"
    });
    assert_eq!(claims, expected, "without users there is no principal, whatever a session calls itself");
    let altered = BASE64.encode(claims.to_string().replace("orders/42", "orders/43"));
    let mut parts: Vec<_> = signed.split('.').collect();
    parts[1] = &altered;
    assert!(!openssl_accepts(folder.path(), &keys, &parts.join(".")));
    // The other protocol signs the same, and Ed25519 always in the same way.
    let message = server.connect_resp().send(&format!("LOCK SIGN orders/42 {token} SESSION {session}"));
    assert!(message.contains(&signed), "{message:?}");
}

#[test]
fn the_mode_of_a_lock_is_signed_too() {
    let server = TestServer::signing();
    let client = server.client();
    let session = client.open(3_600_000);
    for (lock, mode, scope) in [
        ("s", json!("shared"), json!("shared")),
        ("p", json!({ "permits": { "count": 2, "of": 5 } }), json!({ "permits": { "count": 2, "of": 5 } })),
    ] {
        let held = client.post("/v1/locks/acquire", &json!({ "locks": [lock], "session": session, "mode": mode }));
        let token = held.good()["token"].as_u64().expect("a token");
        assert_eq!(part(&sign(&client, lock, token), 1)["scope"], scope);
    }
    // A grant of several locks is signed for each lock separately.
    let set = json!({ "locks": ["a", "b"], "session": session });
    let token = client.post("/v1/locks/acquire", &set).good()["token"].as_u64().expect("a token");
    for lock in ["a", "b"] {
        assert_eq!(part(&sign(&client, lock, token), 1)["lock"], lock);
    }
}

#[test]
fn a_token_that_is_not_held_is_not_signed() {
    let server = TestServer::signing();
    let client = server.client();
    let (session, other) = (client.open(3_600_000), client.open(3_600_000));
    let code = |body: Value| client.post("/v1/locks/sign", &body).code();
    let token = client.hold("a", session);
    assert_eq!(code(json!({ "lock": "b", "token": token })), "NOTHELD");
    assert_eq!(code(json!({ "lock": "a", "token": token + 1 })), "NOTHELD", "it was never given");
    assert_eq!(code(json!({ "lock": "a", "token": token, "session": other })), "NOTHELD");
    assert_eq!(code(json!({ "lock": "a", "token": token, "session": 99 })), "NOSESSION");
    assert_eq!(code(json!({ "lock": "a", "token": 0 })), "BADARG");
    assert_eq!(code(json!({ "lock": "a", "token": token, "until": 1 })), "BADARG");
    let mut resp = server.connect_resp();
    let mut message = |words: &str| resp.send(words).join(" ");
    assert!(message("LOCK SIGN a").starts_with("BADARG usage: LOCK SIGN name token [SESSION id]"));
    assert!(message(&format!("LOCK SIGN a {}", token + 1)).starts_with("NOTHELD "));
    client.release("a", token);
    assert_eq!(code(json!({ "lock": "a", "token": token })), "NOTHELD");
    let newer = client.hold("a", other);
    assert_eq!(code(json!({ "lock": "a", "token": token })), "NOTHELD", "it was overtaken by {newer}");
    assert!(message(&format!("LOCK SIGN a {token}")).starts_with("NOTHELD "));
}

#[test]
fn a_service_without_keys_says_how_to_enable_signing() {
    let server = TestServer::new();
    let client = server.client();
    let session = client.open(3_600_000);
    let token = client.hold("a", session);
    for answer in [client.get("/v1/keys"), client.post("/v1/locks/sign", &json!({ "lock": "a", "token": token }))] {
        assert_eq!((answer.status, answer.code().as_str()), (404, "NOTSIGNING"));
        assert!(answer.json()["detail"].as_str().expect("a text").contains("start it with --sign"), "{answer:?}");
    }
    assert!(server.connect_resp().send(&format!("LOCK SIGN a {token}")).join(" ").starts_with("NOTSIGNING "));
}

#[test]
fn only_a_users_own_grants_are_signed_for_it_and_name_the_user() {
    let secrets = [(); 3].map(|()| Secret::random().expect("randomness"));
    let user = |name, secret: &Secret, verb| {
        let rule = Rule { verbs: vec![verb], prefix: "a/".to_owned() };
        User::new(name, Some(secret.hash()), vec![rule]).expect("a user")
    };
    let users = Users::new(vec![
        user("alice", &secrets[0], Verb::Acquire),
        user("mallory", &secrets[1], Verb::Admin),
        user("eve", &secrets[2], Verb::Observe),
    ]);
    let server = TestServer::of(users.expect("users"));
    let [alice, mallory, eve] = [("alice", 0), ("mallory", 1), ("eve", 2)]
        .map(|(name, at)| server.client().as_user(name, secrets[at].reveal()));
    let session = alice.open(3_600_000);
    let token = alice.hold("a/x", session);
    assert_eq!(part(&sign(&alice, "a/x", token), 1)["sub"], "alice");
    for body in
        [json!({ "lock": "a/x", "token": token }), json!({ "lock": "a/x", "token": token, "session": session })]
    {
        assert_eq!(mallory.post("/v1/locks/sign", &body).code(), "DENIED", "even an administrator has only its own");
        assert_eq!(eve.post("/v1/locks/sign", &body).code(), "DENIED");
        assert_eq!(server.client().post("/v1/locks/sign", &body).code(), "NOAUTH");
    }
    // The next token is not given yet, and may be another's when it is.
    assert_eq!(mallory.post("/v1/locks/sign", &json!({ "lock": "a/x", "token": token + 1 })).code(), "NOTHELD");
    // A label cannot give a session a user.
    let named = mallory.post("/v1/sessions", &json!({ "ttl_ms": 60_000, "label": "alice: x" })).good();
    let token = mallory.hold("a/y", named["session"].as_u64().expect("a session"));
    assert_eq!(part(&sign(&mallory, "a/y", token), 1)["sub"], "mallory");
    assert_eq!(server.client().get("/v1/keys").status, 200, "the keys need no authentication");
}

#[test]
fn keys_and_cluster_outlive_a_restart_and_a_new_key_signs_at_once() {
    let server = TestServer::signing();
    let keys = server.client().get("/v1/keys").good();
    let session = server.client().open(3_600_000);
    let token = server.client().hold("a", session);
    let before = sign(&server.client(), "a", token);
    let dir = server.close();
    let signer = Signer::new(dir.path());
    let server = TestServer::signing_on(dir, signer.clone());
    let client = server.client();
    assert_eq!(client.get("/v1/keys").good(), keys);
    assert_eq!(sign(&client, "a", token), before);

    let new = signer.add_key().expect("a key");
    assert_eq!(sign(&client, "a", token), before, "it is not read yet");
    signer.read().expect("keys");
    let after = sign(&client, "a", token);
    assert_eq!(part(&after, 0)["kid"], new);
    let (both, folder) = (client.get("/v1/keys").good(), tempfile::tempdir().expect("a folder"));
    assert!(openssl_accepts(folder.path(), &both, &before) && openssl_accepts(folder.path(), &both, &after));

    let old = keys["keys"][0]["kid"].as_str().expect("a name");
    signer.retire_key(old).expect("it signs no more");
    signer.read().expect("keys");
    let one = client.get("/v1/keys").good();
    assert_eq!(one["keys"], json!([both["keys"][1]]));
    assert_eq!(one["issuer"], keys["issuer"]);
}
