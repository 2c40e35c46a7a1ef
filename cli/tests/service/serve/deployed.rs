//! The shipped files in `deploy/`: the example configuration and the systemd unit.

use std::fs;

use palisade_server::access::Secret;

use crate::sandbox::{Sandbox, repository};

fn deployed(name: &str) -> String {
    fs::read_to_string(repository().join("deploy").join(name)).expect("it is there")
}

#[test]
fn the_example_configuration_can_be_used() {
    let sandbox = Sandbox::new();
    let example = repository().join("deploy/palisade.toml").display().to_string();
    let output = sandbox.stdout(&["serve", "--check", "--config", &example, "--data-dir", "data"]);
    insta::assert_snapshot!("check-example", output.replace(&repository().display().to_string(), "[REPOSITORY]"));
}

#[test]
fn every_key_of_the_example_configuration_is_accepted() {
    // Commented-out lines show the defaults. This test uncomments them.
    let example = deployed("palisade.toml");
    let is_setting = |line: &str| line.contains(" = ") && !line.starts_with("# #");
    let uncomment = |line: &str| match line.strip_prefix("# ") {
        Some(setting) if is_setting(setting) || setting.starts_with('[') => setting.to_owned(),
        _ => line.to_owned(),
    };
    let uncommented: String = example.lines().map(|line| uncomment(line) + "\n").collect();
    let uncommented = uncommented.replace("sha256:…", &Secret::random().unwrap().hash().to_string());
    let without_tls: String = uncommented
        .split("\n[")
        .filter(|table| !table.starts_with("serve.tls]") && !table.starts_with("serve.cluster]"))
        .map(|table| format!("{table}\n["))
        .collect();
    let sandbox = Sandbox::new();
    let config = sandbox.configure(without_tls.trim_end_matches('['));
    let output = sandbox.run(&["serve", "--check", "--config", &config, "--data-dir", "data"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for key in ["connections", "sessions_per_user", "unread_bytes", "answers_per_session", "user_from", "client_ca"] {
        assert!(example.contains(&format!("# {key} = ")), "{key}");
    }
}

#[test]
fn the_systemd_unit_runs_an_existing_command() {
    let unit = deployed("palisade.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/palisade ")).expect("a command");
    let sandbox = Sandbox::new();
    let config = sandbox.configure("");
    let args: Vec<_> = start.split(' ').map(|word| if word.ends_with(".toml") { &config } else { word }).collect();
    let output = sandbox.run(&[&args[..], &["--check", "--data-dir", "data"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.err);
    // A node that founds or joins a cluster waits for the others, however long that takes.
    assert!(unit.lines().any(|line| line == "TimeoutStartSec=infinity"));
    for needed in ["Type=notify", "DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory="]
    {
        assert!(unit.lines().any(|line| line.starts_with(needed)), "{needed}");
    }
}
