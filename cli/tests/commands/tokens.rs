//! `palisade tokens raise`, as a shell sees it: the real binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common::TestEngine;
use palisade_fence::file::FencedFile;
use palisade_fence::{Sealed, Token};

#[test]
fn every_later_token_is_above_the_number() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    let guard = holder.lock("held").acquire().unwrap();
    insta::assert_snapshot!(engine.stdout(&["tokens", "raise", "--above", "38"]), @"Raised: every token that embedded gives from now on is above 38.");
    assert_eq!(guard.token().unwrap().get(), 1, "a held lock keeps its token");
    assert_eq!(holder.lock("orders").acquire().unwrap().token().unwrap().get(), 39);
    insta::assert_snapshot!(engine.stdout(&["tokens", "raise", "--above", "38"]), @"The tokens of embedded are already above 38. Nothing has changed.");
    insta::assert_snapshot!(engine.stdout(&["tokens", "raise", "--above", "5", "--json"]), @r#"
    {
      "schema": 1,
      "engine": "embedded",
      "above": 5,
      "raised": false
    }
    "#);
    drop((guard, holder));
    assert!(engine.client("next").lock("orders").acquire().unwrap().token().unwrap().get() > 39);
}

#[test]
fn invalid_raises_are_refused() {
    let engine = TestEngine::new();
    for number in ["0", "-1", "x", "4503599627370497", "9007199254740991", "9007199254740992"] {
        let output = engine.run(&["tokens", "raise", &format!("--above={number}")]);
        assert_eq!(output.status.code(), Some(64), "{number}: {output:?}");
    }
    assert!(engine.refusal(&["tokens", "raise", "--above", "4503599627370497"]).contains("4503599627370496 at most"));
    assert_eq!(engine.client("next").lock("orders").acquire().unwrap().token().unwrap().get(), 1);
}

/// Runs the command that the refusal names.
#[test]
fn a_resource_that_was_sealed_under_another_engine_can_be_used_again() {
    let engine = TestEngine::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.json");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seal = |token: Token| runtime.block_on(Sealed::seal(FencedFile::open(&file).unwrap(), token)).map(drop);
    seal(Token::new(38).unwrap()).unwrap();
    let token = || engine.client("writer").lock("orders").acquire().unwrap().token().unwrap();
    let refused = seal(token()).unwrap_err().to_string();
    let command = "palisade tokens raise --above 38";
    assert!(refused.contains(command), "{refused}");
    engine.stdout(&command.split(' ').skip(1).collect::<Vec<_>>());
    seal(token()).unwrap();
}

#[test]
fn help_has_examples() {
    let engine = TestEngine::new();
    insta::assert_snapshot!("tokens-help", engine.stdout(&["tokens", "--help"]));
    insta::assert_snapshot!("tokens-raise-help", engine.stdout(&["tokens", "raise", "--help"]));
}
