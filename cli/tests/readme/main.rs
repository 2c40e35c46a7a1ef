//! Runs every command and checks every sample in the README and under `docs/`: the real binary, in a separate sandbox for
//! each block. `CONTRIBUTING.md` describes the comments before a block.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod blocks;
mod check;
mod expect;

#[path = "../common/mod.rs"]
mod common;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod sandbox_dir;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::blocks::BlockError;
use crate::check::Treatment;
use crate::sandbox::repository;

/// The README, and every page under `docs/`.
fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("README.md")];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).expect("docs can be read") {
            let path = folder.join(entry.expect("docs can be read").file_name());
            match path.extension() {
                _ if root.join(&path).is_dir() => folders.push(path),
                Some(extension) if extension == "md" => pages.push(path),
                _ => {}
            }
        }
    }
    pages.sort();
    pages
}

#[test]
fn every_block_of_the_readme_and_the_docs_works_as_written() {
    let root = repository();
    let mut errors: Vec<BlockError> = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut not_run = Vec::new();
    for page in pages(&root) {
        let text = fs::read_to_string(root.join(&page)).expect("the page can be read");
        let found = blocks::blocks(&page.to_string_lossy(), &text);
        errors.extend(found.errors);
        for block in &found.blocks {
            match check::check(block, &root) {
                Ok(treatment) => {
                    *counts.entry(treatment.word()).or_default() += 1;
                    if let Treatment::NotRun(reason) = treatment {
                        not_run.push(format!("{}:{}: not run: {reason}", block.file, block.line));
                    }
                }
                Err(error) => errors.push(error),
            }
        }
    }
    // Not by a macro: the test harness hides the output of a test that passes.
    let counts: Vec<_> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    writeln!(io::stderr(), "blocks of the docs: {}\n{}", counts.join(", "), not_run.join("\n")).unwrap();
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{} errors:\n\n{}\n", errors.len(), errors.join("\n\n"));
}
