//! The house rules that no compiler checks, run on this repository. Each rule is shown to catch a bad example in
//! `testbench/src/tidy`.

use std::path::Path;
use std::{env, fs};

use palisade_testbench::chart::Chart;
use palisade_testbench::tidy::{self, Finding, TextFile};

fn repository() -> Vec<TextFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = tidy::read_tree(&root).expect("the repository can be read");
    assert!(files.iter().any(|file| file.path == "testbench/tests/tidy.rs"), "these are not the repository's files");
    files
}

fn assert_none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} to put right:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn rooms_import_only_what_they_may() {
    assert_none(&tidy::forbidden_imports(&repository()));
}

#[test]
fn the_rules_depend_on_their_input_alone() {
    assert_none(&tidy::impurities(&repository()));
}

#[test]
fn every_source_file_is_compiled() {
    assert_none(&tidy::orphaned_sources(&repository()));
}

#[test]
fn every_document_can_be_found() {
    assert_none(&tidy::orphaned_docs(&repository()));
}

#[test]
fn sentences_in_comments_name_an_actor() {
    assert_none(&tidy::sentences_without_actor(&repository()));
}

#[test]
fn the_first_documents_stay_short() {
    assert_none(&tidy::overlong_documents(&repository()));
}

#[test]
fn the_chart_of_speed_is_drawn_from_its_figures() {
    let csv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/speed.csv");
    let chart =
        Chart::parse(&fs::read_to_string(&csv).unwrap()).expect("docs/speed.csv is as scripts/bench writes it");
    if env::var_os("UPDATE_GOLDENFILES").is_some() {
        chart.save(&csv).unwrap();
    }
    let drawn = fs::read_to_string(csv.with_extension("svg")).unwrap();
    assert!(
        drawn == chart.to_svg(),
        "docs/speed.svg differs: UPDATE_GOLDENFILES=1 cargo test -p palisade-testbench --test tidy"
    );
}

#[test]
fn every_folder_of_golden_scripts_is_read_by_a_test() {
    assert_none(&tidy::orphaned_scripts(&repository()));
}

#[test]
fn nothing_is_left_for_later_in_the_code() {
    assert_none(&tidy::markers(&repository()));
}

#[test]
fn type_names_say_what_they_are() {
    assert_none(&tidy::banned_type_names(&repository()));
}

#[test]
fn every_crate_forbids_unsafe_code() {
    assert_none(&tidy::unsafe_not_forbidden(&repository()));
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    assert_none(&tidy::machine_paths(&repository()));
}

#[test]
fn every_script_can_be_run() {
    assert_none(&tidy::not_executable(&repository()));
}
