//! A cluster as docs/cluster.md sets it up: three processes of the real binary on one machine.
#![allow(clippy::unwrap_used)]

mod outages;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade_server::{Source, restore};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::bounded::{Bounded, until, until_some};
use crate::common::process::Process;
use crate::sandbox::Sandbox;
use crate::servers::free_port;

const NAMES: [&str; 3] = ["a", "b", "c"];

struct Cluster {
    sandbox: Sandbox,
    peers: String,
    ports: [u16; 3],
    nodes: [Option<Process>; 3],
}

impl Cluster {
    /// Starts three nodes, and waits until each is ready.
    fn start() -> Cluster {
        let peers: Vec<_> = NAMES.iter().map(|name| format!("{name}=localhost:{}", free_port())).collect();
        let ports = NAMES.map(|_| free_port());
        let mut cluster =
            Cluster { sandbox: Sandbox::new(), peers: peers.join(","), ports, nodes: [const { None }; 3] };
        (0..3).for_each(|at| cluster.spawn(at));
        (0..3).for_each(|at| cluster.until_ready(at));
        cluster
    }

    fn spawn(&mut self, at: usize) {
        let mut command = self.sandbox.command(&["serve", "--node", NAMES[at], "--cluster", &self.peers]);
        let directory = self.sandbox.path().join(NAMES[at]);
        command.arg("--data-dir").arg(directory).args(["--http", "off", "--resp"]);
        command.arg(format!("127.0.0.1:{}", self.ports[at]));
        self.nodes[at] = Some(Process::named(&format!("node {}", NAMES[at]), &mut command));
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].as_mut().unwrap().kill();
    }

    fn until_ready(&self, at: usize) {
        self.nodes[at].as_ref().unwrap().line_with("palisade: ready: resp=");
    }

    fn url(&self) -> String {
        let addresses: Vec<_> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("palisade://{}", addresses.join(","))
    }

    fn token(&self, url: &str) -> u64 {
        let printed =
            self.sandbox.stdout(&["--url", url, "run", "nightly", "--", "sh", "-c", "echo $PALISADE_TOKEN"]);
        printed.trim().parse().unwrap_or_else(|error| panic!("{printed:?}: {error}"))
    }

    fn nodes_finding(&self) -> Value {
        let report = self.sandbox.stdout(&["--url", &self.url(), "doctor", "--json"]);
        let report: Value = serde_json::from_str(&report).unwrap();
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == "nodes").unwrap().clone()
    }
}

#[test]
fn the_page_can_be_followed_and_a_node_may_die() {
    let mut cluster = Cluster::start();
    let mut last = cluster.token(&cluster.url());
    assert_eq!(cluster.nodes_finding()["status"], "ok", "{}", cluster.nodes_finding());
    for at in 0..3 {
        cluster.kill(at);
        for _ in 0..2 {
            let token = cluster.token(&cluster.url());
            assert!(token > last, "{token} follows {last}");
            last = token;
        }
        assert_eq!(cluster.nodes_finding()["status"], "warning", "{}", cluster.nodes_finding());
        cluster.spawn(at);
        cluster.until_ready(at);
        // Any node serves any client.
        let token = cluster.token(&format!("palisade://127.0.0.1:{}", cluster.ports[at]));
        assert!(token > last, "{token} follows {last}");
        last = token;
    }
}

#[test]
fn a_directory_belongs_to_one_node() {
    let mut cluster = Cluster::start();
    (0..3).for_each(|at| cluster.kill(at));
    let directory = cluster.sandbox.path().join("a").display().to_string();
    let arguments = ["serve", "--node", "b", "--cluster", &cluster.peers, "--data-dir", &directory];
    let mut command = cluster.sandbox.command(&arguments);
    let refused = command.args(["--http", "off", "--resp", "127.0.0.1:0"]).finish();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("and this one is called 'b'"), "{errors}");
    assert_eq!(refused.status.code(), Some(64));
}

/// Nodes that are started one by one.
struct Nodes {
    sandbox: Sandbox,
    nodes: BTreeMap<&'static str, Node>,
}

struct Node {
    resp: u16,
    peers: u16,
    process: Process,
}

impl Nodes {
    fn new() -> Nodes {
        Nodes { sandbox: Sandbox::new(), nodes: BTreeMap::new() }
    }

