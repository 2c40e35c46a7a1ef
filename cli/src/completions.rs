//! `palisade completions`: lets a shell complete commands and options.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::outcome::{Failure, unless_closed};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Where to put it:
  bash        ~/.local/share/bash-completion/completions/palisade
  zsh         ~/.zfunc/_palisade
              and in ~/.zshrc, before compinit: fpath+=~/.zfunc
  fish        ~/.config/fish/completions/palisade.fish
  elvish      append it to ~/.config/elvish/rc.elv
  powershell  append it to $PROFILE

Examples:
  palisade completions zsh > ~/.zfunc/_palisade
  palisade completions elvish >> ~/.config/elvish/rc.elv

Make the directory first if it is not there. The next shell that starts has it.";

/// The options of `palisade completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Args::command(), "palisade", &mut script);
    unless_closed(std::io::stdout().lock().write_all(&script))
}
