//! What a command holds, whatever kind of lock it is.

use std::os::fd::BorrowedFd;

use palisade::{
    BootInstant, EfficiencyGuard, Error, Guard, Leadership, LockGuard, Loss, Permit, ReadGuard, SessionId, Token,
};

/// Something that is held.
#[derive(Debug)]
pub(crate) enum Held {
    Lock(LockGuard),
    Shared(ReadGuard),
    Permits(Permit),
    Leader(Leadership),
    Efficient(EfficiencyGuard),
}

/// With a token, or without.
enum Side<'a> {
    Fenced(&'a Guard),
    Efficient(&'a EfficiencyGuard),
}

impl Held {
    fn side(&self) -> Side<'_> {
        match self {
            Held::Lock(guard) => Side::Fenced(guard),
            Held::Shared(guard) => Side::Fenced(guard),
            Held::Permits(guard) => Side::Fenced(guard),
            Held::Leader(guard) => Side::Fenced(guard),
            Held::Efficient(guard) => Side::Efficient(guard),
        }
    }

    /// The token, if there can be one.
    pub(crate) fn token(&self) -> Result<Option<Token>, Error> {
        match self.side() {
            Side::Fenced(guard) => guard.token().map(Some),
            Side::Efficient(_) => Ok(None),
        }
    }

    /// The signed token of each of these locks, one per line; none where there can be no token.
    pub(crate) async fn signed(&self, names: &[String]) -> Result<Option<String>, Error> {
        let Side::Fenced(guard) = self.side() else { return Ok(None) };
        let mut lines = Vec::new();
        for name in names {
            lines.push(guard.signed_token_for(name).await?.to_string());
        }
        Ok(Some(lines.join("\n")))
    }

    pub(crate) fn session(&self) -> SessionId {
        match self.side() {
            Side::Fenced(guard) => guard.session(),
            Side::Efficient(guard) => guard.session(),
        }
    }

    pub(crate) fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        match self.side() {
            Side::Fenced(guard) => guard.lifeline(),
            Side::Efficient(guard) => guard.lifeline(),
        }
    }

    pub(crate) fn safe_until(&self) -> BootInstant {
        match self.side() {
            Side::Fenced(guard) => guard.safe_until(),
            Side::Efficient(guard) => guard.safe_until(),
        }
    }

    pub(crate) async fn renewed(&self, seen: BootInstant) -> BootInstant {
        match self.side() {
            Side::Fenced(guard) => guard.renewed(seen).await,
            Side::Efficient(guard) => guard.renewed(seen).await,
        }
    }

    pub(crate) async fn lost(&self) -> Loss {
        match self.side() {
            Side::Fenced(guard) => guard.lost().await,
            Side::Efficient(guard) => guard.lost().await,
        }
    }

    pub(crate) async fn release(&self) -> Result<(), Error> {
        match self.side() {
            Side::Fenced(guard) => guard.release().await,
            Side::Efficient(guard) => guard.release().await,
        }
    }
}
