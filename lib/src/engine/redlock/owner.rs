//! What a lock's key says: whose it is. Each try has a value of its own, so that what is late of one can neither free
//! nor extend another.

use std::hash::{BuildHasher, RandomState};

use palisade_core::{Label, LockName, SessionId, Token};

/// What the names of all keys begin with.
pub(super) const PREFIX: &str = "palisade:redlock:";

/// The key of a lock.
pub(super) fn key(lock: &LockName) -> String {
    format!("{PREFIX}{}", lock.as_str())
}

/// 64 bits that nobody can guess: the hash is keyed by the system.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A number for a session or a grant, such that nobody has the same by chance.
fn random_number() -> u64 {
    (random() & Token::MAX.get()).max(1)
}

/// A name for a grant. It only names it: it is higher than nothing.
pub(super) fn grant_name() -> Token {
    Token::new(random_number()).unwrap_or(Token::MAX)
}

/// A session's number.
pub(super) fn session_number() -> SessionId {
    match SessionId::new(random_number()) {
        Ok(session) => session,
        Err(_) => unreachable!("it is at least 1"),
    }
}

/// Who has a lock, as its key's value says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    pub(super) grant: Token,
    pub(super) label: String,
}

impl Owner {
    /// The value of a new try.
    pub(super) fn value(session: SessionId, grant: Token, label: &Label) -> String {
        format!("{:016x}{:016x} {session} {grant} {}", random(), random(), label.as_str())
    }

    /// `None` for a value that another program has written.
    pub(super) fn parse(value: &[u8]) -> Option<Owner> {
        let mut words = str::from_utf8(value).ok()?.splitn(4, ' ');
        let (_, session, grant, label) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some(Owner {
            session: SessionId::new(session.parse().ok()?).ok()?,
            grant: Token::new(grant.parse().ok()?).ok()?,
            label: label.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_whose_it_is_and_no_two_are_alike() {
        let (session, grant, label) = (session_number(), grant_name(), Label::new("two words\n"));
        let value = Owner::value(session, grant, &label);
        assert_eq!(Owner::parse(value.as_bytes()), Some(Owner { session, grant, label: "two words\n".to_owned() }));
        assert_ne!(Owner::value(session, grant, &label), value);
        for other in ["", "x", "x 1 2", "x 0 2 label", "x y z label"] {
            assert_eq!(Owner::parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(Owner::parse(b"\xff 1 2 label"), None);
    }
}
