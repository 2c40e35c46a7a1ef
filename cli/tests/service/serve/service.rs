//! A running service in a private directory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use super::client::{Client, TIMEOUT};
use super::web::Web;
use crate::sandbox::{Sandbox, end_of, within};

pub(crate) struct Service {
    child: Option<Child>,
    pid: Pid,
    pub(crate) address: SocketAddr,
    http: Option<SocketAddr>,
    stderr_lines: Receiver<String>,
}

impl Sandbox {
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Writes the configuration file.
    pub(crate) fn configure(&self, text: &str) -> String {
        let path = self.path().join("palisade.toml");
        fs::write(&path, text).expect("it is ours");
        path.display().to_string()
    }

    pub(crate) fn serve_command(&self, options: &[&str]) -> Command {
        let data_dir = self.data_dir().display().to_string();
        let mut command = self.command(&["serve", "--data-dir", &data_dir]);
        if !options.contains(&"--resp") {
            command.args(["--resp", "127.0.0.1:0"]);
        }
        command.args(options);
        for name in ["PALISADE_DATA_DIR", "PALISADE_RESP", "PALISADE_HTTP", "NOTIFY_SOCKET"] {
            command.env_remove(name);
        }
        // The default port would collide with other tests.
        command.env("PALISADE_HTTP", "off");
        command
    }

    pub(crate) fn serve(&self, options: &[&str]) -> Service {
        Service::start(self.serve_command(options))
    }

    /// Returns the exit code and stderr of a service that does not start. If it starts, kills it and returns `None`.
    pub(crate) fn serve_refusal(&self, options: &[&str]) -> Option<(Option<i32>, String)> {
        let mut command = self.serve_command(options);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("palisade starts");
        let pid = Pid::from_child(&child);
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines().map_while(Result::ok);
        let (output, is_ready) = within("the start or its failure", move || {
            let mut output = String::new();
            let is_ready = lines.any(|line| {
                output = format!("{output}{line}\n");
                line.contains("palisade: ready: ")
            });
            (output, is_ready)
        });
        if is_ready {
            kill_process(pid, Signal::KILL).expect("it runs");
        }
        let ended = end_of(child).expect("it ends");
        (!is_ready).then(|| (ended.code(), output))
    }

    /// Starts the service with this configuration file, and HTTP.
    pub(crate) fn serve_web(&self, config: &str) -> Service {
        let config = self.configure(config);
        self.serve(&["--config", &config, "--http", "127.0.0.1:0"])
    }

    /// Starts the service with this configuration file.
    pub(crate) fn serve_with(&self, config: &str) -> Service {
        let config = self.configure(config);
        self.serve(&["--config", &config])
    }
}

impl Service {
    pub(crate) fn start(mut command: Command) -> Service {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("palisade starts");
        let lines = BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines();
        let (sender, stderr_lines) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        let pid = Pid::from_child(&child);
        let mut service =
            Service { child: Some(child), pid, address: ([127, 0, 0, 1], 0).into(), http: None, stderr_lines };
        let ready = service.line_with("palisade: ready: ");
        let address = |name: &str| {
            let text = ready.split_once(name).and_then(|(_, rest)| rest.split(' ').next());
            text.map(|text| text.parse().expect("an address"))
        };
        service.address = address(" resp=").expect("an address");
        service.http = address(" http=");
        service
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns an HTTP client.
    pub(crate) fn web(&self) -> Web {
        Web::new(self.http.expect("it was asked for"))
    }

    /// Returns a client that uses RESP 3.
    pub(crate) fn resp3_client(&self) -> Client {
        let mut client = self.client();
        client.hello();
        client
    }

    /// Waits for the next line on stderr with this text.
    pub(crate) fn line_with(&self, part: &str) -> String {
        loop {
            let line = self.stderr_lines.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("no line with {part:?} came"));
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it runs");
    }

    /// Makes every later write to a file fail.
    pub(crate) fn forbid_writing(&self) {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Some(self.pid), Resource::Fsize, none).expect("it is ours");
    }

    /// Waits for the service to exit. Returns its exit code and the remaining lines of stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<String>) {
        let child = self.child.take().expect("its end was not waited for");
        let status = end_of(child).unwrap_or_else(|| {
            let _ = kill_process(self.pid, Signal::KILL);
            panic!("it did not end")
        });
        (status.code(), self.stderr_lines.iter().collect())
    }

    /// Stops the service, and checks that it exits with 0.
    pub(crate) fn stop(self) {
        self.signal(Signal::TERM);
        assert_eq!(self.end().0, Some(0));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Service {
    /// Returns the lines on stderr so far.
    pub(crate) fn lines_so_far(&self) -> impl Iterator<Item = String> {
        self.stderr_lines.try_iter()
    }

    /// Returns a function that tells whether stderr has a new line with this text.
    pub(crate) fn log_has(&self, part: &'static str) -> impl Fn() -> bool + '_ {
        move || self.stderr_lines.try_iter().any(|line| line.contains(part))
    }
}
