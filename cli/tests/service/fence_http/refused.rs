//! Options that the proxy refuses.

use super::proxy::Proxy;
use crate::sandbox::{Numbers, Sandbox};

#[test]
fn help_has_examples() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("fence-http-help", sandbox.stdout(&["fence", "http", "--help"]));
}

#[test]
fn misuse_says_what_to_change() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("notes.txt"), "not a database, but a text of some length. ".repeat(9))
        .unwrap();
    let run = |code, more: &[&str]| {
        let args = [&["fence", "http", "--listen", "127.0.0.1:0"], more].concat();
        format!("{}\n{}", more.join(" "), sandbox.stderr(code, &args))
    };
    let url = "http://127.0.0.1:1";
    let output = [
        run(64, &["--upstream", url, "--store", "memory:"]),
        run(64, &["--upstream", url, "--store", "redis:", "--lock", "a"]),
        run(64, &["--upstream", "https://example.org", "--store", "memory:", "--lock", "a"]),
        run(64, &["--upstream", "user:hunter22@host:80", "--store", "memory:", "--lock", "a"]),
        run(64, &["--upstream", "http://user:hunter22@host", "--store", "memory:", "--lock", "a"]),
        run(64, &["--upstream", url, "--store", "memory:", "--lock", "$a"]),
        run(
            64,
            &[
                "--upstream",
                url,
                "--store",
                "memory:",
                "--lock",
                "a",
                "--tls-certificate",
                "none.pem",
                "--tls-key",
                "none.pem",
            ],
        ),
        run(69, &["--upstream", url, "--store", "sqlite:notes.txt", "--lock", "a"]),
        run(69, &["--upstream", url, "--store", "sqlite:no/such/folder/marks.db", "--lock", "a"]),
    ];
    // The first line of each is the command itself.
    assert_eq!(
        output
            .iter()
            .filter(|output| output.split_once('\n').is_some_and(|(_, output)| output.contains("hunter22")))
            .count(),
        0
    );
    insta::assert_snapshot!("fence-http-misuse", sandbox.redacted(&output.join("\n"), Numbers::Kept));
}

#[test]
fn marks_belong_to_one_process_at_a_time() {
    let sandbox = Sandbox::new();
    let _first = Proxy::start(&sandbox, "http://127.0.0.1:1", &[]);
    let args = ["fence", "http", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--lock", "a"];
    let output = sandbox.stderr(69, &[&args[..], &["--store", "sqlite:marks.db"]].concat());
    assert!(output.contains("the marks in marks.db are in use by another process"), "{output}");
}

#[test]
fn a_proxy_open_to_other_hosts_warns_of_the_risk() {
    let sandbox = Sandbox::new();
    let output = |listen: &str| {
        Proxy::start(&sandbox, "http://127.0.0.1:1", &["--listen", listen, "--store", "memory:"]).before_ready.clone()
    };
    assert_eq!(output("127.0.0.1:0"), "");
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let output = output(listen);
        assert!(output.contains("not encrypted") && output.contains("make tokens up"), "{output}");
        assert!(output.contains("--tls-certificate") && output.contains("--keys"), "{output}");
    }
}
