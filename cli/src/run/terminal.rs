//! Who reads the keyboard: as in a shell, the command's process group has the terminal while it runs, and gives it
//! back when it stops or ends.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

pub(super) struct Terminal {
    terminal: File,
    job: Pid,
    is_wanted_at_once: bool,
}

impl Terminal {
    /// The terminal that this process's job was started from, if it has one.
    pub(super) fn of_this_job(stdin: &OwnedFd) -> Option<Terminal> {
        let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
        // In a pipeline, somebody else may be the one who reads the keyboard: it is given away only when asked for.
        let is_wanted_at_once = stdin.as_fd().is_terminal() && io::stdout().is_terminal();
        Some(Terminal { terminal, job: getpgrp(), is_wanted_at_once })
    }

    pub(super) fn is_wanted_at_once(&self) -> bool {
        self.is_wanted_at_once && self.is_ours()
    }

    /// Whether this job has the terminal.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.terminal).is_ok_and(|group| group == self.job)
    }

    pub(super) fn give(&self, group: Pid) {
        self.hand_to(group);
    }

    /// Takes it back from a group, unless somebody else, such as a shell, has done so.
    pub(super) fn take_back(&self, from: Pid) {
        if tcgetpgrp(&self.terminal).is_ok_and(|group| group == from) {
            self.hand_to(self.job);
        }
    }

    fn hand_to(&self, group: Pid) {
        // Who is not in the foreground is stopped for this, unless it does not hear that signal.
        let mut deaf = SigSet::empty();
        deaf.add(Signal::SIGTTOU);
        let blocked = deaf.thread_block();
        // A terminal that is gone needs no owner.
        let _ = tcsetpgrp(&self.terminal, group);
        if blocked.is_ok() {
            let _ = deaf.thread_unblock();
        }
    }
}
