//! Rules that the compiler cannot check. Each is a function from the repository's files to their violations.
//! `tests/tidy.rs` runs them all on this repository.

mod core_purity;
mod leftovers;
mod length;
mod names;
mod orphans;
mod rooms;
mod rust;
mod tree;
mod words;

pub use core_purity::impurities;
pub use leftovers::{machine_paths, markers, not_executable, unsafe_not_forbidden};
pub use length::overlong_documents;
pub use names::banned_type_names;
pub use orphans::{orphaned_docs, orphaned_scripts, orphaned_sources};
pub use rooms::forbidden_imports;
pub use tree::{Finding, TextFile, read_tree};
pub use words::sentences_without_actor;
