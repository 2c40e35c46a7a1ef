//! The dashboard and the alert rules in `deploy/grafana` fit the metrics of a running service.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::test_server::TestServer;

const DASHBOARD: &str = "deploy/grafana/palisade.json";
const ALERTS: &str = "deploy/grafana/alerts.yaml";

/// Reads a file of the repository.
fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&file(DASHBOARD)).unwrap_or_else(|error| panic!("{DASHBOARD}: {error}"))
}

/// Returns the panels without the headings of the rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().expect("panels");
    panels.iter().filter(|panel| panel["type"] != "row").collect()
}

/// Returns every `palisade_…` word of a text.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let word = |at: usize| text[at..].split(|letter| !is_part(letter)).next().unwrap_or_default();
    text.match_indices("palisade_").map(|(at, _)| word(at)).collect()
}

/// Returns the names of all samples. A metric without samples yet has its `# TYPE` line.
fn served_metrics() -> BTreeSet<String> {
    let text = TestServer::new().client().get("/metrics").body;
    let mut names = BTreeSet::new();
    for (name, kind) in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
        match kind {
            "histogram" => names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}"))),
            _ => names.extend([name.to_owned()]),
        }
    }
    names
}

/// Returns the alerts: the name and the text of each.
fn alerts(rules: &str) -> Vec<(&str, &str)> {
    rules.split("- alert: ").skip(1).filter_map(|alert| alert.split_once('\n')).collect()
}

#[test]
fn the_dashboard_and_the_alerts_use_only_metrics_of_the_service() {
    let served = served_metrics();
    for path in [DASHBOARD, ALERTS] {
        let text = file(path);
        let used = metrics_in(&text);
        assert!(used.len() > 10, "{path} uses only {used:?}");
        let unknown: Vec<_> = used.into_iter().filter(|name| !served.contains(*name)).collect();
        assert!(unknown.is_empty(), "{path} uses {unknown:?}, and /metrics has only {served:?}");
    }
}

#[test]
fn every_panel_has_a_description_a_unit_and_a_query() {
    let dashboard = dashboard();
    let panels = panels(&dashboard);
    assert!(panels.len() > 20, "{} panels", panels.len());
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        let has_text =
            |pointer: &str| panel.pointer(pointer).and_then(Value::as_str).is_some_and(|it| !it.is_empty());
        for pointer in ["/description", "/fieldConfig/defaults/unit", "/targets/0/expr"] {
            assert!(has_text(pointer), "panel '{title}' of {DASHBOARD} has no {pointer}");
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "panel '{title}' uses a fixed data source");
    }
}

#[test]
fn panels_have_their_own_ids_and_do_not_overlap() {
    let dashboard = dashboard();
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = &panel["title"];
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "the id of {title} is used twice");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a position"));
        assert!(x + w <= 24, "{title} is wider than the dashboard");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{title} covers another panel at {cell:?}");
        }
    }
}

#[test]
fn every_alert_says_what_to_do_and_is_in_the_docs() {
    let (rules, page) = (file(ALERTS), file("docs/alerts.md"));
    let alerts = alerts(&rules);
    for (name, text) in &alerts {
        for key in ["expr: ", "for: ", "severity: ", "summary: ", "description: "] {
            assert!(text.lines().any(|line| line.trim_start().starts_with(key)), "{name} has no '{key}'");
        }
        assert!(text.contains("Run ") || text.contains("Run\n"), "{name} names no command to run");
    }
    let names: BTreeSet<_> = alerts.iter().map(|(name, _)| *name).collect();
    let is_alert =
        |word: &&str| word.starts_with("Palisade") && word.chars().all(|letter| letter.is_ascii_alphabetic());
    let documented: BTreeSet<_> = page.split('`').skip(1).step_by(2).filter(is_alert).collect();
    assert_eq!(names, documented, "the alerts of {ALERTS} and of docs/alerts.md differ");
}
