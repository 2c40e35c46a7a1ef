//! The files in one folder.

use std::fs;
use std::io;
use std::path::Path;

use palisade_core::Token;

use super::edit::Edit;
use super::single::contents;
use super::target::{PREFIX, Target};
use crate::{Error, ErrorKind, Mark, Pass, Resource, Sealed};

/// The files in one folder, not those in folders below it. Several of them change together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use palisade_fence::{Seal, Token, file::{Edit, FencedFolder}};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path();
/// let site = FencedFolder::open(&path)?;
/// let mut site = site.seal(Token::new(34)?).await?;
/// site.put("index.html", "<h1>Orders</h1>").await?;
/// site.change(vec![
///     Edit::Put { name: "orders.html".to_owned(), contents: b"42".to_vec() },
///     Edit::Remove { name: "index.html".to_owned() },
/// ]).await?;
/// assert_eq!(site.list().await?, ["orders.html"]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct FencedFolder {
    target: Target,
}

/// A read of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// The names of its files.
    List,
    /// The content of one of them.
    Get {
        /// Its name.
        name: String,
    },
}

/// The result of a [`Query`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The names of its files, sorted.
    Names(Vec<String>),
    /// The content of one of them; `None` if it does not exist.
    Contents(Option<Vec<u8>>),
}

impl FencedFolder {
    /// Opens the folder of this path, which must exist. All processes that open it share one mark.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: a path that leads to no folder, or to a network file system.
    pub fn open(path: impl AsRef<Path>) -> Result<FencedFolder, Error> {
        let path = path.as_ref();
        let fail = |kind| Error::new(kind, format!("folder {}", path.display()), "open");
        let folder = fs::canonicalize(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => {
                fail(ErrorKind::misuse("there is no such folder; make it first"))
            }
            _ => fail(ErrorKind::unreached(format!("it cannot be inspected: {source}"), source)),
        })?;
        if !folder.is_dir() {
            return Err(fail(ErrorKind::misuse("it is no folder; use FencedFile for a file")));
        }
        let target = Target::new(format!("folder {}", folder.display()), folder, None)?;
        Ok(FencedFolder { target })
    }

    /// Reads the mark; `None` if the folder was never sealed. Needs no token.
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

    fn check(&self, name: &str, operation: &'static str, token: Token) -> Result<(), Error> {
        let what = match name {
            "" | "." | ".." => "this is no file's name",
            name if name.contains(['/', '\0']) => "a file's name has no slash and no NUL in it",
            name if name.starts_with(PREFIX) => "names that begin with '.palisade' are reserved",
            _ => return Ok(()),
        };
        let what = format!("'{}': {what}", name.escape_debug());
        Err(Error::new(ErrorKind::misuse(what), self.name(), operation).under(token))
    }
}

impl Resource for FencedFolder {
    type Query = Query;
    type Answer = Answer;
    type Change = Vec<Edit>;
    type Outcome = ();

    fn name(&self) -> String {
        self.target.name.to_string()
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        self.target.raise(token).await
    }

    async fn read(&self, pass: &Pass, query: Query) -> Result<Answer, Error> {
        match query {
            Query::List => self.target.read(pass, |folder| names(folder).map(Answer::Names)).await,
            Query::Get { name } => {
                self.check(&name, "read", pass.token)?;
                let get = move |folder: &Path| contents(&folder.join(name)).map(Answer::Contents);
                self.target.read(pass, get).await
            }
        }
    }

    async fn write(&self, pass: &Pass, change: Option<Vec<Edit>>) -> Result<Option<()>, Error> {
        let edits = change.as_deref().unwrap_or_default();
        for (at, edit) in edits.iter().enumerate() {
            self.check(edit.name(), "write", pass.token)?;
            if edits[..at].iter().any(|before| before.name() == edit.name()) {
                let what = format!("'{}' is changed twice in one step", edit.name().escape_debug());
                return Err(Error::new(ErrorKind::misuse(what), self.name(), "write").under(pass.token));
            }
        }
        self.target.write(pass, change).await
    }
}

