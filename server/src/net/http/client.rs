//! The client of a connection, and its authentication. No other module authenticates HTTP clients.

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

use super::host;
use super::problem::Problem;
use super::relay::LeaderConnection;
use super::socket::Socket;
use crate::access::{User, Users};
use crate::net::audit::Audit;
use crate::net::connection_limit::{ConnectionPermit, TooManyConnections};
use crate::net::login::{LoginError, MAX_WRONG_SECRETS, WRONG_SECRET_DELAY, log_in};
use crate::net::rate_limit::RateLimiters;
use crate::node::{Principal, Protocol, RequestContext};
use crate::peers::RelayedClient;

/// One connection and its client.
pub(super) struct Client {
    peer: SocketAddr,
    /// The user that its certificate names.
    certified: Option<String>,
    audit: Audit,
    wrong_secrets: AtomicU32,
    permit: ConnectionPermit,
    /// `None` if another node relays the client. That node notices a disconnect, and closes the relayed connection.
    socket: Option<Socket>,
    /// The connection to the node that leads, between two requests that are relayed there.
    leader: Mutex<Option<LeaderConnection>>,
}

impl Client {
    pub(super) fn new(
        peer: SocketAddr,
        limiters: &RateLimiters,
        permit: ConnectionPermit,
        socket: Option<Socket>,
    ) -> Client {
        Client {
            peer,
            certified: None,
            audit: Audit::new(peer.to_string().into(), None, limiters.of_address(peer.ip())),
            wrong_secrets: AtomicU32::new(0),
            permit,
            socket,
            leader: Mutex::default(),
        }
    }

    /// Sets the user that the client's certificate names.
    pub(super) fn set_certified(&mut self, certified: Option<String>) {
        self.certified = certified;
    }

    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Marks the client as authenticated: as this user, or as a client of a service without users.
    pub(super) fn set_authenticated(&self, user: Option<&str>) -> Result<(), Problem> {
        self.permit.set_authenticated(user).map_err(|TooManyConnections(most)| match user {
            Some(user) => Problem::too_many_connections_of(user, most),
            None => Problem::too_many_connections(most),
        })
    }

    pub(super) fn is_unauthenticated(&self) -> bool {
        self.permit.is_unauthenticated()
    }

    /// Sets whether the connection may be closed to make room for another client.
    pub(super) fn set_idle(&self, is_idle: bool) {
        self.permit.set_idle(is_idle);
    }

    /// Waits until the client's connection is reset or displaced.
    pub(super) async fn until_cut_off(&self) {
        tokio::select! {
            () = self.permit.displaced() => {}
            () = on_socket(self.socket.as_ref(), Socket::reset) => {}
        }
    }

    /// Returns whether another node relays this client.
    pub(super) fn is_relayed(&self) -> bool {
        self.socket.is_none()
    }

    /// Describes the client to the node that leads.
    pub(super) fn to_relayed(&self) -> RelayedClient {
        RelayedClient { address: self.peer, user: self.certified.clone() }
    }

    /// Takes the connection to the leader that the last relayed request has left.
    pub(super) fn take_leader(&self) -> Option<LeaderConnection> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps a connection to the leader for the next request.
    pub(super) fn keep_leader(&self, connection: LeaderConnection) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    /// Waits until the client has closed its side.
    pub(super) async fn closed(&self) {
        on_socket(self.socket.as_ref(), Socket::closed).await;
    }

    /// Authenticates by the request's `Authorization` or the connection's certificate.
    async fn authenticate(&self, users: Option<&Users>, headers: &HeaderMap) -> Result<Principal, Problem> {
        let mut headers = headers.get_all(AUTHORIZATION).iter();
        let authorization = match (headers.next(), headers.next()) {
            (_, Some(_)) => return Err(Problem::bad("authorization: it is there twice")),
            (authorization, None) => authorization,
        };
        let Some(users) = users else {
            let why = "authorization: no users are configured here; leave it out";
            return if authorization.is_some() { Err(Problem::bad(why)) } else { Ok(Principal::Anyone) };
        };
        let Some(authorization) = authorization else {
            return self.certified_user(users).map(Principal::User).ok_or_else(Problem::no_auth);
        };
        let (name, secret) = basic(authorization).ok_or_else(Problem::no_auth)?;
        self.log_in(users, &name, &secret).await.map(Principal::User)
    }

    /// Returns the user that the client's certificate names.
    pub(super) fn certified_user(&self, users: &Users) -> Option<Arc<User>> {
        self.certified.as_deref().and_then(|name| users.find(name))
    }

    /// Finds the user with this name and secret. A wrong secret is answered late, and too many end the connection.
    pub(super) async fn log_in(&self, users: &Users, name: &[u8], secret: &[u8]) -> Result<Arc<User>, Problem> {
        match log_in(users, self.certified_user(users).as_deref(), name, secret, &self.audit) {
            Ok(user) => Ok(user),
            Err(LoginError::OtherUser(why)) => Err(Problem::denied(why)),
            Err(LoginError::WrongSecret) => {
                self.wrong_secrets.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(WRONG_SECRET_DELAY).await;
                Err(Problem::wrong_secret())
            }
        }
    }

    pub(super) fn context(&self, principal: Principal) -> RequestContext {
        let (peer, address) = (self.audit.peer().clone(), self.peer.ip());
        RequestContext { principal, protocol: Protocol::Http, peer, address }
    }

    /// Returns whether it has sent too many wrong secrets.
    fn has_too_many_wrong_secrets(&self) -> bool {
        self.wrong_secrets.load(Ordering::Relaxed) >= MAX_WRONG_SECRETS
    }
}

/// Waits for an event of a socket. Waits without end without a socket.
async fn on_socket(socket: Option<&Socket>, event: impl AsyncFn(&Socket)) {
    match socket {
        Some(socket) => event(socket).await,
        None => std::future::pending().await,
    }
}

/// Parses the user and the secret of `Basic`: `user:secret` in Base64.
fn basic(authorization: &HeaderValue) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, coded) = authorization.as_bytes().split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(coded.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some((decoded[..colon].to_vec(), decoded[colon + 1..].to_vec()))
}

/// The users, and the names of this service.
#[derive(Clone)]
pub(super) struct Authenticator {
    pub(super) users: Option<Users>,
    /// The accepted values of `Host`; `None` accepts all. A service without users checks it: through DNS rebinding any web page
    /// could otherwise make a browser send requests.
    pub(super) hosts: Option<Arc<[String]>>,
}

/// Authenticates a request before anything is done for it.
pub(super) async fn authenticate(
    State(authenticator): State<Authenticator>,
    mut request: Request,
    next: Next,
) -> Response {
    let Authenticator { users, hosts } = authenticator;
    if let Some(hosts) = hosts
        && let Err(problem) = host::check(&hosts, request.uri(), request.headers())
    {
        return problem.into_response();
    }
    let Some(client) = request.extensions().get::<Arc<Client>>().cloned() else {
        return Problem::no_auth().into_response();
    };
    match client.authenticate(users.as_ref(), request.headers()).await {
        Ok(principal) => {
            if let Err(problem) = client.set_authenticated(principal.user_name()) {
                return closing(problem.into_response());
            }
            let context = client.context(principal);
            request.extensions_mut().insert(context);
            next.run(request).await
        }
        Err(problem) => {
            let response = problem.into_response();
            if client.has_too_many_wrong_secrets() { closing(response) } else { response }
        }
    }
}

/// Closes the connection after this response.
pub(super) fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_basic_credentials_name_a_user() {
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
