//! `palisade cluster backup`, `restore` and `recover`.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use palisade::engine::service::{ClusterError, Config, cluster_backup};
use palisade_server::storage::StorageError;
use palisade_server::{RestoreFailed, Restored, Source};
use tokio::time::sleep;

use super::{New, Recover, Restore, failure};
use crate::outcome::{Failure, say};
use crate::signals::Signals;
use crate::text::count;

/// How long to wait for a node that leads.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Writes a backup. An older file of that name is replaced once the new one is complete.
pub(super) async fn backup(config: &Config, file: &Path) -> Result<(), Failure> {
    let cannot = |why| Failure::IoMessage(format!("cannot write {}: {why}", file.display()));
    if std::fs::symlink_metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(Failure::Misuse(format!(
            "{} is there, and is no regular file; name another one",
            file.display()
        )));
    }
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Removed if this process ends before it is complete.
    let mut unfinished = tempfile::Builder::new().prefix(".backup-").tempfile_in(parent).map_err(cannot)?;
    let mut signals = Signals::listen()?;
    let until = Instant::now() + PATIENCE;
    let copying = async {
        loop {
            match cluster_backup(config, |part| unfinished.write_all(part)).await {
                // Nothing was written yet, and another node leads soon.
                Err(ClusterError::NoLeader(_)) if Instant::now() < until => sleep(PAUSE).await,
                copied => return copied,
            }
        }
    };
    let bytes = tokio::select! {
        copied = copying => copied.map_err(failure)?.map_err(cannot)?,
        end = signals.stop_requested() => return Err(Failure::Exit(end.exit_code())),
    };
    unfinished.as_file().sync_all().map_err(cannot)?;
    unfinished.persist(file).map_err(|error| cannot(error.error))?;
    std::fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(cannot)?;
    say(&format!("{} in {}", count(bytes, "byte", "bytes"), file.display()));
    Ok(())
}

/// Begins a new cluster with a backup.
pub(super) fn restore(options: &Restore) -> Result<(), Failure> {
    begin(&Source::Backup(options.file.clone()), &options.new)
}

/// Begins a new cluster with the directory of a node that is left.
pub(super) fn recover(options: &Recover) -> Result<(), Failure> {
    begin(&Source::Directory(options.directory.clone()), &options.new)
}

fn begin(source: &Source, new: &New) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let begun = palisade_server::restore(source, &new.data_dir, new.node.clone(), new.tokens_above, now);
    let Restored { sessions, locks, tokens_above, index, term, .. } = begun.map_err(|error| match error {
        RestoreFailed::Storage(StorageError::InUse { .. }) => {
            Failure::Unavailable(format!("no new cluster: {error}"))
        }
        RestoreFailed::Storage(_) | RestoreFailed::Unreadable { .. } | RestoreFailed::Machine(_) => {
            Failure::IoMessage(format!("no new cluster: {error}"))
        }
        other => Failure::Misuse(format!("no new cluster: {other}")),
    })?;
    say(&format!(
        "{} has a new cluster of one node, with {} and {}, up to entry {index} of term {term}; its tokens are above {tokens_above}",
        new.data_dir.display(),
        count(locks as u64, "lock", "locks"),
        count(sessions as u64, "session", "sessions"),
    ));
    say("stop every node of the old cluster for good: two clusters would grant the same lock");
    say(&format!("start it with: palisade serve --data-dir {}", new.data_dir.display()));
    Ok(())
}
