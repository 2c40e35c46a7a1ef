//! The environment of a block: a private home, working directory and lock file.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::common::{bounded, environment};

/// A private directory tree for one block.
pub(crate) struct SandboxDir {
    directory: TempDir,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct RunOutput {
    /// `None` if it did not end in time, or a signal ended it.
    pub(crate) code: Option<i32>,
    /// stdout and stderr, as they came.
    pub(crate) printed: String,
}

impl SandboxDir {
    /// Makes a sandbox with `palisade` and these programs, which do nothing, on the `PATH` or in the working directory.
    pub(crate) fn new(given: &[String]) -> SandboxDir {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made");
        let sandbox = SandboxDir { directory };
        for part in ["home", "bin", "root"] {
            fs::create_dir(sandbox.part(part)).expect("it is empty");
        }
        symlink(env!("CARGO_BIN_EXE_palisade"), sandbox.part("bin/palisade")).expect("it is empty");
        // The README begins with `cargo run`. Palisade is already built, so this stub only runs it.
        sandbox.put("bin/cargo", "#!/bin/sh\n[ \"$1 $2\" = 'run --' ] && shift 2 && exec palisade \"$@\"\n");
        for program in given {
            let path = match program.contains('/') {
                true => sandbox.part("home").join(program),
                false => sandbox.part("bin").join(program),
            };
            sandbox.put(&path, "#!/bin/sh\n");
        }
        sandbox
    }

    fn put(&self, name: impl AsRef<Path>, script: &str) {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("it is ours");
        fs::write(&path, script).expect("it is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Rewrites the `embedded:` URLs of a text to files in this sandbox.
    pub(crate) fn rewrite_urls(&self, text: &str) -> String {
        const SCHEME: &str = "embedded:";
        let mut parts = text.split(SCHEME);
        let mut rewritten = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| c.is_whitespace() || "'\"`,;)|&".contains(c)).unwrap_or(part.len());
            let file = match part[..end].strip_prefix("//") {
                Some(path) if path.starts_with('/') => Some(self.part("root").join(&path[1..])),
                _ if end == 0 => Some(self.part("locks.db")),
                _ => None,
            };
            match file {
                Some(file) => {
                    let directory = file.parent().expect("a file is in a directory");
                    fs::create_dir_all(directory).expect("it is ours");
                    // Independent of the umask, since pages show the mode.
                    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
                    rewritten += &format!("{SCHEME}//{}{}", file.display(), &part[end..]);
                }
                None => rewritten += &format!("{SCHEME}{part}"),
            }
        }
        rewritten
    }

    /// Removes the sandbox's paths from the output.
    pub(crate) fn restore_urls(&self, text: &str) -> String {
        let path = |name: &str| self.part(name).display().to_string();
        let text = environment::without_host_config(text);
        text.replace(&format!("//{}", path("locks.db")), "").replace(&path("root"), "").replace(&path("home"), "~")
    }

    /// Runs a program to its end, then kills the processes that it left behind.
    pub(crate) fn run(&self, program: &str, args: &[&str], with_url: bool) -> RunOutput {
        let printed = self.part("printed");
        let output = fs::File::create(&printed).expect("it is ours");
        let mut command = self.command(program);
        command.args(args).current_dir(self.part("home")).process_group(0);
        command.stdout(output.try_clone().expect("a file can be shared")).stderr(output);
        if with_url {
            command.env("PALISADE_URL", format!("embedded://{}", self.part("locks.db").display()));
        }
        let mut child = command.spawn().unwrap_or_else(|error| bounded::absent(program, &error));
        let group = Pid::from_child(&child);
        let ended = bounded::end_of(&mut child);
        // Most groups are already empty.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = child.wait();
        let bytes = fs::read(printed).expect("it is ours");
        RunOutput {
            code: ended.and_then(|status| status.code()),
            printed: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = environment::command(program, self.part("home"));
        let usual = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{usual}", self.part("bin").display()));
        command.env("TERM", "dumb").env("COLUMNS", "100");
        for (name, folder) in [("STATE", "state"), ("CONFIG", "config"), ("DATA", "data"), ("CACHE", "cache")] {
            command.env(format!("XDG_{name}_HOME"), self.part("home").join(folder));
        }
        command
    }

    /// Writes a file outside the block's working directory, and returns its path.
    pub(crate) fn write_file(&self, name: &str, text: &str) -> String {
        let path = self.part(name);
        fs::write(&path, text).expect("it is ours");
        path.display().to_string()
    }

    /// Reads a number that the run wrote to a file.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        fs::read_to_string(self.part(name)).ok()?.trim().parse().ok()
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_rewritten_and_restored() {
        let sandbox = SandboxDir::new(&[]);
        let text = "palisade --url embedded:///srv/a/locks.db ls; x=\"embedded:\" y=embedded:mine.db";
        let rewritten = sandbox.rewrite_urls(text);
        let root = sandbox.path().display();
        assert!(rewritten.contains(&format!("--url embedded://{root}/root/srv/a/locks.db ls")), "{rewritten}");
        assert!(rewritten.ends_with("y=embedded:mine.db"), "{rewritten}");
        assert!(sandbox.part("root/srv/a").is_dir());
        assert_eq!(sandbox.restore_urls(&rewritten), text);
    }

    #[test]
    fn leftover_processes_of_a_run_are_ended() {
        let sandbox = SandboxDir::new(&[]);
        let output = sandbox.run("bash", &["-c", "sleep 1000 & echo $!"], true);
        let pid = output.printed.trim();
        let stat = || fs::read_to_string(format!("/proc/{pid}/stat"));
        bounded::until("what was left behind ends", || stat().map_or(true, |stat| stat.contains(") Z ")));
    }
}
