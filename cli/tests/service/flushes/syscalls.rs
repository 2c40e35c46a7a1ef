//! The output of `strace -f -ttt -T -yy -xx`, as a list of calls.

use std::collections::HashMap;
use std::fmt;

/// One system call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// The lines of the trace with its entry and its return. Their order is the order of events: a process goes on
    /// from either only after strace has written the line.
    pub(crate) entry: usize,
    pub(crate) exit: Option<usize>,
    /// The time of the entry, in seconds.
    pub(crate) time: f64,
    /// The file or the socket of its first descriptor.
    pub(crate) target: Option<String>,
    /// The texts among its arguments: paths, or the beginning of the data.
    pub(crate) texts: Vec<Vec<u8>>,
    /// Its arguments as strace shows them.
    pub(crate) arguments: String,
    /// `None`: it failed, or has not returned.
    pub(crate) result: Option<i64>,
    /// The file of the descriptor that it returned.
    pub(crate) opened: Option<String>,
}

impl Call {
    /// Whether its data contains this. strace shows only the beginning of long data.
    pub(crate) fn has(&self, text: &str) -> bool {
        let text = text.as_bytes();
        self.texts.iter().any(|data| data.windows(text.len()).any(|part| part == text))
    }

    /// Returns the path at this index among its text arguments.
    pub(crate) fn path(&self, index: usize) -> Option<String> {
        self.texts.get(index).map(|text| String::from_utf8_lossy(text).into_owned())
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.name.as_str(), "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2")
    }

    /// Whether it writes to a socket.
    pub(crate) fn is_send(&self) -> bool {
        let is_send = matches!(self.name.as_str(), "sendto" | "sendmsg" | "sendmmsg") || self.is_write();
        is_send && self.target.as_ref().is_some_and(|target| target.starts_with("TCP"))
    }

    pub(crate) fn is_flush(&self) -> bool {
        matches!(self.name.as_str(), "fsync" | "fdatasync") && self.result == Some(0)
    }

    pub(crate) fn is_rename(&self) -> bool {
        matches!(self.name.as_str(), "rename" | "renameat" | "renameat2") && self.result == Some(0)
    }

    pub(crate) fn is_removal(&self) -> bool {
        matches!(self.name.as_str(), "unlink" | "unlinkat")
    }

    /// Returns the new name if the call creates, links or renames a file.
    pub(crate) fn makes(&self) -> Option<String> {
        match self.name.as_str() {
            "mkdir" | "mkdirat" if self.result == Some(0) => self.path(0),
            "link" | "linkat" | "rename" | "renameat" | "renameat2" if self.result == Some(0) => self.path(1),
            "openat" | "open" | "creat" if self.arguments.contains("O_CREAT") => self.opened.clone(),
            _ => None,
        }
    }
}

/// For messages: without the data.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = || self.path(0).filter(|_| !self.is_write());
        let target = self.target.clone().or_else(path).unwrap_or_default();
        write!(f, "{}({target}) of thread {}, line {} of the trace", self.name, self.pid, self.entry + 1)
    }
}

/// Returns the calls in a trace, in the order of their entries.
pub(crate) fn parse(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished: HashMap<u32, (usize, String)> = HashMap::new();
    for (number, line) in trace.lines().enumerate() {
        let Some((pid, time, rest)) = beginning(line) else { continue };
        if let Some(resumed) = rest.strip_prefix("<... ") {
            // strace misses the beginning of a call only if it was attached in the middle of it.
            let Some((index, begun)) = unfinished.remove(&pid) else { continue };
            let end = resumed.split_once(" resumed>").map_or("", |(_, end)| end);
            let call = Call {
                entry: calls[index].entry,
                time: calls[index].time,
                ..call(pid, time, &(begun + end), number)
            };
            calls[index] = Call { exit: Some(number), ..call };
        } else if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(pid, (calls.len(), begun.trim_end().to_owned()));
            calls.push(Call { exit: None, ..call(pid, time, begun, number) });
        } else if rest.contains('(') && !rest.starts_with(['+', '-']) {
            calls.push(call(pid, time, rest, number));
        }
    }
    calls
}

/// Splits a line into process, time and the rest.
fn beginning(line: &str) -> Option<(u32, f64, &str)> {
    let (pid, rest) = line.split_once(' ')?;
    let (time, rest) = rest.trim_start().split_once(' ')?;
    Some((pid.parse().ok()?, time.parse().ok()?, rest))
}

fn call(pid: u32, time: f64, text: &str, line: usize) -> Call {
    let (name, rest) = text.split_once('(').unwrap_or((text, ""));
    let (arguments, result) = rest.rsplit_once(" = ").unwrap_or((rest, ""));
    Call {
        pid,
        name: name.to_owned(),
        entry: line,
        exit: Some(line),
        time,
        target: target(arguments),
        texts: texts(arguments),
        arguments: arguments.to_owned(),
        result: number(result).filter(|result| *result >= 0),
        opened: target(result),
    }
}

