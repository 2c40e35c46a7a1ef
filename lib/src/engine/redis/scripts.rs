//! The rules as Redis runs them: a function or a script for this engine, and functions for other programs.

use std::sync::LazyLock;

use redis::{Cmd, Script};

const FAST_PATH: &str = include_str!("fast_path.lua");
const WORDS: &str = include_str!("words.lua");
const RULES: &str = include_str!("rules.lua");
const CALL: &str = include_str!("call.lua");
const CHECK: &str = include_str!("check.lua");
const FUNCTIONS: &str = include_str!("functions.lua");

/// A text that Redis runs, and its name there.
struct Code {
    text: String,
    name: String,
}

static SCRIPT: LazyLock<Code> = LazyLock::new(|| {
    let text = format!("{FAST_PATH}\n{}\n{CALL}", rules());
    let name = hash(&text);
    Code { text, name }
});

/// The name has a hash of the text, so that builds with other rules have their own function.
static FUNCTION: LazyLock<Code> = LazyLock::new(|| {
    let (rules, call) = (rules(), format!("function(KEYS, ARGV)\n{FAST_PATH}\n{CALL}\nend"));
    let name = format!("palisade_engine_{}", &hash(&[&*rules, &call].concat())[..16]);
    let text = format!("#!lua name={name}\n{rules}\nredis.register_function('{name}', {call})\n");
    Code { text, name }
});

fn hash(text: &str) -> String {
    Script::new(text).get_hash().to_owned()
}

fn rules() -> String {
    format!("{WORDS}\nlocal function make()\n{RULES}\nend\nmake()")
}

fn command(name: &str, arg: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(arg);
    command
}

/// Returns a call of the function, up to its keys.
pub(super) fn by_function() -> Cmd {
    command("FCALL", &FUNCTION.name)
}

/// Returns the command that loads the function.
pub(super) fn load_function() -> Cmd {
    let mut load = command("FUNCTION", "LOAD");
    load.arg(&FUNCTION.text);
    load
}

/// Returns a call of the script by its hash, up to its keys.
pub(super) fn by_hash() -> Cmd {
    command("EVALSHA", &SCRIPT.name)
}

/// Returns a call of the script by its text, up to its keys. The server then knows the hash.
pub(super) fn by_text() -> Cmd {
    command("EVAL", &SCRIPT.text)
}

/// Returns a call that checks the stored data, up to its keys.
pub(super) fn check() -> Cmd {
    command("EVAL", &format!("{}\n{CHECK}\nreturn rule.check(KEYS)", rules()))
}

/// A library of functions for Redis 7 with the same rules: `FUNCTION LOAD` it, and use the same locks by `FCALL` from
/// `redis-cli` or any language.
///
/// ```
/// let library = palisade::engine::redis::functions();
/// assert!(library.starts_with("#!lua name=palisade_locks\n"));
/// ```
pub fn functions() -> String {
    format!("#!lua name=palisade_locks\n{}\n{CHECK}\n{FUNCTIONS}", rules())
}
