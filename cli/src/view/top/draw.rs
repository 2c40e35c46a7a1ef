//! Draws the screen: all locks above, the selected one below.

use palisade::engine::LockInfo;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::super::format;
use super::super::report::Published;
use super::state::State;
use crate::text;

/// How many holders, waiters and past grants are shown, so that each kind fits on a small screen.
const MAX_SHOWN: usize = 5;

/// Draws everything.
pub(super) fn draw(state: &State, frame: &mut Frame<'_>) {
    let rows = [Constraint::Length(1), Constraint::Fill(3), Constraint::Fill(2), Constraint::Length(1)];
    let [head, list, selected, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(title(state), head);
    draw_list(state, frame, list);
    if let Some(lock) = state.selected_lock() {
        let block = Block::new().borders(Borders::TOP).title(format!("{} ", format::state_of(lock)).bold());
        frame.render_widget(
            Paragraph::new(details(lock, state.has_tokens)).wrap(Wrap { trim: false }).block(block),
            selected,
        );
    }
    frame.render_widget(footer(state), foot);
}

fn title(state: &State) -> Line<'_> {
    let waiting: usize = state.locks.iter().map(|lock| lock.waiters.len()).sum();
    let mut spans = vec![
        "palisade top".bold(),
        Span::raw(format!("  {} in use, {waiting} waiting", count(state.locks.len(), "lock", "locks"))),
    ];
    if !state.prefix.is_empty() {
        spans.push(Span::raw(format!(", names begin with {}", text::plain(&state.prefix))));
    }
    if state.is_paused {
        spans.push("  paused".yellow().bold());
    }
    Line::from(spans)
}

fn draw_list(state: &State, frame: &mut Frame<'_>, area: Rect) {
    if state.locks.is_empty() {
        frame.render_widget("no locks are held or wanted".dim(), area);
        return;
    }
    let longest = state.locks.iter().map(|lock| Line::raw(lock.name.as_str()).width()).max().unwrap_or(0);
    let widths = [
        Constraint::Length(u16::try_from(longest).unwrap_or(u16::MAX).min(area.width / 3).max(4)),
        Constraint::Fill(1),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
    ];
    let heads = Row::new(["LOCK", "HOLDER", "TOKEN", "HELD", "LEFT", "WAITING"]).bold();
    let table = Table::new(state.locks.iter().map(|lock| row(lock, state.has_tokens)), widths)
        .header(heads)
        .column_spacing(2);
    let mut state = TableState::new().with_selected(state.selected());
    frame.render_stateful_widget(table.row_highlight_style(Style::new().reversed()), area, &mut state);
}

fn row(lock: &LockInfo, has_tokens: bool) -> Row<'static> {
    let oldest = lock.holders.first();
    let waiting = match lock.waiters.len() {
        0 => Cell::new("0"),
        some => Cell::new(some.to_string().yellow()),
    };
    Row::new([
        Cell::new(lock.name.to_string()),
        Cell::new(format::holders(lock)),
        Cell::new(oldest.map_or_else(String::new, |oldest| format::token(oldest.token, has_tokens))),
        Cell::new(format::time(oldest.and_then(|oldest| oldest.held_for_ms))),
        Cell::new(format::time(oldest.and_then(|oldest| oldest.time_left_ms))),
        waiting,
    ])
}

/// Returns the holders, the waiters and the past grants of the selected lock.
fn details(lock: &LockInfo, has_tokens: bool) -> Text<'static> {
    let mut lines = Vec::new();
    if let Some(value) = &lock.value {
        lines.push(detail("value", Color::Cyan, Published::from(value).to_string()));
    }
    for holder in lock.holders.iter().take(MAX_SHOWN) {
        let (held, left) = (format::time(holder.held_for_ms), format::time(holder.time_left_ms));
        let (holder_text, mode) = (format::holder(holder), format::mode(holder.mode));
        let token = format::token(holder.token, has_tokens);
        let text = format!("{holder_text}: token {token}, {mode}, held for {held}, time left {left}");
        lines.push(detail("holder", Color::Green, text));
    }
    lines.extend(rest("holder", lock.holders.len()));
    for (position, waiter) in (1..).zip(&lock.waiters).take(MAX_SHOWN) {
        let line = format!("{position}. {}: {}", text::plain(&waiter.label), format::mode(waiter.mode));
        lines.push(detail("waits", Color::Yellow, line));
    }
    lines.extend(rest("waits", lock.waiters.len()));
    for ended in lock.history.iter().rev().take(MAX_SHOWN) {
        let line = format!("{}: token {}, {}", text::plain(&ended.label), ended.token, format::ending(ended));
        lines.push(detail("before", Color::DarkGray, line));
    }
    Text::from(lines)
}

fn detail(tag: &'static str, color: Color, text: String) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{tag:<8}"), color), Span::raw(text)])
}

fn rest(tag: &'static str, all: usize) -> Option<Line<'static>> {
    let more = all.checked_sub(MAX_SHOWN).filter(|more| *more > 0)?;
    Some(detail(tag, Color::DarkGray, format!("and {more} more")))
}

fn footer(state: &State) -> Line<'_> {
    match (&state.typing, &state.error_message) {
        (Some(typed), _) => Line::from(vec![
            "names begin with: ".bold(),
            Span::raw(text::plain(typed)),
            "▏".into(),
            "  Enter applies it, Esc cancels".dim(),
        ]),
        (None, Some(error_message)) => Line::from(error_message.as_str().red()),
        (None, None) => "q quits   j k select   / filters by prefix   p pauses".dim().into(),
    }
}

fn count(number: usize, one: &str, several: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {several}"),
    }
}
