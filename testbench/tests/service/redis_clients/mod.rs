//! Lock libraries for Redis run unchanged against the service: redis-py with its own tests of `Lock`, the others with the use that
//! they document. All of it runs against Redis, too, so that a wrong expectation of a test is not taken for a fault of the
//! service. `scripts/setup` installs the libraries.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_testbench::bounded::output;
use palisade_testbench::servers::{Redis, Service};
use tempfile::TempDir;

/// The tests of `Lock` in the source package of redis-py.
const TESTS: [&str; 4] =
    ["tests/__init__.py", "tests/test_lock.py", "tests/test_asyncio/__init__.py", "tests/test_asyncio/test_lock.py"];

/// How many they are. The asynchronous ones count twice: on one connection, and on a pool.
const TEST_COUNT: &str = "92 passed";

/// A server of locks.
#[derive(Clone, Copy)]
struct Server {
    address: SocketAddr,
    /// Whether it gives a holder its fencing token.
    has_tokens: bool,
}

impl Server {
    /// Runs redis-py's own tests over this version of the protocol.
    fn run_tests_of_redis_py(self, protocol: &str) {
        let folder = directory();
        let source = fs::read_dir(installed("source")).expect("scripts/setup has downloaded the source of redis-py");
        let source = source.last().expect("one file").expect("it can be read").path();
        let package = source.file_name().and_then(|name| name.to_str()?.strip_suffix(".tar.gz")).expect("a tarball");
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(&source).arg("-C").arg(folder.path()).arg("--strip-components=1");
        run(unpack.args(TESTS.map(|file| format!("{package}/{file}"))));
        copy("conftest.py", &folder.path().join("tests/conftest.py"));
        copy("conftest_asyncio.py", &folder.path().join("tests/test_asyncio/conftest.py"));

        let mut pytest = Command::new(installed("bin/python3"));
        pytest.args([
            "-m",
            "pytest",
            "-q",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "-o",
            "asyncio_mode=auto",
        ]);
        pytest.args(["--protocol", protocol, "--redis-url", &format!("redis://{}", self.address), "tests"]);
        let report = run(pytest.current_dir(folder.path()));
        let summary = report.lines().last().unwrap_or_default();
        assert!(summary.starts_with(&format!("{TEST_COUNT} in ")), "not all tests of redis-py have run:\n{report}");
    }

    /// Runs one of the scripts beside this file.
    fn run_script(self, name: &str) {
        let mut command = interpreter(name);
        command.arg(beside(name)).arg(self.address.port().to_string());
        run(command.args(self.has_tokens.then_some("tokens")));
    }

    /// Runs the examples in this language on the page for users and returns their number. Each prints a token.
    fn run_examples(self, language: &str, extension: &str) -> usize {
        let page = fs::read_to_string(beside("../../../../docs/redis-clients.md")).expect("the page can be read");
        let opening = format!("```{language}\n");
        let examples = page.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
        let folder = directory();
        let mut count = 0;
        for example in examples {
            count += 1;
            let file = folder.path().join(format!("example-{count}.{extension}"));
            fs::write(&file, example.replace("7420", &self.address.port().to_string())).expect("it can be written");
            let reply = run(interpreter(extension).arg(file));
            let token = reply.trim_end().rsplit(' ').next().and_then(|token| token.parse::<u64>().ok());
            assert!(token.is_some_and(|token| token > 0), "{example}\nprinted no token: {reply}");
        }
        count
    }
}

/// Starts the service and runs this on it.
fn on_the_service(run: impl FnOnce(Server)) {
    let folder = directory();
    let service = Service::start(env!("CARGO_BIN_EXE_serve"), folder.path()).expect("the service starts");
    run(Server { address: service.address, has_tokens: true });
}

/// Does the same with Redis.
fn on_redis(run: impl FnOnce(Server)) {
    let folder = directory();
    let redis = Redis::start(folder.path(), "no").expect("Redis starts");
    run(Server { address: redis.address, has_tokens: false });
}

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// Returns the path of a file that `scripts/setup` has installed.
fn installed(path: &str) -> PathBuf {
    let path = tools().join("redis-clients").join(path);
    assert!(path.exists(), "{} does not exist: run scripts/setup", path.display());
    path
}

/// Returns a command that runs a file with this name or ending.
fn interpreter(name: &str) -> Command {
    let mut command = Command::new(if name.ends_with("py") { installed("bin/python3") } else { node() });
    command.env("NODE_PATH", installed("node_modules"));
    command
}

/// Returns the node of `scripts/setup`, or the one on the `PATH`.
fn node() -> PathBuf {
    Some(tools().join("node/bin/node")).filter(|node| node.exists()).unwrap_or_else(|| "node".into())
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools")
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/redis_clients").join(name)
}

fn copy(name: &str, to: &Path) {
    fs::copy(beside(name), to).expect("the file can be copied");
}

/// Runs a command that must succeed and returns its output.
fn run(command: &mut Command) -> String {
    let reply = output(command).unwrap_or_else(|error| panic!("{command:?}: {error}; run scripts/setup"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (reply, errors, status) = (text(&reply.stdout), text(&reply.stderr), reply.status);
    assert!(status.success(), "{command:?}: {status}\n{reply}\n{errors}");
    reply
}

#[test]
fn redis_py_passes_its_own_tests_over_resp2() {
    on_the_service(|server| server.run_tests_of_redis_py("2"));
}

#[test]
fn redis_py_passes_its_own_tests_over_resp3() {
    on_the_service(|server| server.run_tests_of_redis_py("3"));
}

#[test]
fn redlock_py_works_as_documented() {
    on_the_service(|server| server.run_script("redlock_py.py"));
}

#[test]
fn aioredlock_works_as_documented() {
    on_the_service(|server| server.run_script("aioredlock_examples.py"));
}

#[test]
fn node_redlock_4_works_as_documented() {
    on_the_service(|server| server.run_script("redlock_4.js"));
}

#[test]
fn node_redlock_5_works_as_documented() {
    on_the_service(|server| server.run_script("redlock_5.js"));
}

#[test]
fn the_examples_for_users_print_tokens() {
    on_the_service(|server| {
        assert_eq!((server.run_examples("python", "py"), server.run_examples("js", "js")), (3, 1));
    });
}

#[test]
fn redis_py_passes_its_own_tests_on_redis() {
    on_redis(|server| server.run_tests_of_redis_py("2"));
}

#[test]
fn the_examples_work_on_redis() {
    on_redis(|server| {
        for script in ["redlock_py.py", "aioredlock_examples.py", "redlock_4.js", "redlock_5.js"] {
            server.run_script(script);
        }
    });
}
