//! `palisade ls`, `show`, `watch` and `top`, as a shell and a terminal see them: the real binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::any::Any;
use std::process::Stdio;
use std::thread;

use crate::common::bounded::{Bounded, OutputLines, until};
use crate::common::terminal::Terminal;
use crate::common::{TestEngine, within, without_times};
use rustix::process::Signal;

const LONG: &str = "a worker with a label that is rather long indeed, on host-c.example.org (pid 4712)";
const HARMFUL: &str = "report \u{1b}[31mred\n on host-b (pid 12)";

/// An engine with every kind of lock, a queue, a history and hostile labels, and the clients that hold the locks.
fn busy_engine() -> (TestEngine, Box<dyn Any>) {
    let engine = TestEngine::new();
    let billing = engine.client("billing on host-a (pid 4711)");
    let report = engine.client(HARMFUL);
    let worker = engine.client(LONG);

    let first = billing.lock("orders/42").acquire().unwrap();
    let second = engine.queue(LONG, "orders/42");
    first.release().unwrap();
    let second = second.join().unwrap().unwrap();
    let third = engine.queue("deploy on host-d (pid 77)", "orders/42");
    billing.force_release("orders/42", "it \u{1b}[2Jhangs").unwrap();
    let third = third.join().unwrap().unwrap();
    let waiting = [engine.queue(HARMFUL, "orders/42"), engine.queue("nightly on host-e (pid 9)", "orders/42")];

    let harmful = report.lock("orders/43").acquire().unwrap();
    let readers = [&billing, &report, &worker].map(|reader| reader.read_lock("table").acquire().unwrap());
    let permits = [worker.permits("gpu", 2, 4), billing.permits("gpu", 1, 4)].map(|some| some.acquire().unwrap());
    let leader = billing.campaign("scheduler", "10.0.0.7:8080 \u{1b}]0;gotcha\u{7}").unwrap();
    (engine, Box::new((second, third, waiting, harmful, readers, permits, leader)))
}

/// Runs a command on a terminal of this width. Returns everything that it prints.
fn on_a_terminal(engine: &TestEngine, args: &[&str], columns: u16) -> String {
    let mut terminal = Terminal::run(engine, args, (60, columns));
    let status = terminal.end();
    assert_eq!(status.code(), Some(0), "{}", terminal.screen_text());
    terminal.screen_text()
}

#[test]
fn ls_has_one_row_per_lock() {
    let (engine, _held) = busy_engine();
    without_times(|| {
        insta::assert_snapshot!("ls", engine.stdout(&["ls"]));
        insta::assert_snapshot!("ls-prefix", engine.stdout(&["ls", "orders/43"]));
        insta::assert_snapshot!("ls-json", engine.stdout(&["ls", "--json"]));
    });
}

#[test]
fn show_has_holders_queue_history_and_value() {
    let (engine, _held) = busy_engine();
    without_times(|| {
        insta::assert_snapshot!("show", engine.stdout(&["show", "orders/42"]));
        insta::assert_snapshot!("show-json", engine.stdout(&["show", "orders/42", "--json"]));
        insta::assert_snapshot!("show-shared", engine.stdout(&["show", "table"]));
        insta::assert_snapshot!("show-permits", engine.stdout(&["show", "gpu"]));
        insta::assert_snapshot!("show-value", engine.stdout(&["show", "scheduler"]));
    });
}

#[test]
fn tables_fit_a_narrow_terminal() {
    let (engine, _held) = busy_engine();
    without_times(|| {
        insta::assert_snapshot!("ls-narrow", on_a_terminal(&engine, &["ls"], 60));
        insta::assert_snapshot!("show-narrow", on_a_terminal(&engine, &["show", "orders/42"], 60));
    });
}

#[test]
fn ls_without_locks_prints_nothing_to_a_pipe_and_a_hint_to_a_terminal() {
    let engine = TestEngine::new();
    assert_eq!(engine.stdout(&["ls"]), "");
    assert_eq!(engine.stdout(&["ls", "--json"]), "{\n  \"schema\": 1,\n  \"locks\": []\n}\n");
    assert_eq!(on_a_terminal(&engine, &["ls"], 60).trim_end(), "no locks are held or wanted");
    assert_eq!(
        on_a_terminal(&engine, &["ls", "a/"], 60).trim_end(),
        "no locks that begin with a/ are held or wanted"
    );
}

