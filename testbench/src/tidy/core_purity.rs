use super::rust::{Token, paths, tokens};
use super::tree::{Finding, TextFile};

const NO_CLOCK: &str = "the rules see no clock: let the caller pass the time in, or propose the expiry as a command";
const NO_IO: &str = "the rules do no I/O: let the caller do it and pass the outcome in";
const NO_CHANCE: &str = "the rules are deterministic: let the caller pass the random value in";
const NO_ASYNC: &str = "the rules never wait: commands in, events out";
const NO_ORDER: &str =
    "its order differs from run to run: use a BTreeMap, or hashbrown's HashTable for look-ups only";

const PATHS: [(&str, &str); 6] = [
    ("std::time", NO_CLOCK),
    ("std::fs", NO_IO),
    ("std::net", NO_IO),
    ("std::env", NO_IO),
    ("std::process", NO_IO),
    ("std::thread", NO_ASYNC),
];

const WORDS: [(&str, &str); 7] = [
    ("Instant", NO_CLOCK),
    ("SystemTime", NO_CLOCK),
    ("rand", NO_CHANCE),
    ("tokio", NO_ASYNC),
    ("async", NO_ASYNC),
    ("HashMap", NO_ORDER),
    ("HashSet", NO_ORDER),
];

/// Imports that would make `core/src` depend on more than its input: clocks, I/O, chance, threads, async, and
/// collections with a random order.
pub fn impurities(files: &[TextFile]) -> Vec<Finding> {
    let sources = files.iter().filter(|file| file.path.starts_with("core/src/") && file.is_rust());
    sources.flat_map(in_file).collect()
}

fn in_file(file: &TextFile) -> Vec<Finding> {
    let tokens = tokens(&file.text);
    let mut found: Vec<_> = paths(&tokens).iter().filter_map(|(line, path)| forbidden_path(*line, path)).collect();
    found.extend(tokens.iter().filter_map(forbidden_word));
    found.sort();
    found.dedup_by_key(|(line, ..)| *line);
    found.into_iter().map(|(line, what, why)| Finding::new(file, line, format!("`{what}`: {why}"))).collect()
}

fn forbidden_path(line: usize, path: &str) -> Option<(usize, &'static str, &'static str)> {
    let is_below =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
    PATHS.iter().find(|(prefix, _)| is_below(prefix)).map(|(prefix, why)| (line, *prefix, *why))
}

fn forbidden_word(token: &Token) -> Option<(usize, &'static str, &'static str)> {
    WORDS.iter().find(|(word, _)| token.is(word)).map(|(word, why)| (token.line, *word, *why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<Finding> {
        impurities(&[TextFile::new("core/src/lib.rs", source)])
    }

    #[test]
    fn each_impurity_is_found() {
        for source in [
            "use std::time::Duration;",
            "use std::{mem, time::Duration};",
            "let now = Instant::now();",
            "fn f(at: SystemTime) {}",
            "std::fs::read(path)",
            "use std::net;",
            "std::env::var(name)",
            "std::process::abort()",
            "std::thread::sleep(d)",
            "let n = rand::random();",
            "async fn f() {}",
            "use tokio::spawn;",
            "use std::collections::HashMap;",
            "use hashbrown::HashSet;",
        ] {
            assert_eq!(found(source).len(), 1, "{source}");
        }
    }

    #[test]
    fn deterministic_code_is_allowed() {
        let source = "// std::time is for others\nuse std::collections::BTreeMap;\nuse hashbrown::HashTable;\n\
            fn operand(timer: &str) { strand(\"Instant\") } use std::timeless::x;";
        assert_eq!(found(source), []);
        let elsewhere = TextFile::new("lib/src/keeper.rs", "use std::time::Instant;");
        assert_eq!(impurities(&[elsewhere]), []);
    }

    #[test]
    fn the_message_says_where_and_what_to_do() {
        let message = found("\n\nlet now = Instant::now();")[0].to_string();
        assert!(message.starts_with("core/src/lib.rs:3: `Instant`: the rules see no clock"), "{message}");
    }
}
