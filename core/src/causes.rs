//! One format for errors and their causes, for all crates.

use std::error::Error;
use std::fmt;

/// Writes an error and its causes, one on each line. Skips a cause that the line before already contains.
///
/// # Errors
///
/// The formatter's error.
pub fn write_with_causes(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut shown = error.to_string();
    f.write_str(&shown)?;
    let mut cause = error.source();
    while let Some(source) = cause {
        let text = source.to_string();
        if !shown.contains(&text) {
            write!(f, "\n  caused by: {text}")?;
            shown = text;
        }
        cause = source.source();
    }
    Ok(())
}
