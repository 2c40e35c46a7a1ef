//! What all drawings share: SVG documents that are readable on light and on dark pages.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::outcome::Failure;

/// The file for a drawing. It is checked before a run, which may take hours, and keeps its contents until there is a drawing.
#[derive(Debug)]
pub(super) struct DrawingFile {
    path: PathBuf,
    /// Whether it was made here, and has no drawing yet.
    is_empty: bool,
}

impl DrawingFile {
    /// Checks that the file can be written.
    pub(super) fn check(path: &Path) -> Result<DrawingFile, Failure> {
        let is_new = !path.exists();
        match fs::File::options().append(true).create(true).open(path) {
            Ok(_) => Ok(DrawingFile { path: path.to_owned(), is_empty: is_new }),
            Err(error) => Err(Failure::Misuse(format!("cannot write {}: {error}", path.display()))),
        }
    }

    /// Writes the drawing.
    pub(super) fn write(mut self, drawing: &str) -> Result<(), Failure> {
        let cannot = |error| Failure::IoMessage(format!("cannot write {}: {error}", self.path.display()));
        fs::write(&self.path, drawing).map_err(cannot)?;
        self.is_empty = false;
        Ok(())
    }
}

impl Drop for DrawingFile {
    fn drop(&mut self) {
        if self.is_empty {
            // The user wants a drawing, and no empty file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

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
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_contents_until_there_is_a_drawing() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old.svg", "new.svg"].map(|name| folder.path().join(name));
        fs::write(&old, "before").unwrap();
        drop([&old, &new].map(|path| DrawingFile::check(path).unwrap()));
        assert_eq!(fs::read_to_string(&old).unwrap(), "before");
        assert!(!new.exists());
        for path in [&old, &new] {
            DrawingFile::check(path).unwrap().write("after").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "after");
        }
        assert!(DrawingFile::check(folder.path()).is_err());
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("<a & b>"), "&lt;a &amp; b&gt;");
    }
}
