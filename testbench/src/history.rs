//! What clients have seen, and whether a lock can have behaved so.

use std::collections::BTreeMap;
use std::fmt;

use palisade::{BootInstant, Token};

/// A grant that a client was told of, until it stopped believing in it.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The lock.
    pub lock: String,
    /// Its token.
    pub token: Token,
    /// When the client had been told.
    pub told_at: BootInstant,
    /// When the client let go of it: it asked to release it, was told that it was lost, or its time was over.
    pub let_go_at: BootInstant,
    /// Who it was.
    pub client: usize,
}

/// What must not have happened.
#[derive(Debug)]
pub enum Anomaly {
    /// Two clients held one lock at once.
    TwoHolders(Grant, Grant),
    /// A token was given twice.
    TokenTwice(Grant, Grant),
    /// A later grant has a lower token.
    TokensFell(Grant, Grant),
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, first, second) = match self {
            Anomaly::TwoHolders(first, second) => ("two held it at once", first, second),
            Anomaly::TokenTwice(first, second) => ("a token was given twice", first, second),
            Anomaly::TokensFell(first, second) => ("a later grant has a lower token", first, second),
        };
        write!(f, "{what}:\n  {first:?}\n  {second:?}")
    }
}

/// Whether exclusive locks can have behaved as these grants say.
///
/// # Errors
///
/// The first thing that must not have happened.
pub fn check(grants: &[Grant]) -> Result<(), Anomaly> {
    let mut locks: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
    for grant in grants {
        locks.entry(&grant.lock).or_default().push(grant);
    }
    for grants in locks.values_mut() {
        grants.sort_by_key(|grant| grant.told_at);
        for pair in grants.windows(2) {
            let (first, second) = (pair[0].clone(), pair[1].clone());
            if first.token == second.token {
                return Err(Anomaly::TokenTwice(first, second));
            }
            if second.told_at < first.let_go_at {
                return Err(Anomaly::TwoHolders(first, second));
            }
            if second.token < first.token {
                return Err(Anomaly::TokensFell(first, second));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn grant(token: u64, from_ms: u64, to_ms: u64) -> Grant {
        let at = |ms| BootInstant::after_boot(Duration::from_millis(ms));
        let token = Token::new(token).expect("a token");
        Grant { lock: "a".to_owned(), token, told_at: at(from_ms), let_go_at: at(to_ms), client: 0 }
    }

    #[test]
    fn what_a_lock_may_do_is_no_anomaly() {
        assert!(check(&[grant(1, 0, 10), grant(2, 10, 20), grant(5, 30, 40)]).is_ok());
    }

    #[test]
    fn what_a_lock_must_not_do_is_found() {
        assert!(matches!(check(&[grant(1, 0, 10), grant(2, 9, 20)]), Err(Anomaly::TwoHolders(..))));
        assert!(matches!(check(&[grant(2, 0, 10), grant(2, 11, 20)]), Err(Anomaly::TokenTwice(..))));
        assert!(matches!(check(&[grant(2, 0, 10), grant(1, 11, 20)]), Err(Anomaly::TokensFell(..))));
    }
}
