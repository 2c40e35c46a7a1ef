//! The rules as Redis gets them: as a function or a script for this engine, and as functions for everybody's own shell.

use std::sync::LazyLock;

use redis::{Cmd, Script};

const USUAL: &str = include_str!("usual.lua");
const WORDS: &str = include_str!("words.lua");
const RULES: &str = include_str!("rules.lua");
const CALL: &str = include_str!("call.lua");
const CHECK: &str = include_str!("check.lua");
const FUNCTIONS: &str = include_str!("functions.lua");

/// What Redis is given, and what it calls it.
struct Carried {
    text: String,
    name: String,
}

static SCRIPT: LazyLock<Carried> = LazyLock::new(|| {
    let text = format!("{USUAL}\n{}\n{CALL}", rules());
    let name = hash(&text);
    Carried { text, name }
});

/// Its name says what is in it, so that builds with other rules find theirs beside it.
static FUNCTION: LazyLock<Carried> = LazyLock::new(|| {
    let (rules, call) = (rules(), format!("function(KEYS, ARGV)\n{USUAL}\n{CALL}\nend"));
    let name = format!("palisade_engine_{}", &hash(&[&*rules, &call].concat())[..16]);
    let text = format!("#!lua name={name}\n{rules}\nredis.register_function('{name}', {call})\n");
    Carried { text, name }
});

fn hash(text: &str) -> String {
    Script::new(text).get_hash().to_owned()
}

fn rules() -> String {
    format!("{WORDS}\nlocal function make()\n{RULES}\nend\nmake()")
}

/// A call of the function, up to its keys.
pub(super) fn by_function() -> Cmd {
    let mut call = redis::cmd("FCALL");
    call.arg(&FUNCTION.name);
    call
}

/// Makes the function known to a server that does not know it.
pub(super) fn load_function() -> Cmd {
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg(&FUNCTION.text);
    load
}

/// A call of the script by its hash, up to its keys.
pub(super) fn by_hash() -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(&SCRIPT.name);
    call
}

/// The same with the script itself, which the server then knows.
pub(super) fn by_text() -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(&SCRIPT.text);
    call
}

/// A call that says what is wrong with what is stored, up to its keys.
pub(super) fn check() -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(format!("{}\n{CHECK}\nreturn rule.check(KEYS)", rules()));
    call
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
