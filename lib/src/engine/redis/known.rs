//! What client and store must agree on, and how a question says so.

use std::cell::{Cell, RefCell};

use redis::Cmd;

use super::DataLost;
use super::answer::Lost;
use super::question::Question;
use super::usual::{Asked, Usual};

/// What this client knows of the namespace, and Redis must know too.
pub(super) struct Known {
    /// The namespace's key, which holds everything.
    pub(super) key: String,
    /// The key beside it.
    due: String,
    /// This client's own channel, without what all channels begin with.
    pub(super) channel: String,
    incarnation: RefCell<String>,
    /// The highest token that was seen.
    seen: Cell<u64>,
    /// The run id of the server that the client is connected to; empty if it does not say.
    run: RefCell<String>,
    /// The run in which the namespace was when the client last heard of it; empty if that is not known.
    known_run: RefCell<String>,
    lost: RefCell<Option<DataLost>>,
}

impl Known {
    pub(super) fn new(key: String, channel: String) -> Known {
        let due = format!("{key}:due");
        let (incarnation, run, known_run) = (RefCell::default(), RefCell::default(), RefCell::default());
        Known { key, due, channel, incarnation, seen: Cell::new(0), run, known_run, lost: RefCell::default() }
    }

    pub(super) fn channel(&self) -> String {
        format!("{}:{}", self.key, self.channel)
    }

    pub(super) fn events(&self) -> String {
        format!("{}:events", self.key)
    }

    /// What was lost, if anything was.
    pub(super) fn lost(&self) -> Option<DataLost> {
        self.lost.borrow().clone()
    }

    pub(super) fn run(&self) -> String {
        self.run.borrow().clone()
    }

    pub(super) fn known_run(&self) -> String {
        self.known_run.borrow().clone()
    }

    /// Notes which run of the server the connection leads to.
    pub(super) fn note_run(&self, run: String) {
        self.run.replace(run);
    }

    /// Notes in which run the namespace is.
    pub(super) fn learn_run(&self, run: &str) {
        run.clone_into(&mut self.known_run.borrow_mut());
    }

    pub(super) fn learn(&self, incarnation: &str, last: u64) {
        if !incarnation.is_empty() {
            incarnation.clone_into(&mut self.incarnation.borrow_mut());
        }
        self.see(last);
    }

    pub(super) fn see(&self, token: u64) {
        self.seen.set(self.seen.get().max(token));
    }

    pub(super) fn note_lost(&self, how: &Lost) -> DataLost {
        let key = self.key.clone();
        let lost = match how {
            Lost::Gone => DataLost::Gone { key },
            Lost::MadeAnew => DataLost::MadeAnew { key },
            Lost::WentBack { found } => DataLost::WentBack { seen: self.seen.get(), found: *found },
            Lost::Taken { token } => DataLost::Taken { token: *token },
        };
        self.lost.borrow_mut().get_or_insert(lost).clone()
    }

    /// What is asked, up to what belongs to it.
    fn begin(&self, mut call: Cmd, what: &str) -> Cmd {
        call.arg(2).arg(&self.key).arg(&self.due).arg(what);
        call.arg(&*self.incarnation.borrow()).arg(self.seen.get()).arg(&self.channel);
        call
    }

    pub(super) fn put(&self, question: &Question, call: Cmd) -> Cmd {
        match question {
            Question::Usual(usual) => self.put_usual(usual, call),
            Question::Other(what, args) => {
                let mut call = self.begin(call, what);
                for arg in args {
                    call.arg(&arg[..]);
                }
                call
            }
        }
    }

    pub(super) fn put_usual(&self, usual: &Usual, call: Cmd) -> Cmd {
        let mut call = self.begin(call, usual.name());
        usual.put(&mut call);
        call
    }

    /// Several of one session.
    pub(super) fn put_several(&self, asked: &[Asked], call: Cmd) -> Cmd {
        let mut call = self.begin(call, "several");
        let low = asked.iter().map(|one| one.usual.low).min();
        call.arg(asked[0].usual.session.get()).arg(low);
        for one in asked {
            one.usual.put_briefly(&mut call);
        }
        call
    }
}
