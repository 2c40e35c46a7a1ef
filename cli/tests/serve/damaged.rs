//! Files that were cut, emptied, removed or put back: no token is given twice.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::sandbox::Sandbox;

/// Takes locks until `count` tokens were given, and returns the last.
fn give_tokens(sandbox: &Sandbox, count: u64, end: Signal) -> u64 {
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    let session = client.session();
    let mut last = 0;
    for number in 0..count {
        last = client.done(&format!("LOCK ACQUIRE lock/{number} SESSION {session}")).number("token");
    }
    service.signal(end);
    service.end();
    last
}

fn log(sandbox: &Sandbox) -> PathBuf {
    let names = fs::read_dir(sandbox.data_dir()).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("log-")).max().unwrap()
}

/// Where what was written to a segment ends.
fn written(path: &Path) -> u64 {
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

/// What `palisade serve` says if it does not start because of its files.
fn refusal(sandbox: &Sandbox, options: &[&str]) -> Option<String> {
    let (code, said) = sandbox.serve_refusal(options)?;
    assert_eq!(code, Some(74), "{said}");
    Some(said)
}

/// The number after `--raise-tokens-above` in a message.
fn advised(said: &str) -> &str {
    let rest = said.split_once("--raise-tokens-above ").unwrap_or_else(|| panic!("no advice: {said}")).1;
    rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap()
}

fn next_token(sandbox: &Sandbox, options: &[&str]) -> u64 {
    let service = sandbox.serve(options);
    let mut client = service.modern();
    let session = client.session();
    // Locks of earlier calls are still held.
    client.done(&format!("LOCK ACQUIRE next/{} SESSION {session}", service.pid())).number("token")
}

#[test]
fn a_log_that_lost_its_end_never_gives_a_token_again() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("cut to 64 bytes", |log| cut_at(log, 64)),
        ("cut in the middle", |log| cut_at(log, written(log) / 2)),
        ("emptied", |log| cut_at(log, 0)),
        ("removed", |log| fs::remove_file(log).unwrap()),
        ("zeroed from the middle on", |log| zero_from(log, written(log) / 2)),
    ];
    for end in [Signal::KILL, Signal::TERM] {
        for (what, damage) in damages {
            let sandbox = Sandbox::new();
            let last = give_tokens(&sandbox, 50, end);
            damage(&log(&sandbox));
            let said = refusal(&sandbox, &[]);
            // The end of a log that was zeroed after a kill may never have been written, and tokens are skipped instead.
            let may_start = what.starts_with("zeroed") && end == Signal::KILL;
            assert!(said.is_some() || may_start, "{what}: it started");
            let next = match &said {
                None => next_token(&sandbox, &[]),
                Some(said) => {
                    if said.contains("is damaged") {
                        // Only an empty directory helps.
                        fs::remove_dir_all(sandbox.data_dir()).unwrap();
                    }
                    next_token(&sandbox, &["--raise-tokens-above", advised(said)])
                }
            };
            assert!(next > last, "{what}: {next} was given after {last}");
        }
    }
}

#[test]
fn a_log_that_was_cut_is_refused_with_the_command_that_helps() {
    let sandbox = Sandbox::new();
    give_tokens(&sandbox, 3, Signal::TERM);
    zero_from(&log(&sandbox), 64);
    let said = refusal(&sandbox, &[]).expect("it does not start");
    insta::assert_snapshot!("log-cut", sandbox.redacted(&said, crate::sandbox::Numbers::Kept));
    let said = refusal(&sandbox, &["--raise-tokens-above", "2"]).expect("token 3 was given");
    assert_eq!(advised(&said), "3");
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "3"]), 4);
    assert!(next_token(&sandbox, &[]) > 4, "it starts as always from then on");
}

#[test]
fn a_refused_start_names_the_torn_last_write_that_was_undone() {
    let sandbox = Sandbox::new();
    give_tokens(&sandbox, 50, Signal::TERM);
    zero_from(&log(&sandbox), written(&log(&sandbox)) / 2);
    let said = refusal(&sandbox, &[]).expect("it does not start");
    assert!(said.contains("the last write was cut short and is undone"), "{said}");
    assert!(said.contains("except that the torn last write at byte "), "{said}");
}

