use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::rust::{Kind, Token, tokens};
use super::tree::{Finding, TextFile};

/// Where golden scripts live.
const SCRIPTS: &str = "core/tests/scripts";

/// Rust files that no `mod` reaches: the compiler never sees them.
pub fn orphaned_sources(files: &[TextFile]) -> Vec<Finding> {
    let sources: BTreeMap<&str, &TextFile> =
        files.iter().filter(|file| file.is_rust()).map(|file| (file.path.as_str(), file)).collect();
    let mut waiting: Vec<(String, bool)> = crate_roots(files).into_iter().map(|path| (path, true)).collect();
    let mut reached = BTreeSet::new();
    while let Some((path, is_root)) = waiting.pop() {
        let Some(file) = sources.get(path.as_str()) else { continue };
        if reached.insert(path) {
            waiting.extend(children(file, is_root).into_iter().map(|path| (path, false)));
        }
    }
    let lost = sources.values().filter(|file| !reached.contains(&file.path));
    let advice = "no `mod` reaches this file, so it is never compiled: declare it, or delete it";
    lost.map(|file| Finding::new(file, 1, advice)).collect()
}

/// Files under `docs/` that nothing else mentions, so that a reader does not find them.
pub fn orphaned_docs(files: &[TextFile]) -> Vec<Finding> {
    let docs = files.iter().filter(|file| file.room() == "docs");
    let lost = docs.filter(|doc| !files.iter().any(|other| other.path != doc.path && mentions(other, doc)));
    let advice = "nothing links here: mention it in the README or in another document, or delete it";
    lost.map(|doc| Finding::new(doc, 1, advice)).collect()
}

/// Golden scripts in a folder that no test of `core` reads.
pub fn orphaned_scripts(files: &[TextFile]) -> Vec<Finding> {
    let tests = files.iter().filter(|file| file.room() == "core" && file.is_rust());
    let texts: Vec<String> = tests.flat_map(|file| tokens(&file.text)).filter_map(text_of).collect();
    let scripts =
        files.iter().filter(|file| file.folder() == SCRIPTS || file.path.starts_with("core/tests/scripts/"));
    let lost = scripts.filter(|script| !texts.iter().any(|text| picks_up(text, script)));
    let advice = "no test in core/tests reads this script: read its folder there, or delete it";
    lost.map(|script| Finding::new(script, 1, advice)).collect()
}

/// The files that cargo compiles without a `mod`: by their path, or because a manifest names them.
fn crate_roots(files: &[TextFile]) -> Vec<String> {
    let mut roots = Vec::new();
    for manifest in files.iter().filter(|file| file.name() == "Cargo.toml") {
        let package = manifest.folder();
        let inside = |file: &&TextFile| within(package, &file.path).is_some_and(is_root_by_place);
        roots.extend(files.iter().filter(inside).map(|file| file.path.clone()));
        let table: Table = manifest.text.parse().unwrap_or_default();
        roots.extend(named_paths(&table).iter().map(|path| join(package, path)));
    }
    roots
}

fn is_root_by_place(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", file] | ["tests" | "benches" | "examples", file] => file.ends_with(".rs"),
        ["src", "bin", _, "main.rs"] | ["tests" | "benches" | "examples", _, "main.rs"] => true,
        _ => false,
    }
}

/// The values of `path` in `[lib]`, `[[bin]]`, `[[test]]`, `[[bench]]` and `[[example]]`.
fn named_paths(manifest: &Table) -> Vec<String> {
    let kinds = ["lib", "bin", "test", "bench", "example"].into_iter().filter_map(|kind| manifest.get(kind));
    let targets = kinds.flat_map(|kind| kind.as_array().cloned().unwrap_or_else(|| vec![kind.clone()]));
    targets.filter_map(|target| target.get("path").and_then(Value::as_str).map(str::to_owned)).collect()
}

/// The files that a source file declares as its modules or includes. Both places of a module are listed.
fn children(file: &TextFile, is_root: bool) -> Vec<String> {
    let stem = file.name().trim_end_matches(".rs");
    let own = if is_root || stem == "mod" { file.folder().to_owned() } else { join(file.folder(), stem) };
    let tokens = tokens(&file.text);
    let mut found = Vec::new();
    let mut inline: Vec<Option<String>> = Vec::new();
    let mut named = None;
    for (at, token) in tokens.iter().enumerate() {
        let rest = &tokens[at..];
        if let Some(path) = path_attribute(rest) {
            named = Some(join(file.folder(), path));
        } else if let Some(path) = included(rest) {
            found.push(join(file.folder(), path));
        } else if let Some(name) = declared_module(rest) {
            let folder = inline.iter().flatten().fold(own.clone(), |folder, name| join(&folder, name));
            found.extend(named.take());
            found.extend([join(&folder, &format!("{name}.rs")), join(&folder, &format!("{name}/mod.rs"))]);
        } else if token.is("{") {
            named = None;
            inline.push(inline_module(&tokens[..at]));
        } else if token.is("}") {
            inline.pop();
        }
    }
    found
}

/// `mod name;`
fn declared_module(tokens: &[Token]) -> Option<&str> {
    match tokens {
        [keyword, name, end, ..] if keyword.is("mod") && end.is(";") => name.word(),
        _ => None,
    }
}

/// `mod name` right before a `{`.
fn inline_module(before: &[Token]) -> Option<String> {
    match before {
        [.., keyword, name] if keyword.is("mod") => name.word().map(str::to_owned),
        _ => None,
    }
}

