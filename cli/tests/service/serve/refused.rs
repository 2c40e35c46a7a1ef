//! `--check`, and options and configurations that the service refuses.

use crate::common::bounded::Bounded;
use crate::sandbox::{Numbers, Sandbox};

fn check(sandbox: &Sandbox, code: i32, args: &[&str]) -> String {
    let output = sandbox.run(&[&["serve", "--check"], args].concat());
    assert_eq!(output.code, Some(code), "{args:?}: {}{}", output.out, output.err);
    sandbox.redacted(&format!("{}{}", output.out, output.err), Numbers::Kept)
}

fn check_file(sandbox: &Sandbox, code: i32, config: &str) -> String {
    let config = sandbox.configure(config);
    check(sandbox, code, &["--config", &config, "--data-dir", "data"])
}

const HASH: &str = "sha256:d23bf2e564b28f4725d82008169410ecf571956fb17d8c03fceeccc56e93e719";

#[test]
fn check_prints_the_configuration_and_starts_nothing() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("check-defaults", check(&sandbox, 0, &["--data-dir", "data"]));
    assert!(!sandbox.path().join("data").exists());
    let config = format!(
        "url = 'embedded:'\n[serve]\ndata_dir = 'from-file'\nresp = '127.0.0.1:1'\nhttp = 'off'\n\
         [serve.bounds]\nconnections = 7\nstall = '5s'\n[serve.limits]\nname_bytes = 100\n\
         [[serve.users]]\nname = 'ci'\nsecret_hash = '{HASH}'\nrules = [{{ verbs = ['acquire'], prefix = 'ci/' }}]\n"
    );
    let config = sandbox.configure(&config);
    insta::assert_snapshot!("check-file", check(&sandbox, 0, &["--config", &config]));
}

#[test]
fn options_override_the_environment_which_overrides_the_file() {
    let sandbox = Sandbox::new();
    let config = sandbox.configure("[serve]\nresp = '127.0.0.1:1'\ndata_dir = 'data'\n");
    let resp = |env: Option<&str>, option: Option<&str>| {
        let mut command = sandbox.command(&["serve", "--check", "--config", &config]);
        command.args(option.map(|at| ["--resp", at]).into_iter().flatten());
        env.map(|at| command.env("PALISADE_RESP", at));
        let output = sandbox.output(&command.finish());
        let line = output.out.lines().find(|line| line.starts_with("resp ")).map(str::to_owned);
        line.unwrap_or(output.err).split_whitespace().nth(1).map(str::to_owned)
    };
    assert_eq!(resp(None, None).as_deref(), Some("127.0.0.1:1"));
    assert_eq!(resp(Some("127.0.0.1:2"), None).as_deref(), Some("127.0.0.1:2"));
    assert_eq!(resp(Some("127.0.0.1:2"), Some("127.0.0.1:3")).as_deref(), Some("127.0.0.1:3"));
}

