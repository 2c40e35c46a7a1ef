//! `palisade serve --new-user`: prints a new secret once, and the lines for the configuration.

use std::io::Write;

use palisade_server::access::{Secret, User};

use crate::outcome::{Failure, unless_closed};

pub(super) fn make(name: &str) -> Result<(), Failure> {
    let secret = Secret::random()?;
    User::new(name, Some(secret.hash()), Vec::new()).map_err(|why| Failure::Misuse(why.to_string()))?;
    let text = format!(
        "\
# The secret of {name}. It is shown only now, and stored nowhere.
# {}

# For the service's configuration file. The rules say what {name} may do; without a rule it may do nothing.
[[serve.users]]
name = \"{name}\"
secret_hash = \"{}\"
rules = [{{ verbs = [\"observe\", \"acquire\"], prefix = \"{name}/\" }}]
",
        secret.reveal(),
        secret.hash()
    );
    unless_closed(anstream::stdout().write_all(text.as_bytes()))
}