#[test]
fn a_lock_that_is_not_in_use_is_no_failure() {
    let engine = TestEngine::new();
    insta::assert_snapshot!("show-unused", engine.stdout(&["show", "orders/42"]));
    insta::assert_snapshot!("show-unused-json", engine.stdout(&["show", "orders/42", "--json"]));
    assert!(engine.refusal(&["show", ""]).contains("a lock's name must not be empty"));
    assert!(engine.refusal(&["show", "a\u{1b}"]).contains("control characters"));
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let (engine, _held) = busy_engine();
    for args in [&["ls"][..], &["show", "orders/42"], &["show", "scheduler"]] {
        assert!(!engine.stdout(args).contains('\u{1b}'), "{args:?}");
        let mut coloured = Terminal::run(&engine, args, (60, 100));
        coloured.end();
        assert!(coloured.raw.contains(&0x1b), "{args:?}");
        let mut plain = Terminal::run_as(&engine, args, (60, 100), |command| command.env("NO_COLOR", "1"));
        plain.end();
        assert!(!plain.raw.contains(&0x1b), "{args:?}");
    }
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let (engine, _held) = busy_engine();
    for args in [&["ls"][..], &["ls", "--json"], &["show", "gpu"], &["show", "gpu", "--json"], &["show", "unused"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = engine.command(args).finish_into(writer);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A watch that has begun, on a terminal wide enough for any line.
fn watch(engine: &TestEngine, args: &[&str]) -> Terminal {
    let mut terminal = Terminal::run(engine, &[&["watch"], args].concat(), (40, 300));
    terminal.wait_for("watching ");
    terminal
}

/// Causes one event of every kind, and waits until all watches have shown them.
fn cause_every_event(engine: &TestEngine, watching: &mut [Terminal]) {
    let mut until = |text: &str, times: usize| {
        for terminal in watching.iter_mut() {
            terminal.wait_until(|terminal| terminal.screen_text().matches(text).count() == times);
        }
    };
    let billing = engine.client("billing on host-a (pid 4711)");
    let both = billing.lock_all(["a/1", "a/2"]).acquire().unwrap();
    until("granted", 1);
    both.release().unwrap();
    drop(engine.client("elsewhere").lock("b").acquire().unwrap());
    let first = billing.lock("a/1").acquire().unwrap();
    let next = engine.queue(HARMFUL, "a/1");
    until("queued", 1);
    billing.force_release("a/1", "it \u{1b}[2Jhangs").unwrap();
    let next = next.join().unwrap().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let url = engine.url();
    let waiting = thread::spawn(move || wait_until_stopped(&url, "billing on host-a (pid 4711)", "a/1", stopped));
    until("queued", 2);
    stop.send(()).unwrap();
    let _client = within("the end of the wait", move || waiting.join()).unwrap();
    until("left-queue", 1);
    next.release().unwrap();
    drop(first);
    let permits = billing.permits("a/gpu", 1, 4).acquire().unwrap();
    billing.resize("a/gpu", 3).unwrap();
    let leader = billing.campaign("a/leader", "10.0.0.7 \u{1b}[2J").unwrap();
    leader.publish([0xff]).unwrap();
    // Released before the session is closed, which would end it otherwise.
    permits.release().unwrap();
    billing.close().unwrap();
    until("a/leader", 4);
}

/// Waits for a lock that another client holds, until `stopped` is sent. Returns the client, because closing it at once could
/// end the wait by the session's end instead of a cancel.
fn wait_until_stopped(
    url: &str,
    label: &str,
    lock: &str,
    stopped: tokio::sync::oneshot::Receiver<()>,
) -> palisade::Palisade {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = palisade::Options::new().label(label).connect(url).await.unwrap();
        tokio::select! {
            held = client.lock(lock).acquire() => panic!("another client holds it: {held:?}"),
            stopped = stopped => stopped.unwrap(),
        }
        client
    })
}

#[test]
fn watch_has_one_line_per_event() {
    let engine = TestEngine::new();
    let mut watching = [watch(&engine, &["a/"]), watch(&engine, &["a/", "--json"])];
    cause_every_event(&engine, &mut watching);
    let [text, json] = &watching;
    without_times(|| {
        insta::assert_snapshot!("watch", text.screen_text());
        insta::assert_snapshot!("watch-json", json.screen_text());
    });
}

#[test]
fn a_watch_ends_by_a_signal() {
    let engine = TestEngine::new();
    let mut terminal = watch(&engine, &[]);
    terminal.press("\u{3}");
    assert_eq!(terminal.end().code(), Some(130));
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut terminal = watch(&engine, &["--json"]);
        terminal.signal(signal);
        assert_eq!(terminal.end().code(), Some(code));
    }
}

/// Starts a watch whose hints go to a terminal, and whose lines go elsewhere.
fn watch_into(engine: &TestEngine, stdout: impl Into<Stdio>) -> Terminal {
    let mut terminal = Terminal::run_as(engine, &["watch", "--json"], (10, 80), |command| command.stdout(stdout));
    terminal.wait_for("watching all locks");
    terminal
}

#[test]
fn a_watch_ends_as_soon_as_its_stdout_is_closed() {
    let engine = TestEngine::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut terminal = watch_into(&engine, writer);
    drop(reader);
    assert_eq!(terminal.end().code(), Some(0), "{}", terminal.screen_text());
}

