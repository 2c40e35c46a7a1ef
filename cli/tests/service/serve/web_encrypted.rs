//! HTTPS, with the same certificates as RESP.

use serde_json::json;

use super::encrypted::{Authority, tls, trust};
use super::users::TestUsers;
use crate::common::bounded::{Bounded, until};
use crate::sandbox::Sandbox;

const OPTIONAL: &str = "user_from = 'common-name'\nclient_certificates = 'optional'";

fn users() -> TestUsers {
    TestUsers::new(&[
        ("alice", "{ verbs = ['observe', 'acquire'], prefix = 'alice/' }"),
        ("bob", "{ verbs = ['observe', 'acquire'], prefix = 'bob/' }"),
    ])
}

#[test]
fn users_log_in_over_https() {
    let (sandbox, authority, users) = (Sandbox::new(), Authority::new(), users());
    let service = sandbox.serve_web(&(tls(&sandbox, &authority.named("x"), None, "") + &users.config()));
    let web = service.web().encrypted(trust(&authority, None));
    assert!(web.get("/v1/locks").problem().starts_with("NOAUTH "));
    let alice = web.as_user("alice", users.secret("alice"));
    let granted = alice.post("/v1/locks/acquire", &json!({ "locks": ["alice/1"], "ttl_ms": 60_000 })).good();
    assert_eq!(granted["token"], 1);
    let denied = alice.post("/v1/locks/acquire", &json!({ "locks": ["bob/1"], "ttl_ms": 60_000 }));
    assert_eq!(denied.problem(), "DENIED user 'alice' has no right to 'acquire' for lock 'bob/1'");
    // A plaintext request fails, and a client rejects a certificate of another authority.
    let plain = service.web().as_user("alice", users.secret("alice"));
    assert!(plain.try_call("GET", "/v1/locks", None).is_err());
    assert!(service.line_with("the TLS handshake failed").contains("peer="));
    let elsewhere = service.web().encrypted(trust(&Authority::called("theirs"), None));
    assert!(elsewhere.try_call("GET", "/healthz", None).is_err());
    alice.get("/v1/locks").good();
    service.stop();
}

#[test]
fn alpn_accepts_http_1_1_and_refuses_h2_alone() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let service = sandbox.serve_web(&tls(&sandbox, &authority.named("x"), None, ""));
    let offering = |versions: &[&str]| {
        let mut config = trust(&authority, None);
        config.alpn_protocols = versions.iter().map(|version| version.as_bytes().to_vec()).collect();
        service.web().encrypted(config).try_call("GET", "/healthz", None).map(|answer| answer.status)
    };
    assert_eq!(offering(&[]).ok(), Some(200));
    assert_eq!(offering(&["h2", "http/1.1"]).ok(), Some(200));
    assert!(offering(&["h2"]).is_err());
}

#[test]
fn a_client_certificate_names_the_user_and_a_secret_does_not_change_it() {
    let (sandbox, authority, users) = (Sandbox::new(), Authority::new(), users());
    let config = tls(&sandbox, &authority.named("x"), Some(&authority), OPTIONAL) + &users.config();
    let service = sandbox.serve_web(&config);
    let showing = |name: &str| service.web().encrypted(trust(&authority, Some(&authority.named(name))));
    let acquire = |lock: &str| json!({ "locks": [lock], "ttl_ms": 60_000 });
    let alice = showing("alice");
    alice.post("/v1/locks/acquire", &acquire("alice/1")).good();
    assert!(alice.post("/v1/locks/acquire", &acquire("bob/1")).problem().starts_with("DENIED "));
    let own = alice.as_user("alice", users.secret("alice"));
    own.post("/v1/locks/acquire", &acquire("alice/2")).good();
    let other = alice.as_user("bob", users.secret("bob")).get("/v1/locks");
    assert_eq!(other.problem(), "DENIED this connection is that of user 'alice'; open another one");
    assert!(alice.as_user("alice", "wrong").get("/v1/locks").problem().starts_with("WRONGPASS "));
    // A client with an unknown certificate, or with none, must log in.
    for (stranger, lock) in [(showing("carol"), "bob/1"), (service.web().encrypted(trust(&authority, None)), "bob/2")]
    {
        assert!(stranger.get("/v1/locks").problem().starts_with("NOAUTH "));
        stranger.as_user("bob", users.secret("bob")).post("/v1/locks/acquire", &acquire(lock)).good();
    }
}

