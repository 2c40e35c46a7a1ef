//! Rate limits for log lines about one client, so that no client can flood the log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most log lines about one client in an interval.
const MAX_LINES: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(1);
/// How many addresses and users have a limiter; the others share one.
const CLIENTS: usize = 1024;

/// Limits the log lines about one client.
#[derive(Debug)]
pub(crate) struct RateLimiter(Mutex<(Instant, u32)>);

impl RateLimiter {
    fn new() -> RateLimiter {
        RateLimiter(Mutex::new((Instant::now(), 0)))
    }

    /// Logs a line, unless there were too many. Calls `suppressed` first, with the number of lines that were left out.
    pub(super) fn log(&self, suppressed: impl FnOnce(u32), log: impl FnOnce()) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, logged) = &mut *now;
        if began.elapsed() >= INTERVAL {
            let suppressed_lines = logged.saturating_sub(MAX_LINES);
            if suppressed_lines > 0 {
                suppressed(suppressed_lines);
            }
            (*began, *logged) = (Instant::now(), 0);
        }
        *logged = logged.saturating_add(1);
        if *logged <= MAX_LINES {
            log();
        }
    }

    fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.elapsed() >= INTERVAL
    }
}

/// The limiters of all clients: by user, or by address for a client without a user.
#[derive(Debug)]
pub(crate) struct RateLimiters {
    limiters: Mutex<Limiters>,
    rest: Arc<RateLimiter>,
}

#[derive(Debug)]
struct Limiters {
    by_client: HashMap<Client, Arc<RateLimiter>>,
    pruned_at: Instant,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Client {
    Address(IpAddr),
    User(String),
}

impl RateLimiters {
    pub(crate) fn new() -> RateLimiters {
        let limiters = Limiters { by_client: HashMap::new(), pruned_at: Instant::now() };
        RateLimiters { limiters: Mutex::new(limiters), rest: Arc::new(RateLimiter::new()) }
    }

    pub(crate) fn of_address(&self, address: IpAddr) -> Arc<RateLimiter> {
        self.of(Client::Address(address))
    }

    pub(crate) fn of_user(&self, name: &str) -> Arc<RateLimiter> {
        self.of(Client::User(name.to_owned()))
    }

    fn of(&self, client: Client) -> Arc<RateLimiter> {
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        let Limiters { by_client, pruned_at } = &mut *limiters;
        if by_client.len() >= CLIENTS && pruned_at.elapsed() >= INTERVAL {
            by_client.retain(|_, limiter| Arc::strong_count(limiter) > 1 || !limiter.is_over());
            *pruned_at = Instant::now();
        }
        if by_client.len() >= CLIENTS && !by_client.contains_key(&client) {
            return self.rest.clone();
        }
        by_client.entry(client).or_insert_with(|| Arc::new(RateLimiter::new())).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn log_lines_beyond_the_limit_are_suppressed_and_counted() {
        let (limiter, logged, suppressed) = (RateLimiter::new(), Cell::new(0), Cell::new(0));
        let log = || limiter.log(|count| suppressed.set(count), || logged.set(logged.get() + 1));
        // However slow the machine is, all of these come in one interval.
        limiter.0.lock().expect("ours").0 += Duration::from_secs(3600);
        (0..25).for_each(|_| log());
        assert_eq!((logged.get(), suppressed.get()), (10, 0));
        limiter.0.lock().expect("ours").0 = Instant::now().checked_sub(INTERVAL).expect("a while ago");
        log();
        assert_eq!((logged.get(), suppressed.get()), (11, 15));
    }

    #[test]
    fn an_address_has_one_limiter_and_a_million_share_a_bounded_number() {
        let limiters = RateLimiters::new();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let first = limiters.of_address(address(1));
        assert!(Arc::ptr_eq(&first, &limiters.of_address(address(1))));
        assert!(!Arc::ptr_eq(&first, &limiters.of_address(address(2))));
        (0..1_000_000).for_each(|number| drop(limiters.of_address(address(number))));
        assert!(limiters.limiters.lock().expect("ours").by_client.len() <= CLIENTS);
        assert!(Arc::ptr_eq(&first, &limiters.of_address(address(1))), "a limiter that is in use stays");
    }
}
