//! Connecting to a file: checks it, ends expired sessions, and removes their files.

use std::fs;

use palisade_core::SessionId;

use super::batch::{BatchBuilder, LogRequest};
use super::commit::append;
use super::error::StoreError;
use super::lease::Leases;
use super::log::{Durability, Log, boot_name};
use super::paths::Paths;
use super::replica::{Replica, Settings};
use super::state::State;
use super::wake_file::WakeFiles;

impl State {
    /// Creates what is missing and loads the replica. The caller has the log's lock.
    pub(super) fn open(log: Log, paths: &Paths, settings: Settings) -> Result<State, StoreError> {
        if log.set_up()? {
            paths.make_durable()?;
        }
        let access = log.access();
        let created = access.create_directory(&paths.sessions);
        created.map_err(|error| StoreError::io("create", &paths.sessions, error))?;
        let created = access.open_or_create(&paths.wake);
        created.map_err(|error| StoreError::io("create", &paths.wake, error))?;
        let transaction = log.read()?;
        let replica = Replica::load(&log, settings)?;
        drop(transaction);
        Ok(State::new(log, replica, Leases::new(paths.sessions.clone(), access, settings.boot)))
    }

    /// Verifies the identity of the file, ends expired sessions, and removes the files of earlier sessions.
    /// The caller has the log's lock.
    pub(super) fn recover(mut self, paths: &Paths, wake_files: &WakeFiles) -> Result<State, StoreError> {
        let log = self.log.clone();
        let boot = self.replica.settings.boot;
        let floor = log.verify_identity(self.replica.machine.last_token(), boot)?;
        let transaction = log.begin(Durability::Flushed)?;
        let is_new_boot = log.boot()?.as_ref() != Some(&boot_name(boot));
        let sessions = self.replica.machine.sessions().map(|session| session.id()).collect();
        let mut builder = BatchBuilder::new(&mut self.replica, &mut self.leases, wake_files);
        builder.raise_tokens(floor);
        if is_new_boot {
            builder.end_sessions_of_processes();
            log.set_boot(boot)?;
        }
        let end_all_due = LogRequest::EndDue { locks: Vec::new(), sessions };
        let prepared = builder.build([&end_all_due].into_iter());
        if log.is_bound() {
            // Ending expired sessions may have granted their locks to waiters.
            log.reserve(self.replica.machine.last_token())?;
        }
        log.renew_binding()?;
        if !prepared.batch.commands.is_empty() {
            let (appended, sizes) = append(&log, &self.replica, &prepared.batch, transaction)?;
            self.record_append(appended, sizes);
        } else {
            log.commit(transaction)?;
        }
        log.bind(self.replica.machine.last_token(), boot)?;
        self.wake_others(wake_files, &prepared.events);
        self.remove_files_of_ended(wake_files, &prepared.events);
        self.remove_leftovers(paths);
        Ok(self)
    }

    fn remove_leftovers(&self, paths: &Paths) {
        let Ok(entries) = fs::read_dir(&paths.sessions) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".bell").unwrap_or(name).parse().ok());
            let session = number.and_then(|number| SessionId::new(number).ok());
            if session.is_some_and(|session| self.replica.machine.session(session).is_none()) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}