    /// Starts node a, a cluster of its own to which others can be added.
    fn one() -> Nodes {
        let mut nodes = Nodes::new();
        nodes.start("a", &["--node", "a", "--cluster", "a=PEERS"]);
        nodes.until_said("a", "ready");
        nodes
    }

    /// Starts three nodes, a, b and c.
    fn three() -> Nodes {
        let mut nodes = Nodes::one();
        nodes.join("b");
        nodes.join("c");
        nodes
    }

    /// Starts a node in the directory of its name, with these options after those for its ports. `PEERS` stands for its port.
    fn start(&mut self, name: &'static str, options: &[&str]) {
        let (resp, peers) = match self.nodes.remove(name) {
            Some(before) => (before.resp, before.peers),
            None => (free_port(), free_port()),
        };
        let directory = self.sandbox.path().join(name);
        let mut command = self.sandbox.command(&["serve", "--http", "off"]);
        command.arg("--data-dir").arg(directory).args(["--resp", &format!("127.0.0.1:{resp}")]);
        command.args(options.iter().map(|option| option.replace("PEERS", &format!("localhost:{peers}"))));
        let process = Process::named(&format!("node {name}"), &mut command);
        self.nodes.insert(name, Node { resp, peers, process });
    }

    fn kill(&mut self, name: &str) {
        self.nodes.get_mut(name).unwrap().process.kill();
    }

    /// Kills a node, and removes its directory.
    fn lose_directory(&mut self, name: &str) {
        self.kill(name);
        std::fs::remove_dir_all(self.sandbox.path().join(name)).unwrap();
    }

    /// Waits until a node prints a line that contains this.
    fn until_said(&self, name: &str, part: &str) -> String {
        self.nodes[name].process.line_with(part)
    }

    /// Waits for a node to exit, and returns its exit code.
    fn code(&mut self, name: &str) -> Option<i32> {
        self.nodes.get_mut(name).unwrap().process.wait().code()
    }

    fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.values().map(|node| format!("127.0.0.1:{}", node.resp)).collect();
        format!("palisade://{}", addresses.join(","))
    }

    /// Returns the address of a node for clients.
    fn resp(&self, name: &str) -> String {
        format!("127.0.0.1:{}", self.nodes[name].resp)
    }

    fn node(&self, name: &str) -> String {
        format!("{name}=localhost:{}", self.nodes[name].peers)
    }

    /// Runs `palisade cluster` and returns its exit code, and what it prints on stderr.
    fn cluster(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let url = self.url();
        let output = self.sandbox.command(&["cluster", "--url", &url]).args(arguments).finish();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    fn done(&self, arguments: &[&str]) {
        let (code, errors) = self.cluster(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {errors}");
    }

    fn status(&self) -> Value {
        let url = self.url();
        serde_json::from_str(&self.sandbox.stdout(&["cluster", "--url", &url, "status", "--json"])).unwrap()
    }

    fn status_or_none(&self) -> Option<Value> {
        let output = self.sandbox.command(&["cluster", "--url", &self.url(), "status", "--json"]).finish();
        serde_json::from_slice(&output.stdout).ok()
    }

    fn leader(&self) -> &'static str {
        until_some("a node leads", || {
            let status = self.status_or_none()?;
            let leader = status["leader"].as_str()?;
            Some(*self.nodes.keys().find(|name| **name == leader).unwrap())
        })
    }

    /// Waits until no node leads.
    fn until_leaderless(&self) {
        until("no node leads", || self.status_or_none().is_none_or(|status| status["leader"].is_null()));
    }

    fn roles(&self) -> BTreeMap<String, String> {
        let status = self.status();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let members = status["members"].as_array().unwrap();
        members.iter().map(|member| (text(&member["name"]), text(&member["role"]))).collect()
    }

    fn token(&self) -> u64 {
        let url = self.url();
        let arguments = ["--url", &url, "run", "counted", "--", "sh", "-c", "echo $PALISADE_TOKEN"];
        self.sandbox.stdout(&arguments).trim().parse().unwrap()
    }

    /// Starts a node that waits, and adds it.
    fn join(&mut self, name: &'static str) {
        self.start(name, &["--node", name, "--join", "--peers", "PEERS"]);
        let node = self.node(name);
        self.done(&["add", &node]);
        self.until_said(name, "ready");
    }
}

