//! Readers that have logged in with a secret: a cookie stands for the login.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;

use super::cookie;
use crate::access::{Secret, User};
use crate::net::unread::SHARE;

/// A login ends when the page has asked for nothing for this long, and at the latest after [`LONGEST`].
const IDLE: Duration = Duration::from_secs(15 * 60);
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
/// The most logins at once; one user may have a quarter of them. The one that was idle for the longest makes room.
const MOST: usize = 1024;

/// A reader that has logged in.
pub(super) struct Login {
    pub(super) user: Arc<User>,
    began: Instant,
    used: Mutex<Instant>,
    /// The reader has logged out, or another login has taken the place.
    has_ended: AtomicBool,
}

impl Login {
    fn used(&self) -> MutexGuard<'_, Instant> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it is over; otherwise it counts as in use now.
    pub(super) fn is_over(&self) -> bool {
        let mut used = self.used();
        let is_over = self.has_ended.load(Ordering::Relaxed)
            || self.user.is_revoked()
            || used.elapsed() > IDLE
            || self.began.elapsed() > LONGEST;
        *used = Instant::now();
        is_over
    }
}

/// All logins, by what their cookies say.
pub(super) struct Logins {
    by_key: Mutex<HashMap<String, Arc<Login>>>,
    /// Whether browsers may send the cookie without TLS.
    is_open: bool,
}

impl Logins {
    pub(super) fn new(is_open: bool) -> Logins {
        Logins { by_key: Mutex::default(), is_open }
    }

    fn by_key(&self) -> MutexGuard<'_, HashMap<String, Arc<Login>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cookie's name. Browsers take a name with this prefix only over TLS, and never from another host.
    fn name(&self) -> &'static str {
        if self.is_open { "palisade" } else { "__Host-palisade" }
    }

    /// Returns the login of a request.
    pub(super) fn find(&self, headers: &HeaderMap) -> Option<Arc<Login>> {
        let key = cookie(headers, self.name())?;
        let login = self.by_key().get(key).cloned()?;
        if login.is_over() {
            self.by_key().remove(key);
            return None;
        }
        Some(login)
    }

    /// Adds a login, and returns its cookie.
    pub(super) fn add(&self, user: Arc<User>) -> std::io::Result<String> {
        let secret = Secret::random()?;
        let mut by_key = self.by_key();
        by_key.retain(|_, login| !login.user.is_revoked() && login.used().elapsed() <= IDLE);
        let of_user = by_key.values().filter(|login| login.user.name() == user.name()).count();
        let is_full = by_key.len() >= MOST;
        if is_full || of_user >= MOST / SHARE {
            let may_go = |login: &&Arc<Login>| is_full || login.user.name() == user.name();
            let oldest = by_key.values().filter(may_go).map(|login| *login.used()).min();
            by_key.retain(|_, login| {
                let stays = Some(*login.used()) != oldest;
                login.has_ended.fetch_or(!stays, Ordering::Relaxed);
                stays
            });
        }
        let now = Instant::now();
        let login = Login { user, began: now, used: Mutex::new(now), has_ended: AtomicBool::new(false) };
        by_key.insert(secret.reveal().to_owned(), Arc::new(login));
        Ok(self.cookie(secret.reveal()))
    }

    /// Ends a login, and returns the cookie that ends it in the browser.
    pub(super) fn end(&self, headers: &HeaderMap) -> String {
        if let Some(login) = cookie(headers, self.name()).and_then(|key| self.by_key().remove(key)) {
            login.has_ended.store(true, Ordering::Relaxed);
        }
        format!("{}; Max-Age=0", self.cookie(""))
    }

    fn cookie(&self, key: &str) -> String {
        let secure = if self.is_open { "" } else { "; Secure" };
        format!("{}={key}; Path=/; HttpOnly; SameSite=Strict{secure}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;

    use super::*;

    fn user(name: &str) -> Arc<User> {
        Arc::new(User::new(name, None, Vec::new()).expect("a user"))
    }

    fn request(cookie: &str) -> HeaderMap {
        let pair = cookie.split(';').next().expect("a pair");
        [(header::COOKIE, pair.parse().expect("a value"))].into_iter().collect()
    }

    #[test]
    fn one_user_has_a_bounded_share_of_the_logins() {
        let logins = Logins::new(true);
        let other = logins.add(user("other")).expect("random bytes");
        let first = logins.add(user("ci")).expect("random bytes");
        for _ in 0..MOST {
            logins.add(user("ci")).expect("random bytes");
        }
        assert!(logins.by_key().len() <= MOST / SHARE + 1);
        assert!(logins.find(&request(&first)).is_none(), "the oldest made room");
        assert!(logins.find(&request(&other)).is_some(), "another user's stays");
    }

    #[test]
    fn a_login_ends_with_its_cookie() {
        let logins = Logins::new(false);
        let cookie = logins.add(user("ci")).expect("random bytes");
        assert!(
            cookie.starts_with("__Host-palisade=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure")
        );
        assert_eq!(logins.find(&request(&cookie)).map(|login| login.user.name().to_owned()), Some("ci".to_owned()));
        logins.end(&request(&cookie));
        assert!(logins.find(&request(&cookie)).is_none());
    }
}
