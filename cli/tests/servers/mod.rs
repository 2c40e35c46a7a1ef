//! Real servers, each in a separate folder and on a free port. They end with the test.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use palisade_cli::harness::zookeeper;
use tempfile::TempDir;

use crate::common::bounded::{self, Bounded};
use crate::common::environment::{self, NO_HOME};
use crate::common::{free_address, process};

/// A running server.
pub(crate) struct Server {
    name: String,
    child: Child,
    /// The server's URL for `palisade`.
    pub(crate) url: String,
    pub(crate) port: u16,
    /// Environment variables that clients of the server need.
    pub(crate) variables: Vec<(&'static str, String)>,
    directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            process::show(&self.name, &self.log().lines().collect::<Vec<_>>());
        }
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Kills it, as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        bounded::end_of(&mut self.child).expect("it ends");
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory().join("log")).unwrap_or_default()).into_owned()
    }

    /// A PostgreSQL that trusts every connection, with these settings.
    pub(crate) fn postgres(settings: &[&str]) -> Server {
        Server::postgres_with(settings, |_| {})
    }

    /// A PostgreSQL as above; `prepare` changes its data directory before the server starts.
    pub(crate) fn postgres_with(settings: &[&str], prepare: impl FnOnce(&Path)) -> Server {
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        hand_over(directory.path());
        let mut initdb = as_postgres("initdb", directory.path());
        let made = initdb.args(["-U", "postgres", "-A", "trust", "-N", "-D", "data"]).finish();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        prepare(&directory.path().join("data"));
        let mut command = as_postgres("postgres", directory.path());
        command.args(["-D", "data", "-p", &port.to_string(), "-h", "127.0.0.1", "-k", "", "-F"]).args(settings);
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let answers = {
            let url = url.clone();
            move || try_psql(&url, "SELECT 1").is_some()
        };
        Server::start(command, directory, url, port, answers)
    }

    /// Runs SQL on a PostgreSQL.
    pub(crate) fn psql(&self, sql: &str) -> String {
        try_psql(&self.url, sql).unwrap_or_else(|| panic!("it fails: {sql}"))
    }

    /// A MariaDB whose user `root` needs no password, with an empty database `shop`.
    pub(crate) fn mariadb(options: &[&str]) -> Server {
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let (data, user) = (format!("--datadir={}", directory.path().join("data").display()), as_root());
        let mut install = environment::command("mariadb-install-db", directory.path());
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", &data]);
        // A starting server deletes the temporary tables in its directory, also those of another server.
        install.env("TMPDIR", directory.path());
        let made = install.args(user).finish();
        assert!(made.status.success(), "mariadb-install-db: {}", String::from_utf8_lossy(&made.stdout));
        fs::create_dir_all(directory.path().join("data/shop")).expect("a database");
        let mut command = environment::command("mariadbd", directory.path());
        command.args(["--no-defaults", "--bind-address=127.0.0.1", &data]);
        let path = |name: &str| directory.path().join(name).display().to_string();
        command.args([format!("--port={port}"), format!("--socket={}", path("socket"))]);
        command.arg(format!("--pid-file={}", path("pid"))).args(as_root()).args(options);
        command.env("TMPDIR", directory.path());
        let answers = move || try_mariadb(port, "SELECT 1").is_some();
        Server::start(command, directory, format!("mysql://root@127.0.0.1:{port}/shop"), port, answers)
    }

    /// A Redis without persistence, with these options.
    pub(crate) fn redis(options: &[&str]) -> Server {
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let mut command = environment::command("redis-server", directory.path());
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
        command.arg(directory.path()).args(options);
        let answers = move || try_redis(port, &["PING"]).is_some_and(|answer| answer == "PONG");
        Server::start(command, directory, format!("redis://127.0.0.1:{port}"), port, answers)
    }

    /// A store with the S3 protocol and a bucket `fenced`. The URL names the bucket, the variables its address.
    pub(crate) fn s3() -> Server {
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin/weed");
        let mut command = environment::command(if ours.exists() { ours } else { "weed".into() }, directory.path());
        // Where it writes its logs.
        command.env("TMPDIR", directory.path());
        command.arg("mini").arg(format!("-dir={}", directory.path().display()));
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-bucket=fenced", &format!("-s3.port={port}")]);
        command.args(["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        for name in ["master", "filer", "volume", "admin", "s3"] {
            command.arg(format!("-{name}.port.grpc={}", free_port()));
            if name != "s3" {
                command.arg(format!("-{name}.port={}", free_port()));
            }
        }
        let keys = [("AWS_ACCESS_KEY_ID", "palisade"), ("AWS_SECRET_ACCESS_KEY", "palisade-secret")];
        let address = format!("http://127.0.0.1:{port}");
        let bucket = format!("{address}/fenced");
        command.envs(keys);
        let answers = move || {
            try_run("curl", &["-s", "-o", "/dev/null", "-w", "%{http_code}", &bucket])
                .is_some_and(|status| status == "403" || status == "200")
        };
        let mut server = Server::start(command, directory, "s3://fenced".to_owned(), port, answers);
        server.variables = keys.map(|(name, value)| (name, value.to_owned())).into();
        server.variables.push(("AWS_ENDPOINT_URL", address));
        server.variables.push(("AWS_REGION", "us-east-1".to_owned()));
        server
    }

    /// A Consul of one server.
    pub(crate) fn consul() -> Server {
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/consul/usr/bin/consul");
        let mut command = environment::command(if ours.exists() { ours } else { "consul".into() }, directory.path());
        command.args(["agent", "-server", "-bootstrap-expect=1", "-bind=127.0.0.1", "-client=127.0.0.1"]);
        command.args(["-disable-host-node-id", "-dns-port=-1", "-grpc-port=-1", "-serf-wan-port=-1"]);
        command.args([format!("-http-port={port}"), format!("-serf-lan-port={}", free_port())]);
        command.arg(format!("-server-port={}", free_port()));
        command.arg(format!("-data-dir={}", directory.path().join("data").display()));
        command.arg("-hcl=session_ttl_min = \"1s\"");
        let key = format!("http://127.0.0.1:{port}/v1/kv/none?consistent");
        let answers = move || {
            try_run("curl", &["-s", "-o", "/dev/null", "-w", "%{http_code}", &key])
                .is_some_and(|status| status == "404")
        };
        Server::start(command, directory, format!("consul://127.0.0.1:{port}"), port, answers)
    }

    /// An etcd of one member.
    pub(crate) fn etcd() -> Server {
        let (directory, port, peers) = (tempfile::tempdir().expect("a directory"), free_port(), free_port());
        let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
        let mut command = environment::command("etcd", directory.path());
        command.arg("--data-dir").arg(directory.path().join("data"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}")]);
        let health = format!("{clients}/health");
        let answers = move || try_run("curl", &["-sf", &health]).is_some();
        Server::start(command, directory, format!("etcd://127.0.0.1:{port}"), port, answers)
    }

    /// A ZooKeeper of one server, whose sessions last for at most this time.
    pub(crate) fn zookeeper(longest_session: Duration) -> Server {
        let (directory, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let settings = format!(
            "tickTime=500\nmaxSessionTimeout={}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n",
            longest_session.as_millis(),
            directory.path().join("data").display()
        );
        fs::write(directory.path().join("zoo.cfg"), settings).expect("a file");
        let mut command = environment::command("java", directory.path());
        command.args(zookeeper::java_arguments(&[], &directory.path().join("zoo.cfg")));
        let answers = move || {
            zookeeper::ask((Ipv4Addr::LOCALHOST, port).into(), "srvr").is_ok_and(|answer| answer.contains("Mode: "))
        };
        Server::start(command, directory, format!("zookeeper://127.0.0.1:{port}"), port, answers)
    }

    fn start(mut command: Command, directory: TempDir, url: String, port: u16, answers: impl Fn() -> bool) -> Server {
        let log = File::create(directory.path().join("log")).expect("a file");
        let stderr = log.try_clone().expect("a file");
        let name = bounded::command_line(&command);
        let child = command.stdout(log).stderr(stderr).spawn();
        let child = child.unwrap_or_else(|error| bounded::absent(&name, &error));
        let mut server = Server { name, child, url, port, variables: Vec::new(), directory };
        bounded::until(&format!("{} answers", server.name), || {
            // The answer may be that of another server, at whose port this one has failed.
            let answers = answers();
            let is_gone = server.child.try_wait().expect("it can be asked").is_some();
            assert!(!is_gone, "{} has ended", server.name);
            answers
        });
        server
    }
}

/// Runs SQL and returns the result; `None` if it fails.
pub(crate) fn try_psql(url: &str, sql: &str) -> Option<String> {
    try_run("psql", &["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", sql, url])
}

pub(crate) fn try_mariadb(port: u16, sql: &str) -> Option<String> {
    let port = format!("-P{port}");
    let args =
        ["--no-defaults", "--protocol=tcp", "-uroot", "-h127.0.0.1", &port, "--batch", "-N", "shop", "-e", sql];
    try_run("mariadb", &args)
}

pub(crate) fn try_redis(port: u16, args: &[&str]) -> Option<String> {
    try_run("redis-cli", &[&["-p", &port.to_string()], args].concat())
}

fn try_run(program: &str, args: &[&str]) -> Option<String> {
    let output = environment::command(program, NO_HOME).args(args).finish();
    output.status.success().then(|| String::from_utf8(output.stdout).expect("text").trim().to_owned())
}

/// Returns a port on which no other process listens.
pub(crate) fn free_port() -> u16 {
    free_address().port()
}

/// Returns the command of a PostgreSQL tool. PostgreSQL refuses to run as root, so root starts it as another user.
fn as_postgres(tool: &str, directory: &Path) -> Command {
    let program = programs().join(tool);
    let mut command = match rustix::process::geteuid().is_root() {
        false => environment::command(program, directory),
        true => {
            let mut command = environment::command("setpriv", directory);
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]).arg(program);
            command
        }
    };
    command.current_dir(directory);
    command
}

/// Gives a path to the user that PostgreSQL runs as.
pub(crate) fn hand_over(path: &Path) {
    if rustix::process::geteuid().is_root() {
        let handed = environment::command("chown", NO_HOME).arg("postgres").arg(path).finish();
        assert!(handed.status.success(), "there is no user postgres: scripts/setup");
    }
}

/// Returns the folder of the newest installed PostgreSQL programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is not installed: scripts/setup");
    let newest = versions.map(|entry| entry.expect("it can be read").path()).max();
    newest.expect("PostgreSQL is not installed: scripts/setup").join("bin")
}

/// Returns the option without which MariaDB refuses to run as root.
fn as_root() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}
