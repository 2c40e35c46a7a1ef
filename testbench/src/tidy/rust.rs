//! A small tokenizer of Rust: words, strings and punctuation with their lines, without the comments.

/// One token of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) kind: Kind,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier, a keyword or a number.
    Word(String),
    /// The text between the quotes, with its escapes.
    Text(String),
    /// `::` is one token; everything else is one character.
    Sign(&'static str),
    /// Any other character.
    Other(char),
}

impl Token {
    /// The word, if it is one.
    pub(super) fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    /// Whether it is this word or this sign.
    pub(super) fn is(&self, wanted: &str) -> bool {
        match &self.kind {
            Kind::Word(word) => word == wanted,
            Kind::Sign(sign) => *sign == wanted,
            Kind::Text(_) | Kind::Other(_) => false,
        }
    }
}

const SIGNS: [&str; 10] = ["::", "{", "}", "(", ")", "[", "]", ";", ",", "#"];

/// Splits a source file into tokens.
pub(super) fn tokens(source: &str) -> Vec<Token> {
    let mut reader = Reader { rest: source, line: 1 };
    let mut tokens = Vec::new();
    while !reader.rest.is_empty() {
        let line = reader.line;
        if let Some(kind) = reader.next_kind() {
            tokens.push(Token { line, kind });
        }
    }
    tokens
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Reader<'a> {
    /// Takes one token, or skips white space and comments.
    fn next_kind(&mut self) -> Option<Kind> {
        let first = self.rest.chars().next()?;
        if self.rest.starts_with("//") {
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
            None
        } else if self.rest.starts_with("/*") {
            self.take(block_comment_length(self.rest));
            None
        } else if let Some((opening, closing)) = string_quotes(self.rest) {
            Some(self.string(opening, &closing))
        } else if let Some(length) = char_length(self.rest) {
            self.take(length);
            None
        } else if is_word(first) {
            let raw = if self.rest.starts_with("r#") { 2 } else { 0 };
            self.take(raw);
            let length = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
            Some(Kind::Word(self.take(length).to_owned()))
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| self.rest.starts_with(sign)) {
            self.take(sign.len());
            Some(Kind::Sign(sign))
        } else {
            self.take(first.len_utf8());
            (!first.is_whitespace()).then_some(Kind::Other(first))
        }
    }

    fn string(&mut self, opening: usize, closing: &str) -> Kind {
        let has_escapes = closing.len() == 1 && !self.rest[..opening].contains('r');
        self.take(opening);
        let mut end = 0;
        while end < self.rest.len() && !self.rest[end..].starts_with(closing) {
            let escaped = has_escapes && self.rest[end..].starts_with('\\');
            let step = self.rest[end..].chars().take(if escaped { 2 } else { 1 });
            end += step.map(char::len_utf8).sum::<usize>();
        }
        let text = self.take(end).to_owned();
        self.take(closing.len().min(self.rest.len()));
        Kind::Text(text)
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a string's opening (`"`, `b"`, `r#"`, `br"`, `c"`) and its closing.
fn string_quotes(rest: &str) -> Option<(usize, String)> {
    let prefix = rest.bytes().take_while(|byte| matches!(byte, b'b' | b'c' | b'r')).count().min(2);
    let hashes = rest[prefix..].bytes().take_while(|byte| *byte == b'#').count();
    let is_raw = rest[..prefix].ends_with('r');
    if (hashes > 0 && !is_raw) || !rest[prefix + hashes..].starts_with('"') {
        return None;
    }
    Some((prefix + hashes + 1, format!("\"{}", "#".repeat(hashes))))
}

/// The length of a character literal; `None` for a lifetime.
fn char_length(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    if body.starts_with('\\') {
        let end = body.char_indices().skip(2).find(|(_, c)| *c == '\'')?;
        return Some(end.0 + 2);
    }
    let first = body.chars().next()?.len_utf8();
    body[first..].starts_with('\'').then_some(first + 2)
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest[at..];
        let step = if here.starts_with("/*") {
            depth += 1;
            2
        } else if here.starts_with("*/") {
            depth -= 1;
            2
        } else {
            here.chars().next().map_or(1, char::len_utf8)
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Keywords that can stand before a path with a leading `::` but are no part of it.
const NEVER_IN_PATHS: [&str; 12] =
    ["use", "return", "in", "as", "dyn", "impl", "for", "mut", "match", "if", "else", "break"];

/// Every path of the source with `::` in it, groups written out: `use std::{fs, io::Read}` is `std::fs` and
/// `std::io::Read`. A lone name after `use` counts as a path too.
pub(super) fn paths(tokens: &[Token]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let follows = |sign: &str| at > 0 && tokens[at - 1].is(sign);
        let continues = tokens.get(at + 1).is_some_and(|next| next.is("::"));
        let is_path = continues || follows("use") || follows("crate") || follows("::");
        at = match token.word() {
            Some(word) if is_path && !NEVER_IN_PATHS.contains(&word) => expand(tokens, at, "", &mut found),
            None if token.is("{") && follows("use") => group(tokens, at, "", &mut found),
            _ => at + 1,
        };
    }
    found
}

/// Writes out the path that starts at `at`; returns where it ends.
fn expand(tokens: &[Token], mut at: usize, prefix: &str, found: &mut Vec<(usize, String)>) -> usize {
    let mut path = prefix.to_owned();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while let Some(word) = tokens.get(at).and_then(Token::word) {
        if !path.is_empty() {
            path.push_str("::");
        }
        path.push_str(word);
        at += 1;
        if !tokens.get(at).is_some_and(|token| token.is("::")) {
            break;
        }
        at += 1;
        if tokens.get(at).is_some_and(|token| token.is("{")) {
            return group(tokens, at, &path, found);
        }
    }
    found.push((line, path));
    at
}

/// Writes out the group that starts with the `{` at `at`; returns where it ends.
fn group(tokens: &[Token], mut at: usize, prefix: &str, found: &mut Vec<(usize, String)>) -> usize {
    at += 1;
    while let Some(token) = tokens.get(at) {
        if token.is("}") {
            return at + 1;
        }
        at = match token.word() {
            Some("as") => at + 2,
            Some(_) => expand(tokens, at, prefix, found),
            None => at + 1,
        };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        tokens(source).iter().filter_map(Token::word).map(str::to_owned).collect()
    }

    fn paths_of(source: &str) -> Vec<String> {
        paths(&tokens(source)).into_iter().map(|(_, path)| path).collect()
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let source =
            "// one\n/* two /* three */ four */ five(\"six // \\\" seven\", r#\"eight \" nine\"#, b\"ten\");";
        assert_eq!(words(source), ["five"]);
    }

    #[test]
    fn quotes_of_characters_and_lifetimes_do_not_confuse() {
        assert_eq!(
            words("let a = '\"'; b('\\'', '\\u{1F512}', '\u{1F512}'); c::<'d>()"),
            ["let", "a", "b", "c", "d"]
        );
        assert_eq!(words("r#type bar crab"), ["type", "bar", "crab"]);
    }

    #[test]
    fn broken_sources_end_all_the_same() {
        for source in ["\"", "r#\"", "/*", "'", "'\\", "b", "r#", "use a::{b", "use {", "::", "\\"] {
            paths(&tokens(source));
        }
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let last = tokens("/*\n\n*/ \"a\nb\" // c\nd").pop().unwrap();
        assert_eq!((last.line, last.word()), (5, Some("d")));
    }

    #[test]
    fn groups_are_written_out() {
        assert_eq!(
            paths_of("use std::{fs, io::{self, Read}, time as t}; let x = a::b();"),
            ["std::fs", "std::io::self", "std::io::Read", "std::time", "a::b"]
        );
        assert_eq!(
            paths_of("use {std::fs, ::std::net}; extern crate palisade as p; return ::std::thread::spawn()"),
            ["std::fs", "std::net", "palisade", "std::thread::spawn"]
        );
    }
}
