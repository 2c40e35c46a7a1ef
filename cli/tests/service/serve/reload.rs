//! Users and certificates are read again while the service runs.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::client::Value;
use super::encrypted::{Authority, tls, trust};
use super::users::TestUsers;
use crate::sandbox::Sandbox;

const READ_AGAIN: &str = "read again: users, certificates and keys are those of the configuration now";

#[test]
fn changed_and_removed_users_must_log_in_again() {
    let before = TestUsers::new(&[
        ("same", "{ verbs = ['admin'], prefix = '' }"),
        ("changed", "{ verbs = ['observe'], prefix = '' }"),
        ("removed", "{ verbs = ['admin'], prefix = '' }"),
    ]);
    let sandbox = Sandbox::new();
    let service = sandbox.serve_web(&before.config());
    let [mut same, mut changed, mut removed] =
        ["same", "changed", "removed"].map(|name| before.client(&service, name));
    let session = removed.session();
    changed.call_ok("LOCK WATCH ");
    let watcher = before.web(&service, "changed").with_header("connection: close");
    let mut watch = watcher.connect();
    watch.send(watcher.request("GET", "/v1/locks/watch", None).as_bytes()).unwrap();
    assert_eq!(watch.answer().unwrap().status, 200);

    let after =
        before.config().replace("{ verbs = ['observe'], prefix = '' }", "{ verbs = ['observe'], prefix = 'a/' }");
    let after = after.split("[[serve.users]]\nname = 'removed'").next().unwrap().to_owned();
    sandbox.configure(&after);
    service.signal(Signal::HUP);
    service.line_with(READ_AGAIN);
    // The first event ends a watch whose user may no longer see all of its locks.
    same.call_ok("LOCK ACQUIRE secret TTL 60000");
    assert_eq!(changed.until_closed(), "");
    assert!(!watch.until_closed().contains("secret"));
    assert!(!removed.try_send(b"*1\r\n$4\r\nINFO\r\n") || removed.read().is_err(), "it is answered no more");
    assert!(before.web(&service, "removed").get("/v1/locks").problem().starts_with("WRONGPASS "));
    let listed = before.client(&service, "changed").call_ok("LOCK LIST ");
    assert_eq!(listed.get("locks").items(), [], "by the new rules");
    same.call_ok("LOCK SHOW secret");
    assert!(same.refusal(&format!("SESSION CLOSE {session}")).starts_with("DENIED "));
}

#[test]
fn an_invalid_configuration_changes_nothing() {
    let (sandbox, authority) = (Sandbox::new(), Authority::new());
    let users = TestUsers::new(&[("alice", "{ verbs = ['admin'], prefix = '' }")]);
    let config = tls(&sandbox, &authority.named("x"), None, "") + &users.config();
    let service = sandbox.serve_web(&config);
    let mut output = String::new();
    let mut reload = |config: &str| {
        sandbox.configure(config);
        service.signal(Signal::HUP);
        output += &format!("{}\n", service.line_with("not read again"));
        let web = service.web().encrypted(trust(&authority, None)).as_user("alice", users.secret("alice"));
        assert_eq!(web.get("/v1/locks").good(), json!({ "cursor": 0, "locks": [] }));
    };
    reload("[serve]\nuser = 1\n");
    reload(&users.config());
    reload(&tls(&sandbox, &authority.named("x"), None, ""));
    let key = fs::read(sandbox.path().join("server.key")).unwrap();
    fs::write(sandbox.path().join("server.key"), "nonsense").unwrap();
    reload(&config);
    insta::assert_snapshot!("not-read-again", sandbox.redacted(&output, crate::sandbox::Numbers::Kept));
    fs::write(sandbox.path().join("server.key"), key).unwrap();
    service.signal(Signal::HUP);
    service.line_with(READ_AGAIN);
}

#[test]
fn a_certificate_that_was_renewed_is_used_on_both_ports() {
    let (sandbox, old, new) = (Sandbox::new(), Authority::called("old"), Authority::called("new"));
    let service = sandbox.serve_web(&tls(&sandbox, &old.named("x"), None, ""));
    let web =
        |authority: &Authority| service.web().encrypted(trust(authority, None)).try_call("GET", "/healthz", None);
    let mut open = super::encrypted::connect(&service, &old, None).unwrap();
    assert!(web(&old).is_ok() && web(&new).is_err());
    tls(&sandbox, &new.named("x"), None, "");
    service.signal(Signal::HUP);
    service.line_with(READ_AGAIN);
    assert!(web(&new).is_ok() && web(&old).is_err());
    assert!(super::encrypted::connect(&service, &new, None).is_ok());
    assert!(super::encrypted::connect(&service, &old, None).is_err());
    assert_eq!(open.call("PING"), Value::Simple("PONG".to_owned()), "open connections stay");
}
