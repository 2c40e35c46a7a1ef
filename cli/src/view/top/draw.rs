//! Draws the screen: all locks above, the selected one below.

use crossterm::style::{Color, StyledContent, Stylize};
use palisade::engine::LockInfo;

use super::super::format;
use super::super::report::Published;
use super::line::{TextLine, columns};
use super::state::State;
use crate::text;

/// How many holders, waiters and past grants are shown, so that each kind fits on a small screen.
const MAX_SHOWN: usize = 5;
/// The widths of the columns TOKEN, HELD, LEFT and WAITING.
const NUMBERS: [usize; 4] = [6, 7, 7, 7];
/// The blanks between columns.
const GAP: usize = 2;

/// The text of a cell, with its style.
type Text = StyledContent<String>;

/// Returns the lines of a screen, none of them wider than it.
pub(super) fn draw(state: &State, width: u16, height: u16) -> Vec<TextLine> {
    let (width, height) = (usize::from(width), usize::from(height));
    // Between the first and the last row, the list gets three rows of five.
    let list_height = (height.saturating_sub(2) * 3 + 2) / 5;
    let mut lines = vec![title(state)];
    lines.extend(list(state, width, list_height));
    lines.resize(1 + list_height, TextLine::default());
    if let Some(lock) = state.selected_lock() {
        let border = "─".repeat(width);
        lines.push(TextLine::default().styled(format!("{} ", format::state_of(lock)).bold()).plain(border));
        lines.extend(details(lock, state.has_tokens).into_iter().flat_map(|line| line.wrap(width)));
    }
    lines.resize(height.saturating_sub(1).max(1), TextLine::default());
    lines.push(footer(state));
    lines.truncate(height);
    lines.iter().map(|line| line.cut(width)).collect()
}

fn title(state: &State) -> TextLine {
    let waiting: usize = state.locks.iter().map(|lock| lock.waiters.len()).sum();
    let in_use = count(state.locks.len(), "lock", "locks");
    let mut line =
        TextLine::default().styled("palisade top".bold()).plain(format!("  {in_use} in use, {waiting} waiting"));
    if !state.prefix.is_empty() {
        line = line.plain(format!(", names begin with {}", text::plain(&state.prefix)));
    }
    if state.is_paused {
        line = line.styled("  paused".dark_yellow().bold());
    }
    line
}

/// Returns the rows of the list, as many as fit into the height. The selected one is always among them.
fn list(state: &State, width: usize, height: usize) -> Vec<TextLine> {
    if state.locks.is_empty() {
        return vec![TextLine::default().styled("no locks are held or wanted".dim())];
    }
    let longest = state.locks.iter().map(|lock| columns(lock.name.as_str())).max().unwrap_or(0);
    let name = longest.min(width / 3).max(4);
    let holder = width.saturating_sub(name + GAP + NUMBERS.iter().map(|number| GAP + number).sum::<usize>());
    let [token, held, left, waiting] = NUMBERS;
    let widths = [name, holder, token, held, left, waiting];
    let heads = ["LOCK", "HOLDER", "TOKEN", "HELD", "LEFT", "WAITING"];
    let mut lines = vec![row(heads.map(|head| head.to_owned().bold()), widths)];
    let rows = height.saturating_sub(1);
    let first = (state.selected() + 1).saturating_sub(rows);
    for (index, lock) in state.locks.iter().enumerate().skip(first).take(rows) {
        let line = row(cells(lock, state.has_tokens), widths);
        lines.push(if index == state.selected() { line.reversed() } else { line });
    }
    lines
}

fn cells(lock: &LockInfo, has_tokens: bool) -> [Text; 6] {
    let oldest = lock.holders.first();
    let waiting = lock.waiters.len().to_string();
    [
        lock.name.to_string().stylize(),
        format::holders(lock).stylize(),
        oldest.map_or_else(String::new, |oldest| format::token(oldest.token, has_tokens)).stylize(),
        format::time(oldest.and_then(|oldest| oldest.held_for_ms)).stylize(),
        format::time(oldest.and_then(|oldest| oldest.time_left_ms)).stylize(),
        if lock.waiters.is_empty() { waiting.stylize() } else { waiting.dark_yellow() },
    ]
}

