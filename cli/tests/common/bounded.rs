//! Bounds for everything that a test waits for. What exceeds its bound fails the test, and the message says what it was.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// The bound of every wait. Nothing that works takes this long, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// The bound of an experiment of many steps, such as `palisade prove`.
pub(crate) const LONG: Duration = Duration::from_secs(30 * 60);

/// Between two tests of a condition.
const POLL: Duration = Duration::from_millis(5);

/// Runs `wait` on another thread, and fails if it does not return in time.
pub(crate) fn within<T: Send + 'static>(what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let waiting = thread::spawn(move || drop(sender.send(wait())));
    match receiver.recv_timeout(TIMEOUT) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("waited {TIMEOUT:?} in vain for {what}"),
        Err(RecvTimeoutError::Disconnected) => match waiting.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends a value or panics"),
        },
    }
}

/// Polls until a condition is true.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    until_some(what, || is_true().then_some(()));
}

/// Polls until there is a value, and returns it.
pub(crate) fn until_some<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(began.elapsed() < TIMEOUT, "waited {TIMEOUT:?} in vain until {what}");
        thread::sleep(POLL);
    }
}

/// Waits at most until then for a pipe with something to read, or for the end of a process. Returns whether it came.
fn is_ready_by(file: &impl AsFd, by: Instant) -> bool {
    let left = Timespec::try_from(by.saturating_duration_since(Instant::now())).expect("it is short");
    let polled = retry_on_intr(|| poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&left)));
    polled.expect("it can be polled") > 0
}

/// Returns whether a process, which need not be a child, ends in time.
pub(crate) fn has_ended(process: &impl AsFd) -> bool {
    is_ready_by(process, Instant::now() + TIMEOUT)
}

/// Waits for a child to exit. `None` if it does not in time.
pub(crate) fn end_of(child: &mut Child) -> Option<ExitStatus> {
    end_by(child, Instant::now() + TIMEOUT)
}

fn end_by(child: &mut Child, by: Instant) -> Option<ExitStatus> {
    // One that was waited for before may have no process any more.
    if let Some(status) = child.try_wait().expect("it can be waited for") {
        return Some(status);
    }
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("it was not waited for");
    is_ready_by(&process, by).then(|| child.wait().expect("it can be waited for"))
}

/// Commands that must end in time. One that does not is killed with its process group, and fails the test with its command line and what
/// it has printed so far.
pub(crate) trait Bounded {
    /// Runs it to its end and returns its output.
    fn finish(&mut self) -> Output;

    /// Runs an experiment of many steps to its end and returns its output.
    fn finish_long(&mut self) -> Output;

    /// Runs it to its end with this stdout, and returns what it writes to stderr.
    fn finish_into(&mut self, stdout: impl Into<Stdio>) -> Output;
}

impl Bounded for Command {
    fn finish(&mut self) -> Output {
        run(self.stdout(Stdio::piped()), TIMEOUT)
    }

    fn finish_long(&mut self) -> Output {
        run(self.stdout(Stdio::piped()), LONG)
    }

    fn finish_into(&mut self, stdout: impl Into<Stdio>) -> Output {
        run(self.stdout(stdout), TIMEOUT)
    }
}

fn run(command: &mut Command, bound: Duration) -> Output {
    let line = command_line(command);
    let mut child =
        command.stderr(Stdio::piped()).process_group(0).spawn().unwrap_or_else(|error| absent(&line, &error));
    let group = Pid::from_child(&child);
    let by = Instant::now() + bound;
    let (stdout, stderr) = (Collected::of(child.stdout.take()), Collected::of(child.stderr.take()));
    let is_over = stdout.is_over_by(by) && stderr.is_over_by(by);
    match is_over.then(|| end_by(&mut child, by)).flatten() {
        Some(status) => Output { status, stdout: stdout.bytes(), stderr: stderr.bytes() },
        None => {
            // It may have ended, and processes that it has left behind keep its output open.
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            let printed = [stdout.bytes(), stderr.bytes()].concat();
            panic!(
                "not ended within {bound:?}: {line}\nso far it has printed:\n{}",
                String::from_utf8_lossy(&printed)
            );
        }
    }
}

/// Fails since a program cannot be started.
pub(crate) fn absent(line: &str, error: &io::Error) -> ! {
    panic!("{line}: {error}; scripts/setup installs what tests need")
}

/// Returns a command as one would type it.
pub(crate) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Everything that comes out of a pipe.
struct Collected {
    bytes: Shared,
    /// Disconnected at the end of the pipe.
    end: Receiver<()>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Collected {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Collected {
        let bytes = Shared::default();
        let (is_over, end) = mpsc::channel();
        if let Some(mut pipe) = pipe {
            let mut bytes = bytes.clone();
            thread::spawn(move || {
                let _is_over: mpsc::Sender<()> = is_over;
                drop(io::copy(&mut pipe, &mut bytes));
            });
        }
        Collected { bytes, end }
    }

    fn is_over_by(&self, by: Instant) -> bool {
        let left = by.saturating_duration_since(Instant::now());
        self.end.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The lines of a pipe. Each must come in time.
pub(crate) struct OutputLines<R>(BufReader<R>);

impl<R: Read + AsFd> OutputLines<R> {
    pub(crate) fn new(pipe: R) -> OutputLines<R> {
        OutputLines(BufReader::new(pipe))
    }

    /// Waits for the next line, and returns it without its end; `None` at the end of the pipe. `of` names the process in the failure.
    pub(crate) fn next_line(&mut self, of: &str) -> Option<String> {
        let by = Instant::now() + TIMEOUT;
        let mut line = Vec::new();
        loop {
            let is_ready = !self.0.buffer().is_empty() || is_ready_by(self.0.get_ref(), by);
            assert!(
                is_ready,
                "waited {TIMEOUT:?} in vain for a line of {of}, after {:?}",
                String::from_utf8_lossy(&line)
            );
            let bytes = self.0.fill_buf().expect("the pipe can be read");
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (taken, is_over) = (end.unwrap_or(bytes.len()), end.is_some() || bytes.is_empty());
            line.extend_from_slice(&bytes[..taken]);
            self.0.consume(taken + usize::from(end.is_some()));
            if is_over {
                return (end.is_some() || !line.is_empty()).then(|| String::from_utf8(line).expect("UTF-8"));
            }
        }
    }
}

impl<R: Read + Send + 'static> OutputLines<R> {
    /// Lets the process go on printing, unread.
    pub(crate) fn discard(mut self) {
        thread::spawn(move || drop(io::copy(&mut self.0, &mut io::sink())));
    }
}
