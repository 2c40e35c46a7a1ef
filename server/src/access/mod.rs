//! Users, their secrets and their permissions.

mod secret;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use palisade_core::Mode;
use thiserror::Error;
use tokio::sync::watch;

pub use secret::{BadHash, Secret, SecretHash};

/// A permission on locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// See the lock, its holders and its queue, and watch its events.
    Observe,
    /// Acquire it shared.
    AcquireShared,
    /// Acquire it in any mode, publish, release.
    Acquire,
    /// Force-release it.
    Break,
    /// All of these, and resize a semaphore.
    Admin,
}

impl Verb {
    /// All of them, in the order of their names in messages.
    pub const ALL: [Verb; 5] = [Verb::Observe, Verb::AcquireShared, Verb::Acquire, Verb::Break, Verb::Admin];

    /// Returns its name in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Observe => "observe",
            Verb::AcquireShared => "acquire-shared",
            Verb::Acquire => "acquire",
            Verb::Break => "break",
            Verb::Admin => "admin",
        }
    }

    /// Returns the permission to acquire in this mode.
    pub fn to_acquire(mode: Mode) -> Verb {
        match mode {
            Mode::Shared => Verb::AcquireShared,
            Mode::Exclusive | Mode::Permits { .. } => Verb::Acquire,
        }
    }

    fn includes(self, other: Verb) -> bool {
        self == other || self == Verb::Admin || (self == Verb::Acquire && other == Verb::AcquireShared)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Verb {
    type Err = BadUser;

    fn from_str(text: &str) -> Result<Verb, BadUser> {
        let found = Verb::ALL.into_iter().find(|verb| verb.as_str() == text);
        found.ok_or_else(|| BadUser::Verb { verb: text.escape_debug().to_string() })
    }
}

/// Allows some verbs for all locks whose names have a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The allowed verbs.
    pub verbs: Vec<Verb>,
    /// The prefix of the locks' names; empty for all locks.
    pub prefix: String,
}

/// A user of the service.
#[derive(Debug)]
pub struct User {
    name: String,
    secret: Option<SecretHash>,
    rules: Vec<Rule>,
    /// Whether it was changed or removed.
    is_revoked: AtomicBool,
}

impl PartialEq for User {
    fn eq(&self, other: &User) -> bool {
        (&self.name, self.secret, &self.rules) == (&other.name, other.secret, &other.rules)
    }
}

/// Why a user is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum BadUser {
    #[error("'{name}' cannot be a user's name: it has 1 to 64 of the characters A-Z a-z 0-9 . _ @ -")]
    Name { name: String },
    #[error("the user '{name}' is there twice")]
    Twice { name: String },
    #[error("'{verb}' is no verb; there are observe, acquire-shared, acquire, break and admin")]
    Verb { verb: String },
    #[error("the secret_hash of user '{name}' cannot be used: {why}")]
    Hash { name: String, why: BadHash },
}

impl User {
    /// Returns a user with this name and these rules. A user without a secret needs a certificate.
    ///
    /// # Errors
    ///
    /// The name would be ambiguous in a label.
    ///
    /// ```
    /// use palisade_server::access::{Rule, User, Verb};
    /// let rule = Rule { verbs: vec![Verb::Acquire], prefix: "deploy/".to_owned() };
    /// let user = User::new("ci", None, vec![rule])?;
    /// assert!(user.may(Verb::AcquireShared, "deploy/web"));
    /// assert!(!user.may(Verb::Observe, "deploy/web"));
    /// assert!(!user.may(Verb::Acquire, "orders"));
    /// assert!(User::new("a: b", None, vec![]).is_err());
    /// # Ok::<(), palisade_server::access::BadUser>(())
    /// ```
    pub fn new(name: &str, secret: Option<SecretHash>, rules: Vec<Rule>) -> Result<User, BadUser> {
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_fine) {
            let name = name.chars().take(80).collect::<String>().escape_debug().to_string();
            return Err(BadUser::Name { name });
        }
        Ok(User { name: name.to_owned(), secret, rules, is_revoked: AtomicBool::new(false) })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether it can log in with a secret.
    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns whether it was changed or removed since ([`Users::replace`]): its clients must log in again.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Relaxed)
    }

    /// Returns whether it may do this with this lock.
    pub fn may(&self, verb: Verb, lock: &str) -> bool {
        let allows = |rule: &Rule| rule.verbs.iter().any(|allowed| allowed.includes(verb));
        self.rules.iter().any(|rule| lock.starts_with(&rule.prefix) && allows(rule))
    }

    /// Returns whether it may do this with any lock.
    pub fn may_somewhere(&self, verb: Verb) -> bool {
        self.rules.iter().any(|rule| rule.verbs.iter().any(|allowed| allowed.includes(verb)))
    }

    /// Returns the label of its session: the service puts the user's name first.
    pub fn label(&self, text: &str) -> String {
        format!("{}: {text}", self.name)
    }

    /// Returns whether a session with this label belongs to this user.
    pub fn owns(&self, label: &str) -> bool {
        owner(label) == Some(self.name.as_str())
    }
}

