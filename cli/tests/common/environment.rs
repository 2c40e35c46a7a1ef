//! The environment of commands: nothing of the user who runs the tests, or of a host that uses Palisade, reaches them.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

/// The variables that commands inherit: what finds programs, libraries and temporary files, and what measures and explains.
const INHERITED: [&str; 5] = ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "LLVM_PROFILE_FILE", "RUST_BACKTRACE"];

/// The home of a command that needs none. It does not exist.
pub(crate) const NO_HOME: &str = "/nonexistent";

/// The configuration that a command reads if no other one is named.
const HOST_CONFIG: &str = "/etc/palisade/config.toml";

/// An empty configuration.
const NO_CONFIG: &str = "/dev/null";

/// Returns a command without input, whose environment is [`variables`].
pub(crate) fn command(program: impl AsRef<OsStr>, home: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(variables(home.as_ref())).stdin(Stdio::null());
    command
}

/// Returns `palisade`, as [`command`].
pub(crate) fn palisade(home: impl AsRef<Path>) -> Command {
    command(env!("CARGO_BIN_EXE_palisade"), home)
}

/// Returns the environment of a command whose home is this directory.
pub(crate) fn variables(home: &Path) -> Vec<(&'static str, OsString)> {
    let inherited = INHERITED.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let own = [("HOME", home.as_os_str().to_owned()), ("LANG", OsString::from("C.UTF-8"))];
    // Where the host has no configuration, commands look for it and find none.
    let config = Path::new(HOST_CONFIG).exists().then(|| ("PALISADE_CONFIG", OsString::from(NO_CONFIG)));
    inherited.chain(own).chain(config).collect()
}

/// Hides from a report of `palisade serve --check` that the host's configuration was replaced by an empty one.
pub(crate) fn without_host_config(report: &str) -> String {
    report.replace(&format!("config       {NO_CONFIG}\n"), "config       none\n")
}
