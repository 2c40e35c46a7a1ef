//! The rules as Redis gets them: as a script for this engine, and as functions for everybody's own shell.

use std::sync::LazyLock;

use redis::{Cmd, Script};

const USUAL: &str = include_str!("usual.lua");
const WORDS: &str = include_str!("words.lua");
const RULES: &str = include_str!("rules.lua");
const CALL: &str = include_str!("call.lua");
const FUNCTIONS: &str = include_str!("functions.lua");

/// The script, and the hash that names it.
struct Carried {
    text: String,
    hash: String,
}

static SCRIPT: LazyLock<Carried> = LazyLock::new(|| {
    let text = format!("{USUAL}\n{}\n{CALL}", rules());
    let hash = Script::new(&text).get_hash().to_owned();
    Carried { text, hash }
});

fn rules() -> String {
    format!("{WORDS}\nlocal function make()\n{RULES}\nend\nmake()")
}

/// A call of the script by its hash, up to its keys.
pub(super) fn by_hash() -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(&SCRIPT.hash);
    call
}

/// The same with the script itself, which the server then knows.
pub(super) fn by_text() -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(&SCRIPT.text);
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
    format!("#!lua name=palisade_locks\n{}\n{FUNCTIONS}", rules())
}
