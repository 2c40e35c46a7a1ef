//! Parsing and formatting that commands share.

use std::io::{self, Write};
use std::time::Duration;

use palisade::Token;
use palisade_server::Limits;
use serde::Serialize;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Parses a time like `30s`, `5m` or `1h 30m`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let example = "a time looks like 500ms, 30s, 5m, 1h30m or 7d";
    match humantime::parse_duration(text) {
        Ok(time) => Ok(time),
        Err(_) if text.trim().parse::<f64>().is_ok() => {
            Err(format!("'{}' has no unit; {example}", text.escape_debug()))
        }
        Err(_) => Err(format!("'{}' is not a time; {example}", text.escape_debug())),
    }
}

/// Parses a token, a number of at least 1.
pub(crate) fn parse_token(text: &str) -> Result<Token, String> {
    let not_a_number =
        |_| format!("'{}' is not a token; a token is a number, and `palisade show` prints it", text.escape_debug());
    Token::new(text.parse().map_err(not_a_number)?).map_err(|bad| bad.to_string())
}

/// Parses a TTL. The bounds are those that all engines share; one engine may allow less.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time < TTL_MIN || time > ttl_max() {
        let text = text.escape_debug();
        return Err(format!("'{text}' is not between {} and {}", self::time(TTL_MIN), self::time(ttl_max())));
    }
    Ok(time)
}

const TTL_MIN: Duration = Duration::from_millis(100);
/// The longest TTL that the engines accept.
fn ttl_max() -> Duration {
    Duration::from_millis(Limits::default().ttl_max_ms.into())
}

/// Formats a time for people, with two units at most: `1h 12m`, `3.4s`, `120ms`.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{}ms", time.subsec_millis()),
        1..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats milliseconds as [`time`] does.
pub(crate) fn time_ms(ms: u64) -> String {
    time(Duration::from_millis(ms))
}

/// Formats milliseconds as a user writes a time, without rounding: `24h`, `1m30s`.
pub(crate) fn exact_time(ms: u64) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    // One day is usually written as 24h.
    let units = if ms < 2 * 86_400_000 { &units[1..] } else { &units[..] };
    let (mut rest, mut written) = (ms, String::new());
    for (unit, size) in units {
        if rest >= *size {
            written.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if written.is_empty() { "0s".to_owned() } else { written }
}

/// Lists words as in a sentence: `a, b and c`.
pub(crate) fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [some @ .., last] => format!("{} and {last}", some.join(", ")),
    }
}

/// Returns a number with its noun, in the plural unless it is one.
pub(crate) fn count(number: impl Into<u64>, one: &str, several: &str) -> String {
    match number.into() {
        1 => format!("1 {one}"),
        number => format!("{number} {several}"),
    }
}

/// Escapes foreign text (a label, a reason) for a terminal: no control characters, no line breaks.
pub(crate) fn plain(text: &str) -> String {
    text.chars().flat_map(|c| if c == '\'' || c == '"' { vec![c] } else { c.escape_debug().collect() }).collect()
}

/// Quotes a word for any POSIX shell, if it needs quotes.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Prints a report as JSON, for programs.
pub(crate) fn print_json(report: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
    out.flush()
}

/// Returns the label that other clients see as the holder: `name on host (pid 4711)`.
pub(crate) fn label(name: String) -> String {
    let system = rustix::system::uname();
    format!("{name} on {} (pid {})", system.nodename().to_string_lossy(), std::process::id())
}

/// The log level of a command.
pub(crate) struct LogLevels {
    /// Without `-v`.
    pub(crate) default: &'static str,
    /// With one `-v`.
    pub(crate) verbose: &'static str,
}

/// Sends the library's log to stderr. `-vv` and `-vvv` mean the same for every command; `PALISADE_LOG` overrides all.
pub(crate) fn log_to_stderr(verbose: u8, levels: &LogLevels) {
    let level = match verbose {
        0 => levels.default,
        1 => levels.verbose,
        2 => "debug",
        _ => "trace",
    };
    let directives = std::env::var_os("PALISADE_LOG").unwrap_or_else(|| level.into());
    let (filter, unreadable) = log_filter(directives.to_str().unwrap_or_default());
    for directive in unreadable {
        let directive = directive.escape_debug();
        let _ = writeln!(
            io::stderr(),
            "palisade: PALISADE_LOG: '{directive}' is ignored: it is neither a level (off, error, warn, info, debug, \
             trace) nor TARGET=LEVEL"
        );
    }
    // A closed stderr must not panic: that would end the thread that keeps the lock.
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(log).init();
}

