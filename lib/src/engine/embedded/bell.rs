//! Bells: how a process that has committed something wakes those whom it concerns. A bell is an empty file; it rings
//! when somebody opens it, which writes nothing to the disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use palisade_core::SessionId;

use super::access::Access;
use super::place::Place;

/// The bells of one file's users.
pub(super) struct Bells {
    directory: PathBuf,
    access: Access,
    /// Rings at every commit.
    everything: PathBuf,
    /// `None` where the host gives no more of them: then only the poll wakes.
    ears: Option<ears::Ears>,
}

impl Bells {
    pub(super) fn new(place: &Place, access: Access) -> Bells {
        let ears = ears::Ears::new();
        if let Err(error) = &ears {
            tracing::warn!(%error, "cannot listen for changes of other processes; they are noticed more slowly");
        }
        Bells { directory: place.sessions.clone(), access, everything: place.bell.clone(), ears: ears.ok() }
    }

    pub(super) fn path(&self, session: SessionId) -> PathBuf {
        self.directory.join(format!("{session}.bell"))
    }

    /// Wakes the processes that listen for this session.
    pub(super) fn ring(&self, session: SessionId) {
        ring(&self.path(session));
    }

    /// Wakes the processes that watch.
    pub(super) fn ring_for_everything(&self) {
        ring(&self.everything);
    }

    /// Listens for a session from now on.
    pub(super) fn listen(&self, session: SessionId) {
        let path = self.path(session);
        // Without a bell the poll wakes.
        drop(self.access.open_or_create(&path));
        self.listen_at(&path);
    }

    /// Listens for every commit from now on.
    pub(super) fn listen_for_everything(&self) {
        self.listen_at(&self.everything);
    }

    fn listen_at(&self, path: &Path) {
        if let Some(Err(error)) = self.ears.as_ref().map(|ears| ears.listen(path)) {
            tracing::debug!(%error, "cannot listen for a session; its changes are noticed more slowly");
        }
    }

    pub(super) fn remove(&self, session: SessionId) {
        drop(fs::remove_file(self.path(session)));
    }

    /// Waits until a bell has rung.
    pub(super) async fn rung(&self) {
        match &self.ears {
            Some(ears) => ears.rung().await,
            None => std::future::pending().await,
        }
    }
}

fn ring(path: &Path) {
    // Nobody listens at a bell that is not there.
    drop(File::open(path));
}

#[cfg(target_os = "linux")]
mod ears {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use tokio::io::unix::AsyncFd;

    use crate::engine::embedded::readable::readable;

    pub(super) struct Ears(AsyncFd<OwnedFd>);

    impl Ears {
        pub(super) fn new() -> io::Result<Ears> {
            let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            readable(inotify).map(Ears)
        }

        pub(super) fn listen(&self, path: &Path) -> io::Result<()> {
            let rings = WatchFlags::OPEN | WatchFlags::DELETE_SELF;
            Ok(inotify::add_watch(self.0.get_ref(), path, rings).map(drop)?)
        }

        pub(super) async fn rung(&self) {
            let Ok(mut ready) = self.0.readable().await else { return std::future::pending().await };
            let mut events = [0; 4096];
            while rustix::io::read(self.0.get_ref(), &mut events).is_ok_and(|read| read > 0) {}
            ready.clear_ready();
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod ears {
    use std::io;
    use std::path::Path;

    pub(super) struct Ears;

    impl Ears {
        pub(super) fn new() -> io::Result<Ears> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn listen(&self, _path: &Path) -> io::Result<()> {
            Ok(())
        }

        pub(super) async fn rung(&self) {
            std::future::pending().await
        }
    }
}
