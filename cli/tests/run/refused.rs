//! Each bad input and each unusable engine, with its exit code and its message.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::bounded::Bounded;
use crate::common::environment::{self, NO_HOME};
use crate::fixture::{Finished, Fixture, Running};

/// Compares stderr with a snapshot, without the paths that differ from run to run.
fn assert_message(name: &str, ended: &Finished, code: i32) {
    assert_eq!((ended.code, ended.stdout.len()), (code, 0), "{name}: {ended:?}");
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"/\S*/\.tmp\w+", "[folder]");
    settings.bind(|| insta::assert_snapshot!(name, ended.errors.trim_end()));
}

#[test]
fn bad_input_is_refused_with_what_to_change() {
    let fixture = Fixture::new();
    let refuse = |name: &str, args: &[&str]| {
        let args = [&["run"], args, &["--", "echo", "unexpected"]].concat();
        assert_message(name, &Running::new(fixture.command(&args)).end(), 64);
    };
    refuse("no-name", &[]);
    refuse("empty-name", &[""]);
    refuse("control-name", &["a\u{1b}[2Jb"]);
    refuse("ttl-zero", &["x", "--ttl", "0s"]);
    refuse("ttl-short", &["x", "--ttl", "99ms"]);
    refuse("ttl-long", &["x", "--ttl", "1000d"]);
    refuse("ttl-no-unit", &["x", "--ttl", "30"]);
    refuse("ttl-negative", &["x", "--ttl=-5s"]);
    refuse("permits-word", &["x", "--permits", "some"]);
    refuse("permits-none", &["x", "--permits", "0/4"]);
    refuse("permits-many", &["x", "--permits", "5/4"]);
    refuse("shared-two", &["x", "y", "--shared"]);
    refuse("permits-two", &["x", "y", "--permits", "1/2"]);
    refuse("shared-permits", &["x", "--shared", "--permits", "1/2"]);
    refuse("same-name-twice", &["x", "x"]);
    refuse("signed-efficiency", &["x", "--signed", "--efficiency"]);
    refuse("wait-no-wait", &["x", "--wait", "5s", "--no-wait"]);
    refuse("wait-word", &["x", "--wait", "long"]);
    refuse("on-loss", &["x", "--on-loss", "cry"]);
    refuse("every-zero", &["x", "--every", "0s"]);
    refuse("every-long", &["x", "--every", "1000d"]);
    refuse("unknown-engine", &["x", "--url", "nothing://localhost"]);
    refuse("not-a-url", &["x", "--url", "nonsense"]);
    assert!(fixture.observer().list("").unwrap().is_empty());
}

#[test]
fn a_command_must_be_given() {
    let fixture = Fixture::new();
    assert_message("no-command", &Running::new(fixture.command(&["run", "x"])).end(), 64);
    assert_message("no-dashes", &Running::new(fixture.command(&["run", "x", "true"])).end(), 64);
    let hint = Running::new(fixture.command(&["run", "hello", "echo", "hi"])).end();
    assert!(hint.errors.contains("tip: the command goes after `--`: palisade run hello -- echo hi\n"), "{hint:?}");
    let quoted = Running::new(fixture.command(&["run", "a b", "echo", "it's"])).end();
    assert!(quoted.errors.contains(r"palisade run 'a b' -- echo 'it'\''s'"), "{quoted:?}");
    assert_message("nothing-after-dashes", &Running::new(fixture.command(&["run", "x", "--"])).end(), 64);
    let secret = Running::new(fixture.command(&["run", "hello", "curl", "https://me:xyzzy@host/"])).end();
    assert!(secret.errors.contains("tip: ") && !secret.errors.contains("xyzzy"), "{secret:?}");
    // A lock may be named like a subcommand.
    let other = Running::new(fixture.command(&["break", "run"])).end();
    assert!(other.code == 64 && !other.errors.contains("tip: the command goes after"), "{other:?}");
}

#[test]
fn arguments_that_are_not_utf_8_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::new();
    let mut command = fixture.command(&["--bogus"]);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff"));
    let refused = Running::new(command).end();
    assert!(refused.code == 64 && refused.errors.contains("--bogus"), "{refused:?}");
}

