//! Wake-up files. A process that has committed something opens the wake-up files of the sessions that it affects.
//! Inotify reports the open to the processes that watch the file. Opening an empty file writes nothing to the disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use palisade_core::SessionId;

use super::access::Access;
use super::paths::Paths;

/// The wake-up files of a database: one per session, and one for all commits.
pub(super) struct WakeFiles {
    directory: PathBuf,
    access: Access,
    all_commits: PathBuf,
    /// `None` if the host's limit of inotify instances is reached. The process then only polls.
    inotify: Option<inotify::Inotify>,
}

impl WakeFiles {
    pub(super) fn new(paths: &Paths, access: Access) -> WakeFiles {
        let inotify = inotify::Inotify::new();
        if let Err(error) = &inotify {
            tracing::warn!(%error, "cannot subscribe to changes of other processes; they are noticed more slowly");
        }
        WakeFiles {
            directory: paths.sessions.clone(),
            access,
            all_commits: paths.wake.clone(),
            inotify: inotify.ok(),
        }
    }

    fn path(&self, session: SessionId) -> PathBuf {
        self.directory.join(format!("{session}.bell"))
    }

    /// Wakes the processes that have subscribed to this session.
    pub(super) fn wake(&self, session: SessionId) {
        wake(&self.path(session));
    }

    /// Wakes the processes that watch locks.
    pub(super) fn wake_watchers(&self) {
        wake(&self.all_commits);
    }

    /// Subscribes to the wake-ups of a session.
    pub(super) fn subscribe(&self, session: SessionId) {
        let path = self.path(session);
        // If this fails, the process still polls.
        drop(self.access.open_or_create(&path));
        self.subscribe_to(&path);
    }

    /// Subscribes to all commits.
    pub(super) fn subscribe_to_all(&self) {
        self.subscribe_to(&self.all_commits);
    }

    fn subscribe_to(&self, path: &Path) {
        if let Some(Err(error)) = self.inotify.as_ref().map(|inotify| inotify.add(path)) {
            tracing::debug!(%error, "cannot subscribe to a session; its changes are noticed more slowly");
        }
    }

    pub(super) fn remove(&self, session: SessionId) {
        drop(fs::remove_file(self.path(session)));
    }

    /// Waits for the next wake-up.
    pub(super) async fn woken(&self) {
        match &self.inotify {
            Some(inotify) => inotify.woken().await,
            None => std::future::pending().await,
        }
    }
}

fn wake(path: &Path) {
    // A missing file has no subscribers.
    drop(File::open(path));
}

#[cfg(target_os = "linux")]
mod inotify {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use tokio::io::unix::AsyncFd;

    use crate::engine::embedded::readable::readable;

    pub(super) struct Inotify(AsyncFd<OwnedFd>);

    impl Inotify {
        pub(super) fn new() -> io::Result<Inotify> {
            let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            readable(inotify).map(Inotify)
        }

        pub(super) fn add(&self, path: &Path) -> io::Result<()> {
            let flags = WatchFlags::OPEN | WatchFlags::DELETE_SELF;
            Ok(inotify::add_watch(self.0.get_ref(), path, flags).map(drop)?)
        }

        pub(super) async fn woken(&self) {
            let Ok(mut ready) = self.0.readable().await else { return std::future::pending().await };
            let mut events = [0; 4096];
            while rustix::io::read(self.0.get_ref(), &mut events).is_ok_and(|read| read > 0) {}
            ready.clear_ready();
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod inotify {
    use std::io;
    use std::path::Path;

    pub(super) struct Inotify;

    impl Inotify {
        pub(super) fn new() -> io::Result<Inotify> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn add(&self, _path: &Path) -> io::Result<()> {
            Ok(())
        }

        pub(super) async fn woken(&self) {
            std::future::pending().await
        }
    }
}