/// Parses the number at the beginning.
fn number(text: &str) -> Option<i64> {
    let end = text.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Returns the file or socket of the descriptor at the beginning: `3</tmp/file>` or `3<TCP:[127.0.0.1:1->127.0.0.1:2]>`.
fn target(text: &str) -> Option<String> {
    let shown = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let shown = shown.strip_prefix('<').filter(|_| shown.len() < text.len())?;
    if shown.starts_with("\\x") {
        return Some(String::from_utf8_lossy(&unescaped(shown)).into_owned());
    }
    Some(shown.split_once("]>").map_or_else(|| shown.to_owned(), |(inside, _)| format!("{inside}]")))
}

/// Returns the texts in quotes. With `-xx` each of their bytes is shown as `\x2f`, so none contains a quote.
fn texts(arguments: &str) -> Vec<Vec<u8>> {
    arguments.split('"').skip(1).step_by(2).map(unescaped).collect()
}

/// Decodes `\x2f\x74…`, up to the first other character.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(byte) = rest.strip_prefix("\\x").and_then(|rest| u8::from_str_radix(rest.get(..2)?, 16).ok()) {
        bytes.push(byte);
        rest = &rest[4..];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_on_one_line_has_its_file_its_data_and_its_result() {
        let calls = parse(concat!(
            r#"17  1794822171.484372 pwrite64(3<\x2f\x61>, "\x68\x69\x0a", 3, 64) = 3 <0.000019>"#,
            "\n",
            r"17  1794822171.484390 fdatasync(3<\x2f\x61>) = 0 (DELAYED) <0.005490>",
        ));
        let (write, flush) = (&calls[0], &calls[1]);
        assert_eq!((write.pid, write.name.as_str(), write.entry, write.exit), (17, "pwrite64", 0, Some(0)));
        assert_eq!((write.target.as_deref(), write.result), (Some("/a"), Some(3)));
        assert!(write.is_write() && write.has("hi\n") && !write.has("ho") && !write.is_send());
        assert!(flush.is_flush() && flush.target.as_deref() == Some("/a") && flush.entry == 1);
        assert!((write.time - 1_794_822_171.484_372).abs() < 1e-3);
    }

    #[test]
    fn a_call_that_others_interrupt_ends_where_it_is_resumed() {
        let calls = parse(concat!(
            r"17  1.5 fsync(3<\x2f\x61> <unfinished ...>",
            "\n",
            r#"18  1.6 sendto(9<TCP:[127.0.0.1:1->127.0.0.1:2]>, "\x6f\x6b", 2, MSG_NOSIGNAL, NULL, 0) = 2 <0.1>"#,
            "\n",
            r"17  1.7 <... fsync resumed>)             = 0 <0.2>",
        ));
        assert_eq!(calls.len(), 2);
        assert_eq!((calls[0].entry, calls[0].exit, calls[0].time), (0, Some(2), 1.5));
        assert!(calls[0].is_flush() && calls[0].target.as_deref() == Some("/a"));
        assert!(calls[1].is_send() && calls[1].has("ok") && calls[1].exit == Some(1));
        assert_eq!(calls[1].target.as_deref(), Some("TCP:[127.0.0.1:1->127.0.0.1:2]"));
    }

    #[test]
    fn a_call_that_failed_or_never_returned_has_no_result() {
        let calls = parse(concat!(
            r#"17  1.5 mkdir("\x2f\x61", 0700) = -1 EEXIST (File exists) <0.1>"#,
            "\n",
            r"17  1.6 fsync(3<\x2f\x61> <unfinished ...>",
            "\n",
            "17  1.7 +++ killed by SIGKILL +++",
        ));
        assert_eq!((calls[0].result, calls[0].makes()), (None, None));
        assert_eq!((calls[1].exit, calls[1].is_flush()), (None, false));
        assert_eq!(calls.len(), 2);
    }

    #[test]
    fn names_come_from_files_that_are_made_renamed_and_linked() {
        let calls = parse(concat!(
            r#"17  1.1 openat(AT_FDCWD<\x2f>, "\x61", O_RDWR|O_CREAT|O_EXCL, 0600) = 3<\x2f\x61> <0.1>"#,
            "\n",
            r#"17  1.2 openat(AT_FDCWD<\x2f>, "\x61", O_RDONLY) = 3<\x2f\x61> <0.1>"#,
            "\n",
            r#"17  1.3 rename("\x2f\x61", "\x2f\x62") = 0 <0.1>"#,
            "\n",
            r#"17  1.4 writev(1<\x70\x69\x70\x65>, [{iov_base="\x61", iov_len=1}, {iov_base="\x62", iov_len=1}], 2) = 2 <0.1>"#,
        ));
        let made: Vec<_> = calls.iter().map(Call::makes).collect();
        assert_eq!(made, [Some("/a".to_owned()), None, Some("/b".to_owned()), None]);
        assert!(calls[2].is_rename());
        assert_eq!(calls[3].texts, [b"a", b"b"]);
    }
}
