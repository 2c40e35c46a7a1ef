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
//! A process that is killed before step 2 has changed nothing. If it is killed after it, the next access through a
//! [`Sealed`](crate::Sealed) handle makes step 3; until then a program that reads the file without one finds what was there
//! before. All of it happens under a lock of the operating system, so the processes of one host can share a file.
//!
//! Before step 1 every target is looked at. One that cannot be replaced (a folder, a link, a mount point, a name that is too
//! long) is refused while nothing has changed. If step 3 fails all the same, the error names what is in the way, and the
//! first access after it is gone goes on.
//!
//! A file has one mark: symbolic links are followed when it is opened, and a link that leads nowhere, a file with several
//! hard links, and a file whose folder is fenced as a whole are refused. The files beside it can be used by everybody who
//! may write to the folder, whatever the umask.
//!
//! | not promised | why |
//! |---|---|
//! | network file systems are refused | their locks and renames are not one step for several hosts |
//! | what writes to the file without a handle is not refused | the file system knows no tokens |
//! | a mark that is deleted is forgotten | keep the files whose names begin with `.palisade` |
//! | a hard link that is made later is noticed when the file is sealed or written | the file system tells nobody |

mod edit;
mod folder;
mod network;
mod obstacle;
mod place;
mod single;

pub use edit::Edit;
pub use folder::{Answer, FencedFolder, Query};
pub use single::FencedFile;
