//! A running service in a private directory.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use super::client::Client;
use super::web::Web;
use crate::common::process::Process;
use crate::sandbox::Sandbox;

pub(crate) struct Service {
    process: Process,
    pub(crate) address: SocketAddr,
    http: Option<SocketAddr>,
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
        // The default port would collide with other tests.
        command.args(options).env("PALISADE_HTTP", "off");
        command
    }

    pub(crate) fn serve(&self, options: &[&str]) -> Service {
        Service::start(self.serve_command(options))
    }

    /// Returns the exit code and stderr of a service that does not start. If it starts, kills it and returns `None`.
    pub(crate) fn serve_refusal(&self, options: &[&str]) -> Option<(Option<i32>, String)> {
        let mut process = Process::start(&mut self.serve_command(options));
        let mut output = String::new();
        while let Some(line) = process.next_line() {
            if line.contains("palisade: ready: ") {
                return None;
            }
            output += &format!("{line}\n");
        }
        Some((process.wait().code(), output))
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
        let process = Process::start(&mut command);
        let ready = process.line_with("palisade: ready: ");
        let address = |name: &str| {
            let text = ready.split_once(name).and_then(|(_, rest)| rest.split(' ').next());
            text.map(|text| text.parse().expect("an address"))
        };
        Service { address: address(" resp=").expect("an address"), http: address(" http="), process }
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
        self.process.line_with(part)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Makes every later write to a file fail.
    pub(crate) fn forbid_writing(&self) {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Some(self.process.pid()), Resource::Fsize, none).expect("it is ours");
    }

    /// Waits for the service to exit. Returns its exit code and the remaining lines of stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<String>) {
        self.process.end()
    }

    /// Stops the service, and checks that it exits with 0.
    pub(crate) fn stop(self) {
        self.signal(Signal::TERM);
        assert_eq!(self.end().0, Some(0));
    }

    /// Returns the new lines on stderr.
    pub(crate) fn new_lines(&self) -> impl Iterator<Item = String> {
        self.process.new_lines()
    }

    /// Returns a function that tells whether stderr has a new line with this text.
    pub(crate) fn log_has(&self, part: &'static str) -> impl Fn() -> bool + '_ {
        move || self.new_lines().any(|line| line.contains(part))
    }
}