#[test]
fn required_client_certificates_are_enforced() {
    let (sandbox, ours, users) = (Sandbox::new(), Authority::new(), users());
    let more = "user_from = 'common-name'";
    let service = sandbox.serve_web(&(tls(&sandbox, &ours.named("x"), Some(&ours), more) + &users.config()));
    let theirs = Authority::called("theirs");
    for shown in [None, Some(theirs.named("alice"))] {
        let web = service.web().encrypted(trust(&ours, shown.as_ref()));
        assert!(web.try_call("GET", "/healthz", None).is_err());
        assert!(service.line_with("the TLS handshake failed").contains("why="));
    }
    service.web().encrypted(trust(&ours, Some(&ours.named("alice")))).get("/v1/locks").good();
}

#[test]
fn a_handshake_without_progress_is_closed_and_failures_are_logged_at_a_limited_rate() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let bounds = "[serve.bounds]\ngreeting = '5s'\nstrangers = 1\n";
    let service = sandbox.serve_web(&(tls(&sandbox, &authority.named("x"), None, "") + bounds));
    let mut silent = service.web().connect();
    assert_eq!(silent.until_closed(), "");
    assert!(service.line_with("the TLS handshake failed").contains("it took too long"));
    let web = service.web().encrypted(trust(&authority, None));
    web.get("/healthz").good();
    // With TLS and without users no connection counts as a stranger, so several may be open.
    let mut connections = Vec::new();
    for _ in 0..3 {
        let mut connection = web.connect();
        connection.send(web.request("GET", "/v1/locks", None).as_bytes()).unwrap();
        connection.answer().unwrap().good();
        connections.push(connection);
    }
    // Repeated failures of one client are logged at a limited rate, with the number of suppressed lines.
    let (mut failed, mut lines) = (0, Vec::new());
    until("lines are suppressed", || {
        assert!(service.web().try_call("GET", "/healthz", None).is_err());
        failed += 1;
        lines.extend(service.new_lines());
        lines.iter().any(|line: &String| line.contains("more of the same"))
    });
    let logged = lines.iter().filter(|line| line.contains("the TLS handshake failed")).count();
    assert!(logged < failed, "{logged} of {failed}");
}

#[test]
fn curl_can_acquire_over_https() {
    let (sandbox, authority, users) = (Sandbox::new(), Authority::new(), users());
    let config = tls(&sandbox, &authority.named("x"), None, "") + &users.config();
    let service = sandbox.serve_web(&config);
    std::fs::write(sandbox.path().join("ca.pem"), authority.pem()).unwrap();
    let address = service.web().address();
    let curl = |path: &str, more: &[&str]| {
        let user = format!("alice:{}", users.secret("alice"));
        let to = format!("localhost:{}:127.0.0.1", address.port());
        let url = format!("https://localhost:{}{path}", address.port());
        let mut command = sandbox.program("curl");
        command.args(["-sS", "--cacert", "ca.pem", "--resolve", &to, "-u", &user, &url]);
        let output = command.args(more).finish();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let granted = curl("/v1/locks/acquire", &["--json", r#"{"locks":["alice/1"],"ttl_ms":60000}"#]);
    let session = granted["session"].as_u64().expect("an id");
    assert_eq!(granted, json!({ "token": 1, "session": session, "ttl_ms": 60_000, "locks": ["alice/1"] }));
    assert_eq!(curl("/v1/locks/show?name=bob/1", &[])["code"], "DENIED");
}
