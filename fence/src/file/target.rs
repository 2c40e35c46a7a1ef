//! A fenced file or folder on disk: its mark, its lock and the steps of a write.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_core::Token;
use serde::{Deserialize, Serialize};

use super::edit::Edit;
use super::network::network_file_system;
use super::obstacle::{is_too_long, obstacle};
use crate::off_thread::off_thread;
use crate::{Author, Error, ErrorKind, FenceState, Mark, Pass, Verdict};

/// The prefix of the names of our own files.
pub(super) const PREFIX: &str = ".palisade";
/// The longest name of a fenced file: the names of our own files contain it, and have at most 255 bytes.
pub(super) const LONGEST_NAME: usize = 190;

/// The version of the mark file's format.
const VERSION: u32 = 1;

/// The file or the folder that a mark protects.
///
/// Our own files are `.palisade-ROLE-NAME` for one file and `.palisade-ROLE` for a folder. No role has a dash, and nothing
/// follows the name, so two files never share a mark. The name is not encoded, so that on a file system that ignores case
/// two spellings of one file share a mark.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// For messages: `file /var/lib/orders.json`.
    pub(super) name: Arc<str>,
    folder: Arc<Path>,
    /// The file that the mark protects; `None`: all files of the folder.
    file: Option<Arc<str>>,
}

/// The content of the mark's file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkFile {
    version: u32,
    /// The outcome is always `true`: JSON cannot tell `()` from nothing.
    #[serde(flatten)]
    state: FenceState<bool>,
    /// The changes of the last write.
    edits: Vec<PendingEdit>,
}

/// A change that is pending as long as the file `from` exists, which has the new contents.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PendingEdit {
    name: String,
    from: String,
    is_removal: bool,
}

/// An I/O error, and whether the write may have happened.
struct Failure {
    what: String,
    is_committed: bool,
    source: io::Error,
}

impl Failure {
    fn before(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        let what = what.into();
        move |source| Failure { what, is_committed: false, source }
    }

    fn after(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        let what = what.into();
        move |source| Failure { what, is_committed: true, source }
    }
}

/// Why an access failed.
enum AccessError {
    Failed(Failure),
    Refused(ErrorKind),
}

impl From<Failure> for AccessError {
    fn from(failure: Failure) -> AccessError {
        AccessError::Failed(failure)
    }
}

impl Target {
    /// Returns a target in an existing folder.
    pub(super) fn new(name: String, folder: PathBuf, file: Option<&str>) -> Result<Target, Error> {
        let fail = |kind| Error::new(kind, name.clone(), "open");
        let network = network_file_system(&folder);
        let network =
            network.map_err(|source| fail(ErrorKind::unreached("its folder cannot be inspected", source)))?;
        if let Some(network) = network {
            return Err(fail(ErrorKind::misuse(format!(
                "it is on a network file system ({network}), whose locks and renames are not one step for several \
                 hosts; use a local disk, a database or an object store"
            ))));
        }
        Ok(Target { name: name.into(), folder: folder.into(), file: file.map(Arc::from) })
    }

    /// Finishes a pending write, and returns the mark.
    pub(super) async fn mark(&self) -> Result<Option<Mark>, Error> {
        self.access("read the mark of", None, |target| Ok(target.recover()?.state.mark())).await
    }

    /// Reads the mark and changes nothing. Takes no lock: the mark's file is always whole.
    pub(super) async fn peek(&self) -> Result<Option<Mark>, Error> {
        let target = self.clone();
        let peek = move || -> io::Result<_> { Ok((target.mark_conflict()?, target.read_mark_file()?.state.mark())) };
        let kind = match off_thread(peek).await {
            Ok(Ok((None, mark))) => return Ok(mark),
            Ok(Ok((Some(what), _))) => ErrorKind::misuse(what),
            Ok(Err(source)) => ErrorKind::Unavailable {
                what: format!("its mark cannot be read: {source}"),
                may_have_taken_effect: false,
                is_retryable: is_retryable(&source),
                source: Some(source.into()),
            },
            Err(source) => ErrorKind::unreached("it was not finished", source),
        };
        Err(Error::new(kind, &*self.name, "read the mark of"))
    }

