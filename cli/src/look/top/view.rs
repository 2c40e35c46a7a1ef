//! What the screen shows, and what keys change about it.

use palisade::LockName;
use palisade::engine::LockInfo;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::follow::Found;

/// What the screen shows.
#[derive(Default)]
pub(super) struct View {
    /// Only locks whose names begin so.
    pub(super) prefix: String,
    pub(super) locks: Vec<LockInfo>,
    /// Whether the engine has tokens.
    pub(super) has_tokens: bool,
    /// By its name, so that it stays selected when others come and go.
    selected: Option<LockName>,
    /// The prefix that is being typed.
    pub(super) typing: Option<String>,
    pub(super) is_paused: bool,
    /// Why the last look failed.
    pub(super) trouble: Option<String>,
}

/// What a key asks for beyond the view itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    /// Look at other locks: the prefix is another one.
    Look,
    Quit,
}

impl View {
    pub(super) fn new(prefix: &str) -> View {
        View { prefix: prefix.to_owned(), ..View::default() }
    }

    /// Takes in what a look has brought. What was seen before stays when a look fails.
    pub(super) fn found(&mut self, found: Found) {
        match found {
            _ if self.is_paused => {}
            Ok(locks) => {
                self.locks = locks;
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(crate::text::plain(&error.to_string())),
        }
    }

    /// The place of the selected lock; the first one if none was selected, or it is gone.
    pub(super) fn selected(&self) -> usize {
        let is_selected = |lock: &LockInfo| Some(&lock.name) == self.selected.as_ref();
        self.locks.iter().position(is_selected).unwrap_or(0)
    }

    pub(super) fn selected_lock(&self) -> Option<&LockInfo> {
        self.locks.get(self.selected())
    }

    /// What a key does.
    pub(super) fn press(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Wish::Quit } else { Wish::Nothing };
        }
        match self.typing.take() {
            Some(typed) => self.type_on(typed, key.code),
            None => self.command(key.code),
        }
    }

    fn type_on(&mut self, mut typed: String, key: KeyCode) -> Wish {
        match key {
            KeyCode::Esc => return Wish::Nothing,
            KeyCode::Enter => {
                self.prefix = typed;
                self.is_paused = false;
                return Wish::Look;
            }
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(character) => typed.push(character),
            _ => {}
        }
        self.typing = Some(typed);
        Wish::Nothing
    }

    fn command(&mut self, key: KeyCode) -> Wish {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('k') | KeyCode::Up => self.select(self.selected().saturating_sub(1)),
            KeyCode::Char('j') | KeyCode::Down => self.select(self.selected() + 1),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('/') => self.typing = Some(self.prefix.clone()),
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            _ => {}
        }
        Wish::Nothing
    }

    fn select(&mut self, place: usize) {
        let place = place.min(self.locks.len().saturating_sub(1));
        self.selected = self.locks.get(place).map(|lock| lock.name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(names: &[&str]) -> Found {
        let lock = |name: &&str| LockInfo {
            name: LockName::new(name).unwrap(),
            limit: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            value: None,
            history: Vec::new(),
        };
        Ok(names.iter().map(lock).collect())
    }

    fn press(view: &mut View, keys: &[KeyCode]) -> Wish {
        let mut wish = Wish::Nothing;
        for key in keys {
            wish = view.press(KeyEvent::new(*key, KeyModifiers::NONE));
        }
        wish
    }

    fn selected(view: &View) -> Option<&str> {
        view.selected_lock().map(|lock| lock.name.as_str())
    }

    #[test]
    fn the_selection_stays_with_its_lock_and_never_leaves_the_list() {
        let mut view = View::new("");
        press(&mut view, &[KeyCode::Down, KeyCode::End]);
        assert_eq!(selected(&view), None);
        view.found(locks(&["b", "c"]));
        assert_eq!(selected(&view), Some("b"));
        press(&mut view, &[KeyCode::Down, KeyCode::Char('j')]);
        assert_eq!(selected(&view), Some("c"));
        view.found(locks(&["a", "b", "c", "d"]));
        assert_eq!(selected(&view), Some("c"));
        press(&mut view, &[KeyCode::Home, KeyCode::Up]);
        assert_eq!(selected(&view), Some("a"));
        view.found(locks(&["b"]));
        assert_eq!(selected(&view), Some("b"));
    }

    #[test]
    fn a_prefix_is_typed_and_taken_or_left() {
        let mut view = View::new("a");
        press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('/'), KeyCode::Char('q')]);
        assert_eq!(view.typing.as_deref(), Some("a/q"));
        assert_eq!(press(&mut view, &[KeyCode::Esc]), Wish::Nothing);
        assert_eq!((view.prefix.as_str(), view.typing.as_deref()), ("a", None));
        assert_eq!(press(&mut view, &[KeyCode::Char('/'), KeyCode::Backspace, KeyCode::Enter]), Wish::Look);
        assert_eq!((view.prefix.as_str(), view.typing.as_deref()), ("", None));
    }

    #[test]
    fn a_pause_keeps_what_was_seen() {
        let mut view = View::new("");
        view.found(locks(&["a"]));
        press(&mut view, &[KeyCode::Char('p')]);
        view.found(locks(&[]));
        assert_eq!(selected(&view), Some("a"));
        press(&mut view, &[KeyCode::Char('p')]);
        view.found(locks(&[]));
        assert_eq!(selected(&view), None);
    }

    #[test]
    fn quitting_is_always_possible() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(press(&mut View::new(""), &[KeyCode::Char('q')]), Wish::Quit);
        assert_eq!(press(&mut View::new(""), &[KeyCode::Esc]), Wish::Quit);
        let mut typing = View::new("");
        press(&mut typing, &[KeyCode::Char('/')]);
        assert_eq!(typing.press(control_c), Wish::Quit);
    }
}
