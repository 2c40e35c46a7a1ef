//! The state of the namespace as this client knows it. Every call sends it, so that the Lua code detects lost data.

use std::cell::{Cell, RefCell};

use redis::Cmd;

use super::DataLost;

pub(super) struct NamespaceState {
    /// The hash that holds everything.
    pub(super) key: String,
    /// The key of the sorted set of the times at which sessions and lock-delays end.
    due: String,
    /// The name of this client's channel, without the key in front.
    channel: String,
    /// A random text that the namespace gets when it is created.
    incarnation: RefCell<String>,
    highest_token: Cell<u64>,
    /// The run id of the connected server; empty if this user cannot read it.
    pub(super) run_id: RefCell<String>,
    /// The run id that the namespace last recorded; empty if unknown.
    pub(super) recorded_run_id: RefCell<String>,
    data_loss: RefCell<Option<DataLost>>,
}

impl NamespaceState {
    pub(super) fn new(key: String, channel: String) -> NamespaceState {
        NamespaceState {
            due: format!("{key}:due"),
            key,
            channel,
            incarnation: RefCell::default(),
            highest_token: Cell::new(0),
            run_id: RefCell::default(),
            recorded_run_id: RefCell::default(),
            data_loss: RefCell::default(),
        }
    }

    pub(super) fn channel(&self) -> String {
        format!("{}:{}", self.key, self.channel)
    }

    pub(super) fn event_channel(&self) -> String {
        format!("{}:events", self.key)
    }

    /// The data loss that a call has revealed. This client then fails all later calls.
    pub(super) fn data_loss(&self) -> Option<DataLost> {
        self.data_loss.borrow().clone()
    }

    /// Records the incarnation, which is empty while the namespace has no session yet, and the last token.
    pub(super) fn update(&self, incarnation: String, last_token: u64) {
        if !incarnation.is_empty() {
            self.incarnation.replace(incarnation);
        }
        self.note_token(last_token);
    }

    pub(super) fn note_token(&self, token: u64) {
        self.highest_token.set(self.highest_token.get().max(token));
    }

    pub(super) fn tokens_went_back(&self, found: u64) -> DataLost {
        DataLost::WentBack { seen: self.highest_token.get(), found }
    }

    /// Notes a data loss. Returns the first one that was noted.
    pub(super) fn note_data_loss(&self, lost: DataLost) -> DataLost {
        self.data_loss.borrow_mut().get_or_insert(lost).clone()
    }

    /// Appends the keys, and the arguments that every request begins with.
    pub(super) fn write_header(&self, mut call: Cmd, name: &str) -> Cmd {
        call.arg(2).arg(&self.key).arg(&self.due).arg(name);
        call.arg(&*self.incarnation.borrow()).arg(self.highest_token.get()).arg(&self.channel);
        call
    }
}
