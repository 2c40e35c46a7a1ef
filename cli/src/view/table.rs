//! A table that fits the terminal. Without a terminal nothing is cut and nothing wrapped.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, ColumnConstraint, ContentArrangement, Table, Width, presets};

/// A column by its heading, and how it behaves on a narrow terminal.
pub(crate) enum Column {
    /// Text of any length, such as a label: wrapped.
    Text(&'static str),
    /// Short words and numbers: never wrapped.
    Short(&'static str),
    /// A time: of a fixed width, so that columns do not move between two calls.
    Time(&'static str),
}

/// Blanks between columns.
const GAP: u16 = 2;
/// The width of `59m 59s`.
const TIME_WIDTH: u16 = 7;

/// Returns an empty table without borders.
pub(crate) fn table(columns: &[Column]) -> Table {
    let mut table = Table::new();
    // Always with styles: the stream that the table is printed to removes them if it is no terminal.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).enforce_styling();
    table.style_text_only();
    table.set_header(columns.iter().map(|column| Cell::new(column.heading()).add_attribute(Attribute::Bold)));
    for (index, (column, target)) in columns.iter().zip(table.column_iter_mut()).enumerate() {
        let gap = if index + 1 == columns.len() { 0 } else { GAP };
        target.set_padding((0, gap));
        if let Some(constraint) = column.constraint(gap) {
            target.set_constraint(constraint);
        }
    }
    table
}

/// Prints a table without trailing blanks.
pub(crate) fn print(table: &Table, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", table.trim_fmt())
}

impl Column {
    fn heading(&self) -> &'static str {
        match self {
            Column::Text(heading) | Column::Short(heading) | Column::Time(heading) => heading,
        }
    }

    fn constraint(&self, gap: u16) -> Option<ColumnConstraint> {
        match self {
            Column::Text(_) => None,
            Column::Short(_) => Some(ColumnConstraint::ContentWidth),
            Column::Time(_) => Some(ColumnConstraint::Absolute(Width::Fixed(TIME_WIDTH + gap))),
        }
    }
}