#[test]
fn a_semaphore_has_one_size() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["--permits", "1/4", "gpu"], "echo in; read go");
    holder.expect("in");
    assert_message("other-size", &fixture.run(&["--permits", "1/3", "gpu"], "echo unexpected"), 64);
    assert_message("lock-or-semaphore", &fixture.run(&["gpu"], "echo unexpected"), 64);
}

#[test]
fn a_configuration_file_must_be_right() {
    let fixture = Fixture::new();
    let refuse = |name: &str| {
        let mut command = fixture.script(&["x"], "echo unexpected");
        command.env("PALISADE_CONFIG", fixture.file("config.toml"));
        assert_message(name, &Running::new(command).end(), 64);
    };
    refuse("config-missing");
    fs::write(fixture.file("config.toml"), "ttl = '30s'\ncolour = 'red'\n").unwrap();
    refuse("config-unknown-key");
    fs::write(fixture.file("config.toml"), "ttl = '30'\n").unwrap();
    refuse("config-bad-ttl");
    fs::write(fixture.file("config.toml"), "ttl =\n").unwrap();
    refuse("config-not-toml");
    fs::remove_file(fixture.file("config.toml")).unwrap();
    fs::create_dir(fixture.file("config.toml")).unwrap();
    refuse("config-unreadable");
}

/// Runs `palisade run` with another lock file.
fn run_at(fixture: &Fixture, path: &str) -> Finished {
    let mut command = fixture.script(&["x"], "echo unexpected");
    command.env("PALISADE_URL", format!("embedded://{}", fixture.file(path).display()));
    Running::new(command).end()
}

#[test]
fn an_unusable_engine_and_a_held_lock_have_different_exit_codes() {
    let fixture = Fixture::new();
    fs::write(fixture.file("file"), "not a database, and long enough to be seen as something else").unwrap();
    assert_message("below-a-file", &run_at(&fixture, "file/locks.db"), 69);
    assert_message("not-a-database", &run_at(&fixture, "file"), 69);
    fs::create_dir(fixture.file("folder")).unwrap();
    assert_message("a-folder", &run_at(&fixture, "folder"), 69);
}

#[test]
fn an_unwritable_directory_is_named() {
    let fixture = Fixture::new();
    let mut command = fixture.script(&["x"], "echo unexpected");
    if rustix::process::getuid().is_root() {
        // Permissions do not bind root, so another user runs it.
        let palisade = fixture.file("palisade");
        // Another process copies it: no process that another thread starts inherits the open file, with which it could not be run.
        let mut copy = fixture.program("cp");
        assert!(copy.arg(env!("CARGO_BIN_EXE_palisade")).arg(&palisade).finish().status.success());
        fs::set_permissions(fixture.file(""), fs::Permissions::from_mode(0o755)).unwrap();
        command = environment::command("setpriv", NO_HOME);
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(palisade);
        command.args(["run", "x", "--", "echo", "unexpected"]).current_dir("/");
    }
    let forbidden = fixture.file("forbidden");
    fs::create_dir(&forbidden).unwrap();
    fs::set_permissions(&forbidden, fs::Permissions::from_mode(0o555)).unwrap();
    command.env("PALISADE_URL", format!("embedded://{}/locks.db", forbidden.display()));
    let ended = Running::new(command).end();
    assert_message("forbidden", &ended, 69);
}

/// Mounts a small disk in a separate namespace, and fills it.
#[test]
#[ignore = "long: several seconds"]
fn a_full_disk_is_named_and_does_not_lose_a_held_lock() {
    let fixture = Fixture::new();
    let script = r#"
        mount -t tmpfs -o size=256k none "$PWD" && cd "$PWD"
        export PALISADE_URL="embedded://$PWD/locks.db"
        # Longer than the TTL.
        palisade run --ttl 30s x -- sh -c 'head -c 1m /dev/zero > filler; sleep 31; echo ran; exit 5'
        echo $?
        head -c 1m /dev/zero > more
        palisade run --no-wait x -- echo unexpected
        echo $?
        rm filler more
        palisade run x -- echo again"#;
    let mut command = fixture.program("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    let ended = Running::new(command).end();
    assert_eq!(ended.stdout, ["ran", "5", "69", "again"], "{ended:?}");
    assert!(ended.errors.contains("no space is left for "), "{ended:?}");
}
