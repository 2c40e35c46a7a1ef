//! The lock rules in Lua, as Redis runs them: a function or a script for this engine, and functions for other programs.

use std::sync::LazyLock;

use redis::{Cmd, Script};

const FAST_PATH: &str = include_str!("fast_path.lua");
const WORDS: &str = include_str!("words.lua");
const RULES: &str = include_str!("rules.lua");
const CALL: &str = include_str!("call.lua");
const CHECK: &str = include_str!("check.lua");
const FUNCTIONS: &str = include_str!("functions.lua");

/// Lua code that Redis runs, and its name there.
struct Code {
    source: String,
    name: String,
}

static SCRIPT: LazyLock<Code> = LazyLock::new(|| {
    let source = format!("{FAST_PATH}\n{}\n{CALL}", rules());
    let name = hash(&source);
    Code { source, name }
});

/// The name contains a hash of the code, so that builds with different code use different functions.
static FUNCTION: LazyLock<Code> = LazyLock::new(|| {
    let (rules, call) = (rules(), format!("function(KEYS, ARGV)\n{FAST_PATH}\n{CALL}\nend"));
    let name = format!("palisade_engine_{}", &hash(&[&*rules, &call].concat())[..16]);
    let source = format!("#!lua name={name}\n{rules}\nredis.register_function('{name}', {call})\n");
    Code { source, name }
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

/// Returns a call of the function, without keys and arguments.
pub(super) fn by_function() -> Cmd {
    command("FCALL", &FUNCTION.name)
}

/// Returns the command that loads the function.
pub(super) fn load_function() -> Cmd {
    let mut load = command("FUNCTION", "LOAD");
    load.arg(&FUNCTION.source);
    load
}

/// Returns a call of the script by its hash, without keys and arguments.
pub(super) fn by_hash() -> Cmd {
    command("EVALSHA", &SCRIPT.name)
}

/// Returns a call of the script by its source, without keys and arguments. Afterwards the server has the script by its hash.
pub(super) fn by_source() -> Cmd {
    command("EVAL", &SCRIPT.source)
}

/// Returns a call that checks the stored data, without keys.
pub(super) fn check() -> Cmd {
    command("EVAL", &format!("{}\n{CHECK}\nreturn rule.check(KEYS)", rules()))
}

/// A library of functions for Redis 7. After `FUNCTION LOAD`, `redis-cli` or any language can use the same locks by `FCALL`.
///
/// ```
/// let library = palisade::engine::redis::functions();
/// assert!(library.starts_with("#!lua name=palisade_locks\n"));
/// ```
pub fn functions() -> String {
    format!("#!lua name=palisade_locks\n{}\n{CHECK}\n{FUNCTIONS}", rules())
}
