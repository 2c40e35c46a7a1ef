//! Who asks. This is the one place where it is decided.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::sync::OwnedSemaphorePermit;

use super::problem::Problem;
use crate::access::Users;
use crate::service::{AFTER_A_GUESS, Asker, Audit, GUESSES, NotLetIn, Paces, Who, log_in};

/// One connection, and what is known of who is at its other end.
pub(super) struct Visitor {
    peer: Arc<str>,
    /// Whom its certificate names.
    named: Option<String>,
    audit: Arc<Audit>,
    guesses: AtomicU32,
    /// Its place among those who have not yet said who they are, while it is one.
    stranger: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Visitor {
    pub(super) fn new(peer: SocketAddr, paces: &Paces, stranger: Option<OwnedSemaphorePermit>) -> Visitor {
        Visitor {
            peer: peer.to_string().into(),
            named: None,
            audit: Arc::new(Audit::paced(peer.to_string(), paces.of(peer.ip()))),
            guesses: AtomicU32::new(0),
            stranger: Mutex::new(stranger),
        }
    }

    /// Its line is encrypted, and its certificate names this user.
    pub(super) fn be_named(&mut self, named: Option<String>) {
        self.named = named;
    }

    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// It is no stranger any more.
    pub(super) fn be_known(&self) {
        drop(self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(super) fn is_stranger(&self) -> bool {
        self.stranger.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Who it is, by what it shows with this request or has shown with its certificate.
    async fn identify(&self, users: Option<&Users>, headers: &HeaderMap) -> Result<Who, Problem> {
        let mut shown = headers.get_all(AUTHORIZATION).iter();
        let shown = match (shown.next(), shown.next()) {
            (_, Some(_)) => return Err(Problem::bad("authorization: it is there twice")),
            (shown, None) => shown,
        };
        let Some(users) = users else {
            let why = "authorization: no users are configured here; leave it out";
            return if shown.is_some() { Err(Problem::bad(why)) } else { Ok(Who::Anyone) };
        };
        let vouched = self.named.as_deref().and_then(|name| users.vouched_for(name));
        let Some(shown) = shown else { return vouched.map(Who::User).ok_or_else(Problem::no_auth) };
        let (name, secret) = basic(shown).ok_or_else(Problem::no_auth)?;
        match log_in(users, vouched.as_deref(), &name, &secret, &self.audit) {
            Ok(user) => Ok(Who::User(user)),
            Err(NotLetIn::NotYours(why)) => Err(Problem::denied(why)),
            Err(NotLetIn::WrongSecret) => {
                self.guesses.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(AFTER_A_GUESS).await;
                Err(Problem::wrong_secret())
            }
        }
    }

    /// Whether it has guessed so often that it is not heard any more.
    fn is_guessing(&self) -> bool {
        self.guesses.load(Ordering::Relaxed) >= GUESSES
    }
}

/// The user and the secret of `Basic`, which is `user:secret` in Base64.
fn basic(shown: &HeaderValue) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, coded) = shown.as_bytes().split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(coded.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some((decoded[..colon].to_vec(), decoded[colon + 1..].to_vec()))
}

/// Finds out who asks, before anything is done for them.
pub(super) async fn identify(State(users): State<Option<Users>>, mut request: Request, next: Next) -> Response {
    let Some(visitor) = request.extensions().get::<Arc<Visitor>>().cloned() else {
        return Problem::no_auth().into_response();
    };
    match visitor.identify(users.as_ref(), request.headers()).await {
        Ok(who) => {
            visitor.be_known();
            let asker = Asker { who, peer: visitor.peer.clone(), audit: visitor.audit.clone() };
            request.extensions_mut().insert(asker);
            next.run(request).await
        }
        Err(problem) => {
            let mut response = problem.into_response();
            if visitor.is_guessing() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_whole_names_a_user() {
        let read = |text: &str| basic(&HeaderValue::from_str(text).expect("a header"));
        let ci = Some((b"ci".to_vec(), b"a:b".to_vec()));
        assert_eq!(read("Basic Y2k6YTpi"), ci);
        assert_eq!(read("basic  Y2k6YTpi "), ci);
        assert_eq!(read("Basic Og=="), Some((Vec::new(), Vec::new())));
        for bad in ["", "Basic", "Basic ", "Basic Y2k=", "Basic Y2k6YTp", "Bearer Y2k6YTpi", "Basic \u{e9}"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
