//! The commands that look at locks and change nothing: `ls`, `show`, `watch` and `top`.

mod happening;
mod labels;
pub(crate) mod ls;
mod report;
pub(crate) mod show;
pub(crate) mod table;
pub(crate) mod top;
pub(crate) mod watch;
pub(crate) mod words;
