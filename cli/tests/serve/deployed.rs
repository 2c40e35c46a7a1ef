//! What is shipped for running it elsewhere.

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
    let said = sandbox.stdout(&["serve", "--check", "--config", &example, "--data-dir", "data"]);
    insta::assert_snapshot!("check-example", said.replace(&repository().display().to_string(), "[REPOSITORY]"));
}

#[test]
fn every_key_of_the_example_is_one_that_is_read_with_its_default() {
    // What is commented out says the default: put in force, it is accepted and changes nothing.
    let example = deployed("palisade.toml");
    let is_setting = |line: &str| line.contains(" = ") && !line.starts_with("# #");
    let put = |line: &str| match line.strip_prefix("# ") {
        Some(setting) if is_setting(setting) || setting.starts_with('[') => setting.to_owned(),
        _ => line.to_owned(),
    };
    let put_in_force: String = example.lines().map(|line| put(line) + "\n").collect();
    let put_in_force = put_in_force.replace("sha256:…", &Secret::random().unwrap().hash().to_string());
    let without_tls: String = put_in_force
        .split("\n[")
        .filter(|table| !table.starts_with("serve.tls]"))
        .map(|table| format!("{table}\n["))
        .collect();
    let sandbox = Sandbox::new();
    let config = sandbox.configure(without_tls.trim_end_matches('['));
    let said = sandbox.run(&["serve", "--check", "--config", &config, "--data-dir", "data"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
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
    let said = sandbox.run(&[&args[..], &["--check", "--data-dir", "data"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    for needed in ["Type=notify", "DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory="]
    {
        assert!(unit.lines().any(|line| line.starts_with(needed)), "{needed}");
    }
}
