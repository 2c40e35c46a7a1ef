//! The key and the value of a lock. Each attempt has a random value, so that a late command of one attempt can neither release
//! nor extend the lock of another.

use std::hash::{BuildHasher, RandomState};

use palisade_core::{Label, LockName, SessionId, Token};

/// The prefix of all keys.
pub(super) const PREFIX: &str = "palisade:redlock:";

/// Returns the key of a lock.
pub(super) fn key(lock: &LockName) -> String {
    format!("{PREFIX}{}", lock.as_str())
}

/// Returns 64 random bits, from the random seed of the hasher.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Returns a random number of a session or a grant.
fn random_number() -> u64 {
    (random() & Token::MAX.get()).max(1)
}

/// Returns a number that identifies a grant. It is not a fencing token.
pub(super) fn random_token() -> Token {
    Token::new(random_number()).unwrap_or(Token::MAX)
}

/// Returns the number of a new session.
pub(super) fn session_number() -> SessionId {
    match SessionId::new(random_number()) {
        Ok(session) => session,
        Err(_) => unreachable!("it is at least 1"),
    }
}

/// The holder of a lock, as the value of its key names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    pub(super) grant: Token,
    pub(super) label: String,
}

impl Owner {
    /// Returns the value of a new attempt.
    pub(super) fn value(session: SessionId, grant: Token, label: &Label) -> String {
        format!("{:016x}{:016x} {session} {grant} {}", random(), random(), label.as_str())
    }

    /// Reads a value; `None` for one of another program.
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
    fn a_value_names_its_owner_and_is_unique() {
        let (session, grant, label) = (session_number(), random_token(), Label::new("two words\n"));
        let value = Owner::value(session, grant, &label);
        assert_eq!(Owner::parse(value.as_bytes()), Some(Owner { session, grant, label: "two words\n".to_owned() }));
        assert_ne!(Owner::value(session, grant, &label), value);
        for other in ["", "x", "x 1 2", "x 0 2 label", "x y z label"] {
            assert_eq!(Owner::parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(Owner::parse(b"\xff 1 2 label"), None);
    }
}
