//! Checks a block, by its language.

use std::path::{Path, PathBuf};

use crate::blocks::{Block, BlockError};
use crate::common::bounded::Bounded;
use crate::common::environment::{self, NO_HOME};
use crate::expect;
use crate::sandbox_dir::SandboxDir;

/// How a block without errors was checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// It was run.
    Run,
    /// A doc test of the library compiles it, and runs it unless it says otherwise.
    DocTest,
    /// It is a sample that parses.
    Parsed,
    /// It is a drawing in text, and is not checked.
    Text,
    /// It says that it cannot be run, and why.
    NotRun(String),
}

impl Treatment {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Treatment::Run => "run",
            Treatment::DocTest => "doc tests",
            Treatment::Parsed => "parsed",
            Treatment::Text => "text",
            Treatment::NotRun(_) => "not run",
        }
    }
}

/// Checks a block.
pub(crate) fn check(block: &Block, root: &Path) -> Result<Treatment, BlockError> {
    let sandbox = SandboxDir::new(&block.options.given);
    if let Some(reason) = &block.options.not_run {
        without_scripts(block, root)?;
        return Ok(Treatment::NotRun(reason.clone()));
    }
    match block.language() {
        "sh" => script(block, root, &sandbox).map(|()| Treatment::Run),
        "console" => session(block, &sandbox).map(|()| Treatment::Run),
        "crontab" => crontab(block, &sandbox).map(|()| Treatment::Run),
        "toml" => configuration(block, &sandbox).map(|()| Treatment::Run),
        "json" => json(block).map(|()| Treatment::Parsed),
        "rust" => doc_test(block, root).map(|()| Treatment::DocTest),
        "text" => Ok(Treatment::Text),
        "" => Err(block.error(0, "say what this block is: sh, console, crontab, toml, json, rust, or text")),
        other => {
            let message = format!("nothing runs a block of `{other}`: put <!-- not run: REASON --> before it");
            Err(block.error(0, message))
        }
    }
}

/// Returns the block without the lines that call our scripts, which build and measure for minutes. Of those scripts only
/// `--help` is run.
fn without_scripts(block: &Block, root: &Path) -> Result<String, BlockError> {
    let mut rest = String::new();
    for (number, line) in (1..).zip(block.text.lines()) {
        let command = line.trim_start().trim_start_matches("$ ");
        let script = command.split_whitespace().next().filter(|word| word.starts_with("scripts/"));
        if let Some(script) = script {
            let script_path = root.join(script);
            let works = script_path.exists() && {
                let help = environment::command(script_path, NO_HOME).arg("--help").finish();
                help.status.success() && help.stdout.starts_with(b"Usage: ")
            };
            if !works {
                return Err(block.error(number, format!("`{script} --help` does not work")));
            }
        } else {
            rest.push_str(line);
        }
        rest.push('\n');
    }
    Ok(rest)
}

/// Runs the whole block; every line must succeed.
fn script(block: &Block, root: &Path, sandbox: &SandboxDir) -> Result<(), BlockError> {
    let text = sandbox.rewrite_urls(&without_scripts(block, root)?);
    let at = sandbox.part("line").display().to_string();
    let path = sandbox.write_file("script", &format!("trap 'echo $LINENO > {at}' ERR\n{text}"));
    let output = sandbox.run("bash", &["-euo", "pipefail", &path], true);
    match output.code {
        Some(0) => Ok(()),
        code => {
            let line = sandbox.number("line").map_or(0, |line| line - 1);
            Err(block.error(line, format!("{}\n{}", ended(code), indented(&sandbox.restore_urls(&output.printed)))))
        }
    }
}

/// A command of a session and what it is expected to print.
#[derive(Debug, Default)]
struct Step {
    /// The line in the block.
    line: usize,
    command: String,
    expected: String,
}

fn steps(block: &Block) -> Result<Vec<Step>, BlockError> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_continued = false;
    for (number, line) in (1..).zip(block.text.lines()) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => {
                is_continued = command.ends_with('\\');
                steps.push(Step { line: number, command: command.to_owned(), expected: String::new() });
            }
            (None, Some(step)) if is_continued => {
                let more = line.strip_prefix("> ").unwrap_or(line);
                is_continued = more.ends_with('\\');
                step.command += &format!("\n{more}");
            }
            (None, Some(step)) => step.expected += &format!("{line}\n"),
            (None, None) => return Err(block.error(number, "a console begins with a command: `$ palisade ls`")),
        }
    }
    Ok(steps)
}

