//! Writes with an unknown outcome.

use std::time::Duration;

use palisade_fence::http::{Limits, Marks, MemoryMarks, Scope, SqliteMarks};

use super::fixture::{Behavior, Fixture};

fn fixture(marks: impl Marks, quarantine: Duration) -> Fixture {
    Fixture::new(Scope::one("orders").expect("a name"), marks, Limits { quarantine, ..Limits::default() })
}

#[tokio::test]
async fn a_service_that_fails_midway_makes_the_outcome_unknown_until_a_newer_seal() {
    for behavior in [Behavior::Fails, Behavior::Panics, Behavior::BreaksOff] {
        let fixture = fixture(MemoryMarks::default(), Duration::ZERO);
        fixture.seal(33).await;
        fixture.write(33, 1, "one").await;
        fixture.behavior(behavior);
        let failed = fixture.write(33, 2, "two").await;
        assert_eq!((failed.status.as_u16(), failed.verdict.as_str()), (500, "unknown"), "{behavior:?}");
        fixture.behavior(Behavior::Answers);
        for (what, seen) in [
            ("the same again", fixture.write(33, 2, "two").await),
            ("settle", fixture.settle(33, 2).await),
            ("the next", fixture.write(33, 3, "three").await),
            ("the same seal", fixture.seal(33).await),
        ] {
            assert_eq!(seen.verdict, "unknown", "{behavior:?}: {what}");
        }
        assert_eq!(fixture.read(33).await.verdict, "admitted", "reads are allowed");
        assert_eq!(fixture.seal(32).await.verdict, "superseded; seen=33");
        assert_eq!(fixture.seal(34).await.verdict, "sealed; token=34; seq=0");
        assert_eq!(fixture.write(33, 2, "two").await.verdict, "stale; seen=34");
        assert_eq!(fixture.write(34, 1, "three").await.verdict, "admitted");
        assert_eq!(fixture.written(), ["one", "two", "three"], "nothing is carried out twice");
    }
}

#[tokio::test]
async fn a_write_that_did_not_reach_the_service_does_not_use_up_its_number() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("marks.db");
    let fixture = fixture(SqliteMarks::open(&file).expect("marks"), Duration::ZERO);
    fixture.seal(33).await;
    fixture.behavior(Behavior::CannotBeReached);
    for seq in [1, 2] {
        for _ in 0..2 {
            let failed = fixture.write(33, seq, "one").await;
            assert_eq!((failed.status.as_u16(), failed.verdict.as_str()), (502, "not-sent"), "{}", failed.body);
            assert!(failed.body.contains("the number is not used up"), "{}", failed.body);
        }
        assert_eq!(
            (fixture.read(33).await.status.as_u16(), fixture.read(33).await.verdict),
            (502, "not-sent".to_owned())
        );
        assert_eq!(fixture.write(33, seq + 1, "two").await.verdict, format!("gap; expected={seq}"));
        fixture.behavior(Behavior::Answers);
        let done = fixture.write(33, seq, "one").await;
        assert_eq!((done.status.as_u16(), done.verdict.as_str()), (200, "admitted"), "{}", done.body);
        assert_eq!(fixture.write(33, seq, "one").await.verdict, "repeated");
        fixture.behavior(Behavior::CannotBeReached);
    }
    assert_eq!(fixture.settle(33, 3).await.verdict, "nothing", "settle uses up the number");
    assert_eq!(fixture.written(), ["one", "one"]);
}

#[tokio::test]
async fn a_resource_is_quarantined_after_a_write_of_unknown_outcome() {
    let marks = MemoryMarks::default();
    let quarantined = fixture(marks.clone(), Duration::from_secs(3600));
    quarantined.seal(33).await;
    quarantined.behavior(Behavior::Fails);
    quarantined.write(33, 1, "one").await;
    let refused = quarantined.seal(34).await;
    let seconds = refused.verdict.strip_prefix("shut; seconds=").unwrap_or_else(|| panic!("{}", refused.verdict));
    assert_eq!(refused.status.as_u16(), 503);
    assert_eq!(refused.headers["retry-after"], seconds);
    // A busy machine may have needed some of them.
    assert!((1800..=3601).contains(&seconds.parse::<u32>().expect("a number")), "{seconds}");
    assert_eq!(fixture(marks, Duration::ZERO).seal(34).await.verdict, "sealed; token=34; seq=0");
}

#[tokio::test]
async fn a_restart_between_write_and_answer_makes_the_outcome_unknown() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("marks.db");
    {
        let fixture = fixture(SqliteMarks::open(&file).expect("marks"), Duration::ZERO);
        fixture.seal(33).await;
        fixture.write(33, 1, "one").await;
        fixture.behavior(Behavior::Panics);
        assert_eq!(fixture.write(33, 2, "two").await.verdict, "unknown");
    }
    let fixture = fixture(SqliteMarks::open(&file).expect("marks"), Duration::ZERO);
    assert_eq!(fixture.write(33, 2, "two").await.verdict, "unknown");
    assert_eq!(fixture.seal(34).await.verdict, "sealed; token=34; seq=0");
    assert_eq!(fixture.write(34, 1, "three").await.verdict, "admitted");
    assert_eq!(fixture.written(), ["three"]);
}

#[tokio::test]
async fn marks_in_a_file_outlive_the_process_and_belong_to_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("marks.db");
    {
        let fixture = fixture(SqliteMarks::open(&file).expect("marks"), Duration::ZERO);
        fixture.seal(33).await;
        fixture.write(33, 1, "one").await;
    }
    let fixture = fixture(SqliteMarks::open(&file).expect("marks"), Duration::ZERO);
    let again = fixture.write(33, 1, "one").await;
    assert_eq!((again.verdict.as_str(), again.body.as_str()), ("repeated", "one"));
    assert_eq!(fixture.seal(32).await.verdict, "superseded; seen=33");
    assert!(fixture.written().is_empty(), "nothing is carried out again");
}

#[test]
fn a_file_that_has_no_marks_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("marks.db");
    std::fs::write(&file, "something else, of more than a hundred bytes".repeat(5)).expect("it can be written");
    let error = SqliteMarks::open(&file).expect_err("it is no database").to_string();
    assert!(error.contains("marks.db cannot be used"), "{error}");
    let other = directory.path().join("other.db");
    rusqlite::Connection::open(&other).and_then(|it| it.execute_batch("CREATE TABLE a (b)")).expect("a database");
    let error = SqliteMarks::open(&other).expect_err("it is another database").to_string();
    assert!(error.contains("format 0"), "{error}");
}
