//! Who asks. This is the one place where it is decided.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::host;
use super::problem::Problem;
use super::socket::Socket;
use crate::access::{User, Users};
use crate::service::{AFTER_A_GUESS, Asker, Audit, Counted, GUESSES, NotLetIn, Paces, TooMany, Who, log_in};

/// One connection, and what is known of who is at its other end.
pub(super) struct Visitor {
    peer: Arc<str>,
    /// Whom its certificate names.
    named: Option<String>,
    audit: Arc<Audit>,
    paces: Arc<Paces>,
    guesses: AtomicU32,
    counted: Counted,
    socket: Socket,
}

impl Visitor {
    pub(super) fn new(peer: SocketAddr, paces: Arc<Paces>, counted: Counted, socket: Socket) -> Visitor {
        Visitor {
            peer: peer.to_string().into(),
            named: None,
            audit: Arc::new(Audit::new(peer.to_string(), None, paces.of_address(peer.ip()))),
            paces,
            guesses: AtomicU32::new(0),
            counted,
            socket,
        }
    }

    /// Its line is encrypted, and its certificate names this user.
    pub(super) fn be_named(&mut self, named: Option<String>) {
        self.named = named;
    }

    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// It is known from now on: as this user, or because there are no users.
    pub(super) fn be_known(&self, user: Option<&str>) -> Result<(), Problem> {
        self.counted.be_known(user).map_err(|TooMany(most)| match user {
            Some(user) => Problem::too_many_connections_of(user, most),
            None => Problem::too_many_connections(most),
        })
    }

    pub(super) fn is_stranger(&self) -> bool {
        self.counted.is_unknown()
    }

    /// Says whether its connection may be given to another client.
    pub(super) fn set_idle(&self, is_idle: bool) {
        self.counted.set_idle(is_idle);
    }

    /// Waits until the client has gone, or another one has taken its place.
    pub(super) async fn cut_off(&self) {
        tokio::select! {
            () = self.counted.displaced() => {}
            () = self.socket.reset() => {}
        }
    }

    /// Waits until the client has closed its side: nobody awaits an answer that takes long.
    pub(super) async fn gone(&self) {
        self.socket.closed().await;
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

/// Who may ask, and for which hosts.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) users: Option<Users>,
    /// The names of this service, where a browser could be made to ask it without a user; otherwise any will do.
    pub(super) hosts: Option<Arc<[String]>>,
}

/// Finds out who asks, before anything is done for them.
pub(super) async fn identify(State(known): State<Known>, mut request: Request, next: Next) -> Response {
    let Known { users, hosts } = known;
    if let Some(hosts) = hosts
        && let Err(problem) = host::check(&hosts, request.uri(), request.headers())
    {
        return problem.into_response();
    }
    let Some(visitor) = request.extensions().get::<Arc<Visitor>>().cloned() else {
        return Problem::no_auth().into_response();
    };
    match visitor.identify(users.as_ref(), request.headers()).await {
        Ok(who) => {
            let user = who.user().map(User::name);
            if let Err(problem) = visitor.be_known(user) {
                return closing(problem.into_response());
            }
            let audit = match user {
                Some(user) => Arc::new(visitor.audit.of_user(user, visitor.paces.of_user(user))),
                None => visitor.audit.clone(),
            };
            request.extensions_mut().insert(Asker { who, peer: visitor.peer.clone(), audit });
            next.run(request).await
        }
        Err(problem) => {
            let response = problem.into_response();
            if visitor.is_guessing() { closing(response) } else { response }
        }
    }
}

/// The last response on its connection.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
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
