//! One file.

use std::fs;
use std::io;
use std::path::Path;

use palisade_core::Token;

use super::edit::Edit;
use super::obstacle::{not_plain, obstacle};
use super::target::{LONGEST_NAME, PREFIX, Target, resolved};
use crate::{Error, ErrorKind, Mark, Pass, Resource, Sealed};

/// A file that is replaced as a whole. Any program can read it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use palisade_fence::{Seal, Token, file::FencedFile};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("orders.json");
/// let orders = FencedFile::open(&path)?;
/// let mut sealed = orders.seal(Token::new(34)?).await?;           // or: palisade.lock("orders").seal(&orders).acquire()
/// assert_eq!(sealed.contents().await?, None);
/// sealed.replace("[42]").await?;
/// assert_eq!(std::fs::read_to_string(&path)?, "[42]");
///
/// let error = orders.seal(Token::new(33)?).await.expect_err("it is older");
/// assert_eq!(error.superseded_by, Some(Token::new(34)?));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct FencedFile {
    target: Target,
    file: String,
}

impl FencedFile {
    /// Opens the file of this path. The file need not exist, its folder must. All paths of one file, and all processes that
    /// open it, share one mark.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: a path that leads to no file, or to a network file system; a symbolic link whose target is not
    /// there; a file with several hard links, or one that is a mount point. A folder that is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<FencedFile, Error> {
        let path = path.as_ref();
        let fail = |kind| Error::new(kind, format!("file {}", path.display()), "open");
        let (folder, file) = resolved(path).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => fail(ErrorKind::misuse(format!("this is no path of a file: {source}"))),
            _ => fail(ErrorKind::unreached(format!("its folder cannot be found: {source}"), source)),
        })?;
        let Some(file) = file.to_str().map(str::to_owned) else {
            return Err(fail(ErrorKind::misuse("its name is not UTF-8")));
        };
        if file.starts_with(PREFIX) {
            return Err(fail(ErrorKind::misuse("names that begin with '.palisade' are reserved")));
        }
        if file.len() > LONGEST_NAME {
            let what =
                format!("its name has {} bytes; {LONGEST_NAME} leave room for the name of its mark", file.len());
            return Err(fail(ErrorKind::misuse(what)));
        }
        if folder.join(&file).is_dir() {
            return Err(fail(ErrorKind::misuse("it is a folder; use FencedFolder")));
        }
        let found = obstacle(&folder, &file);
        let found =
            found.map_err(|source| fail(ErrorKind::unreached(format!("it cannot be inspected: {source}"), source)));
        if let Some(what) = found? {
            return Err(fail(ErrorKind::misuse(what)));
        }
        let name = format!("file {}", folder.join(&file).display());
        let target = Target::new(name, folder, Some(&file))?;
        Ok(FencedFile { target, file })
    }

    /// Reads the mark; `None` if the file was never sealed. Needs no token.
    ///
    /// # Errors
    ///
    /// The I/O error.
    pub async fn mark(&self) -> Result<Option<Mark>, Error> {
        self.target.mark().await
    }

    /// Reads the mark without changing anything: it creates no lock, and does not finish the write of a killed process.
    ///
    /// # Errors
    ///
    /// The I/O error.
    pub async fn peek(&self) -> Result<Option<Mark>, Error> {
        self.target.peek().await
    }
}

impl Resource for FencedFile {
    type Query = ();
    /// `None`: there is no file.
    type Answer = Option<Vec<u8>>;
    /// The new contents; `None` removes the file.
    type Change = Option<Vec<u8>>;
    type Outcome = ();

    fn name(&self) -> String {
        self.target.name.to_string()
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        self.target.raise(token).await
    }

    async fn read(&self, pass: &Pass, (): ()) -> Result<Option<Vec<u8>>, Error> {
        let file = self.file.clone();
        self.target.read(pass, move |folder| contents(&folder.join(file))).await
    }

    async fn write(&self, pass: &Pass, change: Option<Option<Vec<u8>>>) -> Result<Option<()>, Error> {
        let name = self.file.clone();
        let edit = change.map(|contents| match contents {
            Some(contents) => vec![Edit::Put { name, contents }],
            None => vec![Edit::Remove { name }],
        });
        self.target.write(pass, edit).await
    }
}

crate::sealable!(FencedFile);

