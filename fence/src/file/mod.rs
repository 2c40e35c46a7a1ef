//! Files and folders of one host, replaced in one step.
//!
//! [`FencedFile`] is one file, [`FencedFolder`] the files in one folder, several of which change together. What they
//! contain is plain: any program can read it, and always finds whole files. The mark is in a file beside them, whose
//! replacement is the one step in which a write happens:
//!
//! 1. the new contents are written beside the old ones, and flushed;
//! 2. a new mark that names them is put in the old one's place, and flushed: **from here on it is done**;
//! 3. the contents are put in their place.
//!
//! Whoever is killed before step 2 has changed nothing. Whoever is killed after it leaves step 3 to the next one who
//! looks through a [`Sealed`](crate::Sealed) handle; until then a program that reads the file without one finds what was
//! there before. All of it happens under a lock of the operating system, so the processes of one host can share a file.
//!
//! | not promised | why |
//! |---|---|
//! | network file systems are refused | their locks and renames are not one step for several hosts |
//! | what writes to the file without a handle is not refused | the file system knows no tokens |
//! | a mark that is deleted is forgotten | keep the files whose names begin with a dot and contain `palisade` |

mod edit;
mod folder;
mod network;
mod place;
mod single;

pub use edit::Edit;
pub use folder::{Answer, FencedFolder, Query};
pub use single::FencedFile;