#[test]
fn every_misuse_says_what_to_change() {
    let sandbox = Sandbox::new();
    let user = format!("[[serve.users]]\nname = 'ci'\nsecret_hash = '{HASH}'\n");
    let mut output = String::new();
    for config in [
        "[serve]\nrespp = '127.0.0.1:1'\n",
        "[serve.tls]\nkeys = 'x'\n",
        "[serve.bounds]\nconnection = 1\n",
        "[serve.limits]\nname_byte = 1\n",
        "[serve]\nresp = 'localhost'\n",
        "[serve]\nresp = '127.0.0.1:99999'\n",
        "[serve]\nhttp = \"on\\u001b\"\n",
        "[serve]\nresp = '0.0.0.0:1'\n",
        "[serve]\nhttp = '[::]:1'\n",
        &format!("[serve]\nresp = '0.0.0.0:1'\n{user}"),
        &format!("[serve]\nhttp = '0.0.0.0:1'\n{user}"),
        "[serve.tls]\ncertificate = 'x.pem'\n",
        "[serve.tls]\nclient_ca = 'x.pem'\n",
        "[serve.tls]\ncertificate = 'absent.pem'\nkey = 'absent.pem'\n",
        "[serve.tls]\ncertificate = 'palisade.toml'\nkey = 'palisade.toml'\n",
        "[serve.tls]\ncertificate = 'x'\nkey = 'x'\nuser_from = 'dns'\n",
        "[serve.tls]\nuser_from = 'name'\n",
        "[serve.cluster]\nlisten = '127.0.0.1:1'\n",
        "[serve.cluster]\nnode = 'a'\n",
        "[serve.cluster]\nnode = 'a'\nnodes = { a = '127.0.0.1' }\n",
        "[serve.cluster]\nnode = 'a'\nnodes = { 'a b' = '127.0.0.1:1' }\n",
        "[serve.cluster]\nnode = 'a'\nnodes = { a = '127.0.0.1:1', b = '192.0.2.1:1' }\n",
        "[serve.cluster]\nnode = 'a'\nnodes = { a = '127.0.0.1:1' }\nkey = 'x'\n",
        "[serve.limits]\nname_bytes = 4096\n",
        "[serve.limits]\nttl_min_ms = 10\nttl_max_ms = 9\n",
        "[serve.limits]\nanswers_per_session = 0\n",
        "[serve.bounds]\nunread_bytes = 1\n",
        "[serve.bounds]\ncommand_bytes = 100\n",
        "[serve.bounds]\nstall = '0s'\n",
        "[serve.bounds]\nstall = '5'\n",
        "[[serve.users]]\nname = 'a: b'\n",
        "[[serve.users]]\nname = 'ci'\n",
        "[[serve.users]]\nname = 'ci'\nsecret_hash = 'secret'\n",
        &format!("{user}rules = [{{ verbs = ['write'], prefix = '' }}]\n"),
        &format!("{user}{user}"),
        "[[serve.users]]\nname = 'ci'\nsecret = 'x'\n",
    ] {
        output += &format!("{config}=> {}\n", check_file(&sandbox, 64, config));
    }
    insta::assert_snapshot!("misuse", output);
}

#[test]
fn check_reports_an_unusable_directory() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("file"), "").unwrap();
    insta::assert_snapshot!("check-directory", check(&sandbox, 64, &["--data-dir", "file/data"]));
    let args = ["serve", "--data-dir", "file/data", "--resp", "127.0.0.1:0", "--http", "off"];
    assert!(sandbox.stderr(69, &args).contains("file/data"));
}

#[test]
fn listening_to_other_hosts_needs_tls_and_users_or_insecure() {
    let sandbox = Sandbox::new();
    let args = ["serve", "--data-dir", "data", "--resp", "0.0.0.0:0", "--http", "off"];
    insta::assert_snapshot!("open", sandbox.stderr(64, &args));
    let service = sandbox.serve(&["--resp", "0.0.0.0:0", "--insecure"]);
    assert!(service.address.ip().is_unspecified());
    service.stop();
}

#[test]
fn a_new_users_secret_is_printed_once_and_stored_only_as_a_hash() {
    let sandbox = Sandbox::new();
    let made = sandbox.stdout(&["serve", "--new-user", "ci"]);
    assert_ne!(made, sandbox.stdout(&["serve", "--new-user", "ci"]));
    check_file(&sandbox, 0, &made);
    let mut settings = insta::Settings::clone_current();
    settings.add_filter("[0-9a-f]{64}", "[64 DIGITS]");
    settings.bind(|| insta::assert_snapshot!("new-user", made));
    insta::assert_snapshot!("new-user-refused", sandbox.stderr(64, &["serve", "--new-user", "two words"]));
}

#[test]
fn help_names_every_option() {
    insta::assert_snapshot!("serve-help", Sandbox::new().stdout(&["serve", "--help"]));
}
