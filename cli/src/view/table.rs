//! A table that fits the terminal. Without a terminal nothing is cut and nothing wrapped.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, ColumnConstraint, ContentArrangement, Table, Width, presets};

/// A column by its heading, and how it behaves on a narrow terminal.
pub(crate) enum Column {
    /// What people wrote: wrapped.
    Text(&'static str),
    /// Words and numbers of ours: never wrapped.
    Short(&'static str),
    /// A time: always of the same width, so that the table stands still while times pass.
    Time(&'static str),
}

/// Blanks between columns.
const GAP: u16 = 2;
/// As long as `59m 59s`.
const TIME_WIDTH: u16 = 7;

/// A table without lines.
pub(crate) fn table(columns: &[Column]) -> Table {
    let mut table = Table::new();
    // Whether colours are wanted is for the stream that it is printed to.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).enforce_styling();
    table.style_text_only();
    table.set_header(columns.iter().map(|column| Cell::new(column.heading()).add_attribute(Attribute::Bold)));
    for (index, (column, shown)) in columns.iter().zip(table.column_iter_mut()).enumerate() {
        let gap = if index + 1 == columns.len() { 0 } else { GAP };
        shown.set_padding((0, gap));
        if let Some(constraint) = column.constraint(gap) {
            shown.set_constraint(constraint);
        }
    }
    table
}

/// Prints it without the blanks at the ends of its lines.
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
