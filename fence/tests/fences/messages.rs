//! Error messages, and the two predicates that programs act on.

use insta::assert_snapshot;
use palisade_fence::{Error, ErrorKind, Seq, Token};

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

fn message(kind: ErrorKind, operation: &'static str) -> String {
    let error = Error::new(kind, "file /var/orders\u{1b}[2J.json", operation).under(token(33));
    let retry = if error.is_retryable() { "may be retried" } else { "not to be retried" };
    let effect = if error.may_have_taken_effect() { "may have taken effect" } else { "no effect" };
    format!("{error} | {retry}, {effect}")
}

#[test]
fn messages_of_refusals() {
    assert_snapshot!(message(ErrorKind::Superseded { seen: token(34) }, "seal"), @r"cannot seal 'file /var/orders\u{1b}[2J.json' with token 33: token 34 has sealed it before. Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave this token counts lower than the one that gave token 34 (a new file, another engine): run `palisade tokens raise --above 34` on it, or use one lock for it | not to be retried, no effect");
    assert_snapshot!(message(ErrorKind::Stale { seen: token(34) }, "write"), @r"cannot write 'file /var/orders\u{1b}[2J.json' with token 33: token 34 has sealed it. Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave this token counts lower than the one that gave token 34 (a new file, another engine): run `palisade tokens raise --above 34` on it | not to be retried, no effect");
    assert_snapshot!(message(ErrorKind::NotSealed, "read"), @r"cannot read 'file /var/orders\u{1b}[2J.json' with token 33: this token has not sealed it; seal it first (if it was sealed, the resource has lost its mark: was it restored, emptied or replaced?) | not to be retried, no effect");
    let expected = Seq::new(7).expect("a number");
    assert_snapshot!(message(ErrorKind::Gap { expected }, "write"), @r"cannot write 'file /var/orders\u{1b}[2J.json' with token 33: another handle under this token has written (number 7 would be the next); seal it again, and read again | not to be retried, no effect");
    assert_snapshot!(message(ErrorKind::Unsettled, "read"), @r"cannot read 'file /var/orders\u{1b}[2J.json' with token 33: it is not known whether an earlier write through this handle was applied; call settle() first, which finds out | not to be retried, no effect");
    let rejected = ErrorKind::Rejected { what: "the key is taken".to_owned(), source: None };
    assert_snapshot!(message(rejected, "write"), @r"cannot write 'file /var/orders\u{1b}[2J.json' with token 33: the key is taken (nothing has changed) | not to be retried, no effect");
    assert_snapshot!(message(ErrorKind::misuse("it is no file"), "open"), @r"cannot open 'file /var/orders\u{1b}[2J.json' with token 33: it is no file | not to be retried, no effect");
}

#[test]
fn messages_of_outages() {
    let broken = || std::io::Error::other("reset");
    assert_snapshot!(message(ErrorKind::unreached("the disk is full", broken()), "write"), @r"cannot write 'file /var/orders\u{1b}[2J.json' with token 33: the disk is full (nothing has changed) | may be retried, no effect");
    assert_snapshot!(message(ErrorKind::unknown("the connection broke", broken()), "write"), @r"cannot write 'file /var/orders\u{1b}[2J.json' with token 33: the connection broke (it may have taken effect) | may be retried, may have taken effect");
}

#[cfg(feature = "file")]
#[test]
fn messages_of_paths() {
    use palisade_fence::file::{FencedFile, FencedFolder};
    let message = |opened: Option<Error>| opened.expect("it is refused").to_string();
    assert_snapshot!(message(FencedFile::open("").err()), @"cannot open 'file ': this is no path of a file: it has no file name");
    assert_snapshot!(message(FencedFile::open("/").err()), @"cannot open 'file /': this is no path of a file: it has no file name");
    assert_snapshot!(message(FencedFile::open("/dev").err()), @"cannot open 'file /dev': it is a folder; use FencedFolder");
    assert_snapshot!(message(FencedFile::open("/not/there").err()), @"cannot open 'file /not/there': its folder cannot be found: No such file or directory (os error 2) (nothing has changed)");
    assert_snapshot!(message(FencedFolder::open("/not/there").err()), @"cannot open 'folder /not/there': there is no such folder; make it first");
    assert_snapshot!(message(FencedFolder::open("/dev/null").err()), @"cannot open 'folder /dev/null': it is no folder; use FencedFile for a file");
}
