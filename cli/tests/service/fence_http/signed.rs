//! Tokens that must be signed, by a real service, and keys that are fetched from it.

use std::fs;

use palisade_fence::{ErrorKind, Seal, Token};
use reqwest::Method;

use super::proxy::{Proxy, verdict};
use super::upstream::Upstream;
use crate::common::http_client;
use crate::sandbox::Sandbox;

#[tokio::test]
async fn only_tokens_signed_by_the_service_pass() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let service = sandbox.serve(&["--sign", "--http", "127.0.0.1:0"]);
    let keys = format!("http://{}/v1/keys", service.web().address());
    let proxy = Proxy::start(&sandbox, &upstream.url(), &["--keys", &keys]);
    let palisade = palisade::connect(&format!("palisade://{}", service.address)).await.unwrap();
    let guard = palisade.lock("orders").acquire().await.unwrap();
    let (token, signature) = (guard.token().unwrap(), guard.signed_token().await.unwrap().as_str().to_owned());

    let unsigned = proxy.api().seal(token).await.unwrap_err();
    assert!(unsigned.to_string().contains("there is no signature"), "{unsigned}");
    let api = proxy.api().signed(&signature).unwrap();
    let mut orders = api.seal(token).await.unwrap();
    orders.post("/log", "one").await.unwrap();
    let made_up = Token::new(token.get() + 1).unwrap();
    let error = palisade_fence::Sealed::seal(api, made_up).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Misuse { .. }) && error.to_string().contains("the signature is of token")
    );
    let of_other = palisade.lock("stock").acquire().await.unwrap();
    let other = proxy.api().signed(of_other.signed_token().await.unwrap().as_str()).unwrap();
    let error = other.seal(of_other.token().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("it is for another lock"), "{error}");
    assert_eq!(upstream.log(), ["one"]);

    // The same keys in a file, and a proxy in front that names the user.
    let text = http_client().get(&keys).send().await.unwrap().text().await.unwrap();
    fs::write(sandbox.path().join("keys.json"), &text).unwrap();
    let options = ["--keys", "keys.json", "--user-header", "X-User", "--store", "memory:"];
    let proxy = Proxy::start(&sandbox, &upstream.url(), &options);
    let request =
        http_client().post(format!("http://{}", proxy.address)).header("fencing-token", format!("{token}; seal"));
    let borrowed = request.header("fencing-signature", &signature).header("x-user", "eve").send().await.unwrap();
    assert_eq!((borrowed.status().as_u16(), verdict(&borrowed)), (403, "not-genuine"), "the token names no user");
    assert_eq!(proxy.send(Method::GET, "/log", "mark", "").await.status(), 200);
}

#[test]
fn unavailable_keys_are_reported() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("keys.json"), "{}").unwrap();
    let base = ["fence", "http", "--upstream", "http://127.0.0.1:1", "--store", "memory:", "--lock", "a"];
    for (keys, code, expected) in [
        ("keys.json", 64, "the keys at 'keys.json' cannot be used"),
        ("nowhere.json", 64, "the keys in 'nowhere.json' cannot be read"),
        ("http://user:xyzzy@127.0.0.1:1/v1/keys", 69, "http://127.0.0.1:1/v1/keys"),
    ] {
        let message = sandbox.stderr(code, &[&base[..], &["--listen", "127.0.0.1:0", "--keys", keys]].concat());
        assert!(message.contains(expected) && !message.contains("xyzzy"), "{message}");
    }
}
