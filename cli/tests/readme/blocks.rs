//! From a page to its fenced code blocks, and what the comments before them say.

use std::fmt;

/// One fenced code block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Block {
    pub(crate) file: String,
    /// Of the opening fence, counted from 1.
    pub(crate) line: usize,
    /// What stands behind the opening fence: `sh`, or `rust,no_run`.
    pub(crate) info: String,
    pub(crate) text: String,
    pub(crate) marks: Marks,
}

/// What the comments just before a block say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Marks {
    /// `<!-- not run: REASON -->`
    pub(crate) not_run: Option<String>,
    /// `<!-- given: ./report.sh backup -->`: programs that the block may call. They do nothing, and succeed.
    pub(crate) given: Vec<String>,
    /// `<!-- numbers vary -->`: any number will do where the expected output has one.
    pub(crate) numbers_vary: bool,
}

/// Something that is wrong, where, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockError {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl Block {
    /// The first word behind the fence.
    pub(crate) fn language(&self) -> &str {
        self.info.split([',', ' ']).next().unwrap_or_default()
    }

    /// Something is wrong with a line of it; 0 is the fence, 1 the first line of the text.
    pub(crate) fn fault(&self, line: usize, what: impl Into<String>) -> BlockError {
        BlockError { file: self.file.clone(), line: self.line + line, what: what.into() }
    }
}

/// What a page has.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) blocks: Vec<Block>,
    pub(crate) faults: Vec<BlockError>,
}

/// Reads a page.
pub(crate) fn blocks(file: &str, text: &str) -> Page {
    let mut page = Page::default();
    let fault = |line, what: &str| BlockError { file: file.to_owned(), line, what: what.to_owned() };
    let mut marks: Option<(usize, Marks)> = None;
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        if let Some(comment) = line.trim_start().strip_prefix("<!--") {
            let mut comment = comment.to_owned();
            while !comment.contains("-->") {
                let Some((_, more)) = lines.next() else { break };
                comment = format!("{comment} {}", more.trim());
            }
            let (_, marks) = marks.get_or_insert((number, Marks::default()));
            if let Err(what) = marks.read(comment.split("-->").next().unwrap_or_default().trim()) {
                page.faults.push(fault(number, what));
            }
        } else if let Some(fence) = Fence::opening(line) {
            let (text, is_closed) = fence.body(&mut lines);
            if !is_closed {
                page.faults.push(fault(number, "this block is never closed"));
            }
            let marks = marks.take().map(|(_, marks)| marks).unwrap_or_default();
            page.blocks.push(Block { file: file.to_owned(), line: number, info: fence.info.clone(), text, marks });
        } else if !line.trim().is_empty() {
            page.faults.extend(left_over(marks.take()).map(|line| fault(line, "no code block follows this mark")));
        }
    }
    page.faults.extend(left_over(marks).map(|line| fault(line, "no code block follows this mark")));
    page
}

/// The line of marks that nothing follows. Other comments may stand anywhere.
fn left_over(marks: Option<(usize, Marks)>) -> Option<usize> {
    marks.filter(|(_, marks)| *marks != Marks::default()).map(|(line, _)| line)
}

impl Marks {
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

    /// The lines up to the closing fence, and whether there is one.
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
        assert_eq!((page.blocks.len(), page.faults), (1, vec![]), "{text}");
        page.blocks.into_iter().next().unwrap()
    }

    #[test]
    fn a_block_knows_where_it_is_and_what_stands_before_it() {
        let block =
            only("# A\n\n<!-- not run: it takes\n  an hour -->\n<!-- given: ./a b -->\n\n```sh\nx\n\ny\n```\ntext");
        assert_eq!((block.line, block.language(), block.text.as_str()), (7, "sh", "x\n\ny\n"));
        assert_eq!(block.marks.not_run.as_deref(), Some("it takes an hour"));
        assert_eq!(block.marks.given, ["./a", "b"]);
        assert_eq!(block.fault(1, "no").to_string(), "a.md:8: no");
    }

    #[test]
    fn a_block_may_be_indented_and_contain_shorter_fences() {
        assert_eq!(only("- a\n  ```sh\n  x\n    y\n  ```").text, "x\n  y\n");
        assert_eq!(only("````text\n```\n````").text, "```\n");
        assert_eq!(only("```rust,no_run\n```").language(), "rust");
    }

    #[test]
    fn a_mark_that_says_nothing_or_marks_nothing_is_a_fault() {
        for (text, line) in [
            ("<!-- not run: -->\n```sh\n```", 1),
            ("<!-- not run -->\n```sh\n```", 1),
            ("\n<!-- not run: reason -->\ntext\n```sh\n```", 2),
            ("<!-- numbers vary -->", 1),
            ("```sh\nnever closed", 1),
        ] {
            let faults: Vec<usize> = blocks("a.md", text).faults.iter().map(|fault| fault.line).collect();
            assert_eq!(faults, [line], "{text}");
        }
        assert_eq!(blocks("a.md", "<!-- a comment -->\ntext").faults, []);
    }
}
