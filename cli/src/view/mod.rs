//! The read-only commands: `ls`, `show`, `watch` and `top`.

mod event_line;
pub(crate) mod format;
mod labels;
pub(crate) mod ls;
mod report;
pub(crate) mod show;
pub(crate) mod table;
pub(crate) mod top;
pub(crate) mod watch;
