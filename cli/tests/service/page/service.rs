//! A service with its page.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use palisade::Options;
use palisade::blocking::{self, Palisade};

use crate::sandbox::Sandbox;

/// A running service.
pub(crate) struct Service {
    pub(crate) sandbox: Sandbox,
    child: Child,
    lines: Receiver<String>,
    options: Vec<String>,
    pub(crate) resp: String,
    pub(crate) http: String,
}

impl Service {
    pub(crate) fn start(options: &[&str]) -> Service {
        let sandbox = Sandbox::new();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let (child, lines, resp, http) = spawn(&sandbox, "127.0.0.1:0", "127.0.0.1:0", &options);
        Service { sandbox, child, lines, options, resp, http }
    }

    pub(crate) fn page(&self, view: &str) -> String {
        format!("http://{}/#/{view}", self.http)
    }

    /// Connects a client without a login.
    pub(crate) fn client(&self, label: &str, ttl: Duration) -> Palisade {
        let options = Options::new().label(label).ttl(ttl);
        blocking::connect_with(options, &format!("palisade://{}", self.resp)).expect("a client")
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Starts it again at the same addresses.
    pub(crate) fn restart(&mut self) {
        let (resp, http) = (self.resp.clone(), self.http.clone());
        (self.child, self.lines, _, _) = spawn(&self.sandbox, &resp, &http, &self.options);
    }

    /// Waits for the next line on stderr with this text.
    pub(crate) fn line_with(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            let line = line.unwrap_or_else(|_| panic!("no line with {part:?} came"));
            if line.contains(part) {
                return line;
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(sandbox: &Sandbox, resp: &str, http: &str, options: &[String]) -> (Child, Receiver<String>, String, String) {
    let data = sandbox.path().join("data").display().to_string();
    let mut command = sandbox.command(&["serve", "--data-dir", &data, "--resp", resp, "--http", http]);
    let mut child = command.args(options).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let printed = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || printed.map_while(Result::ok).for_each(|line| drop(sender.send(line))));
    let ready = loop {
        let line = lines.recv_timeout(Duration::from_secs(60)).expect("it becomes ready");
        if line.contains("palisade: ready: ") {
            break line;
        }
    };
    let address = |name: &str| {
        let (_, rest) = ready.split_once(name).expect("an address");
        rest.split(' ').next().expect("a word").to_owned()
    };
    (child, lines, address(" resp="), address(" http="))
}
