//! The proxy that runs.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use palisade_fence::http::{Api, FENCING_TOKEN, FENCING_VERDICT};
use reqwest::{Client, Method, Response};
use rustix::process::{Pid, Signal, kill_process};

use crate::sandbox::{Sandbox, end_of, within};

pub(crate) struct Proxy {
    child: Option<Child>,
    pub(crate) at: SocketAddr,
    /// What it said before it was ready.
    pub(crate) said: String,
}

impl Proxy {
    /// Starts it on any port, with these additional options.
    pub(crate) fn start(sandbox: &Sandbox, upstream: &str, options: &[&str]) -> Proxy {
        Proxy::spawn(Proxy::command(sandbox, upstream, options))
    }

    /// The command that starts it.
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

    /// Starts it by a command, and waits until it is ready.
    pub(crate) fn spawn(mut command: Command) -> Proxy {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (said, at) = within("that it is ready", move || {
            let mut said = String::new();
            for line in &mut lines {
                let line = line.unwrap();
                let at = line.split_once("http=").and_then(|(_, rest)| rest.split(' ').next());
                if let Some(at) = at {
                    return (said, Some(at.parse().unwrap()));
                }
                said = said + &line + "\n";
            }
            (said, None)
        });
        let at = at.unwrap_or_else(|| panic!("it is not ready: {said}"));
        Proxy { child: Some(child), at, said }
    }

    pub(crate) fn api(&self) -> Api {
        Api::new(Client::new(), &format!("http://{}", self.at)).unwrap()
    }

    /// Sends a request with this header, or none.
    pub(crate) async fn send(&self, method: Method, path: &str, header: &str, body: &str) -> Response {
        let mut request = Client::new().request(method, format!("http://{}{path}", self.at)).body(body.to_owned());
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

    /// Waits for its end; the exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        end_of(self.child.take().unwrap()).expect("it ends").code()
    }

    /// Kills it, as a power cut would.
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

/// What the fence said.
pub(crate) fn verdict(response: &Response) -> &str {
    response.headers().get(FENCING_VERDICT).map_or("", |value| value.to_str().unwrap())
}