    /// Raises the mark, and removes the leftovers of earlier processes.
    pub(super) async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let raise = move |target: &Target| {
            let mut stored = target.recover()?;
            let is_first = stored.state.mark().is_none();
            let folder = (is_first && target.file.is_some()).then(|| Target { file: None, ..target.clone() });
            // Otherwise a file and its folder could get their first marks at the same moment.
            let _folder_lock = match &folder {
                Some(folder) => Some(folder.lock().map_err(Failure::before("its folder cannot be locked"))?),
                None => None,
            };
            if let Some(what) = target.mark_conflict().map_err(Failure::before("it cannot be inspected"))? {
                return Err(AccessError::Refused(ErrorKind::misuse(what)));
            }
            let before = stored.state.mark();
            let mark = stored
                .state
                .seal(token)
                .map_err(|by| AccessError::Refused(ErrorKind::Superseded { seen: by.seen }))?;
            if before != Some(mark) {
                stored.edits.clear();
                target.commit(&stored)?;
                target.remove_leftovers();
            } else {
                // An earlier attempt may have failed between the rename and the flush.
                target.flush_folder().map_err(Failure::before("the mark cannot be flushed"))?;
            }
            Ok(mark)
        };
        self.access("seal", Some(token), raise).await
    }

    /// Reads, if the pass is still valid.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        pass: &Pass,
        read_files: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let token = pass.token;
        let read = move |target: &Target| {
            target.recover()?.state.admit_read(token).map_err(refused)?;
            Ok(read_files(&target.folder).map_err(Failure::before("it cannot be read"))?)
        };
        self.access("read", Some(token), read).await
    }

    /// Applies all of these changes, or none.
    pub(super) async fn write(&self, pass: &Pass, edits: Option<Vec<Edit>>) -> Result<Option<()>, Error> {
        let stamp = pass.stamp();
        let write = move |target: &Target| {
            let mut stored = target.read_mark_file().map_err(Failure::before("its mark cannot be read"))?;
            let verdict = stored.state.admit(stamp);
            // The pending edits of a repeat are those of its first attempt, which was committed.
            let is_repeat = matches!(verdict, Verdict::Duplicate(_));
            target.apply_edits(&stored, is_repeat)?;
            match verdict {
                Verdict::Admitted => {}
                Verdict::Duplicate(outcome) => {
                    target.flush_folder().map_err(Failure::after("the mark cannot be flushed"))?;
                    return Ok(outcome.map(|_| ()));
                }
                verdict => return Err(refused(verdict)),
            }
            let wanted = edits.as_deref().unwrap_or_default();
            target.check_replaceable(wanted)?;
            stored.state.record(stamp, edits.as_ref().map(|_| true));
            stored.edits = target.prepare(&format!("{}-{}", stamp.token, stamp.seq), wanted)?;
            if let Err(failure) = target.commit(&stored) {
                if !failure.is_committed {
                    // On a full disk the new contents would keep it full.
                    target.remove_leftovers();
                }
                return Err(failure.into());
            }
            target.apply_edits(&stored, true)?;
            Ok(edits.map(|_| ()))
        };
        self.access("write", Some(stamp.token), write).await
    }

    /// Runs blocking work under the lock, outside the threads that run futures.
    async fn access<T: Send + 'static>(
        &self,
        operation: &'static str,
        token: Option<Token>,
        work: impl FnOnce(&Target) -> Result<T, AccessError> + Send + 'static,
    ) -> Result<T, Error> {
        let target = self.clone();
        let locked = move || {
            let _lock = target.lock().map_err(Failure::before("it cannot be locked"))?;
            work(&target)
        };
        let kind = match off_thread(locked).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(AccessError::Refused(kind))) => kind,
            Ok(Err(AccessError::Failed(Failure { what, is_committed, source }))) => {
                let is_retryable = is_retryable(&source);
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

    /// Waits for the lock. Dropping the file, or the end of the process, releases it.
    fn lock(&self) -> io::Result<File> {
        let path = self.path("lock");
        loop {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.create_lock(&path)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            file.lock()?;
            let locked = file.metadata()?;
            match fs::metadata(&path) {
                Ok(found) if (found.dev(), found.ino()) == (locked.dev(), locked.ino()) => return Ok(file),
                // It was removed while this process waited, and other processes lock a new one.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates the lock's file, unless it exists. It is linked last, so that it never has a mode that keeps other users out.
    fn create_lock(&self, path: &Path) -> io::Result<()> {
        let new = self.path(&format!("put-0-0-{}", Author::unique()));
        self.create_shared(&new, &[])?;
        let linked = fs::hard_link(&new, path);
        remove(&new)?;
        match linked {
            // Another process was faster, or has removed the new file: try again.
            Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => Ok(()),
            linked => linked,
        }
    }

    fn path(&self, role: &str) -> PathBuf {
        self.folder.join(match &self.file {
            Some(file) => format!("{PREFIX}-{role}-{file}"),
            None => format!("{PREFIX}-{role}"),
        })
    }

    /// Returns why this target cannot have a mark; `None` if it can. A file and its folder cannot both have one.
    fn mark_conflict(&self) -> io::Result<Option<String>> {
        let Some(file) = &self.file else {
            let marked = format!("{PREFIX}-mark-");
            for entry in fs::read_dir(&self.folder)? {
                if let Some(file) = entry?.file_name().to_str().and_then(|name| name.strip_prefix(&marked)) {
                    return Ok(Some(format!(
                        "'{}' in it has a separate mark, so a holder of that file would not be refused; fence the \
                         folder or its files, not both (when no holder is left, remove {marked}*)",
                        file.escape_debug()
                    )));
                }
            }
            return Ok(None);
        };
        if self.folder.join(format!("{PREFIX}-mark")).try_exists()? {
            return Ok(Some(format!(
                "its folder has a mark, so a holder of the folder would not be refused; fence the folder or its files, not \
                 both (when no holder is left, remove {PREFIX}-mark)"
            )));
        }
        obstacle(&self.folder, file)
    }

    /// Reads the mark, and finishes its pending write.
    fn recover(&self) -> Result<MarkFile, Failure> {
        let stored = self.read_mark_file().map_err(Failure::before("its mark cannot be read"))?;
        self.apply_edits(&stored, false)?;
        Ok(stored)
    }

    fn read_mark_file(&self) -> io::Result<MarkFile> {
        let bytes = match fs::read(self.path("mark")) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(MarkFile { version: VERSION, state: FenceState::default(), edits: Vec::new() });
            }
            Err(error) => return Err(error),
        };
        let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let stored: MarkFile = serde_json::from_slice(&bytes).map_err(damaged)?;
        if stored.version != VERSION {
            let what =
                format!("it has version {}, and this program knows {VERSION}; use a newer one", stored.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(stored)
    }

    /// Refuses targets that cannot be replaced, before anything has changed.
    fn check_replaceable(&self, edits: &[Edit]) -> Result<(), AccessError> {
        for edit in edits {
            let name = edit.name().escape_debug();
            let found = obstacle(&self.folder, edit.name());
            if let Some(what) = found.map_err(Failure::before(format!("'{name}' cannot be inspected")))? {
                let what = format!("'{name}' can be neither replaced nor removed: {what}");
                return Err(AccessError::Refused(ErrorKind::Rejected { what, source: None }));
            }
        }
        Ok(())
    }

    /// Step 1: writes the new contents to temporary files.
    fn prepare(&self, number: &str, edits: &[Edit]) -> Result<Vec<PendingEdit>, Failure> {
        let mut pending = Vec::new();
        for (at, edit) in edits.iter().enumerate() {
            let from = self.path(&format!("put-{number}-{at}"));
            if let Err(error) = self.prepare_one(&from, edit) {
                // On a full disk the files written so far would keep it full. The next seal removes those that are left now.
                self.remove_leftovers();
                return Err(Failure::before("the new contents cannot be written")(error));
            }
            let from = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pending.push(PendingEdit {
                name: edit.name().to_owned(),
                from,
                is_removal: matches!(edit, Edit::Remove { .. }),
            });
        }
        Ok(pending)
    }

    fn prepare_one(&self, from: &Path, edit: &Edit) -> io::Result<()> {
        let Edit::Put { name, contents } = edit else { return write_file(from, &[], None).map(drop) };
        let before = fs::metadata(self.folder.join(name)).ok().map(|before| before.permissions());
        write_file(from, contents, before).map(drop)
    }

    /// Step 2: replaces the mark, which commits the write.
    fn commit(&self, stored: &MarkFile) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(stored).map_err(io::Error::from);
        let bytes = bytes.map_err(Failure::before("the mark cannot be written"))?;
        let new = self.path("new");
        self.create_shared(&new, &bytes).map_err(Failure::before("the mark cannot be written"))?;
        rename(&new, &self.path("mark")).map_err(Failure::before("the mark cannot be put in its place"))?;
        self.flush_folder().map_err(Failure::after("the mark cannot be flushed"))
    }

    /// Step 3: renames the contents to their targets. Skips those that are done. The next access retries those that fail.
    fn apply_edits(&self, stored: &MarkFile, is_committed: bool) -> Result<(), Failure> {
        let mut is_changed = false;
        for edit in &stored.edits {
            match self.apply_edit(edit) {
                Ok(is_done) => is_changed |= is_done,
                Err(source) => {
                    let name = edit.name.escape_debug();
                    let what = obstacle(&self.folder, &edit.name).ok().flatten();
                    let what = what.map_or_else(String::new, |what| format!(" ({what})"));
                    let what = format!(
                        "the last write is kept, but '{name}' cannot be put in its place{what}; take away what is in the \
                         way, and the next access does it"
                    );
                    return Err(Failure { what, is_committed, source });
                }
            }
        }
        let failed = |source| Failure { what: "its folder cannot be flushed".to_owned(), is_committed, source };
        if is_changed { self.flush_folder().map_err(failed) } else { Ok(()) }
    }

    /// Returns whether the edit was still pending.
    fn apply_edit(&self, edit: &PendingEdit) -> io::Result<bool> {
        let (from, to) = (self.folder.join(&edit.from), self.folder.join(&edit.name));
        if !from.try_exists()? {
            return Ok(false);
        }
        if edit.is_removal {
            remove(&to)?;
            remove(&from)?;
        } else {
            rename(&from, &to)?;
        }
        Ok(true)
    }

    fn flush_folder(&self) -> io::Result<()> {
        crash_point()?;
        File::open(&self.folder)?.sync_all()
    }

    /// Creates a file of ours that every user with write access to the folder may use, whatever the umask of this process.
    fn create_shared(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let folder = fs::metadata(&self.folder)?;
        let file = write_file(path, contents, Some(Permissions::from_mode(folder.mode() & 0o666)))?;
        if file.metadata()?.gid() != folder.gid() {
            // Only root or a member of the group may. Otherwise the file stays with this process's group.
            let _ = fchown(file, None, Some(folder.gid()));
        }
        Ok(())
    }

    /// Removes contents that were never committed, as far as possible. No process needs them: the lock is held, and no
    /// write is pending.
    fn remove_leftovers(&self) {
        if crash_point().is_err() {
            return;
        }
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(|name| self.is_new_contents(name)) {
                // They do no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Returns whether this is the name of new contents of this target.
    fn is_new_contents(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix("-put-")) else { return false };
        let mut parts = rest.splitn(4, '-');
        let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        parts.by_ref().take(3).filter(is_number).count() == 3 && parts.next() == self.file.as_deref()
    }
}

/// Whether the same call may succeed later: damaged data stay damaged.
fn is_retryable(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)
}

fn refused<O>(verdict: Verdict<O>) -> AccessError {
    AccessError::Refused(ErrorKind::refused(&verdict).unwrap_or(ErrorKind::NotSealed))
}

/// Writes a new file. Replaces one that another process has left.
fn write_file(path: &Path, contents: &[u8], permissions: Option<Permissions>) -> io::Result<File> {
    remove(path)?;
    crash_point()?;
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if permissions.is_some() {
        // No other user may open it before it has its permissions.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    let mut file = options.open(path)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    crash_point()?;
    file.write_all(contents)?;
    crash_point()?;
    file.sync_all()?;
    Ok(file)
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    crash_point()?;
    fs::rename(from, to)
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> io::Result<()> {
    crash_point()?;
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Resolves the links of a path into folder and name. The file need not exist.
///
/// # Errors
///
/// `InvalidInput`: this cannot be a file's path. Otherwise the I/O error.
pub(super) fn resolved(path: &Path) -> io::Result<(PathBuf, OsString)> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what);
    let is_link = || fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(error) if is_too_long(&error) => return Err(bad("it is too long")),
        // Its target could get another mark as soon as it exists.
        Err(error) if is_link() => {
            return Err(bad(&format!("it is a symbolic link that leads to no file ({error}); name the file itself")));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let name = path.file_name().ok_or_else(|| bad("it has no file name"))?.to_owned();
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(bad("it ends in a slash, as a folder's does"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((fs::canonicalize(folder)?, name))
}

/// Marks a point between two steps on the disk where tests can simulate a crash.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "in tests it fails")]
fn crash_point() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use tests::crash_point;

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// How many steps succeed before the simulated crash.
        static STEPS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
        // Without a runtime everything runs on this thread, which has the counter.
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(output) => output,
            std::task::Poll::Pending => panic!("there is nothing to wait for"),
        }
    }

    /// Makes everything fail after this many steps, as if the process had been killed there.
    pub(crate) fn crash_after(steps: usize) {
        STEPS_LEFT.set(steps);
    }

    pub(crate) fn has_crashed() -> bool {
        STEPS_LEFT.get() == 0
    }

    pub(in super::super) fn crash_point() -> io::Result<()> {
        match STEPS_LEFT.get().checked_sub(1) {
            Some(left) => {
                STEPS_LEFT.set(left);
                Ok(())
            }
            None => Err(io::Error::other("killed")),
        }
    }
}
