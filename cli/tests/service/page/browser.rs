//! A headless Chromium, driven over WebDriver.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use url::{ParseError, Url};

/// The bound of every wait. Nothing takes this long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one window.
pub(crate) struct Browser {
    driver: Child,
    runtime: Runtime,
    client: Client,
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
        let mut command = Command::new("chromedriver");
        let mut driver = command
            .args(["--port=0", "--log-level=SEVERE"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts; scripts/setup installs it");
        let mut lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        let port = port.expect("chromedriver says its port");
        // It must be able to go on printing.
        std::thread::spawn(move || lines.for_each(drop));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let options = json!({
            "goog:chromeOptions": { "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1280,860"] },
            "goog:loggingPrefs": { "browser": "ALL" },
            "acceptInsecureCerts": true,
        });
        let Value::Object(options) = options else { unreachable!("it is an object") };
        let connected = runtime.block_on(async {
            ClientBuilder::new(HttpConnector::new())
                .capabilities(options)
                .connect(&format!("http://127.0.0.1:{port}"))
                .await
        });
        Browser { driver, client: connected.expect("a session of the browser"), runtime }
    }

    pub(crate) fn open(&self, url: &str) {
        self.runtime.block_on(self.client.goto(url)).expect("the page opens");
    }

    /// Runs a script in the page and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.runtime.block_on(self.client.execute(script, Vec::new())).expect("the script runs")
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
        self.runtime
            .block_on(async {
                let field = self.client.wait().at_most(TIMEOUT).for_element(Locator::Css(selector)).await?;
                field.clear().await?;
                field.send_keys(text).await
            })
            .expect("there is such a field");
    }

    pub(crate) fn click(&self, selector: &str) {
        self.runtime
            .block_on(async {
                self.client.wait().at_most(TIMEOUT).for_element(Locator::Css(selector)).await?.click().await
            })
            .expect("there is such an element");
    }

    fn own(&self, path: &'static str, body: Value) -> Value {
        self.runtime.block_on(self.client.issue_cmd(Own { path, body })).expect("chromedriver knows it")
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
        let picture = self.runtime.block_on(self.client.screenshot()).expect("a picture");
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
        self.runtime.block_on(self.client.execute_async(script, Vec::new())).expect("axe runs")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.runtime.block_on(self.client.clone().close()));
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")
}
