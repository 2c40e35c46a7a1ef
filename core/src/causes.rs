//! How the errors of the crates around this one show what led to them.

use std::error::Error;
use std::fmt;

/// Writes an error and, one on each line, what led to it. A cause that the line before already contains is left out.
///
/// # Errors
///
/// What the formatter says.
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
