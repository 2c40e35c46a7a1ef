//! What all drawings share: SVG documents that are readable on light and on dark pages.

use std::fmt::Write;

/// Returns the SVG document of this width and height.
pub(super) fn document(title: &str, (width, height): (u64, u64), style: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n<style>\n{style}\n</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n{body}</svg>\n",
        escaped(title)
    )
}

/// Adds an element.
pub(super) fn put(body: &mut String, element: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(body, "{element}");
}

/// Returns text as SVG has it.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("<a & b>"), "&lt;a &amp; b&gt;");
    }
}
