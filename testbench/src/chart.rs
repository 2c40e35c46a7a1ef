//! Bar chart of a benchmark's rows: read from a small CSV file, drawn as SVG.

use std::fmt::Write as _;
use std::{fs, io, path::Path};

const HEADER: &str = "workload,unit,system,per_second";
const WIDTH: u64 = 760;
/// The left end of the bars, and the length of a panel's longest one.
const LEFT: u64 = 190;
const LENGTH: u64 = 470;
const BAR: u64 = 26;

/// One bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The panel of this bar, for example `hot: 64 clients on one lock`.
    pub workload: String,
    /// What was counted, for example `hand-overs/s`.
    pub unit: String,
    /// The measured system.
    pub system: String,
    /// The measured rate.
    pub per_second: u64,
}

/// The rows of one run. Rows of one workload are neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    /// Where the figures come from, in one line.
    pub note: String,
    /// In the order in which they are drawn.
    pub rows: Vec<Row>,
}

impl Chart {
    /// Parses a line `# NOTE`, a header and one line per row. Returns `None` for any other text.
    pub fn parse(csv: &str) -> Option<Chart> {
        let mut lines = csv.lines();
        let note = lines.next()?.strip_prefix("# ")?.to_owned();
        lines.next().filter(|line| *line == HEADER)?;
        let row = |line: &str| {
            let [workload, unit, system, per_second] = line.split(',').collect::<Vec<_>>().try_into().ok()?;
            let [workload, unit, system] = [workload, unit, system].map(str::to_owned);
            Some(Row { workload, unit, system, per_second: per_second.parse().ok()? })
        };
        Some(Chart { note, rows: lines.map(row).collect::<Option<_>>()? })
    }

    /// Formats what [`Chart::parse`] reads. A comma in a text becomes a semicolon.
    pub fn to_csv(&self) -> String {
        let mut csv = format!("# {}\n{HEADER}\n", self.note);
        for row in &self.rows {
            let texts = [&row.workload, &row.unit, &row.system].map(|text| text.replace(',', ";"));
            put(&mut csv, &format!("{},{}", texts.join(","), row.per_second));
        }
        csv
    }

    /// Draws one panel per workload. Each has its own linear scale from zero.
    pub fn to_svg(&self) -> String {
        let (mut body, mut y) = (String::new(), 0);
        for panel in self.rows.chunk_by(|a, b| a.workload == b.workload) {
            y += 34;
            let title = escaped(&format!("{} ({})", panel[0].workload, panel[0].unit));
            put(&mut body, &format!("<text class=\"title\" x=\"20\" y=\"{y}\">{title}</text>"));
            y += 12;
            let longest = panel.iter().map(|row| row.per_second).max().unwrap_or_default().max(1);
            for row in panel {
                let (length, middle) = ((row.per_second * LENGTH / longest).max(1), y + BAR / 2 + 1);
                let class = if row.system.starts_with("palisade") { "ours" } else { "peer" };
                put(&mut body, &text("end", LEFT - 10, middle, &escaped(&row.system)));
                put(
                    &mut body,
                    &format!(
                        "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{length}\" height=\"{}\"/>",
                        y + 3,
                        BAR - 6
                    ),
                );
                put(&mut body, &text("start", LEFT + length + 8, middle, &grouped(row.per_second)));
                y += BAR;
            }
        }
        y += 28;
        put(&mut body, &format!("<text class=\"small\" x=\"20\" y=\"{y}\">{}</text>", escaped(&self.note)));
        let height = y + 16;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">
<style>
text {{ font: 13px 'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif; fill: #0f172a }}
.title {{ font-weight: bold }}
.small {{ font-size: 11px }}
.page {{ fill: #f8fafc; stroke: #cbd5e1 }}
.ours {{ fill: #2563eb }}
.peer {{ fill: #94a3b8 }}
</style>
<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\"/>
{body}</svg>
",
            WIDTH - 1,
            height - 1
        )
    }

    /// Writes the rows to a CSV file, and the drawing to the SVG file next to it.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn save(&self, csv: &Path) -> io::Result<()> {
        fs::write(csv, self.to_csv())?;
        fs::write(csv.with_extension("svg"), self.to_svg())
    }
}

fn text(anchor: &str, x: u64, middle: u64, content: &str) -> String {
    format!("<text text-anchor=\"{anchor}\" x=\"{x}\" y=\"{}\">{content}</text>", middle + 4)
}

fn put(body: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(body, "{line}");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Formats a number with commas between thousands.
fn grouped(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let row = |system: &str, per_second| Row {
            workload: "hot: 64 clients".to_owned(),
            unit: "hand-overs/s".to_owned(),
            system: system.to_owned(),
            per_second,
        };
        Chart { note: "one run".to_owned(), rows: vec![row("palisade", 1_010_028), row("a<b", 505_014)] }
    }

    #[test]
    fn rows_survive_a_round_trip_through_csv() {
        assert_eq!(Chart::parse(&chart().to_csv()), Some(chart()));
        let bad = ["", "no note", "# note\nno header", "# note\nworkload,unit,system,per_second\na,b,c,much"];
        assert_eq!(bad.map(Chart::parse), [None, None, None, None]);
    }

    #[test]
    fn bars_are_as_long_as_their_figures() {
        let svg = chart().to_svg();
        assert!(svg.contains("class=\"ours\" x=\"190\" y=\"49\" width=\"470\""), "{svg}");
        assert!(svg.contains("class=\"peer\" x=\"190\" y=\"75\" width=\"235\""), "{svg}");
        assert!(svg.contains(">1,010,028<") && svg.contains("a&lt;b"), "{svg}");
    }
}
