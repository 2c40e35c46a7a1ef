//! The timeline as a drawing: leaders and faults of each node, grants, refused and lost updates.

use super::experiment::{Outcome, Plan};
use super::fault::FaultKind;
use super::record::{FaultSpan, LeaderSpan, Record};
use super::show::{describe, describe_service};
use super::system::node_name;
use crate::prove::drawing::{document, escaped, put};
use crate::prove::fencing::Fencing;
use crate::text::time_ms;

const WIDTH: u64 = 960;
/// The x coordinate of the start of the time axis, and the length of the axis.
const LEFT: u64 = 124;
const LENGTH: u64 = 816;
/// The height of a node's row, with the bar of its leadership above the bar of its faults.
const ROW: u64 = 34;
/// The height of the chart of grants, and of the rows with ticks.
const CHART: u64 = 90;
const TICKS: u64 = 26;
/// The bars of the chart of grants, at most.
const BARS: u64 = 272;
/// How far the marks of the time axis may be from each other, in milliseconds.
const MARKS_MS: [u64; 10] = [1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 14_400_000];

const STYLE: &str = "\
text { font: 12px 'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif; fill: #0f172a }
.title { font-size: 17px; font-weight: bold }
.name { font-weight: bold }
.small { font-size: 10.5px }
.page { fill: #ffffff }
.line { stroke: #cbd5e1 }
.l0 { fill: #2563eb } .l1 { fill: #9333ea } .l2 { fill: #0d9488 } .l3 { fill: #db2777 } .l4 { fill: #4f46e5 }
.kill { fill: #dc2626 } .pause { fill: #f59e0b } .cut { fill: #64748b } .clock { fill: #38bdf8 } .disk { fill: #92400e }
.grants { fill: #16a34a }
.refused { stroke: #16a34a; stroke-width: 1.5 }
.lost { stroke: #dc2626; stroke-width: 1.5 }
.bad { fill: #b91c1c; font-weight: bold }
.good { fill: #15803d; font-weight: bold }
@media (prefers-color-scheme: dark) {
text { fill: #e2e8f0 }
.page { fill: #0d1117 }
.line { stroke: #334155 }
.l0 { fill: #60a5fa } .l1 { fill: #c084fc } .l2 { fill: #2dd4bf } .l3 { fill: #f472b6 } .l4 { fill: #818cf8 }
.kill { fill: #f87171 } .pause { fill: #fbbf24 } .cut { fill: #94a3b8 } .clock { fill: #38bdf8 } .disk { fill: #d97706 }
.grants { fill: #4ade80 }
.refused { stroke: #4ade80 }
.lost { stroke: #f87171 }
.bad { fill: #f87171 }
.good { fill: #4ade80 }
}";

/// The classes of faults in the legend.
const LEGEND: [(&str, &str); 5] =
    [("kill", "killed"), ("pause", "paused"), ("cut", "cut off"), ("clock", "clock moved"), ("disk", "disk full")];

fn class(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::KillLeader | FaultKind::KillFollower | FaultKind::KillTwo => "kill",
        FaultKind::PauseLeader | FaultKind::PauseFollower => "pause",
        FaultKind::CutOffLeader | FaultKind::CutOffMinority | FaultKind::OneWay | FaultKind::Ring => "cut",
        FaultKind::Clock => "clock",
        FaultKind::DiskFull => "disk",
    }
}

/// Returns the SVG document.
pub(super) fn drawing(plan: &Plan, outcome: &Outcome) -> String {
    let record = &outcome.record;
    let (mut body, end_ms) = (String::new(), record.end_ms.max(1));
    let x = |ms: u64| LEFT + ms.min(end_ms) * LENGTH / end_ms;
    text(&mut body, "title", 20, 30, &format!("{}: a cluster under faults", plan.system.name()));
    text(&mut body, "small", 20, 48, &describe(plan, outcome));
    let top = 64;
    let chart = top + plan.nodes as u64 * ROW + 14;
    let (refused, lost) = (chart + CHART + 14, chart + CHART + 14 + TICKS);
    let axis = lost + TICKS + 2;
    draw_axis(&mut body, end_ms, top, axis);
    for node in 0..plan.nodes {
        draw_node(&mut body, record, node, top + node as u64 * ROW, x);
    }
    draw_grants(&mut body, record, end_ms, chart);
    draw_ticks(&mut body, ("refused", "refused"), &record.refused, refused, x);
    draw_ticks(&mut body, ("lost", "lost, no fence"), &record.lost, lost, x);
    let mut y = axis + 40;
    draw_legend(&mut body, y);
    y += 26;
    text(&mut body, "small", 20, y, &describe_service(outcome));
    for (fencing, counts) in &outcome.results {
        y += 20;
        let class = if counts.lost > 0 { "bad" } else { "good" };
        let (name, acknowledged, lost, refused) = (fencing.name(), counts.acknowledged, counts.lost, counts.refused);
        let refused = if *fencing == Fencing::None { String::new() } else { format!(", {refused} refused") };
        text(
            &mut body,
            class,
            20,
            y,
            &format!("{name}: {lost} of {acknowledged} acknowledged updates lost{refused}"),
        );
    }
    document(&format!("{}: a cluster under faults", plan.system.name()), (WIDTH, y + 20), STYLE, &body)
}

fn text(body: &mut String, class: &str, x: u64, y: u64, text: &str) {
    put(body, &format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escaped(text)));
}

fn bar(body: &mut String, class: &str, (from, to): (u64, u64), y: u64, height: u64, title: &str) {
    let width = (to - from).max(2);
    let title = escaped(title);
    put(
        body,
        &format!(
            "<rect class=\"{class}\" x=\"{from}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"><title>{title}</title></rect>"
        ),
    );
}

/// Draws the times, and a line through all rows at each.
fn draw_axis(body: &mut String, end_ms: u64, top: u64, bottom: u64) {
    let apart = MARKS_MS.into_iter().find(|apart| end_ms / apart <= 12).unwrap_or(86_400_000);
    for ms in (0..=end_ms).step_by(usize::try_from(apart).unwrap_or(usize::MAX)) {
        let x = LEFT + ms * LENGTH / end_ms;
        put(body, &format!("<path class=\"line\" d=\"M{x} {top}V{bottom}\"/>"));
        let label = if ms == 0 { "0".to_owned() } else { axis_label(ms) };
        put(
            body,
            &format!("<text class=\"small\" text-anchor=\"middle\" x=\"{x}\" y=\"{}\">{label}</text>", bottom + 14),
        );
    }
}

fn axis_label(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds if seconds % 60 == 0 && seconds < 3600 => format!("{}m", seconds / 60),
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        _ => time_ms(ms),
    }
}

fn draw_node(body: &mut String, record: &Record, node: usize, y: u64, x: impl Fn(u64) -> u64) {
    text(body, "name", 20, y + 18, &node_name(node));
    put(body, &format!("<path class=\"line\" d=\"M{LEFT} {}H{}\"/>", y + ROW - 3, LEFT + LENGTH));
    for LeaderSpan { term, from_ms, to_ms, .. } in record.leaders.iter().filter(|span| span.node == node) {
        let span = (x(*from_ms), x(*to_ms));
        bar(body, &format!("l{node}"), span, y + 4, 14, &format!("leader in term {term}"));
    }
    for FaultSpan { kind, from_ms, to_ms, .. } in record.faults.iter().filter(|fault| fault.nodes.contains(&node)) {
        bar(body, class(*kind), (x(*from_ms), x(*to_ms)), y + 20, 8, kind.name());
    }
}

fn draw_grants(body: &mut String, record: &Record, end_ms: u64, y: u64) {
    let bars = BARS.min(end_ms.div_ceil(1000)).max(1);
    let mut counts = vec![0_u64; bars as usize];
    for at in &record.grants {
        let bar = (at * bars / end_ms).min(bars - 1);
        counts[bar as usize] += 1;
    }
    let per_second = |count: u64| count * bars * 1000 / end_ms;
    let highest = counts.iter().map(|count| per_second(*count)).max().unwrap_or(0).max(1);
    text(body, "name", 20, y + 18, "grants/s");
    text(body, "small", 20, y + 34, &format!("up to {highest}"));
    let (bottom, mut path) = (y + CHART, String::new());
    for (number, count) in counts.iter().enumerate() {
        let (from, to) = (LEFT + number as u64 * LENGTH / bars, LEFT + (number as u64 + 1) * LENGTH / bars);
        let height = per_second(*count) * CHART / highest;
        if height > 0 {
            path += &format!("M{from} {bottom}V{}H{to}V{bottom}z", bottom - height);
        }
    }
    put(body, &format!("<path class=\"grants\" d=\"{path}\"/>"));
    put(body, &format!("<path class=\"line\" d=\"M{LEFT} {bottom}H{}\"/>", LEFT + LENGTH));
}

fn draw_ticks(body: &mut String, (class, name): (&str, &str), times: &[u64], y: u64, x: impl Fn(u64) -> u64) {
    text(body, "name", 20, y + 16, name);
    // Many ticks at one place look like one.
    let mut places: Vec<_> = times.iter().map(|ms| x(*ms)).collect();
    places.dedup();
    let path: String = places.iter().map(|x| format!("M{x} {}v16", y + 4)).collect();
    put(body, &format!("<path class=\"{class}\" d=\"{path}\"/>"));
}

fn draw_legend(body: &mut String, y: u64) {
    let mut x = 20;
    let mut entry = |class: &str, name: &str| {
        put(body, &format!("<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"14\" height=\"10\"/>", y - 9));
        text(body, "small", x + 19, y, name);
        x += 19 + name.len() as u64 * 7 + 16;
    };
    entry("l0", "leader (a colour for each node)");
    LEGEND.iter().for_each(|(class, name)| entry(class, name));
}

#[cfg(test)]
mod tests {
    use super::super::show::tests::outcome;
    use super::*;

    #[test]
    fn a_drawing_has_leaders_faults_grants_and_the_result() {
        let (plan, outcome) = outcome();
        let drawing = drawing(&plan, &outcome);
        for part in [
            "node3",
            "leader in term 2",
            "<title>leader killed</title>",
            "class=\"grants\"",
            "no fence: 2 of 50 acknowledged updates lost<",
            "strictly fenced: 0 of 50 acknowledged updates lost, 1 refused",
            "prefers-color-scheme: dark",
        ] {
            assert!(drawing.contains(part), "{part} is missing:\n{drawing}");
        }
        assert_eq!(drawing.matches("class=\"cut\" x").count(), 4, "one for each node, and the legend");
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
    }

    #[test]
    fn axis_labels_are_short() {
        assert_eq!([5000, 60_000, 600_000, 7_200_000].map(axis_label), ["5s", "1m", "10m", "2h"]);
    }
}
