//! Users and their secrets: the sources of a secret, and that no command prints it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::common::bounded::Bounded;
use crate::common::process::Process;
use crate::sandbox::{CommandOutput, Numbers, Sandbox};

/// As `palisade serve --new-user` made it.
const SECRET: &str = "b58cbdffbb04714c1fd8df7847cc6488a5cd0e0415c587edd9c8be487697d7b4";
const HASH: &str = "sha256:d23bf2e564b28f4725d82008169410ecf571956fb17d8c03fceeccc56e93e719";
const WRONG: &str = "0123456789abcdefxyzzy";

/// An encrypted service with one user, `ci`. `ca.pem` in the sandbox is its authority.
struct Service {
    sandbox: Sandbox,
    _process: Process,
    address: String,
}

impl Service {
    fn start() -> Service {
        let sandbox = Sandbox::new();
        let put = |name: &str, text: String| fs::write(sandbox.path().join(name), text).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        put("ca.pem", authority.pem());
        put("server.pem", server.pem());
        put("server.key", key.serialize_pem());
        put("secret", format!("{SECRET}\n"));
        put(
            "serve.toml",
            format!(
                "[serve]\nresp = '127.0.0.1:0'\nhttp = 'off'\ndata_dir = 'data'\n\
                 [serve.tls]\ncertificate = 'server.pem'\nkey = 'server.key'\n\
                 [[serve.users]]\nname = 'ci'\nsecret_hash = '{HASH}'\nrules = [{{ verbs = ['admin'], prefix = '' }}]\n"
            ),
        );
        let mut command = sandbox.command(&["serve", "--config", "serve.toml"]);
        let process = Process::start(&mut command);
        let ready = process.line_with("ready: ");
        let address = ready.split_once("resp=").unwrap().1.split(' ').next().unwrap().to_owned();
        Service { sandbox, _process: process, address }
    }

    fn command(&self, url: &str, args: &[&str]) -> Command {
        let mut command = self.sandbox.command(args);
        command.env("PALISADE_URL", url);
        command
    }

    fn run(&self, command: &mut Command) -> CommandOutput {
        let output = self.sandbox.output(&command.finish());
        for secret in [SECRET, WRONG] {
            assert!(!output.out.contains(secret) && !output.err.contains(secret), "{output:?}");
        }
        output
    }

    /// Returns the URL with the secret in it.
    fn url(&self) -> String {
        format!("palisades://ci:{SECRET}@{}?ca=ca.pem", self.address)
    }

    fn shown(&self, text: &str) -> String {
        self.sandbox.redacted(&text.replace(&self.address, "ADDRESS"), Numbers::Kept)
    }
}

#[test]
fn a_secret_comes_from_the_url_the_environment_or_a_file() {
    let service = Service::start();
    let at = &service.address;
    let without = format!("palisades://ci@{at}?ca=ca.pem");
    let file = format!("{without}&secret_file=secret");
    for mut command in [
        service.command(&service.url(), &["ls"]),
        service.command(&file, &["ls"]),
        {
            let mut command = service.command(&without, &["ls"]);
            command.env("PALISADE_SECRET", SECRET);
            command
        },
        {
            // SSL_CERT_FILE replaces the system's authorities.
            let mut command = service.command(&format!("palisades://ci@{at}?secret_file=secret"), &["ls"]);
            command.env("SSL_CERT_FILE", "ca.pem");
            command
        },
    ] {
        let output = service.run(&mut command);
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{command:?}");
    }
    let output = service.run(&mut service.command(&without, &["ls"]));
    assert_eq!(output.code, Some(64));
    insta::assert_snapshot!("no-secret", service.shown(&output.err));
}

#[test]
fn no_command_shows_a_secret() {
    let service = Service::start();
    let palisade = env!("CARGO_BIN_EXE_palisade");
    for args in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["ls"],
        &["acquire", "one"],
        &["acquire", "two", "--json"],
        &["run", "three", "--", palisade, "show", "three"],
        &["run", "four", "--", "sh", "-c", "echo $PALISADE_URL"],
        &["run", "four", "--help"],
    ] {
        for verbose in [&[][..], &["-vv"]] {
            let args = [verbose, args].concat();
            let mut command = service.command(&service.url(), &args);
            if !verbose.is_empty() {
                command.env("PALISADE_LOG", "trace");
            }
            // The first round still holds the lock, so the second one must not wait.
            if args.contains(&"acquire") && !verbose.is_empty() {
                command.arg("--no-wait");
            }
            let output = service.run(&mut command);
            assert!(matches!(output.code, Some(0 | 75)), "{args:?}: {output:?}");
        }
    }
    let output = service.run(&mut service.command(&service.url(), &["acquire", "five"]));
    assert!(
        output.out.contains(&format!("export PALISADE_URL='palisades://ci@{}?ca=ca.pem'", service.address)),
        "{output:?}"
    );
}

#[test]
fn no_failure_shows_a_secret() {
    let service = Service::start();
    let at = &service.address;
    let mut messages = String::new();
    for (expected, url) in [
        (69, format!("palisades://ci:{WRONG}@{at}?ca=ca.pem")),
        (69, format!("palisades://nobody:{SECRET}@{at}?ca=ca.pem")),
        (69, format!("palisades://ci:{SECRET}@{at}?ca=server.key")),
        (69, format!("palisades://ci:{SECRET}@127.0.0.1:1?ca=ca.pem")),
        (69, format!("palisade://ci:{SECRET}@{at}")),
        (64, format!("palisade://ci:{SECRET}@{at}?ca=ca.pem")),
        (64, format!("palisades://ci:{SECRET}@127.0.0.1")),
        (64, format!("palisades://ci:{SECRET}")),
        (64, format!("palisades://ci:/{SECRET}@{at}")),
        (64, format!("palisades://ci@{at}?secret={SECRET}")),
    ] {
        let mut command = service.command(&url, &["-vv", "ls"]);
        // 64 for an invalid URL, 69 for one that cannot be reached.
        let code = service.run(command.env("PALISADE_LOG", "trace")).code;
        assert_eq!(code, Some(expected), "{url}");
        let output = service.run(&mut service.command(&url, &["ls"]));
        messages += &output.err;
        let output = service.run(&mut service.command(&url, &["doctor"]));
        assert_eq!(output.code, code, "{url}: {output:?}");
    }
    insta::assert_snapshot!("failures", service.shown(&messages));
}

#[test]
fn a_broken_configuration_is_not_quoted_with_its_secret() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("bad.toml"), format!("url = \"palisade://ci:{SECRET}@host:1\nttl = 1")).unwrap();
    let output = sandbox.run(&["--config", "bad.toml", "ls"]);
    assert_eq!(output.code, Some(64));
    assert!(!output.err.contains(SECRET), "{}", output.err);
}

#[test]
fn a_command_that_runs_under_a_lock_can_log_in_too() {
    let service = Service::start();
    let show = format!("{} show lock", env!("CARGO_BIN_EXE_palisade"));
    let args = ["run", "lock", "--label", "outer", "--", "sh", "-c", &show];
    let output = service.run(&mut service.command(&service.url(), &args));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    assert!(output.out.contains("ci: outer"), "{}", output.out);
}

#[test]
fn doctor_warns_about_a_secret_sent_unencrypted() {
    let sandbox = Sandbox::new();
    // An address outside the loopback that refuses connections at once.
    let output = sandbox.run(&["doctor", &format!("palisade://ci:{SECRET}@0.0.0.0:1")]);
    assert!(output.out.contains("encryption") && !output.out.contains(SECRET), "{}", output.out);
}