/// Returns the user of a session with this label. No user's name has a colon in it.
pub fn owner(label: &str) -> Option<&str> {
    label.split_once(": ").map(|(owner, _)| owner)
}

/// The users of the service. Clones share them, also after [`replace`](Users::replace).
#[derive(Debug, Clone, Default)]
pub struct Users {
    by_name: Arc<RwLock<BTreeMap<String, Arc<User>>>>,
    changed: watch::Sender<()>,
}

impl Users {
    /// Returns a set of these users.
    ///
    /// # Errors
    ///
    /// Two users have the same name.
    pub fn new(users: Vec<User>) -> Result<Users, BadUser> {
        let mut by_name = BTreeMap::new();
        for user in users {
            let name = user.name.clone();
            if by_name.insert(name.clone(), Arc::new(user)).is_some() {
                return Err(BadUser::Twice { name });
            }
        }
        Ok(Users { by_name: Arc::new(RwLock::new(by_name)), changed: watch::Sender::default() })
    }

    /// Returns the user with this name, if this is its secret. A user that does not exist takes the same time, so that
    /// names cannot be guessed.
    pub fn with_secret(&self, name: &[u8], secret: &[u8]) -> Option<Arc<User>> {
        let user = std::str::from_utf8(name).ok().and_then(|name| self.find(name));
        let hash = user.as_ref().and_then(|user| user.secret).unwrap_or_else(SecretHash::of_nothing);
        let is_right = hash.is_of(secret);
        user.filter(|_| is_right)
    }

    /// Returns the user with this name, which the caller has authenticated.
    pub fn find(&self, name: &str) -> Option<Arc<User>> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Replaces the users in all clones. Unchanged users stay valid. Clients of users that were changed or removed must log
    /// in again.
    ///
    /// ```
    /// use palisade_server::access::{User, Users};
    /// let before = Users::new(vec![User::new("ci", None, vec![])?, User::new("dev", None, vec![])?])?;
    /// let (ci, dev) = (before.find("ci").unwrap(), before.find("dev").unwrap());
    /// before.replace(&Users::new(vec![User::new("ci", None, vec![])?])?);
    /// assert!(!ci.is_revoked() && dev.is_revoked());
    /// assert!(before.find("dev").is_none());
    /// # Ok::<(), palisade_server::access::BadUser>(())
    /// ```
    pub fn replace(&self, with: &Users) {
        let mut after = with.by_name.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut now = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        for (name, user) in now.iter() {
            match after.get_mut(name) {
                Some(same) if same == user => *same = user.clone(),
                _ => user.is_revoked.store(true, Ordering::Relaxed),
            }
        }
        *now = after;
        drop(now);
        self.changed.send_replace(());
    }

    /// Returns a receiver that is notified of every [`replace`](Users::replace).
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verb: Verb, prefix: &str) -> Rule {
        Rule { verbs: vec![verb], prefix: prefix.to_owned() }
    }

    #[test]
    fn a_verb_allows_only_the_verbs_that_it_includes() {
        use Verb::{Acquire, AcquireShared, Admin, Break, Observe};
        for (given, allowed) in [
            (Observe, &[Observe][..]),
            (AcquireShared, &[AcquireShared]),
            (Acquire, &[AcquireShared, Acquire]),
            (Break, &[Break]),
            (Admin, &[Observe, AcquireShared, Acquire, Break, Admin]),
        ] {
            let user = User::new("u", None, vec![rule(given, "a/")]).unwrap();
            for verb in Verb::ALL {
                assert_eq!(user.may(verb, "a/x"), allowed.contains(&verb), "{given} {verb}");
                assert!(!user.may(verb, "b/x"));
                assert!(!user.may(verb, "a"));
            }
        }
    }

    #[test]
    fn a_wrong_secret_is_refused() {
        let secret = Secret::random().unwrap();
        let with = User::new("with", Some(secret.hash()), vec![]).unwrap();
        let without = User::new("without", None, vec![]).unwrap();
        let users = Users::new(vec![with, without]).unwrap();
        let good = secret.reveal().as_bytes().to_vec();
        assert_eq!(users.with_secret(b"with", &good).unwrap().name(), "with");
        for (name, secret) in [
            (&b"with"[..], &b""[..]),
            (b"with", &good[1..]),
            (b"without", &good),
            (b"without", b""),
            (b"unknown", b""),
            (b"unknown", &good),
            (b"", &good),
            (b"\xff", &good),
            (b"with", b"\0"),
        ] {
            assert_eq!(users.with_secret(name, secret), None, "{name:?}");
        }
    }

    #[test]
    fn a_label_belongs_to_the_user_that_it_names_first() {
        let alice = User::new("alice", None, vec![]).unwrap();
        assert_eq!(alice.label("bob: x"), "alice: bob: x");
        assert!(alice.owns("alice: bob: x"));
        for label in ["bob: alice: x", "alice", "alice:x", "alice2: x", ""] {
            assert!(!alice.owns(label), "{label}");
        }
    }
}
