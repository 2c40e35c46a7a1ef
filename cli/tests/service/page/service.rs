//! A service with its page.

use std::time::Duration;

use palisade::Options;
use palisade::blocking::{self, Palisade};

use crate::common::free_address;
use crate::common::process::Process;
use crate::sandbox::Sandbox;

/// A running service.
pub(crate) struct Service {
    pub(crate) sandbox: Sandbox,
    process: Process,
    options: Vec<String>,
    pub(crate) resp: String,
    pub(crate) http: String,
}

impl Service {
    pub(crate) fn start(options: &[&str]) -> Service {
        let sandbox = Sandbox::new();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let [resp, http] = [(); 2].map(|()| free_address().to_string());
        let process = spawn(&sandbox, &resp, &http, &options);
        Service { sandbox, process, options, resp, http }
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
        self.process.kill();
    }

    /// Starts it again at the same addresses.
    pub(crate) fn restart(&mut self) {
        self.process = spawn(&self.sandbox, &self.resp, &self.http, &self.options);
    }

    /// Waits for the next line on stderr with this text.
    pub(crate) fn line_with(&self, part: &str) -> String {
        self.process.line_with(part)
    }
}

/// Starts a service, and waits until it is ready.
fn spawn(sandbox: &Sandbox, resp: &str, http: &str, options: &[String]) -> Process {
    let data = sandbox.path().join("data").display().to_string();
    let mut command = sandbox.command(&["serve", "--data-dir", &data, "--resp", resp, "--http", http]);
    let process = Process::start(command.args(options));
    process.line_with("palisade: ready: ");
    process
}