crate::sealable!(FencedFolder);

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if entry.file_type()?.is_file() && !name.starts_with(PREFIX) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

impl Sealed<FencedFolder> {
    /// Returns the names of the files, sorted. Skips names that are not UTF-8.
    ///
    /// # Errors
    ///
    /// As [`Sealed::read`].
    pub async fn list(&self) -> Result<Vec<String>, Error> {
        match self.read(Query::List).await? {
            Answer::Names(names) => Ok(names),
            Answer::Contents(_) => Ok(Vec::new()),
        }
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`Sealed::read`]; an invalid name.
    pub async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.read(Query::Get { name: name.to_owned() }).await? {
            Answer::Contents(contents) => Ok(contents),
            Answer::Names(_) => Ok(None),
        }
    }

    /// Replaces or creates a file.
    ///
    /// # Cancellation, errors
    ///
    /// As [`Sealed::write`]; an invalid name.
    pub async fn put(&mut self, name: &str, contents: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.write(vec![Edit::Put { name: name.to_owned(), contents: contents.into() }]).await
    }

    /// Removes a file. It is no error if there is none.
    ///
    /// # Cancellation, errors
    ///
    /// As [`Sealed::write`]; an invalid name.
    pub async fn remove(&mut self, name: &str) -> Result<(), Error> {
        self.write(vec![Edit::Remove { name: name.to_owned() }]).await
    }

    /// Makes several changes in one step: a reader with a handle sees all of them or none, also after a crash.
    ///
    /// # Cancellation, errors
    ///
    /// As [`Sealed::write`]; a name that is invalid or comes twice. [`ErrorKind::Rejected`]: one of them cannot be made (the
    /// name is that of a folder, a link, a mount point or a file with several hard links, or too long), so none was.
    pub async fn change(&mut self, edits: Vec<Edit>) -> Result<(), Error> {
        self.write(edits).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::tests::{block_on, crash_after, has_crashed};
    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).expect("a token")
    }

    #[test]
    fn an_obstacle_after_the_commit_is_named_and_the_write_is_finished_once_it_is_gone() {
        let mut was_in_the_way = 0;
        for steps in 0.. {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path();
            let fenced = FencedFolder::open(path).expect("a folder");
            let mut sealed = block_on(Sealed::seal(fenced.clone(), token(1))).expect("it is new");
            block_on(sealed.put("gone", "old")).expect("it is sealed");
            let put = |name: &str| Edit::Put { name: name.to_owned(), contents: b"new".to_vec() };
            let edits = vec![put("one"), put("two"), Edit::Remove { name: "gone".to_owned() }];
            crash_after(steps);
            let outcome = block_on(sealed.change(edits));
            let was_killed = has_crashed() && outcome.is_err();
            crash_after(usize::MAX);
            let is_committed =
                block_on(fenced.peek()).expect("it can be read").is_some_and(|mark| mark.seq.get() == 2);
            if is_committed && !path.join("two").exists() {
                was_in_the_way += 1;
                fs::create_dir(path.join("two")).expect("it can be made");
                let error = block_on(Sealed::seal(fenced.clone(), token(2))).expect_err("a folder is in the way");
                assert!(error.is_retryable() && !error.may_have_taken_effect(), "{error}");
                assert!(
                    error.to_string().contains("'two'") && error.to_string().contains("it is a folder"),
                    "{error}"
                );
                let error = block_on(sealed.settle()).expect_err("a folder is in the way");
                assert!(error.is_retryable(), "{error}");
                fs::remove_dir(path.join("two")).expect("it is there");
            }
            let next = block_on(Sealed::seal(fenced, token(2))).expect("it is newer");
            let all = block_on(next.list()).expect("it is sealed");
            if is_committed {
                assert_eq!(all, ["one", "two"])
            } else {
                assert_eq!(all, ["gone"])
            }
            let left = fs::read_dir(path).expect("it is there").count();
            assert_eq!(left, all.len() + 2, "the files, the mark and the lock: nothing else stays");
            if !was_killed {
                break;
            }
        }
        assert!(was_in_the_way >= 2, "{was_in_the_way}");
    }
}
