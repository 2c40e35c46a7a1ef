//! Files and folders of one host, replaced atomically.
//!
//! [`FencedFile`] is one file, [`FencedFolder`] the files in one folder, several of which change together. The files are
//! plain: any program can read them, and always finds whole files. The mark is in a separate file of the same folder. A
//! write happens when that file is replaced:
//!
//! 1. the new contents are written to temporary files, and flushed;
//! 2. a new mark that names them replaces the old mark, and is flushed: **this commits the write**;
//! 3. the temporary files are renamed to their targets.
//!
//! A process that is killed before step 2 has changed nothing. If it is killed after it, the next access through a
//! [`Sealed`](crate::Sealed) handle does step 3; until then a program that reads the file without a handle finds the old
//! contents. All steps run under a lock of the operating system, so the processes of one host can share a file.
//!
//! Before step 1 every target is checked. One that cannot be replaced (a folder, a link, a mount point, a name that is too
//! long) is refused while nothing has changed. If step 3 fails all the same, the error names the obstacle, and the first
//! access after it is gone finishes the write.
//!
//! A file has one mark: symbolic links are followed when it is opened, and a dangling link, a file with several hard links,
//! and a file in a fenced folder are refused. Every user that may write to the folder may use the mark and the lock,
//! whatever the umask.
//!
//! | not promised | why |
//! |---|---|
//! | network file systems are refused | their locks and renames are not one step for several hosts |
//! | what writes to the file without a handle is not refused | the file system knows no tokens |
//! | a mark that is deleted is forgotten | keep the files whose names begin with `.palisade` |
//! | a hard link that is made later is noticed when the file is sealed or written | the file system does not report it |

mod edit;
mod folder;
mod network;
mod obstacle;
mod single;
mod target;

pub use edit::Edit;
pub use folder::{Answer, FencedFolder, Query};
pub use single::FencedFile;
