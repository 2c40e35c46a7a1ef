//! A running proxy.

use std::net::SocketAddr;
use std::process::Command;

use palisade_fence::http::{Api, FENCING_TOKEN, FENCING_VERDICT};
use reqwest::{Method, Response};
use rustix::process::{Pid, Signal};

use crate::common::http_client;
use crate::common::process::Process;
use crate::sandbox::Sandbox;

pub(crate) struct Proxy {
    process: Process,
    pub(crate) address: SocketAddr,
    /// The lines on stderr before it was ready.
    pub(crate) before_ready: String,
}

impl Proxy {
    /// Starts the proxy on any port, with these additional options.
    pub(crate) fn start(sandbox: &Sandbox, upstream: &str, options: &[&str]) -> Proxy {
        Proxy::spawn(Proxy::command(sandbox, upstream, options))
    }

    /// Returns the command that starts the proxy.
    pub(crate) fn command(sandbox: &Sandbox, upstream: &str, options: &[&str]) -> Command {
        let mut command = sandbox.command(&["fence", "http", "--upstream", upstream]);
        for (name, value) in [("--listen", "127.0.0.1:0"), ("--store", "sqlite:marks.db"), ("--lock", "orders")] {
            let is_per = name == "--lock" && options.iter().any(|option| option.starts_with("--per"));
            if !options.contains(&name) && !is_per {
                command.args([name, value]);
            }
        }
        command.args(options);
        command
    }

    /// Starts the proxy by a command, and waits until it is ready.
    pub(crate) fn spawn(mut command: Command) -> Proxy {
        let process = Process::start(&mut command);
        let mut before_ready = String::new();
        loop {
            let line = process.next_line().unwrap_or_else(|| panic!("it is not ready: {before_ready}"));
            if let Some(address) = line.split_once("http=").and_then(|(_, rest)| rest.split(' ').next()) {
                return Proxy { address: address.parse().unwrap(), process, before_ready };
            }
            before_ready += &format!("{line}\n");
        }
    }

    pub(crate) fn api(&self) -> Api {
        Api::new(http_client(), &format!("http://{}", self.address)).unwrap()
    }

    /// Sends a request with this header, or none.
    pub(crate) async fn send(&self, method: Method, path: &str, header: &str, body: &str) -> Response {
        let mut request =
            http_client().request(method, format!("http://{}{path}", self.address)).body(body.to_owned());
        if !header.is_empty() {
            request = request.header(FENCING_TOKEN, header);
        }
        request.send().await.unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for the proxy to exit, and returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        self.process.wait().code()
    }

    /// Kills the proxy, as a power cut would.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }
}

/// Returns the fence's verdict.
pub(crate) fn verdict(response: &Response) -> &str {
    response.headers().get(FENCING_VERDICT).map_or("", |value| value.to_str().unwrap())
}
