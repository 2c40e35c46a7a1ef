//! A folder with a mark: the steps on disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_core::Token;
use serde::{Deserialize, Serialize};

use super::edit::Edit;
use super::network::network_file_system;
use crate::off_thread::off_thread;
use crate::{Error, ErrorKind, Gate, Mark, Pass, Verdict};

const VERSION: u32 = 1;

/// Where the files are, and under which names the mark is kept.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// What it is, for messages: `file /var/lib/orders.json`.
    pub(super) name: Arc<str>,
    folder: Arc<Path>,
    /// What the names of the mark, of the lock and of new contents begin with.
    prefix: Arc<str>,
}

/// What the mark's file says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    /// The outcome is always `true`: JSON cannot tell `()` from nothing.
    #[serde(flatten)]
    gate: Gate<bool>,
    /// What the last write puts in place.
    edits: Vec<KeptEdit>,
}

/// An edit that is still to be made as long as the file `from` is there. It has the new contents.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeptEdit {
    name: String,
    from: String,
    is_removal: bool,
}

/// What failed, and whether the write may have happened.
struct Failure {
    what: &'static str,
    is_committed: bool,
    source: io::Error,
}

impl Failure {
    fn before(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure { what, is_committed: false, source }
    }

    fn after(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure { what, is_committed: true, source }
    }
}

/// Why an access ends without what was asked for.
enum End {
    Failed(Failure),
    Refused(ErrorKind),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        End::Failed(failure)
    }
}

impl Place {
    /// A place in a folder that is there.
    pub(super) fn new(name: String, folder: PathBuf, prefix: String) -> Result<Place, Error> {
        let fail = |kind| Error::new(kind, name.clone(), "open");
        let network = network_file_system(&folder);
        let network =
            network.map_err(|source| fail(ErrorKind::unreached("its folder cannot be looked at", source)))?;
        if let Some(network) = network {
            return Err(fail(ErrorKind::misuse(format!(
                "it is on a network file system ({network}), whose locks and renames are not one step for several \
                 hosts; use a local disk, a database or an object store"
            ))));
        }
        Ok(Place { name: name.into(), folder: folder.into(), prefix: prefix.into() })
    }

    /// The mark as it is.
    pub(super) async fn mark(&self) -> Result<Option<Mark>, Error> {
        self.access("look at the mark of", None, |place| Ok(place.settled()?.gate.mark())).await
    }

    /// The same, and nothing is changed. The mark's file is always whole, so nobody's turn is waited for.
    pub(super) async fn peek(&self) -> Result<Option<Mark>, Error> {
        let place = self.clone();
        let kind = match off_thread(move || place.kept()).await {
            Ok(Ok(kept)) => return Ok(kept.gate.mark()),
            Ok(Err(source)) => ErrorKind::unreached(format!("its mark cannot be read: {source}"), source),
            Err(source) => ErrorKind::unreached("it was not finished", source),
        };
        Err(Error::new(kind, &*self.name, "look at the mark of"))
    }

