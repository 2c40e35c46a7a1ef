//! Builds the wheel of `python/` and runs its tests on real servers.

use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_testbench::servers::{Postgres, Redis, Service};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// Runs a command without a bound, because a build may take long; pytest bounds each test.
fn run(command: &mut Command) {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}; run scripts/setup"));
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{printed}\n{errors}");
}

#[test]
fn the_python_package_keeps_its_promises() {
    let root = root();
    let tools = root.join("target/tools/python/bin");
    let wheels = tempfile::tempdir().expect("a directory for the wheel");
    let mut build = Command::new(tools.join("maturin"));
    // The dev profile and the target directory of the tests, so that most crates are built already.
    build.args(["build", "--profile", "dev", "--target-dir"]).arg(root.join("target"));
    run(build.arg("--out").arg(wheels.path()).current_dir(root.join("python")));
    let wheel = wheels.path().read_dir().expect("the directory").next().expect("a wheel").expect("a file").path();
    let mut install = Command::new(tools.join("pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"]);
    run(install.arg(wheel));

    let folder = tempfile::tempdir().expect("a directory for the servers");
    let service = Service::start_with(env!("CARGO_BIN_EXE_serve"), folder.path(), &[("SERVE_SIGN", "yes")]);
    let service = service.unwrap_or_else(|absent| panic!("{absent}"));
    let redis = Redis::start(folder.path(), "no").unwrap_or_else(|absent| panic!("{absent}"));
    let postgres = Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
    let mut pytest = Command::new(tools.join("pytest"));
    pytest
        .args(["-q", "-p", "no:cacheprovider"])
        .args(std::env::var("PYTEST_ARGS").iter().flat_map(|words| words.split(' ')));
    pytest.env("PALISADE_TEST_SERVICE", service.url()).env("PALISADE_TEST_REDIS", redis.url());
    pytest.env("PALISADE_TEST_POSTGRES", postgres.url()).env("PYTHONDONTWRITEBYTECODE", "yes");
    run(pytest.current_dir(root.join("python")));
}