/// Grows a service of one node, moves it to other nodes one by one, and ends without its first node. A client holds a lock all the time.
#[test]
fn a_service_is_grown_and_moved_while_a_lock_is_held() {
    let mut nodes = Nodes::new();
    nodes.start("a", &[]);
    nodes.until_said("a", "ready");
    let (code, errors) = nodes.cluster(&["add", "b=localhost:1"]);
    assert_eq!(code, Some(64), "{errors}");
    assert!(errors.contains("start it with --node NAME --cluster"), "{errors}");
    let before = nodes.token();
    nodes.start("a", &["--node", "a", "--cluster", "a=PEERS"]);
    nodes.until_said("a", "ready");
    for name in ["b", "c"] {
        nodes.join(name);
    }
    assert_eq!(nodes.roles().keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    let held = nodes.sandbox.stdout(&["--url", &nodes.url(), "acquire", "held", "--ttl", "1h", "--json"]);
    let held = serde_json::from_str::<Value>(&held).unwrap()["token"].as_u64().unwrap();
    assert!(held > before, "{held} follows {before}");

    nodes.join("d");
    nodes.done(&["transfer", "a"]);
    // The leader lets another one lead, votes no more, is removed, and ends.
    nodes.done(&["remove", "a"]);
    nodes.until_said("a", "was removed from its cluster");
    assert_eq!(nodes.code("a"), Some(64));
    nodes.nodes.remove("a");
    assert_eq!(nodes.roles().keys().collect::<Vec<_>>(), ["b", "c", "d"]);
    let shown = nodes.sandbox.stdout(&["--url", &nodes.url(), "show", "held", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["holders"][0]["token"], held, "{shown}");
    assert!(nodes.token() > held);

    // Without any option for the cluster.
    nodes.start("b", &[]);
    nodes.until_said("b", "ready");
    assert!(nodes.token() > held);
}

#[test]
fn a_node_that_has_lost_its_directory_is_replaced() {
    let mut nodes = Nodes::three();
    let before = nodes.token();
    nodes.lose_directory("b");
    // It is empty, and the others still know its old number.
    nodes.start("b", &["--node", "b", "--join", "--peers", "PEERS"]);
    let node = nodes.node("b");
    let (code, errors) = nodes.cluster(&["add", &node]);
    assert_eq!(code, Some(64), "{errors}");
    assert!(errors.contains("palisade cluster remove b"), "{errors}");
    until("the loss is seen", || {
        let status = nodes.status();
        let members = status["members"].as_array().unwrap();
        let problem = members.iter().find(|member| member["name"] == "b").unwrap()["problem"].as_str();
        problem.is_some_and(|problem| problem.contains("its directory was lost"))
    });
    nodes.done(&["remove", "b"]);
    nodes.done(&["add", &node]);
    nodes.until_said("b", "ready");
    assert_eq!(nodes.roles().len(), 3);
    let token = nodes.token();
    assert!(token > before, "{token} follows {before}");
}

/// The founder whose name comes first would found another cluster. The others say that they have one.
#[test]
fn the_first_founder_that_has_lost_its_directory_is_replaced() {
    let mut cluster = Cluster::start();
    let before = cluster.token(&cluster.url());
    cluster.kill(0);
    std::fs::remove_dir_all(cluster.sandbox.path().join("a")).unwrap();
    cluster.spawn(0);
    let url = cluster.url();
    let ask = |arguments: &[&str]| {
        let output = cluster.sandbox.command(&["cluster", "--url", &url]).args(arguments).finish();
        cluster.sandbox.output(&output)
    };
    until("the loss is seen", || ask(&["status"]).out.contains("its directory was lost"));
    assert_eq!(ask(&["remove", "a"]).code, Some(0));
    let added = ask(&["add", cluster.peers.split(',').next().unwrap()]);
    assert_eq!(added.code, Some(0), "{}", added.err);
    cluster.until_ready(0);
    assert!(cluster.token(&url) > before);
}

/// Its options name no other node, so that it could take itself for the first node of a new cluster.
#[test]
fn the_first_node_of_a_grown_service_that_has_lost_its_directory_is_replaced() {
    let mut nodes = Nodes::three();
    let before = nodes.token();
    nodes.lose_directory("a");
    nodes.start("a", &["--node", "a", "--cluster", "a=PEERS"]);
    let said = nodes.until_said("a", "waits to be added");
    assert!(said.contains("palisade cluster remove a"), "{said}");
    assert!(nodes.token() > before);
    // It has promised nothing, and may be restarted.
    nodes.kill("a");
    nodes.start("a", &["--node", "a", "--cluster", "a=PEERS"]);
    nodes.until_said("a", "waits to be added");
    let node = nodes.node("a");
    nodes.done(&["remove", "a"]);
    nodes.done(&["add", &node]);
    nodes.until_said("a", "ready");
    assert_eq!(nodes.roles()["a"], "follower");
    assert!(nodes.token() > before + 1);
}

/// One of the nodes has lost its directory and founded a cluster. It must not be taken for the cluster of the others.
#[test]
fn commands_for_operators_pass_over_a_node_that_is_a_cluster_of_its_own() {
    let mut nodes = Nodes::three();
    nodes.start("alone", &["--node", "alone", "--cluster", "alone=PEERS"]);
    nodes.until_said("alone", "ready");
    let url = format!("palisade://{},{},{}", nodes.resp("alone"), nodes.resp("b"), nodes.resp("c"));
    let file = nodes.sandbox.path().join("backup").display().to_string();
    let status = nodes.sandbox.stdout(&["cluster", "--url", &url, "status", "--json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["members"].as_array().unwrap().len(), 3, "{status}");
    nodes.sandbox.stdout(&["--url", &url, "acquire", "held", "--ttl", "1h"]);
    assert_eq!(nodes.sandbox.run(&["cluster", "--url", &url, "backup", &file]).code, Some(0));
    let restored = ["cluster", "restore", &file, "--data-dir", "new", "--node", "x=localhost:1"];
    let said = nodes.sandbox.run(&restored).err;
    assert!(said.contains("with 1 lock"), "{said}");
    // Of two clusters that have fewer nodes than the URL, the larger one can be repaired.
    let repaired = nodes.sandbox.run(&["cluster", "--url", &url, "remove", "c"]);
    assert_eq!(repaired.code, Some(0), "{}", repaired.err);
    let status = nodes.sandbox.stdout(&["cluster", "--url", &url, "status", "--json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["members"].as_array().unwrap().len(), 2, "{status}");
}

/// A node that begins would take such a log for its own, and vote with it.
#[test]
fn a_log_without_its_identity_is_no_empty_directory() {
    let mut nodes = Nodes::one();
    nodes.token();
    nodes.nodes.remove("a");
    let directory = nodes.sandbox.path().join("a");
    std::fs::remove_file(directory.join("identity")).unwrap();
    let begin = |options: &[&str]| {
        let mut command = nodes.sandbox.command(&["serve", "--http", "off", "--resp", "127.0.0.1:0", "--data-dir"]);
        let output = command.arg(&directory).args(options).finish();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(74) && errors.contains("begins with an empty directory"), "{errors}");
    };
    begin(&["--node", "b", "--join", "--peers", "localhost:0"]);
    begin(&["--node", "a", "--cluster", "a=localhost:7"]);
    begin(&["--node", "a", "--cluster", "a=localhost:7,b=localhost:8"]);
    // The watermark alone says which tokens were given out.
    let logs = std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap().path());
    logs.filter(|path| path.display().to_string().contains("log-"))
        .for_each(|log| std::fs::remove_file(log).unwrap());
    begin(&["--node", "a", "--cluster", "a=localhost:7,b=localhost:8"]);
}

#[test]
fn a_backup_and_a_survivor_give_a_new_cluster_whose_tokens_are_higher() {
    let mut nodes = Nodes::three();
    let url = nodes.url();
    nodes.sandbox.stdout(&["--url", &url, "acquire", "held", "--ttl", "1h"]);
    let path = |name: &str| nodes.sandbox.path().join(name).display().to_string();
    let (backup, restored, recovered, survivor) = (path("backup"), path("restored"), path("recovered"), path("b"));
    nodes.done(&["backup", &backup]);
    let last = nodes.token();
    // It is in use by a node that runs.
    let options = ["recover", "--dangerous-lose-unreplicated", &survivor, "--data-dir", &recovered];
    assert_eq!(nodes.cluster(&options).0, Some(69));
    nodes.nodes.values_mut().for_each(|node| node.process.kill());
    let without = ["recover", &survivor, "--data-dir", &recovered];
    assert_eq!(nodes.cluster(&without).0, Some(64));
    nodes.done(&options);
    nodes.done(&["restore", &backup, "--data-dir", &restored]);
    // A cluster that is restored from the same backup later has higher tokens.
    let again = |name: &str, unix_seconds: u64| {
        let (source, directory) = (Source::Backup(backup.clone().into()), nodes.sandbox.path().join(name));
        restore(&source, &directory, None, None, unix_seconds).unwrap().tokens_above.get()
    };
    assert!(again("later", 2_000_000_001) - again("first", 2_000_000_000) > 50_000);
    // `restore` overwrites no directory, and refuses a backup that was cut.
    assert_eq!(nodes.cluster(&["restore", &backup, "--data-dir", &restored]).0, Some(64));
    let bytes = std::fs::read(&backup).unwrap();
    std::fs::write(&backup, &bytes[..bytes.len() - 1]).unwrap();
    let other = path("other");
    assert_eq!(nodes.cluster(&["restore", &backup, "--data-dir", &other]).0, Some(74));
    for name in ["restored", "recovered"] {
        nodes.nodes.clear();
        nodes.start(name, &[]);
        nodes.until_said(name, "ready");
        let url = nodes.url();
        let shown = nodes.sandbox.stdout(&["--url", &url, "ls", "held", "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["locks"][0]["name"], "held", "{name}: {shown}");
        let token = nodes.token();
        assert!(token > last + (1 << 41), "{name}: {token} follows {last}");
    }
}

/// The certificates of `palisade cluster keys` are enough, and those of another authority are not.
#[test]
fn nodes_trust_the_certificates_of_their_authority_only() {
    let mut nodes = Nodes::new();
    let sandbox = nodes.sandbox.path().to_owned();
    let path = |name: &str| sandbox.join(name).display().to_string();
    let (ours, theirs) = (path("ours"), path("theirs"));
    for keys in
        [&["cluster", "keys", &ours, "a=localhost", "b=localhost"][..], &["cluster", "keys", &theirs, "c=localhost"]]
    {
        assert_eq!(nodes.sandbox.run(keys).code, Some(0), "{keys:?}");
    }
    let tls = |directory: &str, name: &str| {
        let file = |file: &str| format!("{directory}/{file}");
        [
            "--peer-certificate".to_owned(),
            file(&format!("{name}.pem")),
            "--peer-key".to_owned(),
            file(&format!("{name}.key")),
            "--peer-ca".to_owned(),
            file("ca.pem"),
        ]
    };
    let with = |options: &[&str], tls: [String; 6]| {
        options.iter().map(|option| option.to_string()).chain(tls).collect::<Vec<_>>()
    };
    let start = |nodes: &mut Nodes, name, options: Vec<String>| {
        nodes.start(name, &options.iter().map(String::as_str).collect::<Vec<_>>());
    };
    start(&mut nodes, "a", with(&["--node", "a", "--cluster", "a=PEERS"], tls(&ours, "a")));
    nodes.until_said("a", "ready");
    start(&mut nodes, "c", with(&["--node", "c", "--join", "--peers", "PEERS"], tls(&theirs, "c")));
    let stranger = nodes.node("c");
    let (code, errors) = nodes.cluster(&["add", &stranger]);
    assert!(code == Some(64) && errors.contains("certificate"), "{errors}");
    nodes.start("c", &["--node", "c", "--join", "--peers", "PEERS"]);
    nodes.until_said("c", "waits to be added");
    let (code, errors) = nodes.cluster(&["add", &stranger]);
    assert!(code == Some(64) && errors.contains("--peer-certificate"), "{errors}");
    start(&mut nodes, "b", with(&["--node", "b", "--join", "--peers", "PEERS"], tls(&ours, "b")));
    let node = nodes.node("b");
    nodes.done(&["add", &node]);
    nodes.until_said("b", "ready");
    assert_eq!(nodes.roles().keys().collect::<Vec<_>>(), ["a", "b"]);
    let key = std::fs::metadata(format!("{ours}/a.key")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key) & 0o777, 0o600);

    // Another authority signs new certificates, which the nodes read while they run. What one of two says needs the other.
    let new = path("new");
    assert_eq!(nodes.sandbox.run(&["cluster", "keys", &new, "a=localhost", "b=localhost"]).code, Some(0));
    for file in ["ca.pem", "a.pem", "a.key", "b.pem", "b.key"] {
        std::fs::copy(format!("{new}/{file}"), format!("{ours}/{file}")).unwrap();
    }
    for name in ["a", "b"] {
        nodes.nodes[name].process.signal(Signal::HUP);
        nodes.until_said(name, "read again");
    }
    nodes.nodes.remove("c");
    start(&mut nodes, "b", with(&[], tls(&ours, "b")));
    nodes.until_said("b", "ready");
    assert!(nodes.token() > 0);
}

#[test]
fn requests_that_cannot_be_carried_out_say_why() {
    let nodes = Nodes::one();
    let own = nodes.node("a");
    for (arguments, code, part) in [
        (vec!["remove", "x"], 64, "there is no node 'x'"),
        (vec!["remove", "a"], 64, "the only node that votes"),
        (vec!["transfer"], 64, "no other node can lead"),
        (vec!["transfer", "x"], 64, "there is no node 'x'"),
        (vec!["add", &own], 64, "there is a node 'a' already"),
        (vec!["add", "b"], 64, "expected NAME=HOST:PORT"),
        (vec!["add", "b c=host:1"], 64, "cannot be a node's name"),
        (vec!["add", "b=host:0"], 64, "is not HOST:PORT"),
        (vec!["add", "b=192.0.2.1:7422"], 64, "is on another host"),
        (vec!["add", "b=localhost:1", "--timeout", "5s"], 69, "palisade serve --node b --join --peers localhost:1"),
        (vec!["restore", "/nowhere/file", "--data-dir", "/nowhere/new"], 74, "cannot read /nowhere/file"),
    ] {
        let (found, errors) = nodes.cluster(&arguments);
        assert!(found == Some(code) && errors.contains(part), "{arguments:?}: {found:?} {errors}");
    }
    let mut others = Nodes::new();
    others.start("z", &["--node", "z", "--cluster", "z=PEERS"]);
    others.until_said("z", "ready");
    let (code, errors) = nodes.cluster(&["add", &others.node("z")]);
    assert!(code == Some(64) && errors.contains("belongs to a cluster already"), "{code:?} {errors}");
    let other = nodes.sandbox.run(&["cluster", "--url", "embedded:", "status"]);
    assert!(other.code == Some(64) && other.err.contains("is not a cluster of the service"), "{other:?}");
}

/// A damaged node does not start, and the others go on. Its directory is emptied, and it comes back as another member.
#[test]
fn a_node_whose_log_is_damaged_is_replaced() {
    let mut nodes = Nodes::three();
    let before = nodes.token();
    nodes.kill("b");
    let directory = nodes.sandbox.path().join("b");
    let log = std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap().path());
    let log = log.into_iter().find(|file| file.file_name().unwrap().to_string_lossy().starts_with("log-")).unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[80] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    nodes.start("b", &[]);
    let said = nodes.until_said("b", "does not start");
    assert!(said.contains("palisade cluster remove b") && said.contains("--join"), "{said}");
    assert_eq!(nodes.code("b"), Some(74));
    assert!(nodes.token() > before);
    std::fs::remove_dir_all(&directory).unwrap();
    nodes.done(&["remove", "b"]);
    nodes.join("b");
    assert_eq!(nodes.roles().values().filter(|role| *role == "follower").count(), 2);
}

/// Its log does not name the node that leads.
#[test]
fn a_node_that_was_down_follows_one_that_was_added_meanwhile() {
    let mut nodes = Nodes::three();
    nodes.kill("c");
    nodes.join("d");
    nodes.done(&["transfer", "d"]);
    let before = nodes.token();
    nodes.start("c", &[]);
    nodes.until_said("c", "ready");
    // Three of four decide. Without a, each of the others must answer d.
    nodes.kill("a");
    assert!(nodes.token() > before);
    assert_eq!(nodes.leader(), "d");
    assert_eq!(nodes.roles()["c"], "follower");
}

/// Clients take locks while nodes are added, removed, killed and restarted, and while leadership moves.
#[test]
fn changes_of_the_nodes_under_load_cost_no_grant() {
    let mut nodes = Nodes::three();
    // The clients find other nodes when those that they know are gone.
    let url = nodes.url();
    let (tokens, is_over) = (Mutex::new((0, 0_u32)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let work = || {
            let client = palisade::blocking::connect(&url).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let Ok(guard) = client.lock("load").acquire() else { continue };
                let Ok(token) = guard.token() else { continue };
                let mut last = tokens.lock().unwrap();
                assert!(token.get() > last.0, "{token} follows {}", last.0);
                *last = (token.get(), last.1 + 1);
                drop(last);
                let _ = guard.release();
            }
        };
        let workers = [scope.spawn(work), scope.spawn(work), scope.spawn(work)];
        let more = || {
            let before = tokens.lock().unwrap().1;
            until("locks are granted", || {
                assert!(workers.iter().all(|worker| !worker.is_finished()), "a client has ended");
                tokens.lock().unwrap().1 >= before + 20
            });
        };
        let changing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            more();
            nodes.join("d");
            more();
            nodes.done(&["transfer"]);
            more();
            let leader = nodes.leader();
            nodes.start(leader, &[]);
            nodes.until_said(leader, "ready");
            more();
            let other = ["a", "b"].into_iter().find(|name| *name != nodes.leader()).unwrap();
            nodes.done(&["remove", other]);
            more();
            nodes.done(&["remove", nodes.leader()]);
            more();
        }));
        is_over.store(true, Ordering::Relaxed);
        changing.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_eq!(nodes.roles().len(), 2);
}

/// A node that waits says so, also to clients.
#[test]
fn a_node_that_waits_says_so() {
    let mut nodes = Nodes::new();
    nodes.start("a", &["--node", "a", "--join", "--peers", "PEERS"]);
    nodes.until_said("a", "palisade cluster add a=");
    let (code, errors) = nodes.cluster(&["status"]);
    assert!(code == Some(69) && errors.contains("it waits to be added: palisade cluster add a="), "{errors}");
    // Founders that were started with other nodes found nothing.
    nodes.start("b", &["--node", "b", "--cluster", "b=PEERS,c=localhost:1"]);
    nodes.until_said("b", "founds a cluster, and waits for node 'c' at localhost:1");
}

#[test]
fn founders_that_name_other_nodes_do_not_found_a_cluster() {
    let mut nodes = Nodes::new();
    nodes.start("b", &["--node", "b", "--cluster", "a=localhost:1,b=PEERS,c=localhost:2"]);
    nodes.until_said("b", "waits for node 'a'");
    let b = format!("a=PEERS,{}", nodes.node("b"));
    nodes.start("a", &["--node", "a", "--cluster", &b]);
    let said = nodes.until_said("a", "founds a cluster, and waits for node 'b'");
    assert!(said.contains("start all of them with the same nodes"), "{said}");
    nodes.until_said("b", "an invitation is refused");
}

/// Otherwise clients of the other nodes could do everything while it leads.
#[test]
fn a_node_without_users_is_refused_by_those_with_users() {
    let mut nodes = Nodes::new();
    let made = nodes.sandbox.run(&["serve", "--new-user", "ops"]);
    let config = nodes.sandbox.path().join("users.toml");
    let lines: Vec<_> = made.out.lines().skip_while(|line| !line.starts_with("[[")).collect();
    std::fs::write(&config, lines.join("\n")).unwrap();
    let config = config.display().to_string();
    let secret = made.out.lines().nth(1).unwrap().trim_start_matches("# ");
    let keys = nodes.sandbox.path().join("keys").display().to_string();
    nodes.sandbox.run(&["cluster", "keys", &keys, "a=localhost", "b=localhost", "c=localhost"]);
    let all = NAMES.map(|name| format!("{name}=localhost:{}", free_port())).join(",");
    for name in NAMES {
        let file = |ending: &str| format!("{keys}/{name}.{ending}");
        let (certificate, key, ca) = (file("pem"), file("key"), format!("{keys}/ca.pem"));
        let mut options = vec!["--node", name, "--cluster", &all];
        options.extend(["--peer-certificate", &certificate, "--peer-key", &key, "--peer-ca", &ca]);
        options.extend(["--config", &config].iter().filter(|_| name != "b"));
        nodes.start(name, &options);
    }
    nodes.until_said("a", "node 'b' has none");
    // It answers, and the operator sees that it is no help.
    let ports = ["a", "c"].map(|name| format!("127.0.0.1:{}", nodes.nodes[name].resp)).join(",");
    let url = format!("palisade://ops:{secret}@{ports}");
    until("the status says so", || {
        nodes.sandbox.run(&["cluster", "--url", &url, "status"]).out.contains("it has no users, so node")
    });
    // Without certificates, any process could speak as a node.
    let founder = ["serve", "--node", "x", "--cluster", "x=localhost:7", "--config", &config, "--data-dir", "x"];
    let refused = nodes.sandbox.stderr(64, &founder);
    assert!(refused.contains("any process on this machine could speak as a node"), "{refused}");
}

/// An older copy of its directory lacks what it has acknowledged. It says so and ends, and the others go on.
#[test]
fn a_node_with_an_older_copy_of_its_directory_stops() {
    let mut nodes = Nodes::three();
    let name = if nodes.leader() == "b" { "c" } else { "b" };
    let (directory, copy) = (nodes.sandbox.path().join(name), nodes.sandbox.path().join("copy"));
    nodes.kill(name);
    let copied = nodes.sandbox.program("cp").arg("-a").arg(&directory).arg(&copy).finish();
    assert!(copied.status.success(), "{copied:?}");
    nodes.start(name, &[]);
    nodes.until_said(name, "ready");
    nodes.done(&["transfer", "a"]);
    let last = (0..20).map(|_| nodes.token()).max().unwrap();
    until("no node lags", || {
        let status = nodes.status();
        status["members"].as_array().unwrap().iter().all(|member| member["lag"] == 0)
    });
    nodes.kill(name);
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::rename(&copy, &directory).unwrap();
    nodes.start(name, &[]);
    let said = nodes.until_said(name, "that this node has acknowledged");
    assert!(said.contains(&format!("palisade cluster remove {name}")), "{said}");
    assert_eq!(nodes.code(name), Some(74));
    assert!(nodes.token() > last);
}

/// A service that is no node of the cluster must not grant its locks: a node that lost its directory, started without its options.
#[test]
fn clients_of_a_cluster_refuse_a_service_of_its_own() {
    let mut nodes = Nodes::three();
    let url = nodes.url();
    nodes.sandbox.stdout(&["--url", &url, "acquire", "held", "--ttl", "1h"]);
    nodes.lose_directory("a");
    nodes.start("a", &[]);
    nodes.until_said("a", "ready");
    let refused = nodes.sandbox.run(&["--url", &url, "run", "--no-wait", "held", "--", "true"]);
    assert_eq!(refused.code, Some(75), "{}", refused.err);
    // As a cluster of its own it is refused while the others answer. At its old address it would wait to be replaced.
    nodes.lose_directory("a");
    nodes.start("a", &["--node", "a", "--cluster", &format!("a=localhost:{}", free_port())]);
    nodes.until_said("a", "ready");
    let refused = nodes.sandbox.run(&["--url", &url, "run", "--no-wait", "held", "--", "true"]);
    assert_eq!(refused.code, Some(75), "{}", refused.err);
}

#[test]
fn clients_of_a_cluster_refuse_a_service_of_its_own_also_if_it_is_all_that_runs() {
    let mut nodes = Nodes::three();
    let url = nodes.url();
    nodes.nodes.values_mut().for_each(|node| node.process.kill());
    std::fs::remove_dir_all(nodes.sandbox.path().join("a")).unwrap();
    nodes.start("a", &[]);
    nodes.until_said("a", "ready");
    let refused = nodes.sandbox.run(&["--url", &url, "run", "--no-wait", "held", "--", "true"]);
    assert_eq!(refused.code, Some(69), "{}", refused.err);
}

/// The leader notices only after a while that a node has died, and asks before it takes a vote away.
#[test]
#[ignore = "long: waits for nodes that are gone"]
fn a_node_that_is_needed_is_not_removed() {
    let mut nodes = Nodes::three();
    nodes.done(&["transfer", "a"]);
    let before = nodes.token();
    nodes.kill("b");
    let (code, errors) = nodes.cluster(&["remove", "c"]);
    assert!(code == Some(64) && errors.contains("too few of the other nodes run"), "{code:?} {errors}");
    nodes.done(&["remove", "b"]);
    assert!(nodes.token() > before);
    // A backup is a regular file.
    let link = nodes.sandbox.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let (code, errors) = nodes.cluster(&["backup", &link.display().to_string()]);
    assert!(code == Some(64) && errors.contains("no regular file"), "{code:?} {errors}");
    // Without a majority there is no backup.
    nodes.kill("c");
    nodes.until_leaderless();
    let file = nodes.sandbox.path().join("file");
    let (code, errors) = nodes.cluster(&["backup", &file.display().to_string()]);
    assert!(code == Some(69) && !file.exists(), "{code:?} {errors}");
}
