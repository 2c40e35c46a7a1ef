use super::rust::{Token, tokens};
use super::tree::{Finding, TextFile};

/// Words that say nothing about what a type is.
const BANNED: [&str; 6] = ["Manager", "Helper", "Util", "Impl", "Provider", "Handler"];

/// Names that once stood for several things, and what to write instead.
const AMBIGUOUS: [(&str, &str); 16] = [
    ("Line", "Connection, or what the line of text is"),
    ("Lines", "Reconnector or Subscribers"),
    ("Lasting", "ClientState"),
    ("Trouble", "an error named after what failed"),
    ("Said", "Reply"),
    ("Told", "Notice"),
    ("Given", "Params"),
    ("Heard", "what was received"),
    ("Place", "Target, Location, or what it is"),
    ("Known", "what is known"),
    ("Usual", "FastPath"),
    ("Vow", "HardState"),
    ("Tenant", "DirLock"),
    ("Scene", "Fixture"),
    ("Papers", "Credentials"),
    ("Who", "Principal"),
];

/// Types, traits and aliases with a banned word in their name, or with an ambiguous name.
pub fn banned_type_names(files: &[TextFile]) -> Vec<Finding> {
    files.iter().filter(|file| file.is_rust()).flat_map(in_file).collect()
}

fn in_file(file: &TextFile) -> Vec<Finding> {
    let tokens = tokens(&file.text);
    let named =
        tokens.windows(2).filter(|pair| declares(&pair[0])).filter_map(|pair| Some((&pair[1], pair[1].word()?)));
    let mut findings = Vec::new();
    for (token, name) in named {
        if let Some(banned) = banned_word(name) {
            let advice =
                format!("`{name}`: \"{banned}\" says nothing; name the type after what it is or what it promises");
            findings.push(Finding::new(file, token.line, advice));
        }
        if let Some((_, better)) = AMBIGUOUS.iter().find(|(ambiguous, _)| *ambiguous == name) {
            findings.push(Finding::new(file, token.line, format!("`{name}` means too many things: write {better}")));
        }
    }
    findings
}

fn declares(token: &Token) -> bool {
    ["struct", "enum", "trait", "type", "union"].iter().any(|keyword| token.is(keyword))
}

/// The banned word among the camel-case words of a name, also in the plural.
fn banned_word(name: &str) -> Option<&'static str> {
    let starts: Vec<usize> =
        name.char_indices().filter(|(_, c)| c.is_uppercase() || *c == '_').map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([name.len()]);
    let words: Vec<&str> = starts.iter().zip(ends).map(|(start, end)| name[*start..end].trim_matches('_')).collect();
    BANNED.into_iter().find(|banned| words.iter().any(|word| word.strip_suffix('s').unwrap_or(word) == *banned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<Finding> {
        banned_type_names(&[TextFile::new("lib/src/lib.rs", source)])
    }

    #[test]
    fn banned_words_are_found_in_every_kind_of_type() {
        for source in [
            "struct LockManager;",
            "pub enum HelperKind { A }",
            "pub(crate) trait TimeUtils {}",
            "type X = u8; type StoreImpl<T> = T;",
            "struct Provider<'a>(&'a str);",
            "union EventHandler { a: u8 }",
        ] {
            assert_eq!(found(source).len(), 1, "{source}");
        }
        assert_eq!((found("struct Line;").len(), found("struct LineBuffer;").len()), (1, 0));
        let message = found("\nstruct LockManager;")[0].to_string();
        assert!(message.starts_with("lib/src/lib.rs:2: `LockManager`: \"Manager\" says nothing"), "{message}");
    }

    #[test]
    fn other_names_are_allowed() {
        for source in [
            "struct Utility; struct Implied; struct Manage; fn handler() {}",
            "// struct LockManager\nlet x: LockManager = other::LockManager::new();",
            "impl Token {} fn f(x: impl Fn()) {} struct $name;",
        ] {
            assert_eq!(found(source), [], "{source}");
        }
    }
}