/// `#[path = "…"]`
fn path_attribute(tokens: &[Token]) -> Option<&str> {
    match tokens {
        [hash, open, word, _, Token { kind: Kind::Text(path), .. }, ..]
            if hash.is("#") && open.is("[") && word.is("path") =>
        {
            Some(path)
        }
        _ => None,
    }
}

/// `include!("…")`
fn included(tokens: &[Token]) -> Option<&str> {
    match tokens {
        [word, Token { kind: Kind::Other('!'), .. }, open, Token { kind: Kind::Text(path), .. }, ..]
            if word.is("include") && open.is("(") =>
        {
            Some(path)
        }
        _ => None,
    }
}

/// By its path from the root, by its path below `docs/`, or by its name from the same folder.
fn mentions(other: &TextFile, doc: &TextFile) -> bool {
    let below = within("docs", &doc.path).unwrap_or(&doc.path);
    other.text.contains(below) || other.folder() == doc.folder() && other.text.contains(doc.name())
}

fn text_of(token: Token) -> Option<String> {
    match token.kind {
        Kind::Text(text) => Some(text),
        _ => None,
    }
}

/// Whether a string of a test names the script, its folder, or a folder above it up to the scripts' own.
fn picks_up(text: &str, script: &TextFile) -> bool {
    let text = text.trim_end_matches(['/', '*']);
    let mut place = script.path.as_str();
    while place.starts_with(SCRIPTS) {
        let short = within("core/tests", place).unwrap_or(place);
        if text == short || text.ends_with(&format!("/{short}")) {
            return true;
        }
        place = place.rsplit_once('/').map_or("", |(folder, _)| folder);
    }
    false
}

/// The part of a path below a folder.
fn within<'a>(folder: &str, path: &'a str) -> Option<&'a str> {
    if folder.is_empty() { Some(path) } else { path.strip_prefix(folder)?.strip_prefix('/') }
}

/// Joins and resolves `.` and `..`.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(check: fn(&[TextFile]) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| TextFile::new(path, text)).collect();
        check(&files).into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn a_source_that_no_mod_reaches_is_found() {
        let files = [
            ("a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("a/src/lib.rs", "mod used; // mod unused;\nmod inline { mod deep; }\n"),
            ("a/src/used.rs", "mod below;"),
            ("a/src/used/below.rs", ""),
            ("a/src/inline/deep.rs", ""),
            ("a/src/unused.rs", "mod child;"),
            ("a/src/unused/child.rs", ""),
            ("a/tests/promise.rs", "mod common;"),
            ("a/tests/common/mod.rs", ""),
            ("a/tests/left/over.rs", ""),
            ("a/benches/left/over.rs", ""),
            ("elsewhere/x.rs", ""),
        ];
        assert_eq!(
            lost(orphaned_sources, &files),
            [
                "a/benches/left/over.rs",
                "a/src/unused.rs",
                "a/src/unused/child.rs",
                "a/tests/left/over.rs",
                "elsewhere/x.rs"
            ]
        );
    }

    #[test]
    fn every_way_of_reaching_a_source_counts() {
        let files = [
            ("a/Cargo.toml", "[[bench]]\nname = \"b\"\npath = \"perf/b.rs\"\n[lib]\npath = \"src/a.rs\"\n"),
            ("a/perf/b.rs", "mod shared;"),
            ("a/perf/shared.rs", ""),
            (
                "a/src/a.rs",
                "#[path = \"../other/c.rs\"]\npub(crate) mod c;\npub mod d;\nfn f() { if x { y } }\nmod e;",
            ),
            ("a/other/c.rs", "include!(\"generated.rs\");"),
            ("a/other/generated.rs", ""),
            ("a/src/d/mod.rs", "mod inner;"),
            ("a/src/d/inner.rs", ""),
            ("a/src/e.rs", ""),
            ("a/src/main.rs", ""),
            ("a/src/bin/tool/main.rs", "mod part;"),
            ("a/src/bin/tool/part.rs", ""),
            ("a/build.rs", ""),
            ("a/examples/x.rs", ""),
        ];
        assert_eq!(lost(orphaned_sources, &files), Vec::<String>::new());
    }

    #[test]
    fn a_document_that_nothing_mentions_is_found() {
        let files = [
            ("README.md", "![picture](docs/seen.svg) and docs/deep/index.md"),
            ("docs/seen.svg", ""),
            ("docs/unseen.md", "I am docs/unseen.md"),
            ("docs/deep/index.md", "[next](neighbour.md)"),
            ("docs/deep/neighbour.md", ""),
        ];
        assert_eq!(lost(orphaned_docs, &files), ["docs/unseen.md"]);
    }

    #[test]
    fn a_golden_script_that_no_test_reads_is_found() {
        let script = ("core/tests/scripts/queue/fair", "> acquire a");
        for (test, is_lost) in [
            ("// tests/scripts", true),
            ("run(\"tests/other\")", true),
            ("run(\"tests/scripts/session\")", true),
            ("run(\"tests/scripts\")", false),
            ("run(\"core/tests/scripts/**\")", false),
            ("root.join(\"scripts\")", false),
            ("run(\"tests/scripts/queue/fair\")", false),
        ] {
            let found = lost(orphaned_scripts, &[script, ("core/tests/golden.rs", test)]);
            assert_eq!(!found.is_empty(), is_lost, "{test}");
        }
    }
}