/// Runs the commands one after the other in one shell, and compares what each prints, on stdout and stderr.
fn session(block: &Block, sandbox: &SandboxDir) -> Result<(), BlockError> {
    const SEPARATOR: char = '\u{1e}';
    let steps = steps(block)?;
    let mut script = String::from("set -uo pipefail\n");
    for step in &steps {
        script += &format!("{}\nprintf '{SEPARATOR}%d{SEPARATOR}' $?\n", sandbox.rewrite_urls(&step.command));
    }
    let path = sandbox.write_file("session", &script);
    let output = sandbox.run("bash", &[&path], true);
    let mut parts = output.printed.split(SEPARATOR);
    for step in &steps {
        let (printed, code) = (sandbox.restore_urls(parts.next().unwrap_or_default()), parts.next());
        let error = |message: String| Err(block.error(step.line, message));
        match code {
            None => return error(format!("the session ended here\n{}", indented(&printed))),
            Some("0") if expect::agrees(&step.expected, &printed, block.options.numbers_vary) => {}
            Some("0") => {
                let difference = expect::difference(&step.expected, &printed);
                return error(format!("this printed something else\n{difference}"));
            }
            Some(code) => {
                let advice = "show a failure that is meant with `; echo $?`";
                return error(format!("this failed with {code}; {advice}\n{}", indented(&printed)));
            }
        }
    }
    Ok(())
}

/// Runs the command of every entry as cron would, but at once.
fn crontab(block: &Block, sandbox: &SandboxDir) -> Result<(), BlockError> {
    let mut settings = String::new();
    for (number, line) in (1..).zip(block.text.lines()) {
        let line = line.trim();
        let name = line.split_once('=').map(|(name, _)| name.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')) {
            settings += &format!("export {line}\n");
            continue;
        }
        let Some(command) = cron_command(line) else {
            return Err(
                block.error(number, "this is not a crontab entry: five time fields, or @daily, then a command")
            );
        };
        if command.replace("\\%", "").contains('%') {
            return Err(block.error(number, "cron makes a line break of `%`: write `\\%`"));
        }
        let command = sandbox.rewrite_urls(&command.replace("\\%", "%"));
        let output = sandbox.run("/bin/sh", &["-c", &format!("{settings}{command}")], true);
        if output.code != Some(0) {
            return Err(block.error(number, format!("{}\n{}", ended(output.code), indented(&output.printed))));
        }
    }
    Ok(())
}

/// Returns the command after the five time fields, or after the `@` word.
fn cron_command(line: &str) -> Option<&str> {
    if let Some(rest) = line.strip_prefix('@') {
        return Some(rest.split_once(' ')?.1.trim());
    }
    // Names are short: `mon`, `jan`.
    let is_name = |word: &str| word.is_empty() || word.len() == 3 && word.chars().all(|c| c.is_ascii_lowercase());
    let is_time = |word: &str| word.split(|c: char| c.is_ascii_digit() || "*,/-".contains(c)).all(is_name);
    let mut rest = line;
    for _ in 0..5 {
        let (word, more) = rest.split_once(char::is_whitespace)?;
        rest = is_time(word).then_some(more.trim_start())?;
    }
    Some(rest)
}

/// Uses the block as the configuration file of a command that connects.
fn configuration(block: &Block, sandbox: &SandboxDir) -> Result<(), BlockError> {
    let table: toml::Table =
        block.text.parse().map_err(|error| block.error(0, format!("this is not TOML: {error}")))?;
    let path = sandbox.write_file("config.toml", &sandbox.rewrite_urls(&block.text));
    let output = sandbox.run("palisade", &["--config", &path, "doctor"], !table.contains_key("url"));
    match output.code {
        Some(0) => Ok(()),
        code => Err(block.error(0, format!("{}\n{}", ended(code), indented(&sandbox.restore_urls(&output.printed))))),
    }
}

/// Parses one JSON value, or one on each line.
fn json(block: &Block) -> Result<(), BlockError> {
    let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text);
    let Err(error) = parsed(&block.text) else { return Ok(()) };
    match block.text.lines().all(|line| parsed(line).is_ok()) {
        true => Ok(()),
        false => Err(block.error(error.line(), format!("this is not JSON: {error}"))),
    }
}

/// Checks that a crate includes the page, so that its doc tests run the block.
fn doc_test(block: &Block, root: &Path) -> Result<(), BlockError> {
    if block.info.contains("ignore") {
        return Err(block.error(0, "an ignored example needs a reason: <!-- not run: REASON --> before it"));
    }
    let adapters = std::fs::read_dir(root.join("fence/src")).into_iter().flatten().flatten();
    let adapters = adapters.map(|folder| folder.path().join("mod.rs"));
    let libraries = ["lib/src/lib.rs", "fence/src/lib.rs", "testbench/src/lib.rs"].map(|library| root.join(library));
    let include = format!("/{}\")", block.file);
    let is_included = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default().contains(&include);
    match libraries.into_iter().chain(adapters).any(is_included) {
        true => Ok(()),
        false => Err(block.error(0, "no doc test runs this: include the page in a library, as lib/src/lib.rs does")),
    }
}

fn ended(code: Option<i32>) -> String {
    match code {
        Some(code) => format!("this failed with exit code {code}"),
        None => "this did not end in time, or was ended by a signal".to_owned(),
    }
}