#[test]
fn each_line_of_a_watch_arrives_at_once() {
    let engine = TestEngine::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let _terminal = watch_into(&engine, writer);
    let _held = engine.client("billing").lock("a").acquire().unwrap();
    let line = OutputLines::new(reader).next_line("the watch").unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["schema"], &line["event"]), (&1.into(), &"granted".into()));
}

#[test]
fn a_watch_whose_reader_does_not_read_can_still_be_ended() {
    let engine = TestEngine::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut terminal = watch_into(&engine, writer);
    let leader = engine.client("billing").campaign("a", "").unwrap();
    // As hexadecimal digits this is more than a pipe holds.
    for _ in 0..12 {
        leader.publish([0xff; 4096]).unwrap();
    }
    until("the pipe is full", || rustix::io::ioctl_fionread(&reader).unwrap() >= 30_000);
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.end().code(), Some(143));
}

/// Starts `palisade top`, and waits for its first frame.
fn top(engine: &TestEngine, args: &[&str], size: (u16, u16)) -> Terminal {
    let mut terminal = Terminal::run(engine, &[&["top"], args].concat(), size);
    wait_for_frame(&mut terminal, "q quits");
    assert!(terminal.is_full_screen());
    terminal
}

/// Waits for a frame with this text. Every frame ends by hiding the cursor.
fn wait_for_frame(terminal: &mut Terminal, text: &str) {
    terminal.wait_until(|terminal| terminal.raw.ends_with(b"\x1b[?25l") && terminal.screen_text().contains(text));
}

#[test]
fn top_shows_all_locks_and_the_selected_one() {
    let (engine, _held) = busy_engine();
    let mut terminal = top(&engine, &[], (24, 100));
    without_times(|| insta::assert_snapshot!("top", terminal.screen_text()));
    terminal.press("j");
    wait_for_frame(&mut terminal, "orders/42 is held, 2 wait");
    without_times(|| insta::assert_snapshot!("top-selected", terminal.screen_text()));
    let narrow = top(&engine, &["orders/"], (16, 60));
    without_times(|| insta::assert_snapshot!("top-narrow", narrow.screen_text()));
}

#[test]
fn top_works_on_a_terminal_of_any_size() {
    let (engine, _held) = busy_engine();
    for size in [(1, 1), (3, 8), (5, 20)] {
        let mut terminal = Terminal::run(&engine, &["top"], size);
        terminal.wait_until(|terminal| terminal.raw.ends_with(b"\x1b[?25l"));
        terminal.press("jjq");
        assert_eq!(terminal.end().code(), Some(0), "{size:?}");
    }
}

#[test]
fn top_updates_after_every_event() {
    let engine = TestEngine::new();
    let mut terminal = top(&engine, &[], (24, 100));
    terminal.wait_for("no locks are held or wanted");
    let held = engine.client("billing on host-a (pid 4711)").lock("orders/42").acquire().unwrap();
    terminal.wait_for("billing on host-a");
    let next = engine.queue("deploy on host-b (pid 77)", "orders/42");
    terminal.wait_for("orders/42 is held, 1 waits");
    held.release().unwrap();
    terminal.wait_for("token 1, released");
    next.join().unwrap().unwrap().release().unwrap();
    terminal.wait_for("no locks are held or wanted");
}

#[test]
fn top_filters_by_the_typed_prefix() {
    let (engine, _held) = busy_engine();
    let mut terminal = top(&engine, &[], (24, 100));
    terminal.wait_for("scheduler");
    terminal.press("/orders/43");
    terminal.wait_for("names begin with: orders/43");
    terminal.press("\r");
    wait_for_frame(&mut terminal, "1 lock in use, 0 waiting, names begin with orders/43");
    assert!(!terminal.screen_text().contains("scheduler"), "{}", terminal.screen_text());
    let _later = engine.client("late").lock("orders/430").acquire().unwrap();
    terminal.wait_for("orders/430");
}

#[test]
fn top_restores_the_terminal() {
    let engine = TestEngine::new();
    for keys in ["q", "\u{1b}", "\u{3}"] {
        let mut terminal = top(&engine, &[], (24, 100));
        terminal.press(keys);
        assert_eq!(terminal.end().code(), Some(0), "{keys:?}");
        assert!(!terminal.is_full_screen() && !terminal.hides_the_cursor(), "{keys:?}");
    }
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut terminal = top(&engine, &[], (24, 100));
        terminal.signal(signal);
        assert_eq!(terminal.end().code(), Some(code));
        assert!(!terminal.is_full_screen() && !terminal.hides_the_cursor(), "{code}");
    }
}

#[test]
fn top_without_a_terminal_suggests_ls_and_watch() {
    insta::assert_snapshot!("top-refused", TestEngine::new().refusal(&["top"]));
}

#[test]
fn every_command_has_help_with_examples() {
    let engine = TestEngine::new();
    for command in ["ls", "show", "watch", "top", "break"] {
        let help = engine.command(&[command, "--help"]).env("COLUMNS", "100").finish();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(help.contains("Examples:\n") && help.contains(&format!("  palisade {command} ")), "{help}");
    }
}
