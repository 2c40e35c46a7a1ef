//! Keys are made, published, replaced and retired while the service runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use rustix::process::Signal;
use serde_json::Value as Json;

use super::service::Service;
use crate::sandbox::Sandbox;

const READ_AGAIN: &str = "read again: users, certificates and keys are those of the configuration now";

/// Returns the names of the published keys.
fn kids(service: &Service) -> Vec<String> {
    let keys = service.web().get("/v1/keys").good();
    keys["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

/// Returns the name of the key that signs.
fn signing_key(service: &Service) -> String {
    let mut client = service.resp3_client();
    let token = client.call_ok("LOCK ACQUIRE work TTL 60000").number("token");
    let signed = client.call_ok(&format!("LOCK SIGN work {token}")).to_string();
    let signed = signed.trim_matches('\'');
    client.call_ok(&format!("LOCK RELEASE work {token}"));
    let head = BASE64.decode(signed.split('.').next().unwrap()).unwrap();
    serde_json::from_slice::<Json>(&head).unwrap()["kid"].as_str().unwrap().to_owned()
}

fn reload_keys(service: &Service) {
    service.signal(Signal::HUP);
    service.line_with(READ_AGAIN);
}

#[test]
fn a_key_is_replaced_while_the_service_runs() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web("[serve]\nsign = true\n");
    let data_dir = sandbox.data_dir().display().to_string();
    let keys = |args: &[&str]| sandbox.stdout(&[&["serve", "--data-dir", &data_dir], args].concat());
    let found = sandbox.stdout(&["doctor", &format!("palisade://{}", service.address)]);
    assert!(found.contains(", signed tokens"), "{found}");
    let first = kids(&service);
    assert_eq!((first.len(), &signing_key(&service)), (1, &first[0]));

    let made = keys(&["--new-key"]);
    let new = made.lines().next().unwrap().to_owned();
    assert_eq!(signing_key(&service), first[0], "the service has not read its keys again");
    reload_keys(&service);
    assert_eq!((kids(&service), signing_key(&service)), (vec![first[0].clone(), new.clone()], new.clone()));

    let retired = keys(&["--retire-key", &first[0]]);
    reload_keys(&service);
    assert_eq!((kids(&service), signing_key(&service)), (vec![new.clone()], new.clone()));
    let checked = keys(&["--check", "--sign", "--resp", "127.0.0.1:0"]);
    assert!(checked.contains(&format!("with key {new}\n")), "{checked}");
    let refused = sandbox.stderr(64, &["serve", "--data-dir", &data_dir, "--retire-key", &new]);
    let unknown = sandbox.stderr(64, &["serve", "--data-dir", &data_dir, "--retire-key", "-none"]);
    let output = [made, retired, refused, unknown].join("").replace(&first[0], "[OLD]").replace(&new, "[NEW]");
    insta::assert_snapshot!("keys", output);
}

#[test]
fn a_key_file_readable_by_others_is_refused() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&["--sign"]);
    let before = signing_key(&service);
    let folder = sandbox.data_dir().join("keys");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let key = folder.join("0001.pk8");
    assert_eq!((mode(&folder), mode(&key)), (0o700, 0o600));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    service.signal(Signal::HUP);
    let output = service.line_with("not read again");
    assert_eq!(signing_key(&service), before, "everything stays as it was");
    service.stop();
    let data_dir = sandbox.data_dir().display().to_string();
    let args = ["serve", "--sign", "--data-dir", &data_dir, "--resp", "127.0.0.1:0", "--http", "off"];
    let output = format!("{output}\n{}", sandbox.stderr(69, &args));
    insta::assert_snapshot!("exposed-key", sandbox.redacted(&output, crate::sandbox::Numbers::Kept));
}

#[test]
fn a_command_gets_a_signed_token_if_it_wants_one() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&["--sign"]);
    let url = format!("palisade://{}", service.address);
    let show = ["--", "sh", "-c", "echo \"$PALISADE_SIGNED_TOKEN\""];
    let output = sandbox.stdout(&[&["--url", &url, "run", "--signed", "a", "b"], &show[..]].concat());
    let locks = output.lines().map(|signed| {
        let claims = BASE64.decode(signed.split('.').nth(1).unwrap()).unwrap();
        serde_json::from_slice::<Json>(&claims).unwrap()["lock"].as_str().unwrap().to_owned()
    });
    assert_eq!(locks.collect::<Vec<_>>(), ["a", "b"], "one line for each, in their order");
    assert_eq!(sandbox.stdout(&[&["--url", &url, "run", "a"], &show[..]].concat()), "\n");
    let lease = sandbox.stdout(&["--url", &url, "acquire", "--signed", "c"]);
    assert!(lease.contains("\nexport PALISADE_SIGNED_TOKEN=ey"), "{lease}");
    let refused = sandbox.stderr(64, &["run", "--signed", "a", "--", "true"]);
    insta::assert_snapshot!("signed-elsewhere", sandbox.redacted(&refused, crate::sandbox::Numbers::Kept));
}
