//! `palisade serve`: the log, its segments, snapshots, the watermark and the data directory.

use std::path::Path;

use serde_json::json;

use super::trace::{Flushes, Trace, Tracing};
use crate::sandbox::Sandbox;
use crate::serve::client::framed;
use crate::serve::service::Service;

/// Large enough that the log soon reaches 64 MiB, at which a snapshot is made.
const VALUE: usize = 4096;

/// Whether this file must survive a power cut: the data directory, and its files except temporary ones and the lock file.
fn must_survive(sandbox: &Sandbox, path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_file =
        ["log-", "snapshot-", "watermark"].iter().any(|kept| name.starts_with(kept)) && !name.ends_with(".new");
    path == sandbox.data_dir() || (path.parent() == Some(&sandbox.data_dir()) && is_file)
}

fn start(sandbox: &Sandbox, data_bytes: usize, flushes: Flushes) -> Option<(Service, Tracing)> {
    let command = sandbox.serve_command(&["--http", "127.0.0.1:0"]);
    let (command, tracing) = Tracing::of(&command, sandbox.path().join("trace"), data_bytes, flushes)?;
    Some((Service::start(command), tracing))
}

fn stop(service: Service, tracing: &Tracing) -> Trace {
    let pid = service.pid();
    service.stop();
    tracing.end(pid)
}

/// Takes locks over both protocols, one at a time, and checks each grant.
fn check_grants(flushes: Flushes) {
    let sandbox = Sandbox::new();
    let Some((service, tracing)) = start(&sandbox, 1024, flushes) else { return };
    let mut client = service.resp3_client();
    let session = client.session();
    for number in 0..3 {
        client.call_ok(&format!("LOCK ACQUIRE over-resp-{number} SESSION {session}"));
    }
    for number in 0..3 {
        let body = json!({"locks": [format!("over-http-{number}")], "session": session});
        service.web().post("/v1/locks/acquire", &body).good();
    }
    let trace = stop(service, &tracing);
    let grants: Vec<_> = trace.sent("token").collect();
    let locks = (0..6).map(|number| format!("over-{}-{}", if number < 3 { "resp" } else { "http" }, number % 3));
    assert_eq!(grants.len(), 6, "{grants:#?}");
    for (grant, lock) in grants.iter().zip(locks) {
        trace.assert_durable_at(grant, &lock, |path| must_survive(&sandbox, path));
    }
    // Opening the session is a change too.
    let opened = trace.sent("session").next().expect("it is answered");
    let at_risk = trace.at_risk(opened, |path| must_survive(&sandbox, path));
    assert!(at_risk.is_empty(), "{at_risk:#?}");
}

#[test]
fn no_grant_is_answered_before_its_entry_is_flushed() {
    check_grants(Flushes::Quick);
}

#[test]
fn no_grant_is_answered_before_its_entry_is_flushed_on_a_slow_disk() {
    check_grants(Flushes::Slow);
}

#[test]
fn the_watermark_is_durable_before_the_first_token_is_answered() {
    let sandbox = Sandbox::new();
    let Some((service, tracing)) = start(&sandbox, 1024, Flushes::Quick) else { return };
    let mut client = service.resp3_client();
    client.call_ok("LOCK ACQUIRE first TTL 60000");
    let trace = stop(service, &tracing);
    let ready = trace.first("it says that it is ready", |call| call.is_write() && call.has("ready: resp="));
    let granted = trace.sent("token").next().expect("it is granted");
    let is_watermark = |path: &Path| path == sandbox.data_dir().join("watermark");
    let raised = trace.calls.iter().filter(|call| call.makes().is_some_and(|name| is_watermark(Path::new(&name))));
    let raised = raised.filter(|call| call.entry > ready.entry && call.exit.is_some_and(|exit| exit < granted.entry));
    assert_eq!(raised.count(), 1, "the watermark rises for the first token");
    let at_risk = trace.at_risk(granted, is_watermark);
    assert!(at_risk.is_empty(), "{at_risk:#?}");
    trace.assert_flushed_before_renamed(is_watermark);
}

