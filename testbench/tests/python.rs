//! Runs the tests of `python/` on real servers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_testbench::servers::{Postgres, Redis, Service};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// A tool of the environment that `scripts/setup` makes.
fn tool(name: &str) -> Command {
    let mut tool = Command::new(root().join("target/tools/python/bin").join(name));
    tool.current_dir(root().join("python"));
    tool
}

/// Runs a command without a bound, because a build may take long; pytest bounds each test. Returns what it printed.
fn run(command: &mut Command) -> String {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}; run scripts/setup"));
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed:\n{printed}\n{errors}");
    printed.into_owned()
}

/// Builds the module with the profile and features of the tests, so that its dependencies are built already, and puts the
/// package where Python finds it. Examples, like tests, are built with the features of development dependencies.
fn install() {
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--profile", "test", "--workspace", "--all-features", "--lib", "--examples"]);
    // Build scripts, such as that of ring, run again where these differ, and then everything that depends on them is built again.
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|of| name.to_string_lossy().starts_with(of)) {
            build.env_remove(name);
        }
    }
    run(build.env("PYO3_BUILD_EXTENSION_MODULE", "1").current_dir(root()));
    let built = Path::new(env!("CARGO_BIN_EXE_serve")).with_file_name("libpalisade_native.so");
    let site = run(tool("python").args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]));
    let package = Path::new(site.trim()).join("palisade");
    if package.exists() {
        fs::remove_dir_all(&package).expect("an earlier one can be removed");
    }
    run(Command::new("cp").args(["-r", "src/palisade"]).arg(&package).current_dir(root().join("python")));
    fs::copy(built, package.join("_native.abi3.so")).expect("the module was built");
}

#[test]
fn the_python_package_keeps_its_promises() {
    install();
    let folder = tempfile::tempdir().expect("a directory for the servers");
    let service = Service::start_with(env!("CARGO_BIN_EXE_serve"), folder.path(), &[("SERVE_SIGN", "yes")]);
    let service = service.unwrap_or_else(|absent| panic!("{absent}"));
    let redis = Redis::start(folder.path(), "no").unwrap_or_else(|absent| panic!("{absent}"));
    let postgres = Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
    let mut pytest = tool("pytest");
    pytest
        .args(["-q", "-p", "no:cacheprovider"])
        .args(env::var("PYTEST_ARGS").iter().flat_map(|words| words.split(' ')));
    pytest.env("PALISADE_TEST_SERVICE", service.url()).env("PALISADE_TEST_REDIS", redis.url());
    pytest.env("PALISADE_TEST_POSTGRES", postgres.url()).env("PYTHONDONTWRITEBYTECODE", "yes");
    run(&mut pytest);
}

/// What users install: built by maturin as for a release, with the features of the package alone.
#[test]
#[ignore = "long: it builds the wheel"]
fn the_wheel_can_be_installed_and_used() {
    let folder = tempfile::tempdir().expect("a directory for the wheel");
    run(tool("maturin").args(["build", "--profile", "dev", "--out"]).arg(folder.path()));
    let wheel = folder.path().read_dir().expect("the directory").next().expect("a wheel").expect("a file").path();
    let site = folder.path().join("site");
    run(tool("pip").args(["install", "--quiet", "--no-deps", "--target"]).arg(&site).arg(wheel));
    let script = "import palisade\nwith palisade.connect('memory:').lock('x') as guard: print(guard.token)";
    assert_eq!(run(tool("python").args(["-c", script]).env("PYTHONPATH", &site)), "1\n");
}
