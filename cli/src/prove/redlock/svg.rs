//! The timelines as a drawing that is readable on light and on dark pages.

use super::timeline::{Actor, Step, StepKind, Timeline};
use crate::prove::drawing::{document, escaped, put};

const WIDTH: u64 = 960;
/// The x coordinate of the start of the time axis, and the length of the axis.
const LEFT: u64 = 70;
const LENGTH: u64 = 820;
/// The height of a timeline, and of a schedule's title.
const HEIGHT: u64 = 184;
const TITLE: u64 = 44;

const STYLE: &str = "\
text { font: 12px 'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif; fill: #0f172a }
.title { font-size: 17px; font-weight: bold }
.kept { font-weight: bold }
.small { font-size: 10.5px }
.page { fill: #ffffff }
.line { stroke: #94a3b8 }
.a { fill: #bfdbfe; stroke: #2563eb }
.b { fill: #e9d5ff; stroke: #9333ea }
.both { fill: #fca5a5; fill-opacity: .45 }
.stopped { fill: #ffffff; fill-opacity: .75; stroke: #64748b; stroke-dasharray: 5 4 }
.mark { stroke: #334155; fill: #ffffff; stroke-width: 1.5 }
.refused { stroke: #b91c1c; stroke-width: 2.5 }
.fault { stroke: #b45309; stroke-dasharray: 4 3; stroke-width: 1.5 }
.warn { fill: #92400e }
.bad { fill: #b91c1c; font-weight: bold }
.good { fill: #15803d; font-weight: bold }
@media (prefers-color-scheme: dark) {
text { fill: #e2e8f0 }
.page { fill: #0d1117 }
.line { stroke: #475569 }
.a { fill: #1e3a8a; stroke: #60a5fa }
.b { fill: #581c87; stroke: #c084fc }
.both { fill: #ef4444; fill-opacity: .35 }
.stopped { fill: #0d1117; stroke: #94a3b8 }
.mark { stroke: #e2e8f0; fill: #0d1117 }
.refused { stroke: #f87171 }
.fault { stroke: #fbbf24 }
.warn { fill: #fcd34d }
.bad { fill: #f87171 }
.good { fill: #4ade80 }
}";

/// Returns the SVG document.
pub(super) fn drawing(timelines: &[Timeline]) -> String {
    let (mut body, mut y, mut last) = (String::new(), 0, None);
    for timeline in timelines {
        let schedule = timeline.schedule;
        if last.replace(schedule) != Some(schedule) {
            y += TITLE;
            put(
                &mut body,
                &format!("<text class=\"title\" x=\"20\" y=\"{}\">{}</text>", y - 14, escaped(schedule.title())),
            );
        }
        // The timelines of one schedule share a scale, so that they can be compared.
        let of_schedule = timelines.iter().filter(|timeline| timeline.schedule == schedule);
        let end_ms = of_schedule.map(Timeline::end_ms).max().unwrap_or(1).max(1);
        draw(&mut body, timeline, y, end_ms);
        y += HEIGHT;
    }
    document("Redlock gives one lock to two, and what a fence makes of it", (WIDTH, y), STYLE, &body)
}

fn draw(body: &mut String, timeline: &Timeline, top: u64, end_ms: u64) {
    let x = |ms: u64| LEFT + ms * LENGTH / end_ms;
    let (a, b) = (top + 58, top + 104);
    put(
        body,
        &format!("<text class=\"kept\" x=\"20\" y=\"{}\">{}</text>", top + 14, escaped(timeline.protection.title())),
    );
    for (name, class, actor, y) in [("A", "a", Actor::A, a), ("B", "b", Actor::B, b)] {
        put(body, &format!("<text class=\"kept\" x=\"44\" y=\"{}\">{name}</text>", y + 5));
        put(body, &format!("<path class=\"line\" d=\"M{LEFT} {y}H{}\"/>", LEFT + LENGTH));
        if let Some((from, to)) = timeline.held(actor) {
            let width = (x(to) - x(from)).max(2);
            put(
                body,
                &format!(
                    "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"18\" rx=\"3\"/>",
                    x(from),
                    y - 9
                ),
            );
        }
    }
    if let (Some(of_a), Some(of_b)) = (timeline.held(Actor::A), timeline.held(Actor::B)) {
        let (from, to) = (of_a.0.max(of_b.0), of_a.1.min(of_b.1));
        if from < to {
            let (x, width) = (x(from), x(to) - x(from));
            put(body, &format!("<rect class=\"both\" x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"66\"/>", a - 10));
        }
    }
    if let Some((from, to)) = timeline.stopped() {
        let (x, width) = (x(from), x(to) - x(from));
        let rect = "<rect class=\"stopped\"";
        put(body, &format!("{rect} x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"14\" rx=\"3\"/>", a - 7));
    }
    let mut rows = Rows::default();
    for step in &timeline.steps {
        draw_step(body, step, x(step.at_ms), top, &mut rows);
    }
    let class = if timeline.lost > 0 { "bad" } else { "good" };
    let verdict = escaped(&timeline.verdict);
    put(body, &format!("<text class=\"{class}\" x=\"20\" y=\"{}\">{verdict}</text>", top + 160));
}

/// The end of the last label in each row, so that labels do not overlap.
#[derive(Default)]
struct Rows {
    taken: [u64; 6],
}

impl Rows {
    /// Places a label in the first of two rows that has room. Returns the row and the x coordinate.
    fn place(&mut self, rows: [usize; 2], x: u64, text: &str) -> (usize, u64) {
        let width = text.chars().count() as u64 * 6 + 8;
        let x = x.min((WIDTH - 4).saturating_sub(width));
        let row = if self.taken[rows[0]] <= x { rows[0] } else { rows[1] };
        let x = x.max(self.taken[row]);
        self.taken[row] = x + width;
        (row, x)
    }
}

fn draw_step(body: &mut String, step: &Step, x: u64, top: u64, rows: &mut Rows) {
    let label = label(step);
    let (a, b) = (top + 58, top + 104);
    match step.actor {
        Actor::Fault => {
            put(body, &format!("<path class=\"fault\" d=\"M{x} {}V{}\"/>", top + 26, b + 12));
            let (_, x) = rows.place([4, 4], x + 4, &label);
            put(body, &format!("<text class=\"small warn\" x=\"{x}\" y=\"{}\">{label}</text>", top + 30));
        }
        Actor::A | Actor::B => {
            let (y, pair) = if step.actor == Actor::A { (a, [0, 1]) } else { (b, [2, 3]) };
            match step.kind {
                StepKind::Refused | StepKind::NotGranted | StepKind::Lost => {
                    let (left, right, up, down) = (x.saturating_sub(5), x + 5, y - 5, y + 5);
                    put(
                        body,
                        &format!(
                            "<path class=\"refused\" d=\"M{left} {up}L{right} {down}M{left} {down}L{right} {up}\"/>"
                        ),
                    );
                }
                StepKind::Wrote => {
                    let (left, size) = (x.saturating_sub(5), 10);
                    put(
                        body,
                        &format!(
                            "<rect class=\"mark\" x=\"{left}\" y=\"{}\" width=\"{size}\" height=\"{size}\"/>",
                            y - 5
                        ),
                    );
                }
                _ => put(body, &format!("<circle class=\"mark\" cx=\"{x}\" cy=\"{y}\" r=\"4\"/>")),
            }
            let (row, x) = rows.place(pair, x, &label);
            let y = match row {
                0 => a - 13,
                1 => a + 21,
                2 => b + 21,
                _ => b + 33,
            };
            put(body, &format!("<text class=\"small\" x=\"{x}\" y=\"{y}\">{label}</text>"));
        }
    }
}

/// Returns a short label for a step.
fn label(step: &Step) -> String {
    escaped(match step.kind {
        StepKind::Granted => match step.text.split_once("token ") {
            Some((_, rest)) => return escaped(&format!("granted, {}", rest.split(',').next().unwrap_or_default())),
            None => "granted",
        },
        StepKind::NotGranted => "not granted",
        StepKind::Checked => match step.text.contains("warned") {
            true => "“I hold it” (warned)",
            false => "“I hold it”",
        },
        StepKind::Lost => "lock lost",
        StepKind::Wrote => step.text.split(',').next().unwrap_or_default(),
        StepKind::Refused => "write refused",
        StepKind::Released => "releases",
        StepKind::Read | StepKind::Fault | StepKind::Stopped | StepKind::Woken => &step.text,
    })
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::timeline;
    use super::*;

    #[test]
    fn a_drawing_has_both_holders_and_the_verdict() {
        let steps =
            [(0, Actor::A, StepKind::Granted), (100, Actor::B, StepKind::Granted), (200, Actor::A, StepKind::Wrote)];
        let drawing = drawing(&[timeline(&steps, 0)]);
        for part in ["class=\"a\"", "class=\"b\"", "class=\"both\"", "class=\"bad\"", "LOST: both held"] {
            assert!(drawing.contains(part), "{part} is missing:\n{drawing}");
        }
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
        assert!(drawing.contains("prefers-color-scheme: dark"));
    }
}
