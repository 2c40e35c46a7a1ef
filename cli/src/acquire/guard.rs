//! The guard of any kind of lock.

use std::os::fd::BorrowedFd;

use palisade::recipe::Ownership;
use palisade::{
    BootInstant, EfficiencyGuard, Error, Guard, Leadership, LockGuard, Loss, Permit, ReadGuard, SessionId, Token,
};

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    Lock(LockGuard),
    Shared(ReadGuard),
    Permits(Permit),
    Leader(Leadership),
    Partition(Ownership),
    Efficient(EfficiencyGuard),
}

/// A guard with a token, or without.
enum GuardRef<'a> {
    Fenced(&'a Guard),
    Efficient(&'a EfficiencyGuard),
}

impl AnyGuard {
    fn as_ref(&self) -> GuardRef<'_> {
        match self {
            AnyGuard::Lock(guard) => GuardRef::Fenced(guard),
            AnyGuard::Shared(guard) => GuardRef::Fenced(guard),
            AnyGuard::Permits(guard) => GuardRef::Fenced(guard),
            AnyGuard::Leader(guard) => GuardRef::Fenced(guard),
            AnyGuard::Partition(ownership) => GuardRef::Fenced(ownership),
            AnyGuard::Efficient(guard) => GuardRef::Efficient(guard),
        }
    }

    /// Returns the token; `None` for an efficiency lock.
    pub(crate) fn token(&self) -> Result<Option<Token>, Error> {
        match self.as_ref() {
            GuardRef::Fenced(guard) => guard.token().map(Some),
            GuardRef::Efficient(_) => Ok(None),
        }
    }

    /// Returns the signed token of each of these locks, one per line; `None` for an efficiency lock.
    pub(crate) async fn signed(&self, names: &[String]) -> Result<Option<String>, Error> {
        let GuardRef::Fenced(guard) = self.as_ref() else { return Ok(None) };
        let mut lines = Vec::new();
        for name in names {
            lines.push(guard.signed_token_for(name).await?.to_string());
        }
        Ok(Some(lines.join("\n")))
    }

    pub(crate) fn session(&self) -> SessionId {
        match self.as_ref() {
            GuardRef::Fenced(guard) => guard.session(),
            GuardRef::Efficient(guard) => guard.session(),
        }
    }

    pub(crate) fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        match self.as_ref() {
            GuardRef::Fenced(guard) => guard.lifeline(),
            GuardRef::Efficient(guard) => guard.lifeline(),
        }
    }

    pub(crate) fn safe_until(&self) -> BootInstant {
        match self.as_ref() {
            GuardRef::Fenced(guard) => guard.safe_until(),
            GuardRef::Efficient(guard) => guard.safe_until(),
        }
    }

    pub(crate) async fn renewed(&self, seen: BootInstant) -> BootInstant {
        match self.as_ref() {
            GuardRef::Fenced(guard) => guard.renewed(seen).await,
            GuardRef::Efficient(guard) => guard.renewed(seen).await,
        }
    }

    pub(crate) async fn lost(&self) -> Loss {
        match self.as_ref() {
            GuardRef::Fenced(guard) => guard.lost().await,
            GuardRef::Efficient(guard) => guard.lost().await,
        }
    }

    pub(crate) async fn release(&self) -> Result<(), Error> {
        match self.as_ref() {
            GuardRef::Fenced(guard) => guard.release().await,
            GuardRef::Efficient(guard) => guard.release().await,
        }
    }
}
