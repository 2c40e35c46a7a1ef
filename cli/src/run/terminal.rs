//! The foreground process group: as in a shell, the command's group has the terminal while it runs, and gives it back
//! when it stops or ends.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

pub(super) struct Terminal {
    terminal: File,
    job: Pid,
    modes: Option<Termios>,
    is_interactive: bool,
}

impl Terminal {
    /// Opens the terminal that a job was started from, if it has one. The job is the process group that the shell started.
    pub(super) fn of_job(job: Pid, stdin: impl AsFd) -> Option<Terminal> {
        let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let modes = tcgetattr(&terminal).ok();
        // In a pipeline another process may read the keyboard, so the command gets the terminal only on SIGTTIN.
        let is_interactive = stdin.as_fd().is_terminal() && io::stdout().is_terminal();
        Some(Terminal { terminal, job, modes, is_interactive })
    }

    /// Whether the command gets the terminal without asking for it.
    pub(super) fn is_interactive(&self) -> bool {
        self.is_interactive && self.is_ours()
    }

    /// Whether this job has the terminal.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.terminal).is_ok_and(|group| group == self.job)
    }

    pub(super) fn give(&self, group: Pid) {
        // A terminal that is gone needs no owner.
        let _ = with_sigttou_blocked(|| tcsetpgrp(&self.terminal, group));
    }

    /// Takes the terminal back from a group, unless a shell has done so. Returns whether the group had it.
    pub(super) fn take_back(&self, from: Pid) -> bool {
        let had_it = tcgetpgrp(&self.terminal).is_ok_and(|group| group == from);
        if had_it {
            self.give(self.job);
        }
        had_it
    }

    /// Takes the terminal back from a group that was killed, and restores its modes.
    pub(super) fn recover(&self, from: Pid) {
        if self.take_back(from)
            && let Some(modes) = &self.modes
        {
            let _ = with_sigttou_blocked(|| tcsetattr(&self.terminal, OptionalActions::Now, modes));
        }
    }
}

/// Returns the process group of a process, or of this one. `None` if the process is gone, or if its group is outside of this PID
/// namespace, as that of a container's first process may be: the system then returns 0.
pub(super) fn group_of(process: Option<Pid>) -> Option<Pid> {
    let process = process.map(|pid| nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get()));
    nix::unistd::getpgid(process).ok().and_then(|group| Pid::from_raw(group.as_raw()))
}

/// Blocks SIGTTOU, which stops a background process that changes the terminal.
fn with_sigttou_blocked<T>(change: impl FnOnce() -> T) -> T {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    let blocked = mask.thread_block();
    let changed = change();
    if blocked.is_ok() {
        let _ = mask.thread_unblock();
    }
    changed
}