/// Parses levels and `TARGET=LEVEL`, separated by commas: `warn,palisade=debug`. A target without a level is logged with all
/// levels; an empty list logs errors. Also returns what it cannot read, and leaves out of the filter.
fn log_filter(directives: &str) -> (Targets, Vec<&str>) {
    let (mut filter, mut unreadable) = (Targets::new(), Vec::new());
    let mut is_empty = true;
    for directive in directives.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let begins_target = |c: char| c.is_alphanumeric() || "-:_".contains(c);
        // A bracket, as in `target[span]`, would be taken for a part of the target's name, and nothing would be logged.
        let is_readable = directive.starts_with(begins_target) && !directive.contains('[');
        match directive.trim_end_matches('=').parse::<Targets>() {
            Ok(parsed) if is_readable => {
                is_empty = false;
                filter.extend(parsed.iter());
                if let Some(level) = parsed.default_level() {
                    filter = filter.with_default(level);
                }
            }
            _ => unreadable.push(directive),
        }
    }
    if is_empty {
        filter = filter.with_default(LevelFilter::ERROR);
    }
    (filter, unreadable)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn an_exact_time_is_what_a_user_writes() {
        for (ms, text) in [
            (0, "0s"),
            (100, "100ms"),
            (9_000, "9s"),
            (90_001, "1m30s1ms"),
            (86_400_000, "24h"),
            (259_200_000, "3d"),
            (4_000_000_000, "46d7h6m40s"),
        ] {
            assert_eq!(exact_time(ms), text);
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)));
        }
    }

    #[test]
    fn times_have_at_most_two_units() {
        let shown: Vec<_> =
            [0, 40, 999, 1_500, 9_999, 59_000, 61_000, 3_599_000, 4_320_000, 90_000_000].map(time_ms).into();
        assert_eq!(shown, ["0ms", "40ms", "999ms", "1.5s", "10.0s", "59s", "1m 01s", "59m 59s", "1h 12m", "1d 01h"]);
    }

    #[test]
    fn a_time_needs_a_unit() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("1h30m"), Ok(Duration::from_secs(5_400)));
        assert!(parse_time("90").unwrap_err().contains("has no unit"));
        assert!(parse_time("-5s").unwrap_err().contains("is not a time"));
        assert!(parse_time("").unwrap_err().contains("is not a time"));
        assert!(parse_time("99999999999999999999h").unwrap_err().contains("is not a time"));
    }

    #[test]
    fn quoted_words_survive_a_posix_shell() {
        for text in ["deploy", "", "it's", "$(reboot)", "a b", "a\nb", "`x`", "ä", "\\"] {
            let script = format!("printf %s {}", shell_word(text));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{script}");
        }
    }

    #[test]
    fn a_log_filter_has_levels_and_targets() {
        let logged = |directives, target| {
            let (filter, _) = log_filter(directives);
            let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
            levels.iter().filter(|level| filter.would_enable(target, level)).count()
        };
        for (directives, audit, node) in [
            ("", 1, 1),
            ("off", 0, 0),
            ("INFO", 3, 3),
            ("4", 4, 4),
            ("palisade", 5, 5),
            ("palisade::audit=", 5, 0),
            ("palisade::audit=debug", 4, 0),
            ("warn,palisade::audit=info", 3, 2),
            ("palisade::audit=off, palisade=trace", 0, 5),
            ("info,palisade=loud", 3, 3),
            ("palisade=loud", 1, 1),
        ] {
            let both = (logged(directives, "palisade::audit"), logged(directives, "palisade_server::node"));
            assert_eq!(both, (audit, node), "{directives}");
        }
        assert_eq!(
            log_filter("*,info,[acquire]=debug,a=loud,a=b=info").1,
            ["*", "[acquire]=debug", "a=loud", "a=b=info"]
        );
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(plain("it's\u{1b}[2J \n \u{202e}ok"), "it's\\u{1b}[2J \\n \\u{202e}ok");
    }
}
