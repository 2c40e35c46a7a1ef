//! A headless Chromium, driven over WebDriver.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use url::{ParseError, Url};

use crate::common::bounded::TIMEOUT;
use crate::common::environment;
use crate::common::process::Process;

/// A browser with one window.
pub(crate) struct Browser {
    runtime: Runtime,
    client: Client,
    /// Ends after the client.
    _driver: Process,
    _home: TempDir,
}

/// A command that only chromedriver has.
#[derive(Debug)]
struct Own {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Own {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let home = tempfile::tempdir().expect("a directory");
        let mut command = environment::command("chromedriver", home.path());
        let (driver, mut lines) = Process::start_reading(command.args(["--port=0", "--log-level=SEVERE"]));
        let port = loop {
            let line = lines.next_line("chromedriver").expect("chromedriver says its port");
            let port = line.split_once("started successfully on port ").map(|(_, port)| port.trim_end_matches('.'));
            if let Some(Ok(port)) = port.map(str::parse::<u16>) {
                break port;
            }
        };
        // It must be able to go on printing.
        lines.discard();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let options = json!({
            "goog:chromeOptions": { "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1280,860"] },
            "goog:loggingPrefs": { "browser": "ALL" },
            "acceptInsecureCerts": true,
        });
        let Value::Object(options) = options else { unreachable!("it is an object") };
        let address = format!("http://127.0.0.1:{port}");
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let client = wait(&runtime, "a session of the browser", builder.capabilities(options).connect(&address));
        Browser { runtime, client, _driver: driver, _home: home }
    }

    /// Waits for a reply of the browser.
    fn wait<T, E: Debug>(&self, what: &str, reply: impl Future<Output = Result<T, E>>) -> T {
        wait(&self.runtime, what, reply)
    }

    pub(crate) fn open(&self, url: &str) {
        self.wait("the page opens", self.client.goto(url));
    }

    /// Runs a script in the page and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.wait("the script runs", self.client.execute(script, Vec::new()))
    }

    /// Waits until a script returns a true value, and returns it.
    pub(crate) fn until(&self, what: &str, script: &str) -> Value {
        let began = Instant::now();
        loop {
            let value = self.run(script);
            if !matches!(value, Value::Null | Value::Bool(false)) && value != json!("") {
                return value;
            }
            if began.elapsed() > TIMEOUT {
                let shown = self.run("return document.body.innerText.slice(0, 2000)");
                panic!("waited in vain until {what}; the page shows:\n{}", shown.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the text of the first element that matches has this part.
    pub(crate) fn until_text(&self, selector: &str, part: &str) -> String {
        let script = format!(
            "const text = document.querySelector({})?.textContent ?? ''; return text.includes({}) ? text : null",
            json!(selector),
            json!(part)
        );
        let text = self.until(&format!("{selector} shows {part:?}"), &script);
        text.as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn has(&self, selector: &str) -> bool {
        self.run(&format!("return document.querySelector({}) !== null", json!(selector))) == json!(true)
    }

    /// Types into a field, as a person does.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        self.wait("a field gets a text", async {
            let field = self.client.wait().at_most(TIMEOUT).for_element(Locator::Css(selector)).await?;
            field.clear().await?;
            field.send_keys(text).await
        });
    }

    pub(crate) fn click(&self, selector: &str) {
        self.wait("an element is clicked", async {
            self.client.wait().at_most(TIMEOUT).for_element(Locator::Css(selector)).await?.click().await
        });
    }

    fn own(&self, path: &'static str, body: Value) -> Value {
        self.wait("chromedriver carries out its own command", self.client.issue_cmd(Own { path, body }))
    }

    /// Sets the size of the window and the colour scheme.
    pub(crate) fn look(&self, width: u32, scheme: &str) {
        let size = json!({ "width": width, "height": 860, "deviceScaleFactor": 1, "mobile": false });
        self.own("goog/cdp/execute", json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": size }));
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.own("goog/cdp/execute", json!({ "cmd": "Emulation.setEmulatedMedia", "params": media }));
    }

    /// Keeps a picture of the window under `target/page`.
    pub(crate) fn picture(&self, name: &str) {
        let picture = self.wait("a picture", self.client.screenshot());
        let folder = target().join("page");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(format!("{name}.png")), picture).expect("it can be kept");
    }

    /// Returns what the browser has complained about since the last call: errors of scripts, and refused content.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.own("se/log", json!({ "type": "browser" }));
        let entries = log.as_array().cloned().unwrap_or_default();
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        // The tests end services, and send what is refused. The browser reports both.
        let provoked = ["net::ERR_", "401 (Unauthorized)", "403 (Forbidden)"];
        let is_provoked = |text: &String| provoked.iter().any(|part| text.contains(part));
        entries.iter().map(text).filter(|text| !is_provoked(text)).collect()
    }

    /// Returns what axe finds in the page that keeps people out.
    pub(crate) fn barriers(&self) -> Value {
        let axe = target().join("tools/axe/node_modules/axe-core/axe.min.js");
        let axe = fs::read_to_string(axe).expect("scripts/setup installs axe-core");
        self.run(&axe);
        let script = "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] })\
            .then((found) => done(found.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))])))";
        self.wait("axe runs", self.client.execute_async(script, Vec::new()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let closed = self.runtime.block_on(async { timeout(TIMEOUT, self.client.clone().close()).await });
        drop(closed);
    }
}

/// Waits for a reply of the browser.
fn wait<T, E: Debug>(runtime: &Runtime, what: &str, reply: impl Future<Output = Result<T, E>>) -> T {
    let reply = runtime.block_on(async { timeout(TIMEOUT, reply).await });
    let reply = reply.unwrap_or_else(|_| panic!("waited {TIMEOUT:?} in vain until {what}"));
    reply.unwrap_or_else(|error| panic!("waited until {what}: {error:?}"))
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")
}
