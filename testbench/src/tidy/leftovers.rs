use super::rust::{Token, tokens};
use super::tree::{Finding, TextFile};

/// Markers of notes for later. Written in two halves so that the rule does not find this file.
const MARKER_WORDS: [&str; 4] = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X"), concat!("HA", "CK")];
const MARKER_MACROS: [&str; 3] = [concat!("to", "do!("), concat!("unimplemented", "!("), concat!("db", "g!(")];

/// The parents of home directories. In two halves for the same reason.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// Crate roots that may go without the attribute, each with its reason.
const UNSAFE_ALLOWED: [(&str, &str); 0] = [];

/// Notes for later, in every text file but the lock file and the licences.
pub fn markers(files: &[TextFile]) -> Vec<Finding> {
    let ours = files.iter().filter(|file| file.path != "Cargo.lock" && !file.name().starts_with("LICENSE"));
    in_lines(ours, |line| {
        let word = MARKER_WORDS.into_iter().find(|word| has_word(line, word));
        let marker = word.or_else(|| MARKER_MACROS.into_iter().find(|call| line.contains(call)))?;
        Some(format!("`{marker}` was left behind: do it now, or write it down outside the code"))
    })
}

/// Absolute paths of a developer's machine.
pub fn machine_paths(files: &[TextFile]) -> Vec<Finding> {
    in_lines(files.iter(), |line| {
        let found = MACHINE_PATHS.into_iter().find(|path| starts_a_path(line, path))?;
        Some(format!("`{found}…` exists on one machine only: use a path relative to the repository"))
    })
}

/// Scripts that cannot be run.
pub fn not_executable(files: &[TextFile]) -> Vec<Finding> {
    let is_script =
        |file: &&TextFile| file.room() == "scripts" && !file.path.ends_with(".md") || file.path == ".ci/run";
    let stuck = files.iter().filter(is_script).filter(|file| !file.is_executable);
    stuck.map(|file| Finding::new(file, 1, format!("cannot be run: `chmod +x {}`", file.path))).collect()
}

/// Crate roots without `#![forbid(unsafe_code)]`.
pub fn unsafe_not_forbidden(files: &[TextFile]) -> Vec<Finding> {
    let is_excused = |file: &&TextFile| UNSAFE_ALLOWED.iter().any(|(path, _why)| *path == file.path);
    let roots = files.iter().filter(|file| is_crate_root(&file.path) && !is_excused(file));
    let open = roots.filter(|file| !forbids_unsafe(&tokens(&file.text)));
    let advice = "add `#![forbid(unsafe_code)]`, or a reasoned exception to tidy's UNSAFE_ALLOWED";
    open.map(|file| Finding::new(file, 1, advice)).collect()
}

fn in_lines<'a>(files: impl Iterator<Item = &'a TextFile>, check: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in (1..).zip(file.text.lines()) {
            findings.extend(check(line).map(|advice| Finding::new(file, number, advice)));
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part))
}

/// Whether the path is absolute, and not a part of a longer one (`docs/home/`) or a URL.
fn starts_a_path(line: &str, path: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_-.~/})>*".contains(c);
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(continues))
}

fn is_crate_root(path: &str) -> bool {
    let Some((_, inside)) = path.split_once("/src/") else { return false };
    let in_bin = inside.strip_prefix("bin/").map(|binary| binary.ends_with("/main.rs") || !binary.contains('/'));
    inside == "lib.rs" || inside == "main.rs" || in_bin == Some(true) && path.ends_with(".rs")
}

fn forbids_unsafe(tokens: &[Token]) -> bool {
    let attribute = ["[", "forbid", "(", "unsafe_code", ")", "]"];
    tokens.windows(attribute.len()).any(|here| here.iter().zip(attribute).all(|(token, wanted)| token.is(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> [TextFile; 1] {
        [TextFile::new(path, text)]
    }

    #[test]
    fn every_marker_is_found_in_code_scripts_and_docs() {
        let comments = MARKER_WORDS.map(|word| format!("line one\n# {word}: later"));
        let macros = MARKER_MACROS.map(|call| format!("line one\n    {call}x)"));
        for text in comments.iter().chain(&macros) {
            for path in ["core/src/lib.rs", "scripts/test", "README.md", "lib/Cargo.toml"] {
                let findings = markers(&file(path, text));
                assert_eq!((findings.len(), findings[0].line), (1, 2), "{path}: {text}");
            }
        }
    }

    #[test]
    fn words_that_only_look_like_markers_are_allowed() {
        let [_, list, placeholder, sprint] = MARKER_WORDS;
        let harmless = format!("mktemp -d t.{placeholder}{placeholder} {list}S {list}_LIST {sprint}ATHON method!(x)");
        assert_eq!(markers(&file("scripts/test", &harmless)), []);
        assert_eq!(markers(&file("LICENSE-MIT", MARKER_WORDS[0])), []);
    }

    #[test]
    fn machine_paths_are_found_where_they_start() {
        for path in MACHINE_PATHS {
            assert_eq!(machine_paths(&file("docs/a.md", &format!("see {path}main"))).len(), 1);
            assert_eq!(machine_paths(&file("scripts/test", &format!("cd \"{path}main\""))).len(), 1);
            assert_eq!(machine_paths(&file("docs/a.md", &format!("see docs{path}main"))), []);
            assert_eq!(machine_paths(&file("docs/a.md", &format!("see https://example.org{path}"))), []);
        }
    }

    #[test]
    fn a_script_that_cannot_be_run_is_found() {
        for path in ["scripts/test", ".ci/run"] {
            assert_eq!(not_executable(&file(path, "#!")).len(), 1);
            let fine = TextFile { is_executable: true, ..TextFile::new(path, "#!") };
            assert_eq!(not_executable(&[fine]), []);
        }
        assert_eq!(not_executable(&file("scripts/README.md", "")), []);
    }

    #[test]
    fn a_crate_root_that_allows_unsafe_code_is_found() {
        for path in ["core/src/lib.rs", "cli/src/main.rs", "cli/src/bin/x.rs", "cli/src/bin/y/main.rs"] {
            assert_eq!(unsafe_not_forbidden(&file(path, "// #![forbid(unsafe_code)]\n")).len(), 1, "{path}");
            assert_eq!(unsafe_not_forbidden(&file(path, "//! Docs\n#![forbid(unsafe_code)]\n")), []);
        }
        assert_eq!(unsafe_not_forbidden(&file("core/src/machine.rs", "")), []);
        assert_eq!(unsafe_not_forbidden(&file("cli/src/bin/y/part.rs", "")), []);
    }
}
