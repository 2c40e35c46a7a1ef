//! The metrics in the text format of Prometheus. No label holds text of a client; the names of nodes come from the
//! configuration.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use super::traffic::Counts;
use crate::net::handle::ServiceReport;
use crate::node::{Histogram, NodeReport};
use crate::replica::Follower;

/// The text, while it is being written.
struct Text(String);

impl Text {
    /// Writes one metric: its name, its type, its help text, and its samples with their labels.
    fn metric<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        self.head(name, kind, help);
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help, [(String::new(), value)]);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut below = 0;
        let bounds = histogram.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            below += count;
            self.sample(&format!("{name}_bucket"), &format!("{labels}{comma}le=\"{bound}\""), below);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, below);
    }
}

pub(super) fn render(report: &ServiceReport, traffic: &Counts, connections: u64) -> String {
    let mut text = Text(String::new());
    locks(&mut text, &report.node);
    commits(&mut text, &report.node);
    cluster(&mut text, &report.node, report.connected_members);
    clients(&mut text, report, traffic, connections);
    text.0
}

fn locks(text: &mut Text, node: &NodeReport) {
    let metrics = &node.metrics;
    text.one("palisade_sessions", "gauge", "Sessions open now.", node.sessions);
    text.one("palisade_locks", "gauge", "Locks held or wanted now.", node.locks);
    text.one("palisade_last_token", "gauge", "The last token given.", node.last_token);
    let help = "Places taken in all queues together, now; a request for several locks takes one in each.";
    text.one("palisade_waiting", "gauge", help, metrics.waiting);
    text.one("palisade_grants_total", "counter", "Grants made.", metrics.grants);
    let help = "Grants ended, by how: released, session_closed, session_expired, forced.";
    text.metric("palisade_grants_ended_total", "counter", help, by("how", metrics.ended.iter()));
    let help = "Locks that an operator has taken away.";
    text.one("palisade_force_releases_total", "counter", help, metrics.forced);
    let help = "Sessions that were not kept alive.";
    text.one("palisade_sessions_expired_total", "counter", help, metrics.sessions_expired);
    text.one("palisade_keepalives_total", "counter", "Sessions kept alive.", metrics.keepalives);
    text.head("palisade_wait_seconds", "histogram", "How long requests waited in a queue, by how that ended.");
    text.histogram("palisade_wait_seconds", "outcome=\"granted\"", &metrics.waits_granted);
    text.histogram("palisade_wait_seconds", "outcome=\"left\"", &metrics.waits_left);
}

fn commits(text: &mut Text, node: &NodeReport) {
    let help = "From when a write is handed to the writing thread until it is durable.";
    text.head("palisade_commit_seconds", "histogram", help);
    text.histogram("palisade_commit_seconds", "", &node.metrics.commits);
    text.head("palisade_batch_commands", "histogram", "Commands in one entry of the log.");
    text.histogram("palisade_batch_commands", "", &node.metrics.batches);
}

fn cluster(text: &mut Text, node: &NodeReport, connected_members: usize) {
    let (metrics, cluster) = (&node.metrics, &node.cluster);
    text.one("palisade_leads", "gauge", "Whether this node leads.", u8::from(node.is_leader));
    text.one("palisade_term", "gauge", "The latest term that this node knows.", cluster.term);
    let help = "How often this node has learned of a new leader, itself or another node.";
    text.one("palisade_leader_changes_total", "counter", help, metrics.leader_changes);
    text.one("palisade_last_index", "gauge", "The last entry of this node's log.", cluster.last_index);
    text.one("palisade_applied_index", "gauge", "The last entry that this node has applied.", cluster.applied);
    let help = "Other nodes that this node has a connection to.";
    text.one("palisade_connected_nodes", "gauge", help, connected_members);
    let help = "Entries that another node has not written yet, if this node leads.";
    let lag = cluster.followers.iter().map(|Follower { member: id, matched: written, .. }| {
        let name = cluster.membership.members.get(id).map_or_else(|| format!("{id:x}"), |member| member.name.clone());
        (format!("node=\"{}\"", escaped(&name)), cluster.last_index.saturating_sub(*written))
    });
    text.metric("palisade_node_lag_entries", "gauge", help, lag);
    let help = "Snapshots that this node has sent to another one.";
    text.one("palisade_snapshots_sent_total", "counter", help, metrics.snapshots_sent);
    let help = "Snapshots that this node has received from another one.";
    text.one("palisade_snapshots_received_total", "counter", help, metrics.snapshots_received);
}

fn clients(text: &mut Text, report: &ServiceReport, traffic: &Counts, connections: u64) {
    let ServiceReport { node, resp, .. } = report;
    let metrics = &node.metrics;
    let both = [(protocol("resp"), resp.connections), (protocol("http"), connections)];
    text.metric("palisade_connections", "gauge", "Connections open now.", both);
    text.one("palisade_watchers", "gauge", "Watches under way now.", node.watchers);
    let both = over("resp", "command", metrics.resp_commands.iter()).chain(over(
        "http",
        "command",
        metrics.http_commands.iter(),
    ));
    text.metric("palisade_commands_total", "counter", "Commands and questions, carried out or refused.", both);
    let both = over("resp", "code", owned(&resp.refusals)).chain(over("http", "code", owned(&traffic.problems)));
    text.metric("palisade_refusals_total", "counter", "What was refused, by code.", both);
    let requests = traffic.requests.iter().map(|((method, path, status), count)| {
        (format!("method=\"{method}\",path=\"{path}\",status=\"{status}\""), *count)
    });
    text.metric("palisade_http_requests_total", "counter", "Requests answered over HTTP.", requests);
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

fn protocol(name: &str) -> String {
    format!("protocol=\"{name}\"")
}

fn by(label: &str, counts: impl Iterator<Item = (&'static str, u64)>) -> impl Iterator<Item = (String, u64)> {
    counts.map(move |(value, count)| (format!("{label}=\"{value}\""), count))
}

fn over(
    name: &str,
    label: &str,
    counts: impl Iterator<Item = (&'static str, u64)>,
) -> impl Iterator<Item = (String, u64)> {
    by(label, counts).map(move |(labels, count)| (format!("{},{labels}", protocol(name)), count))
}

fn owned(counts: &BTreeMap<&'static str, u64>) -> impl Iterator<Item = (&'static str, u64)> {
    counts.iter().map(|(name, count)| (*name, *count))
}
