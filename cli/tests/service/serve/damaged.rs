//! Log files that were truncated, emptied, removed or replaced: no token is granted twice.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::common::bounded::Bounded;
use crate::sandbox::Sandbox;

/// Acquires `count` locks, ends the service by a signal, and returns the last token.
fn grant_tokens(sandbox: &Sandbox, count: u64, end: Signal) -> u64 {
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let session = client.session();
    let mut last = 0;
    for number in 0..count {
        last = client.call_ok(&format!("LOCK ACQUIRE lock/{number} SESSION {session}")).number("token");
    }
    service.signal(end);
    service.end();
    last
}

fn log(sandbox: &Sandbox) -> PathBuf {
    let names = fs::read_dir(sandbox.data_dir()).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("log-")).max().unwrap()
}

/// Returns the offset of the last byte that was written to a segment.
fn last_written(path: &Path) -> u64 {
    fs::read(path).unwrap().iter().rposition(|byte| *byte != 0).unwrap() as u64
}

fn zero_from(path: &Path, from: u64) {
    let length = fs::metadata(path).unwrap().len();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; (length - from) as usize], from).unwrap();
}

fn cut_at(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

/// Returns the message of a `palisade serve` that does not start because of its files; `None` if it starts.
fn refusal(sandbox: &Sandbox, options: &[&str]) -> Option<String> {
    let (code, message) = sandbox.serve_refusal(options)?;
    assert_eq!(code, Some(74), "{message}");
    Some(message)
}

/// Returns the number after `--raise-tokens-above` in a message.
fn advised(message: &str) -> &str {
    let rest = message.split_once("--raise-tokens-above ").unwrap_or_else(|| panic!("no advice: {message}")).1;
    rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap()
}

fn next_token(sandbox: &Sandbox, options: &[&str]) -> u64 {
    let service = sandbox.serve(options);
    let mut client = service.resp3_client();
    let session = client.session();
    // Locks of earlier calls are still held.
    client.call_ok(&format!("LOCK ACQUIRE next/{} SESSION {session}", service.pid())).number("token")
}

#[test]
#[ignore = "long: a log cut at many places"]
fn a_log_that_lost_its_end_never_repeats_a_token() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("cut to 64 bytes", |log| cut_at(log, 64)),
        ("cut in the middle", |log| cut_at(log, last_written(log) / 2)),
        ("emptied", |log| cut_at(log, 0)),
        ("removed", |log| fs::remove_file(log).unwrap()),
        ("zeroed from the middle on", |log| zero_from(log, last_written(log) / 2)),
    ];
    for end in [Signal::KILL, Signal::TERM] {
        for (what, damage) in damages {
            let sandbox = Sandbox::new();
            let last = grant_tokens(&sandbox, 50, end);
            damage(&log(&sandbox));
            let message = refusal(&sandbox, &[]);
            // After a kill, zeros at the end of the log may be normal: the service then starts, and skips tokens instead.
            let may_start = what.starts_with("zeroed") && end == Signal::KILL;
            assert!(message.is_some() || may_start, "{what}: it started");
            let next = match &message {
                None => next_token(&sandbox, &[]),
                Some(message) => {
                    if message.contains("is damaged") {
                        // Only an empty directory helps.
                        fs::remove_dir_all(sandbox.data_dir()).unwrap();
                    }
                    next_token(&sandbox, &["--raise-tokens-above", advised(message)])
                }
            };
            assert!(next > last, "{what}: {next} was given after {last}");
        }
    }
}

#[test]
fn a_log_that_was_cut_is_refused_with_the_command_that_helps() {
    let sandbox = Sandbox::new();
    grant_tokens(&sandbox, 3, Signal::TERM);
    zero_from(&log(&sandbox), 64);
    let message = refusal(&sandbox, &[]).expect("it does not start");
    insta::assert_snapshot!("log-cut", sandbox.redacted(&message, crate::sandbox::Numbers::Kept));
    let message = refusal(&sandbox, &["--raise-tokens-above", "2"]).expect("token 3 was given");
    assert_eq!(advised(&message), "3");
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "3"]), 4);
    assert!(next_token(&sandbox, &[]) > 4, "it starts as always from then on");
}

#[test]
fn a_refused_start_names_the_torn_last_write_that_was_undone() {
    let sandbox = Sandbox::new();
    grant_tokens(&sandbox, 50, Signal::TERM);
    zero_from(&log(&sandbox), last_written(&log(&sandbox)) / 2);
    let message = refusal(&sandbox, &[]).expect("it does not start");
    assert!(message.contains("the last write was cut short and is undone"), "{message}");
    assert!(message.contains("except that the torn last write at byte "), "{message}");
}

