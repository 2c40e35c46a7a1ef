//! How much is written to the log of what one client does, so that none can drown what is told of the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const WHILE: Duration = Duration::from_secs(1);
const MOST: u32 = 10;
/// Addresses and users that are told apart; those beyond share one pace.
const CLIENTS: usize = 1024;

/// So much is told of one client in a while.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<(Instant, u32)>);

impl Pace {
    fn new() -> Pace {
        Pace(Mutex::new((Instant::now(), 0)))
    }

    /// Tells it, if not too much was told already; and before that, with `untold`, how much was not.
    pub(super) fn tell(&self, untold: impl FnOnce(u32), tell: impl FnOnce()) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, told) = &mut *now;
        if began.elapsed() >= WHILE {
            let left_out = told.saturating_sub(MOST);
            if left_out > 0 {
                untold(left_out);
            }
            (*began, *told) = (Instant::now(), 0);
        }
        *told = told.saturating_add(1);
        if *told <= MOST {
            tell();
        }
    }

    fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.elapsed() >= WHILE
    }
}

/// The paces of clients, however many connections they have: by their users, or their addresses where they have none.
#[derive(Debug)]
pub(crate) struct Paces {
    known: Mutex<Known>,
    rest: Arc<Pace>,
}

#[derive(Debug)]
struct Known {
    by_client: HashMap<Client, Arc<Pace>>,
    pruned_at: Instant,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Client {
    Address(IpAddr),
    User(String),
}

impl Paces {
    pub(crate) fn new() -> Paces {
        let known = Known { by_client: HashMap::new(), pruned_at: Instant::now() };
        Paces { known: Mutex::new(known), rest: Arc::new(Pace::new()) }
    }

    pub(crate) fn of_address(&self, address: IpAddr) -> Arc<Pace> {
        self.of(Client::Address(address))
    }

    pub(crate) fn of_user(&self, name: &str) -> Arc<Pace> {
        self.of(Client::User(name.to_owned()))
    }

    fn of(&self, client: Client) -> Arc<Pace> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { by_client, pruned_at } = &mut *known;
        if by_client.len() >= CLIENTS && pruned_at.elapsed() >= WHILE {
            by_client.retain(|_, pace| Arc::strong_count(pace) > 1 || !pace.is_over());
            *pruned_at = Instant::now();
        }
        if by_client.len() >= CLIENTS && !by_client.contains_key(&client) {
            return self.rest.clone();
        }
        by_client.entry(client).or_insert_with(|| Arc::new(Pace::new())).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn so_much_is_told_and_then_how_much_was_not() {
        let (pace, told, untold) = (Pace::new(), Cell::new(0), Cell::new(0));
        let tell = || pace.tell(|count| untold.set(count), || told.set(told.get() + 1));
        (0..25).for_each(|_| tell());
        assert_eq!((told.get(), untold.get()), (10, 0));
        pace.0.lock().expect("ours").0 = Instant::now().checked_sub(WHILE).expect("a while ago");
        tell();
        assert_eq!((told.get(), untold.get()), (11, 15));
    }

    #[test]
    fn one_address_has_one_pace_and_a_million_have_bounded_many() {
        let paces = Paces::new();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let first = paces.of_address(address(1));
        assert!(Arc::ptr_eq(&first, &paces.of_address(address(1))));
        assert!(!Arc::ptr_eq(&first, &paces.of_address(address(2))));
        (0..1_000_000).for_each(|number| drop(paces.of_address(address(number))));
        assert!(paces.known.lock().expect("ours").by_client.len() <= CLIENTS);
        assert!(Arc::ptr_eq(&first, &paces.of_address(address(1))), "one that is in use stays");
    }
}