fn row(cells: [Text; 6], widths: [usize; 6]) -> TextLine {
    let mut line = TextLine::default();
    for (index, (cell, width)) in cells.into_iter().zip(widths).enumerate() {
        if index > 0 {
            line = line.plain(" ".repeat(GAP));
        }
        line = line.cell(cell, width);
    }
    line
}

/// Returns the holders, the waiters and the past grants of the selected lock.
fn details(lock: &LockInfo, has_tokens: bool) -> Vec<TextLine> {
    let mut lines = Vec::new();
    if let Some(value) = &lock.value {
        lines.push(detail("value", Color::DarkCyan, &Published::from(value).to_string()));
    }
    for holder in lock.holders.iter().take(MAX_SHOWN) {
        let (held, left) = (format::time(holder.held_for_ms), format::time(holder.time_left_ms));
        let (holder_text, mode) = (format::holder(holder), format::mode(holder.mode));
        let token = format::token(holder.token, has_tokens);
        let text = format!("{holder_text}: token {token}, {mode}, held for {held}, time left {left}");
        lines.push(detail("holder", Color::DarkGreen, &text));
    }
    lines.extend(rest("holder", lock.holders.len()));
    for (position, waiter) in (1..).zip(&lock.waiters).take(MAX_SHOWN) {
        let line = format!("{position}. {}: {}", text::plain(&waiter.label), format::mode(waiter.mode));
        lines.push(detail("waits", Color::DarkYellow, &line));
    }
    lines.extend(rest("waits", lock.waiters.len()));
    for ended in lock.history.iter().rev().take(MAX_SHOWN) {
        let line = format!("{}: token {}, {}", text::plain(&ended.label), ended.token, format::ending(ended));
        lines.push(detail("before", Color::DarkGrey, &line));
    }
    lines
}

fn detail(tag: &str, color: Color, text: &str) -> TextLine {
    TextLine::default().styled(format!("{tag:<8}").with(color)).plain(text)
}

fn rest(tag: &str, all: usize) -> Option<TextLine> {
    let more = all.checked_sub(MAX_SHOWN).filter(|more| *more > 0)?;
    Some(detail(tag, Color::DarkGrey, &format!("and {more} more")))
}

fn footer(state: &State) -> TextLine {
    match (&state.typing, &state.error_message) {
        (Some(typed), _) => TextLine::default()
            .styled("names begin with: ".bold())
            .plain(text::plain(typed))
            .plain("▏")
            .styled("  Enter applies it, Esc cancels".dim()),
        (None, Some(error_message)) => TextLine::default().styled(error_message.as_str().dark_red()),
        (None, None) => TextLine::default().styled("q quits   j k select   / filters by prefix   p pauses".dim()),
    }
}

fn count(number: usize, one: &str, several: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {several}"),
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use palisade::LockName;

    use super::*;

    fn with_locks(count: usize) -> State {
        let lock = |number| LockInfo {
            name: LockName::new(&format!("lock {number}")).unwrap(),
            limit: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            value: None,
            history: Vec::new(),
        };
        let mut state = State::new("");
        state.update(Ok((1..=count).map(lock).collect()));
        state
    }

    #[test]
    fn the_selected_lock_is_on_the_screen() {
        let mut state = with_locks(50);
        for (key, selected) in [(KeyCode::Home, "lock 1"), (KeyCode::End, "lock 50"), (KeyCode::Up, "lock 49")] {
            state.press(KeyEvent::new(key, KeyModifiers::NONE));
            let lines = draw(&state, 80, 24);
            let row = lines.iter().map(TextLine::to_string).find(|line| line.starts_with("\u{1b}[7m")).unwrap();
            assert!(row.starts_with(&selected.reverse().to_string()), "{row}");
        }
    }

    #[test]
    fn a_frame_is_as_large_as_the_screen() {
        for (state, width, height) in (0..90).map(|size| (with_locks(usize::from(size) % 3 * 10), size, size / 3)) {
            let lines = draw(&state, width, height);
            assert_eq!(lines.len(), usize::from(height));
            assert!(lines.iter().all(|line| *line == line.cut(width.into())), "{width} {height}");
        }
    }
}