fn indented(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks;
    use crate::sandbox::repository;

    /// Checks the one block of a page.
    fn checked(page: &str) -> Result<Treatment, BlockError> {
        let page = blocks::blocks("a.md", page);
        assert_eq!((page.blocks.len(), page.errors), (1, vec![]));
        check(&page.blocks[0], &repository())
    }

    fn error(page: &str) -> String {
        checked(page).expect_err(page).to_string()
    }

    #[test]
    fn a_wrong_line_of_a_script_is_found() {
        assert_eq!(checked("```sh\npalisade doctor\npalisade --version | grep palisade\n```"), Ok(Treatment::Run));
        let unknown = error("```sh\ntrue\n\npalisade doctr\n```");
        assert!(unknown.starts_with("a.md:4: this failed with exit code 64"), "{unknown}");
        assert!(unknown.contains("  |   tip: a similar subcommand exists: 'doctor'"), "{unknown}");
        assert!(error("```sh\nfalse | true\n```").starts_with("a.md:2:"), "a pipe hides nothing");
        assert!(error("```sh\necho $unset\n```").contains("unset"));
    }

    #[test]
    fn a_missing_program_is_an_error_unless_it_is_given() {
        assert!(error("```sh\n./report.sh\nbackup\n```").starts_with("a.md:2:"));
        assert_eq!(
            checked("<!-- given: ./report.sh backup -->\n```sh\n./report.sh\nbackup\n```"),
            Ok(Treatment::Run)
        );
    }

    #[test]
    fn scripts_must_exist_even_in_blocks_that_are_not_run() {
        assert_eq!(checked("```sh\nscripts/test\n```"), Ok(Treatment::Run));
        assert_eq!(error("```sh\ntrue\nscripts/tset\n```"), "a.md:3: `scripts/tset --help` does not work");
        assert_eq!(
            error("<!-- not run: slow -->\n```sh\nscripts/tset\n```"),
            "a.md:3: `scripts/tset --help` does not work"
        );
        let marked = checked("<!-- not run: slow -->\n```sh\ncargo run\n```");
        assert_eq!(marked, Ok(Treatment::NotRun("slow".to_owned())));
    }

    #[test]
    fn output_that_differs_is_found_with_its_difference() {
        assert_eq!(checked("```console\n$ x=1\n$ echo a \\\n> $x\na 1\n$ echo b >&2\nb\n```"), Ok(Treatment::Run));
        assert_eq!(
            error("```console\n$ echo a\na\n$ printf 'b\\nc\\n'\nb\nd\n```"),
            "a.md:4: this printed something else\n    b\n  - d\n  + c"
        );
        assert!(error("```console\n$ echo a\n```").contains("+ a"), "output that is not shown");
        assert!(error("```console\n$ true\na\n```").contains("- a"), "output that does not come");
        assert!(error("```console\n$ false\n```").starts_with("a.md:2: this failed with 1"));
        assert!(error("```console\n$ exit 0\n$ echo a\na\n```").starts_with("a.md:2: the session ended here"));
        assert!(error("```console\nno command\n```").starts_with("a.md:2: a console begins with a command"));
    }

    #[test]
    fn a_failure_that_is_meant_is_shown_with_its_code() {
        let page = "```console\n$ palisade leader x; echo $?\npalisade: 'x' has no leader\n75\n```";
        assert_eq!(checked(page), Ok(Treatment::Run));
        assert!(error(&page.replace("75", "0")).contains("+ 75"));
    }

    #[test]
    fn a_crontab_is_run_entry_by_entry() {
        let good = "```crontab\n# daily\nMAILTO=me\n0 3 * * 1-5 palisade doctor && test \"$MAILTO\" = me\n@daily date +\\%s\n```";
        assert_eq!(checked(good), Ok(Treatment::Run));
        assert!(error("```crontab\n\n0 3 * * * palisade docter\n```").starts_with("a.md:3: this failed"));
        assert!(error("```crontab\n0 3 * * palisade doctor\n```").starts_with("a.md:2: this is not a crontab entry"));
        assert!(error("```crontab\n@daily date +%s\n```").contains("cron makes a line break"));
    }

    #[test]
    fn a_configuration_is_used() {
        assert_eq!(checked("```toml\nttl = \"30s\"\n```"), Ok(Treatment::Run));
        assert_eq!(checked("```toml\nurl = \"embedded:///srv/locks.db\"\n```"), Ok(Treatment::Run));
        assert!(error("```toml\nurl = \"nosuch:\"\n```").contains("names no engine"));
        assert!(error("```toml\nlable = \"x\"\n```").contains("unknown field `lable`"));
        assert!(error("```toml\nttl = \"30\"\n```").contains("has no unit"));
        assert!(error("```toml\nttl =\n```").contains("this is not TOML"));
    }

    #[test]
    fn an_unchecked_block_is_an_error() {
        assert!(error("```\nx\n```").starts_with("a.md:1: say what this block is"));
        assert!(error("```python\nx\n```").contains("nothing runs a block of `python`"));
        assert!(error("```rust\nx\n```").contains("no doc test runs this"));
        assert!(error("```rust,ignore\nx\n```").contains("needs a reason"));
        assert!(error("```json\n{\"a\": }\n```").starts_with("a.md:2: this is not JSON"));
        assert_eq!(checked("```json\n{}\n[1]\n```"), Ok(Treatment::Parsed));
    }
}
