//! Checks the grants that clients received for what locks must never do.

use std::collections::BTreeMap;
use std::fmt;

use palisade::{BootInstant, Token};

/// A grant that a client received, until the client could no longer be certain of it.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The lock.
    pub lock: String,
    /// Its token.
    pub token: Token,
    /// When the client sent its request.
    pub asked_at: BootInstant,
    /// A moment after the client had received it, at which the lock was certainly held.
    pub told_at: BootInstant,
    /// The lock was certainly held until then: the client asked to release it, or its session may have ended.
    pub let_go_at: BootInstant,
    /// How many of the lock's permits it takes: all of them, if the grant is exclusive.
    pub takes: u32,
    /// How many permits the lock has.
    pub of: u32,
    /// The client's number.
    pub client: usize,
}

impl Grant {
    fn is_exclusive(&self) -> bool {
        self.takes == self.of
    }
}

/// A violation.
#[derive(Debug)]
pub enum Anomaly {
    /// Two grants were held at once that exclude each other.
    HeldTogether(Grant, Grant),
    /// A token was given twice.
    TokenTwice(Grant, Grant),
    /// A later grant has a lower token.
    TokensFell(Grant, Grant),
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, first, second) = match self {
            Anomaly::HeldTogether(first, second) => ("more was held at once than the lock has", first, second),
            Anomaly::TokenTwice(first, second) => ("a token was given twice", first, second),
            Anomaly::TokensFell(first, second) => ("a later grant has a lower token", first, second),
        };
        write!(f, "{what}:\n  {first:?}\n  {second:?}")
    }
}

/// Checks all grants.
///
/// # Errors
///
/// The first anomaly of each lock that has one.
pub fn check(grants: &[Grant]) -> Result<(), Vec<Anomaly>> {
    let mut locks: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
    for grant in grants {
        locks.entry(&grant.lock).or_default().push(grant);
    }
    let anomalies: Vec<_> =
        locks.values_mut().filter_map(|grants| check_lock(grants).err()).map(|anomaly| *anomaly).collect();
    if anomalies.is_empty() { Ok(()) } else { Err(anomalies) }
}

fn check_lock(grants: &mut [&Grant]) -> Result<(), Box<Anomaly>> {
    grants.sort_by_key(|grant| grant.token);
    if let Some(pair) = grants.windows(2).find(|pair| pair[0].token == pair[1].token) {
        return Err(Box::new(Anomaly::TokenTwice(pair[0].clone(), pair[1].clone())));
    }
    check_asked_later(grants)?;
    grants.sort_by_key(|grant| grant.told_at);
    check_exclusive_order(grants)?;
    check_permits(grants)
}

/// Checks that a grant which was requested after another one was received has a higher token. `grants` are in the
/// order of their tokens.
fn check_asked_later(grants: &[&Grant]) -> Result<(), Box<Anomaly>> {
    let mut told_first: Option<&Grant> = None;
    for grant in grants.iter().rev() {
        if let Some(higher) = told_first.filter(|higher| higher.told_at <= grant.asked_at) {
            return Err(Box::new(Anomaly::TokensFell(higher.clone(), (*grant).clone())));
        }
        if told_first.is_none_or(|first| grant.told_at < first.told_at) {
            told_first = Some(grant);
        }
    }
    Ok(())
}

/// Checks that tokens rise in the order of certain holding wherever one of two grants is exclusive.
/// `grants` are in that order.
fn check_exclusive_order(grants: &[&Grant]) -> Result<(), Box<Anomaly>> {
    let (mut highest, mut highest_exclusive): (Option<&Grant>, Option<&Grant>) = (None, None);
    for grant in grants {
        let before = if grant.is_exclusive() { highest } else { highest_exclusive };
        if let Some(before) = before.filter(|before| before.token > grant.token) {
            return Err(Box::new(Anomaly::TokensFell(before.clone(), (*grant).clone())));
        }
        let higher = |than: Option<&Grant>| than.is_none_or(|than| than.token < grant.token);
        if higher(highest) {
            highest = Some(grant);
        }
        if grant.is_exclusive() && higher(highest_exclusive) {
            highest_exclusive = Some(grant);
        }
    }
    Ok(())
}

/// Checks that at no moment more permits are certainly held than the lock has. `grants` are in the order in which they were held.
fn check_permits(grants: &[&Grant]) -> Result<(), Box<Anomaly>> {
    let mut held: Vec<&Grant> = Vec::new();
    for grant in grants.iter().filter(|grant| grant.told_at < grant.let_go_at) {
        held.retain(|other| other.let_go_at > grant.told_at);
        let taken: u64 = held.iter().map(|other| u64::from(other.takes)).sum();
        if let Some(other) = held.last()
            && taken + u64::from(grant.takes) > u64::from(grant.of)
        {
            return Err(Box::new(Anomaly::HeldTogether((*other).clone(), (*grant).clone())));
        }
        held.push(grant);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn part(token: u64, takes: u32, asked_ms: u64, from_ms: u64, to_ms: u64) -> Grant {
        let at = |ms| BootInstant::after_boot(Duration::from_millis(ms));
        let (asked_at, told_at, let_go_at) = (at(asked_ms), at(from_ms), at(to_ms));
        let token = Token::new(token).expect("a token");
        Grant { lock: "a".to_owned(), token, asked_at, told_at, let_go_at, takes, of: 4, client: 0 }
    }

    fn grant(token: u64, from_ms: u64, to_ms: u64) -> Grant {
        part(token, 4, 0, from_ms, to_ms)
    }

    fn anomaly(grants: &[Grant]) -> Anomaly {
        check(grants).expect_err("there is an anomaly").remove(0)
    }

    #[test]
    fn allowed_histories_have_no_anomaly() {
        assert!(check(&[grant(1, 0, 10), grant(2, 10, 20), grant(5, 30, 40)]).is_ok());
        // Shared grants may be received in any order.
        assert!(check(&[part(2, 2, 0, 10, 20), part(1, 2, 0, 11, 20), grant(3, 20, 30)]).is_ok());
        // A client that received its grant too late was never certain of it.
        assert!(check(&[grant(1, 10, 5), grant(2, 10, 20)]).is_ok());
    }

    #[test]
    fn every_anomaly_is_found() {
        assert!(matches!(anomaly(&[grant(1, 0, 10), grant(2, 9, 20)]), Anomaly::HeldTogether(..)));
        assert!(matches!(anomaly(&[grant(2, 0, 10), grant(2, 11, 20)]), Anomaly::TokenTwice(..)));
        assert!(matches!(anomaly(&[grant(2, 0, 10), grant(1, 11, 20)]), Anomaly::TokensFell(..)));
        assert!(matches!(anomaly(&[part(2, 1, 0, 1, 9), part(1, 1, 1, 2, 9)]), Anomaly::TokensFell(..)));
        assert!(matches!(anomaly(&[part(2, 1, 0, 1, 2), grant(1, 3, 9)]), Anomaly::TokensFell(..)));
        let five = [part(1, 2, 0, 1, 9), part(2, 2, 0, 2, 9), part(3, 1, 0, 3, 9)];
        assert!(matches!(anomaly(&five), Anomaly::HeldTogether(..)));
    }
}
