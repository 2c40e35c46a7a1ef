//! `palisade serve --new-key` and `--retire-key`: the keys that sign tokens.

use std::io::Write;

use palisade_server::sign::{KeyError, Signer};

use super::plan::Plan;
use crate::outcome::{Failure, unless_closed};

const READ_AGAIN: &str = "A running service reads its keys again on SIGHUP.";

pub(super) fn misuse(why: KeyError) -> Failure {
    Failure::Misuse(why.to_string())
}

/// Makes a key that signs from then on.
pub(super) fn make(plan: &Plan) -> Result<(), Failure> {
    let kid = Signer::new(&plan.config.data_dir).add_key().map_err(misuse)?;
    print(&format!(
        "{kid}\n# This key signs from now on; tokens signed by older keys stay valid until those are retired.\n\
         # {READ_AGAIN}\n# Then have resources fetch /v1/keys again: until then they refuse tokens signed by it.\n"
    ))
}

/// Removes a key.
pub(super) fn retire(plan: &Plan, kid: &str) -> Result<(), Failure> {
    Signer::new(&plan.config.data_dir).retire_key(kid).map_err(misuse)?;
    print(&format!(
        "# Key {kid} is removed.\n# {READ_AGAIN}\n\
         # Then have resources fetch /v1/keys again: until then they accept tokens signed by it.\n"
    ))
}

fn print(text: &str) -> Result<(), Failure> {
    unless_closed(anstream::stdout().write_all(text.as_bytes()))
}
