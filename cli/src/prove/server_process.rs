//! A server of an experiment: a process with its output in a file, gone when it is dropped.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use palisade_cli::harness::wall_clock::remove_shared_memory;
use rustix::process::{Pid, Signal, kill_process};

use super::child;

/// A process that ends with this value.
pub(super) struct ServerProcess {
    process: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a command of [`child::server`] with these variables in an otherwise empty environment. Appends its output to `log`.
    pub(super) fn start<'a>(
        command: &mut Command,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
        log: PathBuf,
    ) -> io::Result<ServerProcess> {
        let kept = ["PATH", "LANG"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.env_clear().envs(kept).envs(variables);
        let output = File::options().create(true).append(true).open(&log)?;
        // A separate process group, so that Ctrl-C reaches only the parent, which kills the server.
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        Ok(ServerProcess { process: command.spawn()?, log })
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Returns how it has ended; `None` while it runs.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(&self, signal: Signal) {
        // Its id stays taken until it is waited for.
        let _ = kill_process(self.pid(), signal);
    }

    /// Kills it, also if it is stopped.
    pub(super) fn end(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove_shared_memory(self.process.id());
    }

    /// Returns the last lines of its output, in one line.
    pub(super) fn last_lines(&self) -> String {
        let output = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = output.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the command of `palisade serve`, with an empty configuration in this folder.
pub(super) fn palisade(folder: &Path) -> io::Result<Command> {
    let config = folder.join("palisade.toml");
    fs::write(&config, "")?;
    let mut command = child::server(std::env::current_exe()?);
    command.arg("--config").arg(config).arg("serve");
    Ok(command)
}
