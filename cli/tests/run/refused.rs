//! What cannot be done: each bad input and each engine that cannot be used, with its exit code and its message.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::cast::{Ended, Scene, Started};

/// What is said, with the places that differ from run to run taken out.
fn assert_said(name: &str, ended: &Ended, code: i32) {
    assert_eq!((ended.code, ended.said.len()), (code, 0), "{name}: {ended:?}");
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_snapshot_path("../snapshots");
    settings.add_filter(r"/\S*/\.tmp\w+", "[folder]");
    settings.bind(|| insta::assert_snapshot!(format!("run__{name}"), ended.errors.trim_end()));
}

#[test]
fn bad_input_is_refused_with_what_to_change() {
    let scene = Scene::new();
    let refuse = |name: &str, args: &[&str]| {
        let args = [&["run"], args, &["--", "echo", "unexpected"]].concat();
        assert_said(name, &Started::new(scene.command(&args)).end(), 64);
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
    assert!(scene.observer().list("").unwrap().is_empty());
}

#[test]
fn a_command_must_be_given() {
    let scene = Scene::new();
    assert_said("no-command", &Started::new(scene.command(&["run", "x"])).end(), 64);
    assert_said("no-dashes", &Started::new(scene.command(&["run", "x", "true"])).end(), 64);
    let hint = Started::new(scene.command(&["run", "hello", "echo", "hi"])).end();
    assert!(hint.errors.contains("tip: the command goes behind `--`: palisade run hello -- echo hi\n"), "{hint:?}");
    assert_said("nothing-after-dashes", &Started::new(scene.command(&["run", "x", "--"])).end(), 64);
}

#[test]
fn a_semaphore_has_one_size() {
    let scene = Scene::new();
    let mut holder = scene.start(&["--permits", "1/4", "gpu"], "echo in; read go");
    holder.expect("in");
    assert_said("other-size", &scene.run(&["--permits", "1/3", "gpu"], "echo unexpected"), 64);
    assert_said("lock-or-semaphore", &scene.run(&["gpu"], "echo unexpected"), 64);
}

#[test]
fn a_configuration_file_must_be_right() {
    let scene = Scene::new();
    let refuse = |name: &str| {
        let mut command = scene.script(&["x"], "echo unexpected");
        command.env("PALISADE_CONFIG", scene.file("config.toml"));
        assert_said(name, &Started::new(command).end(), 64);
    };
    refuse("config-missing");
    fs::write(scene.file("config.toml"), "ttl = '30s'\ncolour = 'red'\n").unwrap();
    refuse("config-unknown-key");
    fs::write(scene.file("config.toml"), "ttl = '30'\n").unwrap();
    refuse("config-bad-ttl");
    fs::write(scene.file("config.toml"), "ttl =\n").unwrap();
    refuse("config-not-toml");
    fs::remove_file(scene.file("config.toml")).unwrap();
    fs::create_dir(scene.file("config.toml")).unwrap();
    refuse("config-unreadable");
}

/// `palisade run` with its locks elsewhere.
fn run_at(scene: &Scene, path: &str) -> Ended {
    let mut command = scene.script(&["x"], "echo unexpected");
    command.env("PALISADE_URL", format!("embedded://{}", scene.file(path).display()));
    Started::new(command).end()
}

#[test]
fn an_engine_that_cannot_be_used_is_told_from_a_lock_that_is_not_free() {
    let scene = Scene::new();
    fs::write(scene.file("file"), "not a database, and long enough to be seen as something else").unwrap();
    assert_said("below-a-file", &run_at(&scene, "file/locks.db"), 69);
    assert_said("not-a-database", &run_at(&scene, "file"), 69);
    fs::create_dir(scene.file("folder")).unwrap();
    assert_said("a-folder", &run_at(&scene, "folder"), 69);
}

#[test]
fn a_folder_that_one_may_not_write_to_is_named() {
    let scene = Scene::new();
    let mut command = scene.script(&["x"], "echo unexpected");
    if rustix::process::getuid().is_root() {
        // Root may do everything: somebody else is asked to.
        let palisade = scene.file("palisade");
        fs::copy(env!("CARGO_BIN_EXE_palisade"), &palisade).unwrap();
        fs::set_permissions(scene.file(""), fs::Permissions::from_mode(0o755)).unwrap();
        command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(palisade);
        command
            .args(["run", "x", "--", "echo", "unexpected"])
            .env_remove("PALISADE_CONFIG")
            .env("HOME", "/")
            .current_dir("/");
    }
    let forbidden = scene.file("forbidden");
    fs::create_dir(&forbidden).unwrap();
    fs::set_permissions(&forbidden, fs::Permissions::from_mode(0o555)).unwrap();
    command.env("PALISADE_URL", format!("embedded://{}/locks.db", forbidden.display()));
    let ended = Started::new(command).end();
    assert_said("forbidden", &ended, 69);
}

/// A disk of its own, in a namespace of its own, which is soon full.
#[test]
fn a_full_disk_is_named_and_costs_no_lock_that_is_held() {
    let scene = Scene::new();
    let script = r#"
        mount -t tmpfs -o size=256k none "$PWD" && cd "$PWD"
        export PALISADE_URL="embedded://$PWD/locks.db"
        $PALISADE run --ttl 1s x -- sh -c 'head -c 1m /dev/zero > filler; sleep 1.5; echo ran; exit 5'
        echo $?
        head -c 1m /dev/zero > more
        $PALISADE run --no-wait x -- echo unexpected
        echo $?
        rm filler more
        $PALISADE run x -- echo again"#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).current_dir(scene.file(""));
    command.envs(scene.place.environment()).env("PALISADE", env!("CARGO_BIN_EXE_palisade"));
    let ended = Started::new(command).end();
    assert_eq!(ended.said, ["ran", "5", "69", "again"], "{ended:?}");
    assert!(ended.errors.contains("no space is left for "), "{ended:?}");
}
