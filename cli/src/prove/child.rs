//! Child processes that the kernel kills when the experiment ends.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// The first argument of the wrapper that executes a server; then follow its parent's PID, the program and its arguments.
const SERVER: &str = "_server";

/// Returns the command that runs this binary in another role, as a child that dies with this process.
pub(super) fn self_command(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(role).arg(getpid().as_raw_nonzero().to_string());
    command
}

/// Returns the command that runs a server, as a child that dies with this process.
pub(super) fn server(program: impl AsRef<OsStr>) -> Command {
    let mut command = self_command(SERVER);
    command.arg(program);
    command
}

/// Returns the arguments if this process was started in this role, and asks the kernel to kill it when its parent dies.
/// `None`: another role. `Err`: the parent is already gone, or its death cannot be noticed. The process must exit at once.
pub(super) fn enter_role(role: &str, args: &[OsString]) -> Option<Result<Vec<OsString>, ExitCode>> {
    let [_, first, parent, rest @ ..] = args else { return None };
    if first != role {
        return None;
    }
    let death_signal = set_parent_process_death_signal(Some(Signal::KILL));
    let is_parent_alive = getppid().is_some_and(|pid| **parent == *pid.as_raw_nonzero().to_string());
    Some(if death_signal.is_err() || !is_parent_alive { Err(ExitCode::FAILURE) } else { Ok(rest.to_vec()) })
}

/// Executes the server, if this process was started as its wrapper.
pub(super) fn become_server(args: &[OsString]) -> Option<ExitCode> {
    let args = match enter_role(SERVER, args)? {
        Ok(args) => args,
        Err(code) => return Some(code),
    };
    let (program, args) = args.split_first()?;
    let error = Command::new(program).args(args).exec();
    crate::outcome::say(&format!("cannot start {}: {error}", program.to_string_lossy()));
    Some(ExitCode::from(127))
}