#[test]
fn a_missing_watermark_is_refused() {
    let sandbox = Sandbox::new();
    grant_tokens(&sandbox, 3, Signal::TERM);
    fs::remove_file(sandbox.data_dir().join("watermark")).unwrap();
    let message = refusal(&sandbox, &[]).expect("it does not start");
    insta::assert_snapshot!("no-watermark", sandbox.redacted(&message, crate::sandbox::Numbers::Kept));
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "100"]), 101);
}

#[test]
fn tokens_continue_after_an_orderly_stop_and_skip_a_block_after_a_kill() {
    let sandbox = Sandbox::new();
    assert_eq!(grant_tokens(&sandbox, 3, Signal::TERM), 3);
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    let session = client.session();
    assert_eq!(client.call_ok(&format!("LOCK ACQUIRE fourth SESSION {session}")).number("token"), 4);
    service.signal(Signal::KILL);
    service.end();
    assert!(next_token(&sandbox, &[]) > 5, "tokens that a killed process may have granted are skipped");
}

#[test]
fn raise_tokens_above_raises_and_never_lowers() {
    let sandbox = Sandbox::new();
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "5000"]), 5001);
    assert!(next_token(&sandbox, &["--raise-tokens-above", "17"]) > 5001, "tokens never go down");
}

#[test]
fn tokens_raised_at_runtime_stay_raised_after_a_kill_and_without_the_log() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.resp3_client();
    assert_eq!(client.call("TOKENS RAISE 70000").to_string(), "1");
    assert_eq!(client.call("TOKENS RAISE 70000").to_string(), "0");
    let line = service.line_with("tokens were raised");
    assert!(line.contains("above=70000") && line.contains("last=0") && line.contains("palisade::audit"), "{line}");
    assert!(client.refusal("TOKENS RAISE 4503599627370497").starts_with("LIMIT tokens can be raised above"));
    service.signal(Signal::KILL);
    service.end();
    assert!(next_token(&sandbox, &[]) > 70_000);
    // The watermark file has been raised too.
    fs::remove_file(log(&sandbox)).unwrap();
    let message = refusal(&sandbox, &[]).expect("the log was removed");
    assert!(advised(&message).parse::<u64>().unwrap() > 70_000, "{message}");
}

#[test]
fn a_directory_whose_log_and_watermark_were_removed_is_refused() {
    let sandbox = Sandbox::new();
    let last = grant_tokens(&sandbox, 3, Signal::TERM);
    for name in [log(&sandbox), sandbox.data_dir().join("watermark")] {
        fs::remove_file(name).unwrap();
    }
    let message = refusal(&sandbox, &[]).expect("it would give its tokens again");
    insta::assert_snapshot!("files-removed", sandbox.redacted(&message, crate::sandbox::Numbers::Kept));
    assert!(next_token(&sandbox, &["--raise-tokens-above", "3"]) > last);
    assert!(next_token(&sandbox, &[]) > last, "it starts as always from then on");
}

#[test]
fn a_directory_of_an_embedded_engine_is_refused_and_stays_as_it_is() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.data_dir()).unwrap();
    let url = format!("embedded://{}", sandbox.data_dir().join("locks.db").display());
    sandbox.stdout(&["--url", &url, "ls"]);
    let files = || fs::read_dir(sandbox.data_dir()).unwrap().count();
    let before = files();
    let output = sandbox.serve_command(&[]).finish();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{message}");
    assert!(
        message.contains("the service does not start: ") && message.contains("locks.db is the file of an embedded"),
        "{message}"
    );
    assert!(message.contains("--data-dir"), "{message}");
    assert_eq!(files(), before, "the service has left something there");
}

#[test]
fn a_raise_that_would_use_up_the_tokens_is_refused() {
    let sandbox = Sandbox::new();
    let output = sandbox.serve_command(&["--raise-tokens-above", "4503599627370497"]).finish();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{message}");
    assert!(
        message.contains("the service does not start: tokens can be raised above 4503599627370496 at most"),
        "{message}"
    );
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "4503599627370496"]), 4_503_599_627_370_497);
    // The service was killed, so tokens up to the watermark may have been granted. Following the advice works.
    zero_from(&log(&sandbox), 64);
    let message = refusal(&sandbox, &[]).expect("the log was cut");
    assert!(next_token(&sandbox, &["--raise-tokens-above", advised(&message)]) > 4_503_599_627_370_497);
}
