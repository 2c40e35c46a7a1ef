//! A running proxy.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use palisade_fence::http::{Api, FENCING_TOKEN, FENCING_VERDICT};
use reqwest::{Client, Method, Response};
use rustix::process::{Pid, Signal, kill_process};

use crate::sandbox::{Sandbox, end_of, within};

pub(crate) struct Proxy {
    child: Option<Child>,
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
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (before_ready, address) = within("the ready line", move || {
            let mut before_ready = String::new();
            for line in &mut lines {
                let line = line.unwrap();
                let address = line.split_once("http=").and_then(|(_, rest)| rest.split(' ').next());
                if let Some(address) = address {
                    return (before_ready, Some(address.parse().unwrap()));
                }
                before_ready = before_ready + &line + "\n";
            }
            (before_ready, None)
        });
        let address = address.unwrap_or_else(|| panic!("it is not ready: {before_ready}"));
        Proxy { child: Some(child), address, before_ready }
    }

    pub(crate) fn api(&self) -> Api {
        Api::new(Client::new(), &format!("http://{}", self.address)).unwrap()
    }

    /// Sends a request with this header, or none.
    pub(crate) async fn send(&self, method: Method, path: &str, header: &str, body: &str) -> Response {
        let mut request =
            Client::new().request(method, format!("http://{}{path}", self.address)).body(body.to_owned());
        if !header.is_empty() {
            request = request.header(FENCING_TOKEN, header);
        }
        request.send().await.unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the proxy to exit, and returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        end_of(self.child.take().unwrap()).expect("it ends").code()
    }

    /// Kills the proxy, as a power cut would.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the fence's verdict.
pub(crate) fn verdict(response: &Response) -> &str {
    response.headers().get(FENCING_VERDICT).map_or("", |value| value.to_str().unwrap())
}
