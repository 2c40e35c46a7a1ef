//! The state of the namespace as this client knows it. Every call sends it, so that the rules detect lost data.

use std::cell::{Cell, RefCell};

use redis::Cmd;

use super::DataLost;

pub(super) struct NamespaceState {
    /// The hash that holds everything.
    pub(super) key: String,
    /// The sorted set of the times at which sessions and delays end.
    due: String,
    /// The name of this client's own channel, without the prefix of all channels.
    channel: String,
    incarnation: RefCell<String>,
    highest_token: Cell<u64>,
    /// The run id of the connected server; empty if this user cannot read it.
    pub(super) run: RefCell<String>,
    /// The run id that the namespace last recorded; empty if unknown.
    pub(super) recorded_run: RefCell<String>,
    lost: RefCell<Option<DataLost>>,
}

impl NamespaceState {
    pub(super) fn new(key: String, channel: String) -> NamespaceState {
        NamespaceState {
            due: format!("{key}:due"),
            key,
            channel,
            incarnation: RefCell::default(),
            highest_token: Cell::new(0),
            run: RefCell::default(),
            recorded_run: RefCell::default(),
            lost: RefCell::default(),
        }
    }

    pub(super) fn channel(&self) -> String {
        format!("{}:{}", self.key, self.channel)
    }

    pub(super) fn event_channel(&self) -> String {
        format!("{}:events", self.key)
    }

    /// The data loss that a call revealed. It stays: this client never continues on other data.
    pub(super) fn lost(&self) -> Option<DataLost> {
        self.lost.borrow().clone()
    }

    /// Records an incarnation, which is empty before the first session, and the last token.
    pub(super) fn update(&self, incarnation: String, last_token: u64) {
        if !incarnation.is_empty() {
            self.incarnation.replace(incarnation);
        }
        self.note_token(last_token);
    }

    pub(super) fn note_token(&self, token: u64) {
        self.highest_token.set(self.highest_token.get().max(token));
    }

    pub(super) fn went_back(&self, found: u64) -> DataLost {
        DataLost::WentBack { seen: self.highest_token.get(), found }
    }

    /// Returns the first loss that was noted.
    pub(super) fn note_lost(&self, lost: DataLost) -> DataLost {
        self.lost.borrow_mut().get_or_insert(lost).clone()
    }

    /// Appends the arguments that precede those of the request.
    pub(super) fn begin(&self, mut call: Cmd, name: &str) -> Cmd {
        call.arg(2).arg(&self.key).arg(&self.due).arg(name);
        call.arg(&*self.incarnation.borrow()).arg(self.highest_token.get()).arg(&self.channel);
        call
    }
}