#[test]
fn the_data_directory_is_durable_before_the_service_is_ready() {
    let sandbox = Sandbox::new();
    let data_dir = sandbox.path().join("new/and/deep");
    let mut command = sandbox.command(&["serve", "--resp", "127.0.0.1:0", "--http", "off", "--data-dir"]);
    command.arg(&data_dir);
    let Some((command, tracing)) = Tracing::of(&command, sandbox.path().join("trace"), 64, Flushes::Quick) else {
        return;
    };
    let trace = stop(Service::start(command), &tracing);
    let ready = trace.first("it says that it is ready", |call| call.is_write() && call.has("ready: resp="));
    let is_directory = |path: &Path| data_dir.starts_with(path) && path.starts_with(sandbox.path());
    let made = trace.calls.iter().filter(|call| call.makes().is_some_and(|name| is_directory(Path::new(&name))));
    assert_eq!(made.count(), 3, "new, new/and and new/and/deep are made");
    let at_risk = trace.at_risk(ready, is_directory);
    assert!(at_risk.is_empty(), "{at_risk:#?}");
}

#[test]
#[ignore = "long: a log of many segments under strace"]
fn a_segment_or_a_snapshot_is_removed_only_after_the_next_one_is_durable() {
    let sandbox = Sandbox::new();
    let Some((service, tracing)) = start(&sandbox, 64, Flushes::Quick) else { return };
    let mut client = service.resp3_client();
    // An hour, since the test sends no keep-alives while it writes the log full.
    let session = client.call_ok("SESSION OPEN 3600000").number("session");
    let mut token = client.call_ok(&format!("CAMPAIGN leader SESSION {session} VALUE v")).number("token");
    let value = "v".repeat(VALUE);
    let snapshots = || {
        let names = std::fs::read_dir(sandbox.data_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with("snapshot-0"))
            .collect::<Vec<_>>()
    };
    // Two snapshots: the second one replaces the first.
    let mut seen = std::collections::BTreeSet::new();
    let mut rounds = 0;
    while seen.len() < 2 {
        let words: Vec<String> =
            ["LOCK", "PUBLISH", "leader", &token.to_string(), "SESSION", &session.to_string(), "VALUE", &value]
                .map(str::to_owned)
                .to_vec();
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        client.send(&framed(&words).repeat(100));
        for _ in 0..100 {
            assert_eq!(client.answer().text(), "OK");
        }
        seen.extend(snapshots());
        rounds += 1;
        assert!(rounds < 1000, "no snapshot is made");
    }
    // Alone, so that nothing else is being written when it is answered.
    client.call_ok(&format!("LOCK RELEASE leader {token}"));
    token = client.call_ok(&format!("LOCK ACQUIRE alone SESSION {session}")).number("token");
    assert!(token > 1);
    let trace = stop(service, &tracing);
    trace.assert_flushed_before_renamed(|path| must_survive(&sandbox, path));
    let is_snapshot =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("snapshot-0"));
    let is_old = |path: &str| must_survive(&sandbox, Path::new(path)) && !path.ends_with(".new");
    let removals: Vec<_> = trace
        .calls
        .iter()
        .filter(|call| call.is_removal() && call.path(0).is_some_and(|path| is_old(&path)))
        .collect();
    let is_removed = |kind: &str| removals.iter().any(|call| call.path(0).unwrap().contains(kind));
    assert!(is_removed("/log-") && is_removed("/snapshot-"), "{removals:#?}");
    for removal in removals {
        let mut made =
            trace.calls.iter().filter(|call| call.makes().is_some_and(|name| is_snapshot(Path::new(&name))));
        let newest = made.rfind(|call| call.exit.is_some_and(|exit| exit < removal.entry));
        let newest = newest.unwrap_or_else(|| panic!("no snapshot was made before {removal}"));
        assert_ne!(newest.makes(), removal.path(0), "the newest snapshot is removed");
        let at_risk = trace.at_risk(removal, is_snapshot);
        assert!(at_risk.is_empty(), "{removal} comes too early:\n{}", at_risk.join("\n"));
    }
    let granted = trace.sent("token").last().expect("it is granted");
    let at_risk = trace.at_risk(granted, |path| must_survive(&sandbox, path));
    assert!(at_risk.is_empty(), "{at_risk:#?}");
}
