//! A line of styled text, cut and wrapped by its width on the screen.

use std::fmt::{self, Display};

use crossterm::style::{Attribute, ContentStyle, StyledContent};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// A line of the screen: texts, each in one style.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TextLine(Vec<StyledContent<String>>);

impl TextLine {
    /// Appends a text without a style.
    pub(super) fn plain(self, text: impl Display) -> TextLine {
        self.styled(StyledContent::new(ContentStyle::default(), text))
    }

    /// Appends a text with its style.
    pub(super) fn styled(mut self, text: StyledContent<impl Display>) -> TextLine {
        // Foreign text is escaped before it gets here. A control character that was missed must not reach the terminal.
        let printable = text.content().to_string().replace(char::is_control, "");
        self.0.push(StyledContent::new(*text.style(), printable));
        self
    }

    /// Appends a cell of a table: cut off at a width, or filled up with blanks.
    pub(super) fn cell(mut self, cell: StyledContent<impl Display>, width: usize) -> TextLine {
        let cell = TextLine::default().styled(cell).cut(width);
        let blanks = width - columns(&cell.text());
        self.0.extend(cell.0);
        self.plain(" ".repeat(blanks))
    }

    /// Swaps the colors of the text and the background.
    pub(super) fn reversed(mut self) -> TextLine {
        for text in &mut self.0 {
            text.style_mut().attributes.set(Attribute::Reverse);
        }
        self
    }

    /// Cuts off what does not fit into a width.
    pub(super) fn cut(&self, width: usize) -> TextLine {
        self.split_at(fitting(&self.text(), width).len()).0
    }

    /// Breaks the line into lines of at most a width, between words if possible.
    pub(super) fn wrap(self, width: usize) -> Vec<TextLine> {
        let (mut lines, mut rest) = (Vec::new(), self);
        loop {
            let text = rest.text();
            let fitting = fitting(&text, width);
            let end = match text[fitting.len()..].graphemes(true).next() {
                None | Some(" ") => fitting.len(),
                // Every line takes a character, even one that is wider than the screen.
                Some(next) if fitting.is_empty() => next.len(),
                Some(_) => fitting.rfind(' ').map_or(fitting.len(), |blank| blank + 1),
            };
            lines.push(rest.split_at(end).0);
            let next_line = text[end..].trim_start();
            if next_line.is_empty() {
                return lines;
            }
            rest = rest.split_at(text.len() - next_line.len()).1;
        }
    }

    fn text(&self) -> String {
        self.0.iter().map(|text| text.content().as_str()).collect()
    }

    fn split_at(&self, mut bytes: usize) -> (TextLine, TextLine) {
        let (mut before, mut after) = (TextLine::default(), TextLine::default());
        for text in &self.0 {
            let (front, back) = text.content().split_at(bytes.min(text.content().len()));
            bytes -= front.len();
            before.0.push(StyledContent::new(*text.style(), front.to_owned()));
            after.0.push(StyledContent::new(*text.style(), back.to_owned()));
        }
        (before, after)
    }
}

/// Formats the styles as escape sequences.
impl Display for TextLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().filter(|text| !text.content().is_empty()).try_for_each(|text| text.fmt(formatter))
    }
}

/// Returns how many columns of the screen a text takes.
pub(super) fn columns(text: &str) -> usize {
    text.graphemes(true).map(UnicodeWidthStr::width).sum()
}

/// Returns the longest part from the start of a text that fits into a width.
fn fitting(text: &str, width: usize) -> &str {
    let mut used = 0;
    let too_wide = text.grapheme_indices(true).find(|(_, character)| {
        used += character.width();
        used > width
    });
    too_wide.map_or(text, |(start, _)| &text[..start])
}

#[cfg(test)]
mod tests {
    use crossterm::style::Stylize;

    use super::*;

    fn wrap(text: &str, width: usize) -> Vec<String> {
        TextLine::default().plain(text).wrap(width).iter().map(TextLine::text).collect()
    }

    #[test]
    fn a_line_is_cut_by_its_width_on_the_screen() {
        let line = TextLine::default().styled("日本".red()).plain("e\u{301}x");
        let cut = |width| line.cut(width).text();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(cut),
            ["", "", "日", "日", "日本", "日本e\u{301}", "日本e\u{301}x", "日本e\u{301}x"]
        );
        assert_eq!(TextLine::default().cell("日本".red(), 3).text(), "日 ");
    }

    #[test]
    fn a_line_is_wrapped_between_words() {
        assert_eq!(wrap("holder  a b: token 12", 12), ["holder  a b:", "token 12"]);
        assert_eq!(wrap("holder  a b: token 12", 11), ["holder  a ", "b: token 12"]);
        assert_eq!(wrap("a long-word", 4), ["a ", "long", "-wor", "d"]);
        assert_eq!(wrap("日本 ", 1), ["日", "本"]);
        assert_eq!(wrap("", 0), [""]);
    }

    #[test]
    fn a_style_ends_with_its_text() {
        let lines = TextLine::default().styled("waits ".red()).plain("for it").wrap(8);
        assert_eq!(
            lines.iter().map(TextLine::to_string).collect::<Vec<_>>().join("|"),
            format!("{}|for it", "waits ".red())
        );
    }

    #[test]
    fn text_cannot_control_the_terminal() {
        assert_eq!(TextLine::default().plain("a\u{1b}[2J\n\u{9b}b").to_string(), "a[2Jb");
    }
}