/// Reads a file, if it exists.
pub(super) fn contents(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let read = fs::symlink_metadata(path).and_then(|found| match not_plain(&found) {
        // A link leads to a file that is not fenced, and opening a pipe would block.
        Some(what) => Err(io::Error::new(io::ErrorKind::InvalidInput, what)),
        None => fs::read(path),
    });
    match read {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Sealed<FencedFile> {
    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// As [`Sealed::read`].
    pub async fn contents(&self) -> Result<Option<Vec<u8>>, Error> {
        self.read(()).await
    }

    /// Replaces the whole content of the file, in one step.
    ///
    /// # Cancellation, errors
    ///
    /// As [`Sealed::write`].
    pub async fn replace(&mut self, contents: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.write(Some(contents.into())).await
    }

    /// Removes the file. The mark stays.
    ///
    /// # Cancellation, errors
    ///
    /// As [`Sealed::write`].
    pub async fn remove(&mut self) -> Result<(), Error> {
        self.write(None).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::tests::{block_on, crash_after, has_crashed};
    use super::*;
    use crate::Settled;

    fn token(number: u64) -> Token {
        Token::new(number).expect("a token")
    }

    #[test]
    fn a_process_killed_at_any_point_has_written_all_or_nothing() {
        let (mut before, mut after) = (0, 0);
        for steps in 0.. {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("orders");
            let file = FencedFile::open(&path).expect("a file");
            let mut sealed = block_on(Sealed::seal(file.clone(), token(1))).expect("it is new");
            block_on(sealed.replace("old")).expect("it is sealed");
            crash_after(steps);
            let outcome = block_on(sealed.replace("new"));
            let was_killed = has_crashed() && outcome.is_err();
            crash_after(usize::MAX);
            let mark = block_on(file.mark()).expect("it can be read").expect("it was sealed");
            let found = fs::read_to_string(&path).expect("it is there");
            match mark.seq.get() {
                1 => assert_eq!(found, "old", "killed after {steps} steps"),
                2 => assert_eq!(found, "new", "killed after {steps} steps"),
                other => panic!("number {other} was never given"),
            }
            if let Err(error) = &outcome {
                assert!(error.may_have_taken_effect() || mark.seq.get() == 1, "killed after {steps} steps: {error}");
                match block_on(sealed.settle()).expect("it is there") {
                    Settled::Applied(()) => assert_eq!(found, "new"),
                    Settled::NeverApplied | Settled::Nothing => assert_eq!(found, "old"),
                }
            }
            *(if found == "old" { &mut before } else { &mut after }) += 1;
            let mut next = block_on(Sealed::seal(file, token(2))).expect("it is newer");
            block_on(next.replace("newest")).expect("it is sealed");
            let left = fs::read_dir(folder.path()).expect("it is there").count();
            assert_eq!(left, 4, "the file, its mark, its lock and its folder's lock: nothing else stays");
            if !was_killed {
                break;
            }
        }
        assert!(before >= 7 && after >= 3, "it was killed {before} times before and {after} times after");
    }

    #[test]
    fn a_process_killed_while_sealing_has_sealed_or_not() {
        for steps in 0..20 {
            let folder = tempfile::tempdir().expect("a folder");
            let file = FencedFile::open(folder.path().join("orders")).expect("a file");
            let mut sealed = block_on(Sealed::seal(file.clone(), token(1))).expect("it is new");
            block_on(sealed.replace("old")).expect("it is sealed");
            crash_after(steps);
            let outcome = block_on(Sealed::seal(file.clone(), token(2)));
            crash_after(usize::MAX);
            let mark = block_on(file.mark()).expect("it can be read").expect("it was sealed");
            assert!(outcome.is_err() || mark.token == token(2));
            let again = block_on(Sealed::seal(file, token(2))).expect("it is newer");
            assert_eq!(block_on(again.contents()).expect("it is sealed"), Some(b"old".to_vec()));
        }
    }

    #[test]
    fn a_damaged_mark_is_refused_and_named_in_the_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("orders");
        let file = FencedFile::open(&path).expect("a file");
        for damage in ["", "{", "{\"version\":2,\"mark\":null,\"author\":0,\"outcome\":null,\"edits\":[]}"] {
            fs::write(folder.path().join(".palisade-mark-orders"), damage).expect("it can be written");
            let error = block_on(Sealed::seal(file.clone(), token(1))).expect_err("it is damaged");
            assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
            assert!(error.to_string().contains("its mark cannot be read"), "{error}");
        }
    }

    #[test]
    fn permissions_stay_and_links_lead_to_the_same_mark() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("orders");
        fs::write(&path, "old").expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
        std::os::unix::fs::symlink(&path, folder.path().join("link")).expect("a link");
        let linked = FencedFile::open(folder.path().join("link")).expect("a file");
        let mut sealed = block_on(Sealed::seal(linked, token(2))).expect("it is new");
        assert_eq!(block_on(sealed.contents()).expect("it is sealed"), Some(b"old".to_vec()));
        block_on(sealed.replace("new")).expect("it is sealed");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o640);
        let direct = FencedFile::open(&path).expect("a file");
        assert!(block_on(Sealed::seal(direct, token(1))).is_err());
    }

    #[test]
    fn a_file_that_is_removed_keeps_its_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("orders");
        let file = FencedFile::open(&path).expect("a file");
        let mut sealed = block_on(Sealed::seal(file.clone(), token(2))).expect("it is new");
        block_on(sealed.replace("new")).expect("it is sealed");
        block_on(sealed.remove()).expect("it is sealed");
        assert!(!path.exists());
        assert!(block_on(Sealed::seal(file, token(1))).is_err());
    }
}
