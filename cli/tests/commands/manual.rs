//! `palisade completions` and `palisade man`: shells and `man` can read what they print.

use std::fs;

use crate::common::bounded::Bounded;
use crate::sandbox::Sandbox;

const SHELLS: [&str; 5] = ["bash", "zsh", "fish", "elvish", "powershell"];

/// The commands that `--help` lists.
fn commands(sandbox: &Sandbox) -> Vec<String> {
    subcommands(sandbox, &[]).into_iter().filter_map(|mut command| command.pop()).collect()
}

/// Returns the subcommands of a command, each with all its words.
fn subcommands(sandbox: &Sandbox, command: &[String]) -> Vec<Vec<String>> {
    let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
    let help = sandbox.stdout(&args);
    let Some(list) = help.split("Commands:\n").nth(1) else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(|name| [command, &[name.to_owned()]].concat()).collect()
}

/// Returns a command and all its descendants, in the order of the manual.
fn with_descendants(sandbox: &Sandbox, command: Vec<String>) -> Vec<Vec<String>> {
    let descendants =
        subcommands(sandbox, &command).into_iter().flat_map(|command| with_descendants(sandbox, command));
    std::iter::once(command.clone()).chain(descendants).collect()
}

#[test]
fn help_says_where_scripts_and_pages_go() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("completions-help", sandbox.stdout(&["completions", "--help"]));
    insta::assert_snapshot!("man-help", sandbox.stdout(&["man", "--help"]));
}

#[test]
fn every_shell_gets_every_command() {
    let sandbox = Sandbox::new();
    for shell in SHELLS {
        let script = sandbox.stdout(&["completions", shell]);
        for command in commands(&sandbox) {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let sandbox = Sandbox::new();
    // It is longer than an argument may be.
    let script = sandbox.path().join("palisade.bash");
    fs::write(&script, sandbox.stdout(&["completions", "bash"])).expect("it can be written");
    let complete = |before: &str, last: &str| {
        let count = before.split(' ').count();
        let call = format!("COMP_WORDS=({before} '{last}'); COMP_CWORD={count}; _palisade palisade '{last}' ''");
        let ask = format!(". '{}'\n{call}\necho \"${{COMPREPLY[@]}}\"", script.display());
        let output = sandbox.program("bash").arg("-c").arg(ask).finish();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(complete("palisade", "doc"), "doctor\n");
    assert_eq!(complete("palisade doctor", "--js"), "--json\n");
    assert_eq!(complete("palisade completions", "z"), "zsh\n");
}

#[test]
fn every_command_has_a_page_with_each_section_once() {
    let sandbox = Sandbox::new();
    let written = sandbox.stdout(&["man", "--out", "pages/man1"]);
    let expected = with_descendants(&sandbox, Vec::new());
    assert!(expected.contains(&vec!["fence".to_owned(), "http".to_owned()]), "{expected:?}");
    let paths = |command: &Vec<String>| {
        let name: Vec<&str> = std::iter::once("palisade").chain(command.iter().map(String::as_str)).collect();
        format!("pages/man1/{}.1", name.join("-"))
    };
    assert_eq!(written.lines().collect::<Vec<_>>(), expected.iter().map(paths).collect::<Vec<_>>());
    for (path, command) in written.lines().zip(&expected) {
        let page = fs::read_to_string(sandbox.path().join(path)).unwrap();
        let args: Vec<&str> = std::iter::once("man").chain(command.iter().map(String::as_str)).collect();
        assert_eq!(page, sandbox.stdout(&args), "{path}");
        for section in ["NAME", "SYNOPSIS", "\"EXIT CODES\""] {
            assert_eq!(page.matches(&format!(".SH {section}\n")).count(), 1, "{path}: {section}");
        }
    }
}

#[test]
fn a_page_has_the_sections_of_help() {
    let page = Sandbox::new().stdout(&["man", "doctor"]);
    insta::assert_snapshot!("man-doctor", page.replace(env!("CARGO_PKG_VERSION"), "[VERSION]"));
}

#[test]
fn misuse_exits_64_and_says_what_is_possible() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("completions-misuse", sandbox.stderr(64, &["completions", "csh"]));
    let output = sandbox.stderr(64, &["man", "doc\u{7}tor"]);
    assert!(output.starts_with("palisade: there is no command 'doc\\u{7}tor'; `palisade` has: "), "{output}");
    assert!(output.contains(" doctor, "), "{output}");
    sandbox.stderr(64, &["man", "doctor", "--out", "pages"]);
    fs::write(sandbox.path().join("file"), "").unwrap();
    let output = sandbox.stderr(74, &["man", "--out", "file"]);
    assert!(output.contains("cannot write file: "), "{output}");
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let sandbox = Sandbox::new();
    for args in [&["completions", "bash"][..], &["man"], &["man", "doctor"], &["man", "--out", "pages"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = sandbox.output(&sandbox.command(args).finish_into(writer));
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{args:?}");
    }
    assert!(sandbox.path().join("pages/palisade-man.1").exists(), "all pages are written all the same");
}

/// Whether clap has filled every line of a paragraph: the next line's first word does not fit any more.
fn is_filled(paragraph: &[&str], width: usize) -> bool {
    let fits = |line: &str, next: &str| {
        let word = next.split_whitespace().next().unwrap_or_default();
        line.chars().count() + 1 + word.chars().count() <= width
    };
    paragraph.windows(2).all(|lines| !fits(lines[0], lines[1]))
}

#[test]
fn help_is_wrapped_once_at_every_width() {
    let sandbox = Sandbox::new();
    for command in with_descendants(&sandbox, Vec::new()) {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let listings = [80, 120].map(|width| {
            let output = sandbox.command(&args).env("COLUMNS", width.to_string()).finish();
            let help = String::from_utf8(output.stdout).unwrap();
            let after = help.split_once("\nExamples:\n").map_or("", |(_, after)| after);
            let (listings, prose): (Vec<_>, Vec<_>) = after.split("\n\n").map(str::to_owned).partition(|block| {
                let mut lines = block.lines().filter(|line| !line.ends_with(':'));
                lines.all(|line| line.starts_with("  "))
            });
            for block in prose {
                let lines: Vec<&str> = block.lines().collect();
                assert!(is_filled(&lines, width), "{args:?} at {width} is ragged:\n{block}");
            }
            listings
        });
        assert_eq!(listings[0], listings[1], "{args:?} has examples that are wrapped");
    }
}