#[test]
fn a_missing_watermark_is_refused() {
    let sandbox = Sandbox::new();
    give_tokens(&sandbox, 3, Signal::TERM);
    fs::remove_file(sandbox.data_dir().join("watermark")).unwrap();
    let said = refusal(&sandbox, &[]).expect("it does not start");
    insta::assert_snapshot!("no-watermark", sandbox.redacted(&said, crate::sandbox::Numbers::Kept));
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "100"]), 101);
}

#[test]
fn tokens_continue_after_an_orderly_stop_and_skip_a_block_after_a_kill() {
    let sandbox = Sandbox::new();
    assert_eq!(give_tokens(&sandbox, 3, Signal::TERM), 3);
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    let session = client.session();
    assert_eq!(client.done(&format!("LOCK ACQUIRE fourth SESSION {session}")).number("token"), 4);
    service.signal(Signal::KILL);
    service.end();
    assert!(next_token(&sandbox, &[]) > 5, "tokens that a killed process may have given are skipped");
}

#[test]
fn tokens_are_raised_when_told_to() {
    let sandbox = Sandbox::new();
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "5000"]), 5001);
    assert!(next_token(&sandbox, &["--raise-tokens-above", "17"]) > 5001, "tokens never go down");
}

#[test]
fn tokens_that_were_raised_while_it_runs_stay_raised_after_a_kill_and_without_the_log() {
    let sandbox = Sandbox::new();
    let service = sandbox.serve(&[]);
    let mut client = service.modern();
    assert_eq!(client.ask("TOKENS RAISE 70000").to_string(), "1");
    assert_eq!(client.ask("TOKENS RAISE 70000").to_string(), "0");
    let line = service.line_with("tokens were raised");
    assert!(line.contains("above=70000") && line.contains("last=0") && line.contains("palisade::audit"), "{line}");
    assert!(client.refusal("TOKENS RAISE 4503599627370497").starts_with("LIMIT tokens can be raised above"));
    service.signal(Signal::KILL);
    service.end();
    assert!(next_token(&sandbox, &[]) > 70_000);
    // The watermark knows it too.
    fs::remove_file(log(&sandbox)).unwrap();
    let said = refusal(&sandbox, &[]).expect("the log was removed");
    assert!(advised(&said).parse::<u64>().unwrap() > 70_000, "{said}");
}

#[test]
fn a_directory_whose_log_and_watermark_were_removed_is_refused() {
    let sandbox = Sandbox::new();
    let last = give_tokens(&sandbox, 3, Signal::TERM);
    for name in [log(&sandbox), sandbox.data_dir().join("watermark")] {
        fs::remove_file(name).unwrap();
    }
    let said = refusal(&sandbox, &[]).expect("it would give its tokens again");
    insta::assert_snapshot!("files-removed", sandbox.redacted(&said, crate::sandbox::Numbers::Kept));
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
    let output = sandbox.serve_command(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("the service does not start: ") && said.contains("locks.db is the file of an embedded"),
        "{said}"
    );
    assert!(said.contains("--data-dir"), "{said}");
    assert_eq!(files(), before, "the service has left something there");
}

#[test]
fn a_raise_that_would_use_up_the_tokens_is_refused() {
    let sandbox = Sandbox::new();
    let output = sandbox.serve_command(&["--raise-tokens-above", "4503599627370497"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("the service does not start: tokens can be raised above 4503599627370496 at most"),
        "{said}"
    );
    assert_eq!(next_token(&sandbox, &["--raise-tokens-above", "4503599627370496"]), 4_503_599_627_370_497);
    // It was killed: tokens up to the watermark may have been given, and the advice to go on above it can be followed.
    zero_from(&log(&sandbox), 64);
    let said = refusal(&sandbox, &[]).expect("the log was cut");
    assert!(next_token(&sandbox, &["--raise-tokens-above", advised(&said)]) > 4_503_599_627_370_497);
}
