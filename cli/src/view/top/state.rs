//! The state of the screen, and how keys change it.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use palisade::LockName;
use palisade::engine::LockInfo;

use super::follow::Listing;

/// The state of the screen.
#[derive(Default)]
pub(super) struct State {
    /// Only locks whose names begin with this are shown.
    pub(super) prefix: String,
    pub(super) locks: Vec<LockInfo>,
    /// Whether the engine has tokens.
    pub(super) has_tokens: bool,
    /// The selected lock, by name, so that it stays selected when other locks come and go.
    selected: Option<LockName>,
    /// The new prefix while the user types it.
    pub(super) typing: Option<String>,
    pub(super) is_paused: bool,
    /// Why the last listing failed.
    pub(super) error_message: Option<String>,
}

/// What the event loop has to do after a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// List the locks of the new prefix.
    Reload,
    Quit,
}

impl State {
    pub(super) fn new(prefix: &str) -> State {
        State { prefix: prefix.to_owned(), ..State::default() }
    }

    /// Stores a listing. A failed one keeps the locks that were listed before.
    pub(super) fn update(&mut self, listing: Listing) {
        match listing {
            _ if self.is_paused => {}
            Ok(locks) => {
                self.locks = locks;
                self.error_message = None;
            }
            Err(error) => self.error_message = Some(crate::text::plain(&error.to_string())),
        }
    }

    /// Returns the index of the selected lock; 0 if none was selected, or it is gone.
    pub(super) fn selected(&self) -> usize {
        let is_selected = |lock: &LockInfo| Some(&lock.name) == self.selected.as_ref();
        self.locks.iter().position(is_selected).unwrap_or(0)
    }

    pub(super) fn selected_lock(&self) -> Option<&LockInfo> {
        self.locks.get(self.selected())
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::Quit } else { Action::Nothing };
        }
        match self.typing.take() {
            Some(typed) => self.edit_prefix(typed, key.code),
            None => self.command(key.code),
        }
    }

    fn edit_prefix(&mut self, mut typed: String, key: KeyCode) -> Action {
        match key {
            KeyCode::Esc => return Action::Nothing,
            KeyCode::Enter => {
                self.prefix = typed;
                self.is_paused = false;
                return Action::Reload;
            }
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(character) => typed.push(character),
            _ => {}
        }
        self.typing = Some(typed);
        Action::Nothing
    }

    fn command(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('k') | KeyCode::Up => self.select(self.selected().saturating_sub(1)),
            KeyCode::Char('j') | KeyCode::Down => self.select(self.selected() + 1),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('/') => self.typing = Some(self.prefix.clone()),
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            _ => {}
        }
        Action::Nothing
    }

    fn select(&mut self, index: usize) {
        let index = index.min(self.locks.len().saturating_sub(1));
        self.selected = self.locks.get(index).map(|lock| lock.name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(names: &[&str]) -> Listing {
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

    fn press(state: &mut State, keys: &[KeyCode]) -> Action {
        let mut action = Action::Nothing;
        for key in keys {
            action = state.press(KeyEvent::new(*key, KeyModifiers::NONE));
        }
        action
    }

    fn selected(state: &State) -> Option<&str> {
        state.selected_lock().map(|lock| lock.name.as_str())
    }

    #[test]
    fn the_selection_stays_with_its_lock_and_never_leaves_the_list() {
        let mut state = State::new("");
        press(&mut state, &[KeyCode::Down, KeyCode::End]);
        assert_eq!(selected(&state), None);
        state.update(locks(&["b", "c"]));
        assert_eq!(selected(&state), Some("b"));
        press(&mut state, &[KeyCode::Down, KeyCode::Char('j')]);
        assert_eq!(selected(&state), Some("c"));
        state.update(locks(&["a", "b", "c", "d"]));
        assert_eq!(selected(&state), Some("c"));
        press(&mut state, &[KeyCode::Home, KeyCode::Up]);
        assert_eq!(selected(&state), Some("a"));
        state.update(locks(&["b"]));
        assert_eq!(selected(&state), Some("b"));
    }

    #[test]
    fn a_typed_prefix_is_applied_or_cancelled() {
        let mut state = State::new("a");
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('/'), KeyCode::Char('q')]);
        assert_eq!(state.typing.as_deref(), Some("a/q"));
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Action::Nothing);
        assert_eq!((state.prefix.as_str(), state.typing.as_deref()), ("a", None));
        assert_eq!(press(&mut state, &[KeyCode::Char('/'), KeyCode::Backspace, KeyCode::Enter]), Action::Reload);
        assert_eq!((state.prefix.as_str(), state.typing.as_deref()), ("", None));
    }

    #[test]
    fn a_pause_keeps_the_last_listing() {
        let mut state = State::new("");
        state.update(locks(&["a"]));
        press(&mut state, &[KeyCode::Char('p')]);
        state.update(locks(&[]));
        assert_eq!(selected(&state), Some("a"));
        press(&mut state, &[KeyCode::Char('p')]);
        state.update(locks(&[]));
        assert_eq!(selected(&state), None);
    }

    #[test]
    fn quitting_is_always_possible() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(press(&mut State::new(""), &[KeyCode::Char('q')]), Action::Quit);
        assert_eq!(press(&mut State::new(""), &[KeyCode::Esc]), Action::Quit);
        let mut typing = State::new("");
        press(&mut typing, &[KeyCode::Char('/')]);
        assert_eq!(typing.press(control_c), Action::Quit);
    }
}