    /// Raises the mark, and clears away what earlier processes have left.
    pub(super) async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let raise = move |place: &Place| {
            let mut kept = place.settled()?;
            let before = kept.gate.mark();
            let mark = kept.gate.seal(token).map_err(|by| End::Refused(ErrorKind::Superseded { seen: by.seen }))?;
            if before != Some(mark) {
                kept.edits.clear();
                place.commit(&kept)?;
                place.clear()?;
            }
            Ok(mark)
        };
        self.access("seal", Some(token), raise).await
    }

    /// Looks, if the pass is still good.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        pass: &Pass,
        look: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let token = pass.token;
        let read = move |place: &Place| {
            place.settled()?.gate.admit_read(token).map_err(refused)?;
            Ok(look(&place.folder).map_err(Failure::before("it cannot be read"))?)
        };
        self.access("read", Some(token), read).await
    }

    /// Makes these edits, or nothing of them.
    pub(super) async fn write(&self, pass: &Pass, edits: Option<Vec<Edit>>) -> Result<Option<()>, Error> {
        let stamp = pass.stamp();
        let write = move |place: &Place| {
            let mut kept = place.settled()?;
            match kept.gate.admit(stamp) {
                Verdict::Admitted => {}
                Verdict::Duplicate(outcome) => return Ok(outcome.map(|_| ())),
                verdict => return Err(refused(verdict)),
            }
            kept.gate.record(stamp, edits.as_ref().map(|_| true));
            let number = format!("{}-{}", stamp.token, stamp.seq);
            kept.edits = place.prepare(&number, edits.as_deref().unwrap_or_default())?;
            place.commit(&kept)?;
            place.put_in_place(&kept).map_err(Failure::after("it is written, but not in its place yet"))?;
            Ok(edits.map(|_| ()))
        };
        self.access("write", Some(stamp.token), write).await
    }

    /// Does something under the lock, away from the threads that run futures.
    async fn access<T: Send + 'static>(
        &self,
        operation: &'static str,
        token: Option<Token>,
        work: impl FnOnce(&Place) -> Result<T, End> + Send + 'static,
    ) -> Result<T, Error> {
        let place = self.clone();
        let locked = move || {
            let _lock = place.lock().map_err(Failure::before("it cannot be locked"))?;
            work(&place)
        };
        let kind = match off_thread(locked).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(End::Refused(kind))) => kind,
            Ok(Err(End::Failed(Failure { what, is_committed, source }))) => {
                let is_retryable = source.kind() != io::ErrorKind::InvalidData;
                let (what, source) = (format!("{what}: {source}"), Some(source.into()));
                ErrorKind::Unavailable { what, may_have_taken_effect: is_committed, is_retryable, source }
            }
            Err(source) => ErrorKind::unknown("it was not finished", source),
        };
        let error = Error::new(kind, &*self.name, operation);
        Err(match token {
            Some(token) => error.under(token),
            None => error,
        })
    }

    /// Waits until no other process is here. Ends when the file is dropped, or its process ends.
    fn lock(&self) -> io::Result<File> {
        let path = self.path("-lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        Ok(file)
    }

    fn path(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}{suffix}", self.prefix))
    }

    /// The mark, once what it says is in place.
    fn settled(&self) -> Result<Kept, Failure> {
        let kept = self.kept().map_err(Failure::before("its mark cannot be read"))?;
        self.put_in_place(&kept).map_err(Failure::before("what was written cannot be put in its place"))?;
        Ok(kept)
    }

    fn kept(&self) -> io::Result<Kept> {
        let bytes = match fs::read(self.path("")) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Kept { version: VERSION, gate: Gate::default(), edits: Vec::new() });
            }
            Err(error) => return Err(error),
        };
        let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let kept: Kept = serde_json::from_slice(&bytes).map_err(damaged)?;
        if kept.version != VERSION {
            let what = format!("it has version {}, and this program knows {VERSION}; use a newer one", kept.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(kept)
    }

    /// Step 1: the new contents, beside the old ones.
    fn prepare(&self, number: &str, edits: &[Edit]) -> Result<Vec<KeptEdit>, Failure> {
        let mut kept = Vec::new();
        for (at, edit) in edits.iter().enumerate() {
            let (name, from) = (edit.name().to_owned(), format!("{}-{number}-{at}", self.prefix));
            let written = self.prepare_one(&self.folder.join(&from), edit);
            written.map_err(Failure::before("the new contents cannot be written"))?;
            kept.push(KeptEdit { name, from, is_removal: matches!(edit, Edit::Remove { .. }) });
        }
        Ok(kept)
    }

    fn prepare_one(&self, from: &Path, edit: &Edit) -> io::Result<()> {
        let Edit::Put { name, contents } = edit else { return write_file(from, &[]) };
        write_file(from, contents)?;
        match fs::metadata(self.folder.join(name)) {
            Ok(before) => fs::set_permissions(from, before.permissions()),
            Err(_) => Ok(()),
        }
    }

    /// Step 2: it is done when the new mark is in the old one's place.
    fn commit(&self, kept: &Kept) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(kept).map_err(io::Error::from);
        let bytes = bytes.map_err(Failure::before("the mark cannot be written"))?;
        let new = self.path("-new");
        write_file(&new, &bytes).map_err(Failure::before("the mark cannot be written"))?;
        rename(&new, &self.path("")).map_err(Failure::before("the mark cannot be put in its place"))?;
        self.flush_folder().map_err(Failure::after("the mark cannot be flushed"))
    }

    /// Step 3: contents in their places. What was done before is not done again.
    fn put_in_place(&self, kept: &Kept) -> io::Result<()> {
        let mut is_changed = false;
        for edit in &kept.edits {
            let (from, to) = (self.folder.join(&edit.from), self.folder.join(&edit.name));
            if !from.try_exists()? {
                continue;
            }
            if edit.is_removal {
                remove(&to)?;
                remove(&from)?;
            } else {
                rename(&from, &to)?;
            }
            is_changed = true;
        }
        if is_changed { self.flush_folder() } else { Ok(()) }
    }

    fn flush_folder(&self) -> io::Result<()> {
        point()?;
        File::open(&self.folder)?.sync_all()
    }

    /// Removes contents that never came to be in place. They are nobody's: the lock is held, and nothing is pending.
    fn clear(&self) -> Result<(), Failure> {
        let lost = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix(&*self.prefix)?;
            rest.strip_prefix('-')?.starts_with(|first: char| first.is_ascii_digit()).then(|| entry.path())
        };
        let entries = fs::read_dir(&self.folder).map_err(Failure::after("its folder cannot be read"))?;
        for path in entries.filter_map(lost) {
            fs::remove_file(path).map_err(Failure::after("what an earlier process left cannot be removed"))?;
        }
        Ok(())
    }
}

fn refused<O>(verdict: Verdict<O>) -> End {
    End::Refused(ErrorKind::refused(&verdict).unwrap_or(ErrorKind::NotSealed))
}

fn write_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    point()?;
    let mut file = File::create(path)?;
    point()?;
    file.write_all(contents)?;
    point()?;
    file.sync_all()
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    point()?;
    fs::rename(from, to)
}

/// What is not there need not be removed.
fn remove(path: &Path) -> io::Result<()> {
    point()?;
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The path that all names of a file lead to: links are followed, the file itself need not be there.
pub(super) fn resolved(path: &Path) -> io::Result<(PathBuf, OsString)> {
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "it has no file name");
    let name = path.file_name().ok_or_else(no_name)?.to_owned();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((fs::canonicalize(folder)?, name))
}

/// Where a process can be killed: between any two steps on the disk. Tests say at which.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "in tests it fails")]
fn point() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use tests::point;

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// How many steps are still made.
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Makes everything fail after so many steps, as if the process had been killed there.
    pub(crate) fn die_after(steps: usize) {
        LEFT.set(steps);
    }

    pub(crate) fn is_dead() -> bool {
        LEFT.get() == 0
    }

    pub(in super::super) fn point() -> io::Result<()> {
        match LEFT.get().checked_sub(1) {
            Some(left) => {
                LEFT.set(left);
                Ok(())
            }
            None => Err(io::Error::other("killed")),
        }
    }
}
