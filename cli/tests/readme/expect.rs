//! Compares the printed output with the page.

/// Whether the lines agree. `...` or `…` stands for anything within a line, or, alone on its line, for any lines.
pub(crate) fn agrees(expected: &str, actual: &str, numbers_vary: bool) -> bool {
    let lines = |text: &str| -> Vec<String> {
        let text = text.replace('…', "...");
        text.trim_end()
            .lines()
            .map(|line| if numbers_vary { without_numbers(line) } else { line.trim_end().into() })
            .collect()
    };
    lines_agree(&lines(expected), &lines(actual))
}

/// Replaces every number by `#`, and several blanks by one.
fn without_numbers(line: &str) -> String {
    let mut loose = String::new();
    for c in line.trim_end().chars() {
        match c {
            '0'..='9' if loose.ends_with('#') => {}
            '0'..='9' => loose.push('#'),
            ' ' if loose.ends_with(' ') => {}
            c => loose.push(c),
        }
    }
    loose.replace("#.#", "#")
}

fn lines_agree(expected: &[String], actual: &[String]) -> bool {
    match (expected, actual) {
        ([], []) => true,
        ([any, rest @ ..], _) if any.trim() == "..." => {
            (0..=actual.len()).any(|skipped| lines_agree(rest, &actual[skipped..]))
        }
        ([first, expected @ ..], [line, actual @ ..]) => line_agrees(first, line) && lines_agree(expected, actual),
        _ => false,
    }
}

fn line_agrees(expected: &str, actual: &str) -> bool {
    let Some((before, after)) = expected.split_once("...") else { return expected == actual };
    let Some(rest) = actual.strip_prefix(before) else { return false };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| line_agrees(after, &rest[at..]))
}

/// Returns the difference: `-` was expected, `+` was printed.
pub(crate) fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<_>, Vec<_>) =
        (expected.trim_end().lines().collect(), actual.trim_end().lines().collect());
    let same = expected.iter().zip(&actual).take_while(|(expected, actual)| expected == actual).count();
    let line = |sign: char| move |line: &&str| format!("  {sign} {line}");
    let common = expected[..same].iter().map(line(' '));
    let changed = expected[same..].iter().map(line('-')).chain(actual[same..].iter().map(line('+')));
    common.chain(changed).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lines_agree_and_others_do_not() {
        assert!(agrees("a\nb\n", "a\nb  \n", false));
        for other in ["a", "a\nc", "a\nb\nc", "", "b\na"] {
            assert!(!agrees("a\nb", other, false), "{other:?}");
        }
    }

    #[test]
    fn dots_match_anything() {
        assert!(agrees("pid ... holds x", "pid 4711 holds x", false));
        assert!(agrees("pid … holds …", "pid 4711 holds x", false));
        assert!(!agrees("pid ... holds y", "pid 4711 holds x", false));
        assert!(agrees("a\n...\nd", "a\nb\nc\nd", false));
        assert!(agrees("a\n...", "a", false));
        assert!(!agrees("a\n...\nd", "a\nb\nc", false));
    }

    #[test]
    fn numbers_are_ignored_only_with_numbers_vary() {
        assert!(agrees("median 0.4 ms  worst 3 ms", "median 12.75 ms worst 4 ms", true));
        assert!(!agrees("median 0.4 ms", "median 0.5 ms", false));
        assert!(!agrees("median 0.4 ms", "median none ms", true));
        assert!(!agrees("median 0.4 ms", "worst 0.4 ms", true));
    }

    #[test]
    fn a_difference_shows_both_sides() {
        assert_eq!(difference("a\nb\n", "a\nc\n"), "    a\n  - b\n  + c");
    }
}
