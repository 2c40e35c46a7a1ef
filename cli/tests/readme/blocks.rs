//! Parses the fenced code blocks of a page, and the comments before them.

use std::fmt;

/// One fenced code block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Block {
    pub(crate) file: String,
    /// The line of the opening fence, counted from 1.
    pub(crate) line: usize,
    /// The info string after the opening fence: `sh`, or `rust,no_run`.
    pub(crate) info: String,
    pub(crate) text: String,
    pub(crate) options: Options,
}

/// The options in the comments just before a block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Options {
    /// `<!-- not run: REASON -->`
    pub(crate) not_run: Option<String>,
    /// `<!-- given: ./report.sh backup -->`: programs that the block may call. They do nothing, and succeed.
    pub(crate) given: Vec<String>,
    /// `<!-- numbers vary -->`: any number will do where the expected output has one.
    pub(crate) numbers_vary: bool,
}

/// An error in a page, with its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockError {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl Block {
    /// Returns the first word of the info string.
    pub(crate) fn language(&self) -> &str {
        self.info.split([',', ' ']).next().unwrap_or_default()
    }

    /// Returns an error in a line of the block; 0 is the fence, 1 the first line of the text.
    pub(crate) fn error(&self, line: usize, message: impl Into<String>) -> BlockError {
        BlockError { file: self.file.clone(), line: self.line + line, message: message.into() }
    }
}

/// The blocks of a page, and the errors in it.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) blocks: Vec<Block>,
    pub(crate) errors: Vec<BlockError>,
}

/// Reads a page.
pub(crate) fn blocks(file: &str, text: &str) -> Page {
    let mut page = Page::default();
    let error = |line, message: &str| BlockError { file: file.to_owned(), line, message: message.to_owned() };
    let mut options: Option<(usize, Options)> = None;
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        if let Some(comment) = line.trim_start().strip_prefix("<!--") {
            let mut comment = comment.to_owned();
            while !comment.contains("-->") {
                let Some((_, more)) = lines.next() else { break };
                comment = format!("{comment} {}", more.trim());
            }
            let (_, options) = options.get_or_insert((number, Options::default()));
            if let Err(message) = options.read(comment.split("-->").next().unwrap_or_default().trim()) {
                page.errors.push(error(number, message));
            }
        } else if let Some(fence) = Fence::opening(line) {
            let (text, is_closed) = fence.body(&mut lines);
            if !is_closed {
                page.errors.push(error(number, "this block is never closed"));
            }
            let options = options.take().map(|(_, options)| options).unwrap_or_default();
            page.blocks.push(Block { file: file.to_owned(), line: number, info: fence.info.clone(), text, options });
        } else if !line.trim().is_empty() {
            page.errors
                .extend(left_over(options.take()).map(|line| error(line, "no code block follows this comment")));
        }
    }
    page.errors.extend(left_over(options).map(|line| error(line, "no code block follows this comment")));
    page
}

/// Returns the line of options without a block after them. Comments without options may be anywhere.
fn left_over(options: Option<(usize, Options)>) -> Option<usize> {
    options.filter(|(_, options)| *options != Options::default()).map(|(line, _)| line)
}

impl Options {
    fn read(&mut self, comment: &str) -> Result<(), &'static str> {
        if let Some(reason) = comment.strip_prefix("not run") {
            let reason = reason.trim_start_matches(':').trim();
            if reason.is_empty() {
                return Err("say why it is not run: <!-- not run: REASON -->");
            }
            self.not_run = Some(reason.to_owned());
        } else if let Some(programs) = comment.strip_prefix("given:") {
            self.given.extend(programs.split_whitespace().map(str::to_owned));
        } else if comment == "numbers vary" {
            self.numbers_vary = true;
        }
        Ok(())
    }
}

struct Fence {
    indent: usize,
    ticks: String,
    info: String,
}

impl Fence {
    fn opening(line: &str) -> Option<Fence> {
        let rest = line.trim_start();
        let indent = line.len() - rest.len();
        let ticks: String = rest.chars().take_while(|c| *c == '`').collect();
        (ticks.len() >= 3).then(|| Fence { indent, info: rest[ticks.len()..].trim().to_owned(), ticks })
    }

    /// Returns the lines up to the closing fence, and whether there is one.
    fn body<'a>(&self, lines: &mut impl Iterator<Item = (usize, &'a str)>) -> (String, bool) {
        let mut text = String::new();
        for (_, line) in lines {
            if line.trim() == self.ticks {
                return (text, true);
            }
            let blank = line.len() - line.trim_start().len();
            text.push_str(&line[blank.min(self.indent)..]);
            text.push('\n');
        }
        (text, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Block {
        let page = blocks("a.md", text);
        assert_eq!((page.blocks.len(), page.errors), (1, vec![]), "{text}");
        page.blocks.into_iter().next().unwrap()
    }

    #[test]
    fn a_block_has_its_line_its_text_and_its_options() {
        let block =
            only("# A\n\n<!-- not run: it takes\n  an hour -->\n<!-- given: ./a b -->\n\n```sh\nx\n\ny\n```\ntext");
        assert_eq!((block.line, block.language(), block.text.as_str()), (7, "sh", "x\n\ny\n"));
        assert_eq!(block.options.not_run.as_deref(), Some("it takes an hour"));
        assert_eq!(block.options.given, ["./a", "b"]);
        assert_eq!(block.error(1, "no").to_string(), "a.md:8: no");
    }

    #[test]
    fn a_block_may_be_indented_and_contain_shorter_fences() {
        assert_eq!(only("- a\n  ```sh\n  x\n    y\n  ```").text, "x\n  y\n");
        assert_eq!(only("````text\n```\n````").text, "```\n");
        assert_eq!(only("```rust,no_run\n```").language(), "rust");
    }

    #[test]
    fn an_option_without_a_reason_or_without_a_block_is_an_error() {
        for (text, line) in [
            ("<!-- not run: -->\n```sh\n```", 1),
            ("<!-- not run -->\n```sh\n```", 1),
            ("\n<!-- not run: reason -->\ntext\n```sh\n```", 2),
            ("<!-- numbers vary -->", 1),
            ("```sh\nnever closed", 1),
        ] {
            let errors: Vec<usize> = blocks("a.md", text).errors.iter().map(|error| error.line).collect();
            assert_eq!(errors, [line], "{text}");
        }
        assert_eq!(blocks("a.md", "<!-- a comment -->\ntext").errors, []);
    }
}
